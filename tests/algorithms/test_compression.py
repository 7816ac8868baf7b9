"""Compressed changes: what is sent, what is remembered, how many bytes it takes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

import fedjax_sim as fjs
from fedjax_sim import trees
from fedjax_sim.algorithms import Client, Mean, Sent, Share, wrapper
from fedjax_sim.algorithms.contract import received
from fedjax_sim.core import descriptions

pytestmark = pytest.mark.usefixtures("x64")

sgd = fjs.optim.sgd
BASE = fjs.fedavg(client_optimizer=sgd(0.1))
PARAMS = {"b": np.zeros(7, np.float32), "w": np.zeros((6, 5), np.float32)}
KEY = jax.random.key(3)


def client(key=KEY):
    one, scalars = jnp.float64(0.5), {"b": jnp.float64(0.3), "w": jnp.float64(0.4)}
    return Client(
        index=jnp.int32(1), id=jnp.int32(1), size=jnp.int32(4), steps=jnp.int32(3), weight=one, share=one,
        learning_rate=one, slope=scalars, key=key, step_size=scalars, relative_size=one,
    )  # fmt: skip


def random_like(tree, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), tree)


def end_to_end(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@jax.jit
def encoded(method, change, c_i=(), key=KEY):
    sent, kept, _ = wrapper.encoded(method, change, Sent(PARAMS), c_i, client(key))
    return sent, kept


def mean_over_keys(method, change, count):
    keys = jax.random.split(jax.random.key(7), count)
    sent = jax.jit(jax.vmap(lambda key: encoded(method, change, key=key)[0]))(keys)
    return jax.tree.map(lambda leaf: (np.mean(leaf, axis=0), np.std(leaf, axis=0)), sent), sent


@pytest.mark.parametrize(
    ("bits", "scale"),
    [(2, "l2"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, "max"), (4, "l2"), (4, "max")))],
)
def test_quantisation_is_unbiased_and_on_its_lattice(scale, bits):
    method, v, count = fjs.quantised(BASE, bits=bits, scale=scale), random_like(PARAMS), 4000
    moments, sent = mean_over_keys(method, v, count)
    levels = 2 ** (bits - 1) - 1
    for name, leaf in v.items():
        length = np.abs(leaf).max() if scale == "max" else np.sqrt(np.sum(np.square(leaf)))
        mean, std = moments[name]
        # six standard errors over 37 entries: a false alarm in 10^7 runs; 1/count for entries that are never rounded up
        assert (np.abs(mean - leaf) <= 6 * std / np.sqrt(count) + length / levels / count).all()
        places = np.asarray(sent[name]) / length * levels
        np.testing.assert_allclose(places, np.round(places), atol=1e-9)
        between = np.abs(places - np.asarray(leaf) / length * levels)
        assert between.max() < 1  # to one of the two neighbours
        if scale == "l2":  # Alistarh et al. 2017, Lemma 3.1
            error = np.sum(np.square(np.asarray(sent[name]) - np.asarray(leaf)), axis=tuple(range(1, leaf.ndim + 1)))
            assert error.mean() <= min(leaf.size / levels**2, np.sqrt(leaf.size) / levels) * length**2


def test_quantisation_of_zeros_and_its_derivative():
    method = fjs.quantised(BASE, bits=3)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape), PARAMS)
    np.testing.assert_array_equal(end_to_end(encoded(method, zeros)[0]), 0)
    direction = random_like(PARAMS, 1)
    gradient_at = jax.jit(jax.grad(lambda v: trees.inner(encoded(method, v)[0], direction)))
    for at in (zeros, random_like(PARAMS)):  # straight through: the derivative of the mean
        gradient = gradient_at(at)
        np.testing.assert_array_equal(end_to_end(gradient), end_to_end(direction))


@pytest.mark.slow
def test_low_precision_keeps_its_dtype():
    v = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_like(PARAMS))
    for method in (fjs.quantised(BASE), fjs.top_k(BASE, 0.2, feedback=False), fjs.random_k(BASE, 0.2)):
        sent, _ = encoded(method, v)
        assert {leaf.dtype for leaf in jax.tree.leaves(sent)} == {jnp.dtype(jnp.bfloat16)}
        assert np.isfinite(end_to_end(sent).astype(np.float32)).all()


def test_top_k_sends_the_largest_entries_of_the_whole_model():
    v = random_like(PARAMS)
    v["b"][[0, 3]] = 0.5, -0.5
    flat = end_to_end(v)
    for fraction in (0.01, 0.3, 1.0):
        k = int(np.ceil(fraction * flat.size))
        sent = end_to_end(encoded(fjs.top_k(BASE, fraction, feedback=False), v)[0])
        order = np.argsort(-np.abs(flat), kind="stable")[:k]  # the first of ties
        expected = np.zeros_like(flat)
        expected[order] = flat[order]
        np.testing.assert_array_equal(sent, expected)


@pytest.mark.parametrize("make", [fjs.top_k, fjs.random_k])
def test_what_was_sent_and_what_is_remembered_add_up(make):
    method = make(BASE, 0.2, feedback=True)
    c_i = method.init_client(random_like(PARAMS))
    rng = np.random.default_rng(5)
    changes = [jax.tree.map(lambda leaf: rng.integers(-50, 50, leaf.shape) * 0.25, PARAMS) for _ in range(6)]
    total, heard = 0.0, 0.0
    for round_, change in enumerate(changes):
        sent, c_i = encoded(method, change, c_i, jax.random.fold_in(KEY, round_))
        total, heard = total + end_to_end(change), heard + end_to_end(sent)
        assert np.count_nonzero(end_to_end(sent)) <= 8  # ceil(0.2 * 37)
        np.testing.assert_array_equal(heard + end_to_end(c_i.memory), total)  # quarters: exact
    assert np.abs(end_to_end(c_i.memory)).max() > 0


def test_random_entries_are_unbiased_and_equally_likely():
    method, v, count = fjs.random_k(BASE, 0.3), random_like(PARAMS), 4000
    moments, sent = mean_over_keys(method, v, count)
    for name, leaf in v.items():
        mean, std = moments[name]
        assert (np.abs(mean - leaf) <= 6 * std / np.sqrt(count)).all()
    chosen = np.stack(
        [np.ravel(leaf) for leaf in np.concatenate([np.reshape(s, (count, -1)) for s in sent.values()], 1)]
    )
    k = 12  # ceil(0.3 * 37)
    assert (np.count_nonzero(chosen, axis=1) == k).all()
    flat = np.concatenate([np.ravel(leaf) for leaf in v.values()])
    np.testing.assert_array_equal(chosen[:50], np.where(chosen[:50] != 0, 37 / k * flat, 0))  # d / k, not 1 / f
    often = np.count_nonzero(chosen, axis=0) / count
    assert np.abs(often - k / 37).max() < 6 * np.sqrt(k / 37 * (1 - k / 37) / count)


def test_bytes():
    def up(method, delta=PARAMS, **more):
        messages = {"delta": Mean(delta), **more}
        return wrapper.uploaded(method, messages, delta)

    assert up(BASE) == 37 * 4
    assert up(fjs.quantised(BASE, bits=6)) == (-(-7 * 6 // 8) + 4) + (-(-30 * 6 // 8) + 4)
    assert up(fjs.top_k(BASE, 0.1)) == 4 * (4 + 4)
    assert up(fjs.random_k(BASE, 0.1)) == 4 * 4
    scaffold = fjs.scaffold(client_optimizer=sgd(0.1))
    assert up(fjs.random_k(scaffold, 0.1), control=Share(PARAMS)) == 37 * 4 + 4 * 4  # control variates go up whole
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    assert up(fjs.top_k(BASE, 0.1), half) == 4 * (2 + 4)


SEVERAL = ("fedem", "hypcluster", "cfl", "fjord")  # many operations, one by one; `ifca` and `heterofl` are their like


def factories():
    assert fjs.algorithms
    for name in descriptions.registered("algorithm"):
        make = descriptions._FACTORIES[name]
        if make.__module__.startswith("fedjax_sim."):
            name = name.partition(".")[2]
            yield pytest.param(make, id=name, marks=pytest.mark.slow if name in SEVERAL else ())


class Squares:
    """|params|^2, of each of two examples."""

    def __call__(self, params):
        return trees.square(params)

    def losses(self, params):
        return jnp.broadcast_to(self(params), (2,))

    def mean(self, values):
        return jnp.mean(values, axis=0)


@pytest.mark.parametrize("make", list(factories()))
def test_messages_know_the_model_by_its_change_alone(make):
    """The rule on ``finish`` that lets every method's change be encoded; nothing is computed."""
    parameters = inspect.signature(make).parameters
    try:
        method = make(BASE) if "base" in parameters else make(client_optimizer=sgd(0.1))
    except TypeError:
        return  # more than a base is needed
    if method.requires.classes:
        return  # a survey of labels; tests/algorithms/test_own_losses.py runs them inside wrappers
    x = random_like({"Dense_0": {"kernel": jnp.zeros((3, 2))}} if method.requires.whole_model else PARAMS, 2)
    trains = False
    for phase in method.phases():

        def begun(x, phase=phase):
            sent = received(phase.send(method.init(x, jnp.full(3, 1 / 3))), jnp.int32(1))
            c_i, at_work = method.init_client(x), client()
            if phase.requires.survey:
                at_work = at_work._replace(survey=phase.survey(Squares(), sent, c_i, at_work))
            return phase.begin(sent, c_i, at_work), sent, c_i, at_work

        def messages(x, y, other, phase=phase, begun=begun):
            _, sent, c_i, at_work = begun(x)
            delta, c_i, _ = wrapper.encoded(phase, phase.change(y, sent, c_i, at_work), sent, c_i, at_work)
            return phase.finish(delta, other, sent, c_i, at_work)[0]

        y = jax.eval_shape(begun, x)[0]
        program = jax.make_jaxpr(messages)(x, y, y).jaxpr
        read = dce_jaxpr(program, [True] * len(program.outvars))[1]
        number = len(jax.tree.leaves(y))
        trains |= any(read[-2 * number : -number])
        assert not any(read[-number:])
    assert trains


# Runs.

N, DIM = 4, 5


def problem():
    rng = np.random.default_rng(1)
    return fjs.datasets.quadratics_from(
        np.stack([np.diag(rng.uniform(0.5, 2.0, DIM)) for _ in range(N)]), rng.standard_normal((N, DIM))
    )


COHORTS = np.array([[0, 1, 3], [1, -1, 0], [3, 1, 0]])  # client 2 never


def run(algorithm):
    train = fjs.make_train(
        task=fjs.quadratic(start=0.5), rounds=3, cohort=fjs.cohort.given(COHORTS), work=fjs.local.steps(2),
        batches=fjs.local.full_batch(), layout=fjs.layout.turns(),
    )  # fmt: skip
    return jax.jit(train)(algorithm, problem(), jax.random.key(0))


def test_a_run_by_hand():
    """FedAvg with error feedback; the memory of a client that does not take part stays."""
    result = run(fjs.top_k(BASE, 0.4))
    data = problem()
    first = np.asarray(data.offsets)
    H, e = np.asarray(data.examples["H"])[first], np.asarray(data.examples["e"])[first]
    x, memory = np.full(DIM, 0.5), np.zeros((N, DIM))
    for row in COHORTS:
        sent = []
        for i in row[row >= 0]:
            y = x
            for _ in range(2):
                y = y - 0.1 * (H[i] @ y - e[i])
            v = y - x + memory[i]
            sent.append(np.where(np.argsort(np.argsort(-np.abs(v))) < 2, v, 0))
            memory[i] = v - sent[-1]
        x = x + np.mean(sent, axis=0)
    np.testing.assert_allclose(result.params, x, rtol=1e-12)
    np.testing.assert_allclose(result.state.clients.memory, memory, atol=1e-13)
    assert np.abs(memory[0]).max() > 1e-3
    np.testing.assert_array_equal(memory[2], 0)


@pytest.mark.slow
def test_compression_that_loses_nothing_changes_nothing():
    base = fjs.scaffold(client_optimizer=sgd(0.1))  # a change, and what is computed from it
    expected = run(base)
    for method, tolerance in (
        (fjs.top_k(base, 1.0), 1e-12),
        (fjs.random_k(base, 1.0), 1e-12),
        (fjs.quantised(base, bits=52), 1e-11),
    ):
        np.testing.assert_allclose(run(method).params, expected.params, rtol=tolerance)


@pytest.mark.slow
def test_server_and_clients_agree_on_control_variates():
    """c = sum p_j c_j, whatever was lost on the way: both are computed from what was heard."""
    result = run(fjs.random_k(fjs.scaffold(client_optimizer=sgd(0.1)), 0.4, feedback=True))
    np.testing.assert_allclose(result.state.server.base.extra, np.mean(result.state.clients.base, axis=0), atol=1e-12)
    result = run(fjs.quantised(fjs.feddyn(client_optimizer=sgd(0.1), alpha=0.3), bits=4))
    np.testing.assert_allclose(result.state.server.base.extra, np.mean(result.state.clients, axis=0), atol=1e-12)


@pytest.mark.slow
def test_wrappers_act_from_the_inside_out():
    v = random_like(PARAMS)
    clipped_last = fjs.clipped(fjs.random_k(BASE, 0.2), norm=0.5)
    np.testing.assert_allclose(np.linalg.norm(end_to_end(encoded(clipped_last, v)[0])), 0.5, rtol=1e-12)
    clipped_first = fjs.random_k(fjs.clipped(BASE, norm=0.5), 0.2)
    short = encoded(fjs.clipped(BASE, norm=0.5), v)[0]
    np.testing.assert_allclose(
        end_to_end(encoded(clipped_first, v)[0]), end_to_end(encoded(fjs.random_k(BASE, 0.2), short)[0]), rtol=1e-12
    )


def test_bad_input():
    for bits, error, message in (
        (1, ValueError, r"quantised\(bits=...\) is 1: it must be at least 2"),
        (53, ValueError, r"is 53: it must be at most 52"),
        (8.0, TypeError, r"quantised\(bits=...\) is 8.0: it must be an integer"),
    ):
        with pytest.raises(error, match=message):
            fjs.quantised(BASE, bits=bits)
    with pytest.raises(ValueError, match=r"quantised\(scale=...\) is 'l1'.*known: l2, max"):
        fjs.quantised(BASE, scale="l1")
    for fraction, error in ((0.0, ValueError), (1.5, ValueError), (-0.1, ValueError), ("half", TypeError)):
        with pytest.raises(error, match=r"top_k\(fraction=...\) is"):
            fjs.top_k(BASE, fraction)
    with pytest.raises(TypeError, match=r"random_k\(fraction=...\) is traced: programs are made by it"):
        jax.jit(lambda f: fjs.random_k(BASE, f).client_learning_rate)(0.5)
    with pytest.raises(TypeError, match=r"top_k\(feedback=...\) is 1"):
        fjs.top_k(BASE, 0.5, feedback=1)
    with pytest.raises(ValueError, match="the base is compressed already, by TopK"):
        fjs.quantised(fjs.ema(fjs.top_k(BASE, 0.5)))
    with pytest.raises(TypeError, match=r"top_k\(base\) is .*: give a method"):
        fjs.top_k(0.5)
    assert fjs.top_k(BASE, 1) == fjs.top_k(BASE, 1.0)
    assert fjs.random_k(BASE, 0.5).requires.duplicates
    assert not fjs.top_k(BASE, 0.5).requires.duplicates
