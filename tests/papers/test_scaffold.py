"""The experiments of the SCAFFOLD paper: closed forms, data, the search for a step size."""

import types

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.datasets.sources.image_files import EMNIST_BYCLASS
from fedjax_sim.papers.bench import Bench, Claim
from fedjax_sim.papers.scaffold import emnist, images, network, quadratics, tuning


@pytest.fixture
def bench(tmp_path):
    return Bench("smoke", 1, tmp_path / "runs", show=lambda line: None)


@pytest.mark.slow
def test_figure_3_is_exact(bench):
    outcome = quadratics.perform(bench)
    exact = outcome.claims[0]
    assert exact.held
    assert max(exact.numbers["largest |x - x closed| / max(1, largest |x closed|)"].values()) < 1e-12


@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("method", ["sgd", "fedavg", "scaffold"])
def test_a_recursion_is_that_of_single_local_steps(method, informed):
    """Of f_1 = mu x^2 + G x and f_2 = -G x."""
    G, rate, steps = 10.0, 0.1, 1 if method == "sgd" else 4

    def gradients(y):
        return np.array([2 * quadratics.MU * y[0] + G, -G])

    x = quadratics.START
    own, xs = gradients([x, x]) if informed else np.zeros(2), [x]
    for _ in range(5):
        y = np.array([x, x])
        for _ in range(steps):
            y = y - rate * (gradients(y) + (own.mean() - own if method == "scaffold" else 0))
        own = own - own.mean() + (x - y) / (steps * rate)
        x = y.mean()
        xs.append(x)
    informed = informed and method == "scaffold"
    np.testing.assert_allclose(quadratics.recursion(method, 4, G, rate, 5, informed=informed), xs, rtol=1e-12)


def test_recursions_of_the_quadratic_pair():
    rate = 0.1
    sgd = quadratics.recursion("sgd", 1, 10.0, rate, 40)
    np.testing.assert_allclose(sgd, (1 - rate * quadratics.MU) ** np.arange(41), rtol=1e-12)
    # FedAvg's fixed point: G (eta K - m) / (2 m), m = (1 - a^K) / 2
    moved = (1 - (1 - 2 * rate) ** 10) / 2
    fedavg = quadratics.recursion("fedavg", 10, 10.0, rate, 200)
    assert fedavg[-1] == pytest.approx(10.0 * (rate * 10 - moved) / (2 * moved), rel=1e-9)
    for steps in quadratics.STEPS:
        free = [quadratics.recursion("scaffold", steps, G, rate, 40, informed=True) for G in quadratics.SPREADS]
        np.testing.assert_allclose(free[2], free[0], atol=1e-12)
        zero = [quadratics.recursion("scaffold", steps, G, rate, 40) for G in quadratics.SPREADS]
        assert np.abs(zero[2] - zero[0]).max() > 0.1  # from c_i = 0 the first round is FedAvg's
        assert quadratics.contraction(zero[2]) == pytest.approx(quadratics.contraction(zero[0]), rel=1e-9)
    # the eigenvalues of the recursion, found numerically
    assert quadratics.contraction(quadratics.recursion("scaffold", 10, 1.0, rate, 40)) == pytest.approx(0.526160, 1e-5)


def test_an_error_of_nan_is_no_exactness():
    runs = {("sgd", 1, spread): quadratics.recursion("sgd", 1, spread, 0.1, 5) for spread in (1.0, 10.0)}
    assert quadratics._exact((0.1,), [runs], {0.1: {}}).held
    runs["sgd", 1, 10.0] = np.where(np.arange(6) == 3, np.nan, runs["sgd", 1, 10.0])
    assert not quadratics._exact((0.1,), [runs], {0.1: {}}).held


def test_stays_below_counts_from_the_last_time_above():
    assert quadratics.stays_below(np.array([1.0, 0.05, 0.5, 0.05, 0.0]), 1e-2) == 3
    assert quadratics.stays_below(np.array([1.0, 0.05, np.nan]), 1e-2) == np.inf


def test_fewer_keeps_some_images_of_every_client_at_norm_one():
    rng = np.random.default_rng(0)

    def half(count):
        return [{"x": rng.integers(1, 255, (count, 784)).astype(np.uint8), "y": np.full(count, i)} for i in range(3)]

    full = fjs.datasets.from_clients(half(10), test=half(4), num_classes=3)
    small = images.unit_norm(images.fewer(full, 5, 2))
    assert np.asarray(small.sizes).tolist() == [5, 5, 5]
    assert small.test.num_examples == 6
    assert [set(small.client(i)["y"].tolist()) for i in range(3)] == [{0}, {1}, {2}]
    x = np.asarray(small.examples["x"])
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-5)
    # the average of a 2 x 2 block, up to the scale: it is one of the client's images
    pictures = full.client(0)["x"].reshape(-1, 28, 28).astype(float)
    pooled = (pictures[:, ::2, ::2] + pictures[:, 1::2, ::2] + pictures[:, ::2, 1::2] + pictures[:, 1::2, 1::2]) / 4
    pooled = pooled.reshape(-1, 196) / np.linalg.norm(pooled.reshape(-1, 196), axis=1, keepdims=True)
    assert np.abs(pooled - x[0]).max(axis=1).min() < 1e-6


class Run(dict):
    """What is read of a history."""

    metrics = property(dict)


class Answers:
    """A bench whose runs reach the target at a known round and stay there."""

    def __init__(self, rounds):
        self.rounds, self.asked = rounds, []

    def simulate(self, label, rate, data, *, rounds, **_):
        self.asked.append((rate, rounds))
        return Run({tuning.METRIC: np.minimum(np.arange(rounds + 1) / self.rounds[rate], 1.0)[None] / 2})


def find(rounds):
    bench = Answers(rounds)
    found = tuning.tuned(bench, "", lambda rate: rate, None, target=0.5, limit=100, rates=tuple(rounds))
    return found, bench.asked


def test_the_search_for_a_step_size():
    found, asked = find({1.0: 80, 0.3: 40, 0.1: 60, 0.03: 10})
    assert (found.rate, found.mean, found.words) == (0.3, 40, "40")
    assert asked == [
        (1.0, 100),
        (0.3, 80),
        (0.1, 40),
    ]  # no longer than the best so far, and no further than a worse one
    found, asked = find({1.0: 400, 0.3: 150, 0.1: 300})
    assert (found.rate, found.words) == (0.3, "100+")  # the one that came nearest
    assert len(asked) == 3


def test_rounds_to_a_target():
    accuracies = np.array([[0.9, 0.1, 0.6, 0.2, 0.5, 0.6, 0.6], [0.0] * 7, [0.0] * 5 + [np.nan] * 2])
    bench = types.SimpleNamespace(simulate=lambda *_, **__: Run({tuning.METRIC: accuracies}))
    found = tuning.tuned(bench, "", lambda rate: rate, None, target=0.5, limit=6, rates=[1.0])
    assert found.rounds.tolist() == [2, np.inf, np.inf]  # the model before the first round is not counted
    accuracies = np.array([[0.0, 0.2, 0.45]], np.float32)  # which is less than 0.45
    found = tuning.tuned(bench, "", lambda rate: rate, None, target=0.45, limit=2, rates=[1.0])
    assert found.rounds.tolist() == [2]


def reached(*rounds, limit=400):
    return tuning.Tuned(1.0, np.array(rounds, float), limit)


def test_what_did_not_reach_the_target_is_no_evidence():
    inf = np.inf
    assert tuning.at_most(reached(3), reached(3)) is True
    assert tuning.less(reached(3), reached(3)) is False
    assert tuning.less(reached(3), reached(inf)) is True
    assert tuning.at_most(reached(inf), reached(3)) is False
    assert tuning.at_most(reached(inf), reached(inf)) is None
    assert tuning.at_most(reached(inf), reached(100), 1.5) is False
    assert tuning.at_most(reached(inf), reached(300), 1.5) is None  # 401 rounds would be at most 450
    # one seed of two: the mean is 200.5 or more, of which nothing is known but that
    assert tuning.less(reached(0, inf), reached(300, 300)) is None
    assert tuning.less(reached(0, inf), reached(200, 200)) is False
    assert tuning.less(reached(100, 100), reached(0, inf)) is True
    assert tuning.every([True, None]) is None
    assert tuning.every([None, False, True]) is False
    assert tuning.every([]) is None
    assert tuning.some([False, None, True]) is True
    assert tuning.some([False, None]) is None
    assert tuning.some([False]) is False
    lost = {key: reached(inf) for key in emnist.PAPER3}
    assert {claim.held for claim in emnist.claims3(lost, emnist.EPOCHS, emnist.EPOCHS)} == {None}
    lost = {key: reached(inf) for key in emnist.PAPER4}
    assert {claim.held for claim in emnist.claims4(lost, emnist.SAMPLED, images.SIMILARITIES[:2])} == {None}


def test_by_how_much_a_method_is_ahead():
    difference, half = tuning.ahead(reached(10, 20, 30), reached(20, 32, 44))  # 10, 12, 14
    assert difference == 12
    assert half == pytest.approx(4.302653 * 2 / np.sqrt(3), rel=1e-6)
    assert np.isnan(tuning.ahead(reached(10, 20), reached(20, np.inf))).all()
    assert tuning.ahead(reached(10), reached(12))[0] == 2


def answers(claims):
    return {claim.statement: claim.held for claim in claims}


def test_the_papers_own_tables_answer_its_claims():
    """All hold on its numbers but the one that its Table 3 contradicts, and one that "1k+" leaves open."""
    of = emnist.claims3(
        {key: reached(rounds, limit=1000) for key, rounds in emnist.PAPER3.items()}, *[emnist.EPOCHS] * 2
    )
    not_held = {claim.statement: claim.held for claim in of if not claim.held}
    assert not_held == {
        "SCAFFOLD needs fewer rounds than FedAvg with 100 % similarity, for all epochs": False,
        "FedProx needs more rounds than SCAFFOLD and FedAvg, in all entries": None,  # 1k+ and 1k+
    }
    of = emnist.claims4({key: reached(rounds, limit=1000) for key, rounds in emnist.PAPER4.items()}, emnist.SAMPLED,
                        images.SIMILARITIES[:2])  # fmt: skip
    assert all(answers(of).values())
    best = {(method, s): np.array([row[place]]) for method, row in network.PAPER.items()
            for place, s in enumerate(network.SIMILARITIES)}  # fmt: skip
    assert all(answers(network.claims5(best)).values())


@pytest.mark.parametrize(
    ("key", "rounds", "statement"),
    [
        (("FedAvg", 5, 0.0), 100, "SCAFFOLD needs fewer rounds than FedAvg with 0 and 10 % similarity, for all epochs"),
        (("FedAvg", 5, 0.0), 100, "0 % similarity: FedAvg gets slower with every increase of the epochs"),
        (("FedAvg", 10, 0.0), 300, "0 % similarity: with more than 5 epochs FedAvg is slower than SGD"),
        (("SCAFFOLD", 10, 0.0), 318, "0 % similarity: SCAFFOLD is at least as fast as SGD, for all epochs"),
        (("SCAFFOLD", 20, 0.0), 500, "0 % similarity: SCAFFOLD gets slower with more epochs and then flattens"),
        (("SGD", 1, 0.0), 200, "SGD's rounds stay about the same whatever the similarity"),
        (("FedProx", 5, 100.0), 9, "FedProx needs more rounds than SCAFFOLD and FedAvg, in all entries"),
        (("SCAFFOLD", 1, 100.0), 77,
         "SCAFFOLD and FedAvg are faster with 100 % similarity than with 0 %, for all epochs"),
        (("SCAFFOLD", 20, 10.0), 16,
         "with 10 and 100 % similarity every increase of the epochs speeds up SCAFFOLD and FedAvg"),
        (("FedAvg", 1, 100.0), 208,
         "with 10 and 100 % similarity SCAFFOLD and FedAvg need less than half of SGD's rounds"),
    ],
)  # fmt: skip
def test_one_number_is_enough_for_a_claim_of_table_3_to_fail(key, rounds, statement):
    found = {of: reached(given, limit=1000) for of, given in (emnist.PAPER3 | {key: rounds}).items()}
    assert answers(emnist.claims3(found, emnist.EPOCHS, emnist.EPOCHS))[statement] is False


def test_fedprox_is_faster_than_sgd_somewhere():
    slow = {key: reached(900 if key[0] == "FedProx" else rounds, limit=1000) for key, rounds in emnist.PAPER3.items()}
    assert (
        answers(emnist.claims3(slow, emnist.EPOCHS, emnist.EPOCHS))[
            "FedProx needs fewer rounds than SGD in some entries"
        ]
        is False
    )


@pytest.mark.parametrize(
    ("key", "rounds", "part"),
    [
        (("FedAvg", 5, 0.0), 290, "SCAFFOLD needs fewer rounds"),
        (("SCAFFOLD", 1, 10.0), 180, "SCAFFOLD's slow-down"),
        (("FedAvg", 5, 0.0), 716, "FedAvg's slow-down"),
        (("SCAFFOLD", 5, 10.0), 19, "slow-downs are smaller"),
    ],
)
def test_one_number_is_enough_for_a_claim_of_table_4_to_fail(key, rounds, part):
    found = {of: reached(given, limit=1000) for of, given in (emnist.PAPER4 | {key: rounds}).items()}
    told = answers(emnist.claims4(found, emnist.SAMPLED, images.SIMILARITIES[:2]))
    assert [held for statement, held in told.items() if statement.startswith(part)] == [False]


def test_the_claims_of_table_5_go_by_the_mean_over_the_seeds():
    best = {(method, s): np.array([0.7, 0.8]) for method in network.PAPER for s in network.SIMILARITIES}
    assert not any(held for statement, held in answers(network.claims5(best)).items() if "affected" not in statement)
    best["SCAFFOLD", 10.0] = np.array([0.6, 1.0])  # one seed of two is worse
    told = network.claims5(best | {("SCAFFOLD", 0.0): np.array([0.71, 0.81])})
    assert told[0].held
    above, half = told[0].numbers["SCAFFOLD less the other, half of the 95 % interval"]["SGD"]["10 %"]
    assert (above, half) == pytest.approx((0.05, 12.7062 * 0.15), rel=1e-4)
    moved = answers(network.claims5(best | {("SGD", 0.0): np.array([0.75, 0.8])}))
    assert not moved["SGD is not affected by similarity"]


class Curves(Bench):
    """A bench of which a method has its best accuracy at a known step size, and diverges in the end."""

    def __init__(self, best, folder):
        super().__init__("cpu", 3, folder)
        self.best, self.asked = best, set()

    def runs(self, label, algorithm, data, space, *, seeds, **_):
        rates = [space.point(number)["client_optimizer.learning_rate"] for number in range(space.num_points)]
        self.asked.add((tuple(rates), *seeds))
        peak = self.best[label.split(", ")[2]]
        loss = np.array([[1.0, 1.0, np.nan]])  # a model of NaN has the first class right
        best = [np.array([[0.1, 1 / (1 + abs(np.log(rate / peak))), 1.0]]) for rate in rates]
        return [Run({tuning.METRIC: values, "test_loss": loss}) for values in best]


def test_the_grid_of_table_5_is_one_for_all_and_has_no_best_at_an_edge(tmp_path):
    data = fjs.datasets.from_clients([{"x": np.zeros((4, 3), np.float32), "y": np.array([0, 1, 0, 1])}])
    best = {"SGD": 30.0, "FedAvg": 1.0, "SCAFFOLD": 0.1}
    bench = Curves(best, tmp_path)
    tried = network._tried(bench, images.SPLITS[0], dict.fromkeys(network.SIMILARITIES, data))
    grid = {tuple(sorted(of, reverse=True)) for of in tried.values()}
    assert grid == {(100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)}  # widened at both ends, and for all
    assert {key[0]: max(of, key=of.get) for key, of in tried.items()} == best
    assert bench.asked == {((10.0, 3.0, 1.0, 0.3, 0.1), 0), ((30.0, 0.03), 0), ((100.0,), 0)}  # of the first seed


def test_the_half_of_emnist_by_class_is_sorted_among_the_clients(monkeypatch):
    """Of a small stand-in: with 0 % similarity a client has few of the 62 unequal classes."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(62), np.arange(20, 82))).astype(np.uint8)
    pictures = rng.integers(0, 255, (labels.size, 28, 28, 1)).astype(np.uint8)
    monkeypatch.setattr(type(EMNIST_BYCLASS), "read", lambda self, half, *, verify: (pictures, labels))
    letters, by_class = images.SPLITS
    assert (letters.name, by_class.name) == ("letters", "by class")
    apart, mixed = by_class.read(0.0), by_class.read(100.0)
    assert (apart.num_clients, apart.num_classes) == (100, 62)
    assert apart.num_examples + apart.test.num_examples == labels.size
    classes = [(part.statistics().label_table > 0).sum(axis=1) for part in (apart, mixed)]
    assert classes[0].max() <= 4
    assert classes[1].mean() > 10


def test_claims_of_a_split_say_so(bench):
    letters, by_class = images.SPLITS
    data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    claims = [Claim("a", False, {}), Claim("b", False, {}, why="fragile")]
    of = images.of_split(bench, letters, data, claims)
    assert [claim.statement for claim in of] == ["letters: a", "letters: b"]
    assert [claim.standing for claim in of] == ["unexplained", "fragile"]
    assert of[0].scale.examples == round(data.num_examples / 124_800, 6)
    assert images.of_split(bench, by_class, data, claims)[0].scale.examples == round(data.num_examples / 697_932, 6)


def test_a_table_of_ratios():
    found = {key: tuning.Tuned(1.0, np.array([100.0]), 400) for key in emnist.PAPER3}
    rows = emnist._ratios_table("", "epochs", found, emnist.PAPER3, emnist._speed_up).rows
    of = {tuple(row[:2]): row[2:] for row in rows}
    assert of["SCAFFOLD", 5][:3] == pytest.approx([317 / 152, 1.0, 1 - 317 / 152])
    assert of["FedProx", 5][:3] == [None, 1.0, None]  # the paper's did not reach the target


def test_the_papers_numbers_and_speed_ups():
    assert emnist.PAPER3["SCAFFOLD", 5, 10.0] == 20
    assert emnist.PAPER3["FedProx", 1, 0.0] == np.inf
    assert round(emnist.PAPER3["SGD", 1, 100.0] / emnist.PAPER3["FedAvg", 10, 100.0], 1) == 69.3
    assert emnist.PAPER4["FedAvg", 5, 10.0] == 17
    assert network.PAPER["SCAFFOLD"][1] == 0.842
