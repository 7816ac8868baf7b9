"""Tasks without a flax model: quadratic clients, and anyone's own functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_real
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.task.base import Task


class Quadratic(Task):
    """Quadratic clients, whose "examples" are pairs (H, e): loss(x) = 1/2 x^T H x - e^T x (+ c, where there is a "c").

    With one example (or equal copies) a client, F_i(x) = 1/2 x^T H_i x - e_i^T x (Wang et al. 2020, eq. 27).

    Args:
      start: the initial value of every coordinate.
    """

    start: Any = 0.0

    def checked(self) -> Quadratic:
        check_real("quadratic(start=...)", self.start)
        return self

    def check(self, dataset: FederatedDataset) -> None:
        if not (isinstance(dataset.examples, dict) and {"H", "e"} <= dataset.examples.keys()):
            raise ValueError("quadratic needs examples {'H': [n, d, d], 'e': [n, d]}: see datasets.quadratics")

    def init(self, key: jax.Array, dataset: FederatedDataset) -> jax.Array:
        e = dataset.examples["e"]
        return jnp.broadcast_to(jnp.asarray(self.start).astype(e.dtype), e.shape[1:])

    def losses(self, params: jax.Array, examples: Any, key: jax.Array | None = None) -> jax.Array:
        curvature = jnp.einsum("i,bij,j->b", params, examples["H"], params)
        losses: jax.Array = curvature / 2 - examples["e"] @ params
        return losses + examples["c"] if "c" in examples else losses


class Functions(Task):
    """A task from plain functions; they are recorded as opaque in a description.

    They must not close over traced values, which a derivative could not reach: write a subclass of :class:`Task` with
    those values as fields, or pass them through the data or ``initial_params``.

    Examples come B at a time, B whatever suits the hardware; some may be padding, which the run weights by 0. So losses
    and metrics are one number for each example, never a mean over them; a run refuses anything else.

    Args:
      init_function: ``init_function(key) -> params``, a pytree of real arrays.
      losses_function: ``losses_function(params, examples) -> [B]``; examples is what the data set holds, often a dict
        ``{"x": [B, ...], "y": [B]}``.
      metrics_function: ``metrics_function(params, examples) -> {name: [B]}``, or None.
      penalty_function: ``penalty_function(params) -> scalar``, added to every client's mean loss, or None.
      outputs_function: ``outputs_function(params, examples) -> [B, ...]``, what the model says of each example, for
        methods that ask for it; or None.
      features_function: ``features_function(params, examples) -> [B, D]``, what its last layer receives, likewise.

    Example:
      >>> import jax, jax.numpy as jnp, fedjax_sim as fjs
      >>> task = fjs.functions(
      ...     lambda key: {"w": jnp.zeros((3,))},
      ...     lambda params, examples: (examples["x"] @ params["w"] - examples["y"]) ** 2,
      ... )
      >>> task.losses({"w": jnp.ones((3,))}, {"x": jnp.ones((2, 3)), "y": jnp.array([3.0, 1.0])}).tolist()
      [0.0, 4.0]
    """

    init_function: Callable[[jax.Array], Any] = static()
    losses_function: Callable[[Any, Any], jax.Array] = static()
    metrics_function: Callable[[Any, Any], dict[str, jax.Array]] | None = static(default=None)
    penalty_function: Callable[[Any], jax.Array] | None = static(default=None)
    outputs_function: Callable[[Any, Any], jax.Array] | None = static(default=None)
    features_function: Callable[[Any, Any], jax.Array] | None = static(default=None)

    def checked(self) -> Functions:
        for name in _GIVEN:
            function, optional = getattr(self, name), name not in ("init_function", "losses_function")
            if not (callable(function) or (optional and function is None)):
                raise TypeError(f"functions({name}={function!r}): give a function{' or None' if optional else ''}")
            if function is not None:
                _check_takes(name, function)
        return self

    def called(self, function: str) -> str:
        return f"{function}_function"

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        return self.init_function(key)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return self.losses_function(params, examples)

    def outputs(
        self, params: Any, examples: Any, key: jax.Array | None = None, weights: jax.Array | None = None
    ) -> jax.Array:
        if self.outputs_function is None:
            return super().outputs(params, examples, key, weights)
        return self._of_each("outputs_function", self.outputs_function(params, examples), examples)

    def features(
        self, params: Any, examples: Any, key: jax.Array | None = None, weights: jax.Array | None = None
    ) -> jax.Array:
        if self.features_function is None:
            return super().features(params, examples, key, weights)
        return self._of_each("features_function", self.features_function(params, examples), examples)

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        return {} if self.metrics_function is None else self.metrics_function(params, examples)

    def penalty(self, params: Any) -> jax.Array | None:
        return None if self.penalty_function is None else self.penalty_function(params)

    @staticmethod
    def _of_each(name: str, values: jax.Array, examples: Any) -> jax.Array:
        rows = jax.tree.leaves(examples)[0].shape[0]
        if jnp.shape(values)[:1] != (rows,):
            raise ValueError(
                f"{name} returns {jnp.result_type(values)}{list(jnp.shape(values))} for {rows} examples: its first "
                "axis must be theirs"
            )
        return values


_GIVEN = {
    "init_function": ("key",),
    "losses_function": ("params", "examples"),
    "metrics_function": ("params", "examples"),
    "penalty_function": ("params",),
    "outputs_function": ("params", "examples"),
    "features_function": ("params", "examples"),
}


def _check_takes(name: str, function: Callable[..., Any]) -> None:
    """Checks that a function can be called as a run calls it, where Python knows what it takes.

    Raises:
      TypeError: it cannot.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are not written in Python do not say
        return
    try:
        signature.bind(*_GIVEN[name])
    except TypeError as error:
        hint = "; examples is what the data set holds, often {'x': ..., 'y': ...}" if "examples" in _GIVEN[name] else ""
        raise TypeError(
            f"functions({name}=...) takes {signature} and is called as {name}({', '.join(_GIVEN[name])}): {error}{hint}"
        ) from None


quadratic = factory("task.quadratic", Quadratic)
functions = factory("task.functions", Functions)
