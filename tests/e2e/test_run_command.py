"""`penstock run` in a terminal and in pipes, with the real default model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pseudo_terminal import READING, PseudoTerminal
from tests.support.servers.server_process import serving_process

pytestmark = [pytest.mark.slow, pytest.mark.weights]
QUESTION = "Please list the days of the week."
MODEL = "smollm2-135m-instruct"
RUN = [sys.executable, "-m", "penstock", "run"]
GREEDY = ("--temperature", "0", "--max-tokens", "24")
STORY = "Write a very long story about a fox."


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path) -> Iterator[PseudoTerminal]:
    with started(environment, "--local", *GREEDY) as running:
        yield running


def started(environment: dict[str, str], *options: str) -> PseudoTerminal:
    return PseudoTerminal([*RUN, *options], environment)


def piped(*words: str, given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_a_chat_answers_and_remembers_the_lines_for_the_next_one(
    terminal: PseudoTerminal, environment: dict[str, str], tmp_path: Path
) -> None:
    terminal.enter(QUESTION)
    terminal.expect("Wednesday")
    terminal.enter("/set seed 5")
    terminal.expect("seed: 5")
    terminal.expect(READING)
    terminal.press("\x04")
    assert terminal.wait_ended() == 0
    history = tmp_path / "state" / "penstock" / "history"
    assert QUESTION in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    with started(environment, "--local", *GREEDY) as later:
        later.enter("\x1b[A\x1b[A")
        later.expect("Wednesday")


def test_interrupt_stops_the_answer_and_not_the_program(environment: dict[str, str]) -> None:
    with started(environment, "--local", "--temperature", "0", "--plain") as terminal:
        terminal.enter(STORY)
        terminal.expect("fox ")
        terminal.press("\x03")
        terminal.expect("[stopped]")
        terminal.enter("/stats")
        terminal.expect("1 answer")
        terminal.enter("/exit")
        assert terminal.wait_ended() == 0


def test_several_lines_are_one_question(terminal: PseudoTerminal, tmp_path: Path) -> None:
    terminal.enter("Please list\\\rthe days\x1b\rof the week.")
    terminal.enter(f"/save {tmp_path / 'chat'}")
    terminal.expect("Saved the chat")
    (asked, _) = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert asked["blocks"] == [
        {"type": "text", "text": "Please list\nthe days\nof the week.", "tokens": None}
    ]


def test_a_saved_chat_is_loaded_in_another_process(
    terminal: PseudoTerminal, environment: dict[str, str], tmp_path: Path
) -> None:
    terminal.enter("/set top_p 0.5")
    terminal.expect("top_p: 0.5")
    terminal.enter(QUESTION)
    terminal.expect("Wednesday")
    terminal.enter(f"/save {tmp_path / 'chat.json'}")
    terminal.expect("Saved the chat")
    with started(environment, "--local", *GREEDY) as later:
        later.enter(f"/load {tmp_path / 'chat.json'}")
        later.expect("with 2 messages")
        later.enter("/set top_p")
        later.expect("top_p: 0.5")
        later.enter("Hello")
        later.enter(f"/save {tmp_path / 'longer.json'}")
        later.expect("Saved the chat")
    first, longer = (
        json.loads((tmp_path / name).read_text())["messages"]
        for name in ("chat.json", "longer.json")
    )
    assert longer[:2] == first and [m["role"] for m in longer[2:]] == ["user", "assistant"]


def test_a_running_server_answers_the_chat(environment: dict[str, str]) -> None:
    with serving_process(MODEL, home=Path(os.environ["PENSTOCK_HOME"])) as server:
        server.wait_ready()
        with started(environment, "--url", server.url, *GREEDY) as terminal:
            terminal.expect(server.url)
            terminal.enter("/model")
            terminal.expect(f"* {MODEL}  loaded")
            terminal.enter(QUESTION)
            terminal.expect("Wednesday")
            terminal.enter("/stats")
            terminal.expect("tokens/s")
        said = piped("--url", server.url, *GREEDY, "-i", QUESTION, given="")
        assert "Wednesday" in said.stdout and said.stderr == ""


def test_standard_input_is_the_document_and_the_argument_the_question() -> None:
    text = "The parrot of Mrs Miller is called Lora. It is green."
    answer = piped("What is the name of the parrot?", "--local", *GREEDY, given=text)
    assert answer.returncode == 0 and "Lora" in answer.stdout and answer.stderr == ""
    assert "\x1b" not in answer.stdout
    named = piped(MODEL, "What is the name of the parrot?", "--local", *GREEDY, given=text)
    assert named.stdout == answer.stdout


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--url", "http://127.0.0.1:9", "-i", "hi"), 1, "no Penstock server answers at"),
        (("--url", "http://127.0.0.1:9", "--local", "-i", "hi"), 1, "exclude each other"),
        (("smolm2-135m-instruct", "-i", "hi"), 1, "did you mean smollm2-135m-instruct?"),
        (("-i", "hi", "--image", "/nowhere.png"), 1, "--image: /nowhere.png: No such file"),
        ((MODEL, "a question", "-i", "hi"), 2, "given twice"),
        (("--no-such-option",), 2, "no such option"),
    ],
)
def test_errors_are_told_in_one_line_with_a_status(
    words: tuple[str, ...], status: int, told: str
) -> None:
    ended = piped(*words, given="")
    assert (ended.returncode, ended.stdout) == (status, "")
    assert told in ended.stderr and ended.stderr.count("\n") == 1


def test_an_interrupted_single_answer_ends_with_status_130(environment: dict[str, str]) -> None:
    with started(environment, "--local", "--plain", STORY) as terminal:
        terminal.expect("fox ")
        terminal.press("\x03")
        terminal.expect("[stopped]")
        assert terminal.wait_ended() == 130
