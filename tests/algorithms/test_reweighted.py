"""Aggregation weights of one's own: softmax(logits) in the place of the cohort scheme's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import reweighted

pytestmark = pytest.mark.usefixtures("x64")

sgd = fjs.optim.sgd
N, DIM, ETA = 4, 3, 0.1
SIZES = [1, 3, 2, 4]
TAU = np.array([[3, 1, 2, 4], [1, 2, 0, 3]])
LOGITS = np.array([0.4, -0.7, 1.1, 0.2])


def problem():
    rng = np.random.default_rng(0)
    hessians = np.stack([np.diag(rng.uniform(0.5, 1.5, DIM)) for _ in range(N)])
    return fjs.datasets.quadratics_from(hessians, rng.standard_normal((N, DIM)), sizes=SIZES)


def run(algorithm, cohort=None, rounds=2, **more):
    train = fjs.make_train(
        task=fjs.quadratic(start=0.5), rounds=rounds, cohort=cohort or fjs.cohort.full(),
        work=fjs.local.given_steps(TAU), batches=fjs.local.full_batch(4), **more,
    )  # fmt: skip
    return train(algorithm, problem(), jax.random.key(0))


jitted = jax.jit(run, static_argnames=("rounds", "eval_every"))


def by_hand(weights_of, heard=lambda deltas, present: deltas):
    """Two rounds of FedAvg with the weights ``weights_of(who takes part)`` of what is ``heard``."""
    data = problem()
    first = np.asarray(data.offsets)
    H, e = np.asarray(data.examples["H"])[first], np.asarray(data.examples["e"])[first]
    x = np.full(DIM, 0.5)
    for tau in TAU:
        y = np.tile(x, (N, 1))
        for i in range(N):
            for _ in range(tau[i]):
                y[i] = y[i] - ETA * (H[i] @ y[i] - e[i])
        x = x + weights_of(tau > 0) @ heard(y - x, tau > 0)
    return x


def softmax_over(present):
    weights = np.where(present, np.exp(LOGITS), 0)
    return weights / weights.sum()


def test_a_run_by_hand():
    """The third client is dropped from the second round, whose weights are those of the three left."""
    algorithm = reweighted(fjs.fedavg(client_optimizer=sgd(ETA)), LOGITS)
    result = jitted(algorithm)
    np.testing.assert_allclose(result.params, by_hand(softmax_over), rtol=1e-12)
    shifted = jitted(algorithm.replace(logits=LOGITS + 3.0))  # a constant changes nothing
    np.testing.assert_allclose(shifted.params, result.params, rtol=1e-12)
    with_shares = jitted(algorithm.replace(logits=np.log(SIZES)))
    np.testing.assert_allclose(
        with_shares.params, by_hand(lambda present: present * SIZES / np.sum(present * SIZES)), rtol=1e-12
    )


def test_attackers_do_not_choose_their_weight():
    """They say what they agree on, and the server weighs it: outside, noise on lambda_i Delta_i would count N times."""
    base, attack = fjs.fedavg(client_optimizer=sgd(ETA)), fjs.attacks.inner_product(0.7)

    def heard(deltas, present):
        honest = deltas[present & (np.arange(N) != 1)]
        return np.where(np.arange(N)[:, None] == 1, -0.7 * honest.mean(axis=0), deltas)

    result = jitted(reweighted(fjs.attacked(base, [1], attack), LOGITS))
    np.testing.assert_allclose(result.params, by_hand(softmax_over, heard), rtol=1e-12)
    with pytest.raises(ValueError, match=r"put attacked inside, reweighted\(attacked\(...\), ...\)"):
        fjs.attacked(fjs.ema(reweighted(base, LOGITS)), [1])
    for unfit in (fjs.robust(fjs.attacked(base, [1], attack)), reweighted(fjs.attacked(base, [1], attack), LOGITS)):
        with pytest.raises(ValueError, match="weighs its clients itself"):
            jitted(reweighted(unfit, LOGITS))


@pytest.mark.slow
def test_none_leaves_the_method_as_it_is():
    base = fjs.fedavg(client_optimizer=sgd(ETA))
    np.testing.assert_array_equal(jitted(reweighted(base)).params, jitted(base).params)


@pytest.mark.slow
def test_weights_sum_to_what_the_scheme_s_do():
    """The original average counts clients that are not drawn as x: its weights sum to sum_S p_i."""
    cohort = fjs.cohort.given(np.array([[0, 1, 3], [3, 0, 1]]), average="original")
    total = (SIZES[0] + SIZES[1] + SIZES[3]) / sum(SIZES)
    algorithm = reweighted(fjs.fedavg(client_optimizer=sgd(ETA)), LOGITS)
    result = jitted(algorithm, cohort)

    def weights_of(present):
        return total * softmax_over(np.array([True, True, False, True]) & present)

    np.testing.assert_allclose(result.params, by_hand(weights_of), rtol=1e-12)


@pytest.mark.slow
def test_control_variates_are_weighted_alike():
    """c = sum_j lambda_j c_j, and so the limit minimises sum_j lambda_j F_j in spite of unequal tau."""
    tau = np.tile([3, 1, 2, 4], (400, 1))
    data = problem()
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=400, cohort=fjs.cohort.full(), work=fjs.local.given_steps(tau), eval_every=400,
        batches=fjs.local.full_batch(4),
    )  # fmt: skip
    lambda_ = softmax_over(np.full(N, True))
    first = np.asarray(data.offsets)
    H, e = np.asarray(data.examples["H"])[first], np.asarray(data.examples["e"])[first]
    minimum = np.linalg.solve(np.einsum("i,ijk->jk", lambda_, H), lambda_ @ e)
    for base in (fjs.scaffold(client_optimizer=sgd(ETA)), fjs.feddyn(client_optimizer=sgd(ETA), alpha=0.5)):
        result = jax.jit(train)(reweighted(base, LOGITS), data, jax.random.key(0))
        np.testing.assert_allclose(result.params, minimum, rtol=1e-6)
        kept = result.state.server.base.extra
        np.testing.assert_allclose(kept, lambda_ @ np.asarray(result.state.clients), atol=1e-12)


@pytest.mark.slow
def test_gradients_learn_the_weights():
    """In each layout that of central differences; its entries sum to 0."""

    def loss(logits, layout):
        algorithm = reweighted(fjs.fednova(client_optimizer=sgd(ETA)), logits)
        return run(algorithm, layout=layout).metrics["loss"][-1]

    step = 1e-4
    around = LOGITS + step * np.concatenate([np.eye(N), -np.eye(N)])
    values = jax.jit(jax.vmap(functools.partial(loss, layout=fjs.layout.turns())))(around)
    expected = np.asarray(values[:N] - values[N:]) / (2 * step)
    assert np.abs(expected).max() > 1e-3
    for layout in (fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)):
        gradient = jax.jit(jax.grad(functools.partial(loss, layout=layout)))(jnp.asarray(LOGITS))
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)
        assert abs(gradient.sum()) < 1e-12


def test_what_is_minimised_is_written_down():
    base = fjs.fedavg(client_optimizer=sgd(ETA))
    assert reweighted(base, LOGITS).requires.minimises("sum p_i F_i") == "sum lambda_i F_i, lambda = softmax(logits)"
    assert reweighted(base).requires.minimises("sum p_i F_i") == "sum p_i F_i"


@pytest.mark.parametrize(
    "base", [fjs.qfedavg, fjs.afl, fjs.fedaware, lambda **given: reweighted(fjs.fedavg(**given), LOGITS)],
    ids=["qfedavg", "afl", "fedaware", "reweighted"],
)  # fmt: skip
def test_methods_that_weigh_clients_themselves_are_refused(base):
    with pytest.raises(ValueError, match=r"weighs its clients itself.*reweigh a method that averages"):
        jitted(reweighted(base(client_optimizer=sgd(ETA)), LOGITS))


def test_bad_input():
    base = fjs.fedavg(client_optimizer=sgd(ETA))
    with pytest.raises(ValueError, match=r"reweighted\(logits=...\) is .*: it must be finite"):
        reweighted(base, [0.0, np.inf])
    with pytest.raises(TypeError, match=r"reweighted\(logits=...\) is 'even'"):
        reweighted(base, "even")
    with pytest.raises(TypeError, match=r"reweighted\(base\) is .*: give a method"):
        reweighted(LOGITS)
    for logits in (LOGITS[:3], 0.0, np.zeros((N, 1))):
        with pytest.raises(ValueError, match=r"give one number for each of the data set's 4 clients"):
            jitted(reweighted(base, logits))
    with pytest.raises(ValueError, match="clients drawn twice have no meaning"):
        jitted(reweighted(base, LOGITS), fjs.cohort.with_replacement(3))
    with pytest.raises(ValueError, match="cannot average by 'transformed'"):
        jitted(reweighted(base, LOGITS), fjs.cohort.full(average="transformed"))
