"""Changes of bytes and of what is packed in them.

A reader that checks a checksum first never sees a changed byte behind it. So archives are taken apart, a member is
changed and all is packed again, with checksums that are right.
"""

import gzip
import io
import json
import lzma
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

LIMIT = 1 << 17  # bytes that a changed file may have
INTERESTING = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
NAMES = (
    "../escape", "/etc/passwd", "a/../../escape", "..\\escape", "C:\\escape", "", ".", "x" * 5000, "\u202etxt",
    "x.npy", "about.npy", "nul\0byte", "line\nbreak", "metrics/loss.npy", "params/0.npy",
)  # fmt: skip
TOKENS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1", "-0", "0.5", "null", "true", "[]", "{}", '""', "9" * 30, "9" * 5000,
    "2147483648", "18446744073709551616", '"\\ud800"', '"\\u0000"', '{"x": [1], "y": [1]}', '"' + "z" * 3000 + '"',
    "[" * 200 + "]" * 200, "[" * 20000, '{"a":' * 3000, "[[1], [1, 2]]", '"../x"', '"float64"', '"O"', '"U99999999"',
)  # fmt: skip
Change = Callable[[bytes, random.Random], bytes]


class Payload:
    """Unpickled, it writes a file: nobody may unpickle it."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.target, "w")


def pickled(target: str) -> bytes:
    """A pickle that writes the file ``target`` when it is loaded."""
    return pickle.dumps(Payload(target))


# Bytes as such


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    start, count = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 16, 256))
    run = rng.choice((b"\0", b"\xff", b"9", b"[", b'"', b",", b"\n")) * count
    return data[:start] + (rng.randbytes(count) if rng.random() < 0.3 else run) + data[start + count :]


def field(data: bytes, rng: random.Random) -> bytes:
    """A length, count or offset somewhere becomes a telling number, more often near the ends, where headers are."""
    width = rng.choice((1, 2, 4, 8))
    number = rng.choice(INTERESTING) & ((1 << 8 * width) - 1)
    near = min(len(data), 96)
    start = rng.choice((rng.randrange(near + 1), len(data) - rng.randrange(near + 1), rng.randrange(len(data) + 1)))
    return data[:start] + number.to_bytes(width, rng.choice(("little", "big"))) + data[start + width :]


def inserted(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.choice((1, 4, 64, 1024))) + data[start:]


def removed(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 8, 100)) :]


def repeated(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    run = data[start : start + rng.choice((1, 8, 64, 512))]
    return data[:start] + run * rng.choice((2, 3, 50)) + data[start + len(run) :]


def recoded(data: bytes, rng: random.Random) -> bytes:
    """Text in another encoding."""
    text = data.decode("latin-1")
    return rng.choice((text.encode("utf-16"), text.encode("utf-8-sig"), b"\xff\xfe" + data, data + b"\x80", b""))


def retokened(data: bytes, rng: random.Random) -> bytes:
    """A number, string, list or cell of a text becomes another."""
    starts = [place for place in range(len(data)) if data[place] in b'0123456789"[{,:\n\t']
    if not starts:
        return overwritten(data, rng)
    start = rng.choice(starts)
    end = start + 1
    while end < len(data) and data[end] not in b',:]}\n\t "':
        end += 1
    start += data[start] in b",:\n\t"
    return data[:start] + rng.choice(TOKENS).encode() + data[max(start, end) :]


PLAIN: tuple[Change, ...] = (truncated, flipped, overwritten, field, inserted, removed, repeated)
TEXT: tuple[Change, ...] = (*PLAIN, retokened, retokened, retokened, recoded)


def any_of(changes: tuple[Change, ...]) -> Change:
    """One of the changes, now and then several on top of each other."""

    def change(data: bytes, rng: random.Random) -> bytes:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = rng.choice(changes)(data, rng)[:LIMIT]
        return data

    return change


plain = any_of(PLAIN)
text = any_of(TEXT)


# What is packed


def gzipped(inner: Change) -> Change:
    """Changes what is in a gzip or xz file, or the file itself, or how it is packed."""

    def change(data: bytes, rng: random.Random) -> bytes:
        kind = rng.randrange(6)
        if kind == 0:
            return plain(data, rng)
        content = gzip.decompress(data)
        if kind == 1:  # two streams, or rubbish after the first
            return data + rng.choice((data, b"\0" * 600, b"rubbish", gzip.compress(b"")))
        if kind == 2:
            return lzma.compress(inner(content, rng))
        if kind == 3:
            return greedy_xz(content)
        return gzip.compress(inner(content, rng), 1)

    return change


def greedy_xz(content: bytes) -> bytes:
    """An xz file that asks for a dictionary of 1.5 GiB."""
    packed = bytearray(lzma.compress(content, preset=0, check=lzma.CHECK_NONE))
    # After the stream's header of 12 bytes: size, flags, filter 0x21, one byte of properties, the dictionary's size.
    header = packed[12 : 12 + 4 * (packed[12] + 1)]
    header[4] = 39
    header[-4:] = struct.pack("<I", zlib_crc(bytes(header[:-4])))
    packed[12 : 12 + len(header)] = header
    return bytes(packed)


def zlib_crc(data: bytes) -> int:
    import zlib

    return zlib.crc32(data)


def zipped(inner: Change) -> Change:
    """Changes a member, the list of members or the bytes of a zip file."""

    def change(data: bytes, rng: random.Random) -> bytes:
        kind = rng.randrange(10)
        if kind < 2:
            return plain(data, rng)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        at = rng.randrange(len(members))
        name, content = members[at]
        if kind == 2:
            members[at] = (rng.choice(NAMES), content)
        elif kind == 3:
            members.append(members[at])
        elif kind == 4:
            del members[at]
        else:
            members[at] = (name, inner(content, rng))
        method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        packed = zip_of(members, method)
        return declared(packed, rng) if kind == 9 else packed

    return change


def zip_of(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file, also of names that ``zipfile`` warns of."""
    import warnings

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, content in members:
                archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def declared(data: bytes, rng: random.Random) -> bytes:
    """Another size, offset, method or flag in the list at the end of a zip file."""
    entry = data.rfind(b"PK\x01\x02")
    place, width = rng.choice(((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (38, 4), (42, 4)))
    number = rng.choice(INTERESTING) & ((1 << 8 * width) - 1)
    return data[: entry + place] + number.to_bytes(width, "little") + data[entry + place + width :]


def tarred(inner: Change) -> Change:
    """Changes a member, the list of members or the bytes of a tar file, packed or not."""

    def change(data: bytes, rng: random.Random) -> bytes:
        kind = rng.randrange(8)
        if kind < 1:
            return plain(data, rng)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [(info, archive.extractfile(info).read()) for info in archive if info.isfile()]  # type: ignore[union-attr]
        at = rng.randrange(len(members))
        info, content = members[at]
        if kind == 1:
            info.name = rng.choice(NAMES).replace("\0", "")
        elif kind == 2:
            info.type = rng.choice((*(bytes([code]) for code in range(48, 56)), b"g", b"x", b"L", b"K", b"S", b"V"))
            info.linkname = rng.choice(NAMES).replace("\0", "")
        elif kind == 3:
            members.append(members[at])
        elif kind == 4:
            info.pax_headers = {rng.choice(("size", "path", "GNU.sparse.map", "GNU.sparse.major", "mtime")): "-1,9"}
        else:
            members[at] = (info, inner(content, rng))
        packed = tar_of(members, rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
        if kind == 7:  # headers with a right checksum and other contents
            packed = rehashed(packed, rng)
        return gzip.compress(packed, 1) if rng.random() < 0.5 else packed

    return change


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def rehashed(data: bytes, rng: random.Random) -> bytes:
    """The first header of a tar file with other bytes and the checksum that belongs to them."""
    header = bytearray(data[:512])
    start, width = rng.choice(((100, 8), (124, 12), (136, 12), (156, 1), (257, 8), (345, 40), (386, 96)))
    new = rng.choice((b"\xff" * width, b"\x80" + bytes(width - 1), b"7" * width, rng.randbytes(width)))
    header[start : start + width] = new
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


def npy(data: bytes, rng: random.Random) -> bytes:
    """Another header of an npy file, or other bytes behind it."""
    if data[:6] != b"\x93NUMPY" or rng.random() < 0.4:
        return plain(data, rng)
    length = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + length].decode("latin-1").rstrip(), data[10 + length :]
    shape = rng.choice(
        ("(-1,)", "(-2, -2)", "(True,)", "(0, 4611686018427387904)", "(1073741824, 1073741824)", "()", "(3,)", "[3]",
         "(18446744073709551616,)", "(0,)", "(2147483648, 0)", "(1.5,)", "((3,),)", "-" * 4000 + "1", "(" * 300)
    )  # fmt: skip
    dtype = rng.choice(
        ("'|O'", "'<f4'", "'<f8'", "'|V0'", "'|V4'", "'<U99999999'", "'|S3'", "'<M8[s]'", "'>i8'", "'<c16'", "'|b1'",
         "[('a', '<f4')]", "[('a', '|O')]", "('<f4', (3,))", "'nonsense'", "None", "'<f2'", "3")
    )  # fmt: skip
    parts = rng.sample(("descr", "shape", "order", "keys"), rng.choice((1, 1, 2)))
    if "shape" in parts:
        header = replaced(header, "'shape': ", "}", shape + ", ")
    if "descr" in parts:
        header = replaced(header, "'descr': ", "'fortran_order'", dtype + ", ")
    if "order" in parts:
        header = header.replace("False", rng.choice(("True", "None", "0", "[]")))
    if "keys" in parts:
        header = rng.choice((header.replace("shape", "form"), header[:-1] + ", 'x': 1}", "{[]: 1}", "[]", "1", "{'a'"))
    return npy_of(header, body)


def npy_of(header: str, body: bytes) -> bytes:
    """An npy file with any text as its header."""
    packed = header.encode("latin-1", "replace")
    packed += b" " * (-(len(packed) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + (len(packed) & 0xFFFF).to_bytes(2, "little") + packed[:0xFFFF] + body


def replaced(header: str, before: str, after: str, new: str) -> str:
    start, end = header.find(before), header.rfind(after)
    return header if min(start, end) < 0 else header[: start + len(before)] + new + header[end:]


def json_tree(data: bytes, rng: random.Random) -> bytes:
    """Another value at some place of a JSON file that stays JSON; now and then other bytes."""
    if rng.random() < 0.4:
        return text(data, rng)
    try:
        tree = json.loads(data)
    except ValueError:
        return text(data, rng)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, below in items:
            places.append((node, key))
            walk(below)

    walk(tree)
    for _ in range(rng.choice((1, 1, 2))):
        if not places:
            break
        node, key = rng.choice(places)
        new = rng.choice(
            (None, -1, 0, 2**31, 2**70, 1e308, float("nan"), True, "", "x", "\ud800", [], {}, [[]], [1, [2]], "a" * 999,
             {"x": [1], "y": [0]}, {"array": [1], "dtype": "O"}, {"opaque": "x"}, {"dtype": "U9999999"}, [2**40] * 3)
        )  # fmt: skip
        if isinstance(node, dict) and rng.random() < 0.3:
            node[rng.choice(("x", "", "name", "a" * 3000))] = node.pop(key, None)
        elif isinstance(node, dict) or key < len(node):
            node[key] = new
    return json.dumps(tree).encode()


def safetensors(data: bytes, rng: random.Random) -> bytes:
    """Another header of a safetensors file with the length that belongs to it, or other bytes."""
    if rng.random() < 0.4 or len(data) < 8:
        return plain(data, rng)
    length = int.from_bytes(data[:8], "little")
    header = json_tree(data[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def npz(data: bytes, rng: random.Random) -> bytes:
    return zipped(npy)(data, rng)
