"""Which tokens of which requests are computed in the next step, and in which cache blocks.

Plain ints and lists: no tensors, no torch, no clock, no thread. The engine calls `plan`, has the
runtime execute it, and calls `commit`, one step at a time.
"""

from penstock.scheduler.ahead import MOST_BIASES, MOST_HELD_BACK, draws_on_device
from penstock.scheduler.gauges import SchedulerGauges
from penstock.scheduler.guide import Guide
from penstock.scheduler.host_tier import HostTier
from penstock.scheduler.limits import step_token_budget
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import FinishReason, NewSequence, Progress
from penstock.scheduler.speculation import INDEX_BYTES, MAX_DRAFT
from penstock.scheduler.types import (
    NO_ADAPTER,
    Admit,
    AppendBlocks,
    AppendTokens,
    Chunk,
    CopyBlock,
    Drawn,
    Scored,
    StepPlan,
    StepResult,
)

__all__ = [
    "INDEX_BYTES",
    "MAX_DRAFT",
    "MOST_BIASES",
    "MOST_HELD_BACK",
    "NO_ADAPTER",
    "Admit",
    "AppendBlocks",
    "AppendTokens",
    "Chunk",
    "CopyBlock",
    "Drawn",
    "FinishReason",
    "Guide",
    "HostTier",
    "NewSequence",
    "Progress",
    "Scheduler",
    "SchedulerGauges",
    "Scored",
    "StepPlan",
    "StepResult",
    "draws_on_device",
    "step_token_budget",
]
