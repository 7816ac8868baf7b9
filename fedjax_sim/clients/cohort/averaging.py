"""What the server makes of the models that a cohort sends back: the averages, by name.

Every average is x + sum_i clients_i (y_i - x) + shift x, with y_i the model that client i ends its round with and
x the model it started from. Li et al. 2020 ("On the convergence of FedAvg on non-IID data"), Table 1, compare
``"original"``, ``"scheme_ii"`` and its transformation (section 3.3); ``"sample"`` is what the experiments of FedProx
use, ``"plain"`` what SCAFFOLD does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Weights(NamedTuple):
    """A round's average as its coefficients.

    Attributes:
      clients: [S], what multiplies y_i - x; 0 in void slots.
      shift: scalar, what multiplies x in averages of models whose weights need not sum to 1; else None.
    """

    clients: jax.Array
    shift: Any = None


class Visits(NamedTuple):
    """What a round's weights are computed from, leading axis S.

    Attributes:
      drawn: multiplicity with which each client was drawn, as floats; 0 in void slots.
      taken: the same, 0 too for clients that were drawn and did not take part (dropped stragglers).
      sizes: n_i, as floats.
      shares: p_i = n_i / n.
      num_clients: N.
      inclusion: computes pi_i, the probability that client i is drawn and there.
    """

    drawn: jax.Array
    taken: jax.Array
    sizes: jax.Array
    shares: jax.Array
    num_clients: int
    inclusion: Callable[[], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Averaging:
    """One way of averaging.

    Attributes:
      weigh: the weights of a round.
      share: which lambda_i weighs control variates: ``"sample"`` p_i or ``"plain"`` 1/N.
      objective: which F it minimises where all clients are equally likely to take part.
      unequal: the same where they are not; pi_i is the probability that client i takes part.
      normalised: whether the weights of those who took part always sum to 1. Otherwise a client that was drawn and
        dropped out counts as y_i = x.
      scales: whether local objectives are multiplied by N p_i.
      models: whether ``Weights.shift`` is a number.
    """

    weigh: Callable[[Visits], Weights]
    share: str = "sample"
    objective: str = "sum p_i F_i"
    unequal: str = "sum pi_i p_i F_i"
    normalised: bool = False
    scales: bool = False
    models: bool = False


def _sample(visits: Visits) -> Weights:
    return Weights(_over(visits.taken * visits.sizes, visits.taken * visits.sizes))


def _plain(visits: Visits) -> Weights:
    return Weights(_over(visits.taken, visits.taken))


def _over_drawn(visits: Visits) -> Weights:
    return Weights(_over(visits.taken, visits.drawn))


def _original(visits: Visits) -> Weights:
    return Weights(visits.taken * visits.shares)


def _scheme_ii(visits: Visits) -> Weights:
    factor = visits.num_clients / jnp.maximum(jnp.sum(visits.drawn), 1)
    shift = factor * jnp.sum(visits.drawn * visits.shares) - 1
    return Weights(factor * visits.taken * visits.shares, shift)


def _inverse(visits: Visits) -> Weights:
    probability = visits.inclusion()
    return Weights(visits.taken * visits.shares / jnp.where(visits.taken > 0, probability, 1))


def _over(mass: jax.Array, total: jax.Array) -> jax.Array:
    return mass / jnp.maximum(jnp.sum(total), 1)


AVERAGES = {
    # n_i / sum_S n. Biased for sum p_i Delta_i where sizes differ and not everyone takes part.
    "sample": Averaging(weigh=_sample, unequal="sum E[w_i] F_i, w_i = n_i / sum_S n", normalised=True),
    # 1 / |S|.
    "plain": Averaging(
        weigh=_plain,
        share="plain",
        objective="(1/N) sum F_i",
        unequal="sum E[w_i] F_i, w_i = 1 / |S|",
        normalised=True,
    ),
    # sum_S p_i y_i + sum_(not S) p_i x: K / N times the step of full participation in expectation.
    "original": Averaging(weigh=_original),
    # (N/K) sum_S p_i y_i: models, not changes, so that x itself is rescaled; K is the number drawn.
    "scheme_ii": Averaging(weigh=_scheme_ii, models=True),
    # (1/K) sum_S y_i, with N p_i F_i in the place of F_i: unbiased for one local step only.
    "transformed": Averaging(weigh=_over_drawn, share="plain", scales=True),
    # x + sum_S (p_i / pi_i) Delta_i: unbiased whatever the inclusion probabilities pi_i.
    "inverse": Averaging(weigh=_inverse, unequal="sum p_i F_i"),
}
"""The averages by name, each an :class:`Averaging`."""

# (1/K) sum over K draws with P(i) = p_i: the draws carry the weights.
SCHEME_I = Averaging(weigh=_over_drawn, unequal="sum E[w_i] F_i, w_i = count_i / K")
