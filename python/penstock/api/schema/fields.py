"""Types of fields that several requests share, with their ranges.

These types decode bodies and describe them in OpenAPI. `codecs/request_fields/schema_errors.py`
builds error messages from the `extra` of a `Meta`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from penstock.dialog.ranges import (
    MAX_BIAS,
    MAX_BREAKERS,
    MAX_CHOICES,
    MAX_INPUTS,
    MAX_INTEGER,
    MAX_PENALTY,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
    MAX_TOP_LOGPROBS,
    MIN_DRY_BASE,
)

UNSUPPORTED: Final = "unsupported_value"


def refused(why: str) -> Meta:
    """Return the Meta of a field in which only null is accepted. `why`: the end of the error
    message for any other value."""
    return Meta(
        description="Not supported: any value is refused.",
        extra={"code": UNSUPPORTED, "why": why},
    )


Ignored = Annotated[Any, Meta(description="Accepted with any value, and ignored.")]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
NonEmpty = Annotated[str, Meta(min_length=1)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
FileName = Annotated[str, Meta(max_length=255)]
Model = Annotated[
    str,
    Meta(description="`default`, or an id or alias of `/v1/models`. Absent: the default model."),
]
MaxTokens = Annotated[
    int, Meta(ge=1, le=MAX_INTEGER, description="The largest number of tokens to generate.")
]
Temperature = Annotated[
    float,
    Meta(ge=0, le=MAX_TEMPERATURE, description="0 is greedy. Absent: the model's own, else 1."),
]
TopP = Annotated[float, Meta(ge=0, le=1, description="Nucleus of this probability; 0 is greedy.")]
TopK = Annotated[
    int, Meta(ge=-1, le=MAX_INTEGER, description="Number of candidates; 0 and -1 are off.")
]
MinP = Annotated[
    float,
    Meta(ge=0, le=1, description="Least probability, relative to that of the likeliest token."),
]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
RepetitionPenalty = Annotated[
    float, Meta(gt=0, description="Divides the scores of tokens that occurred before.")
]
Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
LogitBias = Annotated[
    dict[str, Bias],
    Meta(description="Token id, as a decimal string, to the number that is added to its score."),
]
DryMultiplier = Annotated[float, Meta(ge=0, description="Strength of DRY; 0 is off.")]
DryBase = Annotated[float, Meta(ge=MIN_DRY_BASE)]
DryAllowedLength = Count
BreakerList = Annotated[list[NonEmpty], Meta(max_length=MAX_BREAKERS)]
DryBreakers = Annotated[
    BreakerList | str,
    Meta(description="Strings that end a repetition: an array, or the JSON text of one."),
]
StopList = Annotated[list[NonEmpty], Meta(max_length=MAX_STOPS)]
Stop = Annotated[
    NonEmpty | StopList, Meta(description="Strings that end the answer, and are not part of it.")
]
MinTokens = Annotated[
    int, Meta(ge=0, le=MAX_INTEGER, description="The least number of tokens of an answer.")
]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
StopTokens = Annotated[
    list[TokenId],
    Meta(
        max_length=MAX_STOP_TOKENS,
        description="Tokens that end the answer, in addition to the model's own.",
    ),
]
TextOrTokenIds = Annotated[
    str
    | Annotated[
        list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)
    ],
    Meta(
        description="A text, an array of token ids, or an array of several of either:"
        f" at most {MAX_INPUTS}.",
        extra={"wanted": "a string, an array of token ids, or an array of either"},
    ),
]
CacheSalt = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="The prefix cache shares prompts only among requests of the same salt.",
    ),
]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES, description="Number of answers.")]
TopLogprobs = Annotated[
    int,
    Meta(ge=0, le=MAX_TOP_LOGPROBS, description="Number of likeliest alternatives of each token."),
]
MaxRounds = Annotated[
    int, Meta(ge=0, le=MAX_INTEGER, description="Cap of server-side tool rounds.")
]
Truncate = Annotated[
    bool,
    Meta(description="Drop the oldest messages, or the start, of a prompt that is too long."),
]
SessionId = Annotated[str, Meta(max_length=256)]
Seed = Annotated[
    Any, Meta(description="An integer makes the answer reproducible; anything else is ignored.")
]
