"""The default model, as the catalogue provides it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder

from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model, load_text_parts
from penstock.models.tokenizer.tokenizer_data import TokenizerData

pytestmark = pytest.mark.weights


def test_its_text_parts_are_complete(default_model: ModelFiles) -> None:
    parts = load_text_parts(default_model)
    assert isinstance(parts.tokenizer, TokenizerData)
    assert (parts.tokenizer.model, parts.tokenizer.pre) == ("gpt2", "smollm")
    assert len(parts.tokenizer.tokens) == len(parts.tokenizer.token_types) == 49152
    assert len(parts.tokenizer.merges) == 48900
    assert (parts.bos_token, parts.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert parts.stop_ids == (0, 2)
    assert parts.chat_template is not None
    assert (parts.max_model_len, parts.vocab_size) == (8192, 49152)
    assert parts.fingerprint == load_model(default_model, "auto").fingerprint


@pytest.mark.slow
def test_default_model_in_f32_gives_the_logits_of_transformers(default_model: ModelFiles) -> None:
    tokens = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
    compare_with_transformers(default_model.path, tokens)


@pytest.mark.slow
def test_qwen_in_f32_gives_the_logits_of_transformers(weights_dir: Path) -> None:
    """Biases, an untied head, and Q5_0, Q8_0, Q4_K and Q6_K in one model."""
    tokens = [151644, 8948, 198, 2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13]
    path = weights_dir / "qwen05b" / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    compare_with_transformers(path, tokens)


@torch.no_grad()
def compare_with_transformers(path: Path, tokens: list[int]) -> None:
    """Compare the logits of a prompt computed in two chunks, and the most likely token of each
    position."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate only")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    expected = model(torch.tensor([tokens])).logits[0]
    stepper = Stepper(*load_decoder(path, "f32"))
    first = stepper.step({0: tokens[:9]}, all_rows=True)
    logits = torch.cat([first, stepper.step({0: tokens[9:]}, all_rows=True)])
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=1e-4)
    assert logits.argmax(-1).tolist() == expected.argmax(-1).tolist()
