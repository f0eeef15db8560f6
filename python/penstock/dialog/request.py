"""A request to generate text, independent of its dialect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.dialog.message import Message


class SequenceBreaker(msgspec.Struct, frozen=True):
    """Token sequences over which DRY sees no repetition: each of `heads`, with `tail` behind it.
    `heads`: token ids, ascending, the bytes of int32; there may be a vocabulary of them."""

    heads: bytes
    tail: tuple[int, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are sampled. None means the default of the server or model, else off. A `top_k` of
    0 is off.

    Order of the pipeline: bias, penalties, mask, temperature, top-k, top-p, min-p, random choice.

    `dry_sequence_breakers` are the client's strings. `dry_breakers` are the same as token
    sequences, which the engine takes: filled by the side that has the tokenizer, never by a codec.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    dry_breakers: tuple[SequenceBreaker, ...] = ()


class FunctionTool(msgspec.Struct, frozen=True):
    """A function of the client. `parameters`: the JSON Schema of its arguments, kept as decoded;
    None for a function without arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class SearchTool(msgspec.Struct, frozen=True, tag="search"):
    """Web search that the server runs. `location`: approximate, keys city, country, region,
    timezone. Domains include their subdomains."""

    context_size: Literal["low", "medium", "high"] | None = None
    location: dict[str, str] | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()


class PythonTool(msgspec.Struct, frozen=True, tag="python"):
    """Python that the server runs."""


class SkillReference(msgspec.Struct, frozen=True):
    """An uploaded skill. `version` None: the latest."""

    skill_id: str
    version: int | None = None


class ShellTool(msgspec.Struct, frozen=True, tag="shell"):
    """A shell that the server runs, with skills mounted."""

    skills: tuple[SkillReference, ...] = ()


HostedTool = SearchTool | PythonTool | ShellTool
Permission = Literal["auto", "ask", "deny"]


class Permissions(msgspec.Struct, frozen=True):
    """Limits that a request sets on server-side tools; None: as the server is configured."""

    agent: Permission | None = None
    code_execution: Permission | None = None


class RequestedFile(msgspec.Struct, frozen=True):
    """A file that server-side tools must produce. `format`: from the name's suffix if None."""

    name: str
    format: str | None = None
    description: str | None = None


class ToolPolicy(msgspec.Struct, frozen=True):
    """Functions that the model may or must call; empty `names` means all. `parallel` False: at most
    one call per answer."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class Constraint(msgspec.Struct, frozen=True):
    """A grammar that the answer must match. For a JSON schema, `strict`: a keyword that cannot be
    enforced is an error, otherwise it is ignored; `closed`: objects with `properties` and without
    `additionalProperties` take no further keys."""

    kind: Literal["json_schema", "regex", "lark", "gbnf", "llguidance"]
    value: str
    strict: bool = True
    closed: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Limits of an answer. `max_tokens` None: up to the context length. `min_tokens`: tokens before
    which the answer cannot end. `truncate`: drop the start of a long prompt."""

    max_tokens: int | None = None
    max_rounds: int | None = None
    truncate: bool = False
    min_tokens: int = 0


class ReasoningPolicy(msgspec.Struct, frozen=True):
    """Whether and how much the model reasons. `enabled` None leaves that to the template."""

    enabled: bool | None = None
    effort: str | None = None


class AdapterRevision(msgspec.Struct, frozen=True):
    """An exact revision of an adapter, whatever its aliases name now."""

    revision: str


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate text. Exactly one of `messages`, `prompt` and `prompts` is given.

    `prompt`: text as is, or token ids. `prompts`: several of them, each answered `n` times; choices
    are numbered prompt by prompt. `suffix`: the text after the gap that the answer fills (FIM).
    `best_of`: answers that are generated per prompt, of which the `n` likeliest are returned.
    `top_logprobs` None: no logprobs; 0: those of the chosen tokens only. `echo`: completions only,
    the prompt precedes the answer. `stop_token_ids` end an answer in addition to the model's own,
    also if `ignore_eos` disables those. `tools` are the client's own; `hosted` run on the server,
    if enabled. `answer_prefix`: the start of the assistant's answer, which continues there; with
    messages only. `session`: id of the session that the conversation continues. `cache_salt`: the
    prefix cache is shared among requests with the same salt only. `adapter`: the alias or a
    revision of one of the model's adapters; None: the base model. `streamed` False: no event is
    read before the run is over; text may come in fewer, longer deltas. `part_paths`: the client's
    JSON path of each part of the last messages, for errors that name one; see `part_path`.
    """

    model: str | None = None
    adapter: str | AdapterRevision | None = None
    messages: tuple[Message, ...] | None = None
    answer_prefix: str = ""
    prompt: str | tuple[int, ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    suffix: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    hosted: tuple[HostedTool, ...] = ()
    permissions: Permissions = Permissions()
    files: tuple[RequestedFile, ...] = ()
    session: str | None = None
    cache_salt: str = ""
    tool_policy: ToolPolicy = ToolPolicy()
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None
    limits: Limits = Limits()
    reasoning: ReasoningPolicy = ReasoningPolicy()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    best_of: int | None = None
    top_logprobs: int | None = None
    ignore_eos: bool = False
    echo: bool = False
    streamed: bool = True
    part_paths: tuple[tuple[str, ...], ...] = ()

    def part_path(self, message: int, part: int) -> str:
        """Return the client's path of a part of `messages`. Messages before the client's own, such
        as those of earlier turns, have no path."""
        index = message + len(self.part_paths) - len(self.messages or ())
        if index >= 0 and part < len(self.part_paths[index]):
            return self.part_paths[index][part]
        return f"messages[{message}]"

    @property
    def num_choices(self) -> int:
        """Number of answers that the client gets."""
        return self.n * max(1, len(self.prompts))

    @property
    def num_sequences(self) -> int:
        """Number of answers that the engine computes for them."""
        return (self.best_of or self.n) * max(1, len(self.prompts))
