"""The engine: scheduler and runtime joined in one loop, and the ways to reach it.

`core` is the loop's body. `local` runs it in a thread of the caller, `process` in a child process
behind a Unix socket; `client` is the far end of that socket, `supervisor` keeps the child alive.
All of them give the one Protocol of `protocol`. Knows no text and no HTTP.
"""
