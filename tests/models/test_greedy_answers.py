"""Greedy answers of the default model in float32 are those of `transformers`."""

from __future__ import annotations

import asyncio

import pytest
import torch
import transformers

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.local import LocalEngine
from penstock.engine.types import TokenRequest
from penstock.models.hub.model_files import ModelFiles

pytestmark = [pytest.mark.weights, pytest.mark.slow]

NEW_TOKENS = 64
TIE = 1e-3
"""Logits nearer than this are equal: float32 sums of another order differ by about 1e-4 here."""

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain gravity to a child.",
    "def fibonacci(n):",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What is 17 times 23?",
    "Summarize the story of Romeo and Juliet.",
    "Name the planets of the solar system in order.",
    "How does a steam engine work?",
    "Write a short letter of thanks to a teacher.",
    "SELECT name FROM users WHERE",
    "What should I pack for a week in the mountains?",
    "Who wrote 'Pride and Prejudice', and when?",
    "Describe the water cycle in two sentences.",
    "Tell me a joke about a programmer.",
    "Wie heißt die Hauptstadt von Österreich? 🇦🇹",
    "Compare cats and dogs as pets.",
)


def test_greedy_answers_in_f32_are_those_of_transformers_up_to_ties(
    default_model: ModelFiles,
) -> None:
    """Each token is the one that transformers chooses after the same tokens, so by induction the
    answers are equal. Otherwise the two tokens must tie."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate only")
    folder, name = default_model.path.parent, default_model.path.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    answers = asyncio.run(_greedy_answers(prompts))
    assert [len(answer) for answer in answers] == [NEW_TOKENS] * len(QUESTIONS)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    ).eval()
    ties = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = _logits_before(model, prompt, answer)
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (best - chosen).max() < TIE, tokenizer.decode(prompt)
        ties += int((logits.argmax(dim=-1) != torch.tensor(answer)).sum())
    assert ties <= 2  # of 1,280: more would not be ties


@torch.no_grad()
def _logits_before(
    model: transformers.PreTrainedModel, prompt: list[int], answer: list[int]
) -> torch.Tensor:
    """Return the logits [64, V] from which each token of the answer is chosen."""
    logits: torch.Tensor = model(torch.tensor([prompt + answer])).logits[0]
    return logits[len(prompt) - 1 : -1]


async def _greedy_answers(prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy answers to all prompts in one batch, computed by the native kernels."""
    engine = await LocalEngine.start(EngineSettings(dtype="f32", max_model_len=512))

    async def answer(index: int, prompt: list[int]) -> list[int]:
        request = TokenRequest(
            id=str(index),
            token_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=NEW_TOKENS,
        )
        tokens: list[int] = []
        async for chunk in engine.generate(request):
            tokens += [token.token_id for token in chunk.tokens]
        return tokens

    try:
        return await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(prompts)))
    finally:
        await engine.close()
