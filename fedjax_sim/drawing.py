"""The draw of a round: who takes part, with how many steps, at what weight and rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.keys import Purpose, client_draws, purpose_key, round_key
from fedjax_sim.local.solver import Slot
from fedjax_sim.local.work import Turn
from fedjax_sim.rates import rate_at
from fedjax_sim.setting import Setting


class Drawn(NamedTuple):
    """A round's cohort.

    Attributes:
      slots: as its clients see it, leaves [S, ...].
      cohort: as the server sees it.
      overflow: bool scalar, whether the scheme had fewer slots than it drew clients.
      lowest: smallest accumulation weight of the local solvers times eta, or ``()`` where nothing is probed.
    """

    slots: Slot
    cohort: Cohort
    overflow: jax.Array
    lowest: Any


def draw(
    setting: Setting, algorithm: Method, dataset: FederatedDataset, key: jax.Array, sent: Any, round_: jax.Array
) -> Drawn:
    """The cohort of a round.

    Args:
      setting: the run.
      algorithm: the phase's method.
      dataset: training data.
      key: the run's key, or that of a phase with a cohort of its own.
      sent: the round's broadcast.
      round_: int32 scalar t.
    """
    num_clients = dataset.num_clients
    selection = setting.cohort.select(dataset, key, round_)
    storage = dataset.order.at[selection.indices].get(mode="clip")
    ids, sizes = dataset.client_ids[storage], dataset.sizes[storage]
    rows = setting.batches.rows(dataset)
    draws = client_draws(key, round_, ids)
    valid = selection.present
    if algorithm.takes_steps:
        turn = Turn(draws, round_, selection.indices, ids, valid, setting.batches.epoch(sizes, rows))
        tau = setting.work.steps(turn)
    else:
        tau = jnp.ones_like(sizes)  # an exchange without local steps has no stragglers
    valid = valid & (tau > 0)
    tau = jnp.where(valid, tau, 0).astype(jnp.int32)
    indices = jnp.where(valid, selection.indices, num_clients).astype(jnp.int32)

    averaging = setting.averaging(algorithm)
    weights, shift = setting.cohort.weigh(dataset, selection, valid, setting.average(algorithm), round_)
    relative = sizes.astype(weights.dtype) * (num_clients / dataset.num_examples)
    if averaging.share == "sample":
        share = relative / num_clients
    else:
        share = jnp.full_like(weights, 1 / num_clients)

    rates = jax.vmap(lambda i: jax.tree.map(jnp.asarray, rate_at(algorithm.client_learning_rate, round_, i)))(
        jnp.minimum(indices, num_clients - 1)
    )
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
    )
    return Drawn(slots, cohort, selection.overflow, lowest)
