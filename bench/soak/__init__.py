"""`python -m bench soak`: a day of strangers in some minutes.

A real server with two models, over real sockets on loopback: valid requests of every dialect beside
malformed bytes, boundary values, bombs, clients that vanish, and engines that are killed. Meanwhile
each answer is judged; afterwards, what the server has kept.
"""

from bench.soak.run import main

__all__ = ["main"]
