"""One round: draw a cohort, run its local work, aggregate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import optim
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort
from fedjax_sim.cohort.participation import Participation
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.keys import Purpose, client_draws, purpose_key, round_key
from fedjax_sim.layout.base import Bounds, Layout
from fedjax_sim.layout.choose import choose_layout
from fedjax_sim.local.batches import Batches, batches_in
from fedjax_sim.local.slope import slopes
from fedjax_sim.local.solver import Slot, Solver
from fedjax_sim.local.work import Work
from fedjax_sim.rates import rate_at
from fedjax_sim.task import Task


class Setting(NamedTuple):
    """What a run does besides the algorithm and the data; a pytree.

    Attributes:
      task: what is learned.
      cohort: who takes part.
      work: how many local steps.
      batches: which examples a step sees.
      layout: how clients are run, or None for the rule of ``choose_layout``.
    """

    task: Task
    cohort: Participation
    work: Work
    batches: Batches
    layout: Layout | None


class TrainState(NamedTuple):
    """Everything that changes from round to round.

    Attributes:
      server: the algorithm's server state.
      clients: client states by client index, [N, ...]; ``()`` for stateless methods.
    """

    server: Any
    clients: Any


class Record(NamedTuple):
    """What every round records.

    Attributes:
      cohort_size: number of clients that took part.
      useful_steps: gradients that the clients needed.
      computed_steps: gradients that the layout computed.
    """

    cohort_size: jax.Array
    useful_steps: jax.Array
    computed_steps: jax.Array


def prepare(setting: Setting, algorithm: Algorithm, dataset: FederatedDataset, key: jax.Array) -> Algorithm:
    """The algorithm with the traced values of bare optax objects made explicit; call before any round."""
    params = jax.eval_shape(lambda k: setting.task.init(k, dataset), key)
    changed = {"client_optimizer": optim.hoist(algorithm.client_optimizer, params)}
    if algorithm.server_optimizer is not None:
        changed["server_optimizer"] = optim.hoist(algorithm.server_optimizer, params)
    return algorithm.replace(**changed)


def init_state(
    setting: Setting, algorithm: Algorithm, dataset: FederatedDataset, key: jax.Array, initial_params: Any = None
) -> TrainState:
    """The state before the first round."""
    params = initial_params
    if params is None:
        params = setting.task.init(purpose_key(key, Purpose.INIT), dataset)
    num_clients = dataset.num_clients
    one = algorithm.init_client(params)
    clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), one)
    server = algorithm.init(params, num_clients)
    if "objective" in algorithm.needs:
        server = algorithm.before(server, setting.task.evaluate(params, dataset.replace(test=None))["loss"])
    return TrainState(server, clients)


def run_round(
    setting: Setting,
    algorithm: Algorithm,
    dataset: FederatedDataset,
    key: jax.Array,
    state: TrainState,
    round_: jax.Array,
) -> tuple[TrainState, Record]:
    """All phases of round ``round_``.

    Args:
      setting: the run.
      algorithm: prepared by :func:`prepare`.
      dataset: the clients' data.
      key: the run's key.
      state: before the round.
      round_: int32 scalar t.
    """
    phases = algorithm.phases()
    record = Record(*[jnp.int32(0)] * 3)
    for position, phase in enumerate(phases):
        # The last phase trains and shares its draws with every other algorithm; earlier ones have draws of their own.
        before_last = len(phases) - 1 - position
        phase_key = key if before_last == 0 else jax.random.fold_in(key, before_last)
        state, phase_record = _run_phase(setting, phase, dataset, phase_key, state, round_)
        record = phase_record._replace(
            useful_steps=record.useful_steps + phase_record.useful_steps,
            computed_steps=record.computed_steps + phase_record.computed_steps,
        )
    if "objective" in algorithm.needs:
        objective = setting.task.evaluate(algorithm.parameters(state.server), dataset)["loss"]
        state = state._replace(server=algorithm.after(state.server, objective))
    return state, record


def bounds(setting: Setting, algorithm: Algorithm, dataset: FederatedDataset) -> Bounds:
    """Static upper bounds of a round's micro-steps, from the largest clients' sizes."""
    rows = setting.batches.rows(dataset)
    slots = min(setting.cohort.size(dataset.num_clients), dataset.num_clients)
    ceilings = (dataset.largest_total(slots) + slots * (rows - 1)) // rows  # >= sum of ceil(n_i / rows)
    largest = dataset.max_size
    epoch, pieces = setting.batches.epoch(largest, rows), setting.batches.pieces(largest, rows)
    per_client = setting.work.most_steps(epoch) * pieces
    per_cohort = setting.work.most_total(slots, min(ceilings, slots * epoch), epoch)
    if pieces > 1:
        per_cohort = setting.work.most_steps(epoch) * ceilings
    if not algorithm.takes_steps:
        per_client = per_cohort = 0
    if "anchor" in algorithm.needs:
        per_client, per_cohort = per_client + batches_in(largest, rows), per_cohort + ceilings
    return Bounds(per_client, min(per_cohort, slots * per_client))


def layout_of(setting: Setting, algorithm: Algorithm, dataset: FederatedDataset) -> Layout:
    """The given layout, or the one that the rule chooses."""
    if setting.layout is not None:
        return setting.layout
    shapes = jax.eval_shape(lambda: setting.task.init(jax.random.key(0), dataset))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    slots = setting.cohort.size(dataset.num_clients)
    return choose_layout(slots, parameters, bounds(setting, algorithm, dataset))


def average_of(cohort: Participation, algorithm: Algorithm) -> str:
    """``"sample"`` or ``"plain"``: the cohort's own choice, else the algorithm's."""
    return cohort.average or algorithm.default_average


def _run_phase(
    setting: Setting,
    algorithm: Algorithm,
    dataset: FederatedDataset,
    key: jax.Array,
    state: TrainState,
    round_: jax.Array,
) -> tuple[TrainState, Record]:
    sent = algorithm.broadcast(state.server)
    train = dataset.replace(test=None)
    solver = Solver(algorithm, setting.task, setting.batches, train)
    limits = bounds(setting, algorithm, dataset)
    slots, cohort = _draw(setting, algorithm, train, key, sent, round_)
    indices = cohort.indices
    states = jax.tree.map(lambda leaf: leaf.at[indices].get(mode="clip"), state.clients)
    result = layout_of(setting, algorithm, dataset).run(solver, sent, states, slots, limits)
    clients = jax.tree.map(lambda all_, new: all_.at[indices].set(new, mode="drop"), state.clients, result.clients)
    messages = {**result.sums, **result.stacks}
    if setting.cohort.may_be_empty or setting.work.may_drop:
        # A momentum or a control variate must not move in a round in which nobody took part.
        server = lax.cond(
            cohort.size > 0, lambda: algorithm.aggregate(state.server, messages, cohort), lambda: state.server
        )
    else:
        server = algorithm.aggregate(state.server, messages, cohort)
    useful = jnp.sum(solver.micro_steps(slots), dtype=jnp.int32)
    return TrainState(server, clients), Record(cohort.size, useful, result.computed)


def _draw(
    setting: Setting, algorithm: Algorithm, dataset: FederatedDataset, key: jax.Array, sent: Any, round_: jax.Array
) -> tuple[Slot, Cohort]:
    """The cohort of a round, as its clients and as the server see it."""
    num_clients = dataset.num_clients
    selection = setting.cohort.select(dataset, purpose_key(round_key(key, round_), Purpose.COHORT), round_)
    storage = dataset.order.at[selection.indices].get(mode="clip")
    ids, sizes = dataset.client_ids[storage], dataset.sizes[storage]
    valid = selection.count > 0
    rows = setting.batches.rows(dataset)
    epoch = setting.batches.epoch(sizes, rows)
    draws = client_draws(key, round_, ids)
    if algorithm.takes_steps:
        tau = setting.work.steps(draws, round_, selection.indices, ids, valid, epoch)
    else:
        tau = jnp.ones_like(sizes)  # a phase without local steps has no stragglers
    valid = valid & (tau > 0)
    tau = jnp.where(valid, tau, 0).astype(jnp.int32)
    indices = jnp.where(valid, selection.indices, num_clients).astype(jnp.int32)

    average = average_of(setting.cohort, algorithm)
    weights = setting.cohort.weights(jnp.where(valid, selection.count, 0), sizes, average)
    if setting.cohort.objective(average) == "sample":
        share = sizes.astype(weights.dtype) / dataset.num_examples
    else:
        share = jnp.full_like(weights, 1 / num_clients)

    rate = algorithm.client_learning_rate
    rates = jax.vmap(lambda i: jax.tree.map(jnp.asarray, rate_at(rate, round_, i)))(
        jnp.minimum(indices, num_clients - 1)
    )
    most = setting.work.most_steps(setting.batches.epoch(dataset.max_size, rows))
    slope = slopes(algorithm, sent, rates, tau, most) if "slope" in algorithm.needs else ()
    client = Client(
        index=indices,
        id=ids,
        size=sizes,
        steps=tau,
        weight=weights,
        share=share,
        learning_rate=rates,
        slope=slope,
        anchor=(),
        mean_loss=(),
        key=draws.purpose(Purpose.ALGORITHM),
    )
    slots = Slot(
        client=client,
        offset=dataset.offsets[storage],
        draws=setting.batches.prepare(draws),
        model_key=draws.purpose(Purpose.MODEL),
    )
    cohort = Cohort(
        indices=indices,
        valid=valid,
        weights=weights,
        size=jnp.sum(valid, dtype=jnp.int32),
        num_clients=num_clients,
        mass=jnp.sum(weights),
        round=round_,
        key=purpose_key(round_key(key, round_), Purpose.SERVER),
    )
    return slots, cohort
