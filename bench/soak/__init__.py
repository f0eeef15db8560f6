"""`python -m bench soak`: a day of strangers in some minutes.

A real server with two models, over real sockets on loopback: valid requests of every dialect beside
malformed bytes, boundary values, bombs, clients that vanish, and faults: processes that are killed,
held up or told to end, a store that is locked or full. Meanwhile each answer is judged; afterwards,
what the server has kept, and what is left of it when it has ended.
"""

from bench.soak.run import main

__all__ = ["main"]
