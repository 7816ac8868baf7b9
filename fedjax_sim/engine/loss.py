"""F: what a method sees of a client's data, one batch at a time."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.mistakes import unchanged
from fedjax_sim.models.contract import single
from fedjax_sim.models.task import Batch, Task


class Loss:
    """F_i on one batch of client i: ``F(params)`` is its mean loss there, and more.

    All calls within a step see the same batch and the same dropout key. Where the average of the cohort scheme scales
    the objectives F_i, ``F(params)``, ``F.mean(...)`` and ``F.penalty(params)`` arrive scaled; terms that are not of
    the data do not scale.

    Attributes:
      examples: the batch, pytree of leaves [B, ...].
      weights: [B], example weights; 0 in rows of padding.
      other: a second batch of the same client, or None where the method does not ask for one.
    """

    def __init__(self, task: Task, batch: Batch, key: jax.Array | None, scale: Any = None, other: Any = None) -> None:
        self.examples, self.weights, self.other = batch.examples, batch.weights, other
        self._task, self._batch, self._key, self._scale = task, batch, key, scale
        self._asked: list[Any] = []
        self._moving: list[Any] = []
        self._promotion = jax.config.jax_numpy_dtype_promotion  # type: ignore[attr-defined]

    def __call__(self, params: Any) -> jax.Array:
        """(1/count) sum_j v_j loss_j(params) + penalty(params), a scalar."""
        self._ask(params)
        with self._as_outside():
            return self._scaled(self._task.batch_loss(params, self._batch, self._key))

    def losses(self, params: Any) -> jax.Array:
        """loss_j(params) of every example, [B], also of rows of padding: average them with :meth:`mean`."""
        if self._task.joint:
            raise TypeError(
                f"the method asks for the loss of each example, and those of {type(self._task).__name__.lower()} stand "
                "for no example alone: use a method that asks for F(params)"
            )
        with self._as_outside():
            if self._ask(params):
                held = self._task.with_statistics(params, lax.stop_gradient(self._task.statistics(params)))
                return self._task.losses_and_statistics(held, self.examples, self._key, self.weights)[0]
            return self._task.losses(params, self.examples, self._key)

    def outputs(self, params: Any) -> jax.Array:
        """What the model says of every example, [B, ...]: logits of a classification; reals of single precision."""
        self._ask(params)
        with self._as_outside(), unchanged(self._task.called("outputs"), params=params, examples=self.examples):
            return single(self._task.outputs(params, self.examples, self._key, self.weights))

    def features(self, params: Any) -> jax.Array:
        """What the model's last dense layer receives of every example, [B, D]."""
        self._ask(params)
        with self._as_outside(), unchanged(self._task.called("features"), params=params, examples=self.examples):
            return self._task.features(params, self.examples, self._key, self.weights)

    def penalty(self, params: Any) -> jax.Array:
        """The task's penalty, a scalar, 0 for none: ``F(params)`` is the mean of the losses and this."""
        with self._as_outside():
            penalty = self._task.penalty(params)
        return self._scaled(jnp.zeros(()) if penalty is None else jnp.asarray(penalty))

    def with_statistics(self, params: Any, of: Any) -> Any:
        """``params``, a model that is computed, with the running statistics of ``of``, which F of it moves then."""
        with self._as_outside():
            statistics = self._task.statistics(of)
            if statistics is None:
                return params
            self._moving.append(statistics)
            return self._task.with_statistics(params, statistics)

    @property
    def labels(self) -> jax.Array:
        """y of every example, [B]."""
        return self._task.labels(self.examples)

    def mean(self, values: jax.Array) -> jax.Array:
        """(1/count) sum_j v_j values_j, over the examples that are no padding.

        Args:
          values: [B, ...]; integers and truths count as real numbers.
        """
        values = trees.real(values)
        weights = trees.column(self.weights.astype(values.dtype), values)
        return self._scaled(jnp.sum(values * weights, axis=0) / self._batch.count.astype(values.dtype))

    def moved(self, y: Any, known: Any) -> list[Any]:
        """The running statistics in ``y`` after this batch: for each leaf of ``y`` the new one, None for parameters.

        They are those of the models among what is trained of which F was asked, whatever it was asked, and of those
        :meth:`with_statistics` of such; of models that a method only computes (a step ahead) they stay as they are.

        Args:
          y: what is trained, as the objective got it.
          known: whatever else models may be made of.

        Raises:
          ValueError: F was asked of models with statistics, and of none that is trained.
        """
        leaves = jax.tree.leaves(y)
        new: list[Any] = [None] * len(leaves)
        if not self._asked:
            return new
        places = {id(leaf): place for place, leaf in enumerate(leaves)}
        of_models = places.keys() | {id(leaf) for leaf in jax.tree.leaves(known)}
        moving = {id(leaf) for leaf in jax.tree.leaves(self._moving)}  # of a part of a model, where parts are kept

        def is_trained(model: Any) -> bool:
            if all(id(leaf) in of_models for leaf in jax.tree.leaves(model)):
                return True
            return any(id(leaf) in moving for leaf in jax.tree.leaves(self._task.statistics(model)))

        trained = [model for model in self._asked if is_trained(model)]
        if not trained:
            raise ValueError(
                "the model has running statistics (batch_stats, of a BatchNorm), and the method asks of no model that "
                "it trains itself, F(y), so that they would not move: train one with flax.linen.GroupNorm in its place"
            )
        for model in trained:
            at = [places.get(id(leaf)) for leaf in jax.tree.leaves(self._task.statistics(model))]
            if all(place is None or new[place] is not None for place in at):
                continue
            with self._as_outside():
                moved = self._task.updated_statistics(model, self.examples, self._key, self.weights)
            for place, leaf in zip(at, jax.tree.leaves(moved), strict=True):
                if place is not None:
                    new[place] = leaf
        return new

    def _ask(self, params: Any) -> bool:
        """Remembers a model with running statistics, and says whether it is one."""
        if self._task.statistics(params) is None:
            return False
        self._asked.append(params)
        return True

    def _scaled(self, value: jax.Array) -> jax.Array:
        return value if self._scale is None else trees.scale(self._scale, value)

    def _as_outside(self) -> contextlib.AbstractContextManager[Any]:
        """A method's objective may mix dtypes; a task keeps to the caller's rule."""
        return jax.numpy_dtype_promotion(self._promotion)
