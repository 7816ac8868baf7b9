"""What clients keep from round to round: where it is kept, in which type, and how a cohort's rows get to a round.

``simulate(..., client_states=...)`` takes :func:`on_device` (the default), :func:`on_host` or :func:`on_disk`.

Kept in bfloat16, a number is a word of 16 bits here: XLA's CPU backend turns a scatter into a bfloat16 array inside a
loop into one of the whole array in float32 (128 ms a round where words take 0.02 ms: 200,000 clients of 600 numbers,
jax 0.10.2), and it may leave out a rounding to bfloat16 and back.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import choice, static
from fedjax_sim.core.loops import sorted_places
from fedjax_sim.core.values import is_float, shown
from fedjax_sim.datasets.placement import on_host as to_host
from fedjax_sim.engine.client_table import Allocate, in_file, in_memory

__all__ = ["ClientStates", "OnDevice", "Rows", "as_arrays", "on_device", "on_disk", "on_host", "put", "take"]


def _check_directory(what: str, value: Any) -> None:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise TypeError(f"{what} is {shown(value)}: give a directory, on_disk('/scratch/run')")


class ClientStates(Described, kw_only=True):
    """Base of the places; pure structure.

    Attributes:
      apart: whether the states of all clients stay off the device, which has those of a cohort only.
    """

    apart: ClassVar[bool] = False

    # float16 ends at 65,504, so that a large control variate would become infinite.
    dtype: str | None = choice(("bfloat16", "float32"), default=None)

    def first(self, one: Any) -> Any:
        """The state of a client before its first visit, as it is kept.

        Args:
          one: what :meth:`fedjax_sim.algorithms.contract.Method.init_client` returned.
        """
        as_it_is = self.dtype is None and not self.apart
        return one if as_it_is or not jax.tree.leaves(one) else kept(one, self.dtype)

    def in_program(self) -> ClientStates:
        """What of it is part of the compiled program."""
        return OnHost(dtype=self.dtype) if self.apart else self

    def allocate(self) -> Allocate:
        """What gives the memory of the rows, where they are kept ``apart``."""
        raise TypeError(f"{type(self).__name__} must define allocate()")


class OnDevice(ClientStates):
    """All clients' states on the device: N rows from the start.

    Args:
      dtype: ``"bfloat16"`` rounds real numbers when a client leaves (to nearest, ties to even) and keeps half of
        float32's bytes; clients compute in their own type. ``"float32"`` is for runs in double precision. Integers,
        truth values and keys stay as they are. None for each array's own type.
    """


class OnHost(ClientStates):
    """Client states in the host's memory; the device has those of one round's cohort and the next one's.

    A client's row takes memory once the client has taken part, none before. Rows of the next cohort are read, and those
    of the last one put back, while a round computes. Results are those of :func:`on_device`.

    Args:
      dtype: see :class:`OnDevice`.
    """

    apart: ClassVar[bool] = True

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
    """

    directory: str = static(_check_directory)

    apart: ClassVar[bool] = True

    def checked(self) -> Self:
        return super().checked().replace(directory=os.fspath(self.directory))

    def allocate(self) -> Allocate:
        return in_file(self.directory)


on_device = factory("client_states.on_device", OnDevice)
on_host = factory("client_states.on_host", OnHost)
on_disk = factory("client_states.on_disk", OnDisk)


# Rows on the device: a cohort's taken and put back, in the types in which they are kept

#: index of a row that is no client's; every client's is less, and so is that of void slots
UNUSED = int(np.iinfo(np.int32).max)


class Rows(Described):
    """States of some clients, or of all, as they are kept; pure data, made by :func:`kept`.

    Attributes:
      used: of each leaf the type in which clients use it: a dtype, or the implementation of a PRNG key.
    """

    leaves: Any  # pytree of arrays [W, ...]; of one client, without that axis, while ``indices`` is None
    indices: Any = None  # int32[W] ascending, whose they are, ``UNUSED`` at the end; None where row i is client i's
    used: tuple[Any, ...] = static(default=())


def kept(one: Any, dtype: str | None) -> Rows:
    """States as they are kept.

    Real numbers that have more bits become ``dtype``, if it is one.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, one))
    used = tuple(jax.random.key_impl(leaf) if _is_key(leaf) else leaf.dtype for leaf in leaves)
    return Rows(jax.tree.unflatten(structure, [_kept(leaf, dtype) for leaf in leaves]), None, used)


def take(clients: Any, indices: jax.Array) -> Any:
    """The states of a cohort, leaves [S, ...], by client indices, int32[S]; N in void slots, which get any row.

    ``clients`` are all clients' states, leaves [N, ...]; or :class:`Rows`, of all or at least of the cohort's clients.
    """
    if not isinstance(clients, Rows):
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="clip"), clients)
    places = indices if clients.indices is None else sorted_places(clients.indices, indices)
    leaves, structure = jax.tree.flatten(clients.leaves)
    taken = [leaf.at[places].get(mode="clip") for leaf in leaves]
    return jax.tree.unflatten(structure, [_used(leaf, used) for leaf, used in zip(taken, clients.used, strict=True)])


def put(clients: Any, indices: jax.Array, new: Any) -> Any:
    """``clients``, as :func:`take` takes them, after the cohort's states are ``new``; void slots' rows are dropped."""
    if not isinstance(clients, Rows):
        return jax.tree.map(lambda all_, rows: all_.at[indices].set(rows, mode="drop"), clients, new)
    places, found = indices, None
    if clients.indices is not None:
        places, found = _places(clients.indices, indices)
        places = jnp.where(found, places, len(clients.indices))
    leaves, structure = jax.tree.flatten(clients.leaves)
    rows = [_like(leaf, one) for leaf, one in zip(leaves, jax.tree.leaves(new), strict=True)]
    put_back = [leaf.at[places].set(row, mode="drop") for leaf, row in zip(leaves, rows, strict=True)]
    return clients.replace(leaves=jax.tree.unflatten(structure, put_back))


def as_arrays(clients: Any) -> Any:
    """All clients' states as arrays of the host, in the types in which clients use them; keys as their words."""
    if not isinstance(clients, Rows):
        return to_host(jax.tree.map(lambda of: of if isinstance(of, np.ndarray) else kept(of, None).leaves, clients))
    leaves, structure = jax.tree.flatten(to_host(clients.leaves))
    found = []
    for leaf, used in zip(leaves, clients.used, strict=True):
        if isinstance(used, np.dtype) and leaf.dtype != used:
            leaf = (leaf.view(jnp.bfloat16) if leaf.dtype == np.uint16 else leaf).astype(used)
        found.append(leaf)
    return jax.tree.unflatten(structure, found)


def moved(before: Rows, sent: Rows) -> Rows:
    """``sent`` with the rows of those clients that are in ``before`` too, whose rows there are newer.

    Both have ``indices``.
    """
    places, found = _places(before.indices, sent.indices)
    newer = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), before.leaves)
    return sent.replace(leaves=trees.select(found & (sent.indices < UNUSED), newer, sent.leaves))


def _places(own: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where clients are among those of a window, and whether they are."""
    places = sorted_places(own, wanted)
    return places, own.at[places].get(mode="clip") == wanted


def _is_key(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _kept(leaf: jax.Array, dtype: str | None) -> jax.Array:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if dtype is None or not is_float(leaf) or leaf.dtype.itemsize <= jnp.dtype(dtype).itemsize:
        return leaf
    # Via float32 always: from float64 in one step or in two, backends differ.
    leaf = leaf.astype(jnp.float32)
    return leaf if dtype == "float32" else lax.bitcast_convert_type(leaf.astype(jnp.bfloat16), jnp.uint16)


def _like(all_: jax.Array, new: jax.Array) -> jax.Array:
    """``new`` in the type in which ``all_`` are kept."""
    if _is_key(new) or new.dtype == all_.dtype:
        return _kept(new, None)
    return _kept(new, "bfloat16" if all_.dtype == jnp.uint16 else "float32")


def _used(leaf: jax.Array, used: Any) -> jax.Array:
    if not isinstance(used, np.dtype):
        return jax.random.wrap_key_data(leaf, impl=used)
    if leaf.dtype == used:
        return leaf
    if leaf.dtype == jnp.uint16:
        leaf = lax.bitcast_convert_type(leaf, jnp.bfloat16)
    return leaf.astype(used)
