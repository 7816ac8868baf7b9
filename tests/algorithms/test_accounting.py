"""What clipping and noise give: accountants against closed forms and published numbers."""

import math

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import privacy

sgd = fjs.optim.sgd
BASE = fjs.fedavg(client_optimizer=sgd(0.1))


def sampled_gaussian(q, z, order):
    """Renyi divergence of integer order of a Poisson sample's Gaussian mechanism (Mironov et al. 2019, section 3.3)."""
    k = np.arange(order + 1)
    ways = np.array([math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in k])
    terms = ways + k * np.log(q) + (order - k) * np.log1p(-q) + k * (k - 1) / (2 * z * z)
    return (terms.max() + np.log(np.sum(np.exp(terms - terms.max())))) / (order - 1)


def gaussian_delta(epsilon, z):
    """The exact delta of one Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

    def phi(t):
        return math.erfc(-t / math.sqrt(2)) / 2

    return phi(0.5 / z - epsilon * z) - math.exp(epsilon) * phi(-0.5 / z - epsilon * z)


@pytest.fixture
def accounting():
    pytest.importorskip("dp_accounting")
    return privacy


@pytest.mark.parametrize(("rounds", "z"), [pytest.param(1, 1.0, marks=pytest.mark.slow), (16, 8.0)])
def test_epsilon_without_sampling(accounting, rounds, z):
    """T Gaussian mechanisms are one with z / sqrt(T), whose delta is known exactly."""
    found = accounting.epsilon(noise_multiplier=z, sampling=fjs.cohort.full(), rounds=rounds, delta=1e-5)
    assert found[1:] == (1e-5, "add or remove one client", "pld")
    exact = gaussian_delta(found.epsilon, z / math.sqrt(rounds))
    assert 0.99e-5 < exact <= 1e-5 * (1 + 1e-9)  # an upper bound, and a tight one
    renyi = accounting.epsilon(
        noise_multiplier=z, sampling=fjs.cohort.full(), rounds=rounds, delta=1e-5, accountant="rdp"
    )
    assert found.epsilon < renyi.epsilon < 1.15 * found.epsilon
    # the classical conversion, a looser bound still
    classical = min(order * rounds / (2 * z * z) + math.log(1e5) / (order - 1) for order in np.linspace(1.1, 60, 2000))
    assert renyi.epsilon < classical


@pytest.mark.parametrize(
    ("clients", "published"), [(763_430, 4.634), pytest.param(10**8, 1.152, marks=pytest.mark.slow)]
)
def test_the_published_guarantees(accounting, clients, published):
    """McMahan et al. 2018: z = 1, 5000 of N clients a round, 5000 rounds, delta = 1e-9, by the moments accountant."""
    q, rounds, delta = 5000 / clients, 5000, 1e-9
    orders = range(2, 33)
    moments_accountant = min(
        rounds * sampled_gaussian(q, 1.0, order) + math.log(1 / delta) / (order - 1) for order in orders
    )
    assert moments_accountant == pytest.approx(published, abs=5e-4)
    tight, renyi = [
        accounting.epsilon(noise_multiplier=1.0, sampling=q, rounds=rounds, delta=delta, accountant=accountant).epsilon
        for accountant in ("pld", "rdp")
    ]
    assert 0 < tight < renyi < published  # later conversions and accountants are tighter


@pytest.mark.parametrize(("q", "z"), [pytest.param(0.3, 0.8, marks=pytest.mark.slow), (0.01, 1.0)])
def test_one_poisson_sample(accounting, q, z):
    """Its delta in closed form: P = (1 - q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2), and Q against P."""
    found = accounting.epsilon(noise_multiplier=z, sampling=q, rounds=1, delta=1e-4).epsilon

    def above(x):
        return math.erfc(x / z / math.sqrt(2)) / 2

    def where(ratio):  # P / Q = ratio at x = 1/2 + z^2 log((ratio - 1 + q) / q)
        return 0.5 + z * z * math.log((ratio - 1 + q) / q) if ratio > 1 - q else -math.inf

    edge = where(math.exp(found))
    removed = (1 - q) * above(edge) + q * above(edge - 1) - math.exp(found) * above(edge)
    edge = where(math.exp(-found))
    added = (1 - above(edge)) - math.exp(found) * ((1 - q) * (1 - above(edge)) + q * (1 - above(edge - 1)))
    assert 0.99e-4 < max(removed, added) <= 1e-4 * (1 + 1e-9)


def test_samples_without_replacement(accounting):
    """Replacing a client moves the sum by 2 C; with everybody in the sample that is all there is to it."""
    everybody = accounting.epsilon(
        noise_multiplier=4.0, sampling=fjs.cohort.uniform(50), num_clients=50, rounds=3, delta=1e-5
    )
    assert everybody.neighbours == "replace one client"
    half = accounting.epsilon(noise_multiplier=2.0, sampling=fjs.cohort.full(), rounds=3, delta=1e-5, accountant="rdp")
    assert everybody.epsilon == pytest.approx(half.epsilon, rel=1e-9)
    sampled = accounting.epsilon(
        noise_multiplier=4.0, sampling=fjs.cohort.uniform(5), num_clients=50, rounds=3, delta=1e-5
    )
    assert sampled.epsilon < everybody.epsilon
    poisson = accounting.epsilon(noise_multiplier=4.0, sampling=0.1, rounds=3, delta=1e-5, accountant="rdp")
    assert sampled.epsilon > poisson.epsilon


def test_what_a_run_has_spent(accounting):
    algorithm = fjs.ema(fjs.dp(fjs.fedadam(client_optimizer=sgd(0.1)), norm=0.3, noise_multiplier=1.1))
    cohort = fjs.cohort.independent([0.02, 0.1, 0.05], average="plain")
    found = accounting.spent(algorithm, cohort, 3, 20, 1e-4, accountant="rdp")
    expected = accounting.epsilon(noise_multiplier=1.1, sampling=0.1, rounds=20, delta=1e-4, accountant="rdp")
    assert found.epsilon == pytest.approx(expected.epsilon, rel=1e-6)  # the largest of the q_i, in single precision
    assert found[1:] == expected[1:]
    adaptive = fjs.dp(BASE, noise_multiplier=1.1, quantile=0.5, count_noise=2.0)
    assert accounting.spent(adaptive, fjs.cohort.independent(0.1), 3, 20, 1e-4, accountant="rdp") == expected
    silent = accounting.spent(fjs.dp(BASE, noise_multiplier=0.0), fjs.cohort.full(), 3, 20, 1e-4)
    assert silent.epsilon == math.inf
    assert silent.accountant == "pld"


@pytest.mark.slow
def test_a_finished_run_says_what_it_gave(accounting):
    """Of the rounds that it ran, which are fewer where it was stopped."""
    data = fjs.datasets.quadratics(num_clients=20, dim=3, seed=0)
    algorithm, cohort = fjs.ema(fjs.dp(BASE, noise_multiplier=1.3), 0.9), fjs.cohort.independent(0.2)
    history = fjs.simulate(
        algorithm, data, task=fjs.quadratic(), rounds=9, eval_every=3, cohort=cohort, work=fjs.local.steps(1),
        batches=fjs.local.full_batch(), stop=fjs.stopping.reached("loss", 100.0),
    )  # fmt: skip
    assert history.evaluated[-1] == 3
    assert privacy.of_run(history, data, 1e-3) == privacy.spent(algorithm, cohort, 20, 3, 1e-3)


def test_a_run_that_went_on_does_not_know_what_it_gave():
    """It said what its own rounds cost, half of what its model does."""
    about = {"algorithm": fjs.describe(fjs.dp(BASE)), "run": {"cohort": fjs.describe(fjs.cohort.independent(0.2))}}
    about["run"]["initial_state"] = "a checksum"
    history = fjs.History(np.array([0, 3]), {}, {}, None, [0], 0.0, 0.0, about)
    with pytest.raises(ValueError, match=r"went on from the state of another run, .* the rounds of both"):
        privacy.of_run(history, fjs.datasets.quadratics(num_clients=20, dim=3), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [0.05, pytest.param(fjs.cohort.uniform(50), marks=pytest.mark.slow)], ids=["poisson", "fixed"]
)
def test_the_noise_for_a_target(accounting, sampling):
    question = {"sampling": sampling, "rounds": 100, "delta": 1e-5, "num_clients": 1000}
    z = accounting.noise_multiplier(epsilon=2.0, accountant="rdp", **question)
    assert accounting.epsilon(noise_multiplier=z, accountant="rdp", **question).epsilon <= 2.0
    assert accounting.epsilon(noise_multiplier=z * 0.997, accountant="rdp", **question).epsilon > 2.0


def test_renyi_divergences_below_round_off_are_not_none(accounting):
    """With much noise single orders were negative, and epsilon was 0: the noise for a small one was 2.7 million."""
    question = {"sampling": 0.01, "rounds": 100, "delta": 1e-9, "accountant": "rdp"}
    least = min(math.log1p(-1 / order) - math.log(1e-9 * order) / (order - 1) for order in (512, 1024))
    for z in (1e5, 1e7):
        np.testing.assert_allclose(accounting.epsilon(noise_multiplier=z, **question).epsilon, least, rtol=1e-5)
    with pytest.raises(ValueError, match=r"epsilon=0.01, .* no epsilon below 0.0125 is accounted for"):
        accounting.noise_multiplier(epsilon=0.01, **question)
    assert accounting.epsilon(noise_multiplier=1e7, **question | {"accountant": "pld"}).epsilon < 1e-3


def test_what_cannot_be_accounted_for():
    private = fjs.dp(BASE)
    for cohort, name in (
        (fjs.cohort.shuffled(2), "shuffled"),
        (fjs.cohort.weighted(2), "weighted"),
        (fjs.cohort.given([[0]]), "given"),
        (fjs.cohort.available(fjs.cohort.uniform(2), fjs.cohort.bernoulli(0.5)), "available"),
    ):
        with pytest.raises(ValueError, match=rf"cohort.{name}\(...\) has no privacy accounting"):
            privacy.spent(private, cohort, 10, 5, 1e-5)
    with pytest.raises(TypeError, match=r"fedavg\(...\) releases more than fedjax_sim.dp"):
        privacy.spent(BASE, fjs.cohort.full(), 10, 5, 1e-5)
    with pytest.raises(TypeError, match=r"quantised\(...\) releases more"):
        privacy.spent(fjs.quantised(private), fjs.cohort.full(), 10, 5, 1e-5)
    with pytest.raises(TypeError, match="traced or several"):
        privacy.spent(private.replace(noise_multiplier=np.ones(2)), fjs.cohort.full(), 10, 5, 1e-5)
    with pytest.raises(TypeError, match=r"epsilon\(...\): has no argument 'rate'; its signature is .*sampling"):
        privacy.epsilon(noise_multiplier=1.0, rate=0.1, rounds=10, delta=1e-5)
    with pytest.raises(ValueError, match="cannot average by 'sample'"):
        privacy.spent(private, fjs.cohort.full(average="sample"), 10, 5, 1e-5)
    with pytest.raises(ValueError, match="uniform\\(20\\): num_clients is 10: it must be at least 20"):
        privacy.spent(private, fjs.cohort.uniform(20), 10, 5, 1e-5)
    common = {"noise_multiplier": 1.0, "rounds": 5, "delta": 1e-5}
    with pytest.raises(ValueError, match="needs num_clients"):
        privacy.epsilon(sampling=fjs.cohort.uniform(5), **common)
    with pytest.raises(TypeError, match="sampling is 'poisson'"):
        privacy.epsilon(sampling="poisson", **common)
    with pytest.raises(ValueError, match="accountant is 'gdp': "):
        privacy.epsilon(sampling=0.1, accountant="gdp", **common)
    with pytest.raises(ValueError, match="accountant='pld' has no answer for samples without replacement"):
        privacy.epsilon(sampling=fjs.cohort.uniform(5), num_clients=10, accountant="pld", **common)
    for changed in ({"delta": 0.0}, {"delta": 1.0}, {"rounds": 0}, {"noise_multiplier": -1.0}):
        with pytest.raises(ValueError, match=rf"epsilon\({next(iter(changed))}=...\) is"):
            privacy.epsilon(sampling=0.1, **(common | changed))
    with pytest.raises(ValueError, match=r"noise_multiplier\(epsilon=...\) is 0"):
        privacy.noise_multiplier(epsilon=0.0, sampling=0.1, rounds=5, delta=1e-5)
