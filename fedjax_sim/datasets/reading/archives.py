"""Members of tar and zip archives, read without unpacking anything to disk."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fedjax_sim.core.files import open_regular, parsing
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.reading.compressed import open_bounded

_CHUNK = 1 << 20
_PACKING = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # lzma may ask for 4 GiB to unpack a byte


def read_members(path: str | os.PathLike[str], names: Sequence[str], *, max_bytes: int = 2**29) -> dict[str, bytes]:
    """The contents of some members of an archive.

    Nothing is written to disk, so no path in the archive can lead anywhere; an archive with a path that would be
    dangerous to unpack is refused all the same, because no honest data set has one. Every member is looked at, wanted
    or not.

    Args:
      path: a tar file (plain, or packed with gzip, xz or bzip2) or a zip file, told by its content.
      names: the members to read, by their whole path in the archive.
      max_bytes: most bytes to unpack: the whole of a tar file, the wanted members of a zip file.

    Returns:
      Name to content, in the order of ``names``.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: not an archive, damaged, larger than ``max_bytes`` when unpacked, without a wanted member, encrypted,
        packed in a way that is not read, or with a member that is a link or a device, that occurs twice, or whose path
        is absolute, has ``..``, a backslash, a colon or a control character.
    """
    place = Path(path)
    with open_regular(place) as raw:
        zipped = raw.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    found: dict[str, bytes] = {}
    for name, content in (_zip_members if zipped else _tar_members)(place, frozenset(names), max_bytes):
        found[name] = content
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{place} has no member {', '.join(missing)}: it is another archive, or incomplete")
    return {name: found[name] for name in names}


def _tar_members(place: Path, wanted: frozenset[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    damaged = partial(parsing, place, "is no tar archive, or damaged")
    with open_bounded(place, max_bytes) as stream:
        unpacked: Any = stream  # tarfile asks for a file, and in its "|" mode uses nothing but read
        with damaged():
            archive = tarfile.open(fileobj=unpacked, mode="r|")  # noqa: SIM115, what it raises while it is used is told apart
        with archive:
            while True:
                with damaged():
                    member = archive.next()
                if member is None:
                    break
                archive.members = []  # type: ignore[attr-defined]  # it keeps them all, and there may be a million
                _check_member(place, member.name, seen)
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
                if not plain and not member.isdir():
                    raise ValueError(
                        f"{place} has the member {shown(member.name)}, which is neither a file nor a folder (links "
                        "and devices are refused): do not use this archive"
                    )
                if plain and member.name in wanted:
                    with damaged():
                        source = archive.extractfile(member)
                        assert source is not None  # a file's never is
                        content = source.read()
                    yield member.name, content
        while stream.read(_CHUNK):  # a checksum of the packed stream stands at its end
            pass


def _zip_members(place: Path, wanted: frozenset[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    left = max_bytes
    damaged = partial(parsing, place, "is no zip archive, or damaged")
    with open_regular(place) as raw:
        with damaged():
            archive = zipfile.ZipFile(raw)
        # all of the list is checked first: unlike in a tar file it stands in one place
        for member in archive.infolist():
            _check_member(place, member.filename, seen)
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(
                    f"{place} has the member {shown(member.filename)}, which is neither a file nor a folder (links "
                    "and devices are refused): do not use this archive"
                )
            if member.flag_bits & 1:
                raise ValueError(f"{place} has the encrypted member {shown(member.filename)}: unpack it yourself")
        for member in archive.infolist():
            if member.filename not in wanted or member.is_dir():
                continue
            if member.compress_type not in _PACKING:
                raise ValueError(
                    f"{place}: {shown(member.filename)} is packed with method {member.compress_type}; stored, deflated "
                    "and bzip2 are read: unpack it yourself"
                )
            left -= member.file_size
            if left < 0:
                raise ValueError(f"{place} unpacks to more than {max_bytes} bytes: that much is not read")
            with damaged(), archive.open(member) as source:
                # in pieces: a read of everything would unpack up to 1 GiB before it cuts the member to its size
                content = b"".join(iter(partial(source.read, _CHUNK), b""))
            yield member.filename, content


def check_inside(place: Path, name: str, signs: str = "\\:") -> None:
    """Refuses the name of a member that would lead out of the folder on some system if it were unpacked.

    Args:
      place: the archive.
      name: of the member.
      signs: those that may not be in it, besides control characters.

    Raises:
      ValueError: such a name.
    """
    unsafe = not name or name.startswith("/") or name[1:2] == ":" or ".." in PurePosixPath(name).parts
    if unsafe or any(ord(sign) < 32 or sign in signs for sign in name):
        raise ValueError(
            f"{place} has a member with the unsafe path {shown(name)} (absolute, with '..', or with signs that some "
            "systems read as a path of their own): do not use this archive"
        )


def _check_member(place: Path, name: str, seen: set[str]) -> None:
    """Refuses a name that would be dangerous on some system, or that is there twice."""
    check_inside(place, name)
    key = str(PurePosixPath(name)).casefold()
    if key in seen:
        raise ValueError(f"{place} has the member {shown(name)} twice: which one is meant cannot be known")
    seen.add(key)
