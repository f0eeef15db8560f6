"""`penstock run` in a pipe writes only answers to standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.media_files import sound_file, tone
from tests.support.servers.server_process import write_servable_model
from tests.support.speech.whisper_folders import random_whisper

pytestmark = pytest.mark.slow


def test_banner_and_prompts_go_to_standard_error(tmp_path: Path) -> None:
    model = write_servable_model(tmp_path / "small")

    def run(*options: str, given: str) -> subprocess.CompletedProcess[str]:
        options = ("--threads", "1", "--temperature", "0", "--max-tokens", "8", *options)
        return subprocess.run(
            [sys.executable, "-m", "penstock", "run", model, *options],
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            env=os.environ | {"PENSTOCK_HOME": str(tmp_path), "COLUMNS": "200"},
        )

    once = run("-i", "hi", given="")
    talk = run(given="hi\n/clear\nhi\n")
    assert once.stdout and talk.stdout == once.stdout * 2
    assert "/help lists the commands" in talk.stderr and "Conversation cleared." in talk.stderr
    assert "> " not in talk.stderr


def test_a_recording_is_transcribed_without_a_question(tmp_path: Path) -> None:
    model = random_whisper(tmp_path / "whisper")
    recording = tmp_path / "tone.wav"
    recording.write_bytes(sound_file(tone(16_000, 1.0), 16_000, "wav_s16"))
    command = [sys.executable, "-m", "penstock", "run", str(model), "--audio", str(recording)]
    answers = [
        subprocess.run(
            [*command, "--threads", "1", "--max-tokens", "8", "--temperature", "0", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            env=os.environ | {"PENSTOCK_HOME": str(tmp_path)},
        )
        for options in ((), ("-i", "any text"))
    ]
    assert answers[0].stdout and answers[0].stdout == answers[1].stdout
    assert b"/help" not in answers[0].stderr


def test_recordings_beyond_the_limit_of_option_or_file_are_refused(tmp_path: Path) -> None:
    model = random_whisper(tmp_path / "whisper")
    recording, settings = tmp_path / "tone.wav", tmp_path / "penstock.toml"
    recording.write_bytes(sound_file(tone(16_000, 3.0), 16_000, "wav_s16"))
    settings.write_text("[media]\nmax_media_duration_s = 2\n")
    command = [sys.executable, "-m", "penstock", "run", str(model), "--audio", str(recording)]
    for limit in (("--max-media-duration", "2"), ("--config", str(settings))):
        refused = subprocess.run(
            [*command, *limit],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PENSTOCK_HOME": str(tmp_path)},
        )
        assert refused.returncode == 1 and refused.stdout == ""
        assert refused.stderr == "penstock: the audio is longer than 2 seconds\n"
