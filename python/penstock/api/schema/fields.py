"""The types of fields that several requests share, with their ranges."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

Ignored = Annotated[Any, Meta(description="Accepted, whatever it is, and ignored.")]
Absent = Annotated[None, Meta(description="Not supported: any value is refused.")]
Model = Annotated[
    str, Meta(description="`default`, or an id or alias of `/v1/models`; absent: the default.")
]
MaxTokens = Annotated[int, Meta(ge=1, description="At most so many tokens are generated.")]
Temperature = Annotated[
    float, Meta(ge=0, le=2, description="0 is greedy; absent: the model's own, else 1.")
]
TopP = Annotated[float, Meta(ge=0, le=1, description="Nucleus of this probability; 0 is greedy.")]
TopK = Annotated[int, Meta(ge=-1, description="So many candidates; 0 and -1 are off.")]
MinP = Annotated[
    float, Meta(ge=0, le=1, description="Least probability, as a share of the likeliest's.")
]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[
    float, Meta(gt=0, description="Divides the scores of tokens that were there before.")
]
Bias = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[
    dict[str, Bias], Meta(description="Token id, as a decimal string, to what is added.")
]
DryMultiplier = Annotated[float, Meta(ge=0, description="Strength of DRY; 0 is off.")]
DryBase = Annotated[float, Meta(ge=1)]
DryAllowedLength = Annotated[int, Meta(ge=0)]
NonEmpty = Annotated[str, Meta(min_length=1)]
DryBreakers = Annotated[
    Annotated[list[NonEmpty], Meta(max_length=64)] | str,
    Meta(description="Where no repetition is looked for: an array, or the JSON text of one."),
]
Stop = Annotated[
    NonEmpty | Annotated[list[NonEmpty], Meta(max_length=64)],
    Meta(description="Ends the answer, and is not part of it."),
]
MinTokens = Annotated[
    int, Meta(ge=0, description="No answer ends by itself before so many tokens.")
]
StopTokens = Annotated[
    list[Annotated[int, Meta(ge=0, le=2**31 - 1)]],
    Meta(max_length=64, description="Tokens that end the answer, beside the model's own."),
]
CacheSalt = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="The prefix cache shares prompts with requests of the same salt only.",
    ),
]
Choices = Annotated[int, Meta(ge=1, le=128, description="How many answers.")]
TopLogprobs = Annotated[
    int, Meta(ge=0, le=20, description="So many likeliest alternatives of each token.")
]
MaxRounds = Annotated[int, Meta(ge=0, description="Cap of server-side tool rounds.")]
Truncate = Annotated[
    bool, Meta(description="Drop the oldest messages of a prompt that is too long, or its start.")
]
Seed = Annotated[
    Any, Meta(description="An integer makes the draw reproducible; anything else is ignored.")
]
