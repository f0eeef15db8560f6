"""A request to generate text, independent of the HTTP dialect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.dialog.message import Audio, File, Image, Message, Video


class SequenceBreaker(msgspec.Struct, frozen=True):
    """Token sequences across which DRY looks for no repetition: a token of `heads`, then `tail`.

    - `heads`: ascending token ids as int32 bytes, up to the whole vocabulary.
    - `tail`: token ids.
    """

    heads: bytes
    tail: tuple[int, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters. None: the default of the model or server, else off. A `top_k` of 0 is
    off.

    Order of the pipeline: bias, penalties, mask, temperature, top-k, top-p, min-p, random choice.

    - `dry_sequence_breakers`: the sequence breakers as the client's strings.
    - `dry_breakers`: the sequence breakers as token sequences, which the engine reads. `generation`
      sets them, never a codec.
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
    """A function that the client executes.

    - `parameters`: the decoded JSON Schema of the arguments, None for a function without arguments.
    - `strict`: a schema keyword that cannot be enforced is an error; otherwise it is ignored.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class SearchTool(msgspec.Struct, frozen=True, tag="search"):
    """Web search that the server executes.

    - `context_size`: amount of search results in the context.
    - `location`: the user's approximate location: keys city, country, region, timezone.
    - `allowed_domains`, `blocked_domains`: domains, including their subdomains.
    - `search_description`, `extract_description`: replace the descriptions of the two tools that
      the model sees.
    - `max_uses`: maximum number of searches and page retrievals; None: no limit.
    """

    context_size: Literal["low", "medium", "high"] | None = None
    location: dict[str, str] | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    search_description: str | None = None
    extract_description: str | None = None
    max_uses: int | None = None


class PythonTool(msgspec.Struct, frozen=True, tag="python"):
    """A Python interpreter that the server runs."""


class SkillReference(msgspec.Struct, frozen=True):
    """A reference to an uploaded skill. `version`: None for the latest version."""

    skill_id: str
    version: int | None = None


class ShellTool(msgspec.Struct, frozen=True, tag="shell"):
    """A shell that the server runs. `skills`: skills that are mounted in it."""

    skills: tuple[SkillReference, ...] = ()


HostedTool = SearchTool | PythonTool | ShellTool
Permission = Literal["auto", "ask", "deny"]


class Permissions(msgspec.Struct, frozen=True):
    """Permissions that a request sets for server-side tools. None: the server's configuration."""

    agent: Permission | None = None
    code_execution: Permission | None = None


class RequestedFile(msgspec.Struct, frozen=True):
    """A file that server-side tools must produce. `format`: None to derive it from the suffix of
    `name`."""

    name: str
    format: str | None = None
    description: str | None = None


class ToolPolicy(msgspec.Struct, frozen=True):
    """Determines which functions the model may or must call.

    - `mode`: "auto": may call; "none": must not call; "required": must call.
    - `names`: the functions that are allowed, () for all.
    - `parallel`: False: at most one call per answer.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class Constraint(msgspec.Struct, frozen=True):
    """A grammar that the answer must match.

    - `value`: the text of the grammar, in the language `kind`.
    - `strict`: a JSON schema keyword that cannot be enforced is an error; otherwise it is ignored.
    - `closed`: objects in the JSON schema that have `properties` and no `additionalProperties`
      allow no further keys.
    """

    kind: Literal["json_schema", "regex", "lark", "gbnf", "llguidance"]
    value: str
    strict: bool = True
    closed: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Limits of an answer.

    - `max_tokens`: maximum tokens of a choice; None: up to the context length.
    - `max_rounds`: maximum rounds of server-side tool calls.
    - `truncate`: drop the start of a prompt that is too long.
    - `min_tokens`: the answer cannot end before it has this many tokens.
    """

    max_tokens: int | None = None
    max_rounds: int | None = None
    truncate: bool = False
    min_tokens: int = 0


class ReasoningPolicy(msgspec.Struct, frozen=True):
    """Determines whether and how much the model reasons. None: the chat template decides."""

    enabled: bool | None = None
    effort: str | None = None


class AdapterRevision(msgspec.Struct, frozen=True):
    """Identifies a revision of an adapter, even if its alias now names another revision."""

    revision: str


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate text. Exactly one of `messages`, `prompt` and `prompts` is given.

    - `model`: None for the default model.
    - `adapter`: the alias or a revision of one of the model's adapters, None for the base model.
    - `messages`: a conversation.
    - `answer_prefix`: the start of the assistant's answer, which the model continues; only with
      `messages`.
    - `prompt`: raw text (no chat template is applied) or token ids.
    - `prompts`: several prompts, each answered `n` times. Choices are numbered prompt by prompt.
    - `suffix`: the text after the gap that the answer fills (FIM).
    - `tools`: functions that the client executes.
    - `hosted`: tools that the server executes, if enabled.
    - `session`: id of the session that the conversation continues.
    - `container`: id of the container that keeps the state of server tools; None: the container of
      the session.
    - `file_ids`: ids of the stored files that texts of the messages show. The agent loop sets them.
    - `cache_salt`: only requests with the same salt share prefix cache blocks.
    - `stop`: stop strings.
    - `stop_token_ids`: tokens that end an answer, in addition to the model's end tokens.
    - `n`: number of answers per prompt.
    - `best_of`: number of answers generated per prompt, of which the `n` likeliest are returned.
    - `top_logprobs`: number of alternatives per token; 0: only the sampled token's logprob; None:
      no logprobs.
    - `ignore_eos`: the model's end tokens do not end the answer.
    - `echo`: the answer starts with the prompt; completions only.
    - `streamed`: False if the client gets all events at the end, so that text may come in fewer,
      longer deltas.
    - `part_paths`: the client's JSON path of each part of the last messages, for error messages
      (see `part_path`).
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
    container: str | None = None
    file_ids: tuple[str, ...] = ()
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
        """Return the JSON path of a message part in the client's request. For messages that were
        added before the client's own, such as earlier turns, it is only "messages[index]"."""
        index = message + len(self.part_paths) - len(self.messages or ())
        if index >= 0 and part < len(self.part_paths[index]):
            return self.part_paths[index][part]
        return f"messages[{message}]"

    @property
    def num_choices(self) -> int:
        """Number of choices that the client gets for all prompts."""
        return self.n * max(1, len(self.prompts))

    @property
    def num_sequences(self) -> int:
        """Number of sequences that the engine computes for all prompts."""
        return (self.best_of or self.n) * max(1, len(self.prompts))

    @property
    def has_media_urls(self) -> bool:
        """Whether the messages have media that are given by URL."""
        return any(
            isinstance(p, Image | Audio | Video) and p.data is None
            for m in self.messages or ()
            for p in m.parts
        )

    @property
    def has_files(self) -> bool:
        """Whether the messages have file parts."""
        return any(isinstance(p, File) for m in self.messages or () for p in m.parts)
