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

from fedjax_sim.datasets.reading.compressed import DAMAGED, open_bounded
from fedjax_sim.values import shown

_CHUNK = 1 << 20


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
      FileNotFoundError: no such file.
      ValueError: not an archive, damaged, larger than ``max_bytes`` when unpacked, without a wanted member, encrypted,
        or with a member that is a link or a device, that occurs twice, or whose path is absolute, has ``..``, a
        backslash, a colon or a control character.
    """
    place = Path(path)
    with place.open("rb") as raw:
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
    with open_bounded(place, max_bytes) as stream:
        unpacked: Any = stream  # tarfile asks for a file, and in its "|" mode uses nothing but read
        try:
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    _check_member(place, member.name, seen)
                    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
                    if not plain and not member.isdir():
                        raise ValueError(
                            f"{place} has the member {shown(member.name)}, which is neither a file nor a folder (links "
                            "and devices are refused): do not use this archive"
                        )
                    if plain and member.name in wanted:
                        content = archive.extractfile(member)
                        assert content is not None  # a file's never is
                        yield member.name, content.read()
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"{place} is no tar archive, or damaged ({error}): fetch it again") from error
        while stream.read(_CHUNK):  # a checksum of the packed stream stands at its end
            pass


def _zip_members(place: Path, wanted: frozenset[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    left = max_bytes
    try:
        with zipfile.ZipFile(place) as archive:
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
                left -= member.file_size
                if left < 0:
                    raise ValueError(f"{place} unpacks to more than {max_bytes} bytes: that much is not read")
                with archive.open(member) as source:
                    # in pieces: a read of everything would unpack up to 1 GiB before it cuts the member to its size
                    yield member.filename, b"".join(iter(partial(source.read, _CHUNK), b""))
    except (zipfile.BadZipFile, NotImplementedError, *DAMAGED) as error:
        raise ValueError(f"{place} is no zip archive, or damaged ({error}): fetch it again") from error


def _check_member(place: Path, name: str, seen: set[str]) -> None:
    """Refuses a name that would be dangerous on some system, or that is there twice."""
    parts = PurePosixPath(name).parts
    unsafe = not name or name.startswith("/") or ".." in parts or any(sign in name for sign in "\\:")
    if unsafe or any(ord(sign) < 32 for sign in name):
        raise ValueError(
            f"{place} has a member with the unsafe path {shown(name)} (absolute, with '..', or with signs that some "
            "systems read as a path of their own): do not use this archive"
        )
    key = str(PurePosixPath(name)).casefold()
    if key in seen:
        raise ValueError(f"{place} has the member {shown(name)} twice: which one is meant cannot be known")
    seen.add(key)
