"""What is recorded at an evaluation, and what a record may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.values import is_real, shown, wrong_name

_REAL = "it must be real numbers or truth values; of complex ones record .real and .imag, or their absolute value"


def all_metrics(train: dict[str, jax.Array], test: dict[str, jax.Array] | None, given: Any) -> dict[str, jax.Array]:
    """What is recorded at an evaluation, of the training data, the test data and what ``evaluate`` returned.

    Raises:
      ValueError: ``evaluate`` returned a name that is taken or cannot be one, or two metrics of the task clash.
      TypeError: it returned something else than arrays by name.
    """
    held_out = {f"test_{name}": value for name, value in (test or {}).items()}
    if train.keys() & held_out.keys():
        name = min(train.keys() & held_out.keys())
        raise ValueError(f"the task has a metric {name!r}, as another one is called on the test data: rename it")
    metrics = train | held_out
    if not isinstance(given, Mapping):
        raise TypeError(f"evaluate(...) returns {given!r}: it must return a mapping {{name: array}}")
    more = {name: _as_array(name, value) for name, value in given.items()}
    taken = {"data_loss", "test_data_loss", *metrics}
    for name in more:
        rule = "a name the run records itself: choose another" if name in taken else wrong_name(name)
        if rule is not None:
            raise ValueError(f"evaluate(...) returns {shown(name)}, {rule}")
    return metrics | more


def check_recorded(metrics: Mapping[str, Any], rounds: Mapping[str, Any]) -> None:
    """Checks what a run will record, from its names and types: so that it can be kept, found by name and drawn.

    Args:
      metrics: of an evaluation.
      rounds: of every round: the run's own, what the algorithm reports and what the diagnostics measure.

    Raises:
      ValueError: a name that cannot be one, or a metric and a record of one name.
      TypeError: other things than real numbers and truth values.
    """
    for what, recorded in (("metric", metrics), ("record of every round", rounds)):
        for name, values in recorded.items():
            rule = wrong_name(name)
            if rule is not None:
                raise ValueError(f"the {what} {shown(name)}: {rule}")
            if not is_real(values.dtype):
                raise TypeError(f"the {what} {name!r} is {values.dtype}: {_REAL}")
    both = sorted(metrics.keys() & rounds.keys())
    if both:
        raise ValueError(
            f"a metric and a record of every round are both called {both[0]!r}, so history[{both[0]!r}] could be "
            "either: rename what evaluate=, the task, the algorithm's report or the diagnostic calls so"
        )


def _as_array(name: Any, value: Any) -> jax.Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    except OverflowError:  # a Python integer; JAX cuts the bits off one of numpy's
        array = jnp.int32(0)
    if array is None or not isinstance(name, str):
        raise TypeError(f"evaluate(...) returns {value!r} for {name!r}: it must return arrays or numbers by name")
    if not is_real(array.dtype):
        raise TypeError(f"evaluate(...) returns {shown(value)} for {name!r}: {_REAL}")
    if jnp.issubdtype(array.dtype, jnp.integer) and isinstance(value, (int, np.integer, np.ndarray)):
        held = jnp.iinfo(array.dtype)
        if np.any(np.asarray(value) < held.min) or np.any(np.asarray(value) > held.max):
            raise ValueError(f"evaluate(...) returns {shown(value)} for {name!r}, beyond {array.dtype}: return a float")
    return array
