"""MTP heads give the logits of an independent computation in PyTorch, from folders and GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder_stepper import BLOCK_TOKENS, Stepper
from mtp_models import CASES, MtpModel, mtp_model
from random_models import PROMPT, TOLERANCE
from safetensors.numpy import load_file, save_file

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.draft_head import HeadName
from penstock.models.decoder.mtp import MtpHead
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one torch thread: more only add waiting for such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model) of one case."""
    model = mtp_model(request.param, own_ends=request.param == "glm4 moe")
    folder = tmp_path_factory.mktemp("model")
    model.save(folder)
    return folder, model


def opened(path: Path) -> LoadedModel:
    kind = "folder" if path.is_dir() else "gguf"
    return load_model(ModelFiles("m", kind, path), "auto", mtp="required")


class Head:
    """The head of a model over the reference ops, with a paged cache for one sequence."""

    def __init__(self, path: Path, draft_ids: npt.NDArray[np.int32] | None = None) -> None:
        model = replace(opened(path), draft_ids=draft_ids)
        self.ops = ReferenceOps()
        self.target = Decoder(
            model.spec,
            model.weights,
            self.ops,
            max_model_len=256,
            draft_ids=model.own_draft_ids,
        )
        assert model.mtp is not None
        self.head = MtpHead(self.target, model.mtp, self.ops, draft_ids)
        self.language_model_head: HeadName = "whole" if draft_ids is None else "draft"
        (size,) = self.head.caches
        assert size is not None
        nan = float("nan")
        self.cache = LayerCache(
            torch.full((4, size.kv_heads, size.key_dim, BLOCK_TOKENS), nan),
            torch.full((4, size.kv_heads, BLOCK_TOKENS, size.value_dim), nan),
        )

    def step(
        self, start: int, next_tokens: list[int], hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a chunk from position `start` on, in scattered blocks. Return the logits and the
        hidden states of all its positions."""
        count = len(next_tokens)
        positions = torch.arange(start, start + count, dtype=torch.int32)
        table = torch.tensor([[2, 0, 3, 1]], dtype=torch.int32)
        slots = table[0, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        inputs = StepInputs(
            tokens=torch.tensor(next_tokens, dtype=torch.int32),
            positions=positions,
            slots=slots,
            query_starts=torch.tensor([0, count], dtype=torch.int32),
            context_lens=torch.tensor([start + count], dtype=torch.int32),
            block_tables=table,
            sample_rows=torch.arange(count, dtype=torch.int32),
        )
        # The rows are in another order than the tokens, and one of them belongs to no token.
        rows = torch.cat([hidden.flip(0), torch.full_like(hidden[:1], float("nan"))])
        index = torch.arange(count - 1, -1, -1, dtype=torch.int32)
        given = rows, index, [self.cache], self.language_model_head
        return self.head.forward(self.ops, inputs, *given)


def check_head(path: Path, model: MtpModel) -> None:
    """Check the logits of a prompt in one chunk, and of two further tokens that the head proposes
    from its own hidden states."""
    head = Head(path)
    hidden, following = model.hidden(PROMPT)[:-1], PROMPT[1:]
    logits, states = head.step(0, following, hidden)
    expected, expected_states = model.head(following, hidden)
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    torch.testing.assert_close(states, expected_states, **TOLERANCE)
    for token in (11, 52):
        hidden = torch.cat([hidden, expected_states[-1:]])
        following = [*following, token]
        logits, states = head.step(len(hidden) - 1, [token], states[-1:])
        expected, expected_states = model.head(following, hidden)
        torch.testing.assert_close(logits, expected[-1:], **TOLERANCE)


def test_a_folder_gives_the_logits_of_pytorch(saved: tuple[Path, MtpModel]) -> None:
    check_head(*saved)


def test_a_draft_head_gives_its_columns_of_the_logits_of_pytorch(
    saved: tuple[Path, MtpModel],
) -> None:
    """With a language-model head of its own, and with the model's."""
    folder, model = saved
    ids = np.array([0, 3, 4, 31, 40, 63], np.int32)
    hidden, following = model.hidden(PROMPT)[:-1], PROMPT[1:]
    logits, states = Head(folder, ids).step(0, following, hidden)
    expected, expected_states = model.head(following, hidden)
    torch.testing.assert_close(logits, expected[:, ids], **TOLERANCE)
    torch.testing.assert_close(states, expected_states, **TOLERANCE)


def test_gguf_gives_the_logits_of_pytorch(saved: tuple[Path, MtpModel], tmp_path: Path) -> None:
    folder, model = saved
    model.export(folder, tmp_path / "m.gguf")
    check_head(tmp_path / "m.gguf", model)


def test_chunks_give_the_logits_of_pytorch(saved: tuple[Path, MtpModel]) -> None:
    folder, model = saved
    hidden, following = model.hidden(PROMPT)[:-1], PROMPT[1:]
    expected = model.head(following, hidden)
    chunked = Head(folder)
    parts = [chunked.step(a, following[a:b], hidden[a:b]) for a, b in ((0, 9), (9, 10), (10, 22))]
    for whole, found in zip(expected, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(found), whole, **TOLERANCE)


def test_hidden_states_of_all_tokens_change_no_logit(saved: tuple[Path, MtpModel]) -> None:
    folder, model = saved
    head = Head(folder)
    expected = Stepper(head.target, head.ops).step({0: PROMPT})
    stepper = Stepper(head.target, head.ops)
    seen: list[torch.Tensor] = []

    class Recording(Decoder[torch.Tensor]):
        def forward(self, *arguments: Any, **options: Any) -> torch.Tensor:
            logits, hidden = self.forward_all(*arguments, **options)
            seen.append(hidden)
            return logits

    head.target.__class__ = Recording
    # float32 sums of one row and of all rows may have another order
    torch.testing.assert_close(stepper.step({0: PROMPT}), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen[0], model.hidden(PROMPT), **TOLERANCE)


def test_a_head_without_own_ends_shares_those_of_the_model(tmp_path: Path) -> None:
    """Published folders repeat the embedding and the language-model head."""
    model = mtp_model("glm4 moe")
    model.save(tmp_path)
    plain = Head(tmp_path).head.weight_bytes
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.3.shared_head.head.weight"] = tensors["lm_head.weight"]
    save_file(tensors, path)
    repeated = Head(tmp_path)
    assert repeated.head.weight_bytes == plain
    assert repeated.target.shared.head is repeated.head._layer.shared.head
    check_head(tmp_path, model)
    own = replace(model, own_ends=True)
    own.save(tmp_path)
    assert Head(tmp_path).head.weight_bytes == plain + 2 * 4 * 64 * 64


@pytest.mark.parametrize("case", ["qwen3.5", "glm4 moe"])
def test_files_without_a_head_load_unless_it_is_asked_for(tmp_path: Path, case: str) -> None:
    model = mtp_model(case)
    model.save(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    logits = Stepper(*_plain(tmp_path)).step({0: PROMPT})
    kept = {n: v for n, v in whole.items() if not n.startswith(("mtp.", "model.layers.3."))}
    if case == "qwen3.5":
        kept |= {n: v for n, v in whole.items() if n.startswith("model.layers.3.")}
    save_file(kept, path)
    torch.testing.assert_close(Stepper(*_plain(tmp_path)).step({0: PROMPT}), logits, **TOLERANCE)
    missing = r"tensor (mtp\.fc|model\.layers\.3\.eh_proj)\.weight is missing: the file has been"
    with pytest.raises(ModelError, match=missing):
        opened(tmp_path)


@pytest.mark.parametrize("part", ["pre_fc_norm_hidden.weight", "norm.weight", "layers.0.mlp."])
def test_a_missing_tensor_of_a_head_is_named(tmp_path: Path, part: str) -> None:
    mtp_model("qwen3.5").save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({n: v for n, v in tensors.items() if not n.startswith(f"mtp.{part}")}, path)
    load_model(ModelFiles("m", "folder", tmp_path), "auto")
    with pytest.raises(ModelError, match="is missing"):
        opened(tmp_path)


def test_a_model_of_a_family_without_heads_is_refused(tmp_path: Path) -> None:
    from random_models import random_model

    random_model("Llama", {}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="models of this kind have no MTP head"):
        opened(tmp_path)


def _plain(path: Path) -> tuple[Decoder[torch.Tensor], ReferenceOps]:
    model, ops = load_model(ModelFiles("m", "folder", path), "auto"), ReferenceOps()
    return Decoder(model.spec, model.weights, ops, max_model_len=256), ops


def test_of_several_heads_the_first_is_used_and_the_log_says_so(tmp_path: Path) -> None:
    model = mtp_model("glm4 moe")
    model.save(tmp_path)
    path, layers = tmp_path / "model.safetensors", model.target.config.num_hidden_layers
    tensors = load_file(path)
    assert opened(tmp_path).load_note == ""
    first = f"model.layers.{layers}."
    for name in [name for name in tensors if name.startswith(first)]:
        for further in (1, 2):
            prefix = f"model.layers.{layers + further}."
            tensors[prefix + name.removeprefix(first)] = tensors[name] * 0 + further
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    changed = config | {"num_nextn_predict_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    assert "of 3 MTP heads only the first is used" in opened(tmp_path).load_note
    check_head(tmp_path, model)
