"""The unit-gradient probe: how far a local solver moves against a constant gradient of one.

For a linear solver the local change is Delta_i = -eta G_i a_i; where F is 0 and one is added to the gradient of the
method's objective (which leaves its proximal term, say), one scalar parameter moves by -h_i with h_i = eta sum_k a_ik
= eta s_i, which is eta ||a_i||_1 where a_i >= 0 (Wang et al. 2020, section IV). Closed forms, at step size eta:

  SGD           h = eta tau
  proximal      h = eta [1 - (1 - eta mu)^tau] / (eta mu)
  decay gamma   h = eta (1 - gamma^tau) / (1 - gamma)
  momentum rho  h = eta [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)

The probe depends on the method, the rate and tau_i alone, not on data: it runs once for the whole cohort, as max tau_i
steps on vectors of |S| numbers: one number a leaf, zero for every array that a client knows. Numbers that it knows (mu)
are what they are, and what they add to an unforced step is taken off again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Client, Method, received
from fedjax_sim.algorithms.declarations import Misuse
from fedjax_sim.core import trees
from fedjax_sim.core.loops import bounded_loop
from fedjax_sim.optim import parts
from fedjax_sim.optim.parts import Parts


class Probed(NamedTuple):
    """What the probe saw of every client of a cohort.

    Attributes:
      slope: h_i; pytree like the parameters, leaves [S] (or [S, ...] where the rate is an array for that leaf), 0
        where tau_i = 0.
      lowest: [S], the smallest increment of h_i from one step to the next over all leaves: min_k eta a_ik for solvers
        whose steps are all alike (momentum, proximal terms); negative where a gradient is counted backwards.
    """

    slope: Any
    lowest: jax.Array


class NoLoss:
    """F for an objective whose slope is probed, which may read nothing of the data but F(y): 0, or what is given."""

    other = None

    def __init__(self, F: Any = None) -> None:
        self._F = F

    def __call__(self, params: Any) -> jax.Array:
        return jnp.zeros(()) if self._F is None else self._F(params)

    def mean(self, values: Any) -> jax.Array:
        return jnp.zeros(()) if self._F is None else self._F.mean(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # jax.grad asks functions for their names
            raise AttributeError(name)
        raise Misuse(
            f"reads F.{name}, and such an objective has no slope: Requires(slope=True) is for methods whose terms "
            "beside F(y) are quadratic or linear in y"
        )


class _Known(NamedTuple):
    """What a step is computed from, with one number in the place of every array of a model."""

    method: Any
    sent: Any
    kept: Any
    client: Any


_AXES = _Known(None, None, None, 0)  # of a vmap over the cohort


def probe(method: Method, params: Any, sent: Any, clients: Client, bound: int) -> Probed:
    """Runs every client's solver against a gradient of one.

    ``params`` may be shapes, ``sent`` is the round's broadcast, ``clients`` the cohort, leaves [S, ...], ``bound`` a
    static upper bound of tau_i.
    """
    known = _known(method, params, sent, clients)
    # A parameter that is a number itself cannot be told from mu: what it adds is found by a run without the unit.
    units = (1, 0) if any(np.shape(leaf) == () for leaf in jax.tree.leaves(params)) else (1,)

    def probe_step(k: jax.Array, known: _Known, carry: Any) -> Any:
        def one(known: _Known, state: Any) -> Any:
            runs, lowest = state
            moved = [_step(known, k, y, solver, unit) for unit, (y, solver) in zip(units, runs, strict=True)]
            gains = trees.subtract(_apart(moved), _apart(runs))
            increments = jax.tree.map(lambda gain: jnp.min(-gain).astype(lowest.dtype), gains)
            least = jax.tree.reduce(jnp.minimum, increments, lowest)
            return trees.select(k < _gradients(known), (moved, least), state)

        return jax.vmap(one, (_AXES, 0))(known, carry)

    infinite = jnp.full(clients.steps.shape, jnp.inf, jnp.result_type(float))
    began = jax.vmap(lambda known: [_begin(known) for _ in units], (_AXES,))(known)
    count = jnp.minimum(jnp.max(_gradients(known)), bound)
    runs, lowest = bounded_loop(probe_step, bound)(count, known, (began, infinite))
    slope = jax.tree.map(lambda end, first: first - end, _apart(runs), _apart(began))
    return Probed(slope, lowest)


def accumulation(method: Method, params: Any, sent: Any, clients: Client, bound: int) -> jax.Array:
    """a_ik of every client: how often its step-k gradient is counted in its local change (Wang et al. 2020, at eq. 6).

    [S, bound], 0 beyond tau_i. The transpose of the solver, which must be linear in the gradients: d y / d g_k over the
    move of a single step, for the first leaf of the parameters; of clients that train several parts, for that of the
    change that they report, and the first step that moves it. Arguments are those of :func:`probe`.
    """

    def moving(rate: jax.Array) -> jax.Array:
        """The ratios are those of small rates where a rate is 0, as a schedule may begin with."""
        return jnp.where(rate == 0, jnp.sqrt(jnp.finfo(rate.dtype).tiny).astype(rate.dtype), rate)

    clients = clients._replace(learning_rate=jax.tree.map(moving, clients.learning_rate))

    def one(known: _Known) -> jax.Array:
        method, sent, kept, _ = known
        start = _begin(known)
        parted = isinstance(start[0], Parts)

        def first(y: Any) -> jax.Array:
            reported = method.change(y, sent, kept, _told(known)) if parted else y
            return jax.tree.leaves(reported)[0].reshape(-1)[0]

        def alone(k: jax.Array) -> jax.Array:
            return first(_step(known, k, *start, unit=1)[0]) - first(_step(known, k, *start, unit=0)[0])

        def moved(gradients: jax.Array) -> jax.Array:
            def step(state: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
                (y, solver), (g, k) = state, x
                return trees.select(k < _gradients(known), _step(known, k, y, solver, g), state), None

            return first(lax.scan(step, start, (gradients, jnp.arange(bound, dtype=jnp.int32)))[0][0])

        if parted:
            each = jax.vmap(alone)(jnp.arange(bound, dtype=jnp.int32))
            single = each[jnp.argmax(each != 0)]
        else:
            single = alone(jnp.int32(0))
        return jax.grad(moved)(jnp.zeros((bound,), single.dtype)) / single

    return jax.vmap(one, (_AXES,))(_known(method, params, sent, clients))


def _known(method: Method, params: Any, sent: Any, clients: Client) -> _Known:
    kept = jax.eval_shape(method.init_client, params)
    return _Known(method, _numbers(received(sent, jnp.int32(0))), _numbers(kept), clients)


def _gradients(known: _Known) -> jax.Array:
    """How many gradient steps the clients take."""
    steps = known.client.steps
    return jnp.where(steps > 0, known.method.requires.gradients(steps), 0)


def _numbers(tree: Any) -> Any:
    """One zero for every array of real numbers; numbers stay what they are, and of shapes all is 0."""

    def number(leaf: Any) -> Any:
        real = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jnp.zeros(() if real else leaf.shape, leaf.dtype)
        return jnp.zeros((), leaf.dtype) if real and np.shape(leaf) != () else leaf

    return jax.tree.map(number, tree)


def _begin(known: _Known) -> tuple[Any, Any]:
    """y and the optimiser's state before the first step; y as wide as the rates are."""
    y, rate = known.method.begin(known.sent, known.kept, _told(known)), known.client.learning_rate
    like_rate: Any = jax.tree.structure(rate)

    def wide(part: Any) -> Any:
        if jax.tree.structure(part) != like_rate:
            return part
        return jax.tree.map(lambda leaf, one: jnp.broadcast_to(leaf, jnp.shape(one)), part, rate)

    y = Parts({name: wide(part) for name, part in y.items()}) if isinstance(y, Parts) else wide(y)
    return y, parts.begin(known.method.client_optimizer, y)


def _told(known: _Known) -> Client:
    """The client with a survey of no data."""
    method, sent, kept, client = known
    if not method.requires.survey:
        return client
    return client._replace(survey=method.survey(NoLoss(), sent, kept, client))


def _step(known: _Known, k: jax.Array, y: Any, state: Any, unit: Any) -> tuple[Any, Any]:
    """A step against ``unit`` beside the objective's own gradient where F is 0."""
    method, sent, kept, _ = known
    client = _told(known)
    holding = client._replace(held=y)

    def objective(y: Any) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):
            value = method.objective(NoLoss(), y, k, sent, kept, holding)
        return jnp.asarray(value)

    g = jax.tree.map(lambda leaf: leaf + trees.as_dtype(unit, leaf), jax.grad(objective)(y))
    return method.step(g, y, state, k, sent, kept, client)


def _apart(runs: Any) -> Any:
    """How far the run with the unit is from the one without, if there is one."""
    return runs[0][0] if len(runs) == 1 else trees.subtract(runs[0][0], runs[1][0])
