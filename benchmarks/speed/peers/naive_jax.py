"""What people write first in JAX: vmap of a masked scan over the padded cohort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.peers.contract import Peer, Rounds, step_through
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="naive JAX",
    requirements=(),
    configuration="vmap of a masked scan, all clients padded to the largest of all, one jitted call a round",
    framework=False,
    versions=("jax",),
)


def local_sgd(weights: Any, x: Any, y: Any, size: Any, steps: int) -> Any:
    """``steps`` masked SGD steps on one padded client: x [steps * BATCH, ...], y [steps * BATCH]."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from benchmarks.speed.peers.jax_models import masked_loss

    def step(weights, k):
        rows = k * BATCH + jnp.arange(BATCH)
        mask = (rows < size).astype(jnp.float32)
        xs, ys = lax.dynamic_slice_in_dim(x, k * BATCH, BATCH), lax.dynamic_slice_in_dim(y, k * BATCH, BATCH)
        g = jax.grad(masked_loss)(weights, xs, ys, mask)
        return jax.tree.map(lambda p, d: jnp.where(k * BATCH < size, p - RATE * d, p), weights, g), None

    return lax.scan(step, weights, jnp.arange(steps))[0]


def padded(work: Workload, client: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's arrays, padded with zeros to ``rows`` examples."""
    o, n = work.offsets[client], work.sizes[client]
    x, y = np.zeros((rows, *work.x.shape[1:]), np.float32), np.zeros(rows, np.int32)
    x[:n], y[:n] = work.x[o : o + n], work.y[o : o + n]
    return x, y


def make(work: Workload) -> Rounds:
    """Padding and stacking are part of a round, as they are of such code."""
    import jax
    import jax.numpy as jnp

    steps = int(-(-work.sizes.max() // BATCH))
    a_round = jax.jit(
        lambda weights, x, y, sizes: jax.tree.map(
            lambda leaf: jnp.tensordot(sizes / jnp.sum(sizes), leaf, 1),
            jax.vmap(lambda x, y, n: local_sgd(weights, x, y, n, steps))(x, y, sizes),
        )
    )

    def rounds(weights: Weights, first: int, last: int) -> Weights:
        current = jax.tree.map(jnp.asarray, weights)
        for cohort in work.cohorts[first:last]:
            arrays = [padded(work, c, steps * BATCH) for c in cohort]
            x, y = np.stack([a[0] for a in arrays]), np.stack([a[1] for a in arrays])
            current = a_round(current, x, y, work.sizes[cohort].astype(np.float32))
        return [(np.asarray(w), np.asarray(b)) for w, b in current]

    return rounds


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """One call a round."""
    return step_through(make(work), work, tick)
