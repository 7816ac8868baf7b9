"""Estimators of dL/dtheta for a loss at the end of, or along, a long computation; each an object, as adjoints are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import sampling, trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, flag, real
from fedjax_sim.core.loops import over_leading_axis
from fedjax_sim.core.values import shown
from fedjax_sim.engine.adjoints.scans import stopped
from fedjax_sim.studies.outer.problems import Unrolled, as_unrolled


class Estimate(NamedTuple):
    """What an estimator found.

    Attributes:
      value: L, or its mean over what was evaluated: of the smoothed loss for ES and PES.
      gradient: an estimate of dL/dtheta, in the structure of the parameters.
      error: the standard error of the gradient, likewise: over the samples that it is the mean of; None where there is
        one, or where nothing is drawn.
    """

    value: jax.Array
    gradient: Any
    error: Any


class Estimator(Described):
    """Base of the estimators."""

    def check(self, problem: Unrolled) -> None:
        """Raises ``ValueError`` where the estimator does not fit the problem."""

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        """An estimate from the randomness of ``key``."""
        raise TypeError(f"{type(self).__name__} must define estimate(problem, parameters, key)")


def estimate(estimator: Estimator, objective: Any, parameters: Any, key: jax.Array) -> Estimate:
    """Estimates the gradient of an outer loss; a pure function, to jit and to vmap over keys or parameters.

    ``jax.jit(fjs.outer.estimate)`` where the objective is :func:`fedjax_sim.outer.federated`, whose data are then an
    argument of the program; with a plain function ``jax.jit(lambda u, key: fjs.outer.estimate(..., u, key))``.

    Args:
      estimator: ``exact()``, ``truncated()``, ``es()``, ``pes()``, ``forward_gradient()`` or ``score()``.
      objective: an :class:`Unrolled`, or a function of (parameters, key) that returns one real number.
      parameters: theta, a pytree of real arrays.
      key: names all that is drawn: the run's own randomness and the estimator's.

    Returns:
      An :class:`Estimate`.

    Raises:
      TypeError, ValueError: what does not fit, before anything is compiled.

    Example:
      >>> import jax, jax.numpy as jnp, fedjax_sim as fjs
      >>> loss = lambda theta, key: jnp.sum((theta - 1) ** 2)
      >>> found = fjs.outer.estimate(fjs.outer.es(sigma=0.1, pairs=500), loss, jnp.zeros(2), jax.random.key(0))
      >>> bool(jnp.all(jnp.abs(found.gradient - (-2)) < 4 * found.error))
      True
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"the estimator is {shown(estimator)}: give one of fedjax_sim.outer, for instance es()")
    leaves = jax.tree.leaves(parameters)
    if not leaves or not all(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves):
        raise TypeError(f"the parameters are {shown(parameters)}: give real numbers, or a pytree of arrays of them")
    problem = as_unrolled(objective)
    estimator.check(problem)
    return estimator.estimate(problem, jax.tree.map(jnp.asarray, parameters), key)


# The ``check`` of the estimators with windows.
def _check_window(estimator: Any, problem: Unrolled) -> None:
    if estimator.window is not None and problem.segments % estimator.window:
        raise ValueError(
            f"{estimator.factory_name()}(window={estimator.window}): the objective has {problem.segments} segments; "
            "their number must be a multiple of the window"
        )


class Exact(Estimator):
    """The derivative through the whole computation, for the run that ``key`` names.

    Memory: a state a segment and the inside of one segment, which is computed again on the way back.
    """

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        value, gradient = jax.value_and_grad(lambda theta: _total(problem, theta, key))(parameters)
        return Estimate(value, gradient, None)


class Truncated(Estimator):
    """Derivatives within windows of segments: the state that a window begins with is a constant.

    Biased: what theta did to a window's loss through the windows before is left out, and with it whatever pays late.

    Args:
      window: segments in a window; it must divide their number.

    Reference: Werbos 1990, "Backpropagation through time"; Wu et al. 2018, "Understanding short-horizon bias in
    stochastic meta-optimization".
    """

    window: int = count(default=1)

    check = _check_window

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        def loss(theta: Any) -> jax.Array:
            def step(state: Any, number: jax.Array) -> tuple[Any, jax.Array]:
                state, loss = _window(problem, theta, state, number * self.window, self.window)
                return stopped(state), loss

            numbers = jnp.arange(problem.segments // self.window, dtype=jnp.int32)
            return jnp.sum(lax.scan(step, problem.begin(theta, key), numbers)[1])

        value, gradient = jax.value_and_grad(loss)(parameters)
        return Estimate(value, gradient, None)


class ForwardGradient(Estimator):
    """The mean of (dL/dtheta . v) v over directions v ~ N(0, I), each by one derivative in forward mode. Unbiased.

    Its variance is about |dL/dtheta|^2 times the number of parameters; its memory does not grow with the computation.

    Args:
      directions: how many v.

    Reference: Baydin et al. 2022, "Gradients without backpropagation".
    """

    directions: int = count(default=8)

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        return _over_samples(self._sample, self.directions, problem, parameters, key)

    def _sample(self, problem: Unrolled, theta: Any, run: jax.Array, drawn: jax.Array) -> tuple[jax.Array, Any]:
        going, v = problem.forwards(), sampling.normal_tree(drawn, theta)
        value, slope = jax.jvp(lambda theta: _total(going, theta, run), (theta,), (v,))
        return value, trees.scale(slope, v)


class ES(Estimator):
    """Antithetic evolution strategies: (L(theta + e) - L(theta - e)) / 2 sigma^2 e, the mean over e ~ N(0, sigma^2 I).

    Unbiased for the gradient of the smoothed loss E L(theta + e), which is dL/dtheta itself where L is quadratic in
    theta. Both runs of a pair draw the same cohorts and batches, different pairs different ones. No derivative is
    taken: it goes with chaotic runs and with losses that have none.

    Args:
      sigma: the standard deviation of e. Beside parameters in half precision a small e is lost, and so is most of the
        gradient: bfloat16 has no steps from 1 below 0.004.
      pairs: how many e; two runs each.
      window: None for one e a run; else segments in a window, each of which is perturbed alone and begins with the
        state of the run without perturbations: cheap in a training that goes on, and biased as ``truncated`` is.

    Reference: Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement learning"; in
    windows: Metz et al. 2019, "Understanding and correcting pathologies in the training of learned optimizers".
    """

    sigma: Any = real(above=0.0, default=0.1)
    pairs: int = count(default=8)
    window: int | None = count(default=None)

    check = _check_window

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        return _over_samples(self._sample, self.pairs, problem, parameters, key)

    def _sample(self, problem: Unrolled, theta: Any, run: jax.Array, drawn: jax.Array) -> tuple[jax.Array, Any]:
        if self.window is None:
            e = trees.scale(self.sigma, sampling.normal_tree(drawn, theta))
            plus, minus = (_total(problem, at, run) for at in (trees.add(theta, e), trees.subtract(theta, e)))
            return _of_pair(plus, minus, self.sigma, e)
        window = self.window

        def step(state: Any, number: jax.Array) -> tuple[Any, tuple[jax.Array, Any]]:
            e = trees.scale(self.sigma, sampling.normal_tree(jax.random.fold_in(drawn, number), theta))
            first = number * window
            _, plus = _window(problem, trees.add(theta, e), state, first, window)
            _, minus = _window(problem, trees.subtract(theta, e), state, first, window)
            found = _of_pair(plus, minus, self.sigma, e)
            return _window(problem, theta, state, first, window)[0], found

        numbers = jnp.arange(problem.segments // window, dtype=jnp.int32)
        _, found = lax.scan(step, problem.begin(theta, run), numbers)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), found)


class PES(Estimator):
    """Persistent evolution strategies: each window of a pair of runs is perturbed anew, and both runs go on from there.

    With e_w ~ N(0, sigma^2 I) in window w and xi_w = e_1 + ... + e_w, the mean over pairs of
    sum_w (L_w+ - L_w-) / 2 sigma^2 xi_w. Unbiased for the loss that is smoothed in every window by itself: for
    dL/dtheta where L is quadratic in what the windows get. An estimate of a window needs no more than that window, so
    that a training may move theta after each: see ``begin`` and ``step``. The variance grows with the number of
    windows.

    Args:
      sigma: the standard deviation of e_w, not too small for parameters in half precision, as of ``es``.
      pairs: how many pairs of runs.
      window: segments in a window; it must divide their number.

    Reference: Vicol et al. 2021, "Unbiased gradient estimation in unrolled computation graphs with persistent evolution
    strategies", Algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp, fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> run = fjs.outer.federated(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data, over=["client_optimizer.learning_rate"],
      ...     objective=fjs.hyper.mean("loss"), task=fjs.quadratic(start=1.0), rounds=4, eval_every=1,
      ...     batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> pes = fjs.outer.pes(sigma=0.1, pairs=4, window=2)
      >>> going = pes.begin(run, run.parameters, jax.random.key(0))
      >>> step, found = jax.jit(pes.step), []
      >>> for _ in range(2):  # a window, and the next one, at parameters that may differ
      ...     going, one = step(run, run.parameters, going)
      ...     found.append(one.gradient["client_optimizer.learning_rate"])
      >>> whole = jax.jit(pes.estimate)(run, run.parameters, jax.random.key(0))
      >>> bool(jnp.allclose(sum(found), whole.gradient["client_optimizer.learning_rate"], rtol=1e-5))
      True
    """

    sigma: Any = real(above=0.0, default=0.1)
    pairs: int = count(default=8)
    window: int = count(default=1)

    check = _check_window

    def begin(self, problem: Unrolled, theta: Any, key: jax.Array) -> Particles:
        """Pairs of runs before their first window."""
        self.check(problem)
        keys = jax.random.split(key, self.pairs)
        return over_leading_axis(lambda key: self._began(problem, theta, *jax.random.split(key)), keys)

    def step(self, problem: Unrolled, theta: Any, particles: Particles) -> tuple[Particles, Estimate]:
        """All pairs after their next window, and its estimate: those of a whole run add up to :func:`estimate`'s.

        After the last window begin anew, with another key.
        """
        after, (values, gradients) = over_leading_axis(lambda one: self._stepped(problem, theta, one), particles)
        return after, _mean(values, gradients)

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        return _over_samples(self._sample, self.pairs, problem, parameters, key)

    def _sample(self, problem: Unrolled, theta: Any, run: jax.Array, drawn: jax.Array) -> tuple[jax.Array, Any]:
        begun, number = self._began(problem, theta, run, drawn), problem.segments // self.window
        _, found = lax.scan(lambda pair, _: self._stepped(problem, theta, pair), begun, length=number)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), found)

    def _began(self, problem: Unrolled, theta: Any, run: jax.Array, drawn: jax.Array) -> Particles:
        first = self._perturbation(drawn, theta, jnp.int32(0))  # the first window's, of which the start is a part
        plus, minus = (problem.begin(at, run) for at in (trees.add(theta, first), trees.subtract(theta, first)))
        return Particles(plus, minus, trees.zeros_like(theta), jnp.int32(0), drawn)

    def _stepped(self, problem: Unrolled, theta: Any, pair: Particles) -> tuple[Particles, tuple[jax.Array, Any]]:
        e = self._perturbation(pair.key, theta, pair.number)
        xi, first = trees.add(pair.xi, e), pair.number * self.window
        plus, up = _window(problem, trees.add(theta, e), pair.plus, first, self.window)
        minus, down = _window(problem, trees.subtract(theta, e), pair.minus, first, self.window)
        return Particles(plus, minus, xi, pair.number + 1, pair.key), _of_pair(up, down, self.sigma, xi)

    def _perturbation(self, key: jax.Array, theta: Any, number: jax.Array) -> Any:
        return trees.scale(self.sigma, sampling.normal_tree(jax.random.fold_in(key, number), theta))


class Particles(NamedTuple):
    """Pairs of runs on their way, leading axis pairs."""

    plus: Any  # the state of the run with theta + e_w in each window
    minus: Any  # with theta - e_w
    xi: Any  # e_1 + ... + e_w so far
    number: jax.Array  # windows so far
    key: jax.Array  # of the perturbations


class Score(Estimator):
    """The derivative of an expectation over draws whose distribution depends on theta: cohorts, steps, availability.

    d/dtheta E[L] = E[(L - b) d log p / dtheta] + E[dL/dtheta] for any b that does not depend on the draws. The mean
    over runs; b is the mean loss of the other runs, which keeps it unbiased.

    Args:
      runs: how many, each with a key of its own.
      baseline: whether there is a b; False for b = 0. It takes two runs or more.

    Reference: Williams 1992, "Simple statistical gradient-following algorithms"; the baseline: Kool et al. 2019, "Buy 4
    REINFORCE samples, get a baseline for free!".
    """

    runs: int = count(default=16)
    baseline: bool = flag(default=True)

    def check(self, problem: Unrolled) -> None:
        if self.baseline and self.runs < 2:
            raise ValueError(
                "score(runs=1): the baseline is the mean of other runs; give two or more, or baseline=False"
            )

    def estimate(self, problem: Unrolled, parameters: Any, key: jax.Array) -> Estimate:
        def one(key: jax.Array) -> tuple[jax.Array, Any, Any]:
            value, path = jax.value_and_grad(lambda theta: _total(problem, theta, key))(parameters)
            return value, path, jax.grad(lambda theta: problem.log_probability(theta, key))(parameters)

        values, paths, scores = over_leading_axis(one, jax.random.split(key, self.runs))
        others = (jnp.sum(values) - values) / max(self.runs - 1, 1)
        advantage = values - others if self.baseline else values
        return _mean(values, trees.add(paths, jax.vmap(trees.scale)(advantage, scores)))


def _over_samples(
    sample: Callable[..., tuple[jax.Array, Any]], number: int, problem: Unrolled, theta: Any, key: jax.Array
) -> Estimate:
    """The mean over samples: L and the gradient's estimate by the key of a run and the key of a direction."""

    def one(key: jax.Array) -> tuple[jax.Array, Any]:
        run, drawn = jax.random.split(key)
        return sample(problem, theta, run, drawn)

    return _mean(*over_leading_axis(one, jax.random.split(key, number)))


def _window(problem: Unrolled, theta: Any, state: Any, first: jax.Array, length: int) -> tuple[Any, jax.Array]:
    """``length`` segments from ``first``: the state after them, and the sum of their losses."""

    def step(state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        return problem.advance(theta, state, segment)

    segments = first + jnp.arange(length, dtype=jnp.int32)
    state, losses = lax.scan(jax.checkpoint(step), state, segments)
    return state, jnp.sum(losses)


def _total(problem: Unrolled, theta: Any, key: jax.Array) -> jax.Array:
    return _window(problem, theta, problem.begin(theta, key), jnp.int32(0), problem.segments)[1]


def _of_pair(plus: jax.Array, minus: jax.Array, sigma: Any, along: Any) -> tuple[jax.Array, Any]:
    """The mean loss of a pair of runs, and their (L+ - L-) / 2 sigma^2 along a perturbation or the sum of several."""
    variance = jnp.square(trees.as_dtype(sigma, plus))
    return (plus + minus) / 2, trees.scale((plus - minus) / (2 * variance), along)


def _mean(values: jax.Array, gradients: Any) -> Estimate:
    number = len(values)
    spread = None
    if number > 1:
        spread = jax.tree.map(lambda leaf: jnp.std(leaf, axis=0, ddof=1) / number**0.5, gradients)
    value, gradient = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), (values, gradients))
    return Estimate(value, gradient, spread)


exact = factory("outer.exact", Exact)
truncated = factory("outer.truncated", Truncated)
forward_gradient = factory("outer.forward_gradient", ForwardGradient)
es = factory("outer.es", ES)
pes = factory("outer.pes", PES)
score = factory("outer.score", Score)
