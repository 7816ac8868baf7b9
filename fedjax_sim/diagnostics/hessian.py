"""The largest curvature by which a client's objective differs from the global one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_sim.core import sampling, trees
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.streams import Piece, mean_over_examples, read_clients
from fedjax_sim.models.task import Batch, Task
from fedjax_sim.optim import third_party


def spectral_norm(apply: Callable[[jax.Array], jax.Array], start: jax.Array, iterations: int) -> jax.Array:
    """The largest |eigenvalue| of a symmetric operator, by Lanczos with full reorthogonalisation.

    A lower bound; exact when ``iterations`` reach the dimension (or the number of distinct eigenvalues).

    Args:
      apply: v -> A v.
      start: [d], not orthogonal to the eigenvector: a random vector. Its length is free.
      iterations: Lanczos steps; more than d count as d.
    """
    dim = start.size
    steps = min(iterations, dim)
    tiny = 10 * float(jnp.finfo(start.dtype).eps)

    def step(carry: Any, k: jax.Array) -> tuple[Any, Any]:
        basis, vector, scale = carry
        basis = basis.at[k].set(vector)
        image = apply(vector)
        alpha = jnp.dot(vector, image)
        for _ in range(2):  # twice is enough (Parlett): once leaves a part of the size of the round-off / beta
            image = image - basis.T @ (basis @ image)
        beta = trees.norm(image)
        scale = jnp.maximum(scale, jnp.maximum(jnp.abs(alpha), beta))
        live = beta > tiny * scale  # else the space is invariant: zero rows add the eigenvalue 0 and nothing more
        beta = jnp.where(live, beta, jnp.zeros_like(beta))
        following = jnp.where(live, image / jnp.where(live, beta, jnp.ones_like(beta)), jnp.zeros_like(image))
        return (basis, following, scale), (alpha, beta)

    first = start / trees.norm(start)
    carry = (jnp.zeros((steps, dim), start.dtype), first, jnp.zeros((), start.dtype))
    _, (alphas, betas) = lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    tridiagonal = jnp.diag(alphas) + jnp.diag(betas[:-1], 1) + jnp.diag(betas[:-1], -1)
    with third_party():
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(tridiagonal)))


def hessian_dissimilarity(
    task: Task,
    dataset: FederatedDataset,
    params: Any,
    key: jax.Array,
    *,
    iterations: int = 20,
    num_clients: int | None = None,
) -> jax.Array:
    """delta(x) = max_i ||hess F_i(x) - hess F(x)||, F = sum p_i F_i (Karimireddy et al. 2020, SCAFFOLD, (A2)).

    Matrix-free: clients in turn, ``iterations`` Hessian-vector products of the whole data each, O(iterations d) memory.

    Args:
      task: F_i, twice differentiable.
      dataset: training examples.
      params: x.
      key: PRNG key, of the start vectors and of the clients drawn.
      iterations: Lanczos steps.
      num_clients: how many clients to draw uniformly; None for all.
    """
    flat, unravel = ravel_pytree(params)
    which, noise = jax.random.split(key)
    count = dataset.num_clients if num_clients is None else num_clients
    positions = sampling.choose(which, dataset.num_clients, count)
    always = jnp.ones((1,), bool)

    def product(params: Any, batch: Batch, vector: Any) -> Any:
        return jax.jvp(lambda x: jax.grad(task.batch_loss)(x, batch), (params,), (vector,))[1]

    def body(given: Any, piece: Piece, total: Any) -> Any:
        params, vector = given
        return trees.add_scaled(total, piece.part, product(params, piece.batch, vector))

    def norm_of(_: None, drawn: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        position, key = drawn

        def difference(vector: jax.Array) -> jax.Array:
            direction = unravel(vector)
            zero = trees.zeros_like(params)
            own = read_clients(body, (params, direction), zero, dataset, position[None], always)
            mean = mean_over_examples(lambda x, batch: product(x, batch, direction), params, dataset)
            return ravel_pytree(trees.subtract(own, mean))[0]

        start = jax.random.normal(key, flat.shape, flat.dtype)
        return None, spectral_norm(difference, start, iterations)

    return jnp.max(lax.scan(norm_of, None, (positions, jax.random.split(noise, count)))[1])
