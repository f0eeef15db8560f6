"""Each sampling parameter over HTTP on the default model: on chat and on completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_text_parts
from penstock.text import load_tokenizer
from tests.e2e.conftest import RunningServer

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,"
PARROT = "Say the word yes again and again: yes yes yes yes yes yes yes yes"

Ask = Callable[..., dict[str, Any]]
"""(prompt, **parameters) -> text, and the log probability of each token by its text."""


@pytest.fixture(params=["chat", "completions"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Ask:
    def chat(prompt: str, **body: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "logprobs": True, **body}
        choice = post("/v1/chat/completions", body)
        tokens = choice["logprobs"]["content"]
        return {
            "text": choice["message"]["content"],
            "tokens": [(token["token"], token["logprob"]) for token in tokens],
            "top": [[(top["token"], top["logprob"]) for top in t["top_logprobs"]] for t in tokens],
        }

    def completions(prompt: str, **body: Any) -> dict[str, Any]:
        body["logprobs"] = body.pop("top_logprobs", 0)
        choice = post("/v1/completions", {"prompt": prompt, **body})
        logprobs = choice["logprobs"]
        return {
            "text": choice["text"],
            "tokens": list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)),
            "top": [list(top.items()) for top in logprobs["top_logprobs"] or []],
        }

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = {"model": "default", "max_tokens": 24, "temperature": 0, **body}
        answer = httpx.post(server.url + path, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    return chat if request.param == "chat" else completions


def words(answer: dict[str, Any]) -> Counter[str]:
    return Counter(token for token, _ in answer["tokens"])


def repeats(answer: dict[str, Any]) -> int:
    """Return the number of tokens that occurred earlier in the answer."""
    return len(answer["tokens"]) - len(words(answer))


def test_a_bias_forces_a_token_and_shows_in_logprobs(ask: Ask) -> None:
    answer = ask(COUNTING, logit_bias={"1000": 100}, max_tokens=3)
    assert len(words(answer)) == 1
    assert all(logprob > -0.01 for _, logprob in answer["tokens"])


def test_a_negative_bias_bans_a_token_greedily_chosen(ask: Ask, default_model: Path) -> None:
    tokenizer = load_tokenizer(load_text_parts(files_at(default_model, "default")))
    plain = ask(COUNTING, max_tokens=1)
    banned = {str(token): -100 for token in tokenizer.encode(plain["text"])}
    assert ask(COUNTING, logit_bias=banned, max_tokens=1)["text"] != plain["text"]


def test_presence_and_frequency_penalties_thin_out_what_the_answer_repeats(ask: Ask) -> None:
    plain = ask(PARROT)
    assert repeats(ask(PARROT, presence_penalty=2.0)) < repeats(plain)
    assert repeats(ask(PARROT, frequency_penalty=2.0)) < repeats(plain)
    assert repeats(ask(PARROT, frequency_penalty=-2.0)) >= repeats(plain)


def test_a_repetition_penalty_covers_the_prompt(ask: Ask) -> None:
    plain, penalized = ask(PARROT), ask(PARROT, repetition_penalty=10.0)
    assert " yes" in words(plain) and " yes" not in words(penalized)
    assert repeats(penalized) < repeats(plain)


def test_dry_ends_a_repetition_and_a_breaker_permits_it(ask: Ask) -> None:
    dry = {"dry_multiplier": 20.0, "dry_allowed_length": 1, "max_tokens": 16}
    plain = ask(PARROT, max_tokens=16)
    stopped = ask(PARROT, **dry, dry_sequence_breakers=[])
    assert stopped["text"] != plain["text"]
    assert repeats(stopped) <= repeats(plain)
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
    broken = [*letters, " ", "\n", ",", ".", ":", "A", "B", "G", "R"]
    permitted = ask(PARROT, **dry, dry_sequence_breakers=broken)
    assert permitted["text"] == plain["text"]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_p": 0}])
def test_each_filter_can_leave_the_best_token_alone(ask: Ask, narrow: dict[str, float]) -> None:
    greedy = ask(COUNTING)
    assert ask(COUNTING, temperature=2, seed=3, **narrow)["text"] == greedy["text"]


def test_a_seed_repeats_an_answer_with_all_parameters_set(ask: Ask) -> None:
    everything = {
        "temperature": 1.3,
        "top_k": 200,
        "top_p": 0.95,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"30": 3.0},
        "dry_multiplier": 0.8,
        "top_logprobs": 3,
    }
    first, again = (ask(COUNTING, seed=5, **everything) for _ in range(2))
    assert first == again
    assert first["text"] != ask(COUNTING, seed=6, **everything)["text"]
    for top in first["top"]:
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"49152": 1}),
        ("logit_bias.5", {"5": 101}),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_sequence_breakers[0]", [""]),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_values_out_of_range_are_refused_by_name(
    server: RunningServer, path: str, field: str, value: Any
) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    del body["messages" if path == "/v1/completions" else "prompt"]
    answer = httpx.post(server.url + path, json={**body, field.split(".")[0].split("[")[0]: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_an_echoed_answer_keeps_its_logprobs(server: RunningServer) -> None:
    """A greedy answer gets the same scores when it is sent back as a prompt."""

    def post(**body: Any) -> dict[str, Any]:
        body = {"model": "default", "temperature": 0, "logprobs": 1, **body}
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    whole = post(prompt=COUNTING, echo=True, max_tokens=8)
    again = post(prompt=whole["text"], echo=True, max_tokens=0)
    assert again["text"] == whole["text"] and again["finish_reason"] == "length"
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert again["logprobs"][key] == whole["logprobs"][key]
    offsets = again["logprobs"]["text_offset"]
    for token, offset in zip(again["logprobs"]["tokens"], offsets, strict=True):
        assert whole["text"].startswith(token, offset)
    assert again["logprobs"]["token_logprobs"][0] is None
