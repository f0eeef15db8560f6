"""Marks the files of a running model as in use, so that they are not deleted under it."""

from __future__ import annotations

import os
import weakref

from penstock.models.hub.model_files import ModelFiles


def mark_in_use(files: ModelFiles, user: object) -> None:
    """Keep the folder of a model open for the lifetime of `user`. `penstock cache remove` looks
    for processes that have it open. The files themselves are closed after loading. Raises OSError
    if the folder is gone."""
    folder = files.path if files.path.is_dir() else files.path.parent
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    weakref.finalize(user, os.close, descriptor)
