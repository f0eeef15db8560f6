"""Speech models: Kokoro and Piper on small ONNX files, the others with small random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_kind import model_kind
from penstock.models.speech.kokoro_alphabet import MAX_PHONEMES, TOKEN_IDS, kokoro_phonemes
from penstock.runtime.speech.load import load_speaker
from penstock.runtime.speech.pieces import cut_phonemes
from penstock.runtime.speech.speaker import Speaker
from tests.support.checkpoints.speech_checkpoints import save_csm, save_dia, save_vits
from tests.support.speech.onnx_files import SAMPLES_PER_TOKEN, write_kokoro, write_piper

pytest.importorskip("onnxruntime")
pytest.importorskip("phonemizer")


def speaker_at(path: Path) -> Speaker:
    files = files_at(path, "m")
    assert model_kind(files) == "speech"
    return load_speaker(files, EngineSettings(model=str(path), threads=1, device="cpu"))


@pytest.fixture(scope="module")
def kokoro(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return speaker_at(write_kokoro(tmp_path_factory.mktemp("kokoro")))


def text_of(tokens: tuple[int, ...]) -> str:
    symbols = {number: symbol for symbol, number in TOKEN_IDS.items()}
    return "".join(symbols[token] for token in tokens)


def test_kokoro_alphabet_has_the_published_tokens() -> None:
    published = {";": 1, "—": 9, " ": 16, "ʣ": 18, "\uab67": 23, "A": 24, "I": 25, "O": 31}
    published |= {"Q": 33, "T": 36, "W": 39, "Y": 41, "ᵊ": 42, "a": 43, "f": 48, "h": 50}
    published |= {"z": 68, "ɑ": 69, "æ": 72, "β": 75, "ç": 78, "ɖ": 80, "ə": 83, "ɚ": 85}
    published |= {"ɜ": 87, "ɟ": 90, "ɡ": 92, "ɥ": 99, "ɪ": 102, "ʝ": 103, "ɯ": 110, "ø": 116}
    published |= {"ɸ": 118, "œ": 120, "ɹ": 123, "ɾ": 125, "ɻ": 126, "ʁ": 128, "ʧ": 133}
    published |= {"ʋ": 136, "ʌ": 138, "ɤ": 140, "χ": 142, "ʎ": 143, "ʒ": 147, "ʔ": 148}
    published |= {"ˈ": 156, "ː": 158, "ʰ": 162, "ʲ": 164, "↓": 169, "→": 171, "↘": 173, "ᵻ": 177}
    assert {symbol: TOKEN_IDS[symbol] for symbol in published} == published
    assert len(TOKEN_IDS) == 114


@pytest.mark.parametrize(
    ("phonemes", "language", "written"),
    [
        ("həlˈo^ʊ wˈɜːld", "en-us", "həlˈO wˈɜɹld"),
        ("həlˈə^ʊ wˈɜːld", "en-gb", "həlˈQ wˈɜːld"),
        ("fˈa^ɪv t^ʃˈɛɹ", "en-us", "fˈIv ʧˈɛɹ"),
        ("bˈʌʔn\u0329", "en-us", "bˈʌtᵊn"),
        ("t^sˈa^ɪt", "it", "ʦˈIt"),
    ],
)
def test_phonemes_are_written_in_kokoros_alphabet(
    phonemes: str, language: str, written: str
) -> None:
    assert kokoro_phonemes(phonemes, language) == written


def test_kokoro_pieces_are_phonemes_with_their_punctuation(kokoro: Speaker) -> None:
    (piece,) = kokoro.pieces("Hello, world! It cost 5.50.", "af_heart")
    spoken = text_of(piece)
    assert spoken.startswith("həlˈO, wˈɜɹld!")
    assert spoken.count(".") == 1, "the point of a number is spoken"
    assert kokoro.pieces("...", "af_heart") == []
    assert kokoro.pieces("", "af_heart") == []


def test_kokoro_cuts_what_is_longer_than_its_style_vectors(kokoro: Speaker) -> None:
    pieces = kokoro.pieces("A rather long sentence, which goes on, " * 30, "af_heart")
    assert len(pieces) > 1
    assert all(len(piece) <= MAX_PHONEMES for piece in pieces)


def test_kokoro_voice_chooses_style_and_language(kokoro: Speaker) -> None:
    (piece,) = kokoro.pieces("Hello", "af_heart")
    loudness = [np.abs(kokoro.speak(piece, voice, 1.0)).max() for voice in VOICES]
    assert np.allclose(np.array(loudness) / loudness[0], [1, 1, 2, 2, 1.5, 1, 1], rtol=1e-3)
    (british,) = kokoro.pieces("Hello", "bf_emma")
    assert text_of(british) != text_of(piece)
    assert len(kokoro.speak(piece, "", 1.0)) == SAMPLES_PER_TOKEN * (len(piece) + 2)


VOICES = ("af_heart", "heart", "am_echo", "echo", "af_heart+am_echo", "nobody", "heart+nobody")


def test_a_wrong_kokoro_folder_is_refused(tmp_path: Path) -> None:
    folder = write_kokoro(tmp_path)
    (folder / "voices" / "xx_bad.bin").write_bytes(b"12345")
    with pytest.raises(ModelError, match=r"xx_bad\.bin: not float32 style vectors"):
        speaker_at(folder)
    (folder / "voices" / "xx_bad.bin").unlink()
    (folder / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="onnxruntime cannot load it"):
        speaker_at(folder)


def test_piper_voice_is_phonemes_with_padding(tmp_path: Path) -> None:
    speaker = speaker_at(write_piper(tmp_path))
    assert speaker.info.sample_rate == 16000
    assert speaker.info.voices == ("en_US-tone-low",)
    (piece,) = speaker.pieces("Cats!", "")
    assert piece[:2] == (1, 0) and piece[-1] == 2 and set(piece[3:-1:2]) == {0}
    assert np.isclose(np.abs(speaker.speak(piece, "", 1.0)).max(), 0.2, rtol=1e-3)
    assert len(speaker.speak(piece, "", 1.0)) == SAMPLES_PER_TOKEN * len(piece)
    faster = np.abs(speaker.speak(piece, "", 2.0)).max()
    assert np.isclose(faster, (0.1 + 0.1 + 0.3) / 3, rtol=1e-3), "the length scale is halved"


def test_piper_speakers_are_its_voices(tmp_path: Path) -> None:
    speaker = speaker_at(write_piper(tmp_path, speakers=3).parent)
    assert speaker.info.voices == ("p0", "p1", "p2")
    (piece,) = speaker.pieces("Cats", "p1")
    assert len(speaker.speak(piece, "p1", 1.0))


def test_a_piper_voice_needs_its_settings(tmp_path: Path) -> None:
    path = write_piper(tmp_path)
    path.with_name(f"{path.name}.json").write_text('{"audio": {"sample_rate": 1}}')
    with pytest.raises(ModelError, match="phoneme_id_map"):
        speaker_at(path)
    path.with_name(f"{path.name}.json").unlink()
    with pytest.raises(ModelError, match=r"also needs en_US-tone-low\.onnx\.json"):
        files_at(path, "m")


def test_phonemes_are_cut_after_punctuation() -> None:
    assert cut_phonemes("abc. def, ghi jkl", 10) == ["abc. def,", "ghi jkl"]
    assert cut_phonemes("abcdefghijkl", 5) == ["abcde", "fghij", "kl"]
    assert cut_phonemes(" ", 5) == []


def test_vits_is_what_transformers_computes(tmp_path: Path) -> None:
    folder = save_vits(tmp_path)
    speaker = speaker_at(folder)
    assert speaker.info.voices == ("0", "1")
    (piece,) = speaker.pieces("Hello there!", "1")
    tokenizer = transformers.VitsTokenizer.from_pretrained(folder)
    assert list(piece) == tokenizer("Hello there!").input_ids
    assert speaker.pieces("...", "1") == []
    model = transformers.VitsModel.from_pretrained(folder).eval()
    for voice, number in (("1", 1), ("other", 0)):
        torch.manual_seed(5)
        with torch.inference_mode():
            wanted = model(torch.tensor([piece]), speaker_id=number, speaking_rate=2.0).waveform[0]
        torch.manual_seed(5)
        assert np.allclose(speaker.speak(piece, voice, 2.0), wanted.numpy(), atol=1e-6)


def test_dia_is_what_transformers_computes(tmp_path: Path) -> None:
    folder = save_dia(tmp_path)
    speaker = speaker_at(folder)
    assert speaker.info.voices == ("S1", "S2")
    (piece,) = speaker.pieces("Hi there", "S2")
    assert bytes(piece[1:]) == b" Hi there" and piece[0] == 2
    assert speaker.pieces("[S1] Hi", "S2")[0][0] == 1
    assert speaker.pieces("...", "") == []
    samples = speaker.speak(piece, "S2", 1.0)
    model = transformers.DiaForConditionalGeneration.from_pretrained(folder).eval()
    processor = transformers.DiaProcessor(
        transformers.DiaFeatureExtractor(),
        transformers.DiaTokenizer(),
        transformers.DacModel.from_pretrained(folder / "audio_tokenizer").eval(),
    )
    inputs = processor(text=["[S2] Hi there"], return_tensors="pt")
    torch.manual_seed(1)
    with torch.inference_mode():
        (wanted,) = processor.batch_decode(model.generate(**inputs))
    assert len(samples) > 0 and np.allclose(samples, wanted.reshape(-1).numpy(), atol=1e-6)


def test_csm_is_what_transformers_computes(tmp_path: Path) -> None:
    folder = save_csm(tmp_path)
    speaker = speaker_at(folder)
    assert speaker.info.voices[:2] == ("0", "1") and speaker.info.sample_rate == 200
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (piece,) = speaker.pieces("Hi there", "3")
    assert list(piece) == tokenizer("[3]Hi there").input_ids
    assert speaker.pieces("Hi", "nobody") == speaker.pieces("Hi", "0")
    assert speaker.pieces("...", "") == []
    samples = speaker.speak(piece, "3", 1.0)
    model = transformers.CsmForConditionalGeneration.from_pretrained(folder).eval()
    frames = int((2 + 0.5 * len(piece)) * 12.5)
    torch.manual_seed(1)
    with torch.inference_mode():
        (wanted,) = model.generate(
            input_ids=torch.tensor([piece]), max_new_tokens=frames, output_audio=True
        )
    assert 0 < len(samples) <= frames * 16 and np.abs(samples).max() > 0
    assert np.allclose(samples, wanted.numpy(), atol=1e-6)


def test_csm_speaks_the_names_of_special_tokens(tmp_path: Path) -> None:
    folder = save_csm(tmp_path)
    special = transformers.AutoTokenizer.from_pretrained(folder).all_special_ids
    (piece,) = speaker_at(folder).pieces("<|AUDIO|> and <|end_of_text|>", "0")
    assert [token in special for token in piece] == [True, *[False] * (len(piece) - 2), True]


def test_weights_are_the_files_that_the_config_names(tmp_path: Path) -> None:
    folder = save_csm(tmp_path)
    expected = speaker_at(folder).info.weight_bytes
    (folder / "model.safetensors").rename(folder / "transformers.safetensors")
    (folder / "model.safetensors").write_bytes(b"the weights of another program" * 10**6)
    config = json.loads((folder / "config.json").read_text())
    config["transformers_weights"] = "transformers.safetensors"
    (folder / "config.json").write_text(json.dumps(config))
    files = files_at(folder, "m")
    settings = EngineSettings(model=str(folder), threads=1, device="cpu")
    assert load_speaker(files, settings, 10**6).info.weight_bytes == expected


def test_a_broken_transformers_folder_is_refused(tmp_path: Path) -> None:
    folder = save_vits(tmp_path)
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="transformers cannot load it"):
        speaker_at(folder)
