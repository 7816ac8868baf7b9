"""fedjax 0.0.17 (Google): for_each_client over padded batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="fedjax",
    # The last release, of 2023, needs a JAX that still has what it uses of it.
    requirements=(
        "fedjax==0.0.17",
        "jax==0.5.3",
        "jaxlib==0.5.3",
        "optax==0.2.8",
        "dm-haiku==0.0.17",
        "numpy==2.4.6",
    ),
    configuration="for_each_client (jit) with the client functions of algorithms.fed_avg, padded_batch, tree_mean",
    versions=("fedjax", "jax"),
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """Its FedAvg with masked batches.

    algorithms.fed_avg itself fills a client's last batch with the client's first examples, which is another model, and
    computes the norm of every change: it was slower on W1 and W4. Nothing but the batches and that norm differs here.
    """
    import fedjax
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    from benchmarks.speed.peers.jax_models import masked_loss

    rows = [slice(o, o + n) for o, n in zip(work.offsets.tolist(), work.sizes.tolist(), strict=True)]
    data = fedjax.InMemoryFederatedData({c: {"x": work.x[rows[c]], "y": work.y[rows[c]]} for c in range(len(rows))})
    hparams = fedjax.PaddedBatchHParams(batch_size=BATCH)

    def gradient(weights, batch, rng):
        mask = batch[fedjax.EXAMPLE_MASK_KEY].astype(jnp.float32)
        return jax.grad(masked_loss)(weights, batch["x"], batch["y"], mask)

    train = fed_avg.create_train_for_each_client(gradient, fedjax.optimizers.sgd(RATE))
    weights, rng = jax.tree.map(jnp.asarray, work.start), jax.random.PRNGKey(0)
    for cohort in work.cohorts.tolist():
        clients = [(c, client.padded_batch(hparams), rng) for c, client in data.get_clients(cohort)]
        change = fedjax.tree_util.tree_mean((delta, work.sizes[c]) for c, delta in train(weights, clients))
        weights = jax.block_until_ready(jax.tree.map(jnp.subtract, weights, change))
        tick()
    return [(np.asarray(w), np.asarray(b)) for w, b in weights]
