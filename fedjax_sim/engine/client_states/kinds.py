"""Where client states are kept: on the device, in the host's memory, or on disk."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import shown
from fedjax_sim.engine.client_states.blocks import Allocate, in_file, in_memory
from fedjax_sim.engine.client_states.rows import kept

_TYPES = ("bfloat16", "float32")


class ClientStates(Described, kw_only=True):
    """Base of the places; pure structure.

    Attributes:
      apart: whether the states of all clients stay off the device, which has those of a cohort only.
    """

    apart: ClassVar[bool] = False

    dtype: str | None = static(default=None)

    def first(self, one: Any) -> Any:
        """The state of a client before its first visit, as it is kept.

        Args:
          one: what :meth:`fedjax_sim.algorithms.contract.Method.init_client` returned.
        """
        return kept(one, self.dtype) if jax.tree.leaves(one) else one

    def in_program(self) -> ClientStates:
        """What of it is part of the compiled program."""
        return self

    def allocate(self) -> Allocate:
        """What gives the memory of the rows, where they are kept ``apart``."""
        raise TypeError(f"{type(self).__name__} must define allocate()")

    def _checked(self, name: str) -> Self:
        """This with its dtype's name; ``name`` is what messages call it."""
        if self.dtype is None:
            return self
        try:
            dtype = str(jnp.dtype(self.dtype)) if isinstance(self.dtype, (str, type, np.dtype)) else ""
        except TypeError:
            dtype = ""
        if dtype not in _TYPES:
            raise ValueError(
                f"{name}(dtype={shown(self.dtype)}): it must be 'bfloat16', 'float32' or None, for each array's own "
                "type (float16 ends at 65,504, so that a large control variate would become infinite)"
            )
        return self.replace(dtype=dtype)


class OnDevice(ClientStates):
    """All clients' states on the device: N rows from the start.

    Args:
      dtype: ``"bfloat16"`` rounds real numbers when a client leaves (to nearest, ties to even) and keeps half of
        float32's bytes; clients compute in their own type. ``"float32"`` is for runs in double precision. Integers,
        truth values and keys stay as they are. None for each array's own type.

    Raises:
      ValueError: another dtype.
    """

    def first(self, one: Any) -> Any:
        return one if self.dtype is None else super().first(one)

    def checked(self) -> Self:
        return self._checked("on_device")


class OnHost(ClientStates):
    """Client states in the host's memory; the device has those of one round's cohort and the next one's.

    A client's row takes memory once the client has taken part, none before. Rows of the next cohort are read, and those
    of the last one put back, while a round computes. Results are those of :func:`on_device`.

    Args:
      dtype: see :class:`OnDevice`.

    Raises:
      ValueError: another dtype.
    """

    apart: ClassVar[bool] = True

    def checked(self) -> Self:
        return self._checked("on_host")

    def in_program(self) -> ClientStates:
        return OnHost(dtype=self.dtype)

    def allocate(self) -> Allocate:
        return in_memory


class OnDisk(ClientStates):
    """Client states in a memory-mapped file; otherwise as :class:`OnHost`.

    The file has no name: the operating system frees its space when the run ends, in whatever way, so nothing is ever
    left over and several runs may use one directory. What outlives a run is its checkpoint. Space is reserved before it
    is written to, so that a full disk is an error and no crash.

    Args:
      directory: on the disk to use; made if it does not exist. The system's directory for temporary files is no good
        place where that is kept in memory.
      dtype: see :class:`OnDevice`.

    Raises:
      TypeError: ``directory`` is no path.
      ValueError: another dtype.
    """

    directory: str = static()

    apart: ClassVar[bool] = True

    def checked(self) -> Self:
        if not isinstance(self.directory, (str, os.PathLike)) or not os.fspath(self.directory):
            raise TypeError(f"on_disk(directory={shown(self.directory)}): give a directory, on_disk('/scratch/run')")
        return self._checked("on_disk").replace(directory=os.fspath(self.directory))

    def in_program(self) -> ClientStates:
        return OnHost(dtype=self.dtype)

    def allocate(self) -> Allocate:
        return in_file(self.directory)


on_device = factory("client_states.on_device", OnDevice)
on_host = factory("client_states.on_host", OnHost)
on_disk = factory("client_states.on_disk", OnDisk)
