"""The declarations of all ops, one module per family of ops. A CPU server does not import this
package, because it imports torch.

See kernels/README.md for how to add an op.
"""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from penstock.kernels.registry import Op


@functools.cache
def all_ops() -> tuple[Op, ...]:
    """Return the ops that the modules of this package declare, in the order of the modules."""
    found: dict[str, Op] = {}
    for info in pkgutil.iter_modules(__path__):
        declared = vars(import_module(f"{__name__}.{info.name}")).values()
        found |= {value.name: value for value in declared if isinstance(value, Op)}
    return tuple(found.values())
