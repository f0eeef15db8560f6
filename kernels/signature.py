"""Signatures of ops and of native kernels as text: operands with their types and dimensions.

Operands are separated by "; ". One operand is `[access] name type [dimensions]`:

    x float [T, W]                a tensor that is read
    write out float [T, W]        a result; `update`: a tensor or struct that is modified in place
    optional sinks float32 [H]    a tensor that may be None
    weight packed [N, C]          what the op's `pack_...` method returned for a matrix
    real eps, integer window      a number
    inputs StepInputs             a struct; its fields are in STRUCTS

`float` is the type of activations: float32 on a CPU, bfloat16 on a GPU. "float32|float16" allows
both. Dimensions are the letters of docs/glossary.md, names, and sums of products of them; W is the
model width and F the width of a feed-forward layer. This module imports no torch, so that native
kernels do not load torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Access = Literal["read", "write", "update", "optional"]
NUMBERS: Final = ("real", "integer")


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an op or of a native kernel.

    `kind`: element types of a tensor, "real", "integer", "packed" or the name of a struct.
    `dims`: dimensions of a tensor.
    `below`, `up_to`: bounds of the values of an integer tensor (native kernels only). With
    `or_negative`, values below zero are allowed too.
    """

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    access: Access = "read"
    below: str = ""
    up_to: str = ""
    or_negative: bool = False


Signature = tuple[Operand, ...]

_OPERAND = re.compile(
    r"(?:(?P<access>write|update|optional) )?(?P<first>\w+) (?P<second>[\w|]+)"
    r"(?: \[(?P<dims>[^\]]+)\])?"
    r"(?: below (?P<below>\S+)(?P<signed> or negative)?)?(?: up to (?P<up_to>\S+))?"
)


def parse_signature(text: str) -> Signature:
    """Parse a signature and return its operands in order. Raises ValueError for invalid text."""
    return tuple(_operand(part) for part in text.split("; "))


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text)
    if match is None:
        raise ValueError(f"not an operand: {text!r}; expected `[access] name type [dimensions]`")
    first, second = match["first"], match["second"]
    name, kind = (second, first) if first in NUMBERS else (first, second)
    dims = tuple(match["dims"].split(", ")) if match["dims"] else ()
    access: Access = match["access"] or "read"  # type: ignore[assignment]
    below, up_to = match["below"] or "", match["up_to"] or ""
    return Operand(name, kind, dims, access, below, up_to, match["signed"] is not None)


STRUCTS: Final[Mapping[str, Signature]] = {
    name: parse_signature(text)
    for name, text in {
        "StepInputs": "tokens int32 [T]; positions int32 [T]; slots int32 [T]; "
        "query_starts int32 [R+1]; context_lens int32 [R]; block_tables int32 [R, max_blocks]; "
        "sample_rows int32 [S]; visible int32 [T]; "
        "state_source int32 [R]; state_base int32 [R]; state_target int32 [R]; "
        "state_keep int32 [R]; state_save int32 [R]; state_save_after int32 [R]",
        "LayerCache": "keys float32|float16 [B, K, D, P]; values float32|float16 [B, K, P, D]",
        "Int8Cache": "keys int8 [B, K, D+4, P]; values int8 [B, K, P, D+4]",
        "LatentCache": "keys float32|float16 [B, 1, latent+rotated, P]; "
        "values float32|float16 [B, 1, P, latent]",
        "LatentSizes": "integer heads; integer latent; integer rotated",
        "Heads": "integer H; integer K; integer D",
        "ConvState": "recent float32 [rows, ring, C]; saved float32 [snapshots, before, C]",
        "MatrixState": "matrix float32 [state_slots, H, N, D]; keys float32 [rows, ring, G*N]; "
        "values float32 [rows, ring, H*D]; decays float32 [rows, ring, H]",
        "StateHeads": "integer G; integer H; integer N; integer D",
        "DtLimits": "real dt_low; real dt_high",
        "HeadNorm": "q_weight float32 [D]; k_weight float32 [D]; real eps",
        "Routing": "integer top_k; integer scoring; integer renormalize; integer groups; "
        "integer groups_per_token; integer best_of_group; real epsilon; real scale; real jitter",
        "AdapterRows": "slots int32 [R]; order int32 [T]; starts int32 [R+1]",
        "SamplingRows": "temperature float32 [S]; top_k int32 [S]; top_p float32 [S]; "
        "min_p float32 [S]; seed uint64 [S]; position uint64 [S]; "
        "bias_starts int32 [S+1]; bias_tokens int32 [biased]; bias_values float32 [biased]; "
        "seen_starts int32 [S+1]; seen_tokens int32 [seen]; seen_counts int32 [seen]; "
        "presence float32 [S]; frequency float32 [S]; repetition float32 [S]; "
        "dry_starts int32 [S+1]; dry_tokens int32 [dried]; dry_values float32 [dried]; "
        "masks uint32 [num_masks, words]; mask_of int32 [S]",
    }.items()
}
"""Struct -> its fields, which native kernels take as separate operands. HeadNorm and the lists of
SamplingRows may be None. `visible` is `StepInputs.media.visible`, and `state_source` and the like
are the fields of `StepInputs.states`. Heads, StateHeads and DtLimits are tuples. A native kernel
takes the index of a `scoring` in `routing.SCORINGS`.
`step_inputs`, `recurrent_state`, `routing` and `sampler_inputs` document the fields."""


def flattened(signature: Signature) -> Signature:
    """Return the signature with each struct replaced by its fields."""
    return tuple(field for operand in signature for field in STRUCTS.get(operand.kind, (operand,)))
