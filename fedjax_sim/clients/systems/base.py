"""What a fleet of devices is to a run: how long clients take, in virtual seconds, and which of them fail.

Nothing here depends on what is learned, so a round's timing is known before its local work starts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedjax_sim.clients.systems.policies import Policy, wait_for_all
from fedjax_sim.core.descriptions import Described
from fedjax_sim.datasets.federated import FederatedDataset


class Cost(NamedTuple):
    """What one exchange with a client costs; static numbers of the method's phase.

    Attributes:
      bytes_down: bytes that a client receives.
      bytes_up: bytes that a client sends.
      flops_per_step: floating-point operations of one step, the gradient of one batch: a number, or one a client of
        the cohort, [S], where their batches differ in size; 0 where ``System.counts_flops`` is false.
    """

    bytes_down: float
    bytes_up: float
    flops_per_step: Any = 0.0


class Times(NamedTuple):
    """Virtual seconds of each client of a cohort, float[S].

    Attributes:
      download: until it has received the model, from the moment it is sent.
      compute: of its local work.
      upload: until the server has its message, from the moment the work is done.
    """

    download: jax.Array
    compute: jax.Array
    upload: jax.Array

    @property
    def total(self) -> jax.Array:
        """Seconds from the model's departure to the message's arrival, [S]."""
        return self.download + self.compute + self.upload


class System(Described):
    """Base of the systems: pure functions of (run key, round, client), so that every method sees the same devices.

    Attributes:
      policy: when the server closes a round, :mod:`fedjax_sim.systems.policies`.
    """

    @property
    def policy(self) -> Policy:
        """When the server closes a round; subclasses may have it as a field."""
        return wait_for_all()

    @property
    def counts_flops(self) -> bool:
        """Whether :meth:`times` reads ``cost.flops_per_step``; static."""
        return False

    @property
    def may_fail(self) -> bool:
        """Whether :meth:`failed` can be true; static."""
        return False

    @property
    def may_be_empty(self) -> bool:
        """Whether a round may end without any of its clients; static."""
        return self.may_fail or self.policy.may_be_empty

    @property
    def repeats(self) -> bool:
        """Whether the same cohort with the same work reports in the same way in every round; static."""
        return False

    def times(
        self,
        client_index: jax.Array,
        ids: jax.Array,
        steps: jax.Array,
        key: jax.Array,
        round_: jax.Array,
        cost: Cost,
    ) -> Times:
        """Virtual seconds of each client; what void slots get is finite and does not matter.

        Compute time is proportional to ``steps``.

        Args:
          client_index: int32[S], clients' indices (in the order of their ids); N or more in void slots.
          ids: int32[S], client ids; they key the draws.
          steps: int32[S], gradients on one batch each, those of passes over all local data included.
          key: the run's key, or that of a phase with a cohort of its own.
          round_: int32 scalar t.
          cost: of this exchange.
        """
        raise TypeError(f"{type(self).__name__} must define times(client_index, ids, steps, key, round_, cost)")

    def failed(self, client_index: jax.Array, ids: jax.Array, key: jax.Array, round_: jax.Array) -> jax.Array:
        """bool[S]: whether each client fails in this round, so that its work is lost.

        The server learns of it when the client would have reported. Arguments as in :meth:`times`.
        """
        raise TypeError(f"{type(self).__name__} must define failed(client_index, ids, key, round_)")

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        """Raises ``ValueError`` where the system cannot serve this data set or number of rounds."""
