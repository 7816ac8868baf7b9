"""Checks of values: every message has the value, the rule and the fix."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

INT32_MAX = 2**31 - 1
LARGEST_SEED = 2**32 - 1  # of jax.random.key, which takes others modulo 2^32

_LISTED = 3000  # characters; all functions of optax are fewer
_COLUMNS = ("seed", "round")  # of every table of results
_LONGEST_NAME = 200
_UNFIT = "$\\"  # a figure takes $ for mathematics, a zip file on Windows \ for /


def close(name: Any, known: Collection[str]) -> list[str]:
    """What a name is most likely to mean among those that are known; empty where nothing is near.

    What ends in the same word comes before the nearest spelling, and a client's before others: who says
    ``"learning_rate"`` means ``"client_optimizer.learning_rate"``, not ``"server_learning_rate"``.
    """
    asked = str(name).lower()
    if "server" in asked:
        known = [one for one in known if "client" not in one]
    end = re.sub(r"(^|_)lr$", r"\1learning_rate", asked.rpartition(".")[2])
    ends = {one: one.rpartition(".")[2].lower() for one in known}
    same = sorted((one for one in known if ends[one] == end), key=lambda one: "client" not in one)
    if not same and end == "learning_rate" and "client_optimizer" in known:
        same = ["client_optimizer.learning_rate"]  # of arguments: they have the optimiser alone
    same += [one for one in known if ends[one] == f"client_{end}"]
    near = same[:1] or difflib.get_close_matches(str(name), known, n=1)
    if not near:
        nearest = difflib.get_close_matches(end, ends.values(), n=1)
        near = [one for one in known if ends[one] in nearest][:1]
    if not near:
        with_word = [one for one in known if end in ends[one].split("_")]  # "test" for "test_fraction"
        near = with_word if len(with_word) == 1 else []
    return near


def suggest(name: Any, known: Collection[str]) -> str:
    """The end of an error message: the nearest spelling of ``name`` among ``known``, and all of them."""
    hint = "".join(f"did you mean {near!r}? " for near in close(name, known))
    listed = ", ".join(known)
    return f"{hint}known: {listed if len(listed) <= _LISTED else listed[:_LISTED] + '...'}"


def shown(value: Any) -> str:
    """How an error message shows a value: its ``repr`` in one line, cut where it is long.

    What holds arrays of several rows is shown with their shapes.
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of many thousand digits
        return _length(value) if isinstance(value, int) else f"{type(value).__name__}(...)"
    if "\n" in text:
        with contextlib.suppress(Exception):  # keys that cannot be sorted, and whatever a class of one's own raises
            text = text if hasattr(value, "dtype") else repr(_with_shapes(value))
        text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:200]}..."


class _Text(str):
    """A text that stands in a pytree's ``repr`` without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def shape(leaf: Any) -> str:
    """``float32[60, 10]``, without quotes within a pytree."""
    return _Text(f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}")


def shapes(tree: Any) -> str:
    """A pytree with the shapes of its arrays."""
    return shown(_with_shapes(tree))


def _with_shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: shape(leaf) if hasattr(leaf, "dtype") else leaf, tree)


def wrong_name(name: Any) -> str | None:
    """What is wrong with the name of a metric or a record of rounds; None for nothing.

    It becomes the name of a member in a file, of a column in a table and of an axis in a figure.
    """
    if not isinstance(name, str):
        return "names must be text"
    if name in _COLUMNS:
        return "a name the run records itself: choose another"
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or set(name) & set(_UNFIT):
        return f"a name must have 1 to {_LONGEST_NAME} printable characters, without $ and \\: choose another"
    return None


# What people look for among the arguments of a function of a model, and where it is.
_SOUGHT = {
    "num_classes": ", it is the model's: fedjax_sim.models.MLP(num_classes=3), or flax.linen.Dense(3) at its end",
    "loss": ", a loss of your own is a task of its own: fedjax_sim.functions(init, losses)",
}


def wrong_call(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> str:
    """The error message of a call of ``name`` that does not fit a signature; ``error`` is what Python says of it."""
    parameters = signature.parameters
    parts = [key if one.default is one.empty else f"{key}={one.default!r}" for key, one in parameters.items()]
    places = [key for key, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]
    if len(places) < len(parts):
        parts.insert(len(places), "*")
    unknown = [key for key in kwargs if key not in parameters]
    named = [key for key in parameters if key not in places and key not in kwargs]
    required = [key for key in named if parameters[key].default is inspect.Parameter.empty]
    by_name = required or (named if len(args) > len(places) else [])
    wrong = str(error)
    if unknown:
        near = "".join(
            f", it is of the optimiser: {one.partition('.')[0]}=fedjax_sim.optim.sgd(0.1)"  # a path of configurations
            if "." in one
            else f", did you mean {one!r}?"
            for one in close(unknown[0], parameters)
        )
        wrong = f"has no argument {unknown[0]!r}{near or _SOUGHT.get(unknown[0], '') * ('model' in parameters)}"
    elif args and by_name:
        wrong += f": what comes after * is given by its name, {name}({by_name[0]}=...)"
    return f"{name}(...): {wrong}; its signature is ({', '.join(parts)})"


def is_concrete(value: Any) -> bool:
    """Whether every leaf of ``value`` is a number or array whose value can be looked at now."""
    return all(
        isinstance(leaf, (bool, int, float, np.ndarray, np.generic, jax.Array))
        and not isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(value)
    )


def is_float(leaf: Any) -> bool:
    """Whether it is a real number or an array of them, of which there are derivatives; integers are not."""
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, float) or (dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating)))


_collected: contextvars.ContextVar[list[jax.Array] | None] = contextvars.ContextVar("conditions", default=None)


@contextlib.contextmanager
def conditions() -> Iterator[list[jax.Array]]:
    """Collects what checks cannot say of traced values: a bool scalar each, true where the check would pass."""
    found: list[jax.Array] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def demand(condition: Callable[[], Any]) -> None:
    """A check of traced values: what ``condition`` returns goes to :func:`conditions`, where somebody collects them."""
    found = _collected.get()
    if found is not None:
        found.append(jnp.all(condition()))


def check_real(
    what: str,
    value: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    optional: bool = False,
    infinite: bool = False,
    host: bool = False,
) -> None:
    """Checks that a hyper-parameter is finite and in [low, high], or with ``above`` and ``below`` between these.

    It must be so in the float type of programs too, unless it stays on the ``host``: 1e39 is infinite in float32, and
    1e-60 is 0. Of traced values the type is checked, and the rest left to :func:`conditions`.

    The value is a number, an array or a pytree of them, ``optional`` None too, ``infinite`` infinity too. Messages call
    it ``what``, ``"fedprox(mu=...)"``: a TypeError for no number, else a ValueError.
    """
    if value is None and not optional:
        raise TypeError(f"{what} is None: {_REAL}")
    ends = (low, high, above, below)
    bounds = "" if ends.count(None) == len(ends) else f" {_interval(*ends)}"

    def inside(array: Any) -> Any:
        met = True
        if low is not None:
            met = met & (array >= low)
        if high is not None:
            met = met & (array <= high)
        if above is not None:
            met = met & (array > above)
        return met if below is None else met & (array < below)

    def finite(array: Any, numpy: Any) -> Any:
        return ~numpy.isnan(array) if infinite else numpy.isfinite(array)

    for leaf in jax.tree.leaves(value):
        if type(leaf) is object:
            continue
        traced = isinstance(leaf, jax.core.Tracer)
        if isinstance(leaf, bool) or not isinstance(leaf, (int, float, np.ndarray, np.generic, jax.Array)):
            raise TypeError(f"{what} is {leaf!r}: {_REAL}")
        array: Any = leaf if traced else _as_array(what, leaf)
        whole = jnp.issubdtype(array.dtype, jnp.integer)
        if not (whole or jnp.issubdtype(array.dtype, jnp.floating)):
            raise TypeError(f"{what} is an array of {array.dtype}: {_REAL}")
        if traced:
            real = array.astype(jnp.result_type(float)) if whole else array
            demand(lambda real=real: finite(real, jnp) & inside(real))  # type: ignore[misc]
            continue
        if not np.all(finite(array, np)):
            raise ValueError(f"{what} is {leaf}: it must be finite{bounds and ' and in' + bounds}")
        if not np.all(inside(array)):
            raise ValueError(f"{what} is {leaf}: it must be in{bounds}")
        if host:
            continue
        held = in_program(array)
        if np.any(np.isinf(held) & np.isfinite(array)):
            largest = float(jnp.finfo(held.dtype).max)
            raise ValueError(f"{what} is {leaf}, infinite in {held.dtype}: it must be at most {largest:.8g}")
        if not np.all(inside(held)):
            wrong = held[~inside(held)].flat[0]
            raise ValueError(f"{what} is {leaf}, which is {wrong} in {held.dtype}: it must be in{bounds}")


_REAL = "it must be a real number or an array of them"


def array_of(what: str, value: Any) -> Any:
    """A list of numbers, or of rows of them, as an array (ValueError for none); anything else as it is."""
    try:
        return jnp.asarray(value) if isinstance(value, (list, tuple)) else value
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {shown(value)}: it must be numbers, in rows of one length") from None


def _as_array(what: str, leaf: Any) -> np.ndarray:
    try:
        return np.asarray(float(leaf)) if isinstance(leaf, int) else np.asarray(leaf)
    except OverflowError:
        raise ValueError(f"{what} is {_length(leaf)}: it must be finite as a float, at most 1.8e308") from None


def _length(number: int) -> str:
    return f"an integer of about {number.bit_length() * 0.30103:.0f} digits"


def _interval(low: float | None, high: float | None, above: float | None, below: float | None) -> str:
    left = f"({above:g}" if above is not None else "(-inf" if low is None else f"[{low:g}"
    right = f"{below:g})" if below is not None else "inf)" if high is None else f"{high:g}]"
    return f"{left}, {right}"


def in_program(array: np.ndarray) -> np.ndarray:
    """``array`` as programs hold it: what is too small for a float of full precision is 0 there."""
    real = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else np.float64
    dtype = jax.dtypes.canonicalize_dtype(real)
    with np.errstate(over="ignore", under="ignore"):
        held = array.astype(dtype)
    return np.where(np.abs(held) < jnp.finfo(dtype).tiny, np.zeros_like(held), held)


class Found(int):
    """An integer that was not given but found from other values, and is found again where these change.

    For a bound: one of other values may be too small without a word.
    """


def check_count(what: str, value: Any, *, low: int = 1, high: int | None = None) -> None:
    """Checks that ``value`` is an integer (TypeError) of at least ``low`` and at most ``high`` (ValueError)."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} is {value!r}: it must be an integer of at least {low}")
    if value < low:
        raise ValueError(f"{what} is {shown(value)}: it must be at least {low}")
    if high is not None and value > high:
        raise ValueError(f"{what} is {shown(value)}: it must be at most {high}")


def check_scalar(what: str, value: Any) -> None:
    """Checks that ``value`` is one number and not a stack of them (ValueError)."""
    if np.shape(value) != ():
        raise ValueError(
            f"{what} has shape {np.shape(value)}: a run takes one number; to run several settings side by side use "
            "jax.vmap(lambda value: train(fedjax_sim.paths.replace(algorithm, {path: value}), dataset, key))(values)"
        )


def check_flag(what: str, value: Any) -> None:
    """Checks that ``value`` is True or False (TypeError)."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}: it must be True or False")


def check_choice(what: str, value: Any, known: Collection[str]) -> None:
    """Checks that ``value`` is one of the words ``known`` (ValueError)."""
    if value not in known:
        raise ValueError(f"{what} is {shown(value)}: {suggest(value, known)}")


def check_metric(what: str, value: Any) -> None:
    """Checks that ``value`` is text, as the name of a metric is (TypeError)."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {shown(value)}: give the name of a metric, 'test_loss'")


def row_of(client_id: int, ids: np.ndarray) -> int:
    """Where a client is among the clients in the order of their ``ids``, ascending; KeyError for another id."""
    row = int(np.searchsorted(ids, client_id))
    if row == len(ids) or ids[row] != client_id:
        raise KeyError(f"no client has the id {client_id!r}: the {len(ids)} ids are {ids[0]} to {ids[-1]}")
    return row


def is_real(dtype: Any) -> bool:
    """Whether a dtype is one of real numbers or truth values, bfloat16 and the like among them."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def numeric_dtype(name: Any) -> Any:
    """The dtype of that name, one of numbers or truth values: no text of a gigabyte an entry, no Python objects."""
    with contextlib.suppress(Exception):  # numpy parses names: a SyntaxError, a KeyError, ...
        dtype = jnp.dtype(name)
        numeric = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
        if numeric and isinstance(name, (str, type, np.dtype)):
            return dtype
    raise ValueError(f"unknown dtype {shown(name)}: give a name like 'float32', 'bfloat16' or 'int32'")


def integer_array(what: str, value: Any, axes: str) -> Any:
    """``value`` as a host array of integers that fit int32, with two ``axes``, ``"[rounds, N]"``; traced as it is."""
    traced = isinstance(value, jax.core.Tracer)
    try:
        array = value if traced else np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is {value!r}: all rows must be equally long, {axes}") from error
    if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer):
        given = repr(value) if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"{what} is {given}: it must be an array of integers {axes}")
    if not traced and array.size and int(array.max()) > INT32_MAX:
        raise ValueError(f"{what} has the entry {array.max()}: entries must be at most {INT32_MAX}")
    return array


def as_int32(array: Any, other: int) -> jax.Array:
    """``array`` in int32, with ``other`` in the place of integers that do not fit."""
    array = jnp.asarray(array)
    cast: jax.Array = array.astype(jnp.int32)
    if array.dtype == jnp.int32 or array.dtype.itemsize < 4:
        return cast
    fits = (cast.astype(array.dtype) == array) & ((cast >= 0) | jnp.issubdtype(array.dtype, jnp.signedinteger))
    return jnp.where(fits, cast, other)


def as_plain(value: Any) -> Any:
    """Arrays, numbers, text and what is made of them as strict JSON can hold it: None for what is not finite."""
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0):
        return [as_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return float(value) if np.isfinite(value) else None


def as_seeds(seeds: Any) -> Any:
    """Seeds, integers of JAX as numpy's; ``TypeError`` for keys (PRNGKey(1) would be seeds 0 and 1), traced values."""
    if isinstance(seeds, jax.core.Tracer):
        raise TypeError("seeds are traced: inside jit, grad or vmap call make_train(...)'s function with keys")
    dtype, shape = getattr(seeds, "dtype", None), np.shape(seeds) if hasattr(seeds, "dtype") else ()
    raw = dtype == np.uint32 and (len(shape) > 1 or shape == (2,))
    if raw or (dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)):
        raise TypeError(
            f"seeds is a key or keys of jax.random, {dtype}{list(shape)}: give an integer or several, range(5); the "
            "run of seed s has the key jax.random.key(s) (two seeds in an array of uint32: .tolist())"
        )
    integers = isinstance(seeds, jax.Array) and jnp.issubdtype(seeds.dtype, jnp.integer)
    return np.asarray(seeds).reshape(-1) if integers else seeds
