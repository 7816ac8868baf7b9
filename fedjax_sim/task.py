"""What is learned: initial parameters, a loss per example, metrics per example and a penalty.

The local objective of client i is F_i(w) = (1/n_i) sum_j v_j loss(w, example_j) + penalty(w), with v_j the data set's
``example_weights`` (1 by default), and F = sum_i p_i F_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import Described, factory, static
from fedjax_sim.optim import third_party
from fedjax_sim.values import check_real

_EVALUATION_ROWS = 8192  # rows per step of an evaluation: bounds its memory, large enough to keep the matrix unit busy


class Batch(NamedTuple):
    """Some examples of one client.

    Attributes:
      examples: pytree, leading axis B.
      weights: [B], example weights v_j; exactly 0 for padding rows, whose examples are real but not this batch's.
      count: scalar, number of examples that are not padding (at least 1).
    """

    examples: Any
    weights: jax.Array
    count: jax.Array  # type: ignore[assignment]


class Task(Described):
    """A learning problem; subclasses define :meth:`init`, :meth:`losses` and, where useful, the rest."""

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        """Initial parameters."""
        raise TypeError(f"{type(self).__name__} must define init(key, dataset)")

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        """Loss of each example, [B]; ``key`` is given in training only (dropout)."""
        raise TypeError(f"{type(self).__name__} must define losses(params, examples, key)")

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        """Other values of each example by name, [B] each; their means are recorded."""
        return {}

    def penalty(self, params: Any) -> jax.Array | None:
        """What is added to every client's mean loss, or None."""
        return None

    def check(self, dataset: FederatedDataset) -> None:
        """Raises ``ValueError`` where the data cannot be this task's."""

    def batch_loss(self, params: Any, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """(1/count) sum_j v_j loss_j + penalty: an unbiased estimate of F_i from a uniform batch."""
        losses = self.losses(params, batch.examples, key)
        mean = jnp.sum(losses * batch.weights.astype(losses.dtype)) / batch.count.astype(losses.dtype)
        penalty = self.penalty(params)
        return mean if penalty is None else mean + penalty.astype(mean.dtype)

    def evaluate(self, params: Any, dataset: FederatedDataset) -> dict[str, jax.Array]:
        """Objective F and mean metrics over the flat data: ``{"loss": F(params), ...}``.

        Args:
          params: parameters.
          dataset: training or test examples; F weights every example alike (sum_i p_i F_i).
        """
        n = dataset.num_examples
        rows = min(n, _EVALUATION_ROWS)

        def totals(start: jax.Array, first: jax.Array) -> dict[str, jax.Array]:
            examples = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows), dataset.examples)
            losses = self.losses(params, examples)
            fresh = start + jnp.arange(rows, dtype=jnp.int32) >= first
            if dataset.example_weights is not None:
                weights = lax.dynamic_slice_in_dim(dataset.example_weights, start, rows)
                losses = losses * weights.astype(losses.dtype)
            values = {"loss": losses, **self.metrics(params, examples)}
            return {name: jnp.sum(jnp.where(fresh, value, jnp.zeros_like(value))) for name, value in values.items()}

        def step(sums: dict[str, jax.Array], first: jax.Array) -> tuple[dict[str, jax.Array], None]:
            # The last slice is moved back to stay inside the data; rows already counted are masked.
            new = totals(jnp.minimum(first, n - rows), first)
            return jax.tree.map(jnp.add, sums, new), None

        if rows == n:
            sums = totals(jnp.int32(0), jnp.int32(0))
        else:
            empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(totals, 0, 0))
            sums, _ = lax.scan(step, empty, jnp.arange(0, n, rows, dtype=jnp.int32))
        means = {name: total / n for name, total in sums.items()}
        penalty = self.penalty(params)
        if penalty is not None:
            means["loss"] = means["loss"] + penalty.astype(means["loss"].dtype)
        return means


class Classification(Task):
    """Softmax cross-entropy of a flax module's logits for examples ``{"x", "y"}``, with accuracy.

    F_i(w) = (1/n_i) sum_j -log softmax(model(x_j))_{y_j} + weight_decay |w|^2

    (the penalty as in Li et al. 2020, "On the convergence of FedAvg on non-IID data": lambda |w|^2, no factor 1/2).

    Args:
      model: flax module that maps [B, ...] features to [B, classes] logits.
      weight_decay: lambda >= 0, on all parameters, biases included; None for no penalty in the program.
    """

    model: nn.Module = static()
    weight_decay: Any = None

    def checked(self) -> Classification:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"classification(model={self.model!r}): give a flax.linen module, or use task.functions")
        check_real("classification(weight_decay=...)", self.weight_decay, low=0.0, optional=True)
        return self

    def check(self, dataset: FederatedDataset) -> None:
        if not (isinstance(dataset.examples, dict) and {"x", "y"} <= dataset.examples.keys()):
            raise ValueError("classification needs examples {'x': features, 'y': integer labels}")
        if not jnp.issubdtype(dataset.examples["y"].dtype, jnp.integer):
            raise ValueError(f"labels 'y' are {dataset.examples['y'].dtype}: classification needs integers")
        outputs = jax.eval_shape(lambda: self.model.apply(self.init(jax.random.key(0), dataset), self._one(dataset)))
        classes = outputs.shape[-1]
        if dataset.num_classes is not None and dataset.num_classes > classes:
            raise ValueError(
                f"the data set has {dataset.num_classes} classes and the model {classes} outputs: "
                f"give the model num_classes={dataset.num_classes}"
            )

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        with third_party():
            variables = self.model.init(key, self._one(dataset))
        extra = sorted(set(variables) - {"params"})
        if extra:
            raise ValueError(
                f"the model keeps state besides its parameters ({', '.join(extra)}): federated averaging of running "
                "statistics is undefined; replace BatchNorm by flax.linen.GroupNorm"
            )
        return variables

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        logits = self._logits(params, examples, key)
        # One-hot labels: indexing the logits costs a scatter in the backward pass of every step (10 % on a CPU).
        labels = jax.nn.one_hot(examples["y"], logits.shape[-1], dtype=logits.dtype)
        with third_party():
            losses: jax.Array = optax.softmax_cross_entropy(logits, labels)
            return losses

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        logits = self._logits(params, examples, None)
        return {
            "accuracy": (jnp.argmax(logits, axis=-1).astype(examples["y"].dtype) == examples["y"]).astype(logits.dtype)
        }

    def penalty(self, params: Any) -> jax.Array | None:
        if self.weight_decay is None:
            return None
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)]
        total = jnp.sum(jnp.stack(squares))
        return jnp.asarray(self.weight_decay).astype(total.dtype) * total

    def _logits(self, params: Any, examples: Any, key: jax.Array | None) -> jax.Array:
        with third_party():
            rngs = None if key is None else {"dropout": key}
            logits: Any = self.model.apply(params, examples["x"], rngs=rngs)
            return logits  # type: ignore[no-any-return]

    @staticmethod
    def _one(dataset: FederatedDataset) -> jax.Array:
        x = dataset.examples["x"]
        return jnp.zeros((1, *x.shape[1:]), x.dtype)


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


classification = factory("task.classification", Classification)
quadratic = factory("task.quadratic", Quadratic)
functions = factory("task.functions", Functions)
