"""A cohort dealt over several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import choice, count, leaf
from fedjax_sim.core.loops import sorted_places
from fedjax_sim.core.trees import column
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset, placed
from fedjax_sim.datasets.placement import (
    CLIENTS,
    EVERYWHERE,
    SHARED_OUT,
    Placement,
    device_mesh,
    everywhere,
    padded,
    shared_out,
)
from fedjax_sim.engine import client_states
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, of_one
from fedjax_sim.engine.layout.choose import choose_layout
from fedjax_sim.engine.layout.queue import Lanes, Static
from fedjax_sim.engine.layout.stacked import Stacked
from fedjax_sim.engine.solver import Slot, Solver


def _check_inner(what: str, value: Any) -> None:
    if value is not None and (not isinstance(value, Layout) or isinstance(value, OnMesh)):
        raise TypeError(f"{what} is {shown(value)}: give the layout of one device, fedjax_sim.layout.turns(), or None")


class OnMesh(Layout):
    """Every device runs its part of the cohort; ``shard_map`` over a mesh, one program for all devices and processes.

    Clients are dealt longest first to the device with least work (Graham 1969: about sum tau / D + max tau at most);
    clients with equal steps, and those of *stacked*, equally many to each. Weighted sums of the messages are added over
    the devices, so results differ from one device's by round-off, and are the same whenever the same number of devices
    runs. Client states are sharded by client. Everything else, the draw and the server's step, every device computes.

    Examples are on every device (``data="replicated"``), or each has its share of the rows (``"sharded"``): before the
    local work of a round the rows of the cohort's clients travel to the devices that run them, once around the ring.

    Args:
      devices: how many, the first of ``jax.devices()``, which has those of all processes; None for all.
      inner: how each device runs its part; None for the rule of one device.
      data: ``"replicated"`` or ``"sharded"``.
      model: how many devices share one model, as the sharding of the parameters says; they form a group that works as
        one device.
    """

    devices: int | None = count(default=None)
    inner: Layout | None = leaf(_check_inner, default=None)
    data: Literal["replicated", "sharded"] = choice(("replicated", "sharded"), default="replicated")
    model: int = count(default=1)

    @property
    def placement(self) -> Placement:
        """Where its arrays lie.

        Raises:
          ValueError: there are fewer devices.
        """
        return Placement(device_mesh(self.devices, self.model), self.data == "sharded")

    def of_one(self, model: int, slots: int, bounds: Bounds) -> Layout:
        """How one device runs its clients, about a D-th of the cohort's ``slots``, that train so many numbers each."""
        parts = self.placement.parts
        share = -(-slots // parts)
        inner = self.inner
        if inner is None:
            inner = choose_layout(share, model, bounds._replace(per_cohort=-(-bounds.per_cohort // parts)))
        if isinstance(inner, (Lanes, Static)) and inner.num_lanes > share:
            return inner.replace(num_lanes=share)  # more would wait for clients that other devices have
        return inner

    def placed(self, dataset: FederatedDataset) -> FederatedDataset:
        return dataset if dataset.placement == self.placement else placed(dataset, self.placement)

    def everywhere(self, tree: Any) -> Any:
        return everywhere(tree, self.placement.mesh)

    def fresh(self, one: Any, num_clients: int) -> Any:
        return self.spread(super().fresh(one, padded(num_clients, self.placement.parts)))

    def spread(self, clients: Any, axis: int = 0) -> Any:
        def lengthened(leaf: Any) -> Any:
            rows = leaf.shape[axis]
            places = jnp.arange(padded(rows, self.placement.parts), dtype=jnp.int32)
            # The last row again, which nobody reads: keys have no zeros.
            return leaf if len(places) == rows else jnp.take(leaf, places, axis, mode="clip")

        return shared_out(jax.tree.map(lengthened, clients), self.placement.mesh, axis)

    def take(self, clients: Any, indices: jax.Array) -> Any:
        if not _is_shared(clients):
            return client_states.take(clients, indices)

        def own(rows: Any, indices: jax.Array) -> Any:
            local, here = _local(rows, indices)

            def from_owner(leaf: jax.Array) -> jax.Array:
                return _sum(jnp.where(column(here, leaf), leaf, jnp.zeros_like(leaf)))

            return _of_numbers(from_owner, client_states.take(rows, local))

        return self.placement.map(own, (SHARED_OUT, EVERYWHERE), EVERYWHERE)(clients, indices)

    def put(self, clients: Any, indices: jax.Array, new: Any) -> Any:
        if not _is_shared(clients):
            return client_states.put(clients, indices, new)

        def own(rows: Any, indices: jax.Array, new: Any) -> Any:
            return client_states.put(rows, _local(rows, indices)[0], new)

        specs = (SHARED_OUT, EVERYWHERE, EVERYWHERE)
        return self.placement.map(own, specs, SHARED_OUT)(clients, indices, new)

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        placement, data = self.placement, solver.dataset
        size, parts = len(slots.offset), placement.parts
        share = -(-size // parts)

        def begun(c_i: Any, slot: Slot) -> Any:
            return solver.begin(sent, c_i, solver.surveyed(sent, c_i, slot)).y

        trained = jax.eval_shape(begun, *of_one((states, slots)))
        inner = self.of_one(sum(leaf.size for leaf in jax.tree.leaves(trained)), size, bounds)
        # Clients that compute equally much are dealt equally many to each; else a device may have them all but one.
        even = isinstance(inner, Stacked) or size * bounds.per_client <= _ALIKE * bounds.per_cohort
        room = share if even else size
        steps, survey = bounds, bounds.of_survey
        if even:
            most, most_survey = share * steps.per_client, share * survey.per_client
        else:
            total, largest = steps.per_cohort + survey.per_cohort, steps.per_client + survey.per_client
            most = most_survey = most_of_one(total, largest, size, parts)
        inside = bounds._replace(
            per_cohort=min(steps.per_cohort, most), survey_per_cohort=min(survey.per_cohort, most_survey)
        )
        window = min(room * data.max_size, data.largest_total(room)) if bounds.distinct else room * data.max_size
        hands = deal(solver.all_micro_steps(slots), slots.client.steps > 0, parts, room)
        rows = data.examples if placement.sharded else ()
        rest = solver._replace(dataset=data.replace(examples=())) if placement.sharded else solver

        def own(solver: Solver, rows: Any, sent: Any, states: Any, slots: Slot, hand: jax.Array) -> Any:
            states, slots = jax.tree.map(lambda leaf: leaf.at[hand].get(mode="clip"), (states, slots))
            steps = jnp.where(hand < size, slots.client.steps, jnp.zeros_like(slots.client.steps))
            slots = slots.at(steps, slots.offset)
            if placement.sharded:
                solver, slots = _fetched(solver, rows, slots, parts, max(window, data.max_size))
            result = inner.run(solver, sent, states, slots, inside)

            def back(of_hand: jax.Array) -> jax.Array:
                by_slot = jnp.zeros((size, *of_hand.shape[1:]), of_hand.dtype)
                return _sum(by_slot.at[hand].set(of_hand, mode="drop"))

            stacks, clients = _of_numbers(back, (result.stacks, result.clients))
            return jax.tree.map(_sum, result.sums), stacks, clients, _sum(result.computed)

        specs = (EVERYWHERE, SHARED_OUT, EVERYWHERE, EVERYWHERE, EVERYWHERE, SHARED_OUT)
        ran = placement.map(own, specs, EVERYWHERE)(rest, rows, sent, states, slots, hands)
        return LocalResult(*ran)


_ALIKE = 1.25  # idle over useful steps up to which clients count as having equally many


def deal(totals: jax.Array, valid: jax.Array, parts: int, room: int) -> jax.Array:
    """Which slots each device runs: longest first, to the device with least work that has room (Graham 1969's LPT).

    ``totals``, int32[S], are the slots' micro-steps; those that are not ``valid`` are dealt to nobody. int32[D * room]:
    the slots of the first device, then those of the second, and so on; S where it has no more.
    """
    size = len(totals)
    work = jnp.where(valid, totals + 1, 0)  # to begin and to end with a client is work too
    order = jnp.argsort(-work, stable=True).astype(jnp.int32)
    full = jnp.int32(jnp.iinfo(jnp.int32).max)

    def give(turn: jax.Array, dealt: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        hands, counts, loads = dealt
        slot = order[turn]
        to = lax.argmin(jnp.where(counts < room, loads, full), 0, jnp.int32)
        hands = hands.at[to * room + counts[to]].set(slot)
        return hands, counts.at[to].add(1), loads.at[to].add(work[slot])

    nothing = jnp.zeros((parts,), jnp.int32)
    empty = jnp.full((parts * room,), size, jnp.int32)
    return lax.fori_loop(0, jnp.sum(valid, dtype=jnp.int32), give, (empty, nothing, nothing))[0]


def most_of_one(total: int, largest: int, size: int, parts: int) -> int:
    """The most steps that :func:`deal` gives one device where none runs out of room.

    The last client of a device with load L, in steps + 1, came when no device had less than L - (largest + 1), so
    L <= (total + size)/D + largest + 1 (Graham 1969), and the device has at least that one client.
    """
    return -(-(total + size) // parts) + largest


def _fetched(solver: Solver, rows: Any, slots: Slot, parts: int, window: int) -> tuple[Solver, Slot]:
    """The device's slots on a window with the rows of their clients, from whichever devices have them.

    ``rows`` is the device's share of them, leaves [n / D, ...], ``window`` the most that its clients have.
    """
    sizes = jnp.where(slots.client.steps > 0, slots.client.size, 0)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    starts = ends - sizes
    places = jnp.arange(window, dtype=jnp.int32)
    owner = jnp.minimum(sorted_places(ends, places, side="right"), len(sizes) - 1)
    wanted = jnp.where(places < ends[-1], slots.offset[owner] + places - starts[owner], 0)
    ring = [(device, (device + 1) % parts) for device in range(parts)]

    def visit(asked: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
        wanted, found = asked
        local, here = _local(rows, wanted)

        def add(found: jax.Array, leaf: jax.Array) -> jax.Array:
            return jnp.where(column(here, found), leaf.at[local].get(mode="clip"), found)

        return lax.ppermute((wanted, jax.tree.map(add, found, rows)), CLIENTS, ring), None

    empty = jax.tree.map(lambda leaf: jnp.zeros((window, *leaf.shape[1:]), leaf.dtype), rows)
    # A request that has gone all round is back where it came from.
    (_, found), _ = lax.scan(visit, (wanted, empty), None, length=parts)
    weights = solver.dataset.example_weights
    weights = None if weights is None else weights[wanted]
    data = solver.dataset.replace(examples=found, example_weights=weights)
    return solver._replace(dataset=data), slots.at(slots.client.steps, starts)


def _local(rows: Any, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where rows of the whole are in a device's share, beyond its end if they are elsewhere; and whether they are."""
    share = jax.tree.leaves(rows)[0].shape[0]
    local = indices - lax.axis_index(CLIENTS).astype(indices.dtype) * share
    here = (local >= 0) & (local < share)
    return jnp.where(here, local, share), here


def _is_shared(clients: Any) -> bool:
    """Whether there are client states, and all of them: a cohort's window is on every device."""
    window = isinstance(clients, client_states.Rows) and clients.indices is not None
    return bool(jax.tree.leaves(clients)) and not window


def _of_numbers(function: Callable[[jax.Array], jax.Array], tree: Any) -> Any:
    """``function`` of every leaf; of a PRNG key's words."""

    def one(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return function(leaf)
        words = function(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))

    return jax.tree.map(one, tree)


def _sum(leaf: jax.Array) -> jax.Array:
    """The sum over devices; of booleans, whether any is true."""
    if leaf.dtype == bool:
        return lax.psum(leaf.astype(jnp.int32), CLIENTS) > 0
    return lax.psum(leaf, CLIENTS)


mesh = factory("layout.mesh", OnMesh)
