"""An asynchronous run: which methods have one, and its rounds' draw, the clients whose messages fill the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Mean, Method, Stack, nobody
from fedjax_sim.algorithms.wrapper import encodes
from fedjax_sim.clients.cohort.participation import Selection, storage
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.clients.systems.base import Clock, Cost, seconds_per_step
from fedjax_sim.core.keys import Purpose, client_draws, purpose_key
from fedjax_sim.core.trees import column
from fedjax_sim.diagnostics.measures import quantiles
from fedjax_sim.engine.asynchronous.events import Departure, Flight, RunKeys, Trip, fill_buffer
from fedjax_sim.engine.asynchronous.schemes import Constant, FedBuff
from fedjax_sim.engine.draw import Drawn, assemble, before_work
from fedjax_sim.engine.plan import Phase, Plan
from fedjax_sim.engine.solver import Slot, Solver

_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the staleness in the record


def check_method(plan: Plan) -> None:
    """Checks that the method has a meaning for messages that began with different models."""
    for reason in _reasons_against(plan):
        raise ValueError(
            f"{type(plan.algorithm).__name__} cannot be asynchronous: {reason}; asynchronous=... is for methods that "
            "average the clients' changes in one exchange, like fedavg, fedprox, fedadam and the other server "
            "optimisers"
        )


def _reasons_against(plan: Plan) -> Iterator[str]:
    algorithm, requires, average = plan.algorithm, plan.algorithm.requires, plan.average(plan.algorithm)
    if len(algorithm.phases()) > 1:
        yield "a round of it has several exchanges with its clients"
    if requires.everyone:
        yield "it needs everybody in every round"
    if requires.hears:
        yield "its clients hear of the new model at the end of a round"
    if plan.keeps_clients:
        yield "its clients keep state between their visits, which has no meaning for old models"
    if encodes(algorithm) and plan.asynchronous is not None and plan.asynchronous.mixes_models:
        yield (
            "its clients clip or compress the change of the model that they began with, and fedasync takes the change "
            "of the server's present one (use fedbuff)"
        )
    for what in ("slope", "step_size", "expected_size"):
        if getattr(requires, what):
            yield f"it counts on the {what!r} of a cohort whose clients began with one model"
    messages = _messages(plan)
    single = [name for name, message in messages.items() if isinstance(message, Stack)]
    if single:
        yield f"it reads single messages ({', '.join(single)}), which staleness cannot weigh"
    if not isinstance(messages.get("delta"), Mean):
        yield "its clients' changes ('delta') are not averaged as the cohort scheme says"
    fresh = getattr(plan.asynchronous, "staleness", None)
    damped = not isinstance(plan.asynchronous, FedBuff) or not isinstance(fresh, Constant)
    if damped and requires.averages <= WEIGHTED_MEANS:
        yield (
            "its formulas ask for weights that sum to one, and those of stale messages do not (use fedbuff with "
            "staleness=fedjax_sim.asynchronous.constant())"
        )
    if average not in ("sample", "plain"):
        yield (
            f"it averages by {average!r}, which counts on who is drawn in a round (give the cohort scheme "
            "average='plain', as in the papers, or 'sample')"
        )


def _messages(plan: Plan) -> dict[str, Any]:
    """Shapes of the messages of a client."""
    algorithm, data = plan.algorithm, plan.training.dataset

    def made() -> dict[str, Any]:
        key = jax.random.key(0)
        server = algorithm.init(plan.task.init(key, data), jnp.zeros((data.num_clients,)))
        solver = Solver(algorithm, plan.task, plan.batches, data)
        return solver.messages(algorithm.send(server), (), Slot(nobody(), jnp.int32(0), None, key))

    return jax.eval_shape(made)


def first_flight(plan: Plan, server: Any) -> Flight:
    """Nobody in flight, before the first round."""
    sent = jax.eval_shape(lambda: plan.algorithm.send(server))
    num_clients = plan.dataset.num_clients
    slots = plan.cohort.size(num_clients)
    nothing = jnp.zeros((slots,), jnp.int32)
    trips = Trip(jnp.full((slots,), num_clients, jnp.int32), nothing, nothing, nothing)
    arrival = jnp.full((slots,), jnp.inf, jnp.result_type(float))
    models = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), sent)
    return Flight(trips, arrival, jnp.zeros((slots,), bool), jnp.zeros_like(arrival), models)


def draw_buffer(plan: Plan, phase: Phase, sent: Any, t: jax.Array, flight: Flight, cost: Cost) -> tuple[Drawn, Flight]:
    """Runs the clock until the buffer is full: its clients as a cohort of K slots, and who is in flight then.

    Each slot has what its client began with.
    """
    scheme, data, num_clients = plan.asynchronous, plan.dataset, plan.dataset.num_clients
    assert scheme is not None
    may_fail = plan.work.may_drop or (plan.system is not None and plan.system.may_fail)
    keys = RunKeys(phase.key, purpose_key(phase.key, Purpose.REDRAW))
    timed = plan._replace(system=lax.stop_gradient(plan.system)) if may_fail else plan
    events = fill_buffer(
        flight, messages=scheme.messages, num_clients=num_clients,
        drawn=plan.cohort.select(data, phase.key, t), keys=keys, round_=t, may_fail=may_fail,
        depart=lambda trips: _departure(timed, phase.method, keys, t, trips, cost),
    )  # fmt: skip
    reports = events.reports
    arrived = reports.client < num_clients
    fresh = arrived & (reports.version == t)
    selection = Selection(reports.client, arrived.astype(jnp.int32))
    ids = data.client_ids[storage(data, reports.client)]
    draws = client_draws(jax.vmap(keys.of)(reports.redraw), reports.version, ids)
    drawn = assemble(plan, phase, sent, t, selection, draws, reports.steps, arrived, rate_rounds=reports.version)
    staleness = jnp.where(arrived, t - reports.version, 0)
    missed = staleness.astype(drawn.cohort.weights.dtype)
    weights = drawn.cohort.weights * scheme.factor(missed)
    client = drawn.slots.client._replace(weight=weights)
    # What clients began with is the round's broadcast where they were sent off in it.
    sent_now = (events.trips.client < num_clients) & (events.trips.version == t)
    in_flight = jax.tree.map(lambda old, new: _where(sent_now, new, old), flight.sent, sent)
    began = jax.tree.map(lambda old, new: _where(fresh, new, old[events.slots]), flight.sent, sent)
    left = Flight(events.trips, events.left, events.lost, events.apart, in_flight)
    real = events.now.dtype
    drawn = drawn._replace(
        slots=drawn.slots._replace(client=client, sent=began),
        cohort=drawn.cohort._replace(weights=weights, mass=jnp.sum(weights)),
        clock=Clock(
            duration=events.now,
            bytes_down=events.sent_off.astype(real) * float(cost.bytes_down),
            bytes_up=events.count.astype(real) * float(cost.bytes_up),
            reported=events.count,
            dropped_late=jnp.int32(0),
            failed=events.failures,
        ),
        undamped=drawn.cohort.weights,
        refused=events.refused if plan.work.may_refuse else None,
        waited={
            "client_ids": jnp.where(arrived, client.id, -1),
            "client_staleness": jnp.where(arrived, staleness, -1),
            "staleness": quantiles(missed, arrived, jnp.asarray(_LEVELS, missed.dtype)),
            "staleness_mean": jnp.sum(missed) / jnp.maximum(events.count, 1).astype(missed.dtype),
            "staleness_max": jnp.max(staleness),
        },
    )
    return drawn, left


def _departure(plan: Plan, method: Method, keys: RunKeys, round_: jax.Array, trips: Trip, cost: Cost) -> Departure:
    """What is known of clients when they are sent off with the model of round ``round_``."""
    dataset = plan.dataset
    stored = storage(dataset, trips.client)
    ids, sizes = dataset.client_ids[stored], dataset.sizes[stored]
    rows = plan.batches.rows(dataset)
    own = jax.vmap(keys.of)(trips.redraw)
    draws = client_draws(own, round_, ids)
    cohort, priced = before_work(plan, method, trips.client, ids, sizes, rows, cost)
    flops = jnp.broadcast_to(jnp.asarray(priced.flops_per_step), ids.shape)
    system = plan.system
    assert system is not None

    def alone(key: jax.Array, *of_client: Any) -> Departure:
        """A client by itself, whose draws may be those of a key of its own."""
        draws, visit, flops, epoch = jax.tree.map(lambda leaf: leaf[None], of_client)
        each = priced._replace(flops_per_step=flops)
        if method.requires.steps:
            seconds = seconds_per_step(system, visit, key, round_, each)
            present = jnp.ones(epoch.shape, bool)
            steps = plan.work.steps(Turn(draws, round_, visit.indices, visit.ids, present, epoch, seconds))
        else:
            steps = jnp.ones_like(epoch)
        gradients = jnp.where(steps > 0, visit.passes + steps * visit.pieces, 0)
        times = system.times(visit.indices, visit.ids, gradients, key, round_, each)
        failed = system.failed(visit.indices, visit.ids, key, round_) | (steps <= 0)
        return jax.tree.map(lambda leaf: leaf[0], Departure(steps.astype(jnp.int32), times.total, failed))

    left: Departure = jax.vmap(alone)(own, draws, cohort, flops, plan.batches.epoch(sizes, rows))
    return left._replace(seconds=left.seconds.astype(jnp.result_type(float)))


def _where(fresh: jax.Array, new: Any, old: jax.Array) -> jax.Array:
    one = jnp.asarray(new).astype(old.dtype)
    return jnp.where(column(fresh, old), jnp.broadcast_to(one, old.shape), old)
