"""Tables and data sets of pairs, of any package, as columns of numpy.

Nothing is imported for it. A table has a length and names, and gives a column by its name: pandas, polars, pyarrow,
Hugging Face, records of numpy. A data set of pairs has a length and gives (x, y) by number: torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.values import shown
from fedjax_sim.datasets.array_checks import exact_floats, host_array
from fedjax_sim.datasets.validate import check_room, integers_apart

Seen = dict[str, tuple[str, list[str]]]  # which part of the examples to the first table given for it, and its columns


def names_of(what: str, table: Any) -> dict[str, Any] | None:
    """The names of a table's columns as texts, and what it calls them; None for what is no table. A mapping is one.

    Raises:
      ValueError: two columns of one name.
      TypeError: a mapping of tables.
    """
    names: Any = table
    if not isinstance(table, Mapping):
        if not _gives_rows(table):
            return None  # and is asked for nothing: plans of polars and streams have no rows yet
        names = getattr(table, "column_names", None)
        names = getattr(table, "columns", None) if names is None else names
        names = getattr(getattr(table, "dtype", None), "names", None) if names is None else names
        if names is None or callable(names):
            return None
    found: dict[str, Any] = {}
    for name in names:
        if str(name) in found:
            raise ValueError(f"{what}: the table has two columns {shown(str(name))}: rename them")
        found[str(name)] = name
        if isinstance(table, Mapping) and not isinstance(table[name], Mapping) and names_of(what, table[name]):
            raise TypeError(
                f"{what}: {shown(name)} of the {type(table).__name__} is a table itself: give one table, or columns"
            )
    return found


def column_of(table: Any, name: Any) -> Any:
    """A column as the table has it."""
    if not isinstance(table, Mapping) and hasattr(table, "with_format"):
        # Hugging Face's. Its rows are Python's lists and its arrays float32. Arrow has the values as they are, but
        # images packed, and nothing of what a format or a function of the user's makes of them.
        if table.format["type"] is None and not hasattr(table.features[name], "decode_example"):
            return table.with_format("arrow", columns=[name])[:][name]
        return table[name][:]
    return table[name]


def _gives_rows(given: Any) -> bool:
    return hasattr(type(given), "__len__") and hasattr(type(given), "__getitem__")


def side_by_side(what: str, columns: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    """Columns of numbers, [n] or [n, k], as one array, in a type that holds what all have."""
    if not columns:
        raise ValueError(f"{what}: the table has no columns: give it one of numbers or more")
    parts = []
    for name, part in columns:
        if part.ndim > 2 or part.dtype.kind not in "biuf":
            raise ValueError(
                f"{what}: the column {name!r} is {part.dtype}{list(part.shape)}: only single numbers stand side by side"
            )
        parts.append(part if part.ndim == 2 else part[:, None])
    if integers_apart(part.dtype for part in parts) or any(part.dtype.kind == "f" for part in parts):
        parts = [
            exact_floats(f"{what}: the column {name!r}", part) if part.dtype.kind in "iu" else part
            for (name, _), part in zip(columns, parts, strict=True)
        ]
    return np.concatenate(parts, axis=1)


def as_examples(what: str, given: Any) -> Any:
    """``given``, or what it holds where it is a table, a mapping of columns, or a data set of pairs, (x, y)."""
    if isinstance(given, list) and given and isinstance(given[0], tuple) and given[0]:
        if getattr(given[0][0], "shape", ()):
            return _pairs(what, given)
        kinds = [np.asarray(part).dtype.kind for part in given[0] if np.ndim(part) == 0]
        if len(given[0]) == 2 and kinds == ["f", "i"]:
            raise TypeError(
                f"{what}: the first row is {shown(given[0])}: pairs (x, y) or two features? Give two arrays, (x, y), "
                "or one of the features, np.asarray([...])"
            )
        return given
    if isinstance(given, tuple | list | Mapping):
        return given
    names = names_of(what, given)
    if names is not None:
        if "x" not in names:
            raise TypeError(
                f"{what}: a {type(given).__name__} with the columns {shown(list(names))}: tasks read 'x' and 'y', "
                "so rename them, give (table[[..., ...]], table[...]), or all to from_table(table, client=..., y=...)"
            )
        return {text: column_of(given, name) for text, name in names.items()}
    arrays = ("__array__", "__array_interface__", "shape")
    if isinstance(given, Sequence) or any(hasattr(given, name) for name in arrays):
        return given
    return _pairs(what, given) if _gives_rows(given) and jax.tree_util.all_leaves([given]) else given


def leaf_of(what: str, given: Any, key: str, seen: Seen) -> np.ndarray:
    """An array of examples, or the columns of a table side by side: those of the first that was ``seen`` as ``key``.

    Raises:
      ValueError: other columns, or another order of them, in which one feature would pass for another.
    """
    names = None if isinstance(given, Mapping) else names_of(what, given)
    if names is None:
        return host_array(what, given)
    first, wanted = seen.setdefault(key, (what, list(names)))
    if list(names) != wanted:
        raise ValueError(
            f"{what} has the columns {shown(list(names))} and {first} {shown(wanted)}: give all tables the same "
            "columns in the same order, for instance table[first_table.columns]"
        )
    columns = [(text, column_of(given, name)) for text, name in names.items()]
    return side_by_side(what, [(text, host_array(f"{what}: the column {text!r}", one)) for text, one in columns])


def _pairs(what: str, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    rows = []
    for number in range(len(dataset)):
        try:
            row = dataset[number]
        except KeyError as error:
            raise TypeError(f"{what} is a {type(dataset).__name__}: it has no row {number}") from error
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise TypeError(
                f"{what}: row {number} of the {type(dataset).__name__} is {shown(row)}: rows are pairs (x, y)"
            )
        if number == 0:
            check_room(what, len(dataset), host_array(f"{what}['x']", [row[0]]).nbytes)
        rows.append(row)
    x, y = zip(*rows, strict=True) if rows else ((), ())
    return host_array(f"{what}['x']", list(x)), host_array(f"{what}['y']", list(y))
