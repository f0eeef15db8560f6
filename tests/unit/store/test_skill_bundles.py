"""Uploaded skills: accepted and rejected uploads."""

from __future__ import annotations

import io
import stat
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import InvalidRequest
from penstock.store import skill_bundles as bundles
from penstock.store.skill_bundles import MAX_BYTES, read_bundle, read_manifest

HEAD = b"---\nname: adder\ndescription: Adds numbers.\n---\nUse it.\n"


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = 8) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as packed:
        for path, data in entries:
            packed.writestr(path, data)
    return archive.getvalue()


def entry(path: str, mode: int) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(path)
    made.external_attr = mode << 16
    return made


def why_refused(*uploads: tuple[str, bytes]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_bundle(uploads)
    assert caught.value.code == "invalid_skill"
    return caught.value.message


def test_archive_and_files_of_a_folder_are_the_same_skill() -> None:
    files = [("adder/SKILL.md", HEAD), ("adder/scripts/add.py", b"print(1)")]
    bundle = read_bundle([("adder.zip", zipped(*files))])
    assert bundle == read_bundle(files)
    assert (bundle.name, bundle.description, bundle.directory) == (
        "adder",
        "Adds numbers.",
        "adder",
    )
    assert bundle.files == {"SKILL.md": HEAD, "scripts/add.py": b"print(1)"}


def test_files_without_a_folder_get_the_skills_name() -> None:
    assert read_bundle([("SKILL.md", HEAD), ("a/b.txt", b"")]).directory == "adder"


def test_files_added_by_archivers_are_ignored() -> None:
    bundle = read_bundle(
        [("x", zipped(("a/", b""), ("a/SKILL.md", HEAD), ("__MACOSX/a/._SKILL.md", b"x"),
                      ("a/.DS_Store", b"x")))]
    )  # fmt: skip
    assert set(bundle.files) == {"SKILL.md"}


@pytest.mark.parametrize(
    ("head", "name", "description"),
    [
        ("name: a-b.c\ndescription: x: y", "a-b.c", "x: y"),
        ("name: \"a\"\ndescription: 'x'", "a", "x"),
        ("description: >-\n  one\n  two\nname: a", "a", "one two"),
        ("# note\nname: a\nlicense: MIT\ndescription: one\n  two", "a", "one two"),
        ("name: a\r\ndescription: x\r", "a", "x"),
    ],
)
def test_front_matter_is_read_line_by_line(head: str, name: str, description: str) -> None:
    assert read_manifest(f"---\n{head}\n---\n".encode()) == (name, description)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"no head", "must begin"),
        (b"", "must begin"),
        (b"---\nname: a\ndescription: b\n", "must end"),
        (b"---\nname: a\n---\n", "description"),
        (b"---\ndescription: a\n---\n", "name"),
        (b"---\nname: ../x\ndescription: a\n---\n", "name"),
        (b"---\nname: .x\ndescription: a\n---\n", "name"),
        (b"---\nname: a\ndescription: " + b"x" * 1025 + b"\n---\n", "description"),
        (b"---\nname: \xff\n---\n", "UTF-8"),
    ],
)
def test_incomplete_manifest_is_rejected(manifest: bytes, said: str) -> None:
    assert said in why_refused(("a/SKILL.md", manifest))


@pytest.mark.parametrize(
    "path",
    [
        "../SKILL.md",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "a/./b",
        "a\\b",
        "C:/x",
        "a/\x00b",
        "a/\nb",
        "a/" + "b" * 201,
        "a/" * 300 + "b",
        "",
    ],
)
def test_path_outside_the_folder_is_rejected(path: str) -> None:
    assert "relative path" in why_refused(("a/SKILL.md", HEAD), (path, b"x"))


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x"])
def test_archive_with_a_path_outside_the_folder_is_rejected(path: str) -> None:
    assert "relative path" in why_refused(("z", zipped(("a/SKILL.md", HEAD), (path, b"x"))))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_special_files_are_rejected(kind: int) -> None:
    link = entry("a/link", kind | 0o777)
    assert "link" in why_refused(("z", zipped(("a/SKILL.md", HEAD), (link, b"/etc/passwd"))))


@pytest.mark.parametrize(
    ("one", "other"), [("a/x", "a/X"), ("a/é", "a/e\u0301"), ("a/ß", "a/SS"), ("a/x", "a/x")]
)
def test_files_that_differ_only_in_letter_case_are_rejected(one: str, other: str) -> None:
    assert "twice" in why_refused(("a/SKILL.md", HEAD), (one, b""), (other, b""))


def test_file_inside_a_file_is_rejected() -> None:
    assert "is inside another file" in why_refused(
        ("a/SKILL.md", HEAD), ("a/X", b""), ("a/x/y", b"")
    )


def test_too_many_files_are_rejected() -> None:
    many = [("a/SKILL.md", HEAD), *((f"a/{n}", b"") for n in range(500))]
    assert "500 files" in why_refused(*many)
    assert "500 files" in why_refused(("z", zipped(*many)))
    assert "500 files" in why_refused(("z", zipped(*((f"a/{n}/", b"") for n in range(1001)))))


def test_archive_that_unpacks_to_too_much_is_rejected() -> None:
    bomb = zipped(("a/SKILL.md", HEAD), *((f"a/{n}", bytes(MAX_BYTES // 3)) for n in range(4)))
    assert len(bomb) < MAX_BYTES // 100
    assert "unpacks to more" in why_refused(("z", bomb))


def test_archive_with_a_wrong_size_is_rejected() -> None:
    honest = zipped(("a/SKILL.md", HEAD), ("a/b", bytes(100_000)))
    size, lie = struct.pack("<I", 100_000), struct.pack("<I", 10)
    assert "damaged" in why_refused(("z", honest.replace(size, lie)))


def directory_entry(name: bytes, extra: bytes = b"", size: int = 0, at: int = 0) -> bytes:
    """Return a central directory entry of a deflated file with `size` compressed bytes."""
    head = struct.pack("<4s6H3L", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, size, 0)
    return head + struct.pack("<5H2L", len(name), len(extra), 0, 0, 0, 0, at) + name + extra


def archive_of(body: bytes, *entries: bytes) -> bytes:
    """Return an archive with these central directory entries and any body."""
    listed = b"".join(entries)
    end = ("<4s4H2LH", b"PK\5\6", 0, 0, len(entries), len(entries), len(listed), len(body), 0)
    return body + listed + struct.pack(*end)


def test_archive_with_a_huge_directory_is_rejected_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(zipfile, "ZipFile")
    listed = [directory_entry(b"a", extra=b"\x77\x77\0\0" * 16_000)] * 20
    archive = archive_of(b"", *listed)
    assert "list of files is larger than" in why_refused(("x", archive))
    assert "list of files is larger than" in why_refused(("x", archive[:-2] + b"\3\0abc"))


def test_zip64_archive_is_rejected() -> None:
    """Its Zip64 end record would have the size of the directory."""
    whole = zipped(("SKILL.md", HEAD))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    assert "Zip64" in why_refused(("x", whole[:-22] + locator + whole[-22:]))


def overlapping(*names: bytes) -> bytes:
    """Return an archive in which each file contains the next file's header in a stored block, so
    that all of them unpack the same data."""
    stream = b"\0\0\0\xff\xff" * 1000 + b"\1\0\0\xff\xff"
    found: list[tuple[bytes, int, int]] = []
    body = b""
    for name in reversed(names):
        head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(stream), 0, 1, 0)
        body = head + name + stream
        found.append((name, len(stream), len(body)))
        quoted = len(head + name)
        stream = struct.pack("<BHH", 0, quoted, quoted ^ 0xFFFF) + body
    listed = [directory_entry(n, size=size, at=len(body) - end) for n, size, end in found]
    return archive_of(body, *listed)


def test_archive_with_overlapping_files_is_rejected() -> None:
    assert "overlap" in why_refused(("x", overlapping(b"1", b"2", b"3")))


def test_manifest_with_endless_front_matter_is_rejected() -> None:
    head = b"---\nname: a\ndescription: b\n"
    assert read_manifest(head + b" a\n" * 500 + b"---\n")[1].endswith("a a a")
    with pytest.raises(InvalidRequest, match="more than 1000 lines"):
        read_manifest(head + b" a\n" * 200_000 + b"---\n")


def test_encrypted_and_unusually_compressed_archives_are_rejected() -> None:
    plain = bytearray(zipped(("a/SKILL.md", HEAD)))
    plain[plain.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in why_refused(("z", bytes(plain)))
    odd = zipped(("a/SKILL.md", HEAD), method=zipfile.ZIP_BZIP2)
    assert "deflated" in why_refused(("z", odd))


@pytest.mark.parametrize(
    "uploads",
    [
        [],
        [("a/x", b"")],
        [("a/SKILL.md", HEAD), ("b/x", b"")],
        [("a/skill.md", HEAD)],
        [("z", b"PK\x03\x04nonsense")],
        [("z", b"PK\x05\x06" + bytes(18))],
    ],
)
def test_upload_without_a_skill_is_rejected(uploads: list[tuple[str, bytes]]) -> None:
    assert why_refused(*uploads)


def test_entry_without_a_name_is_rejected() -> None:
    archive = zipped(("a/SKILL.md", HEAD), ("b", b""))
    in_directory = archive.rindex(b"b")
    assert why_refused(("z", archive[:in_directory] + b"\0" + archive[in_directory + 1 :]))


@given(st.data())
def test_damaged_archive_is_read_or_rejected(data: st.DataObject) -> None:
    archive = bytearray(zipped(("a/SKILL.md", HEAD), ("a/b/c.txt", b"hello" * 50)))
    for _ in range(data.draw(st.integers(1, 6))):
        archive[data.draw(st.integers(2, len(archive) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(2, len(archive)))
    try:
        bundle = read_bundle([("z", bytes(archive[:cut]))])
    except InvalidRequest:
        return
    assert bundle.name and bundles.MANIFEST in bundle.files
