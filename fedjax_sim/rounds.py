"""One round: draw a cohort, run its local work, aggregate, measure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.base import RoundView
from fedjax_sim.drawing import Drawn, draw
from fedjax_sim.evaluation import mean_values
from fedjax_sim.keys import Purpose, purpose_key, round_key
from fedjax_sim.layout.base import Bounds, Layout, LocalResult, finish_shapes
from fedjax_sim.layout.choose import choose_layout
from fedjax_sim.local.batches import batches_in
from fedjax_sim.local.solver import Solver, Watch
from fedjax_sim.optim.probe import accumulation
from fedjax_sim.setting import Setting, TrainState

Record = dict[str, jax.Array]


def prepare(setting: Setting, algorithm: Method, dataset: FederatedDataset, key: jax.Array) -> Method:
    """The algorithm with the traced values of bare optax objects made explicit; call before any round."""
    return algorithm.hoisted(jax.eval_shape(lambda k: setting.task.init(k, dataset), key))


def init_state(
    setting: Setting, algorithm: Method, dataset: FederatedDataset, key: jax.Array, initial_params: Any = None
) -> TrainState:
    """The state before the first round."""
    params = initial_params
    if params is None:
        params = setting.task.init(purpose_key(key, Purpose.INIT), dataset)
    num_clients = dataset.num_clients
    one = algorithm.init_client(params)
    clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), one)
    if setting.averaging(algorithm).share == "sample":
        shares = dataset.shares[dataset.order]
    else:
        shares = jnp.full((num_clients,), 1 / num_clients, jnp.result_type(float))
    server = algorithm.introduced(algorithm.init(params, num_clients), shares)
    if "objective" in algorithm.needs:
        server = algorithm.before(server, mean_values(setting.task, params, dataset.replace(test=None))["loss"])
    return TrainState(server, clients)


def run_round(
    setting: Setting,
    algorithm: Method,
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

    Returns:
      The state after the round, and scalars or arrays by name: ``"cohort_size"``, ``"useful_steps"`` (gradients that
      the clients needed) and ``"computed_steps"`` (that the layout computed); ``"overflow"`` of schemes that can;
      ``"lowest_weight"`` where the local solver is probed; what the algorithm reports and the diagnostics measure.
    """
    data = dataset.replace(test=None)
    before = state
    overflow = jnp.zeros((), bool)
    steps = {"useful_steps": jnp.int32(0), "computed_steps": jnp.int32(0)}
    bytes_down = bytes_up = 0
    for before_last, phase, phase_key in keyed_phases(algorithm, key):
        sent = phase.broadcast(state.server)
        drawn = draw(setting, phase, data, phase_key, sent, round_)
        solver = Solver(phase, setting.task, setting.batches, data, Watch() if before_last else _watch(setting))
        state, result = _run_phase(setting, solver, drawn, sent, state)
        overflow = overflow | drawn.overflow
        useful = jnp.sum(solver.micro_steps(drawn.slots), dtype=jnp.int32)
        steps = {
            "useful_steps": steps["useful_steps"] + useful,
            "computed_steps": steps["computed_steps"] + result.computed,
        }
        if setting.diagnostics:
            bytes_down += _bytes(sent)
            bytes_up += _bytes(finish_shapes(solver._replace(watch=Watch()), sent, state.clients, drawn.slots))
    if "objective" in algorithm.needs:
        objective = mean_values(setting.task, algorithm.model(state.server), data)["loss"]
        state = state._replace(server=algorithm.after(state.server, objective))
    record = {"cohort_size": drawn.cohort.size, **steps}
    if setting.cohort.may_overflow:
        state = _poisoned(algorithm, state, overflow)
        record["overflow"] = overflow
    if not isinstance(drawn.lowest, tuple):
        record["lowest_weight"] = jnp.where(drawn.cohort.size > 0, drawn.lowest, 0)
    record |= algorithm.report(state.server)
    if setting.diagnostics:
        view = RoundView(
            task=setting.task, dataset=data, algorithm=algorithm, before=algorithm.model(before.server),
            after=algorithm.model(state.server), client=drawn.slots.client, cohort=drawn.cohort,
            updates=result.stacks.get(Watch.UPDATES, ()), drift=result.stacks.get(Watch.DRIFT, ()),
            weights_of_steps=_accumulation(setting, solver, drawn, sent), bytes_down=bytes_down, bytes_up=bytes_up,
            useful_steps=steps["useful_steps"], computed_steps=steps["computed_steps"],
            key=purpose_key(round_key(key, round_), Purpose.DIAGNOSTICS),
        )  # fmt: skip
        for diagnostic in setting.diagnostics:
            measured = diagnostic.measure(view)
            if record.keys() & measured.keys():
                taken = min(record.keys() & measured.keys())
                raise ValueError(f"{type(diagnostic).__name__} records {taken!r}, which is recorded already")
            record |= measured
    return state, record


def keyed_phases(algorithm: Method, key: jax.Array) -> list[tuple[int, Method, jax.Array]]:
    """The phases of a round, each with the number of those after it and the key of its draws.

    The last phase trains and shares its draws with every other algorithm; earlier ones may have their own.
    """
    phases = list(enumerate(reversed(algorithm.phases())))[::-1]
    return [
        (after, phase, jax.random.fold_in(key, after) if after and phase.own_cohort else key) for after, phase in phases
    ]


def bounds(setting: Setting, algorithm: Method, dataset: FederatedDataset) -> Bounds:
    """Static upper bounds of a round's micro-steps, from the largest clients' sizes."""
    batches = setting.batches
    rows, largest = batches.rows(dataset), dataset.max_size
    slots = min(setting.cohort.size(dataset.num_clients), dataset.num_clients)
    ceilings = (dataset.largest_total(slots) + slots * (rows - 1)) // rows  # >= sum of ceil(n_i / rows)
    epoch, pieces = batches.most_in_epoch(dataset), batches.pieces(largest, rows)
    per_client = setting.work.most_steps(epoch) * pieces
    per_cohort = setting.work.most_total(slots, batches.most_in_epochs(dataset, slots), epoch)
    if pieces > 1:
        per_cohort = setting.work.most_steps(epoch) * ceilings
    if not algorithm.takes_steps:
        per_client = per_cohort = 0
    if "anchor" in algorithm.needs:
        per_client, per_cohort = per_client + batches_in(largest, rows), per_cohort + ceilings
    return Bounds(per_client, min(per_cohort, slots * per_client))


def layout_of(setting: Setting, algorithm: Method, dataset: FederatedDataset) -> Layout:
    """The given layout, or the one that the rule chooses."""
    if setting.layout is not None:
        return setting.layout
    shapes = jax.eval_shape(lambda: setting.task.init(jax.random.key(0), dataset))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    slots = setting.cohort.size(dataset.num_clients)
    return choose_layout(slots, parameters, bounds(setting, algorithm, dataset))


def _run_phase(
    setting: Setting, solver: Solver, drawn: Drawn, sent: Any, state: TrainState
) -> tuple[TrainState, LocalResult]:
    algorithm, cohort = solver.algorithm, drawn.cohort
    limits = bounds(setting, algorithm, solver.dataset)
    states = jax.tree.map(lambda leaf: leaf.at[cohort.indices].get(mode="clip"), state.clients)
    result = layout_of(setting, algorithm, solver.dataset).run(solver, sent, states, drawn.slots, limits)
    messages = {**result.sums, **result.stacks}
    if setting.cohort.may_be_empty or setting.work.may_drop:
        # A momentum or a control variate must not move in a round in which nobody took part.
        server = lax.cond(
            cohort.size > 0, lambda: algorithm.aggregate(state.server, messages, cohort), lambda: state.server
        )
    else:
        server = algorithm.aggregate(state.server, messages, cohort)
    new = result.clients
    if algorithm.settles:
        new = jax.vmap(lambda c_i: algorithm.settle(server, c_i))(new)
    clients = jax.tree.map(lambda all_, one: all_.at[cohort.indices].set(one, mode="drop"), state.clients, new)
    return TrainState(server, clients), result


def _watch(setting: Setting) -> Watch:
    return Watch(updates=setting.observes("updates"), drift=setting.observes("drift"))


def _accumulation(setting: Setting, solver: Solver, drawn: Drawn, sent: Any) -> Any:
    """a_i of every client of the cohort, where a diagnostic asks for it."""
    if not setting.observes("accumulation"):
        return ()
    algorithm, client = solver.algorithm, drawn.slots.client
    most = setting.work.most_steps(setting.batches.most_in_epoch(solver.dataset))
    mu = algorithm.proximal(sent)
    return accumulation(algorithm.client_optimizer, mu, sent.params, client.learning_rate, client.steps, most)


def _poisoned(algorithm: Method, state: TrainState, overflow: jax.Array) -> TrainState:
    """NaN for the model where clients were drawn that found no slot: the round would be biased without a word."""

    def poison(leaf: jax.Array) -> jax.Array:
        return jnp.where(overflow, jnp.full_like(leaf, jnp.nan), leaf)

    model = jax.tree.map(poison, algorithm.model(state.server))
    return state._replace(server=algorithm.with_model(state.server, model))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(lambda: tree)))
