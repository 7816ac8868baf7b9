"""The benchmarks' tables: how clients are made, what is read of a run, the published numbers."""

import pathlib

import numpy as np
import pytest

from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.benchmarks import images, niid, pfllib
from fedjax_sim.papers.benchmarks.images import FMNIST, MNIST, Score
from fedjax_sim.run.history import History

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 700))


def smoke(tmp_path: pathlib.Path) -> Bench:
    return Bench("smoke", 1, tmp_path, show=lambda line: None)


def test_pfllib_s_two_classes_a_client():
    parts = pfllib.pathological(LABELS, 20, 2, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(7000))
    held = [tuple(np.unique(LABELS[rows])) for rows in parts]
    assert held == [(2 * group, 2 * group + 1) for group in range(5) for _ in range(4)]
    counts = np.array([np.bincount(LABELS[rows], minlength=10) for rows in parts])
    for label in range(10):
        group = counts[4 * (label // 2) : 4 * (label // 2) + 4, label]
        assert group.sum() == 700
        assert ((group[:-1] >= 17) & (group[:-1] < 175)).all()
        assert group[-1] > 175
    assert len(np.unique(counts[counts > 0])) > 20
    assert [list(rows) for rows in parts] != [list(rows) for rows in pfllib.pathological(LABELS, 20, 2, seed=1)]


def test_pfllib_s_clients_hold_a_quarter_of_all_images_out(tmp_path):
    for kind in (pfllib.PATHOLOGICAL, pfllib.PRACTICAL):
        data = pfllib.clients_of(smoke(tmp_path), FMNIST, kind)
        train, test = np.asarray(data.sizes), np.asarray(data.test.sizes)
        assert (train.sum() + test.sum()) == 480  # of both halves
        np.testing.assert_allclose(test / (train + test), 0.25, atol=0.03)
        labels = [set(np.concatenate([of.client(i)["y"] for of in (data, data.test)])) for i in range(5)]
        assert kind == pfllib.PRACTICAL or labels == [{2 * i, 2 * i + 1} for i in range(5)]


def test_every_kind_of_niid_bench_is_what_it_is_called():
    for classes, kind in enumerate((niid.ONE, niid.TWO, niid.THREE), start=1):
        assert {len(np.unique(LABELS[rows])) for rows in niid.dealt(LABELS, 10, kind)} == {classes}
    by_kind = {kind: [len(rows) for rows in niid.dealt(LABELS, 10, kind)] for kind in niid.PARTITIONS}
    assert all(sum(sizes) == 7000 and min(sizes) >= niid.SMALLEST for sizes in by_kind.values())
    assert set(by_kind[niid.FEATURES]) == {700}
    assert max(by_kind[niid.QUANTITY]) > 1400
    alike = [np.bincount(LABELS[rows], minlength=10) / len(rows) for rows in niid.dealt(LABELS, 10, niid.QUANTITY)]
    assert np.abs(alike[int(np.argmax(by_kind[niid.QUANTITY]))] - 0.1).max() < 0.03
    with_rest = niid.dealt(LABELS, 10, niid.DIRICHLET)
    assert np.std([np.bincount(LABELS[rows], minlength=10)[0] for rows in with_rest]) > 30


def test_noise_grows_with_the_client_and_spares_the_test_images(tmp_path):
    shared = [{"x": np.zeros((200, 5, 5, 1), np.float32), "y": np.zeros(200, int)} for _ in range(4)]
    made = niid.noisy(shared, 0.1)
    np.testing.assert_allclose([of["x"].var() for of in made], [0.025, 0.05, 0.075, 0.1], rtol=0.1)
    assert {of["x"].dtype for of in made} == {np.dtype(np.float32)}
    assert shared[0]["x"].max() == 0.0
    plain, noisy = (niid.clients_of(smoke(tmp_path), MNIST, kind) for kind in (niid.DIRICHLET, niid.FEATURES))
    np.testing.assert_array_equal(plain.test.examples["x"], noisy.test.examples["x"])
    assert np.asarray(noisy.examples["x"]).min() < 0 <= np.asarray(plain.examples["x"]).min()


def test_the_best_of_each_seed():
    metrics = {"a": np.array([[0.1, 0.5, 0.4], [0.2, 0.3, 0.7]])}
    run = History(np.array([0, 1, 2]), metrics, {}, {}, [0, 1], 0.0, 0.0, {})
    score = images.best(run, "a")
    assert score[:2] == pytest.approx((60.0, np.std([50, 70], ddof=1)))
    assert score.values == pytest.approx((50.0, 70.0))


def test_effects_are_those_of_methods_with_a_published_number():
    scores = {"one": {"A": Score(5, 0, (4.0, 6.0)), "B": Score(7, 0, (7.0, 7.0)), "C": Score(0, 0, (0.0, 0.0))}}
    [effect] = images.effects(scores, {"one": {"A": 50.0, "B": 53.0, "D": 1.0}, "two": {"A": 1.0, "B": 2.0}}, "A")
    assert (effect.what, effect.paper) == ("B less A, one", 3.0)
    assert list(effect.values) == [3.0, 1.0]


def test_published_cells_belong_to_methods():
    for of in pfllib.PUBLISHED.values():
        assert all(set(cells) < set(pfllib.METHODS) for cells in of.values())
    for of in niid.PUBLISHED.values():
        assert set(of) == {niid.DIRICHLET, niid.ONE, niid.TWO, niid.THREE}
        assert all(set(cells) == {niid.FEDAVG, niid.FEDPROX, niid.SCAFFOLD, niid.FEDNOVA} for cells in of.values())
    assert niid.PUBLISHED[MNIST][niid.ONE][niid.FEDPROX] == 51.79  # the page has SCAFFOLD second


def test_claims_are_judged_as_they_read(tmp_path):
    bench = Bench("paper", 3, tmp_path, show=lambda line: None)
    published = pfllib.PUBLISHED[FMNIST]

    def score(*by_seed: float) -> Score:
        return Score(float(np.mean(by_seed)), float(np.std(by_seed)), by_seed)

    filled = {kind: {name: score(*[cells.get(name, cells[pfllib.FEDAVG])] * 3) for name in pfllib.METHODS}
              for kind, cells in published.items()}  # fmt: skip
    filled = {kind: of | {"IFCA": score(*[99.3] * 3), pfllib.TUNED: score(*[99.0] * 3)} for kind, of in filled.items()}
    filled[pfllib.PRACTICAL] |= {"IFCA": score(*[97.0] * 3), pfllib.TUNED: score(*[90.0] * 3)}
    answers = {claim.statement: claim.held for claim in pfllib._claims(bench, FMNIST, filled)}
    lost = "Dir(0.1): FedAvg, fine-tuned for one epoch, is within 1 point of the best personal method"
    assert [statement for statement, held in answers.items() if not held] == [lost]
    filled[pfllib.PRACTICAL]["Ditto"] = score(85.0, 86.5, 90.0)  # above FedAvg in the mean alone
    first = pfllib._claims(bench, FMNIST, filled)[5]
    assert (first.statement, first.standing) == ("Dir(0.1): every personal method is more accurate than FedAvg",
                                                 "few seeds")  # fmt: skip


def test_niid_bench_s_claims_are_told_only_where_somebody_learned(tmp_path):
    published = niid.PUBLISHED[MNIST]

    def answers(size: str, change: dict, std: float = 0.0) -> list:
        cells = published | {niid.QUANTITY: dict.fromkeys(published[niid.ONE], 99.0)} | change
        scores = {kind: {name: Score(value, std) for name, value in of.items()} for kind, of in cells.items()}
        bench = Bench(size, 3, tmp_path, show=lambda line: None)
        return [claim.held for claim in niid._claims(bench, scores, published)]

    assert answers("paper", {}) == [True] * 7
    nobody = {niid.ONE: dict.fromkeys(published[niid.ONE], 11.0)}
    assert answers("cpu", nobody) == [True, True, None, None, None, None, None]  # SCAFFOLD is beaten there alone
    one = {niid.ONE: dict.fromkeys(published[niid.ONE], 11.0) | {"FedProx": 12.0, "FedNova": 15.6}}
    assert answers("cpu", one)[3:5] == [None, None], "one of them has learned, and not those that are compared"
    assert answers("paper", {niid.ONE: published[niid.ONE] | {"SCAFFOLD": 60.0, "FedProx": 10.0}})[3:5] == [
        False,
        False,
    ]
    assert answers("paper", {}, std=50.0)[2] is None


@pytest.mark.slow
def test_every_method_of_pfllib_s_table_runs_and_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pfllib, "SMOKE", tuple(pfllib.METHODS))
    bench = smoke(tmp_path)
    scores = pfllib._scores(bench, pfllib.PRACTICAL, pfllib.clients_of(bench, FMNIST, pfllib.PRACTICAL))
    assert list(scores) == list(pfllib.METHODS)
    assert all(0 < score.mean <= 100 for score in scores.values())
    assert pfllib.METHODS["FedRep"].make(0.1, 7).head_steps == 7
