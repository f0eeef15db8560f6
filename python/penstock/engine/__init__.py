"""The engine: scheduler and runtime joined in one loop, and the ways to reach it.

`core` is the body of the loop. `local` runs it in a thread of the caller, `processes.process` in a
child process behind a Unix socket. `ipc.client` is the other end of that socket, and
`processes.supervisor` restarts the child. `local` and `ipc.client` both implement
`protocol.Engine`. The engine knows no text and no HTTP.
"""
