"""Who takes part in all rounds of a run, drawn ahead: draws depend on the key and the round alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.placement import on_host
from fedjax_sim.engine.client_states.rows import UNUSED
from fedjax_sim.engine.plan import Plan

_TOGETHER = 256  # rounds whose cohorts are drawn in one call


def drawn_ahead(plan: Plan, rounds: int) -> np.ndarray:
    """int[rounds, S]: the distinct storage positions of every round's clients, in front; N elsewhere."""
    numbers = np.arange(-(-rounds // _TOGETHER) * _TOGETHER if rounds > _TOGETHER else rounds, dtype=np.int32)
    chunks = numbers.reshape(-1, min(rounds, _TOGETHER))
    drawn = np.concatenate([on_host(_positions(plan, chunk)) for chunk in chunks])[:rounds]
    drawn.sort(axis=1)
    repeated = np.zeros(drawn.shape, bool)
    repeated[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
    distinct: np.ndarray = np.sort(np.where(repeated, plan.dataset.num_clients, drawn), axis=1)
    return distinct


def cohorts(drawn: np.ndarray, frame: FederatedDataset) -> np.ndarray:
    """int32[..., W]: the client indices of rounds that were drawn ahead, ascending, then ``UNUSED``; W at most N."""
    order = on_host(frame.order)
    index_at = np.full(len(order) + 1, UNUSED, np.int32)
    index_at[order] = np.arange(len(order), dtype=np.int32)
    return np.sort(index_at[drawn], axis=-1)[..., : len(order)]


@jax.jit
def _positions(plan: Plan, ts: jax.Array) -> jax.Array:
    """int32[rounds, S] storage positions of the clients of all phases; N in void slots."""
    data = plan.dataset

    def of_round(t: jax.Array) -> jax.Array:
        found = []
        for phase in plan.phases():
            selection = phase.cohort.select(data, phase.key, t)
            position = data.order.at[selection.indices].get(mode="clip")
            found.append(jnp.where(selection.present, position, data.num_clients).astype(jnp.int32))
        return jnp.concatenate(found)

    return lax.map(of_round, jnp.asarray(ts))  # type: ignore[no-any-return]
