"""The base of all participation schemes: how a round's cohort is drawn and what is averaged.

A scheme is a pure function of (run key, round): it can be called inside the compiled program or ahead of it on the
host, with the same result. Clients are *indexed* 0..N-1 in the order of their fixed ids, so the order in which a data
set stores them changes nothing.

Every average is x + sum_i clients_i (y_i - x) + shift x, with y_i the model that client i ends its round with and
x the model it started from. Li et al. 2020 ("On the convergence of FedAvg on non-IID data"), Table 1, compare
``"original"``, ``"scheme_ii"`` and its transformation (section 3.3); ``"sample"`` is what the experiments of FedProx
use, ``"plain"`` what SCAFFOLD does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.scheme import Scheme, unparametrised
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_choice
from fedjax_sim.datasets.federated import FederatedDataset


class Weights(NamedTuple):
    """A round's average as its coefficients.

    Attributes:
      clients: [S], what multiplies y_i - x; 0 in void slots.
      shift: scalar, what multiplies x in averages of models whose weights need not sum to 1; else None.
    """

    clients: jax.Array
    shift: Any = None


class Visits(NamedTuple):
    """What a round's weights are computed from, leading axis S."""

    drawn: jax.Array  # multiplicity with which each client was drawn, as floats; 0 in void slots
    taken: jax.Array  # the same, 0 too for clients that were drawn and did not take part (dropped stragglers)
    sizes: jax.Array  # n_i, as floats
    shares: jax.Array  # p_i = n_i / n
    num_clients: int  # N
    inclusion: Callable[[], jax.Array]  # computes pi_i, the probability that client i is drawn and there


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


def _scheme_ii(visits: Visits) -> Weights:
    factor = visits.num_clients / jnp.maximum(jnp.sum(visits.drawn), 1)
    shift = factor * jnp.sum(visits.drawn * visits.shares) - 1
    return Weights(factor * visits.taken * visits.shares, shift)


def _inverse(visits: Visits) -> Weights:
    probability = visits.inclusion()
    return Weights(visits.taken * visits.shares / jnp.where(visits.taken > 0, probability, 1))


def _over(mass: jax.Array, total: jax.Array) -> Weights:
    return Weights(mass / jnp.maximum(jnp.sum(total), 1))


AVERAGES = {
    # n_i / sum_S n. Biased for sum p_i Delta_i where sizes differ and not everyone takes part.
    "sample": Averaging(
        weigh=lambda visits: _over(visits.taken * visits.sizes, visits.taken * visits.sizes),
        unequal="sum E[w_i] F_i, w_i = n_i / sum_S n",
        normalised=True,
    ),
    # 1 / |S|.
    "plain": Averaging(
        weigh=lambda visits: _over(visits.taken, visits.taken),
        share="plain",
        objective="(1/N) sum F_i",
        unequal="sum E[w_i] F_i, w_i = 1 / |S|",
        normalised=True,
    ),
    # sum_S p_i y_i + sum_(not S) p_i x: K / N times the step of full participation in expectation.
    "original": Averaging(weigh=lambda visits: Weights(visits.taken * visits.shares)),
    # (N/K) sum_S p_i y_i: models, not changes, so that x itself is rescaled; K is the number drawn.
    "scheme_ii": Averaging(weigh=_scheme_ii, models=True),
    # (1/K) sum_S y_i, with N p_i F_i in the place of F_i: unbiased for one local step only.
    "transformed": Averaging(weigh=lambda visits: _over(visits.taken, visits.drawn), share="plain", scales=True),
    # x + sum_S (p_i / pi_i) Delta_i: unbiased whatever the inclusion probabilities pi_i.
    "inverse": Averaging(weigh=_inverse, unequal="sum p_i F_i"),
}
"""The averages by name, each an :class:`Averaging`."""

# (1/K) sum over K draws with P(i) = p_i: the draws carry the weights.
SCHEME_I = Averaging(
    weigh=lambda visits: _over(visits.taken, visits.drawn), unequal="sum E[w_i] F_i, w_i = count_i / K"
)


class Selection(NamedTuple):
    """The clients of one round.

    Attributes:
      indices: int32[S], client indices; N in void slots (masked, or a duplicate beyond the first).
      count: int32[S], how often the client was drawn; 0 in void slots; of a client that was drawn and is not
        available, the negative: its slot runs nothing, the averages that count draws count it.
      overflow: bool, whether more clients were drawn than there are slots; the round is then invalid.
      refused: int32, slots that are void because what was given for them, traced, is no client; None in schemes that
        are given none.
    """

    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]
    overflow: Any = np.False_
    refused: jax.Array | None = None

    @property
    def present(self) -> jax.Array:
        """bool[S], true where a client was drawn and is available."""
        return self.count > 0

    @property
    def drawn(self) -> jax.Array:
        """int32[S], how often the slot's client was drawn, available or not."""
        return jnp.abs(self.count)


class Draw(NamedTuple):
    """What :meth:`Participation.draw` returns.

    Attributes:
      ids: int32[S], client ids; -1 in void slots.
      mask: bool[S], false in void slots.
      weights: [S], weights of the average, 0 in void slots.
      shift: what multiplies x besides (see :class:`fedjax_sim.cohort.Weights`), or None.
    """

    ids: jax.Array
    mask: jax.Array
    weights: jax.Array
    shift: Any = None


def check_average(what: str, value: Any) -> None:
    """Checks that ``value`` is a name of :data:`AVERAGES`, or None for the algorithm's own average."""
    if value is not None:
        check_choice(what, value, AVERAGES)


class Participation(Scheme, kw_only=True):
    """Base of the schemes.

    Attributes:
      average: a name of :data:`fedjax_sim.cohort.AVERAGES`, or None for the algorithm's own.
      replacement: whether a client can be drawn more than once a round.
      may_be_empty: whether a round may have no clients.
      may_overflow: whether ``Selection.overflow`` can be true.
      equal: whether all clients are equally likely to take part.
    """

    average: str | None = static(check_average, default=None)

    replacement: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False
    may_overflow: ClassVar[bool] = False
    equal: ClassVar[bool] = True

    def size(self, num_clients: int) -> int:
        """Number of slots S, static."""
        raise TypeError(f"{type(self).__name__} must define size(num_clients)")

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        """The cohort of round ``round_`` (int32 scalar) of the run with this key."""
        raise TypeError(f"{type(self).__name__} must define select(dataset, key, round_)")

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        """float[N], by client index: the probability that a client takes part in round ``round_``, stragglers apart."""
        raise TypeError(f"{type(self).__name__} must define inclusion(dataset, round_)")

    def log_probability(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> jax.Array:
        """log p of what :meth:`select` draws with this key, up to what no real parameter of the scheme is part of."""
        return unparametrised(self)

    def of_exchange(self, after: int) -> Participation:
        """The scheme of an exchange with a cohort of its own, by the number of those after it in a round; 0: the last.

        Exchanges draw with different keys, so that one scheme serves all; cohorts that are given need no key.
        """
        return self

    def averaging(self, average: str) -> Averaging:
        """What ``average`` means for this scheme."""
        return AVERAGES[average]

    def weigh(
        self,
        dataset: FederatedDataset,
        selection: Selection,
        took_part: jax.Array,
        average: str,
        round_: int | jax.Array,
    ) -> Weights:
        """The weights of a round's average, by its name.

        ``took_part``, bool[S], is true for those of the selection who are present and did not drop out.
        """
        real = jnp.result_type(float)
        sizes = dataset.sizes[storage(dataset, selection.indices)].astype(real)
        visits = Visits(
            drawn=selection.drawn.astype(real),
            taken=jnp.where(took_part & selection.present, selection.count, 0).astype(real),
            sizes=sizes,
            shares=sizes / jnp.asarray(dataset.num_examples, real),
            num_clients=dataset.num_clients,
            inclusion=lambda: self.inclusion(dataset, round_).at[selection.indices].get(mode="clip"),
        )
        return self.averaging(average).weigh(visits)

    def objective(self, average: str) -> str:
        """Which F the scheme's average minimises, in words."""
        meaning = self.averaging(average)
        return meaning.objective if self.equal else meaning.unequal

    def fitted(self, dataset: FederatedDataset) -> Self:
        """The scheme with its static sizes found from concrete values; called before a program is compiled."""
        return self

    def draw(self, dataset: FederatedDataset, key: jax.Array, round_: int | jax.Array, average: str = "sample") -> Draw:
        """Ids, mask and weights of a round's cohort, as the compiled run with this key draws them.

        Clients who are not available are void; stragglers that the ``work`` scheme drops later are still in it. Rounds
        are counted from 0; ``average`` is the algorithm's own, which counts where the scheme's is None.
        """
        round_ = jnp.asarray(round_, jnp.int32)
        selection = self.select(dataset, key, round_)
        mask = selection.present
        weights = self.weigh(dataset, selection, mask, self.average or average, round_)
        ids = dataset.client_ids[storage(dataset, selection.indices)]
        return Draw(jnp.where(mask, ids, -1), mask, weights.clients, weights.shift)


def everyone(num_clients: int, value: Any) -> jax.Array:
    """``value`` for every client, float[N] in the default float type."""
    return jnp.full((num_clients,), jnp.asarray(value).astype(jnp.result_type(float)))


def storage(dataset: FederatedDataset, indices: jax.Array) -> jax.Array:
    """Where clients are stored, by their indices; of indices out of range, anywhere."""
    return dataset.order.at[indices].get(mode="clip")
