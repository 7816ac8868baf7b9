"""What a local step of FedAWARE's three tasks costs at the paper's size, and the vectors that it keeps of 100 clients.

    python -m benchmarks.experiments.fedaware_steps

prints parameters, processor seconds of one gradient on a batch of 64 (median), and bytes of 100 models. The table of
docs/reproductions/fedaware.md is from it.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.fedaware.tasks import BATCH, CLIENTS, PADDING, TOKENS


def main() -> None:
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.standard_normal((BATCH, 32, 32, 3)), jnp.float32)
    texts = jnp.asarray(rng.integers(PADDING + 1, 50_000, (BATCH, TOKENS)), jnp.int32)
    cases = {
        "CIFAR-10": (fjs.models.CifarCNN(10), images, 10, 20),
        "CIFAR-100": (fjs.models.ResNet18(100), images, 100, 3),
        "AG News": (fjs.models.GPTNeoXClassifier(4, padding=PADDING), texts, 4, 1),
    }
    for name, (model, x, classes, repeats) in cases.items():
        task, examples = fjs.classification(model), {"x": x, "y": jnp.arange(BATCH) % classes}
        params = jax.jit(model.init)(jax.random.key(0), x[:1])
        step = jax.jit(jax.grad(lambda params, task=task, held=examples: jnp.mean(task.losses(params, held))))
        jax.block_until_ready(step(params))
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            jax.block_until_ready(step(params))
            seconds.append(time.process_time() - start)
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        held = CLIENTS * size * 4 / 1e9
        print(f"{name}: {size:,} parameters, {np.median(seconds):.3g} s a step, {held:.3g} GB", flush=True)


if __name__ == "__main__":
    main()
