"""Output files that the model declares in a call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.agent.tools.tool import OutputFile
from penstock.sandbox.types import CollectedFile, DeclaredFile


class DeclaredOutput(msgspec.Struct, forbid_unknown_fields=True):
    """An output file. `name`: path in the working directory. `format`: such as csv or png."""

    name: str
    format: str | None = None


def declared(outputs: Sequence[DeclaredOutput]) -> tuple[DeclaredFile, ...]:
    """Return the declared files of a job."""
    return tuple(DeclaredFile(output.name, output.format) for output in outputs)


def output_files(
    files: Sequence[CollectedFile], outputs: Sequence[DeclaredOutput]
) -> tuple[OutputFile, ...]:
    """Return the collected files, with the formats that the model declared."""
    formats = {output.name: output.format for output in outputs}
    return tuple(
        OutputFile(
            file.name, file.data, file.size_bytes, formats.get(file.name), file.code, file.message
        )
        for file in files
    )
