"""What is computed once, before or after a run: fits to its records, and the minima of the objectives."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.programs import renew
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.streams import Piece, everyone, read_clients
from fedjax_sim.models.task import Task
from fedjax_sim.optim import third_party


class Fit(NamedTuple):
    """(G, B) of (G,B)-bounded gradient dissimilarity."""

    G: float
    B: float


class Gamma(NamedTuple):
    """What :func:`gamma` returns.

    Attributes:
      value: Gamma = F* - sum p_k F_k*.
      optimum: F*.
      minima: F_k*, [N] in storage order.
      optimum_gradient_norm: |grad F| reached.
      gradient_norms: |grad F_k| reached, [N].
      converged: whether every norm is within the tolerance and every minimum is one: where going twice as far from
        the start still lowers the loss, as on separable data without weight decay, there is none.
    """

    value: jax.Array
    optimum: jax.Array
    minima: jax.Array
    optimum_gradient_norm: jax.Array
    gradient_norms: jax.Array
    converged: jax.Array


def running_mean(values: Any, axis: int = -1) -> np.ndarray:
    """Mean of all values so far along ``axis``, the rounds: of ``history["e_lud"]``, FedAWARE's "e-LUD dynamics".

    After a seed has stopped (``history.stops``) its records are zero, and these means say as little as they.
    """
    array = np.asarray(values, dtype=float)
    return np.cumsum(array, axis=axis) / np.cumsum(np.ones_like(array), axis=axis)


def fit_dissimilarity(mean_square: Any, square_of_mean: Any) -> Fit:
    """The smallest (G, B) with mean_square <= G^2 + B^2 square_of_mean at every recorded model.

    They are ``"gradient_mean_square"`` and ``"gradient_square_of_mean"`` of the records, of any shape. "Smallest" is
    least slack on average, subject to G >= 0 and B >= 1: where B^2 is the slope of the upper convex hull of the points
    (and the origin) above their mean. Points of which both are 0 bound nothing and are left out: so are the rounds
    after a seed has stopped. Raises ValueError for no points, or of different shapes, or not finite.

    Reference: Karimireddy et al. 2020, SCAFFOLD, (A1).
    """
    y, x = (np.asarray(values, dtype=float).ravel() for values in (mean_square, square_of_mean))
    if x.shape != y.shape or x.size == 0:
        raise ValueError(f"fit_dissimilarity: {y.size} and {x.size} points: give one or more, as many of both")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and min(x.min(), y.min()) >= 0):
        raise ValueError("fit_dissimilarity: squared norms must be finite and non-negative; leave diverged rounds out")
    y, x = y[(x > 0) | (y > 0)], x[(x > 0) | (y > 0)]
    if x.size == 0:
        return Fit(0.0, 1.0)
    slope = max(1.0, _slope_above_mean(np.append(x, 0.0), np.append(y, 0.0), x.mean()))
    return Fit(float(np.sqrt(max(0.0, np.max(y - slope * x)))), float(np.sqrt(slope)))


def gamma(
    task: Task,
    dataset: FederatedDataset,
    *,
    tolerance: float = 1e-5,
    max_steps: int = 1000,
    key: jax.Array | None = None,
) -> Gamma:
    """Gamma = F* - sum p_k F_k*, how far the clients' minima are from agreeing; 0 on identical clients.

    Every objective is minimised by L-BFGS (optax) from the initial model to a gradient norm; for convex objectives that
    is the minimum, otherwise a stationary point. Look at ``converged``. Single precision reaches norms of about 1e-5 of
    objectives of order 1.

    Args:
      task: F_k, with its penalty.
      dataset: training examples.
      tolerance: the gradient norm to reach.
      max_steps: the most L-BFGS steps per objective.
      key: of the initial model; None for ``jax.random.key(0)``.

    Reference: Li et al. 2020, "On the convergence of FedAvg on non-IID data", section 3.1.
    """
    if task.joint:
        raise ValueError(
            f"gamma reads examples in pieces, and the loss of {type(task).__name__.lower()} compares all of a client's "
            "examples with each other: it has no gamma here"
        )
    renew(task)
    start = task.init(jax.random.key(0) if key is None else key, dataset)
    return _gamma(task, dataset, start, jnp.asarray(tolerance, jnp.result_type(float)), max_steps)


@functools.partial(jax.jit, static_argnums=4)
def _gamma(task: Task, dataset: FederatedDataset, start: Any, tolerance: jax.Array, max_steps: int) -> Gamma:
    positions, valid = everyone(dataset)

    def of_client(position: jax.Array) -> Any:
        return _minimum(task, dataset, position[None], valid[:1], None, start, tolerance, max_steps)

    optimum, norm, ok = _minimum(task, dataset, positions, valid, dataset.shares, start, tolerance, max_steps)
    minima, norms, oks = lax.map(of_client, positions)
    value = optimum - trees.weighted_sum(dataset.shares, minima)
    return Gamma(value, optimum, minima, norm, norms, ok & jnp.all(oks))


def _minimum(
    task: Task,
    dataset: FederatedDataset,
    positions: jax.Array,
    valid: jax.Array,
    weights: jax.Array | None,
    start: Any,
    tolerance: jax.Array,
    max_steps: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(minimum, gradient norm, converged) of the weighted sum of the listed clients' objectives."""

    def body(given: Any, piece: Piece, total: Any) -> Any:
        part = piece.part if weights is None else piece.part * trees.as_dtype(weights, piece.part)[piece.slot]
        loss, gradient = jax.value_and_grad(task.batch_loss)(given, piece.batch)
        return trees.add_scaled(total, part, (loss.astype(total[0].dtype), gradient))

    shapes = jax.eval_shape(lambda x: (trees.inner(x, x), x), start)

    def value_and_gradient(x: Any) -> Any:
        return read_clients(body, x, trees.zeros_like(shapes), dataset, positions, valid)

    @jax.custom_vjp  # the line search differentiates: it gets the streamed gradient, not that of the stream
    def objective(x: Any) -> jax.Array:
        return value_and_gradient(x)[0]

    objective.defvjp(value_and_gradient, lambda gradient, cotangent: (trees.scale(cotangent, gradient),))
    solver = optax.lbfgs()

    def in_type(x: Any) -> jax.Array:  # optax moves in the default type, whatever the parameters'
        return objective(jax.tree.map(trees.as_dtype, x, start))

    def unfinished(state: Any) -> jax.Array:
        _, _, gradient, _, k = state
        norm = trees.norm(gradient)
        far: jax.Array = norm > tolerance.astype(norm.dtype)
        return jnp.logical_and(far, k < max_steps)

    def step(state: Any) -> Any:
        x, value, gradient, memory, k = state
        with third_party():
            move, new = solver.update(gradient, memory, x, value=value, grad=gradient, value_fn=in_type)
        move, memory = jax.tree.map(trees.as_dtype, (move, new), (x, memory))
        x = trees.add(x, move)
        return x, *value_and_gradient(x), memory, k + 1

    with third_party():
        memory = solver.init(start)
    state = (start, *value_and_gradient(start), memory, jnp.int32(0))
    x, value, gradient, _, _ = lax.while_loop(unfinished, step, state)
    norm = trees.norm(gradient)
    further = objective(trees.add(x, trees.subtract(x, start)))
    slack = float(np.sqrt(jnp.finfo(value.dtype).eps))
    falls = further < value - slack * jnp.abs(value)
    return value, norm, (norm <= tolerance.astype(norm.dtype)) & ~falls


def _slope_above_mean(x: np.ndarray, y: np.ndarray, mean: float) -> float:
    """The slope, at ``mean``, of the upper convex hull of points; 0 where all have the same x."""
    left, right = np.lexsort((y, -x))[-1], np.lexsort((y, x))[-1]  # the highest at each end
    if x[left] == x[right]:
        return 0.0
    while True:
        width, height = x[right] - x[left], y[right] - y[left]
        above = (y - y[left]) * width - (x - x[left]) * height
        farthest = int(np.argmax(above))
        if above[farthest] <= 0:
            return float(height / width)
        if x[farthest] < mean:
            left = farthest
        else:
            right = farthest
