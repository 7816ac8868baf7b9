"""DrJAX 0.2.1 (Google): map_fn and reduce_sum over clients that are padded alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="DrJAX",
    requirements=("drjax==0.2.1", "jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"),
    configuration="broadcast, map_fn of a masked scan, reduce_sum in one jitted round; data on the device",
    versions=("drjax", "jax"),
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """Rounds whose clients all take as many steps as the largest of all clients would."""
    import drjax
    import jax
    import jax.numpy as jnp
    from jax import lax

    from benchmarks.speed.peers.jax_models import masked_loss

    steps = int(-(-work.sizes.max() // BATCH))
    room = ((0, BATCH),) + ((0, 0),) * (work.x.ndim - 1)
    x, y = jnp.asarray(np.pad(work.x, room)), jnp.asarray(np.pad(work.y, (0, BATCH)))
    offsets, sizes = jnp.asarray(work.offsets, jnp.int32), jnp.asarray(work.sizes, jnp.int32)

    def local_sgd(weights, offset, size, x, y):
        def step(weights, k):
            mask = (k * BATCH + jnp.arange(BATCH) < size).astype(jnp.float32)
            at = jnp.where(k * BATCH < size, offset + k * BATCH, 0)
            xs, ys = lax.dynamic_slice_in_dim(x, at, BATCH), lax.dynamic_slice_in_dim(y, at, BATCH)
            g = jax.grad(masked_loss)(weights, xs, ys, mask)
            return jax.tree.map(lambda p, d: p - RATE * d, weights, g), None  # no example, no gradient

        return lax.scan(step, weights, jnp.arange(steps))[0]

    @jax.jit
    @drjax.program(placements={"clients": work.cohorts.shape[1]})
    def a_round(weights, cohort, x, y):
        local = drjax.map_fn(
            lambda weights, offset, size: local_sgd(weights, offset, size, x, y),
            (drjax.broadcast(weights), offsets[cohort], sizes[cohort]),
        )
        share = sizes[cohort] / jnp.sum(sizes[cohort])
        weighted = drjax.map_fn(lambda weights, share: jax.tree.map(lambda w: share * w, weights), (local, share))
        return drjax.reduce_sum(weighted)

    weights = jax.tree.map(jnp.asarray, work.start)
    for cohort in work.cohorts:
        weights = jax.block_until_ready(a_round(weights, jnp.asarray(cohort, jnp.int32), x, y))
        tick()
    return [(np.asarray(w), np.asarray(b)) for w, b in weights]
