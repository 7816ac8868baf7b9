"""The shortest vector of a hull: against exact arithmetic, known answers, its certificate and finite differences."""

import functools
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import min_norm
from fedjax_sim.optim.min_norm import active_set, away_steps, frank_wolfe, full_gram, gram_rows, shortest

SOLVERS = (active_set, away_steps, frank_wolfe)
# Away steps are Frank-Wolfe's with one more direction: in the fast tests they stand for both.
FAST_SOLVERS = (active_set, away_steps, pytest.param(frank_wolfe, marks=pytest.mark.slow))
pytestmark = pytest.mark.xdist_group("min_norm")


@jax.jit
def solve(solver, vectors, seen, start, scales):
    return shortest(vectors, full_gram(vectors), seen, start, solver=solver, scales=scales)


def found(vectors, solver=None, seen=None, start=None, scales=None):
    n = len(vectors)
    return solve(
        active_set() if solver is None else solver,
        {"bias": vectors[:, :2], "kernel": vectors[:, 2:].reshape(n, -1, 2)},
        np.ones(n, bool) if seen is None else seen,
        np.zeros(n, vectors.dtype) if start is None else start,
        np.ones(n, vectors.dtype) if scales is None else scales,
    )


def flat(point):
    return np.concatenate([np.ravel(point["bias"]), np.ravel(point["kernel"])])


def smallest_of_faces(vectors):
    """min |sum_i w_i m_i|^2 over the simplex in rational arithmetic: the affine minimiser of every face, if inside."""
    rows = [[Fraction(float(x)) for x in row] for row in vectors]
    gram = [[sum(a * b for a, b in zip(u, v, strict=True)) for v in rows] for u in rows]
    values = []
    for size in range(1, len(rows) + 1):
        for face in itertools.combinations(range(len(rows)), size):
            weights = rational_solve(
                [[gram[i][j] for j in face] + [Fraction(-1)] for i in face] + [[Fraction(1)] * size + [Fraction(0)]],
                [Fraction(0)] * size + [Fraction(1)],
            )
            if weights is not None and min(weights[:-1]) >= 0:
                values.append(weights[-1])  # the multiplier is <m_i, d> = |d|^2
    return float(min(values))


def rational_solve(matrix, right):
    rows = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for c in range(len(rows)):
        pivot = next((r for r in range(c, len(rows)) if rows[r][c] != 0), None)
        if pivot is None:
            return None  # dependent: a smaller face has the same point
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for r in range(len(rows)):
            if r != c and rows[r][c] != 0:
                rows[r] = [x - rows[r][c] * y for x, y in zip(rows[r], rows[c], strict=True)]
    return [row[-1] for row in rows]


def around_zero(rng, n, dimension):
    """n vectors whose hull has 0 inside."""
    vectors = rng.normal(size=(n, dimension))
    return vectors - rng.dirichlet(np.ones(n)) @ vectors


def at_height(vectors, heights):
    """Vectors of 5 coordinates with one more, in which the hull is away from 0, and one that is 0."""
    return np.concatenate(
        [np.pad(vectors, ((0, 0), (0, 5 - vectors.shape[1]))), np.stack([heights, 0 * heights], 1)], 1
    )


def families(rng):
    n = 5
    normal = functools.partial(rng.normal, size=(n, 7))
    yield "random", normal()
    yield "common part", normal() + 1
    yield "badly scaled", (normal() + 0.7) * 10.0 ** rng.uniform(-6, 6, (n, 1))
    yield (
        "badly scaled, one height",
        np.concatenate([normal()[:, 1:] * 10.0 ** rng.uniform(0, 5, (n, 1)), np.ones((n, 1))], 1),
    )
    yield "duplicates", normal()[[0, 1, 2, 0, 1]]
    yield "one line", rng.normal(size=7) + rng.uniform(-1, 2, (n, 1)) * rng.normal(size=7)
    yield "a zero vector", normal() * np.array([1, 1, 0, 1, 1])[:, None]
    for ratio in (1e-4, 1e-5, 4e-6):
        flatly = around_zero(rng, n, 4)
        flatly /= np.max(np.linalg.norm(flatly, axis=1))
        yield f"at height {ratio}", at_height(flatly, np.full(n, ratio))
        heights = ratio * (1 + rng.uniform(size=n))
        yield f"at heights {ratio}", at_height(flatly, heights)
        near = flatly[[0, 1, 2, 0, 1]] + np.array([0, 0, 0, 1e-9, 1e-7])[:, None] * rng.normal(size=(n, 4))
        yield f"near duplicates at {ratio}", at_height(near, heights)
        line = np.outer(rng.uniform(-1, 1, n), rng.normal(size=4))
        yield f"a thin sliver at {ratio}", at_height(line + 1e-4 * rng.normal(size=(n, 4)), heights)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_agrees_with_the_enumeration_of_all_faces(x64, seed):
    for name, vectors in families(np.random.default_rng(seed)):
        exact = smallest_of_faces(vectors.tolist())
        longest = np.max(np.sum(vectors**2, axis=1))
        result = found(np.pad(vectors, ((0, 0), (0, 1))))
        np.testing.assert_allclose(np.sum(result.weights), 1, rtol=1e-14, err_msg=name)
        assert np.min(result.weights) >= 0, name
        if exact > 1e-12 * longest:
            np.testing.assert_allclose(result.squared_norm, exact, rtol=1e-8, err_msg=name)
            assert not result.stationary, name
        if exact < 1e-30 * longest:
            assert result.stationary, name


def known_answer(rng, ratio, n=40, dimension=20):
    """Vectors around an axis: ``dimension`` of them touch a plane at a height of ``ratio``, the others are above it.

    The tangents' parts of the former hold 0 inside their hull, whatever their lengths, so d is the axis times the
    height. The axis is then turned away from the coordinates'.
    """
    tangents = around_zero(rng, dimension, dimension - 1)
    tangents *= 10.0 ** rng.uniform(-3, 0, (dimension, 1)) / np.linalg.norm(tangents, axis=1, keepdims=True)
    others = rng.normal(size=(n - dimension, dimension - 1))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    heights = np.concatenate([np.ones(dimension), 1 + 10.0 ** rng.uniform(-2, 2, n - dimension)])
    vectors = np.concatenate([np.concatenate([tangents, others]), ratio * heights[:, None]], 1)
    mirror = rng.normal(size=dimension)
    return rng.permutation(vectors - np.outer(vectors @ mirror, 2 * mirror / (mirror @ mirror)))


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 1e-2, 1e-4, 1e-5, 3e-6])
def test_finds_a_known_answer_among_forty(x64, ratio):
    for seed in range(4):
        vectors = known_answer(np.random.default_rng(seed), ratio)
        result = found(vectors)
        np.testing.assert_allclose(result.squared_norm, ratio**2, rtol=1e-8)
        assert not result.stationary
        weights = np.asarray(result.weights, np.longdouble)
        np.testing.assert_allclose(flat(result.point), weights @ vectors, atol=1e-15 * np.abs(vectors).max() * 10)


@pytest.mark.slow
def test_a_hull_that_holds_zero_is_stationary(x64):
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e-6, 1e6, 10.0 ** rng.uniform(-6, 6, (40, 1))):
        result = found(around_zero(rng, 40, 20) * scale)
        assert result.stationary
        assert not found(known_answer(rng, 1e-5)).stationary
    assert found(around_zero(rng, 40, 20), away_steps()).stationary


@pytest.mark.slow
@pytest.mark.parametrize("make", SOLVERS)
def test_the_gap_is_computed_from_the_vectors_and_bounds_the_error(x64, make):
    vectors = known_answer(np.random.default_rng(3), 0.3)
    for steps in (1, 5, 50):
        result = found(vectors, make(max_steps=steps))
        d = np.asarray(result.weights) @ vectors
        np.testing.assert_allclose(flat(result.point), d, atol=1e-14)
        np.testing.assert_allclose(result.squared_norm, d @ d, rtol=1e-12)
        np.testing.assert_allclose(result.gap, d @ d - np.min(vectors @ d), rtol=1e-9, atol=1e-15)
        assert 0.09 - 1e-15 <= result.squared_norm <= 0.09 + result.gap + 1e-15
        assert 0 < result.steps <= steps


@pytest.mark.slow
def test_away_steps_reach_the_tolerance_and_frank_wolfe_does_not(x64):
    vectors = np.random.default_rng(5).normal(size=(40, 20)) + 0.3
    exactly, away, plain = (found(vectors, make(tolerance=1e-6)) for make in SOLVERS)
    assert max(exactly.gap, away.gap) <= 1e-6 * exactly.squared_norm
    assert plain.gap > 1e-4 * plain.squared_norm
    assert plain.steps == 1000


@pytest.mark.slow
@pytest.mark.parametrize("make", [active_set, pytest.param(away_steps, marks=pytest.mark.slow)])
def test_a_warm_start_takes_fewer_steps(x64, make):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(40, 20)) + 0.5
    cold = found(vectors, make(tolerance=1e-8))
    moved = vectors.copy()
    moved[3] += 0.01 * rng.normal(size=20)
    again, warm = found(moved, make(tolerance=1e-8)), found(moved, make(tolerance=1e-8), start=cold.weights)
    assert warm.steps < again.steps
    np.testing.assert_allclose(warm.squared_norm, again.squared_norm, rtol=1e-7)


@pytest.mark.parametrize("make", FAST_SOLVERS)
def test_only_the_seen_have_a_weight(x64, make):
    vectors = np.random.default_rng(2).normal(size=(40, 20)) + 0.5
    seen = np.arange(40) % 3 == 1
    result = found(vectors, make(), seen)
    alone = found(vectors[seen], make())
    assert not np.any(np.asarray(result.weights)[~seen])
    np.testing.assert_allclose(result.squared_norm, alone.squared_norm, rtol=1e-9)
    np.testing.assert_allclose(result.gap, alone.gap, atol=1e-9)
    one = found(vectors, make(), np.arange(40) == 7)
    np.testing.assert_array_equal(one.weights, np.eye(40)[7])
    np.testing.assert_array_equal(flat(one.point), vectors[7])
    nobody = found(vectors, make(), np.zeros(40, bool), start=one.weights)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nobody))


def test_scaled_vectors(x64):
    rng = np.random.default_rng(4)
    vectors, scales = rng.normal(size=(40, 20)) + 0.5, 10.0 ** rng.uniform(-2, 2, 40)
    result, scaled = found(vectors, scales=scales), found(vectors * scales[:, None])
    np.testing.assert_allclose(result.weights, scaled.weights, atol=1e-10)
    np.testing.assert_allclose(flat(result.point), flat(scaled.point), atol=1e-12)
    np.testing.assert_allclose(result.squared_norm, scaled.squared_norm, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", [active_set, away_steps])
def test_single_precision(make):
    for ratio in (1.0, 0.1, 0.01):
        vectors = known_answer(np.random.default_rng(1), ratio).astype(np.float32)
        result = found(vectors, make())
        assert result.point["kernel"].dtype == result.weights.dtype == jnp.float32
        np.testing.assert_allclose(result.squared_norm, ratio**2, rtol=1e-5 if make is active_set else 1e-3)
        assert not result.stationary


@pytest.mark.slow
def test_vectors_of_half_precision_and_a_diverged_run():
    vectors = jnp.asarray(np.random.default_rng(1).normal(size=(5, 6)), jnp.bfloat16)
    result = found(vectors, scales=jnp.ones(5, jnp.float32), start=jnp.zeros(5, jnp.float32))
    assert result.point["bias"].dtype == jnp.bfloat16
    assert result.weights.dtype == jnp.float32
    for make in SOLVERS:
        diverged = found(jnp.full((5, 6), jnp.nan), make())
        assert np.all(np.isnan(flat(diverged.point)))
        assert diverged.steps < 20


def measured(t, scales):
    """A smooth function of the shortest vector of a family of hulls."""
    rng = np.random.default_rng(0)
    vectors, along, cotangent = rng.normal(size=(6, 5)) + 0.5, rng.normal(size=(6, 5)), rng.normal(size=5)
    m = jnp.asarray(vectors) + t * jnp.asarray(along)
    m = {"bias": m[:, :2], "kernel": m[:, 2:]}
    result = shortest(m, full_gram(m), jnp.ones(6, bool), jnp.zeros(6), scales=scales)
    d = jnp.concatenate([result.point["bias"], result.point["kernel"]])
    return jnp.sum(d * cotangent) + jnp.sum(result.weights**2) + result.squared_norm


@pytest.mark.slow
def test_derivative_is_that_of_the_minimiser(x64):
    scales, ts, h = jnp.linspace(0.5, 2, 6), jnp.asarray([0.0, 0.05, 0.4]), 1e-5
    value = jax.jit(jax.vmap(measured))
    slopes, by_scales = jax.jit(jax.vmap(jax.grad(measured, (0, 1)), (0, None)))(ts, scales)
    same = jnp.tile(scales, (3, 1))
    np.testing.assert_allclose(slopes, (value(ts + h, same) - value(ts - h, same)) / (2 * h), rtol=1e-7)
    bumps, zeros = h * jnp.eye(6), jnp.zeros(6)
    differences = (value(zeros, scales[None] + bumps) - value(zeros, scales[None] - bumps)) / (2 * h)
    np.testing.assert_allclose(by_scales[0], differences, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.grad(measured))(0.05, scales), slopes[1], rtol=1e-12)


@pytest.mark.slow
def test_second_derivative(x64):
    scales, h = jnp.linspace(0.5, 2, 6), 1e-5
    slope = jax.jit(jax.grad(measured))
    curvature = (slope(h, scales) - slope(-h, scales)) / (2 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(measured)))(0.0, scales), curvature, rtol=1e-6)


def test_second_derivative_where_somebody_was_not_seen():
    """A vector of zeros, whose length has no derivative. Between (1, 0) and (0, b) |d|^2 = b^2 / (1 + b^2)."""

    def squared_norm(b):
        m = jnp.zeros((3, 2)).at[0, 0].set(1).at[1, 1].set(b)
        return shortest(m, full_gram(m), jnp.array([True, True, False]), jnp.zeros(3)).squared_norm

    found = jax.jit(lambda b: jax.jvp(jax.grad(squared_norm), (b,), (1.0,)))(1.0)
    np.testing.assert_allclose(found, (0.5, -0.5), rtol=1e-4)


@pytest.mark.slow
def test_derivative_through_a_scan_of_warm_starts(x64):
    rng = np.random.default_rng(6)
    vectors, along = (jnp.asarray(rng.normal(size=(6, 5))) + 0.5 for _ in range(2))

    def trained(t):
        def a_round(carry, _):
            weights, m = carry
            found = shortest(m, full_gram(m), jnp.ones(6, bool), weights)
            return (found.weights, m - 0.1 * found.point[None]), found.squared_norm

        return jnp.sum(jax.lax.scan(a_round, (jnp.zeros(6), vectors + t * along), length=4)[1])

    value, h = jax.jit(trained), 1e-6
    np.testing.assert_allclose(jax.jit(jax.grad(trained))(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-7)


@pytest.mark.slow
def test_derivative_at_constant_weights_of_the_other_solvers(x64):
    vectors = jnp.asarray(np.random.default_rng(7).normal(size=(6, 5)) + 0.5)

    def first_of(m, solver):
        return shortest(m, full_gram(m), jnp.ones(6, bool), jnp.zeros(6), solver=solver).point[0]

    for make in (away_steps, frank_wolfe):
        result = shortest(vectors, full_gram(vectors), jnp.ones(6, bool), jnp.zeros(6), solver=make())
        slope = jax.grad(first_of)(vectors, make())
        np.testing.assert_allclose(slope, np.outer(result.weights, np.eye(5)[0]), atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("make", [active_set, away_steps])
def test_vmapped_problems_stop_one_by_one(x64, make):
    rng = np.random.default_rng(8)
    stack = jnp.asarray(np.stack([known_answer(rng, ratio, 12, 6) for ratio in (1.0, 0.1, 1e-5)]))

    def one(vectors):
        return shortest(vectors, full_gram(vectors), jnp.ones(12, bool), jnp.zeros(12), solver=make(tolerance=1e-6))

    together = jax.jit(jax.vmap(one))(stack)
    for i, vectors in enumerate(stack):
        alone = jax.jit(one)(vectors)
        np.testing.assert_allclose(together.squared_norm[i], alone.squared_norm, rtol=1e-8)
        steps = int(alone.steps)
        assert abs(int(together.steps[i]) - steps) <= 0.1 * steps + 2  # round-off may differ
    assert len(set(together.steps.tolist())) > 1


def test_gram_rows(x64):
    rng = np.random.default_rng(9)
    vectors = {"a": rng.normal(size=(5, 2, 3)), "b": rng.normal(size=5)}
    flatly = np.concatenate([np.reshape(vectors["a"], (5, 6)), vectors["b"][:, None]], 1)
    full, rows = jax.jit(lambda vectors, which: (full_gram(vectors), gram_rows(vectors, which)))(
        vectors, np.array([3, 0, 5])
    )
    np.testing.assert_allclose(full, flatly @ flatly.T, rtol=1e-13)
    np.testing.assert_allclose(rows, (flatly @ flatly.T)[[3, 0, 4]], rtol=1e-13)


@pytest.mark.slow
def test_no_second_store_or_gram_matrix():
    n, dimension = 600, 2000
    shapes = (
        {"w": jax.ShapeDtypeStruct((n, dimension // 4, 4), jnp.float32)},
        jax.ShapeDtypeStruct((n, n), jnp.float32),
        jax.ShapeDtypeStruct((n,), bool),
        jax.ShapeDtypeStruct((n,), jnp.float32),
    )
    memory = jax.jit(shortest).lower(*shapes).compile().memory_analysis()
    if memory is None:
        pytest.skip("this backend does not say")
    assert memory.temp_size_in_bytes < n * n * 4 / 4


@pytest.mark.parametrize("make", SOLVERS)
def test_bad_arguments(make):
    name = make.__name__
    with pytest.raises(ValueError, match=rf"{name}\(max_steps=\.\.\.\) is 0"):
        make(max_steps=0)
    with pytest.raises(ValueError, match=rf"{name}\(tolerance=\.\.\.\) is -1"):
        make(tolerance=-1)
    with pytest.raises(TypeError, match="must define weights"):
        min_norm.MinNormSolver().weights(None, None, None)


@pytest.mark.parametrize(
    "solver",
    [away_steps(max_steps=1), pytest.param(frank_wolfe(max_steps=1), marks=pytest.mark.slow)],
    ids=["away", "frank_wolfe"],
)
def test_one_step_is_an_exact_line_search(solver):
    """From the vector a towards b: argmin over t of |a + t (b - a)|^2, and its duality gap."""
    a, b, c = np.array([[2.0, 0.0, 0.5, 1.0], [-1.0, 1.0, 0.5, 0.3], [4.0, 1.0, 3.0, 2.0]])
    result = found(np.stack([a, b, c]), solver, start=np.array([1.0, 0.0, 0.0]))
    t = a @ (a - b) / ((a - b) @ (a - b))
    d = a + t * (b - a)
    np.testing.assert_allclose(result.weights, [1 - t, t, 0], rtol=1e-5)
    np.testing.assert_allclose(flat(result.point), d, rtol=1e-5)
    np.testing.assert_allclose(result.gap, d @ d - min(m @ d for m in (a, b, c)), atol=1e-5)
    early = found(np.stack([a, b, c, -b - c]), solver, start=np.array([0.0, 0.0, 1.0, 0.0]))
    point = flat(early.point)
    np.testing.assert_allclose(early.gap, point @ point - min(m @ point for m in (a, b, c, -b - c)), rtol=1e-5)
    assert early.gap > 0.1  # one step is not enough: the gap says so


def test_an_away_step_ends_where_the_vector_has_no_weight_left():
    """The exact search along d - c would go three times as far, to a weight below zero."""
    a, b, c = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])
    result = found(np.stack([a, b, c]), away_steps(max_steps=1), start=np.array([0.495, 0.495, 0.01]))
    np.testing.assert_allclose(result.weights, [0.5, 0.5, 0.0], rtol=1e-5)
    assert result.weights[2] == 0
