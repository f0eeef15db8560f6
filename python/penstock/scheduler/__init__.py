"""Which tokens of which requests are computed in the next step, and in which cache blocks.

Plain ints and lists: no tensors, no torch, no clock, no thread. The engine calls `plan`, has the
runtime execute it, and calls `commit`, one step at a time.
"""

from penstock.scheduler.cpu_kv_cache import CpuKvCacheIndex
from penstock.scheduler.gauges import SchedulerGauges
from penstock.scheduler.guide import Guide
from penstock.scheduler.limits import step_token_limit
from penstock.scheduler.ngram_speculation import MAX_DRAFT_TOKENS, NGRAM_INDEX_BYTES
from penstock.scheduler.planning_ahead import MOST_BIASES, MOST_HELD_BACK, samples_on_device
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import FinishReason, NewSequence, Progress
from penstock.scheduler.types import (
    NO_ADAPTER,
    Admit,
    AppendBlocks,
    AppendTokens,
    Chunk,
    CopyBlock,
    SampledToken,
    Scored,
    StepPlan,
    StepResult,
)

__all__ = [
    "MAX_DRAFT_TOKENS",
    "MOST_BIASES",
    "MOST_HELD_BACK",
    "NGRAM_INDEX_BYTES",
    "NO_ADAPTER",
    "Admit",
    "AppendBlocks",
    "AppendTokens",
    "Chunk",
    "CopyBlock",
    "CpuKvCacheIndex",
    "FinishReason",
    "Guide",
    "NewSequence",
    "Progress",
    "SampledToken",
    "Scheduler",
    "SchedulerGauges",
    "Scored",
    "StepPlan",
    "StepResult",
    "samples_on_device",
    "step_token_limit",
]
