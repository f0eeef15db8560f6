"""Executes step plans: rows, cache, weights, the recorded plan of a CPU, sampling.

Importing it imports no torch; `runtime.cpu.reference` does.
"""

from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.load import load_runtime, start_runtime
from penstock.runtime.protocol import Runtime, RuntimeInfo

__all__ = ["CpuRuntime", "Runtime", "RuntimeInfo", "load_runtime", "start_runtime"]
