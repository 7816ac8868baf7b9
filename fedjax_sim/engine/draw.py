"""The draw of a round: who takes part, with how many steps, at what weight and rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Method
from fedjax_sim.algorithms.probe import probe
from fedjax_sim.algorithms.wrapper import Wrapped
from fedjax_sim.clients.cohort.participation import Selection, storage
from fedjax_sim.clients.local.batches import batches_in
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.clients.systems.base import Clock, Cost, Visit, close_exchange, seconds_per_step
from fedjax_sim.clients.systems.flops import gradient_flops
from fedjax_sim.core import trees
from fedjax_sim.core.keys import ClientDraws, Purpose, client_draws, fold_in, purpose_key, round_key
from fedjax_sim.engine import client_states
from fedjax_sim.engine.layout.base import of_one
from fedjax_sim.engine.plan import Phase, Plan, TrainState
from fedjax_sim.engine.solver import Slot, Solver
from fedjax_sim.optim.rates import rate_at


class Drawn(NamedTuple):
    """A round's cohort; what is absent is None.

    Attributes:
      refused: int32, slots that are void because an id or a number of steps given for them cannot be meant.
    """

    slots: Slot  # as its clients see it, leaves [S, ...]
    cohort: Cohort  # as the server sees it
    overflow: jax.Array  # bool scalar, whether the scheme had fewer slots than it drew clients
    lowest: jax.Array | None  # smallest accumulation weight of the local solvers times eta, where they are probed
    clock: Clock | None = None  # what the exchange took in virtual time, where there is a system
    undamped: jax.Array | None = None  # [S], the weights of the average before an asynchronous server's staleness
    refused: jax.Array | None = None
    waited: dict[str, jax.Array] | None = None  # what an asynchronous server adds to the record


def draw(plan: Plan, phase: Phase, sent: Any, t: jax.Array, cost: Cost | None = None) -> Drawn:
    """The cohort of a round."""
    data, key = plan.dataset, phase.key
    selection = phase.cohort.select(data, key, t)
    stored = storage(data, selection.indices)
    ids, sizes = data.client_ids[stored], data.sizes[stored]
    rows = plan.batches.rows(data)
    draws = client_draws(key, t, ids)
    valid = selection.present
    visit: Any = None
    seconds: Any = ()
    if plan.system is not None:
        assert cost is not None
        visit, cost = before_work(plan, phase.method, selection.indices, ids, sizes, rows, cost)
        seconds = seconds_per_step(plan.system, visit, key, t, cost)
    if phase.method.requires.steps:
        tau = plan.work.steps(Turn(draws, t, selection.indices, ids, valid, plan.batches.epoch(sizes, rows), seconds))
    else:
        tau = jnp.ones_like(sizes)  # an exchange without local steps has no stragglers
    refused = selection.refused
    if plan.work.may_refuse:
        refused = jnp.sum(valid & (tau < 0), dtype=jnp.int32) + (0 if refused is None else refused)
    valid = valid & (tau > 0)
    clock = None
    if plan.system is not None:
        assert cost is not None
        visit = visit._replace(valid=valid, steps=tau, lots=draws.at_one_instant)
        closed, clock = close_exchange(plan.system, visit, key, t, cost)
        valid, tau = closed.reported, closed.steps
    drawn = assemble(plan, phase, sent, t, selection, draws, tau, valid)
    return drawn._replace(clock=clock, refused=refused)


def assemble(
    plan: Plan,
    phase: Phase,
    sent: Any,
    t: jax.Array,
    selection: Selection,
    draws: ClientDraws,
    tau: jax.Array,
    valid: jax.Array,
    *,
    rate_rounds: jax.Array | None = None,
) -> Drawn:
    """The cohort, once it is known who takes part with how many steps.

    ``rate_rounds``, int32[S], are the rounds that clients' learning rates are of, where that is not ``t`` for all.
    """
    data, method, num_clients = plan.dataset, phase.method, plan.dataset.num_clients
    stored = storage(data, selection.indices)
    ids, sizes = data.client_ids[stored], data.sizes[stored]
    tau = jnp.where(valid, tau, 0).astype(jnp.int32)
    indices = jnp.where(valid, selection.indices, num_clients).astype(jnp.int32)

    averaging = plan.averaging(method)
    weights, shift = phase.cohort.weigh(data, selection, valid, plan.average(method), t)
    relative = sizes.astype(weights.dtype) * (num_clients / jnp.asarray(data.num_examples, weights.dtype))
    share = relative / num_clients if averaging.share == "sample" else jnp.full_like(weights, 1 / num_clients)

    def rate_of(t: jax.Array, i: jax.Array) -> Any:
        return jax.tree.map(jnp.asarray, rate_at(method.client_learning_rate, t, i))

    own = draws.purpose(Purpose.ALGORITHM)
    if phase.after:  # exchanges with one cohort have one key, and draws of their own
        own = jax.vmap(fold_in, (0, None))(own, jnp.uint32(phase.after))
    of_rounds, axis = (t, None) if rate_rounds is None else (rate_rounds, 0)
    rates = jax.vmap(rate_of, (axis, 0))(of_rounds, jnp.minimum(indices, num_clients - 1))
    client = Client(
        index=indices,
        id=ids,
        size=sizes,
        steps=tau,
        weight=weights,
        share=share,
        learning_rate=rates,
        relative_size=relative,
        key=own,
        scale=relative if averaging.scales else None,
    )
    client, lowest = _probed(plan, method, sent, client)
    slots = Slot(
        client=client,
        offset=data.offsets[stored],
        draws=plan.batches.prepare(draws),
        model_key=draws.purpose(Purpose.MODEL),
    )
    cohort = Cohort(
        indices=indices,
        valid=valid,
        weights=weights,
        size=jnp.sum(valid, dtype=jnp.int32),
        num_clients=num_clients,
        mass=jnp.sum(weights),
        round=t,
        key=purpose_key(round_key(phase.key, t), Purpose.SERVER),
        shift=shift,
        expected=jnp.sum(phase.cohort.inclusion(data, t)) if method.requires.expected_size else None,
    )
    return Drawn(slots, cohort, selection.overflow, lowest)


def _probed(plan: Plan, method: Method, sent: Any, client: Client) -> tuple[Client, jax.Array | None]:
    """The cohort's clients with what the method requires to be known of their solvers, and its smallest weight."""
    requires, lowest = method.requires, None
    if requires.slope:
        most = requires.gradients(plan.work.most_steps(plan.batches.most_in_epoch(plan.dataset)))
        slope, lows = probe(method, plan.params, sent, client, most)
        lowest, client = jnp.min(lows), client._replace(slope=slope)
    if requires.step_size:
        one = client._replace(steps=jnp.minimum(client.steps, 1))
        client = client._replace(step_size=probe(method, plan.params, sent, one, 1).slope)
    return client, lowest


def before_work(
    plan: Plan, method: Method, indices: jax.Array, ids: jax.Array, sizes: jax.Array, rows: int, cost: Cost
) -> tuple[Visit, Cost]:
    """The cohort before its work is known, and the cost with each client's operations a gradient."""
    requires = method.requires
    pieces = plan.batches.pieces(sizes, rows) if requires.steps else jnp.zeros_like(sizes)
    passes = batches_in(sizes, rows) if requires.survey else jnp.zeros_like(sizes)
    each = requires.per_step
    passes, pieces = each * (passes + requires.more_steps * pieces), each * requires.hold * pieces
    if plan.system is not None and plan.system.counts_flops:
        part = plan.batches.examples_per_batch(sizes, rows) / rows
        cost = cost._replace(flops_per_step=jnp.asarray(cost.flops_per_step, part.dtype) * part)
    nobody = jnp.zeros(indices.shape, bool)
    return Visit(indices, ids, nobody, jnp.zeros_like(sizes), pieces, passes, jnp.zeros_like(ids, jnp.uint32)), cost


def exchange_cost(plan: Plan, phase: Phase, sent: Any, t: jax.Array, state: TrainState) -> Cost:
    """What a phase's exchange with one client costs, in a run with a system."""
    assert plan.system is not None
    # The shapes of the messages, from the slots of a draw that is never computed.
    slots = jax.eval_shape(lambda: draw(plan, phase, sent, t, Cost(0.0, 0.0)).slots)
    down, up = traffic(Solver(phase.method, plan.task, plan.batches, plan.dataset), sent, state, slots)
    flops = 0.0
    if plan.system.counts_flops:
        flops = gradient_flops(plan.task, plan.params, plan.dataset, plan.batches.rows(plan.dataset))
    return Cost(down, up, flops)


def traffic(solver: Solver, sent: Any, state: TrainState, slots: Slot) -> tuple[int, int]:
    """Bytes that one client receives, with what it hears when the exchange is over, and sends; from shapes."""
    states = jax.eval_shape(client_states.take, state.clients, slots.client.index)
    down, up = solver.traffic(sent, *of_one((states, slots)))
    server, hears = state.server, solver.algorithm.requires.hears
    while hears and isinstance(server, Wrapped):
        server = server.base
    return down + trees.size_in_bytes([getattr(server, name) for name in hears]), up
