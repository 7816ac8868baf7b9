"""Diagnostics: every measure against numpy, streams against loops, minima and curvatures against closed forms."""

import dataclasses
import functools
import inspect
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import diagnostics as dg
from fedjax_sim.algorithms.contract import Client, Cohort
from fedjax_sim.core import descriptions, fields
from fedjax_sim.diagnostics import measures, streams
from fedjax_sim.diagnostics.streams import client_inexactness, hessian_difference, spectral_norm
from fedjax_sim.models import evaluation, passes

RNG = np.random.default_rng(0)


def power_law(num_clients=12, *, weighted=True, dim=3):
    """Sizes from 1 to hundreds, stored out of the order of their ids."""
    rng = np.random.default_rng(1)
    sizes = np.maximum(1, (300 / np.arange(1, num_clients + 1) ** 1.5)).astype(int)
    clients = [(rng.normal(size=(n, dim)) + i % 3, rng.integers(0, 3, n)) for i, n in enumerate(sizes)]
    data = fjs.datasets.from_clients(clients, client_ids=rng.permutation(num_clients) + 5)
    return data.with_example_weights(rng.uniform(0.5, 2.0, data.num_examples)) if weighted else data


class Curved(fjs.task.Task):
    """F_i(x) = curvature mean a^2 x^2 / 2."""

    curvature: object = fields.real()

    def init(self, key, dataset):
        return jnp.ones(1)

    def losses(self, params, examples, key=None, weights=None):
        return self.curvature * (examples["a"] @ params) ** 2 / 2


def logistic():
    """Softmax regression in double precision; flax models keep single precision."""

    def logits(params, examples):
        x = examples["x"].astype(float)
        return x @ params["w"] + params["b"][None]

    def losses(params, examples):
        scores = jax.nn.log_softmax(logits(params, examples))
        return -jnp.take_along_axis(scores, examples["y"][:, None], axis=1)[:, 0]

    def metrics(params, examples):
        right = jnp.argmax(logits(params, examples), axis=1).astype(examples["y"].dtype) == examples["y"]
        return {"accuracy": right.astype(float)}

    def penalty(params):
        return 0.1 * (jnp.sum(jnp.square(params["w"])) + jnp.sum(jnp.square(params["b"])))

    return fjs.functions(lambda key: {"w": jnp.zeros((3, 3)), "b": jnp.zeros((3,))}, losses, metrics, penalty)


def local_objective(task, data, i):
    """F_i without any stream."""
    first, size = (int(np.asarray(of)[i]) for of in (data.offsets, data.sizes))
    rows = slice(first, first + size)
    examples = jax.tree.map(lambda leaf: leaf[rows], data.examples)
    weights = 1.0 if data.example_weights is None else data.example_weights[rows]

    def objective(params):
        loss, penalty = jnp.mean(task.losses(params, examples) * weights), task.penalty(params)
        return loss if penalty is None else loss + penalty

    return objective


def a_model(task, data, seed=0):
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(lambda: task.init(jax.random.key(0), data))
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)


def view(data, task, *, steps=(2, 0, 3), updates=None, algorithm=None, accumulation=(), params=None, seed=0):
    """A round of the clients with indices 0, (void), 2, ... of ``data``."""
    steps = np.asarray(steps, np.int32)
    slots, valid = len(steps), steps > 0
    index = np.where(valid, np.arange(slots, dtype=np.int32), data.num_clients).astype(np.int32)
    storage = np.asarray(data.order)[np.minimum(index, data.num_clients - 1)]
    sizes, ids = (np.asarray(of)[storage] for of in (data.sizes, data.client_ids))
    weight = np.where(valid, sizes, 0).astype(float)
    client = Client(
        index=index, id=ids, size=sizes, steps=steps, weight=weight / weight.sum() if valid.any() else weight,
        share=sizes.astype(float) / data.num_examples, relative_size=sizes * data.num_clients / data.num_examples,
        learning_rate=np.full(slots, 0.1), key=(),
    )  # fmt: skip
    cohort = Cohort(index, valid, client.weight, valid.sum(dtype=np.int32), data.num_clients, 1.0, 0, ())
    drift = () if updates is None else np.linalg.norm(flat(updates), axis=1)
    params = a_model(task, data, seed) if params is None else params
    return dg.RoundView(
        task, data, algorithm, params, params, client, cohort, updates, drift, accumulation,
        np.float32(2000), np.float32(1000),
        np.int32(6), np.int32(8), jax.random.key(7),
    )  # fmt: skip


def stack(valid, dim=5):
    vectors = {"a": RNG.normal(size=(len(valid), dim)), "b": RNG.normal(size=(len(valid), 2, 2))}
    return jax.tree.map(lambda leaf: leaf * valid.reshape(-1, *[1] * (leaf.ndim - 1)), vectors)


def flat(vectors):
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(vectors)], axis=1)


@pytest.mark.usefixtures("x64")
class TestMeasures:
    def test_moments_of_vectors(self):
        valid = np.array([True, True, False, True])
        vectors, p = stack(valid), np.array([0.2, 0.3, 0.0, 0.5])
        g = flat(vectors)
        mean = p @ g
        mean_square, variance = p @ (g**2).sum(1), p @ ((g - mean) ** 2).sum(1)
        rho = mean @ mean
        plain = g[valid].mean(0)

        @jax.jit
        def found(vectors, p, valid):
            names = ("dissimilarity", "lud", "gradient_variance", "consensus")
            measured = {name: getattr(measures, name)(vectors, p) for name in names}
            moved = measures.gradient_variance(vectors, p, valid.astype(float) / 3)
            return measured | {"e_lud": measures.e_lud(vectors, valid), "moved": moved}

        assert found(vectors, p, valid) == pytest.approx(
            {
                "dissimilarity": np.sqrt(mean_square / rho),
                "lud": np.sqrt(mean_square / rho),
                "gradient_variance": variance,
                "consensus": rho,
                "e_lud": np.sqrt((g[valid] ** 2).sum(1).mean() / (plain @ plain)),
                "moved": p @ ((g - plain) ** 2).sum(1),
            }
        )

    def test_vanishing_vectors(self):
        zeros, half = np.zeros((2, 3)), np.array([0.5, 0.5])
        found, gradient = jax.jit(
            lambda zeros: (
                [
                    measures.dissimilarity(zeros, half),
                    measures.dissimilarity(np.array([[1.0], [-1.0]]), half),
                    measures.dissimilarity(np.array([[2.0, 1.0]]), np.ones(1)),
                    measures.e_lud(zeros, np.zeros(2, bool)),
                ],
                jax.grad(measures.dissimilarity)(zeros, half),
            )
        )(zeros)
        assert found == [1, np.inf, pytest.approx(1), 1]
        assert np.isfinite(gradient).all()

    def test_cosines(self):
        valid = np.array([True, False, True, True, True])
        moved = np.arange(5) != 3  # valid, but it did not move
        vectors = jax.tree.map(lambda leaf: leaf * moved.reshape(-1, *[1] * (leaf.ndim - 1)), stack(valid))
        g = flat(vectors)
        matrix = np.zeros((5, 5))
        for i, j in itertools.product((0, 2, 4), repeat=2):
            matrix[i, j] = g[i] @ g[j] / np.linalg.norm(g[i]) / np.linalg.norm(g[j])
        found, coherence = jax.jit(lambda *of: (measures.cosine_matrix(*of), measures.coherence(*of)))(vectors, valid)
        np.testing.assert_allclose(found, matrix, atol=1e-12)
        assert coherence == pytest.approx(np.triu(matrix, 1).sum())

    def test_small_changes_of_half_precision(self):
        """Their squares are 0 in float16: a diversity of 1 and cosines of 0."""
        vectors, all_ = jnp.array([[1e-4, 0], [1e-4, 1e-4]], jnp.float16), np.ones(2, bool)
        found, matrix = jax.jit(lambda v: (measures.e_lud(v, all_), measures.cosine_matrix(v, all_)))(vectors)
        assert found == pytest.approx(np.sqrt(1.5 / 1.25), rel=1e-3)
        np.testing.assert_allclose(matrix, [[1, 0.5**0.5], [0.5**0.5, 1]], rtol=1e-3)

    def test_quantiles_and_fairness(self):
        values, valid = RNG.uniform(size=7), np.array([1, 0, 1, 1, 0, 1, 1], bool)
        levels = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
        quantiles = jax.jit(measures.quantiles)
        np.testing.assert_allclose(quantiles(values, valid, levels), np.quantile(values[valid], levels), rtol=1e-12)
        assert quantiles(values, np.zeros(7, bool), levels).tolist() == [0.0] * 5

        @jax.jit
        def found(v):
            worst = [evaluation.worst_mean(v, 0.25, highest=True), evaluation.worst_mean(v, 0.1, highest=False)]
            return measures.gini(v), measures.jain(v), *worst

        gini, jain, highest, lowest = found(values)
        assert gini == pytest.approx(np.abs(np.subtract.outer(values, values)).sum() / 14 / values.sum())
        assert jain == pytest.approx(values.sum() ** 2 / (7 * (values**2).sum()))
        assert highest == pytest.approx(np.sort(values)[-2:].mean())
        assert lowest == pytest.approx(values.min())
        assert found(np.zeros(7))[:2] == (0, 1)
        close = (2.3 + 1e-4 * np.random.default_rng(0).normal(size=1001)).astype(np.float32)
        exact = np.abs(np.subtract.outer(close, close).astype(float)).sum() / 2002 / close.sum(dtype=float)
        # What all have was summed too: its round-off was 0.1 % of the coefficient, and a value below 0 of equal ones.
        assert jax.jit(measures.gini)(close) == pytest.approx(exact, rel=1e-5)

    @pytest.mark.slow
    def test_of_what_is_no_number_they_are_none(self):
        """And not those of equal clients."""
        values, bad = np.ones(3), np.array([1.0, np.nan, 1.0])
        assert np.isnan([measures.jain(bad), measures.gini(bad), measures.lud(bad[:, None], values / 3)]).all()
        assert (
            np.isnan([*measures.root_ratio(bad, values), *measures.root_ratio(bad, 0 * values)]).tolist()
            == [0, 1, 0] * 2
        )
        assert measures.root_ratio(np.array([0.0, 0, 4]), np.array([4.0, 0, 0])).tolist() == [0, 1, np.inf]
        present = np.array([True, True, False])
        assert np.isnan(measures.quantiles(bad, present, np.array([0.0, 0.5]))).all()
        assert measures.quantiles(bad[[0, 2, 1]], present, np.array([0.5])) == 1

    def test_surrogate_weights(self):
        p, w = np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.8, 0.0])
        chi_square = jax.jit(measures.chi_square)
        assert chi_square(p, w) == pytest.approx(((p - w)[:2] ** 2 / w[:2]).sum())
        assert chi_square(p, np.array([1.0, 0.0, 0.0])) == np.inf
        assert chi_square(p, p) == 0
        a = np.array([[1.0, 0.0, 0.0], [0.81, 0.9, 1.0], [0.0, 0.0, 0.0]])
        one, square = a[:2].sum(1), (a[:2] ** 2).sum(1)
        expected = 2 * 1.7 * (w[:2] ** 2 * square / one**2).sum()
        assert jax.jit(measures.relative_variance)(w, a, np.float64(1.7)) == pytest.approx(expected)


@pytest.mark.usefixtures("x64")
class TestStreams:
    @pytest.mark.slow
    def test_gradient_moments_are_those_of_a_loop(self):
        data, task = power_law(), logistic()
        params = a_model(task, data)
        n = data.num_clients
        gradients = [jax.grad(local_objective(task, data, i))(params) for i in range(n)]
        gradients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
        plain = jnp.full((n,), 1 / n)
        found = jax.jit(dg.client_gradient_moments)(task, data, params)
        np.testing.assert_allclose(found, measures.moments(gradients, data.shares), rtol=1e-10)
        uniform = dg.client_gradient_moments(task, data, params, weights=plain, centre_weights=data.shares)
        np.testing.assert_allclose(uniform, measures.moments(gradients, plain, data.shares), rtol=1e-10)
        v = view(data, task, params=params)
        assert dg.dissimilarity().measure(v)["dissimilarity"] == pytest.approx(
            float(measures.dissimilarity(gradients, data.shares))
        )
        record = dg.gradient_moments(uniform=True).measure(v)
        mean_square, square_of_mean, _ = measures.moments(gradients, plain)
        assert record["gradient_mean_square_uniform"] == pytest.approx(float(mean_square))
        assert record["gradient_square_of_mean_uniform"] == pytest.approx(float(square_of_mean))

    @pytest.mark.slow
    def test_two_models_at_once_and_the_derivative(self):
        data, task = power_law(5), logistic()
        params = a_model(task, data)
        two = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
        together = jax.vmap(lambda x: dg.client_gradient_moments(task, data, x).variance)(two)
        alone = dg.client_gradient_moments(task, data, jax.tree.map(lambda leaf: 2 * leaf, params)).variance
        assert together[1] == pytest.approx(float(alone), rel=1e-10)

        def variance(scale):
            x = jax.tree.map(lambda leaf: scale * leaf, params)
            return dg.client_gradient_moments(task, data, x).variance

        slope = (variance(1.0 + 1e-5) - variance(1.0 - 1e-5)) / 2e-5
        assert jax.jit(jax.grad(variance))(1.0) == pytest.approx(float(slope), rel=1e-6)

    @pytest.mark.slow
    def test_client_values(self):
        data, task = power_law(), logistic()
        params = a_model(task, data)
        values = jax.jit(dg.client_values)(task, data, params)
        losses = [float(local_objective(task, data, i)(params)) for i in range(data.num_clients)]
        np.testing.assert_allclose(values["loss"], losses, rtol=1e-10)
        mean = passes.mean_values(task, params, data)["accuracy"]
        assert jnp.dot(values["accuracy"], data.shares) == pytest.approx(float(mean))
        record = dg.client_losses().measure(view(data, task, params=params))
        assert set(record) == set(dg.client_losses().names())
        assert record["client_loss_worst"] == pytest.approx(np.sort(losses)[-2:].mean())
        assert record["client_loss_std"] == pytest.approx(np.std(losses))


def quadratic_data(dim=4):
    matrices, vectors = [], []
    for _ in range(3):
        root = RNG.normal(size=(dim, dim))
        matrices.append(root @ root.T + np.eye(dim))
        vectors.append(RNG.normal(size=dim))
    pairs = enumerate(zip(matrices, vectors, strict=True), 1)
    clients = [{"H": np.stack([h] * k), "e": np.stack([e] * k)} for k, (h, e) in pairs]
    return fjs.datasets.from_clients(clients), np.array(matrices), np.array(vectors)


@pytest.mark.usefixtures("x64")
class TestQuadratics:
    def test_clients_with_equal_losses_have_a_derivative(self):
        same = fjs.datasets.quadratics_from(np.ones((2, 1, 1)), np.ones((2, 1)))

        def spread(x):
            losses = dg.client_losses().measure(view(same, fjs.quadratic(), steps=(1, 1), params=x[None]))
            return losses["client_loss_std"]

        assert jax.jit(jax.value_and_grad(spread))(3.0) == (0, 0)

    def test_hessian_dissimilarity(self):
        data, matrices, _ = quadratic_data()
        mean = np.tensordot(np.array([1, 2, 3]) / 6, matrices, 1)
        expected = max(np.abs(np.linalg.eigvalsh(h - mean)).max() for h in matrices)
        requested = [dg.hessian_dissimilarity(), dg.hessian_dissimilarity(num_clients=1)]
        measured = jax.jit(lambda v: [one.measure(v)["hessian_dissimilarity"] for one in requested])
        found, sampled = measured(view(data, fjs.quadratic()))
        assert found == pytest.approx(expected, rel=1e-9)
        turned = measured(view(data.subset([2, 0, 1]), fjs.quadratic()))[1]  # who is drawn knows of no storage
        assert turned == pytest.approx(sampled, rel=1e-9)
        each = [np.abs(np.linalg.eigvalsh(h - mean)).max() for h in matrices]
        assert np.isclose(each, float(sampled)).any()
        with pytest.raises(ValueError, match="has 3 clients"):
            dg.hessian_dissimilarity(num_clients=4).check(data, fjs.quadratic())

    def test_hessian_dissimilarity_in_half_precision(self):
        """LAPACK has no bfloat16, and vectors that are orthogonal in three digits are not."""
        task = fjs.functions(lambda key: jnp.ones(1), lambda x, examples: (examples["a"].astype(x.dtype) @ x) ** 2 / 2)
        data = fjs.datasets.from_clients([{"a": np.full((2, 1), a)} for a in (1.0, 2.0)])
        found = jax.jit(hessian_difference, static_argnums=(4, 5))(
            task, data, jnp.ones(1, jnp.bfloat16), jax.random.key(0), 2, None
        )
        assert found == pytest.approx(1.5, rel=0.01)

    def test_many_small_parts_of_half_precision_add_up(self):
        """Of a sum near 1 bfloat16 sees no part below 1/256."""
        task = fjs.functions(lambda key: jnp.ones(1), lambda x, examples: examples["a"].astype(x.dtype) @ x)
        data = fjs.datasets.from_clients([{"a": np.ones((n, 1), np.float16)} for n in (150_000, 50_000)])
        x = jnp.ones(1, jnp.bfloat16)
        found = jax.jit(streams.client_gradient_moments)(task, data, x)
        np.testing.assert_allclose(found, (1, 1, 0), atol=1e-3)
        cohort = SimpleNamespace(index=jnp.arange(2), steps=jnp.ones(2, jnp.int32), scale=None)
        update = jnp.ones((2, 1), jnp.bfloat16)
        inexact = jax.jit(lambda x: client_inexactness(task, data, x, update, cohort, 1.0))(x)
        np.testing.assert_allclose(inexact, 2, rtol=1e-3)

    @pytest.mark.slow
    def test_hessian_dissimilarity_has_a_derivative_in_the_task(self):
        data = fjs.datasets.from_clients([{"a": np.full((2, 1), a)} for a in (1.0, 2.0)])

        def measured(curvature):
            return hessian_difference(Curved(curvature), data, jnp.ones(1), jax.random.key(0), 2, None)

        np.testing.assert_allclose(jax.jit(jax.value_and_grad(measured))(3.0), (4.5, 1.5), rtol=1e-9)

    def test_lanczos_survives_an_invariant_space(self):
        @jax.jit
        def norm(spectrum, start):
            return spectral_norm(lambda v: spectrum * v, start, 6)

        spectrum, start = np.array([3.0, 3.0, 3.0, -1.0, -1.0, 0.0]), RNG.normal(size=6)
        assert norm(spectrum, start) == pytest.approx(3)
        assert norm(np.zeros(6), start) == 0

    def test_inexactness(self):
        data, matrices, vectors = quadratic_data()
        x, mu = RNG.normal(size=4), 0.7
        updates = RNG.normal(size=(3, 4))
        updates[1] = 0
        y = x + updates
        v = view(data, fjs.quadratic(), updates=updates, params=x)
        expected = [
            np.linalg.norm(matrices[i] @ y[i] - vectors[i] + mu * updates[i])
            / np.linalg.norm(matrices[i] @ x - vectors[i])
            for i in (0, 2)
        ]
        solved = updates.copy()
        solved[0] = np.linalg.solve(matrices[0], vectors[0]) - x

        @jax.jit
        def measured(v):
            exact = client_inexactness(v.task, data, v.before, solved, v.client._replace(scale=np.ones(3)))
            return dg.inexactness(mu=mu).measure(v), exact

        record, exact = measured(v._replace(algorithm=()))
        assert record["inexactness_mean"] == pytest.approx(np.mean(expected))
        assert record["inexactness_max"] == pytest.approx(max(expected))
        assert exact[0] < 1e-12

    @pytest.mark.slow
    def test_gamma(self):
        data, matrices, vectors = quadratic_data()
        p = np.array([1, 2, 3]) / 6
        minima = [-e @ np.linalg.solve(h, e) / 2 for h, e in zip(matrices, vectors, strict=True)]
        mean_h, mean_e = np.tensordot(p, matrices, 1), p @ vectors
        optimum = -mean_e @ np.linalg.solve(mean_h, mean_e) / 2
        found = dg.gamma(fjs.quadratic(start=1.0), data, tolerance=1e-8)
        assert bool(found.converged)
        assert found.value == pytest.approx(optimum - p @ minima, abs=1e-10)
        np.testing.assert_allclose(found.minima, minima, atol=1e-10)
        assert float(found.gradient_norms.max()) <= 1e-8


@pytest.mark.slow
def test_gamma_of_logistic_problems(x64):
    # one feature, one class seen by each client: F_k = softplus(-s_k w x) + penalty, solved by bisection
    data = fjs.datasets.from_clients([([[1.0], [2.0]], [0, 1]), ([[1.0], [1.0]], [1, 1])])
    model = fjs.models.LogisticRegression(2)
    regular = dg.gamma(fjs.classification(model, weight_decay=0.1), data, tolerance=1e-5)
    assert bool(regular.converged)
    # client 2: by symmetry of the two outputs logits (-u, u); kernel and bias alike, so u = 2 w, penalty 0.1 * 4 w^2
    low, high = 0.0, 10.0
    for _ in range(100):
        w = (low + high) / 2
        rising = 0.8 * w - 4 / (1 + np.exp(4 * w)) > 0
        low, high = (low, w) if rising else (w, high)
    assert regular.minima[1] == pytest.approx(np.log1p(np.exp(-4 * w)) + 0.4 * w**2, abs=1e-6)
    assert regular.value > 0
    separable = dg.gamma(fjs.classification(model), data, tolerance=1e-3, max_steps=50)
    assert not bool(separable.converged)


def test_updates_and_costs(x64):
    data, task = power_law(4), logistic()
    valid = np.array([True, False, True])
    updates = stack(valid)
    v = view(data, task, updates=updates)
    shares = v.client.share * valid
    shares = shares / shares.sum()
    requested = dg.as_diagnostics(
        ["lud", "e_lud", "consensus", "coherence", "cosine_matrix", "update_norms", "drift", "communication",
         dg.virtual_time(speeds=[1.0, 5.0, 0.5, 1.0], transfer=0.25), "efficiency"]
    )  # fmt: skip

    @jax.jit
    def measured(v):
        return [one.measure(v) for one in requested], measures.lud(updates, shares), measures.consensus(updates, shares)

    found, lud, consensus = measured(v)
    record = {}
    for one, new in zip(requested, found, strict=True):
        assert set(new) <= set(one.names())
        record |= new
    assert record["lud"] == pytest.approx(float(lud))
    assert record["consensus"] == pytest.approx(float(consensus))
    norms = np.linalg.norm(flat(updates), axis=1)[valid]
    np.testing.assert_allclose(record["update_norms"], np.quantile(norms, [0, 0.25, 0.5, 0.75, 1]))
    assert record["drift_mean"] == pytest.approx(norms.mean())
    assert record["drift_max"] == pytest.approx(norms.max())
    assert record["bytes_down"] == 2000
    assert record["virtual_time"] == 6.25
    assert record["efficiency"] == 0.75
    assert np.isfinite(record["cosine_matrix"]).all()
    empty = view(data, task, steps=(0, 0, 0), updates=jax.tree.map(np.zeros_like, updates))
    for one, new in zip(requested, measured(empty)[0], strict=True):
        assert all(np.isfinite(value).all() for value in new.values()), one


def test_surrogate(x64):
    data, task = power_law(4), logistic()
    a = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.25, 0.5, 1.0]])
    v = view(data, task, algorithm=(), accumulation=a)
    average, nova = (
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)),
        fjs.fednova(client_optimizer=fjs.optim.sgd(0.1), mu=0.1),
    )

    @jax.jit
    def measured(v):
        losses = [local_objective(task, data, int(np.asarray(data.order)[i]))(v.before) for i in (0, 2)]
        return [dg.surrogate().measure(v._replace(algorithm=method)) for method in (average, nova)], losses

    (record, of_nova), (first, last) = measured(v)
    losses = [first, first, last]
    p = np.asarray(v.client.weight)
    sums = np.array([2.0, 0.0, 1.75])
    w = p * sums / (p @ sums)
    assert record["effective_steps"] == pytest.approx(p @ sums)
    assert record["slowdown"] == pytest.approx(2.5 / (p @ sums))
    assert record["chi_square"] == pytest.approx(((p - w)[[0, 2]] ** 2 / w[[0, 2]]).sum())
    assert record["surrogate_loss"] == pytest.approx(w @ losses)
    assert record["cohort_loss"] == pytest.approx(p @ losses)
    record = of_nova
    assert record["chi_square"] == pytest.approx(0, abs=1e-15)
    assert record["effective_steps"] == pytest.approx(p @ [2.0, 0.0, 3.0])
    assert record["surrogate_loss"] == pytest.approx(float(record["cohort_loss"]))


def test_fit_dissimilarity():
    x = RNG.uniform(0.1, 2.0, size=40)
    y = 3.0 + 2.5 * x - RNG.uniform(0, 2.0, size=40)
    found = dg.fit_dissimilarity(y, x)
    slack = found.G**2 + found.B**2 * x - y
    assert slack.min() > -1e-9
    best = min(
        (max(0, (y - b * x).max()) + b * x - y).mean()
        for b in np.append(1.0, [(y[i] - y[j]) / (x[i] - x[j]) for i in range(40) for j in range(i)] + list(y / x))
        if b >= 1
    )
    assert slack.mean() == pytest.approx(best)
    assert dg.fit_dissimilarity([4.0, 9.0], [0.0, 0.0]) == (3.0, 1.0)
    y, x = [2.0, 16.0, 20.0], [0.5, 4.0, 10.0]
    assert dg.fit_dissimilarity([*y, *[0.0] * 9], [*x, *[0.0] * 9]) == dg.fit_dissimilarity(y, x), (
        "of a seed that stopped"
    )
    assert dg.fit_dissimilarity([0.0], [0.0]) == (0.0, 1.0)
    assert dg.fit_dissimilarity([1.0, 2.0], [1.0, 2.0]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="2 and 1 points"):
        dg.fit_dissimilarity([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="leave diverged rounds out"):
        dg.fit_dissimilarity([np.nan], [1.0])


def test_moments_of_half_precision_are_those_of_single():
    """1 and its neighbour in bfloat16 have no middle there: the variance was twice what it is."""
    near = jnp.array([[1.0, 1.0], [1 + 2**-7, 1 + 2**-7]], jnp.bfloat16)
    found = measures.moments({"x": near}, jnp.array([0.5, 0.5]))
    assert found.variance == 2 * 2**-16
    assert found.square_of_mean == 2 * (1 + 2**-8) ** 2


def test_running_mean():
    np.testing.assert_allclose(dg.running_mean([[2.0, 4.0, 9.0]]), [[2.0, 3.0, 5.0]])
    np.testing.assert_allclose(dg.running_mean([[2.0], [4.0]], axis=0), [[2.0], [3.0]])


def test_names():
    assert dg.by_name("gradient_variance") == dg.gradient_variance()
    assert fjs.build(fjs.describe(dg.inexactness(mu=0.5))) == dg.inexactness(mu=0.5)
    assert dg.as_diagnostics("lud") == (dg.lud(),)
    both = dg.as_diagnostics(["dissimilarity", dg.dissimilarity(uniform=True)])
    assert [one.names() for one in both] == [("dissimilarity",), ("dissimilarity_uniform",)]
    with pytest.raises(ValueError, match="did you mean 'coherence'"):
        dg.by_name("coherense")
    with pytest.raises(ValueError, match="Drift records 'drift_mean', which Drift records too"):
        dg.as_diagnostics(["drift", dg.drift()])
    with pytest.raises(TypeError, match="give names"):
        dg.as_diagnostics([nn.relu])
    with pytest.raises(TypeError, match="give names"):
        dg.as_diagnostics(3)

    class Own(dg.Diagnostic):
        def names(self):
            return ("cohort_size",)

    with pytest.raises(ValueError, match="which the run itself records"):
        dg.as_diagnostics(Own())
    with pytest.raises(ValueError, match="2 values for 4 clients"):
        dg.virtual_time(speeds=[1.0, 2.0]).check(SimpleNamespace(num_clients=4), None)


SIGNS = {"sum": "Σ", "grad": "∇", "hess": "∇²", "tau": "τ", "mu": "μ", "rho": "ρ", "gamma": "γ", "delta": "δ"}


def row(name):
    """A diagnostic in the table of the page: how it is made, what it records, what its docstring says first."""
    made = dg.by_name(name)
    what = inspect.getdoc(type(made)).partition("\n")[0].rstrip(".").replace("|", "‖").replace("^2", "²")
    what = re.sub(rf"(?<![a-z])({'|'.join(SIGNS)})(?![a-z])", lambda found: SIGNS[found[0]], what)
    what = what.replace("∇ ", "∇").replace("∇² ", "∇²")
    given = ", ".join(field.name for field in dataclasses.fields(made))
    return f"| `{name}({given})` | {', '.join(f'`{one}`' for one in made.names())} | {what} |"


def test_the_table_of_the_page_is_that_of_the_diagnostics():
    page = Path(__file__).parents[2].joinpath("docs", "diagnostics.md").read_text(encoding="utf-8")
    written = re.findall(r"^\| `\w+\(.*", page, re.MULTILINE)
    assert sorted(written) == sorted(row(name.partition(".")[2]) for name in descriptions.registered("diagnostic"))


def classified():
    rng = np.random.default_rng(4)
    clients = [(rng.normal(size=(n, 11)), rng.integers(0, 13, n)) for n in (3, 9, 5, 12, 4, 7, 1, 6)]
    return fjs.datasets.from_clients(clients, num_classes=13)


PROX = functools.partial(fjs.fedprox, mu=3.0)
PARTED = {  # the part that is averaged has a proximal term, or none
    "keep": (lambda **local: fjs.keep(PROX(**local), "b"), PROX),
    "fedrep": (lambda **local: fjs.fedrep(PROX(**local), "a", head_steps=2), PROX),
    "ditto": (functools.partial(fjs.ditto, lam=3.0), fjs.fedavg),
    "fedala": (fjs.fedala, fjs.fedavg),
}
OF_PARTS = fjs.functions(
    lambda key: {"a": jnp.ones(2), "b": jnp.ones(3)},
    lambda params, examples: (examples["x"] @ jnp.concatenate([params["a"], params["b"]])) ** 2,
)


def recorded(method, diagnostics=("surrogate",), **more):
    data = fjs.datasets.from_clients([{"x": np.random.default_rng(n).normal(size=(n, 5))} for n in (1, 4, 2, 3)])
    run = {
        "task": OF_PARTS, "rounds": 1, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(),
        "work": fjs.local.given_steps(np.array([[1, 4, 2, 3]])), "diagnostics": list(diagnostics), **more,
    }  # fmt: skip
    rounds = jax.jit(fjs.make_train(**run))(method, data, jax.random.key(0)).rounds
    return {name: float(rounds[name][0]) for name in rounds if name in NUMBERS}


NUMBERS = ("chi_square", "effective_steps", "slowdown", "surrogate_loss", "cohort_loss", "lud", "consensus")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keep", *(pytest.param(name, marks=pytest.mark.slow) for name in list(PARTED)[1:])])
def test_the_surrogate_is_of_the_part_that_is_averaged(name, x64):
    parted, alone = PARTED[name]
    local = {"client_optimizer": fjs.optim.sgd(0.1)}
    assert recorded(parted(**local)) == pytest.approx(recorded(alone(**local)), rel=1e-12)


@pytest.mark.slow
def test_of_chosen_weights_the_diagnostics_are_too(x64):
    """p_i as chosen weights are p_i; of others chi^2 and tau_eff are by hand."""
    fedavg, names = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), ("surrogate", "lud", "consensus")
    plain = recorded(fedavg, names)
    assert recorded(fjs.reweighted(fedavg, np.log([0.1, 0.4, 0.2, 0.3])), names) == pytest.approx(plain, rel=1e-12)
    p, tau = np.array([0.7, 0.1, 0.1, 0.1]), np.array([1, 4, 2, 3])
    found = recorded(fjs.clipped(fjs.reweighted(fedavg, np.log(p)), 1e9), names)
    w = p * tau / (p @ tau)
    assert found["effective_steps"] == pytest.approx(p @ tau)
    assert found["chi_square"] == pytest.approx(((p - w) ** 2 / w).sum())
    assert abs(found["lud"] / plain["lud"] - 1) > 0.01


def test_the_surrogate_is_of_clients_with_rates_of_their_own_and_scaled_losses(x64):
    """A client of three times the rate pulls as one of three times the steps; 1/N of N p_i F_i is p_i of F_i."""
    rates, p, tau = np.array([1.0, 3.0, 2.0, 0.5]), np.array([0.1, 0.4, 0.2, 0.3]), np.array([1, 4, 2, 3])
    fedavg = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1), client_learning_rate=fjs.rates.over_clients(rates))
    found = recorded(fedavg, cohort=fjs.cohort.full(average="transformed"))
    w = p * rates * tau / (p @ (rates * tau))
    assert found["chi_square"] == pytest.approx(((p - w) ** 2 / w).sum())
    assert found["effective_steps"] == pytest.approx(p @ (rates * tau) / rates.mean())
    assert found["cohort_loss"] == pytest.approx(recorded(fedavg)["cohort_loss"])


@pytest.mark.slow
def test_the_effective_steps_of_fednova_have_no_factors_of_the_average(x64):
    """H = Σ w_i h_i has none; the normalised changes are times N p_i: a step of Σ w_i N p_i times H of their mean."""
    p, tau = np.array([0.1, 0.4, 0.2, 0.3]), np.array([1, 4, 2, 3])
    for tau_eff, expected in ((None, tau.mean()), ("steps", tau.mean()), (4.0, 4.0)):
        method = fjs.fednova(client_optimizer=fjs.optim.sgd(0.1), tau_eff=tau_eff)
        found = recorded(method, cohort=fjs.cohort.full(average="transformed"))
        assert found["effective_steps"] == pytest.approx(expected)
        assert found["slowdown"] == pytest.approx(tau.mean() / expected)
    two = recorded(
        fjs.fednova(client_optimizer=fjs.optim.sgd(0.1)), cohort=fjs.cohort.given([[1, 2]], average="transformed")
    )
    assert two["effective_steps"] == pytest.approx(4 * p[1:3].mean() * tau[1:3].mean())


@pytest.mark.slow
@pytest.mark.parametrize("method", [fjs.fedavg, pytest.param(fjs.fednova, marks=pytest.mark.slow)])
def test_the_surrogate_of_a_round_without_steps_is_that_of_small_ones(method, x64):
    """A schedule may begin with the rate 0: 0 / 0 were its weights."""
    first, small = (
        recorded(method(client_optimizer=fjs.optim.sgd(1.0, 0.5), client_learning_rate=fjs.rates.over_rounds([rate])))
        for rate in (0.0, 1e-9)
    )
    assert first == pytest.approx(small, rel=1e-6)


class FromItsOwn(fjs.algorithms.FedAvg):
    """A user's method, whose clients go on from where they were."""

    def init_client(self, params):
        return params

    def begin(self, sent, c_i, client):
        return c_i

    def change(self, y, sent, c_i, client):
        return jax.tree.map(jnp.subtract, y, c_i)


@pytest.mark.slow
def test_inexactness_of_clients_that_train_elsewhere_is_refused():
    local = {"client_optimizer": fjs.optim.sgd(0.1)}
    slow = {
        "asynchronous": fjs.asynchronous.fedbuff(2), "system": fjs.systems.devices(seconds_per_step=1.0),
        "cohort": fjs.cohort.uniform(2),
    }  # fmt: skip
    for method, more, message in (
        (fjs.keep(fjs.fedavg(**local), "b"), {}, "the change of a part of the model"),
        (fjs.ema(fjs.freeze(fjs.fedavg(**local), "b")), {}, "the change of a part of the model"),
        (fjs.ifca(**local), {}, "one of several models"),
        (fjs.clipped(fjs.mr_mtl(**local)), {}, "models of their own"),
        (fjs.fedala(**local), {}, "models of their own"),
        (FromItsOwn(**local), {}, "models of their own"),
        (fjs.fedavg(**local), slow, "older models"),
    ):
        with pytest.raises(ValueError, match=rf"diagnostics=Inexactness.* and clients .*{message}: leave it out"):
            recorded(method, ["inexactness"], **more)
    recorded(fjs.clipped(fjs.ditto(**local)), ["inexactness"])


def settings(**more):
    return {
        "task": fjs.classification(fjs.models.LogisticRegression(13), weight_decay=1e-3), "rounds": 4, "eval_every": 2,
        "batch_size": 4, "cohort": fjs.cohort.uniform(7), "work": fjs.local.random_epochs(1, 2), **more,
    }  # fmt: skip


@pytest.mark.slow
def test_every_diagnostic_in_a_run():
    """By name, in both drivers: the same numbers, one a round; and what they must be where that is known."""
    names = [name.partition(".")[2] for name in descriptions.registered("diagnostic")]
    assert len(names) > 15
    algorithm, data = fjs.fednova(client_optimizer=fjs.optim.sgd(0.1)), classified()
    history = fjs.simulate(algorithm, data, **settings(diagnostics=names), seeds=[3])
    rounds = jax.jit(fjs.make_train(**settings(diagnostics=names)))(algorithm, data, jax.random.key(3)).rounds
    plain = fjs.simulate(algorithm, data, **settings(), seeds=[3])
    for name, values in history.rounds.items():
        assert values.shape[:2] == (1, 4)
        assert np.isfinite(values).all(), name
        np.testing.assert_allclose(values[0], rounds[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(plain["loss"], history["loss"], rtol=1e-6)  # to look changes nothing but round-off
    record = {name: values[0] for name, values in history.rounds.items()}
    assert (record["e_lud"] >= 1).all()
    assert (record["dissimilarity"] >= 1).all()
    np.testing.assert_allclose(record["efficiency"], 1)
    model = 4 * (11 * 13 + 13)
    np.testing.assert_array_equal(record["bytes_down"], 7 * model)
    np.testing.assert_array_equal(record["bytes_up"], 7 * (model + 2 * 4))  # a slope for each of two leaves
    np.testing.assert_allclose(np.diagonal(record["cosine_matrix"], axis1=1, axis2=2), 1, rtol=1e-5)
    assert set(record) - set(plain.rounds)


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_in_the_program():
    """No stack of single updates, [7, 11, 13], without a diagnostic that reads them."""
    algorithm, data = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), classified()
    task = fjs.functions(lambda key: jnp.zeros((11, 13)), lambda w, e: jnp.sum((e["x"] @ w) ** 2, axis=1))

    def program(**more):
        train = fjs.make_train(
            task=task, rounds=1, cohort=fjs.cohort.uniform(7), batches=fjs.local.full_batch(),
            work=fjs.local.steps(1), layout=fjs.layout.turns(), **more,
        )  # fmt: skip
        return jax.jit(train).lower(algorithm, data, jax.random.key(0)).as_text()

    plain, drift = program(), program(diagnostics="drift")
    assert "7x11x13" in program(diagnostics="e_lud")
    assert "7x11x13" not in drift
    assert program(diagnostics=()) == plain
    assert len(plain) < len(drift)


def test_a_name_cannot_be_recorded_twice():
    with pytest.raises(ValueError, match="'e_lud'"):
        fjs.make_train(**settings(diagnostics=["e_lud", dg.e_lud()]))
    with pytest.raises(ValueError, match="did you mean 'e_lud'"):
        fjs.make_train(**settings(diagnostics=["elud"]))


@pytest.mark.slow
@pytest.mark.parametrize("method", [fjs.feddane, fjs.qfedavg, functools.partial(fjs.scaffold, option="I")])
def test_the_weights_of_steps_of_methods_with_a_survey(method):
    """What a client's data say is a constant to its solver: of plain SGD every step counts once."""
    record = jax.jit(
        fjs.make_train(
            task=fjs.quadratic(),
            rounds=1,
            batches=fjs.local.full_batch(),
            cohort=fjs.cohort.full(average="plain"),
            work=fjs.local.steps(3),
            diagnostics=["surrogate"],
        )
    )(
        method(client_optimizer=fjs.optim.sgd(0.1)),
        fjs.datasets.quadratics(num_clients=3, dim=2, seed=0),
        jax.random.key(0),
    )
    assert float(record.rounds["effective_steps"][0]) == pytest.approx(3.0, rel=1e-5)


@pytest.mark.parametrize("method", [fjs.perfedavg, fjs.ifca])
def test_solvers_that_need_a_model_have_no_weights_of_steps(method):
    """It was JAX's "Expected a callable value, got None", and "vmap was requested to map its argument along axis 0"."""
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(),
        work=fjs.local.steps(1), diagnostics=["surrogate"],
    )  # fmt: skip
    data = fjs.datasets.quadratics(num_clients=2, dim=2)
    with pytest.raises(ValueError, match=r"diagnostics=Surrogate of (PerFedAvg|Ifca): .* leave it out"):
        jax.eval_shape(train, method(client_optimizer=fjs.optim.sgd(0.1)), data, jax.random.key(0))


@pytest.mark.parametrize("weighted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_mean_over_examples_in_slices_counts_each_once(x64, monkeypatch, weighted):
    """10 rows in slices of 4: the last slice is moved back, over rows that have been counted."""
    monkeypatch.setattr(streams, "_GRADIENT_ROWS", 4)
    rng = np.random.default_rng(3)
    values, weights = rng.standard_normal(10), rng.uniform(0.5, 2, 10) if weighted else np.ones(10)
    data = fjs.datasets.from_clients([{"x": values[:7]}, {"x": values[7:]}])
    data = data.with_example_weights(weights) if weighted else data

    def mean(params, batch):
        return jnp.sum(batch.weights * batch.examples["x"]) / batch.count.astype(float)

    expected = np.mean(weights * values)
    np.testing.assert_allclose(streams.mean_over_examples(mean, (), data), expected, rtol=1e-12)
    shares = np.array([0.2, 0.8])
    by_client = shares @ [np.mean((weights * values)[part]) for part in (slice(7), slice(7, 10))]
    np.testing.assert_allclose(streams.mean_over_examples(mean, (), data, shares), by_client, rtol=1e-12)


@pytest.mark.slow
def test_a_client_that_is_skipped_is_one_that_took_no_step():
    """What diagnostics find of the others does not know of it, whatever it left."""
    rng = np.random.default_rng(0)
    clients = [
        {"H": np.stack([np.eye(2) * (1 + i)] * n), "e": rng.normal(size=(n, 2))} for i, n in enumerate((3, 5, 4))
    ]
    clients[1] = {"H": clients[1]["H"] * 1e30, "e": clients[1]["e"]}
    data = fjs.datasets.from_clients(clients)

    def records(tau, **changes):
        history = fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=fjs.quadratic(start=1.0), rounds=1,
            cohort=fjs.cohort.full(), work=fjs.local.given_steps([tau], most=3), batches=fjs.local.full_batch(),
            diagnostics=["surrogate", "inexactness", "lud", "drift", "update_norms"], **changes,
        )  # fmt: skip
        return history.rounds

    skipped, absent = records([2, 3, 1], skip_nonfinite=True), records([2, 0, 1])
    assert skipped["nonfinite_clients"].tolist() == [[1]]
    for name in absent.keys() - {"nonfinite_clients", "nonfinite_ids", "useful_steps", "computed_steps"}:
        np.testing.assert_allclose(skipped[name], absent[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_is_seen_is_the_exchange_in_which_clients_train():
    """FedProto's clients report once they have trained; their models are their own."""
    data = fjs.datasets.from_clients([(np.eye(2, dtype="f")[:n], np.arange(n)) for n in (1, 2)], num_classes=2)
    task = fjs.classification(fjs.models.MLP(2, (2,)))
    train = fjs.make_train(
        task=task, rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1), batches=fjs.local.in_order(2),
        evaluate_train=False, evaluate=lambda params, data: {"nothing": 0.0}, diagnostics="update_norms",
    )  # fmt: skip
    result = jax.jit(train)(fjs.fedproto(client_optimizer=fjs.optim.sgd(0.5)), data, jax.random.key(0))
    moved = jax.tree.leaves(jax.tree.map(np.subtract, result.state.clients.model, result.params))
    lengths = np.sqrt(sum(np.square(leaf).reshape(2, -1).sum(axis=1) for leaf in moved))
    assert lengths.min() > 0
    np.testing.assert_allclose(result.rounds["update_norms"][0, [0, 4]], np.sort(lengths), rtol=1e-5)


def test_what_a_diagnostic_of_ones_own_must_return_and_ask_for():
    class Norm(dg.Diagnostic):
        def measure(self, view):
            return jnp.linalg.norm(view.after)

    class Far(dg.Diagnostic):
        def measure(self, view):
            return {"Far": jnp.sum(jnp.array([jnp.sum(leaf) for leaf in jax.tree.leaves(view.updates)]))}  # 0 of ()

    run = {
        "task": fjs.quadratic(), "rounds": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1),
        "batches": fjs.local.full_batch(), "progress": False,
    }  # fmt: skip
    data, method = fjs.datasets.quadratics(num_clients=2, dim=2), fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    with pytest.raises(TypeError, match=r"Norm.measure returned float32\[\]: return arrays by name"):
        fjs.simulate(method, data, **run, diagnostics=[Norm()])
    with pytest.raises(TypeError, match=r"view.updates is computed for .*observes = frozenset\(\{'updates'\}\)"):
        fjs.simulate(method, data, **run, diagnostics=[Far()])
