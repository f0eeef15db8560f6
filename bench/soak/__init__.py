"""`python -m bench soak`: soak test of a real server with hostile clients and faults.

A server with two models runs over real sockets on loopback. It gets valid requests in every dialect
beside malformed bytes, boundary values, schema bombs, clients that disconnect, and faults:
processes are killed, suspended or terminated, the store is locked or full. Each answer is checked
meanwhile. At the end the server must have released all resources and leave nothing behind.
"""

from bench.soak.run import main

__all__ = ["main"]
