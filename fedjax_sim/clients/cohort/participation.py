"""The base of all participation schemes: how a round's cohort is drawn and what is averaged.

A scheme is a pure function of (run key, round): it can be called inside the compiled program or ahead of it on the
host, with the same result. Clients are *indexed* 0..N-1 in the order of their fixed ids, so the order in which a data
set stores them changes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.cohort.averaging import AVERAGES, Averaging, Visits, Weights
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import static
from fedjax_sim.datasets.federated import FederatedDataset


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
      shift: what multiplies x besides (see :class:`fedjax_sim.cohort.averaging.Weights`), or None.
    """

    ids: jax.Array
    mask: jax.Array
    weights: jax.Array
    shift: Any = None


class Participation(Described, kw_only=True):
    """Base of the schemes.

    Attributes:
      average: a name of :data:`fedjax_sim.cohort.averaging.AVERAGES`, or None for the algorithm's own.
      replacement: whether a client can be drawn more than once a round.
      may_be_empty: whether a round may have no clients.
      may_overflow: whether ``Selection.overflow`` can be true.
      equal: whether all clients are equally likely to take part.
    """

    average: str | None = static(default=None)

    replacement: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False
    may_overflow: ClassVar[bool] = False
    equal: ClassVar[bool] = True

    def size(self, num_clients: int) -> int:
        """Number of slots S, static."""
        raise TypeError(f"{type(self).__name__} must define size(num_clients)")

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        """The cohort of a round.

        Args:
          dataset: who there is.
          key: the run's key.
          round_: int32 scalar t.
        """
        raise TypeError(f"{type(self).__name__} must define select(dataset, key, round_)")

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        """float[N], by client index: the probability that a client takes part in round ``round_``, stragglers apart."""
        raise TypeError(f"{type(self).__name__} must define inclusion(dataset, round_)")

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
        """The weights of a round's average.

        Args:
          dataset: who there is.
          selection: as drawn.
          took_part: bool[S], true for those present who did not drop out.
          average: a name of :data:`fedjax_sim.cohort.averaging.AVERAGES`.
          round_: t.
        """
        real = jnp.result_type(float)
        sizes = dataset.sizes[_storage(dataset, selection.indices)].astype(real)

        def inclusion() -> jax.Array:
            return self.inclusion(dataset, round_).at[selection.indices].get(mode="clip")

        visits = Visits(
            drawn=selection.drawn.astype(real),
            taken=jnp.where(took_part & selection.present, selection.count, 0).astype(real),
            sizes=sizes,
            shares=sizes / jnp.asarray(dataset.num_examples, real),
            num_clients=dataset.num_clients,
            inclusion=inclusion,
        )
        return self.averaging(average).weigh(visits)

    def objective(self, average: str) -> str:
        """Which F the scheme's average minimises, in words."""
        meaning = self.averaging(average)
        return meaning.objective if self.equal else meaning.unequal

    def fitted(self, dataset: FederatedDataset) -> Self:
        """The scheme with its static sizes found from concrete values; called before a program is compiled."""
        return self

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        """Raises ``ValueError`` where the scheme cannot serve this data set or number of rounds."""

    def checked(self) -> Self:
        if self.average is not None and self.average not in AVERAGES:
            known = ", ".join(map(repr, AVERAGES))
            raise ValueError(f"average={self.average!r}: it must be one of {known}, or None (the algorithm's own)")
        return self

    def draw(self, dataset: FederatedDataset, key: jax.Array, round_: int | jax.Array, average: str = "sample") -> Draw:
        """Ids, mask and weights of a round's cohort, as the compiled run with this key draws them.

        Clients who are not available are void; stragglers that the ``work`` scheme drops later are still in it.

        Args:
          dataset: who there is.
          key: the run's key.
          round_: t, counted from 0.
          average: the algorithm's own average, which counts where the scheme's is None.
        """
        round_ = jnp.asarray(round_, jnp.int32)
        selection = self.select(dataset, key, round_)
        mask = selection.present
        weights = self.weigh(dataset, selection, mask, self.average or average, round_)
        ids = dataset.client_ids[_storage(dataset, selection.indices)]
        return Draw(jnp.where(mask, ids, -1), mask, weights.clients, weights.shift)

    def _check_fits(self, what: str, count: int, dataset: FederatedDataset) -> None:
        if count > dataset.num_clients:
            raise ValueError(
                f"{what}({count}) draws a cohort larger than the data set's {dataset.num_clients} clients: "
                f"draw at most {dataset.num_clients}, or use with_replacement"
            )


def shares_by_index(dataset: FederatedDataset) -> jax.Array:
    """p_i = n_i / n, float[N] by client index."""
    return dataset.shares[dataset.order]


def everyone(num_clients: int, value: Any) -> jax.Array:
    """``value`` for every client, float[N] in the default float type."""
    return jnp.full((num_clients,), jnp.asarray(value).astype(jnp.result_type(float)))


def _storage(dataset: FederatedDataset, indices: jax.Array) -> jax.Array:
    return dataset.order.at[indices].get(mode="clip")
