"""One round: draw a cohort, run its local work, aggregate, settle, record. And rounds, one after another."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Method, nobody, received
from fedjax_sim.algorithms.probe import accumulation
from fedjax_sim.algorithms.wrapper import Wrapper, innermost, keeps_personal
from fedjax_sim.core import trees
from fedjax_sim.core.keys import Purpose, purpose_key, round_key
from fedjax_sim.core.loops import counted
from fedjax_sim.core.values import shapes
from fedjax_sim.diagnostics.base import RoundView
from fedjax_sim.engine.asynchronous.buffer import draw_buffer, first_flight
from fedjax_sim.engine.draw import Drawn, draw, exchange_cost, traffic
from fedjax_sim.engine.layout.base import Bounds, LocalResult
from fedjax_sim.engine.plan import Phase, Plan, TrainState
from fedjax_sim.engine.solver import Kept, Slot, Solver, Watch
from fedjax_sim.models.passes import mean_values
from fedjax_sim.optim import parts

Record = dict[str, jax.Array]
Scan = Callable[..., tuple[Any, Any]]  # (body, carry, xs) -> (carry, ys), as of lax.scan
Step = Callable[[Any, Any, jax.Array], tuple[Any, Any]]  # (plan, state, t) -> (state, record)
_NAMED = 4  # clients that the record of a round names when they diverge


class Exchange(NamedTuple):
    """An exchange of a round, as it went."""

    solver: Solver
    sent: Any
    drawn: Drawn  # without the clients that the guard has left out
    result: LocalResult  # what all of them left


def run_round(plan: Plan, state: TrainState, t: jax.Array) -> tuple[TrainState, Record]:
    """Round ``t``, int32: the state after it, and scalars or arrays by name.

    The record has ``"cohort_size"``, ``"useful_steps"`` (gradients that the clients needed) and ``"computed_steps"``
    (that the layout computed); ``"overflow"`` of schemes that can; ``"refused_slots"`` (void because of an id or a
    number of steps that cannot be meant) where these are traced; ``"nonfinite_clients"`` (those whose messages or state
    were not finite), ``"nonfinite_ids"`` (the first of them, -1 for none) and ``"diverged"`` (whether the new model is
    not finite); ``"lowest_weight"`` where the local solver is probed; what a
    :class:`fedjax_sim.clients.systems.base.Clock` has, in runs with a system; whose messages they are and how stale, in
    asynchronous runs; what the algorithm reports and the diagnostics measure.
    """
    plan, start, exchanges = plan.training, state, []
    if plan.algorithm.requires.objective:  # the server is told F(x)
        objective = mean_values(plan.task, plan.algorithm.model(state.server), plan.dataset)["loss"]
        state = state._replace(server=plan.algorithm.open(state.server, objective))
    phases = plan.phases()
    training = any(phase.method.requires.steps for phase in phases)
    for phase in phases:
        # Draw: who takes part, with how many steps.
        sent = phase.method.send(state.server)
        drawn, flight = take_part(plan, phase, sent, state, t)
        # Local work: every client of the cohort trains from what was sent.
        solver = _solver(plan, phase)
        states = plan.layout.take(state.clients, drawn.cohort.indices)
        result = plan.layout.run(solver, sent, states, drawn.slots, plan.bounds(phase.method))
        if plan.schedule.per_cohort:
            result = _within(plan.bounds(phase.method), solver, drawn.slots, result)
        # Aggregate: the server moves.
        drawn, messages = _received(plan, solver, sent, states, drawn, result)
        server = _updated(plan, phase.method, state.server, messages, drawn.cohort)
        # Settle: the clients hear of it, and their states are put back.
        clients = result.clients
        if phase.method.requires.hears and jax.tree.leaves(clients):
            clients = jax.vmap(solver.settle, (None, 0, 0))(server, clients, drawn.slots)
        visited = state.visited
        if visited is not None and (phase.method.requires.steps or not training):  # else its model is as it was
            visited = visited.at[drawn.cohort.indices].set(True, mode="drop")
        state = TrainState(server, plan.layout.put(state.clients, drawn.cohort.indices, clients), flight, visited)
        exchanges.append(Exchange(solver, sent, drawn, result))
    # Record.
    if plan.cohort.may_overflow:
        # A round in which clients found no slot is biased, and so is an average of models, which may be evaluated.
        state = state._replace(server=_or_nan(jnp.logical_not(_overflow(exchanges)), state.server))
    record = _recorded(plan, state, exchanges)
    record = _with(record, plan.algorithm.report(state.server), f"{type(plan.algorithm).__name__}.report returned")
    return state, _measured(plan, t, start, state, exchanges, record)


def take_part(plan: Plan, phase: Phase, sent: Any, state: TrainState, t: jax.Array) -> tuple[Drawn, Any]:
    """Who takes part in an exchange, and who is in flight when it ends.

    ``plan`` has its training data alone; ``state`` is that before the exchange.
    """
    if plan.system is None:
        return draw(plan, phase, sent, t), state.flight
    cost = exchange_cost(plan, phase, sent, t, state)
    if plan.asynchronous is None:
        return draw(plan, phase, sent, t, cost), state.flight
    return draw_buffer(plan, phase, sent, t, state.flight, cost)


def _solver(plan: Plan, phase: Phase) -> Solver:
    """What each client does, and what is seen of it."""
    watch = Watch(finite=True, skip=plan.guard.skip)
    if phase.seen:
        watch = watch.replace(updates=plan.observes("updates"), drift=plan.observes("drift"))
    if plan.asynchronous is not None:
        watch = watch.replace(mixing=plan.asynchronous.mixes_models)
    return Solver(phase.method, plan.task, plan.batches, plan.dataset, watch)


def _within(bounds: Bounds, solver: Solver, slots: Slot, result: LocalResult) -> LocalResult:
    """What the clients leave; NaN where they take more steps than an adjoint was told."""
    steps = solver.micro_steps(slots)
    held = (jnp.sum(steps) <= bounds.per_cohort) & (jnp.max(steps) <= bounds.per_client)
    sums, stacks, clients = _or_nan(held, (result.sums, result.stacks, result.clients))
    return LocalResult(sums, stacks, clients, result.computed)


def _received(
    plan: Plan, solver: Solver, sent: Any, states: Any, drawn: Drawn, result: LocalResult
) -> tuple[Drawn, dict[str, Any]]:
    """The cohort whose messages the server has, and the messages; without clients that the guard leaves out.

    These count as if they had dropped out. Their messages are zero already. Where the average's weights sum to 1 those
    of the clients left are scaled up; in the other averages a client that drops out counts as y_i = x. Sums that the
    method weighs itself stay as they are.
    """
    sums, cohort = result.sums, drawn.cohort
    if plan.guard.skip:
        kept = cohort.valid & result.stacks[Watch.FINITE]
        weights = jnp.where(kept, cohort.weights, jnp.zeros_like(cohort.weights))
        if plan.averaging(solver.algorithm).normalised:
            # Staleness makes a step shorter and is no part of the average, whose weights sum to 1.
            average = cohort.weights if drawn.undamped is None else drawn.undamped
            left = jnp.sum(jnp.where(kept, average, jnp.zeros_like(average)))
            factor = jnp.sum(average) / jnp.where(left > 0, left, jnp.ones_like(left))
            kinds = jax.eval_shape(jax.vmap(solver.messages, (None, 0, 0)), sent, states, drawn.slots)
            sums = {
                name: trees.scale(factor, total) if isinstance(kinds[name], Mean) else total
                for name, total in sums.items()
            }
            weights = weights * factor
        cohort = cohort._replace(
            indices=jnp.where(kept, cohort.indices, cohort.num_clients).astype(cohort.indices.dtype),
            valid=kept,
            weights=weights,
            size=jnp.sum(kept, dtype=jnp.int32),
            mass=jnp.sum(weights),
        )
    stacks = {name: stack for name, stack in result.stacks.items() if name not in Watch.NAMES}
    return drawn._replace(cohort=cohort), sums | stacks


def _updated(plan: Plan, method: Method, server: Any, messages: dict[str, Any], cohort: Cohort) -> Any:
    """The server after an exchange: the method moves it."""
    if not plan.may_be_empty or method.requires.acts_alone:
        return method.update(server, messages, cohort)
    # A momentum or a control variate must not move in a round in which nobody took part.
    return lax.cond(cohort.size > 0, lambda: method.update(server, messages, cohort), lambda: server)


def _recorded(plan: Plan, state: TrainState, exchanges: list[Exchange]) -> Record:
    """What the run itself records of a round."""
    last = exchanges[-1].drawn
    each = [one.solver.algorithm.requires.per_step for one in exchanges]
    useful = [jnp.sum(one.solver.all_micro_steps(one.drawn.slots), dtype=jnp.int32) for one in exchanges]
    computed = [one.result.computed for one in exchanges]
    record = {
        "cohort_size": last.cohort.size,
        "useful_steps": sum(map(operator.mul, useful, each), start=jnp.int32(0)),
        "computed_steps": sum(map(operator.mul, computed, each), start=jnp.int32(0)),
        **_divergence(plan.algorithm.model(state.server), exchanges),
    }
    if plan.cohort.may_overflow:
        record["overflow"] = _overflow(exchanges)
    if plan.guard.traced and last.refused is not None:
        # A cohort that serves two exchanges is counted once, where it trains: elsewhere no number of steps is refused.
        own = [phase.seen or phase.cohort is not plan.cohort for phase in plan.phases()]
        refused: list[Any] = [one.drawn.refused for one, counts in zip(exchanges, own, strict=True) if counts]
        record["refused_slots"] = sum(refused[1:], start=refused[0])
    if last.lowest is not None:
        record["lowest_weight"] = jnp.where(last.cohort.size > 0, last.lowest, 0)
    if last.clock is not None:
        clocks: list[Any] = [one.drawn.clock for one in exchanges]
        record |= functools.reduce(trees.add, clocks)._asdict()
    return record | (last.waited or {})


def _divergence(model: Any, exchanges: list[Exchange]) -> Record:
    """How many clients of a round were not finite, the ids of the first, and whether the model is not."""
    clients = [one.drawn.slots.client for one in exchanges]
    ids = jnp.concatenate([client.id for client in clients])
    bad = jnp.concatenate([
        ~one.result.stacks[Watch.FINITE] & (client.steps > 0) for one, client in zip(exchanges, clients, strict=True)
    ])  # fmt: skip
    # Not jnp.nonzero, which has three times the kernels: the k-th is where the count so far gets to k.
    so_far, ranks = jnp.cumsum(bad, dtype=jnp.int32), jnp.arange(1, min(_NAMED, len(ids)) + 1, dtype=jnp.int32)
    places = jnp.sum(so_far[None, :] < ranks[:, None], axis=1, dtype=jnp.int32)
    return {
        "nonfinite_clients": so_far[-1],
        "nonfinite_ids": ids.at[places].get(mode="fill", fill_value=-1).astype(jnp.int32),
        "diverged": ~trees.all_finite(model),
    }


def _measured(
    plan: Plan, t: jax.Array, start: TrainState, state: TrainState, exchanges: list[Exchange], record: Record
) -> Record:
    """The record with what the diagnostics measure of a round."""
    if not plan.diagnostics:
        return record
    down = up = jnp.zeros((), jnp.result_type(float))  # a large model's bytes do not fit an int32
    for one in exchanges:
        each = one.drawn.cohort.size.astype(down.dtype)
        bytes_down, bytes_up = traffic(one.solver, one.sent, state, one.drawn.slots)
        down, up = down + each * float(bytes_down), up + each * float(bytes_up)
    algorithm = plan.algorithm
    last = next(one for one, phase in zip(exchanges, plan.phases(), strict=True) if phase.seen)
    own, cohort = last.drawn.slots.client, last.drawn.cohort
    if plan.guard.skip:  # a client that it has left out is one that took no step
        taken = jnp.where(cohort.valid, own.steps, jnp.zeros_like(own.steps))
        own = own._replace(index=cohort.indices, steps=taken, weight=cohort.weights)
    client = algorithm.weighed(own, cohort) if isinstance(algorithm, Wrapper) else own
    weights_of_steps = _weights_of_steps(plan, last, own) if plan.observes("accumulation") else ()
    view = RoundView(
        task=plan.task, dataset=plan.dataset, algorithm=algorithm, before=algorithm.model(start.server),
        after=algorithm.model(state.server), client=client, cohort=cohort,
        updates=last.result.stacks.get(Watch.UPDATES, ()), drift=last.result.stacks.get(Watch.DRIFT, ()),
        weights_of_steps=weights_of_steps, bytes_down=down, bytes_up=up,
        useful_steps=record["useful_steps"], computed_steps=record["computed_steps"],
        key=purpose_key(round_key(plan.key, t), Purpose.DIAGNOSTICS),
    )  # fmt: skip
    for diagnostic in plan.diagnostics:
        name, more = type(diagnostic).__name__, diagnostic.measure(view)
        if not isinstance(more, dict):
            raise TypeError(
                f"{name}.measure returned {shapes(more)}: return arrays by name, {{'norm': trees.norm(...)}}"
            )
        record = _with(record, more, f"{name} records")
    return record


def _weights_of_steps(plan: Plan, last: Exchange, clients: Client) -> jax.Array:
    """How often each step's gradient is counted in a client's change, [S, most]."""
    method, steps = last.solver.algorithm, plan.work.most_steps(plan.batches.most_in_epoch(plan.dataset))
    try:
        return accumulation(method, plan.params, last.sent, clients, method.requires.gradients(steps))
    except (TypeError, ValueError) as error:  # of a solver that cannot be run without a model
        who = ", ".join(type(one).__name__ for one in plan.diagnostics if "accumulation" in one.observes)
        raise ValueError(
            f"diagnostics={who} of {type(innermost(method)).__name__}: it asks how often a client's change counts the "
            "gradient of each step, which is known of methods that step by F(y) of one whole model and terms linear or "
            "quadratic in y: leave it out"
        ) from error


def _with(record: Record, more: Record, who: str) -> Record:
    """The record with more entries."""
    if record.keys() & more.keys():
        raise ValueError(f"{who} {min(record.keys() & more.keys())!r}, which is recorded already")
    return record | more


def _overflow(exchanges: list[Exchange]) -> jax.Array:
    """Whether more clients were drawn than there were slots."""
    return functools.reduce(jnp.logical_or, (one.drawn.overflow for one in exchanges))


def _or_nan(sound: jax.Array, tree: Any) -> Any:
    """The tree, with NaN for all its real numbers where it is not ``sound``."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        real = jnp.issubdtype(leaf.dtype, jnp.inexact)
        return jnp.where(sound, leaf, jnp.full_like(leaf, jnp.nan)) if real else leaf

    return jax.tree.map(of_leaf, tree)


# From round to round


class EachSeed(NamedTuple):
    """Models that the seeds of a run start from, each its own."""

    models: Any  # leaves [seeds, ...]

    def of(self, row: int) -> Any:
        """That of one seed."""
        return jax.tree.map(lambda leaf: leaf[row], self.models)


def init_state(plan: Plan, initial_params: Any = None, initial_state: TrainState | None = None) -> TrainState:
    """The state before the first round, from a model or from a state of all clients if one is given.

    Client states that are kept apart are those of one client.
    """
    algorithm, data = plan.algorithm, plan.dataset
    if initial_state is not None:
        clients = initial_state.clients
        if jax.tree.leaves(clients):
            clients = plan.layout.spread(plan.client_states.first(clients))
        return initial_state._replace(clients=clients)
    params = initial_params
    if params is None:
        params = plan.task.init(purpose_key(plan.key, Purpose.INIT), data)
    if plan.averaging(algorithm).share == "sample":
        shares = data.shares[data.order]
    else:
        shares = jnp.full((data.num_clients,), 1 / data.num_clients, jnp.result_type(float))
    server = algorithm.init(params, shares)
    clients = plan.client_states.first(_first_client(algorithm, server, params))
    if not plan.client_states.apart:
        clients = plan.layout.fresh(clients, data.num_clients)
    flight = None if plan.asynchronous is None else first_flight(plan, server)
    visited = jnp.zeros((data.num_clients,), bool) if keeps_personal(algorithm) else None
    return TrainState(server, clients, flight, visited)


def _first_client(algorithm: Method, server: Any, params: Any) -> Any:
    """What is kept for a client before its first visit: with its solver's state, where that is carried over."""
    own = jax.tree.map(jnp.asarray, algorithm.init_client(params))
    if not algorithm.keep_optimizer:
        return own
    y = algorithm.begin(received(algorithm.send(server), jnp.int32(0)), own, nobody())
    return Kept(own, parts.begin(algorithm.client_optimizer, y))


@jax.jit
def initial_states(plan: Plan, initial_params: Any = None, initial_state: TrainState | None = None) -> TrainState:
    """The states of all seeds before the first round, of a plan with one key a seed; leaves [seeds, ...].

    ``initial_params`` are where all start, or :class:`EachSeed`; the leaves of ``initial_state`` are [seeds, ...].
    """

    def one(key: jax.Array, model: Any, state: TrainState | None) -> TrainState:
        return init_state(plan._replace(key=key), model, state)

    each = isinstance(initial_params, EachSeed)
    models = initial_params.models if each else initial_params
    return jax.vmap(one, (0, 0 if each else None, 0))(plan.key, models, initial_state)


def some_rounds(
    plan: Plan, state: TrainState, ts: jax.Array, scan: Scan = lax.scan, step: Step | None = None
) -> tuple[TrainState, Record]:
    """Rounds ``ts`` from ``state``, and what they record, leading axis rounds: every run takes its rounds from here.

    ``ts`` follow one another; ``scan`` is ``lax.scan`` or does the same in another way; ``step`` is a round, None for
    :func:`run_round`.
    """
    return scan(functools.partial(step or run_round, plan), state, ts)


def chunk_of_rounds(
    plan: Plan, state: TrainState, start: jax.Array, count: jax.Array, *, length: int
) -> tuple[TrainState, Record]:
    """``count`` <= ``length`` rounds from round ``start``; the record has ``length`` rows, zero beyond ``count``.

    The count is dynamic, so that no round at all, a whole chunk and a shorter last one are one compiled program.
    """
    ts = start + jnp.arange(length, dtype=jnp.int32)
    return some_rounds(plan, state, ts, counted(count), _traced_once)


_traced_once = jax.jit(run_round)  # for the shapes of its record and for the loop
