"""What is learned: initial parameters, a loss per example, metrics per example and a penalty.

The local objective of client i is F_i(w) = (1/n_i) sum_j v_j loss(w, example_j) + penalty(w), with v_j the data set's
``example_weights`` (1 by default), and F = sum_i p_i F_i.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import Described


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

    def called(self, function: str) -> str:
        """How error messages name what the user gave as ``"init"``, ``"losses"``, ``"metrics"`` or ``"penalty"``."""
        return f"{type(self).__name__}.{function}"

    def batch_loss(self, params: Any, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """(1/count) sum_j v_j loss_j + penalty: an unbiased estimate of F_i from a uniform batch."""
        losses = self.losses(params, batch.examples, key)
        mean = jnp.sum(losses * batch.weights.astype(losses.dtype)) / batch.count.astype(losses.dtype)
        penalty = self.penalty(params)
        return mean if penalty is None else mean + jnp.asarray(penalty).astype(mean.dtype)

    def values(self, params: Any, examples: Any, weights: jax.Array | None = None) -> dict[str, jax.Array]:
        """Loss and metrics of each example without training's randomness, [B] by name; ``"loss"`` has no penalty.

        They are reals of at least single precision, as they are to be summed: a sum in half precision stops growing at
        a few hundred.

        Args:
          params: parameters.
          examples: pytree, leading axis B.
          weights: [B], the data set's example weights v_j, which multiply the losses; None where it has none.
        """
        losses = _single(self.losses(params, examples))
        if weights is not None:
            losses = losses * weights.astype(losses.dtype)
        metrics = {name: _single(value) for name, value in self.metrics(params, examples).items()}
        return {**metrics, "loss": losses}

    def with_penalty(self, params: Any, means: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Mean values with the penalty added to the loss, which makes it an objective; ``"data_loss"`` is without it.

        Where there is no penalty the two are the same, and ``"data_loss"`` is left out.
        """
        penalty = self.penalty(params)
        if penalty is None:
            return means
        loss = means["loss"]
        return {**means, "loss": loss + jnp.asarray(penalty).astype(loss.dtype), "data_loss": loss}


def _single(values: jax.Array) -> jax.Array:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values.astype(jnp.result_type(float))
    return values if jnp.finfo(values.dtype).bits >= 32 else values.astype(jnp.float32)
