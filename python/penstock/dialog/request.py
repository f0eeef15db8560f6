"""One request for a generation, whatever dialect it came in."""

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
    """How a token is drawn. None means the default of the server or model, else off. A `top_k` of 0
    is off.

    Order of the pipeline: bias, penalties, mask, temperature, top-k, top-p, min-p, draw.

    `dry_sequence_breakers` are a client's strings. `dry_breakers` are the same as token sequences,
    which is how an engine takes them: filled where the tokenizer is, never by a codec.
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
    """How far a request tightens what server-side tools may do; None: as the server is set."""

    agent: Permission | None = None
    code_execution: Permission | None = None


class RequestedFile(msgspec.Struct, frozen=True):
    """A file that server-side tools must produce. `format`: from the name's suffix if None."""

    name: str
    format: str | None = None
    description: str | None = None


class ToolPolicy(msgspec.Struct, frozen=True):
    """Which functions may or must be called; `names` empty means all of them. `parallel` False: at
    most one call an answer."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class Constraint(msgspec.Struct, frozen=True):
    """A grammar the answer must match. Of a JSON schema, `strict`: a keyword that cannot be
    enforced is an error, else it is ignored; `closed`: objects with `properties` and without
    `additionalProperties` take no further keys."""

    kind: Literal["json_schema", "regex", "lark", "gbnf", "llguidance"]
    value: str
    strict: bool = True
    closed: bool = False


class Limits(msgspec.Struct, frozen=True):
    """`max_tokens` None: up to the context length. `min_tokens`: so many are drawn before one may
    end the answer. `truncate`: drop the start of a long prompt."""

    max_tokens: int | None = None
    max_rounds: int | None = None
    truncate: bool = False
    min_tokens: int = 0


class ReasoningPolicy(msgspec.Struct, frozen=True):
    """`enabled` None leaves the choice to the template."""

    enabled: bool | None = None
    effort: str | None = None


class AdapterRevision(msgspec.Struct, frozen=True):
    """An exact revision of an adapter, whatever its aliases name now."""

    revision: str


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `messages`, `prompt` and `prompts` is given.

    `prompt`: text as is, or token ids. `prompts`: several of them, each answered `n` times; choices
    are numbered prompt by prompt. `suffix`: what comes after the answer, which fills the gap.
    `best_of`: so many answers are made of each prompt, and the `n` likeliest given.
    `top_logprobs` None: no logprobs; 0: of the chosen token only. `echo`: completions only, the
    prompt precedes the answer. `stop_token_ids` end an answer beside the model's own, and also
    where `ignore_eos` takes those away. `tools` are the client's own; `hosted` run on the server,
    where they are enabled. `answer_prefix`: what the assistant has said of its answer already,
    which goes
    on from there; with messages only. `session`: id of the session that the conversation goes on
    in. `cache_salt`: the prompt is looked for among those of requests with the same one, and no
    other; who does not know it can learn nothing from what is cached. `adapter`: the alias of one
    of the model's adapters, or a revision; None: the base model. `streamed` False: nobody looks
    at an event before the run is over; text may come in fewer, longer deltas. `part_paths`: where
    the
    client wrote each part of the last messages, for errors that name one; see
    `part_path`.
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
        """Return the client's path of a part of `messages`. Messages of earlier turns have no path
        in the request."""
        index = message + len(self.part_paths) - len(self.messages or ())
        if index >= 0 and part < len(self.part_paths[index]):
            return self.part_paths[index][part]
        return f"messages[{message}]"

    @property
    def num_choices(self) -> int:
        """How many answers the client gets."""
        return self.n * max(1, len(self.prompts))

    @property
    def num_sequences(self) -> int:
        """How many answers the engine computes for them."""
        return (self.best_of or self.n) * max(1, len(self.prompts))
