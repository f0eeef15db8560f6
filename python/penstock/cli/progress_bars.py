"""Progress bars with rates, on standard error."""

from __future__ import annotations


class ProgressBars:
    """Context manager with a bar for each file. Bars appear with the first update."""

    def __init__(self) -> None:
        self._shown = False

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._progress.stop()

    def update(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show that `done_bytes` of `total_bytes` (None: unknown) of the file `name` are done."""
        if not self._shown:
            self._show()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total_bytes)
        self._progress.update(self._tasks[name], completed=done_bytes, total=total_bytes)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._shown = True
        self._tasks: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._progress.start()
