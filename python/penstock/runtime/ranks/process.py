"""The process of one rank of a tensor-parallel model: `python -m penstock.runtime.ranks.process`.

It reads its task as one line of JSON from standard input (`messages.RankTask`), writes its start-up
status as lines of JSON to standard output (`messages.RankStatus`), then executes the messages of
rank 0. It ends when rank 0 disconnects or standard input closes, even in the middle of a step, so
it never outlives rank 0.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from penstock.base.errors import ModelError
from penstock.base.logs import configure_logging
from penstock.base.output import take_standard_output
from penstock.runtime.ranks.follower import Follower
from penstock.runtime.ranks.load import start_follower
from penstock.runtime.ranks.messages import (
    Channel,
    RankStatus,
    RankTask,
    ToPacker,
    ToRank,
)


def main() -> int:
    gc.disable()  # loading creates no garbage
    configure_logging()
    send_status = partial(_send_status, take_standard_output())
    for number in (signal.SIGINT, signal.SIGTERM):  # only the server handles them, by draining
        signal.signal(number, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as lines:
        task = msgspec.json.decode(lines.readline(), type=RankTask)
    threading.Thread(target=_end_with_input, args=(task,), daemon=True).start()
    steps: Channel[ToRank] = _channel(task.steps, ToRank)
    adapters: Channel[ToPacker] = _channel(task.adapters, ToPacker)
    try:
        runtime, communicator = start_follower(task, steps, send_status)
    except ModelError as error:
        send_status(RankStatus("failed", str(error)))
        return 1
    follower = Follower(runtime, steps, adapters, communicator.broadcast)
    gc.freeze()
    gc.enable()
    send_status(RankStatus("ready"))
    follower.run()
    follower.close()
    communicator.close()
    if _input_has_ended():
        _remove_rendezvous(task)
    return 0


def _channel(descriptor: int, kinds: Any) -> Channel[Any]:
    os.set_inheritable(descriptor, False)
    return Channel(socket.socket(fileno=descriptor), kinds)


def _send_status(output: BinaryIO, status: RankStatus) -> None:
    output.write(msgspec.json.encode(status) + b"\n")
    output.flush()


def _end_with_input(task: RankTask) -> None:
    while os.read(0, 4096):
        pass
    _remove_rendezvous(task)
    os._exit(0)  # the main thread may be blocked in a collective


def _input_has_ended() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def _remove_rendezvous(task: RankTask) -> None:
    """Remove the folder of the rendezvous file, because rank 0 has ended and cannot remove it."""
    shutil.rmtree(Path(task.rendezvous).parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
