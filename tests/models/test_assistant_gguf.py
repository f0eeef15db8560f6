"""A GGUF file of an assistant gives the logits of transformers, over a target from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decoder_stepper import Stepper
from gemma_export import export_assistant

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.assistant import Assistant
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.assistant_loader import assistant_family, load_assistant
from penstock.models.loader.model_loader import load_model
from tests.support.assistant_models import TEXT, AssistedModel, assisted_model

KNOWN = [3, 17, 5, 60, 9, 44, 31, 8, 22, 41, 50, 12]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[AssistedModel, Path]:
    model = assisted_model("31b")
    model.save(tmp_path)
    export_assistant(model.assistant_decoder, TEXT["hidden_size"], tmp_path / "a.gguf")
    return model, tmp_path


def test_gguf_gives_the_logits_of_transformers(saved: tuple[AssistedModel, Path]) -> None:
    model, folder = saved
    ops = ReferenceOps()
    loaded = load_model(ModelFiles("t", "folder", folder / "target"), "auto")
    target = Decoder(loaded.spec, loaded.weights, ops, max_model_len=256)
    files = ModelFiles("a", "gguf", folder / "a.gguf")
    family = assistant_family(files)
    assert family is not None
    assistant = Assistant(target, load_assistant(files, family, loaded.spec, "auto"), ops)
    stepper = Stepper(target, ops)
    stepper.step({0: KNOWN[:-1]})
    with torch.no_grad():
        seen = model.target.model(torch.tensor([KNOWN[:-1]]), return_shared_kv_states=True)
        embedded = model.target.get_input_embeddings()(torch.tensor([KNOWN[-1:]]))
        state = seen.last_hidden_state[:, -1:]
        expected = model.assistant(
            inputs_embeds=torch.cat([embedded, state], -1),
            position_ids=torch.tensor([[len(KNOWN) - 1]]),
            shared_kv_states=seen.shared_kv_states,
        )
    count = len(KNOWN) - 1

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    inputs = StepInputs(
        tokens=ints(KNOWN[-1:]),
        positions=ints([count]),
        slots=ints([0]),
        query_starts=ints([0, 1]),
        context_lens=ints([count]),
        block_tables=stepper.tables[0][None],
        sample_rows=ints([0]),
    )
    logits, states = assistant.forward(ops, inputs, state[0], ints([0]), stepper.caches)
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(logits, expected.logits[0], **close)
    torch.testing.assert_close(states, expected.last_hidden_state[0], **close)


def test_a_gguf_assistant_alone_is_refused(saved: tuple[AssistedModel, Path]) -> None:
    with pytest.raises(ModelError, match="only drafts for a model: name it as draft_model"):
        load_model(ModelFiles("a", "gguf", saved[1] / "a.gguf"), "auto")
