"""The ops in C++ on a CPU: thin calls into `penstock._native`, run at once or recorded. Imports no
torch."""

from penstock.kernels.native.ops import NativeOps, PlanOps, Pool
from penstock.kernels.native.plan_inputs import plan_arguments

__all__ = ["NativeOps", "PlanOps", "Pool", "plan_arguments"]
