"""The scheduler: decides which tokens of which sequences each step computes, and in which KV
blocks.

It handles token ids and block numbers, but no tensors, torch, clocks or threads. For each step, the
engine calls `plan`, lets the runtime execute the plan, and calls `commit`.
"""

from penstock.scheduler.cpu_kv_cache import CpuKvCacheIndex
from penstock.scheduler.gauges import SchedulerGauges
from penstock.scheduler.guide import Guide
from penstock.scheduler.limits import step_token_limit
from penstock.scheduler.ngram_speculation import MAX_DRAFT_TOKENS, NGRAM_INDEX_BYTES
from penstock.scheduler.planning_ahead import (
    MAX_LOGIT_BIASES,
    MAX_SUPPRESSED_TOKENS,
    samples_on_device,
)
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import FinishReason, NewSequence, Progress
from penstock.scheduler.types import (
    NO_ADAPTER,
    Admit,
    AppendBlocks,
    AppendTokens,
    Chunk,
    CopyBlock,
    Draft,
    DraftSource,
    MediaRun,
    MediaSpan,
    SampledToken,
    Scored,
    StepPlan,
    StepResult,
)

__all__ = [
    "MAX_DRAFT_TOKENS",
    "MAX_LOGIT_BIASES",
    "MAX_SUPPRESSED_TOKENS",
    "NGRAM_INDEX_BYTES",
    "NO_ADAPTER",
    "Admit",
    "AppendBlocks",
    "AppendTokens",
    "Chunk",
    "CopyBlock",
    "CpuKvCacheIndex",
    "Draft",
    "DraftSource",
    "FinishReason",
    "Guide",
    "MediaRun",
    "MediaSpan",
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
