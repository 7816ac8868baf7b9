"""Memory for rows, a block at a time: the host's own, or a file's."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

#: ``allocate(rows, row_bytes)``: uint8[rows, row_bytes] to write to
Allocate = Callable[[int, int], np.ndarray]


def in_memory(rows: int, row_bytes: int) -> np.ndarray:
    """A block of the host's memory, which the system provides where it is written to.

    Raises:
      MemoryError: there is not as much.
    """
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
        os.makedirs(directory, exist_ok=True)
        file: BinaryIO = tempfile.TemporaryFile(dir=directory, prefix=".fedjax_sim-", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise OSError(error.errno, f"client states cannot be kept here ({error.strerror})", directory) from error

    def allocate(rows: int, row_bytes: int) -> np.ndarray:
        offset = os.fstat(file.fileno()).st_size
        size = rows * row_bytes
        whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            # Writing to a mapped page for which the disk has no room would end the process.
            _reserve(file.fileno(), offset, whole)
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


def _reserve(file: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, offset, size)
    else:  # macOS
        os.ftruncate(file, offset + size)
