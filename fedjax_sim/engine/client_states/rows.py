"""Rows of client states on the device: a cohort's taken and put back, in the types in which they are kept.

Kept in bfloat16, a number is a word of 16 bits here: XLA's CPU backend turns a scatter into a bfloat16 array inside a
loop into one of the whole array in float32 (128 ms a round where words take 0.02 ms: 200,000 clients of 600 numbers,
jax 0.10.2), and it may leave out a rounding to bfloat16 and back.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import static
from fedjax_sim.datasets.placement import on_host

#: index of a row that is no client's; every client's is less, and so is that of void slots
UNUSED = int(np.iinfo(np.int32).max)


class Rows(Described):
    """States of some clients, or of all, as they are kept; pure data, made by :func:`kept`.

    Attributes:
      leaves: pytree of arrays [W, ...]; of one client, without that axis, while ``indices`` is None.
      indices: int32[W] ascending, whose they are, ``UNUSED`` at the end; None where row i is client i's.
      used: of each leaf the type in which clients use it: a dtype, or the implementation of a PRNG key.
    """

    leaves: Any
    indices: Any = None
    used: tuple[Any, ...] = static(default=())


def kept(one: Any, dtype: str | None) -> Rows:
    """States as they are kept.

    Args:
      one: of one client or of several.
      dtype: ``"bfloat16"`` or ``"float32"``, for real numbers that have more bits; None for as they are.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, one))
    used = tuple(jax.random.key_impl(leaf) if _is_key(leaf) else leaf.dtype for leaf in leaves)
    return Rows(jax.tree.unflatten(structure, [_kept(leaf, dtype) for leaf in leaves]), None, used)


def take(clients: Any, indices: jax.Array) -> Any:
    """The states of a cohort, leaves [S, ...].

    Args:
      clients: all clients' states, leaves [N, ...]; or :class:`Rows`, of all or at least of the cohort's clients.
      indices: int32[S], client indices; N in void slots, which get any row.
    """
    if not isinstance(clients, Rows):
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="clip"), clients)
    places = indices if clients.indices is None else jnp.searchsorted(clients.indices, indices)
    leaves, structure = jax.tree.flatten(clients.leaves)
    taken = [leaf.at[places].get(mode="clip") for leaf in leaves]
    return jax.tree.unflatten(structure, [_used(leaf, used) for leaf, used in zip(taken, clients.used, strict=True)])


def put(clients: Any, indices: jax.Array, new: Any) -> Any:
    """``clients`` after the cohort's states are ``new``.

    Args:
      clients: as :func:`take` takes them.
      indices: int32[S], client indices; N in void slots, whose rows are dropped.
      new: leaves [S, ...].
    """
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
        return on_host(kept(clients, None).leaves)
    leaves, structure = jax.tree.flatten(on_host(clients.leaves))

    def used(leaf: np.ndarray, used: Any) -> np.ndarray:
        if not isinstance(used, np.dtype) or leaf.dtype == used:
            return leaf
        return (leaf.view(jnp.bfloat16) if leaf.dtype == np.uint16 else leaf).astype(used)

    return jax.tree.unflatten(structure, [used(leaf, of) for leaf, of in zip(leaves, clients.used, strict=True)])


def moved(before: Rows, sent: Rows) -> Rows:
    """``sent`` with the rows of those clients that are in ``before`` too, whose rows there are newer.

    Both have ``indices``.
    """
    places, found = _places(before.indices, sent.indices)
    found = found & (sent.indices < UNUSED)

    def patched(old: jax.Array, new: jax.Array) -> jax.Array:
        mask = found.reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(mask, old.at[places].get(mode="clip"), new)

    return sent.replace(leaves=jax.tree.map(patched, before.leaves, sent.leaves))


def _places(own: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where clients are among those of a window, and whether they are."""
    places = jnp.searchsorted(own, wanted)
    return places, own.at[places].get(mode="clip") == wanted


def _is_key(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _kept(leaf: jax.Array, dtype: str | None) -> jax.Array:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    real = jnp.issubdtype(leaf.dtype, jnp.floating)
    if dtype is None or not real or leaf.dtype.itemsize <= jnp.dtype(dtype).itemsize:
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
        return jax.random.wrap_key_data(leaf, impl=used)  # type: ignore[no-any-return]
    if leaf.dtype == used:
        return leaf
    if leaf.dtype == jnp.uint16:
        leaf = lax.bitcast_convert_type(leaf, jnp.bfloat16)
    return leaf.astype(used)
