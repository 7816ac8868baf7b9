"""What the clients of a data set are called in the source that it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def named(data: T, names: Sequence[str]) -> T:
    """``data``, remembering the names of its clients in storage order.

    The memory sits on this object alone, as that of a recipe does: it is no part of the pytree, so programs are not
    compiled again for other names, and a copy (``replace``, ``reordered``, ``jax.tree.map``) has none.

    Args:
      data: the data set, on the device or the host.
      names: one for each client, unique.

    Raises:
      ValueError: another number of names, or a name used twice.
    """
    count: int = data.num_clients  # type: ignore[attr-defined]  # both kinds have it
    if len(names) != count or len(set(names)) != len(names):
        raise ValueError(f"{len(names)} names ({len(set(names))} different) for {count} clients: give each one")
    object.__setattr__(data, "_client_names", tuple(str(name) for name in names))
    return data


def client_names(data: Any) -> tuple[str, ...]:
    """The names of the clients in storage order: speaking roles, accounts, LEAF users, file names, table entries.

    Args:
      data: a data set that was read from a source with names, itself and not a copy; on the device or the host.

    Raises:
      ValueError: it has no names, or is a changed copy that forgot them.

    Example:
      >>> import numpy as np
      >>> from fedjax_sim.datasets import from_table
      >>> data = from_table({"who": ["rob", "ann", "rob"], "x": np.ones(3)}, client="who", x="x")
      >>> client_names(data)
      ('ann', 'rob')
    """
    names: tuple[str, ...] | None = getattr(data, "_client_names", None)
    if names is None:
        raise ValueError(
            f"{data!r} has no client names: it was not read from a source that has them, or is a changed copy (ask "
            "the data set that it was made from)"
        )
    return names
