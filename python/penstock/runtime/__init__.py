"""Executes step plans: persistent batch, KV cache, weights, forward pass and sampling.

Importing this package does not import torch; `runtime.cpu.reference` and `runtime.gpu` do.
"""

from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.load import load_runtime, start_runtime
from penstock.runtime.protocol import Runtime, RuntimeInfo

__all__ = ["CpuRuntime", "Runtime", "RuntimeInfo", "load_runtime", "start_runtime"]
