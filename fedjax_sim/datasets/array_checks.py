"""What a user gives as an array, as one of numpy's that holds what was written: nothing hidden, merged or rounded.

numpy itself makes ``['1', '1']`` of ``[1, "1"]``, the text ``'nan'`` of a missing name, floats of integers that no one
type of integer holds, and drops the mask of a masked array.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.core.values import shown
from fedjax_sim.datasets.flat import default_float

_MAX_BYTES = 2**33  # of a column's texts
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str", "S": "bytes"}
_ALONE = [{"bool"}, {"int"}, {"float"}, {"int", "float"}, {"str"}]


def host_array(what: str, values: Any) -> np.ndarray:
    """``values``, an array of any package, a column of a table or nested lists as a host array; messages name ``what``.

    An array of Python objects is looked into as a list is.

    Raises:
      ValueError: missing or masked values (the row is named), rows of different shapes, integers beyond 64 bits, text
        that numpy cannot hold.
      TypeError: entries of several types, ``[1, "1"]``, or of one that is no number and no text; no array at all.
    """
    if hasattr(values, "detach"):
        return _of_torch(what, values)
    if hasattr(values, "combine_chunks"):  # arrow's: only in one piece do tensors tell their shape
        values = values.combine_chunks()
    hidden, how = _missing(values)
    if hidden.any():
        raise missing_values(what, hidden, how)
    if not hasattr(values, "__array__") and isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        return _of_list(what, list(values))
    if hasattr(values, "storage"):  # arrow's: a tensor is there though a number in it is not
        inner = values.storage
        while hasattr(inner, "values"):
            inner = inner.flatten()
        if inner.null_count:
            raise ValueError(
                f"{what} has {inner.null_count} missing values within its rows: fill them in or drop these"
            )
    if hasattr(values, "to_numpy_ndarray"):
        return np.asarray(values.to_numpy_ndarray())
    array = np.asarray(values.to_numpy() if hasattr(values, "isna") else values)
    if array.dtype.kind in "OT" and array.ndim:  # as pandas has them, and numpy's texts of any length
        return _of_list(what, array.tolist())
    if array.dtype.kind == "O" and array.ndim == 0:
        known = {
            "collect": "what its .collect() returns",
            "toarray": "what its .toarray() returns",
            "dataset": "its .dataset",
        }
        fix = next((fix for name, fix in known.items() if hasattr(values, name)), "an array, a list or a table")
        raise TypeError(f"{what} is a {type(values).__name__}: give {fix}")
    return array


def _of_torch(what: str, tensor: Any) -> np.ndarray:
    """A tensor of torch, wherever it is and whatever it remembers."""
    try:
        return np.asarray(tensor.numpy(force=True))
    except (TypeError, RuntimeError, NotImplementedError) as error:  # bfloat16, sparse ones, no values at all
        text = str(error).partition("\n")[0]
        raise TypeError(
            f"{what} is a tensor that numpy cannot hold ({text}): .float() or .to_dense() may do"
        ) from error


def missing_values(what: str, rows: np.ndarray, kind: str = "missing") -> ValueError:
    """The error for ``rows``, bool[n, ...], of which some are True."""
    first = int(np.flatnonzero(rows.reshape(rows.shape[0], -1).any(axis=1))[0]) if rows.ndim else 0
    fill = ", with .filled(value)" if kind == "masked" else ""
    return ValueError(
        f"{what} has {int(rows.sum())} {kind} values, first in row {first} (counted from 0): drop these rows or fill "
        f"them in{fill}"
    )


def exact_floats(what: str, array: np.ndarray) -> np.ndarray:
    """Integers as floats of the default type, which must hold each of them."""
    kind = np.dtype(default_float())
    most = 2 ** (np.finfo(kind).nmant + 1)
    if array.dtype.kind in "iu":
        large = np.flatnonzero(((array > most) | (array < -most)).reshape(array.shape[0], -1).any(axis=1))
        wide = array[large].astype(object)  # Python compares integers and floats exactly, numpy does not
        wrong = (array[large].astype(kind).astype(object) != wide).astype(bool)
        for place in np.argwhere(wrong)[:1]:
            raise ValueError(
                f"{what} has the integer {wide[tuple(place)]} in row {large[place[0]]}, which {kind} would round: "
                "scale it, make it a column of floats if that will do, or keep it apart from floats"
            )
    return array.astype(kind)


def _missing(values: Any) -> tuple[np.ndarray, str]:
    """Which entries are masked, or what pandas, polars and pyarrow call missing; and which of the two."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values), "masked"
    ask = getattr(values, "isna", None) or getattr(values, "is_null", None)
    return np.asarray(ask() if callable(ask) else False), "missing"


def _of_list(what: str, values: list[Any]) -> np.ndarray:
    types = set(map(type, values))
    if any(hasattr(kind, "detach") for kind in types):
        values = [_of_torch(what, value) if hasattr(value, "detach") else value for value in values]
    if any(hasattr(kind, "getpalette") for kind in types):  # PIL's: as arrays those of a palette are places in it
        for row in [row for row, value in enumerate(values) if getattr(value, "mode", None) == "P"][:1]:
            raise ValueError(f"{what} has an image of a palette in row {row}: image.convert('RGB') has its colours")
    kinds = _kinds(what, values)
    if "missing" in kinds or (len(kinds) > 1 and kinds not in _ALONE):
        raise _mixture(what, values)
    if kinds == {"str"}:
        return _texts(what, values)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":  # arrays of arrays, as Arrow has lists of lists
            array = np.asarray(_lists(values))
    except ValueError as error:
        raise _ragged(what) from error
    if array.dtype.kind == "O" and not kinds & {"int", "float", "bool"}:
        raise TypeError(
            f"{what} has entries of type {', '.join(sorted(kinds))}, first {shown(values[0])}: turn them into numbers"
        )
    return _integers(what, values) if kinds == {"int"} and array.dtype.kind not in "iu" else array


def _kinds(what: str, values: Sequence[Any]) -> set[str]:
    """The kinds of the entries of nested lists; over numbers at the speed of ``set``."""
    found: set[str] = set()
    kinds: set[Any] = set(map(type, values))
    for kind in kinds:
        name = _name(kind)
        if name == "list":
            found = found.union(*(_kinds(what, value) for value in values if type(value) is kind))
        elif kind is np.ndarray:
            found |= {_kind_of(dtype) for dtype in {value.dtype for value in values if type(value) is kind}}
        elif name == "array":
            for row, value in enumerate(values):
                if type(value) is kind:
                    hidden, how = _missing(value)
                    if hidden.any():
                        raise missing_values(what, np.arange(row + 1) == row, how)
                    found.add(_kind_of(np.asarray(value).dtype))
        else:
            found.add(name)
    if "object" in found:  # arrays of objects: look into them
        found -= {"object"}
        for value in values:
            inner = np.asarray(value) if hasattr(value, "__array__") else np.empty(0)
            if inner.dtype.kind == "O":
                found |= _kinds(what, inner.ravel().tolist())
    return found


@functools.cache
def _name(kind: type[Any]) -> str:
    """What a type of entries is called: one name for Python's and numpy's of a kind, "list" and "array" for more."""
    names = {bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes", list: "list", tuple: "list"}
    for base, name in names.items():
        if issubclass(kind, base):
            return name
    if issubclass(kind, np.generic):
        return _kind_of(np.dtype(kind))
    if hasattr(kind, "__array__"):
        return "array"
    return "missing" if kind.__name__ in ("NoneType", "NAType", "NaTType") else kind.__name__


def _kind_of(dtype: np.dtype) -> str:
    # bfloat16 and its like are of kind V
    return _KINDS.get(dtype.kind, "float" if "float" in dtype.name else dtype.name)


def _mixture(what: str, values: list[Any]) -> Exception:
    """Names the first entry that is missing, or else the first that is of another kind than the first one."""
    of_row = [_kinds(what, [value]) for value in values]
    found = set().union(*of_row)
    missing = [
        "missing" in kinds or ("str" in found and isinstance(value, (float, np.floating)) and bool(np.isnan(value)))
        for kinds, value in zip(of_row, values, strict=True)
    ]
    if any(missing):
        return missing_values(what, np.array(missing))
    other = next((row for row, kinds in enumerate(of_row) if kinds != of_row[0]), 0)
    return TypeError(
        f"{what} mixes {', '.join(sorted(found))} (row 0 has {shown(values[0])}, row {other} {shown(values[other])}): "
        "make it all numbers or all strings"
    )


def _ragged(what: str) -> ValueError:
    return ValueError(f"{what} has lists of different lengths: pad them to one length")


def _texts(what: str, values: list[Any]) -> np.ndarray:
    flat = all(issubclass(kind, str) for kind in set(map(type, values)))
    texts = values if flat else np.asarray(values, dtype=object).ravel().tolist()
    if not flat and not all(isinstance(text, str) for text in texts):  # lists: objects may be ragged
        raise _ragged(what)
    if "\0" in "".join(texts):
        for place in (place for place, text in enumerate(texts) if text.endswith("\0")):
            row = place * len(values) // len(texts)
            raise ValueError(f"{what} has {shown(texts[place])} in row {row}: numpy's texts lose a NUL at their end")
    longest = max(map(len, texts))
    if 4 * longest * len(texts) > _MAX_BYTES:  # numpy gives every entry the length of the longest
        raise ValueError(
            f"{what} has {len(texts)} texts and one of {longest} characters: turn them into numbers or leave it out"
        )
    return np.asarray(values)


def _lists(value: Any) -> Any:
    inner = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind == "O" else value
    return [_lists(one) for one in inner] if isinstance(inner, list) else inner


def _integers(what: str, values: list[Any]) -> np.ndarray:
    """Integers that numpy finds no type for by itself."""
    objects = np.asarray(values, dtype=object)
    low, high = min(objects.flat), max(objects.flat)
    for kind in (np.int64, np.uint64):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return objects.astype(kind)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    row = next(place[0] for place, value in np.ndenumerate(objects) if not least <= value <= most)
    raise ValueError(
        f"{what} has {shown(values[row])} in row {row}, more than integers of 64 bits hold: give numbers as floats, "
        "names of clients as strings"
    )
