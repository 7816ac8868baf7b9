"""What a layout is: a way to bring a cohort to the hardware.

A layout runs one round's local work of S clients: it decides their order and how many run at once, never their
result. All layouts agree up to round-off, for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine import client_states
from fedjax_sim.engine.solver import Draw, Left, Slot, Solver, Watch


class Bounds(NamedTuple):
    """Static sizes of a round.

    Attributes:
      per_client: upper bound of one client's micro-steps.
      per_cohort: upper bound of the cohort's micro-steps together.
      distinct: whether no client has two slots.
      survey_per_client: upper bound of one client's micro-steps of a survey.
      survey_per_cohort: upper bound of the cohort's.
      reverse: whether reverse mode is to pass; else dynamic loops are differentiated as they run, in forward mode.
      varies: whether clients may take fewer micro-steps than their sizes allow, as stragglers do.
    """

    per_client: int
    per_cohort: int
    distinct: bool = True
    survey_per_client: int = 0
    survey_per_cohort: int = 0
    reverse: bool = True
    varies: bool = False

    @property
    def of_survey(self) -> Bounds:
        """Those of the survey alone."""
        return Bounds(self.survey_per_client, self.survey_per_cohort, self.distinct, 0, 0, self.reverse)


class LocalResult(NamedTuple):
    """What the clients of a round leave.

    Attributes:
      sums: weighted sums of the messages by name.
      stacks: [S, ...] stacks of the messages that the server gets one by one.
      clients: the new client states, [S, ...].
      computed: int32, micro-steps that the hardware computed, idle ones included.
    """

    sums: dict[str, Any]
    stacks: dict[str, Any]
    clients: Any
    computed: jax.Array


Run = Callable[[Solver, Any, Any, Slot], LocalResult]


class Layout(Described):
    """Base of the layouts; pure structure."""

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

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        """What of these static numbers a program of this layout is made of; a derivative's are not asked for."""
        return bounds, dataset.max_size, dataset.largest

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
        """:func:`fedjax_sim.client_states.take`."""
        return client_states.take(clients, indices)

    def put(self, clients: Any, indices: jax.Array, new: Any) -> Any:
        """:func:`fedjax_sim.client_states.put`."""
        return client_states.put(clients, indices, new)


def left_shapes(solver: Solver, sent: Any, states: Any, slots: Slot) -> Left:
    """Shapes of what one client leaves."""

    def one(c_i: Any, slot: Slot) -> Left:
        if solver.surveyor is not None:
            slot = slot.told(solver.surveyor.begin(sent, c_i, slot).survey.value)
        return solver.finish(sent, c_i, slot, solver.begin(sent, c_i, slot))

    return jax.eval_shape(one, *of_one((states, slots)))


def drawn_ahead(solver: Solver, slots: Slot, most: int) -> Draw | None:
    """What the first ``most`` micro-steps of a cohort draw, leaves [most, S, ...]; None where that is too much to hold.

    Drawn step by step, the rounds of a permutation are a loop within the loop of steps, and on an accelerator a dozen
    small kernels for each step; all together they are as many for the round.
    """
    ks = jnp.arange(most, dtype=jnp.int32)
    draw = jax.vmap(jax.vmap(solver.draw, (0, None)), (None, 0))
    drawn: Draw = jax.eval_shape(draw, slots, ks)
    held = sum(leaf.size for leaf in jax.tree.leaves(drawn))
    return draw(slots, ks) if held <= _MOST_AHEAD else None


_MOST_AHEAD = 1 << 24  # numbers, 64 MB


def of_one(slots: Any) -> Any:
    """Shapes of one slot, of leaves [S, ...]."""
    return jax.tree.map(lambda leaf: jax.eval_shape(lambda x: x[0], leaf), slots)


def surveyed(run: Run, solver: Solver, sent: Any, states: Any, slots: Slot) -> tuple[Slot, jax.Array]:
    """The slots of clients that have surveyed their data, and the micro-steps that this computed.

    ``run(solver, sent, states, slots)`` is how the layout runs a cohort.
    """
    if solver.surveyor is None:
        return slots, jnp.int32(0)
    result = run(solver.surveyor, sent, states, slots)
    return slots.told(result.stacks[Watch.SURVEY]), result.computed
