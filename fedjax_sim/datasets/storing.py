"""From what a user gives to what is stored: every value is looked at once, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.datasets.flat import Flat
from fedjax_sim.datasets.from_arrays import Given
from fedjax_sim.datasets.validate import check_alike, checked_classes, stored_leaf

_PIECE = 1 << 26  # bytes of examples that are looked at in one go
_ALIGNMENT = 64  # bytes; what JAX asks of host memory that it uses as it is

# From the pieces of a leaf, in the order of the clients and the type they are stored in, and the shape of them all,
# whatever the caller keeps of it; it has a dtype.
Keep = Callable[[Iterator[np.ndarray], tuple[int, ...]], Any]


class Stored(NamedTuple):
    """The training or the test part after its checks.

    Attributes:
      part: as it was given.
      examples: its pytree with what was kept of every leaf.
      classes: number of classes, or None.
    """

    part: Flat
    examples: Any
    classes: int | None


def stored_parts(given: Given, num_classes: int | None, keep: Keep) -> list[Stored]:
    """Checks the values of all parts: the training part and, where it has rows, the test part, in the same types.

    Args:
      given: what the user gave.
      num_classes: as the user said, or None.
      keep: see above.
    """
    parts = [("", given.train)]
    if given.test is not None and given.test.sizes.sum() > 0:
        check_alike(given.train.examples, given.test.examples)
        parts.append(("test ", given.test))
    classes = checked_classes([(what, _labels_of(part)) for what, part in parts], given.names, num_classes)
    found: list[Stored] = []
    types: list[Any] | None = None
    for what, part in parts:
        leaves, structure = jax.tree_util.tree_flatten_with_path(part.examples)
        kept = []
        for index, (path, leaf) in enumerate(leaves):
            name = f"{what}examples{jax.tree_util.keystr(path)}"
            as_label = classes is not None and leaf is part.examples["y"]
            like = None if types is None else types[index]
            shape = (int(part.sizes.sum()), *leaf.shape[1:])
            kept.append(keep(_pieces(name, leaf, part, as_label=as_label, like=like, names=given.names), shape))
        types = [one.dtype for one in kept]
        found.append(Stored(part, jax.tree.unflatten(structure, kept), classes))
    return found


def in_memory(pieces: Iterator[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """All pieces in one array of their own, which JAX can use on a CPU without another copy."""
    whole: np.ndarray | None = None
    first = 0
    for piece in pieces:
        if whole is None:
            whole = _aligned(shape, piece.dtype)
        whole[first : first + len(piece)] = piece
        first += len(piece)
    assert whole is not None
    return whole


def type_alone(pieces: Iterator[np.ndarray], shape: tuple[int, ...]) -> Any:
    """One row of zeros in the stored type, for data whose arrays stay where they are."""
    kind = [piece.dtype for piece in pieces][-1]
    return np.zeros((1, *shape[1:]), kind)


def _pieces(
    name: str, leaf: np.ndarray, part: Flat, *, as_label: bool, like: Any, names: np.ndarray
) -> Iterator[np.ndarray]:
    total = int(part.sizes.sum())
    step = max(1, _PIECE // max(1, leaf[:1].nbytes))
    for first in range(0, max(total, 1), step):
        here = slice(first, min(first + step, total))
        piece = leaf[here] if part.rows is None else leaf[part.rows[here]]
        stored = stored_leaf(name, piece, as_label=as_label, like=like, part=part, names=names, first=first)
        like = stored.dtype
        yield stored


def _labels_of(part: Flat) -> Flat:
    """The part with its labels alone, in order; unchanged where it has none."""
    if not (isinstance(part.examples, Mapping) and "y" in part.examples):
        return part
    return Flat({"y": part.examples["y"]}, part.sizes, part.rows).gathered()


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    aligned: np.ndarray = raw[start : start + size].view(dtype).reshape(shape)
    return aligned
