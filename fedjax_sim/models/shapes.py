"""What a task returns for a few examples, known from its shapes: one number for each, before anything is compiled.

A step weights the examples of a batch one by one (padding counts 0), so a loss that is a mean already trains another
model, and no error follows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from fedjax_sim.core.mistakes import Impure, explained, mistake, stack, unchanged
from fedjax_sim.core.programs import keep_programs
from fedjax_sim.core.values import shape, shapes, shown, wrong_name
from fedjax_sim.models.calling import each_alone
from fedjax_sim.models.contract import Task


def check_values(task: Task, params: Any, examples: Any, *, training: bool) -> jax.ShapeDtypeStruct:
    """Checks that losses and metrics are one number for each example and the penalty is one; the losses' shape.

    Nothing is computed: the functions are traced with a few rows, and what was traced before is remembered. ``params``
    may be traced or shapes; of the ``examples`` the length does not matter. ``training`` needs parameters with a
    derivative, too. Raises TypeError or ValueError. What evaluates a model passes here first, so from here on compiled
    programs are kept.
    """
    keep_programs()
    if training:
        _check_params(task, params)
    rows = _rows(params, examples)
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), examples)
    key = (jax.eval_shape(jax.random.key, 0),) if training else ()
    with _of(task, "losses"), each_alone(rows):
        losses = _returned(task, "losses", params, some, *key)
        _check_each(task.called("losses"), losses, rows, "loss")
        if not jnp.issubdtype(losses.dtype, jnp.floating):
            raise TypeError(
                f"{task.called('losses')} returns {shape(losses)}: a loss needs a derivative, so it must be a real "
                "number: use .astype('float32')"
            )
    with _of(task, "metrics"):
        metrics = _returned(task, "metrics", params, some)
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"{task.called('metrics')} returns {shapes(metrics)}: it must return values by name, "
                f"{{'accuracy': array of {rows} for {rows} examples}}"
            )
        for name, values in metrics.items():
            rule = wrong_name("round" if name in ("loss", "data_loss") else name)
            if rule is not None:
                raise ValueError(f"{task.called('metrics')} returns a value for {shown(name)}: {rule}")
            _check_each(f"{task.called('metrics')}, {name!r},", values, rows, "number")
    with _of(task, "penalty"):
        penalty = _returned(task, "penalty", params)
        if penalty is not None and getattr(penalty, "shape", None) != ():
            raise ValueError(
                f"{task.called('penalty')} returns {shapes(penalty)}: it must return one number (or None for no "
                "penalty): take the sum of its entries, jnp.sum(...)"
            )
    if training and task.statistics(params) is not None:
        weights = jax.ShapeDtypeStruct((rows,), jnp.result_type(float))
        _returned(task, "losses_and_statistics", params, some, *key, weights)
    return losses


def _of(task: Task, function: str) -> contextlib.AbstractContextManager[None]:
    """Within, errors say where the function is written that a user gave as this one of the task's."""
    return explained(of=getattr(task, task.called(function).rpartition(".")[2]))


def _check_params(task: Task, params: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise TypeError(f"{task.called('init')} returns {shown(params)}: it must return arrays, the initial parameters")
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            # In complex numbers the gradient of JAX is the conjugate of the way up: steps against it climb.
            as_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
            fix = "have the real and the imaginary part as two arrays" if as_complex else "use .astype('float32')"
            raise TypeError(
                f"{task.called('init')} returns parameters of {shape(leaf)} {keystr(path)}: what is learned needs a "
                f"derivative, so it must be real numbers: {fix}"
            )


def _check_each(what: str, values: Any, rows: int, number: str) -> None:
    """Checks that ``values`` is the shape of one number for each of ``rows`` examples."""
    rule = f"for {rows} examples: it must return one {number} for each"
    if not isinstance(values, jax.ShapeDtypeStruct):
        raise TypeError(f"{what} returns {shapes(values)} {rule}, an array [{rows}]")
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise TypeError(f"{what} returns {shape(values)} {rule}, a real one: use .real, or jnp.abs(...)")
    if values.shape != (rows,):
        raise ValueError(f"{what} returns {shape(values)} {rule}, {values.dtype}[{rows}]: {_fix(values.shape, rows)}")


def _fix(shape: tuple[int, ...], rows: int) -> str:
    if shape == ():
        return "leave out .mean() or .sum(), a run weights and averages the examples itself"
    if shape == (rows, rows):
        broadcast = f"an array [{rows}, 1] was broadcast against one of [{rows}], often the model's output against y"
        return f"{broadcast}: take output[:, 0]"
    if shape == (rows, 1):
        return "drop its last axis, [:, 0]"
    if shape[0] == rows:
        axes = tuple(range(1, len(shape)))
        return f"take the mean or the sum over the other axes, .mean(axis={axes[0] if len(axes) == 1 else axes})"
    return "keep the first axis, that of the examples, and no other"


def _rows(params: Any, examples: Any) -> int:
    """How many examples to ask about: a number that is the length of no other axis, so that none passes for it."""
    taken = {size for leaf in jax.tree.leaves(params) for size in jnp.shape(leaf)}
    taken |= {size for leaf in jax.tree.leaves(examples) for size in leaf.shape[1:]}
    return next(rows for rows in itertools.count(5) if rows not in taken)


@functools.partial(jax.jit, static_argnums=1)
def _call(task: Task, function: str, *given: Any) -> Any:
    """One of the task's functions; jitted for its shapes alone, which JAX remembers of a jitted function."""
    names = ("params", "examples", "key", "weights")
    with unchanged(task.called(function), **dict(zip(names, given, strict=False))):
        return getattr(task, function)(*given)


def _returned(task: Task, function: str, *given: Any) -> Any:
    """The shapes of what one of the task's functions returns; if it fails, the message says what it was called with."""
    try:
        return _call.eval_shape(task, function, *given)
    except Impure:
        raise
    except Exception as error:
        names = ("params", "examples")  # a key may follow, which tells nothing
        called = f"{task.called(function)}({', '.join(names[: len(given)])})"
        were = " and ".join(f"{name} {shapes(value)}" for name, value in zip(names, given, strict=False))
        kind = TypeError if isinstance(error, TypeError) else ValueError
        said = mistake(error)
        failed = f"{said} (on {were})" if said else f"failed on {were}: {type(error).__name__}: {error}"
        texts = {text for frame, _ in stack(error) for text in frame.f_locals.values() if isinstance(text, str)}
        if len(given) > 1 and isinstance(given[1], Mapping) and given[1].keys() <= texts:
            failed += " (x, y = examples has the names in a dictionary: take examples['x'], examples['y'])"
        raise kind(f"{called} {failed}") from error
