"""Survival: Cox's proportional hazards, whose loss compares each client's examples with each other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.loops import with_rows
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.models.contract import Batch, MaybeArray, Mixture, single
from fedjax_sim.models.scores import Score
from fedjax_sim.models.supervised import Supervised

_WEIGHTS = "the data set has example weights, and the partial likelihood of cox has none: leave them out"


class Concordance(Score):
    """Harrell's concordance index of risks p [n, 1] and y [n, 2], (event, time) of each example.

    Of the pairs of a group in which it is known who had the event first, the share in which that one has the higher
    risk; equal risks count half. Known is a pair (i, j) where i has an event and T_i < T_j, or T_i = T_j and j has
    none.

    Reference: Harrell, Califf, Pryor, Lee and Rosati 1982, "Evaluating the yield of medical tests".
    """

    name = "concordance"

    def of_groups(self, p: jax.Array, y: jax.Array, group: jax.Array, groups: int) -> jax.Array:
        risk = p[:, 0]

        def row(i: jax.Array) -> tuple[jax.Array, jax.Array]:
            known = _first(y, group, i)
            higher = (risk[i] > risk).astype(risk.dtype) + (risk[i] == risk).astype(risk.dtype) / 2
            return jnp.sum(jnp.where(known, higher, jnp.zeros_like(higher))), jnp.sum(known.astype(risk.dtype))

        won, pairs = jax.lax.map(row, jnp.arange(len(risk), dtype=jnp.int32))
        won, pairs = (with_rows(jnp.zeros(groups, values.dtype), group, values) for values in (won, pairs))
        bad = jax.ops.segment_max((~jnp.isfinite(risk)).astype(jnp.int32), group, groups) > 0
        return jnp.where((pairs > 0) & ~bad, won / jnp.maximum(pairs, 1), jnp.nan)

    def defined(self, y: jax.Array, classes: int, group: jax.Array, groups: int) -> jax.Array:
        some = jax.lax.map(lambda i: jnp.any(_first(y, group, i)), jnp.arange(len(y), dtype=jnp.int32))
        return jax.ops.segment_max(some.astype(jnp.int32), group, groups) > 0


class Cox(Supervised):
    """Cox's negative log partial likelihood of a flax module's log-risks, with Breslow's ties, and the concordance.

    F_i(w) = (1/n_i) sum_{j: E_j = 1} (log sum_{k: T_k >= T_j} exp(z_k) - z_j) + weight_decay |w|^2,   z_j = model(x_j)

    Both sums are over the examples of client i: each client's loss compares its own people only (a Cox model with a
    baseline hazard of each client's own). So the loss is no mean over examples that stand for themselves. Every step
    needs all of a client's examples at once, ``batches=fedjax_sim.local.full_batch(piece_size=N)``, N at least the
    largest client's number of examples; anything else is refused before a run is compiled. A client without events has
    the loss 0 (and the penalty) and no gradient. A constant in z cancels: leave the last layer's bias out.

    Divided by the number of examples, events or not, as FLamby has it; its code orders examples of one time by their
    place in the batch, of which the first is not compared with the others.

    Evaluations have ``"concordance"``, Harrell's index: of every client's examples, and overall of all clients'
    together, pairs of two clients included. Evaluations and steps take memory for n² numbers, n the examples that are
    evaluated, or the largest client's.

    Args:
      model: flax module that maps features [B, ...] to [B, 1] or [B], the log of the risk.
      weight_decay: lambda >= 0; see :class:`Supervised`.

    Raises:
      ValueError: (before a run) y that is no float [n, 2] of (event 0 or 1, time), a model with running statistics,
        data with example weights, on the host or on a mesh, diagnostics, or batches that are not a client's all.

    Example:
      >>> import jax.numpy as jnp, flax.linen as nn, fedjax_sim as fjs
      >>> task = fjs.cox(nn.Dense(1, use_bias=False))
      >>> people = {"x": jnp.array([[1.0], [0.0]]), "y": jnp.array([[1.0, 3.0], [0.0, 5.0]])}  # one event, after 3 days
      >>> task.losses({"params": {"kernel": jnp.zeros((1, 1))}}, people).round(4).tolist()  # log 2
      [0.6930999755859375, 0.0]

    Reference: Cox 1972, "Regression models and life-tables"; Breslow 1974, doi:10.2307/2529620; Ogier du Terrail et al.
    2022 (FLamby), arXiv:2210.04620.
    """

    joint = True

    @property
    def scores(self) -> tuple[Score, ...]:
        return (Concordance(),)

    def check(self, dataset: FederatedDataset) -> None:
        super().check(dataset)
        for part in (dataset, *held_out_parts(dataset).values()):
            _check_times(part)
        shape = self.output_shape(dataset)
        if shape not in ((), (1,)):
            raise ValueError(
                f"the model's output of one example has the shape {list(shape)}: cox needs one number, the log of the "
                "risk, as flax.linen.Dense(1, use_bias=False) gives"
            )

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        params = super().init(key, dataset)
        if self.statistics(params) is not None:
            raise ValueError("cox takes no model with running statistics (batch_stats, of a BatchNorm): use GroupNorm")
        return params

    def probabilities(self, outputs: jax.Array) -> jax.Array:
        """The log-risks themselves, [B, 1]: of whom is at a higher risk no more is needed."""
        return outputs.reshape(len(outputs), 1)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None, group: MaybeArray = None) -> jax.Array:
        """The term of each example, [B], 0 without an event; only those of its ``group``, int[B], are compared."""
        z = single(self.outputs(params, examples, key)).reshape(-1)
        event, time = examples["y"][:, 0], examples["y"][:, 1]
        at_risk = time[None, :] >= time[:, None]
        if group is not None:
            at_risk &= group[None, :] == group[:, None]
        # Everybody is in the set of their own time, so no row is empty.
        total = jax.nn.logsumexp(jnp.where(at_risk, z[None, :], -jnp.inf), axis=1)
        return jnp.where(event > 0, total - z, jnp.zeros_like(z))

    def values(
        self, params: Any, examples: Any, weights: jax.Array | None = None, group: MaybeArray = None
    ) -> dict[str, jax.Array]:
        if isinstance(params, Mixture):
            raise TypeError("cox takes one model: the partial likelihood of a mixture of several is none of its parts'")
        if weights is not None:
            raise ValueError(_WEIGHTS)
        return super().values(params, examples, None, group)

    def batch_loss(self, params: Any, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        # Padding is real examples of other clients: a group of its own, whose terms have weight 0.
        losses = self.losses(params, batch.examples, key, (batch.weights != 0).astype(jnp.int32))
        return self.batch_mean(params, losses, batch)


def _first(y: jax.Array, group: jax.Array, i: jax.Array) -> jax.Array:
    """bool[n], of whom it is known that i of the same group had the event before them."""
    (event, time), others = y[i], y[:, 1]
    later = (time < others) | ((time == others) & (y[:, 0] == 0))
    return (event > 0) & later & (group == group[i])


def _check_times(dataset: FederatedDataset) -> None:
    y = dataset.examples["y"]
    if not jnp.issubdtype(y.dtype, jnp.floating) or y.ndim != 2 or y.shape[1] != 2:
        raise ValueError(
            f"'y' is {y.dtype}{list(y.shape)}: cox needs floats [n, 2], (event 0 or 1, time) of each example"
        )
    if dataset.example_weights is not None:
        raise ValueError(_WEIGHTS)
    if isinstance(y, jax.core.Tracer):
        return
    if not isinstance(y, (jax.Array, np.ndarray)):
        raise ValueError("the data are on the host, and cox compares examples on the device: use dataset.on_device()")
    values = np.asarray(y)
    for row in np.flatnonzero(~np.isin(values[:, 0], (0, 1)) | ~(values[:, 1] >= 0))[:1]:
        raise ValueError(
            f"'y' of example {row} is {values[row].tolist()}: cox needs (event, time), 1 where the event was seen and "
            "0 where it was not, and a time of at least 0"
        )


cox = factory("task.cox", Cox)
