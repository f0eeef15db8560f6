"""`python -m bench lab`: matrix products at every instruction set, beside the processor's limits.
The other modules measure single kernels; each says how it is started."""

from bench.lab.command import main

__all__ = ["main"]
