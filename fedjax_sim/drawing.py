"""The draw of a round: who takes part, with how many steps, at what weight and rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Method
from fedjax_sim.cohort.participation import Selection
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.keys import ClientDraws, Purpose, client_draws, purpose_key, round_key
from fedjax_sim.local.batches import batches_in
from fedjax_sim.local.solver import Slot
from fedjax_sim.local.work import Turn
from fedjax_sim.rates import rate_at
from fedjax_sim.setting import Setting
from fedjax_sim.systems.base import Cost
from fedjax_sim.systems.closing import Visit, close_exchange, seconds_per_step


class Drawn(NamedTuple):
    """A round's cohort.

    Attributes:
      slots: as its clients see it, leaves [S, ...].
      cohort: as the server sees it.
      overflow: bool scalar, whether the scheme had fewer slots than it drew clients.
      lowest: smallest accumulation weight of the local solvers times eta, or ``()`` where nothing is probed.
      clock: what the exchange took in virtual time, a :class:`fedjax_sim.systems.closing.Clock`; ``()`` without a
        system.
      undamped: [S], the weights of the average before an asynchronous server's staleness; ``()`` where they are the
        cohort's.
      refused: int32, slots that are void because an id or a number of steps given for them cannot be meant; ``()``
        where none is given.
    """

    slots: Slot
    cohort: Cohort
    overflow: jax.Array
    lowest: Any
    clock: Any = ()
    undamped: Any = ()
    refused: Any = ()


def draw(
    setting: Setting,
    algorithm: Method,
    dataset: FederatedDataset,
    key: jax.Array,
    sent: Any,
    round_: jax.Array,
    cost: Cost | None = None,
) -> Drawn:
    """The cohort of a round.

    Args:
      setting: the run.
      algorithm: the phase's method.
      dataset: training data.
      key: the run's key, or that of a phase with a cohort of its own.
      sent: the round's broadcast.
      round_: int32 scalar t.
      cost: of the exchange with one client, where the run has a system.
    """
    selection = setting.cohort.select(dataset, key, round_)
    storage = dataset.order.at[selection.indices].get(mode="clip")
    ids, sizes = dataset.client_ids[storage], dataset.sizes[storage]
    rows = setting.batches.rows(dataset)
    draws = client_draws(key, round_, ids)
    valid = selection.present
    visit: Any = None
    seconds: Any = ()
    if setting.system is not None:
        assert cost is not None
        visit, cost = before_work(setting, algorithm, selection.indices, ids, sizes, rows, cost)
        seconds = seconds_per_step(setting.system, visit, key, round_, cost)
    if algorithm.takes_steps:
        turn = Turn(draws, round_, selection.indices, ids, valid, setting.batches.epoch(sizes, rows), seconds)
        tau = setting.work.steps(turn)
    else:
        tau = jnp.ones_like(sizes)  # an exchange without local steps has no stragglers
    refused = selection.refused
    if setting.work.may_refuse:
        refused = jnp.sum(valid & (tau < 0), dtype=jnp.int32) + (0 if isinstance(refused, tuple) else refused)
    valid = valid & (tau > 0)
    clock: Any = ()
    if setting.system is not None:
        assert cost is not None
        closed = close_exchange(setting.system, visit._replace(valid=valid, steps=tau), key, round_, cost)
        valid, tau, clock = closed.reported, closed.steps, closed.clock
    drawn = assemble(setting, algorithm, dataset, key, sent, round_, selection, draws, tau, valid, clock=clock)
    return drawn._replace(refused=refused)


def assemble(
    setting: Setting,
    algorithm: Method,
    dataset: FederatedDataset,
    key: jax.Array,
    sent: Any,
    round_: jax.Array,
    selection: Selection,
    draws: ClientDraws,
    tau: jax.Array,
    valid: jax.Array,
    *,
    clock: Any = (),
    rate_rounds: jax.Array | None = None,
) -> Drawn:
    """The cohort, once it is known who takes part with how many steps.

    Args:
      setting: the run.
      algorithm: the phase's method.
      dataset: training data.
      key: the run's key, or that of a phase with a cohort of its own.
      sent: the round's broadcast.
      round_: int32 scalar t.
      selection: the clients, [S].
      draws: what each draws from.
      tau: int32[S], their steps.
      valid: bool[S], who takes part.
      clock: see :class:`Drawn`.
      rate_rounds: int32[S], the round that each client's learning rate is of, where it is not ``round_`` for all.
    """
    num_clients = dataset.num_clients
    storage = dataset.order.at[selection.indices].get(mode="clip")
    ids, sizes = dataset.client_ids[storage], dataset.sizes[storage]
    tau = jnp.where(valid, tau, 0).astype(jnp.int32)
    indices = jnp.where(valid, selection.indices, num_clients).astype(jnp.int32)

    averaging = setting.averaging(algorithm)
    weights, shift = setting.cohort.weigh(dataset, selection, valid, setting.average(algorithm), round_)
    relative = sizes.astype(weights.dtype) * (num_clients / dataset.num_examples)
    if averaging.share == "sample":
        share = relative / num_clients
    else:
        share = jnp.full_like(weights, 1 / num_clients)

    def rate_of(t: jax.Array, i: jax.Array) -> Any:
        return jax.tree.map(jnp.asarray, rate_at(algorithm.client_learning_rate, t, i))

    known = jnp.minimum(indices, num_clients - 1)
    if rate_rounds is None:
        rates = jax.vmap(rate_of, (None, 0))(round_, known)
    else:
        rates = jax.vmap(rate_of)(rate_rounds, known)
    slope: Any = ()
    step_size: Any = ()
    lowest: Any = ()
    if "slope" in algorithm.needs:
        most = setting.work.most_steps(setting.batches.most_in_epoch(dataset))
        slope, lows = algorithm.slopes(sent, rates, tau, most)
        lowest = jnp.min(lows)
    if "step_size" in algorithm.needs:
        step_size = algorithm.slopes(sent, rates, jnp.minimum(tau, 1), 1).slope
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
        step_size=step_size,
        relative_size=relative,
        scale=relative if averaging.scales else (),
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
        shift=shift,
        expected=jnp.sum(setting.cohort.inclusion(dataset, round_)) if "expected_size" in algorithm.needs else (),
    )
    return Drawn(slots, cohort, selection.overflow, lowest, clock)


def before_work(
    setting: Setting, algorithm: Method, indices: jax.Array, ids: jax.Array, sizes: jax.Array, rows: int, cost: Cost
) -> tuple[Visit, Cost]:
    """The cohort before its work is known, and the cost with each client's operations a gradient."""
    pieces = setting.batches.pieces(sizes, rows) if algorithm.takes_steps else jnp.zeros_like(sizes)
    passes = batches_in(sizes, rows) if "anchor" in algorithm.needs else jnp.zeros_like(sizes)
    if setting.system is not None and setting.system.counts_flops:
        part = setting.batches.examples_per_batch(sizes, rows) / rows
        cost = cost._replace(flops_per_step=jnp.asarray(cost.flops_per_step, part.dtype) * part)
    nobody = jnp.zeros(indices.shape, bool)
    return Visit(indices, ids, nobody, jnp.zeros_like(sizes), pieces, passes), cost
