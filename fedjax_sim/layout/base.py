"""What a layout is: a way to bring a cohort to the hardware.

A layout runs one round's local work of S clients: it decides their order and how many run at once, never their
result. All layouts agree up to round-off, for every algorithm.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim import client_states
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import Described
from fedjax_sim.local.solver import Slot, Solver


class Bounds(NamedTuple):
    """Static sizes of a round.

    Attributes:
      per_client: upper bound of one client's micro-steps.
      per_cohort: upper bound of the cohort's micro-steps together.
      distinct: whether no client has two slots.
    """

    per_client: int
    per_cohort: int
    distinct: bool = True


class LocalResult(NamedTuple):
    """What the clients of a round leave.

    Attributes:
      sums: weighted sums of the messages by name.
      stacks: [S, ...] stacks of the messages named in the algorithm's ``stacked``.
      clients: the new client states, [S, ...].
      computed: int32, micro-steps that the hardware computed, idle ones included.
    """

    sums: dict[str, Any]
    stacks: dict[str, Any]
    clients: Any
    computed: jax.Array


class Layout(Described):
    """Base of the layouts; pure structure.

    Attributes:
      reverse: whether reverse mode can pass it.
    """

    reverse: ClassVar[bool] = True

    def as_it_runs(self) -> Layout:
        """The same program, differentiated through the loops that it runs: dynamic ones in forward mode only."""
        return self

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        """The local work of one round.

        Args:
          solver: what one client does.
          sent: the round's broadcast.
          states: the cohort's client states, [S, ...].
          slots: the cohort, every leaf [S, ...].
          bounds: static upper bounds.
        """
        raise TypeError(f"{type(self).__name__} must define run(...)")

    def placed(self, dataset: FederatedDataset) -> FederatedDataset:
        """The data set where this layout reads it from."""
        return dataset

    def everywhere(self, tree: Any) -> Any:
        """The arrays on all devices that this layout runs on."""
        return tree

    def fresh(self, one: Any, num_clients: int) -> Any:
        """The states of all clients before the first round: N times ``one``, leaves [N, ...] or longer."""
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), one)

    def spread(self, clients: Any, axis: int = 0) -> Any:
        """All clients' states, with clients on ``axis``, as this layout keeps them."""
        return clients

    def take(self, clients: Any, indices: jax.Array) -> Any:
        """See :func:`fedjax_sim.client_states.take`."""
        return client_states.take(clients, indices)

    def put(self, clients: Any, indices: jax.Array, new: Any) -> Any:
        """See :func:`fedjax_sim.client_states.put`."""
        return client_states.put(clients, indices, new)


class Around(Layout):
    """Base of what changes how another layout runs, and not where arrays lie."""

    base: Layout

    def placed(self, dataset: FederatedDataset) -> FederatedDataset:
        return self.base.placed(dataset)

    def everywhere(self, tree: Any) -> Any:
        return self.base.everywhere(tree)

    def fresh(self, one: Any, num_clients: int) -> Any:
        return self.base.fresh(one, num_clients)

    def spread(self, clients: Any, axis: int = 0) -> Any:
        return self.base.spread(clients, axis)

    def take(self, clients: Any, indices: jax.Array) -> Any:
        return self.base.take(clients, indices)

    def put(self, clients: Any, indices: jax.Array, new: Any) -> Any:
        return self.base.put(clients, indices, new)


def finish(
    solver: Solver, sent: Any, c_i: Any, slot: Slot, progress: Any
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """``(weighted messages, stacked messages, new c_i)`` of one client."""
    messages, new = solver.finish(sent, c_i, slot, progress)
    stacks = {name: messages[name] for name in solver.stacked}
    return solver.weigh(slot, messages), stacks, new


def finish_shapes(solver: Solver, sent: Any, states: Any, slots: Slot) -> tuple[Any, Any]:
    """Shapes of the weighted and of the stacked messages of one client."""

    def one(c_i: Any, slot: Slot) -> tuple[Any, Any]:
        weighted, stacks, _ = finish(solver, sent, c_i, slot, solver.begin(sent, c_i, slot))
        return weighted, stacks

    first = jax.tree.map(lambda leaf: jax.eval_shape(lambda x: x[0], leaf), (states, slots))
    weighted, stacks = jax.eval_shape(one, *first)
    return weighted, stacks
