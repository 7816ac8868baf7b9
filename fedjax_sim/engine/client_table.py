"""Rows of client states off the device, in the host's memory or a file: those of clients that have taken part."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_sim.core.files import make_directory

#: ``allocate(rows, row_bytes)``: uint8[rows, row_bytes] to write to
Allocate = Callable[[int, int], np.ndarray]

_FIRST = 64 << 20  # bytes of the first block
_GROWTH = 4  # a further block has a 4th of the rows so far: few blocks, little room that nobody uses


class Table:
    """The rows of N clients, of which each is that of ``initial`` until it is written.

    A row is the bytes of its leaves one after the other. Rows have places in the order in which they are first written,
    in blocks of memory that grow with their number, so that memory is taken by clients that have taken part alone, and
    a disk need not know of sparse files.

    Args:
      initial: the leaves of a client before its first visit, by name.
      num_clients: N.
      allocate: what gives the blocks.
    """

    def __init__(self, initial: Mapping[str, np.ndarray], num_clients: int, allocate: Allocate) -> None:
        self._names = list(initial)
        self._num_clients, self._allocate = num_clients, allocate
        fields = [(str(number), array.dtype, array.shape) for number, array in enumerate(initial.values())]
        self._row = np.dtype(fields)
        self.row_bytes = self._row.itemsize
        self._initial = self._packed([array[None] for array in initial.values()])
        self._places = np.full(num_clients, -1, np.int32)
        self._owners = np.empty(num_clients, np.int32)  # of which the system provides what is written
        self._count = 0
        self._blocks: list[np.ndarray] = []
        self._starts: list[int] = []

    def read(self, clients: np.ndarray) -> list[np.ndarray]:
        """The leaves [k, ...] of ``clients``, int[k]; that of the initial row where an index is below 0."""
        rows = np.empty((len(clients), self.row_bytes), np.uint8)
        places = np.where(clients < 0, -1, self._places[clients])
        rows[places < 0] = self._initial
        for block, chosen, inside in self._of_blocks(places):
            rows[chosen] = block[inside]
        return self._leaves(rows)

    def write(self, clients: np.ndarray, leaves: list[np.ndarray]) -> None:
        """Puts the leaves [k, ...] of distinct ``clients``, int[k]; ``OSError`` or ``MemoryError`` for lack of room."""
        self._put(clients, self._packed(leaves))

    def stored(self) -> dict[str, np.ndarray]:
        """All of it for a file, in the rows' own memory: valid until the next :meth:`write`."""
        written = [block[: self._count - start] for block, start in zip(self._blocks, self._starts, strict=True)]
        parts = {f"rows/{number}": block for number, block in enumerate(written)}
        return {**self._first(), "owners": self._owners[: self._count], **parts}

    def restore(self, stored: Mapping[str, np.ndarray]) -> None:
        """Puts back what :meth:`stored` gave, in pieces; this table has no rows yet.

        Raises:
          ValueError: it is of other leaves or clients.
        """
        for name, like in {**self._first(), "owners": np.empty(0, np.int32)}.items():
            found = stored.get(name)
            if found is None or found.dtype != like.dtype or (name != "owners" and found.shape != like.shape):
                raise ValueError(f"client states of {name} are not {like.dtype}{list(like.shape)}")
        owners = stored["owners"]
        blocks = [stored[name] for name in sorted(stored, key=_number) if _number(name) >= 0]
        shaped = all(rows.dtype == np.uint8 and rows.shape[1:] == (self.row_bytes,) for rows in blocks)
        known = np.unique(owners[(owners >= 0) & (owners < self._num_clients)])
        if not shaped or not len(owners) == len(known) == sum(map(len, blocks)):
            raise ValueError(f"not client states of {self.row_bytes} bytes for {self._num_clients} clients")
        self._initial = self._packed([stored[f"initial/{name}"][None] for name in self._names])
        start = 0
        for rows in blocks:
            for piece in np.array_split(rows, max(1, rows.nbytes // _FIRST)):
                self._put(owners[start : start + len(piece)], piece)
                start += len(piece)

    def _first(self) -> dict[str, np.ndarray]:
        return {f"initial/{name}": leaf[0] for name, leaf in zip(self._names, self._leaves(self._initial), strict=True)}

    def _leaves(self, rows: np.ndarray) -> list[np.ndarray]:
        fields = rows.view(self._row)[:, 0]
        return [np.ascontiguousarray(fields[name]) for name in self._row.names or ()]

    def _packed(self, leaves: list[np.ndarray]) -> np.ndarray:
        rows = np.empty((len(leaves[0]), self.row_bytes), np.uint8)
        for name, leaf in zip(self._row.names or (), leaves, strict=True):
            rows.view(self._row)[:, 0][name] = leaf
        return rows

    def _put(self, clients: np.ndarray, rows: np.ndarray) -> None:
        new = clients[self._places[clients] < 0]
        self._reserve(self._count + len(new))
        self._places[new] = np.arange(self._count, self._count + len(new), dtype=np.int32)
        self._owners[self._count : self._count + len(new)] = new
        self._count += len(new)
        for block, chosen, inside in self._of_blocks(self._places[clients]):
            block[inside] = rows[chosen]

    def _of_blocks(self, places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Blocks with some of the places, as ``(block, which of the places, rows of the block)``."""
        number = np.searchsorted(self._starts, places, side="right") - 1  # -1 for no place
        found = []
        for index in np.unique(number[number >= 0]):
            chosen = np.flatnonzero(number == index)
            found.append((self._blocks[index], chosen, places[chosen] - self._starts[index]))
        return found

    def _reserve(self, count: int) -> None:
        room = sum(map(len, self._blocks))
        while room < count:
            least = max(1, _FIRST // max(self.row_bytes, 1))
            rows = min(self._num_clients - room, max(least, room // _GROWTH, count - room))
            self._blocks.append(self._allocate(rows, self.row_bytes))
            self._starts.append(room)
            room += rows


def _number(name: str) -> int:
    """Of the block of that name; -1 for what is no block."""
    kind, _, number = name.partition("/")
    return int(number) if kind == "rows" else -1


def in_memory(rows: int, row_bytes: int) -> np.ndarray:
    """A block of the host's memory, which the system provides where it is written to."""
    try:
        return np.empty((rows, row_bytes), np.uint8)
    except MemoryError as error:
        raise MemoryError(
            f"client states: {rows:,} more rows of {row_bytes:,} bytes do not fit in the host's memory: keep them in "
            "client_states=on_disk(directory), or in half of the bytes with dtype='bfloat16'"
        ) from error


def in_file(directory: str) -> Allocate:
    """Blocks of a file without a name in ``directory``, mapped into memory.

    Raises:
      OSError: the directory cannot be made or written; later, of a block: the disk is full.
    """
    try:
        make_directory(Path(directory))
        file: BinaryIO = tempfile.TemporaryFile(dir=directory, prefix=".fedjax_sim-", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise OSError(error.errno, f"client states cannot be kept here ({error.strerror})", directory) from error

    def allocate(rows: int, row_bytes: int) -> np.ndarray:
        offset = os.fstat(file.fileno()).st_size
        size = rows * row_bytes
        whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            if hasattr(os, "posix_fallocate"):
                # Writing to a mapped page for which the disk has no room would end the process.
                os.posix_fallocate(file.fileno(), offset, whole)
            else:  # macOS
                os.ftruncate(file.fileno(), offset + whole)
            mapped = mmap.mmap(file.fileno(), whole, offset=offset)
        except OSError as error:
            free = f"{shutil.disk_usage(directory).free:,}"
            full = "; give a directory on a larger disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise OSError(
                error.errno,
                f"client states need {whole:,} more bytes on this disk, which has {free} free ({error.strerror}){full}",
                directory,
            ) from error
        return np.frombuffer(mapped, np.uint8, size).reshape(rows, row_bytes)

    weakref.finalize(allocate, file.close)
    return allocate
