"""Tasks without a flax model: quadratic clients, and anyone's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import factory, static
from fedjax_sim.task.base import Task
from fedjax_sim.values import check_real


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

    Args:
      init_function: ``init_function(key) -> params``.
      losses_function: ``losses_function(params, examples) -> [B]``.
      metrics_function: ``metrics_function(params, examples) -> {name: [B]}``.
      penalty_function: ``penalty_function(params) -> scalar``.
    """

    init_function: Callable[[jax.Array], Any] = static()
    losses_function: Callable[[Any, Any], jax.Array] = static()
    metrics_function: Callable[[Any, Any], dict[str, jax.Array]] | None = static(default=None)
    penalty_function: Callable[[Any], jax.Array] | None = static(default=None)

    def checked(self) -> Functions:
        for name in ("init_function", "losses_function", "metrics_function", "penalty_function"):
            function, optional = getattr(self, name), name in ("metrics_function", "penalty_function")
            if not (callable(function) or (optional and function is None)):
                raise TypeError(f"functions({name}={function!r}): give a function{' or None' if optional else ''}")
        return self

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        return self.init_function(key)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return self.losses_function(params, examples)

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        return {} if self.metrics_function is None else self.metrics_function(params, examples)

    def penalty(self, params: Any) -> jax.Array | None:
        return None if self.penalty_function is None else self.penalty_function(params)


quadratic = factory("task.quadratic", Quadratic)
functions = factory("task.functions", Functions)
