"""A folder's tokenizer gives the same ids as transformers, whichever file declares the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_embedding_parts, load_text_parts
from penstock.text import Tokenizer, load_tokenizer
from penstock.text.tokenizers.backend import build_backend
from penstock.text.tokenizers.embedding_tokenizer import load_embedding_tokenizer
from tests.support.checkpoints.tiny_tokenizer import END_OF_TEXT, IM_END, IM_START, tiny_data

transformers = pytest.importorskip("transformers")

FIRST_FREE = len(tiny_data().tokens)  # the id of the first token that is added
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": FIRST_FREE + 4,
}
TEXT = "the <|im_end|> x <new>y<other> th"


def named(content: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(content, **flags)}


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, **plain, "special": True} | flags


def framed(before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Backend:
    backend = build_backend(tiny_data())
    ids = {name: backend.token_to_id(name) for name in (*before, *after)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=list(ids.items())
    )
    return backend


def write(folder: Path, backend: Backend | None = None, **files: Any) -> ModelFiles:
    """Write a folder with these JSON files, given as name without extension -> content."""
    (backend or build_backend(tiny_data())).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | files.pop("tokenizer_config", {})
    for name, content in {"config": CONFIG, "tokenizer_config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return ModelFiles("m", "folder", folder)


def load(files: ModelFiles) -> Tokenizer:
    return load_tokenizer(load_text_parts(files))


def expected(folder: Path, text: str) -> list[int]:
    ids: list[int] = transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids
    return ids


DECLARED: dict[str, dict[str, Any]] = {
    "listed with ids": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                str(FIRST_FREE): token("<new>"),
                str(FIRST_FREE + 1): token("<other>", special=False, normalized=True),
            }
        }
    },
    "listed out of order": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                str(FIRST_FREE + 1): token("<new>", lstrip=True),
                str(FIRST_FREE): token("<other>", rstrip=True),
            }
        }
    },
    "listed with the id of an ordinary token": {
        "tokenizer_config": {"added_tokens_decoder": {"259": token("th")}}
    },
    "additional": {"tokenizer_config": {"additional_special_tokens": ["<other>", named("<new>")]}},
    "extra": {"tokenizer_config": {"extra_special_tokens": ["<new>", "<other>"]}},
    "extra with names": {"tokenizer_config": {"extra_special_tokens": {"a_token": "<new>"}}},
    "named": {"tokenizer_config": {"pad_token": "<new>", "bos_token": "<other>"}},
    "named and an ordinary token": {"tokenizer_config": {"eos_token": "th"}},
    "in the older map": {
        "special_tokens_map": {"bos_token": token("<new>"), "unk_token": "<other>"}
    },
    "additional in the older map": {
        "special_tokens_map": {"additional_special_tokens": ["<new>", "<other>"]}
    },
    "in the older map, which does not count": {
        "tokenizer_config": {"added_tokens_decoder": {str(FIRST_FREE): token("<new>")}},
        "special_tokens_map": {"bos_token": "<other>"},
        "added_tokens": {"<other>": FIRST_FREE + 1},
    },
    "in the older list": {"added_tokens": {"<other>": FIRST_FREE + 1, "<new>": FIRST_FREE}},
    "special in the older list": {
        "tokenizer_config": {"pad_token": "<new>"},
        "added_tokens": {"<new>": FIRST_FREE, "<other>": FIRST_FREE + 1},
    },
    "everywhere": {
        "tokenizer_config": {
            "pad_token": "<p>",
            "bos_token": "<b>",
            "added_tokens_decoder": {str(FIRST_FREE): token("<other>")},
            "additional_special_tokens": ["<new>"],
        }
    },
}


@pytest.mark.parametrize("name", DECLARED)
def test_tokens_declared_beside_tokenizer_json_are_added(tmp_path: Path, name: str) -> None:
    tokenizer = load(write(tmp_path, **DECLARED[name]))
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode(TEXT) == oracle(TEXT).input_ids
    assert tokenizer.added_tokens == oracle.get_added_vocab()
    special = {t.content for t in oracle.added_tokens_decoder.values() if t.special}
    assert tokenizer.control_tokens.keys() == special
    named_ids = (tokenizer.bos_id, tokenizer.eos_id)
    assert named_ids == (oracle.bos_token_id, oracle.eos_token_id)
    assert "<new>" not in tokenizer.added_tokens or '"<new>"' in tokenizer.serialize()


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {str(FIRST_FREE + 1): token("<new>")}}},
        {"tokenizer_config": {"added_tokens_decoder": {"65": token("<new>")}}},
        {"added_tokens": {"<new>": FIRST_FREE + 2}},
        {"added_tokens": {"th": 3}},
    ],
)
def test_declared_token_with_a_wrong_id_is_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"no token '(<new>|th)', which .* declare as \d+; it"):
        load(write(tmp_path, **files))


def test_declared_token_beyond_the_vocabulary_stays_plain_text(tmp_path: Path) -> None:
    rows = CONFIG | {"vocab_size": FIRST_FREE}
    config = {"pad_token": "<new>", "added_tokens_decoder": {str(FIRST_FREE): token("<other>")}}
    tokenizer = load(write(tmp_path, config=rows, tokenizer_config=config))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT.replace("<|im_end|>", "")
    assert max(tokenizer.encode(TEXT)) < FIRST_FREE


FRAMES: dict[str, tuple[Backend, dict[str, Any]]] = {
    "bos": (framed(("<|endoftext|>",)), {"bos_token": "<|endoftext|>"}),
    "bos that no file names": (framed(("<|endoftext|>",)), {}),
    "another token than bos": (framed(("<|im_start|>",)), {"bos_token": "<|endoftext|>"}),
    "two before, one after": (framed(("<|endoftext|>", "<|im_start|>"), ("<|im_end|>",)), {}),
    "one after": (framed((), ("<|im_end|>",)), {"eos_token": "<|endoftext|>"}),
    "bos that is not wanted": (build_backend(tiny_data()), {"bos_token": "<|endoftext|>"}),
}


@pytest.mark.parametrize("name", FRAMES)
def test_raw_prompt_gets_the_tokens_of_the_post_processor(tmp_path: Path, name: str) -> None:
    backend, config = FRAMES[name]
    tokenizer = load(write(tmp_path, backend, tokenizer_config=config))
    for text in ("the thing", "", "<|im_start|>the"):
        assert tokenizer.encode(text, add_special=True) == expected(tmp_path, text)
    assert tokenizer.encode("the") == [260]


def test_bos_of_special_tokens_map_reaches_templates(tmp_path: Path) -> None:
    tokens = {"bos_token": token("<|endoftext|>"), "eos_token": "<|im_end|>"}
    files = write(tmp_path, framed(("<|endoftext|>",)), special_tokens_map=tokens)
    parts = load_text_parts(files)
    assert (parts.bos_token, parts.eos_token) == ("<|endoftext|>", "<|im_end|>")
    tokenizer = load_tokenizer(parts)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (END_OF_TEXT, IM_END)
    assert tokenizer.encode("the", add_special=True) == expected(tmp_path, "the")


def test_truncation_and_padding_of_a_training_run_are_ignored(tmp_path: Path) -> None:
    backend = build_backend(tiny_data())
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=8, pad_id=IM_START, pad_token="<|im_start|>", direction="left")
    tokenizer = load(write(tmp_path, backend))
    for text in ("x", "the thing in the ring", "<|im_end|>x"):
        assert tokenizer.encode(text) == expected(tmp_path, text)
    stored = json.loads(tokenizer.serialize())
    assert (stored["truncation"], stored["padding"]) == (None, None)


def spaces_backend() -> Backend:
    """A tokenizer like Gemma's: runs of spaces are added tokens that match the normalized text."""
    pieces = ["<eos>", "<unk>", "\u2581", "\u2581\u2581", "\u2581\u2581\u2581", "a", "b", "\u2581a"]
    merges = [("\u2581", "\u2581"), ("\u2581\u2581", "\u2581"), ("\u2581", "a")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken("<eos>"), AddedToken("<unk>")])
    backend.add_tokens(
        [AddedToken(run, normalized=False) for run in ("\u2581\u2581", "\u2581\u2581\u2581")]
    )
    return backend


def test_added_tokens_of_spaces_are_decoded_as_spaces(tmp_path: Path) -> None:
    tokenizer = load(write(tmp_path, spaces_backend(), tokenizer_config={"eos_token": "<eos>"}))
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a  b", "a\u2581\u2581b   a", "  a"):
        ids = tokenizer.encode(text)
        assert ids == oracle(text).input_ids
        assert tokenizer.decode(ids) == oracle.decode(ids) == text.replace("\u2581", " ")
    assert [tokenizer.text_of[index] for index in (3, 4)] == ["  ", "   "]


@pytest.mark.parametrize(("setting", "lost"), [(True, True), (False, False), (None, False)])
def test_embedding_texts_are_lowercased_if_the_model_asks_for_it(
    tmp_path: Path, setting: bool | None, lost: bool
) -> None:
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": f"{kind}Transformer"}, {"path": "p", "type": f"{kind}Pooling"}]
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    files = write(
        tmp_path,
        framed((), ("<|im_end|>",)),
        modules=modules,
        sentence_bert_config={"do_lower_case": setting},
        tokenizer_config={"pad_token": "<new>"},
    )
    tokenizer = load_embedding_tokenizer(load_embedding_parts(files).tokenizer)
    capitals, small, declared = tokenizer.encode(["THE ΑΣ", "the ας", "<new>"])
    assert small[-1] == IM_END
    assert (capitals == small) == lost
    assert declared == [FIRST_FREE, IM_END]
    assert tokenizer.count("THE") == (1 if lost else 3)
