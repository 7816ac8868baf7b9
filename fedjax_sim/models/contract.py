"""What is learned: initial parameters, a loss per example, metrics per example and a penalty.

The local objective of client i is F_i(w) = (1/n_i) sum_j v_j loss(w, example_j) + penalty(w), with v_j the data set's
``example_weights`` (1 by default), and F = sum_i p_i F_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.trees import real, weighted_sum, wide
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.scores import Score

MaybeArray: TypeAlias = jax.Array | None


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


class Mixture(NamedTuple):
    """Models side by side and their weights, where what a client would use is no single model.

    Attributes:
      models: leaves [K, ...].
      weights: [K], of sum 1.
    """

    models: Any
    weights: jax.Array

    def of(self, values: jax.Array) -> jax.Array:
        """sum_k weights_k values_k of values [K, ...]."""
        return weighted_sum(self.weights, values)


class Task(Described):
    """A learning problem; subclasses define :meth:`init`, :meth:`losses` and, where useful, the rest.

    Attributes:
      joint: whether the loss of an example depends on the other examples of its client. Then steps and evaluations see
        all of a client's examples at once, and :meth:`losses` has an argument ``group``, int[B] or None for one group:
        examples of different groups (clients, padding) must not be compared.
    """

    joint = False

    @property
    def scores(self) -> tuple[Score, ...]:
        """What of ``fedjax_sim.scores`` is part of every evaluation; a field of tasks whose outputs are of classes."""
        return ()

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        """Initial parameters."""
        raise TypeError(f"{type(self).__name__} must define init(key, dataset)")

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        """Loss of each example, [B]; ``key`` is given in training only (dropout)."""
        raise TypeError(f"{type(self).__name__} must define losses(params, examples, key)")

    def outputs(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        """What the model says of each example, [B, ...]: logits of a classification, predictions of a regression.

        Args:
          params: parameters.
          examples: pytree, leading axis B.
          key: PRNG key of a training step, in which the model behaves as in training; None elsewhere.
          weights: [B], those of a :class:`Batch`, whose padding must not count in a batch's statistics; None for all.
        """
        raise TypeError(self._silent("outputs"))

    def features(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        """What the model's last layer receives, [B, D] ([B, T, D] for outputs [B, T, ...]); see :meth:`outputs`."""
        raise TypeError(self._silent("features"))

    def labels(self, examples: Any) -> jax.Array:
        """What the model should say of each example, [B, ...]: ``examples["y"]``."""
        if not (isinstance(examples, Mapping) and "y" in examples):
            held = sorted(map(str, examples)) if isinstance(examples, Mapping) else type(examples).__name__
            raise TypeError(f"{type(self).__name__} has no labels: its examples are {held}; labelled ones have a 'y'")
        return examples["y"]

    def num_classes(self, dataset: FederatedDataset) -> int | None:
        """The number of classes that the model tells apart; None where outputs are no classes."""
        return None

    def probabilities(self, outputs: jax.Array) -> jax.Array:
        """[B, ..., C], the probabilities of the classes from :meth:`outputs`, for scores: their softmax."""
        return jax.nn.softmax(outputs, axis=-1)

    def statistics(self, params: Any) -> Any:
        """The part of ``params`` that is no parameter but running statistics of a BatchNorm; None where none is.

        They travel with the parameters: a method that averages models averages them too. No gradient reaches them and
        no penalty counts them. A step in training leaves those of :meth:`losses_and_statistics` in their place.
        """
        return None

    def with_statistics(self, params: Any, statistics: Any) -> Any:
        """``params``, or a gradient in them, with other running statistics; as it is where it has none."""
        return params

    def losses_and_statistics(
        self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None
    ) -> tuple[jax.Array, Any]:
        """:meth:`losses`, and :meth:`statistics` after a training step on these examples; from one forward pass.

        The statistics are moved from those in ``params``, by the examples at the parameters before the step; without a
        ``key`` (evaluation) they stay. Rows of weight 0 count in neither, and where no row counts the statistics stay.
        Derivatives are those of the formulas, in the statistics too. Arguments are those of :meth:`outputs`.
        """
        return self.losses(params, examples, key), None

    def updated_statistics(self, params: Any, examples: Any, key: MaybeArray, weights: MaybeArray = None) -> Any:
        """The statistics of :meth:`losses_and_statistics` alone, for objectives with other losses; None for none."""
        if self.statistics(params) is None:
            return None
        return self.losses_and_statistics(params, examples, key, weights)[1]

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
        """(1/count) sum_j v_j loss_j + penalty, an unbiased estimate of F_i; running statistics are constants to it."""
        statistics = self.statistics(params)
        if statistics is None:
            losses = self.losses(params, batch.examples, key)
        else:
            held = self.with_statistics(params, lax.stop_gradient(statistics))
            losses, _ = self.losses_and_statistics(held, batch.examples, key, batch.weights)
        return self.batch_mean(params, losses, batch)

    def batch_mean(self, params: Any, losses: jax.Array, batch: Batch) -> jax.Array:
        """(1/count) sum_j v_j loss_j + penalty of the batch's losses [B]: what :meth:`batch_loss` makes of them."""
        mean = jnp.sum(losses * batch.weights.astype(losses.dtype)) / batch.count.astype(losses.dtype)
        penalty = self.penalty(params)
        return mean if penalty is None else mean + jnp.asarray(penalty).astype(mean.dtype)

    def values(
        self, params: Any, examples: Any, weights: jax.Array | None = None, group: MaybeArray = None
    ) -> dict[str, jax.Array]:
        """Loss and metrics of each example without training's randomness, [B] by name; ``"loss"`` has no penalty.

        They are reals of at least single precision: a sum in half precision stops growing at a few hundred.
        ``weights`` [B], the data set's example weights v_j if it has some, multiply the losses; ``group`` is given to
        tasks that are ``joint`` alone. The loss of a
        :class:`Mixture` is -log sum_k weights_k exp(-loss_k), its metrics are those of the mixed outputs.
        """
        if isinstance(params, Mixture):
            each = jax.vmap(lambda model: single(self.losses(model, examples)))(params.models)
            losses = -jax.nn.logsumexp(-each, axis=0, b=params.weights.astype(each.dtype)[:, None])
        else:
            of: Any = self.losses
            losses = single(of(params, examples, None, group) if self.joint else of(params, examples))
        if weights is not None:
            losses = losses * weights.astype(losses.dtype)
        metrics = {name: single(value) for name, value in self.metrics(params, examples).items()}
        return {**metrics, "loss": losses}

    def with_penalty(self, params: Any, means: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Mean values with the penalty, if there is one, added to the loss; ``"data_loss"`` is then without it."""
        mixture = isinstance(params, Mixture)
        penalty = jax.vmap(self.penalty)(params.models) if mixture else self.penalty(params)
        if penalty is None:
            return means
        penalty, loss = params.of(penalty) if mixture else penalty, means["loss"]
        return {**means, "loss": loss + jnp.asarray(penalty).astype(loss.dtype), "data_loss": loss}

    def _silent(self, function: str) -> str:
        return (
            f"{type(self).__name__} has a loss of each example and does not say what {function} its model has: use "
            "fedjax_sim.classification(model) or regression(model), give fedjax_sim.functions(..., "
            f"{function}_function=...), or define {function}(params, examples, key, weights) in a task of your own"
        )


def single(values: jax.Array) -> jax.Array:
    """The values as reals of at least single precision."""
    return wide(real(values))
