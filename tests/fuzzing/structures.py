"""Changes of what a record's file holds: arrays of other names, shapes, types and values, other JSON about them."""

import io
import json
import random
import warnings
import zipfile
from typing import Any

import ml_dtypes
import numpy as np

Arrays = dict[str, np.ndarray]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 4, 5, 2**31, 2**32, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, float("nan"),
    float("inf"), "", "x", "a" * 999, "\ud800", "a\0b", "$\\x$", "_x", "space.grid", "loss", "clients", [], {}, [0],
    [[]], ["x"], [0, 0],
    [[0, 1, "evil", [1], "x"]], [[0, "x", 5]], [[9, 1, "loss", [], "x"]], [[0, 1, "loss", [], "x"]], [[0, 1, "why"]],
    {"x": 1}, {"name": "x"}, {"name": 3}, {"name": "algorithm.fedavg", "arguments": {}}, {"name": "space.random"},
    {"mapping": {}}, {"array": [1.0], "dtype": "float32"}, {"opaque": "x"}, {"loss": 1},
)  # fmt: skip
NAMES = (
    "evaluated", "about", "metrics/loss", "metrics/test_loss", "metrics/", "metrics", "metrics/cohort_size",
    "metrics/mine", "metrics/test_accuracy", "metrics/seed", "metrics/duration", "metrics/virtual_time",
    "metrics/$\\x$", "metrics/a/b", "rounds/loss", "rounds/mine", "rounds/duration", "rounds/virtual_time",
    "rounds/bytes_up", "rounds/round", "rounds/mu", "rounds/nonfinite_ids", "params/0", "params/1", "params/9",
    "params/x", "other/x", "x",
)  # fmt: skip
KINDS = (
    np.bool_, np.int8, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64, np.complex64, np.dtype(">f8"),
    np.dtype(">i4"), ml_dtypes.bfloat16, ml_dtypes.int4,
)  # fmt: skip
FILLS = (0, 1, -1, 2**31 - 1, 2**62, -(2**62), np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320)


def changed(data: bytes, rng: random.Random) -> bytes:
    """The file of a record with one to three changes of what is in it."""
    arrays, about = unpacked(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.5:
            _change_json(about, rng)
        else:
            _change_array(arrays, rng)
    return packed(arrays, about)


def unpacked(data: bytes) -> tuple[Arrays, dict[str, Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
            for name in archive.namelist()
        }
    return arrays, json.loads(arrays.pop("about").tobytes())


def packed(arrays: Arrays, about: dict[str, Any]) -> bytes:
    about = dict(about)
    if isinstance(about.get("dtypes"), dict):  # those of arrays that have been given such a type
        special = {name: str(array.dtype) for name, array in arrays.items() if array.dtype.kind == "V"}
        about["dtypes"] |= {name: kind for name, kind in special.items() if "V" not in kind}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, array in [*arrays.items(), ("about", np.frombuffer(json.dumps(about).encode(), np.uint8))]:
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", content.getvalue())
    return buffer.getvalue()


def _change_json(about: dict[str, Any], rng: random.Random) -> None:
    # One key of the top more often than one of the many below the description.
    key = rng.choice(list(about) or ["seeds"])
    places: list[tuple[Any, Any]] = [(about, key)]

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, below in items:
            places.append((node, key))
            walk(below)

    walk(about.get(key))
    node, key = rng.choice((places[0], rng.choice(places), rng.choice(places)))
    kind = rng.random()
    if isinstance(node, dict) and kind < 0.1:
        node.pop(key, None)
    elif isinstance(node, dict) and kind < 0.2:
        node[rng.choice(("x", "", "name", "arguments", "space", "seeds", "opaque"))] = node.pop(key, None)
    elif isinstance(node, list) and kind < 0.2:
        node.append(node[key])
    elif isinstance(node, list) and kind < 0.3:
        del node[key]
    else:
        node[key] = json.loads(json.dumps(rng.choice(VALUES)))


def _change_array(arrays: Arrays, rng: random.Random) -> None:
    if not arrays:
        return
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.randrange(7)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == 0:
            arrays[rng.choice(NAMES)] = array if rng.random() < 0.5 else arrays.pop(name)
        elif kind == 1 and rng.random() < 0.5:
            del arrays[name]
        elif kind <= 2:
            arrays[name] = _reshaped(array, rng)
        elif kind <= 4:
            to = np.dtype(rng.choice(KINDS))
            if array.dtype.kind != "V":
                arrays[name] = array.astype(to)
        elif array.dtype.kind in "biuf" and array.size:
            new = np.array(array)
            fill = rng.choice(FILLS)
            if new.dtype.kind in "biu" and isinstance(fill, float):
                fill = int(np.nan_to_num(fill, nan=-3, posinf=7, neginf=-7) % 100)
            if new.dtype.kind in "iu":
                fill = min(max(fill, int(np.iinfo(new.dtype).min)), int(np.iinfo(new.dtype).max))
            if rng.random() < 0.3:
                new[...] = fill
            elif rng.random() < 0.3:
                new = new[..., ::-1].copy()
            else:
                new.reshape(-1)[rng.randrange(new.size)] = fill
            arrays[name] = new


def _reshaped(array: np.ndarray, rng: random.Random) -> np.ndarray:
    shapes = [array[None], array[..., None], array.reshape(-1), np.stack([array] * 5, -1), array.T]
    if array.ndim:
        axis = rng.randrange(array.ndim)
        shapes += [np.concatenate([array, array], axis), array.take([], axis), array[:0]]
        shapes += [array[:-1].copy(), array.take(range(max(array.shape[axis] - 1, 0)), axis)]
    if array.size:
        shapes += [array.reshape(-1)[0].reshape(()), array.take(0, array.ndim - 1) if array.ndim else array]
    return np.array(rng.choice(shapes))
