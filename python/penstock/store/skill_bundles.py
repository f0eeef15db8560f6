"""Reads an uploaded skill: a zip archive or the files of one folder. The upload is untrusted."""

from __future__ import annotations

import io
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.store.records import SkillBundle

MAX_FILES: Final = 500
MAX_BYTES: Final = 50 * 1024 * 1024
MAX_PATH_CHARS: Final = 512
MAX_PART_BYTES: Final = 200
MAX_DESCRIPTION_CHARS: Final = 1024
MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_HEAD_LINES: Final = 1000
MANIFEST: Final = "SKILL.md"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Entries that archive programs add.
IGNORED_FOLDER: Final = "__MACOSX"
IGNORED_FILE: Final = ".DS_Store"
ZIP_MARK: Final = b"PK"
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED: Final = 0x1
READ_BYTES: Final = 256 * 1024
# Size limit of an archive's central directory, because it is read completely before any entry.
MAX_DIRECTORY_BYTES: Final = 2 * MAX_FILES * 1024
# The zip record "end of central directory": signature, four counts, size and offset of the
# directory, length of the comment.
END_RECORD: Final = struct.Struct("<4s4H2LH")
END_MARK: Final = b"PK\5\6"
MAX_COMMENT_BYTES: Final = 1 << 16
# Signature of the record that precedes the end record of a Zip64 archive. Only archives over 4 GiB
# need Zip64.
LOCATOR_MARK: Final = b"PK\6\7"
LOCATOR_BYTES: Final = 20


def read_bundle(uploads: Iterable[tuple[str, bytes]]) -> SkillBundle:
    """Read a skill. `uploads`: (path, data) of each uploaded file. Raises InvalidRequest
    (`invalid_skill`), whose message names the file and the problem."""
    files_given = list(uploads)
    if not files_given:
        raise invalid_skill("`files` must be a zip archive or the files of one folder")
    if len(files_given) == 1 and files_given[0][1][:2] == ZIP_MARK:
        entries = _unzip(files_given[0][1])
    else:
        entries = iter(files_given)
    files = _check_entries(entries)
    directory, files = _strip_folder(files)
    name, description = read_manifest(files[MANIFEST])
    return SkillBundle(name=name, description=description, directory=directory or name, files=files)


def read_manifest(data: bytes) -> tuple[str, str]:
    """Return (name, description) from the front matter of a SKILL.md. The front matter is read line
    by line; an indented line continues the previous line. Raises InvalidRequest."""
    fields: dict[str, list[str]] = {}
    key = ""
    for line in _front_matter(data):
        if line[:1] in (" ", "\t") and key:
            fields[key].append(line.strip())
        elif ":" in line and line[:1] != "#":
            key, _, value = line.partition(":")
            key = key.strip()
            fields[key] = [value.strip()]
    values = {key: " ".join(filter(None, lines)) for key, lines in fields.items()}
    name, description = (_scalar(values.get(key, "")) for key in ("name", "description"))
    if not NAME.fullmatch(name):
        raise invalid_skill(
            f"{MANIFEST}: `name` must be 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    if not 0 < len(description) <= MAX_DESCRIPTION_CHARS:
        raise invalid_skill(
            f"{MANIFEST}: `description` must be 1 to {MAX_DESCRIPTION_CHARS} characters"
        )
    return name, description


# The exceptions that `zipfile` raises for a damaged archive.
DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def invalid_skill(message: str) -> InvalidRequest:
    """Return the error for a skill that cannot be read."""
    return InvalidRequest(message, field="files", code="invalid_skill")


def _unzip(archive: bytes) -> Iterator[tuple[str, bytes]]:
    _check_directory(archive)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            if len(packed.infolist()) > 2 * MAX_FILES:
                raise invalid_skill(f"the archive has more than {MAX_FILES} files")
            if sum(entry.compress_size for entry in packed.infolist()) > len(archive):
                raise invalid_skill("the archive's entries overlap")
            left = MAX_BYTES
            for entry in packed.infolist():
                _check_entry(entry)
                if entry.is_dir():
                    continue
                data = _read_entry(packed, entry, left)
                left -= len(data)
                yield entry.filename, data
    except DAMAGE:
        raise invalid_skill("the archive is damaged") from None


def _check_directory(archive: bytes) -> None:
    """Raise InvalidRequest if the archive's central directory is too large or missing, or if the
    archive is Zip64. The end record is searched for as in `zipfile`: at the very end if there is no
    comment, else at the last signature within the longest possible comment."""
    at = len(archive) - END_RECORD.size
    if archive[at : at + 4] != END_MARK or archive[-2:] != b"\0\0":
        at = archive.rfind(END_MARK, max(0, at - MAX_COMMENT_BYTES))
    if not 0 <= at <= len(archive) - END_RECORD.size:
        raise invalid_skill("the archive is damaged")
    size_bytes = END_RECORD.unpack_from(archive, at)[5]
    if size_bytes > MAX_DIRECTORY_BYTES:
        raise invalid_skill(
            f"the archive's list of files is larger than {MAX_DIRECTORY_BYTES} bytes"
        )
    if archive[max(0, at - LOCATOR_BYTES) :].startswith(LOCATOR_MARK):
        raise invalid_skill("the archive is in the Zip64 format, which no skill needs")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise invalid_skill(f"{_quote(entry.filename)} is a link or a special file")
    if entry.flag_bits & ENCRYPTED:
        raise invalid_skill(f"{_quote(entry.filename)} is encrypted")
    if entry.compress_type not in METHODS:
        raise invalid_skill(f"{_quote(entry.filename)} is neither stored nor deflated")


def _read_entry(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, left: int) -> bytes:
    """Return the unpacked data of an entry. Raises InvalidRequest beyond `left` bytes, whatever
    size the entry declares."""
    data = bytearray()
    with packed.open(entry) as file:
        while piece := file.read(READ_BYTES):
            data += piece
            if len(data) > left:
                raise invalid_skill(f"the skill unpacks to more than {MAX_BYTES} bytes")
    return bytes(data)


def _check_entries(entries: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return path -> data, without the files that archive programs add. Raises InvalidRequest for a
    path that leaves the folder, for paths that differ only in letter case, and for too many files
    or bytes."""
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    size = 0
    for path, data in entries:
        parts = path.split("/")
        if parts[0] == IGNORED_FOLDER or parts[-1] == IGNORED_FILE:
            continue
        _check_path(path, parts)
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in seen:
            raise invalid_skill(
                f"{_quote(path)} is there twice; names that differ only in letter case are the same"
            )
        seen.add(folded)
        size += len(data)
        if len(seen) > MAX_FILES:
            raise invalid_skill(f"a skill may have at most {MAX_FILES} files")
        if size > MAX_BYTES:
            raise invalid_skill(f"a skill may have at most {MAX_BYTES} bytes")
        files[path] = data
    for folded in seen:
        parents = [folded[:end] for end, c in enumerate(folded) if c == "/"]
        if any(parent in seen for parent in parents):
            raise invalid_skill(f"{_quote(folded)} is inside another file")
    return files


def _check_path(path: str, parts: list[str]) -> None:
    valid = (
        len(path) <= MAX_PATH_CHARS
        and path.isprintable()
        and "\\" not in path
        and ":" not in path
        and not any(part in ("", ".", "..") for part in parts)
        and not any(len(part.encode()) > MAX_PART_BYTES for part in parts)
    )
    if not valid:
        raise invalid_skill(f"{_quote(path)} is not a valid relative path")


def _strip_folder(files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Return (name of the top folder, its files), or ("", `files`) if SKILL.md is at the top.
    Raises InvalidRequest for more than one top folder."""
    if MANIFEST in files:
        return "", files
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1:
        raise invalid_skill(f"the files must be in one folder with a {MANIFEST}")
    directory = tops.pop()
    inside = {path.partition("/")[2]: data for path, data in files.items()}
    if MANIFEST not in inside:
        raise invalid_skill(f"there is no {MANIFEST} in the folder {_quote(directory)}")
    return directory, inside


def _front_matter(data: bytes) -> list[str]:
    try:
        lines = data[:MAX_MANIFEST_BYTES].decode().splitlines()
    except UnicodeDecodeError:
        raise invalid_skill(f"{MANIFEST} must be UTF-8") from None
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    if not lines or lines[0].strip() != "---":
        raise invalid_skill(f"{MANIFEST} must begin with front matter between lines of ---")
    for index, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return lines[1:index]
        if index > MAX_HEAD_LINES:
            raise invalid_skill(
                f"the front matter of {MANIFEST} has more than {MAX_HEAD_LINES} lines"
            )
    raise invalid_skill(f"the front matter of {MANIFEST} must end with a line of ---")


def _scalar(value: str) -> str:
    """Return a YAML scalar without its quotes or its block indicator."""
    value = re.sub(r"^[>|][+-]?(\s|$)", "", value).strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _quote(path: str) -> str:
    cut = path if len(path) <= 80 else path[:80] + "..."
    return repr(cut)
