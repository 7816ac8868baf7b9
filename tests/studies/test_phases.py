"""Phase diagrams: cells against simulate, pairing, axes, tests by hand, resumption."""

import itertools
import re

import numpy as np
import pytest
from scipy import stats

import fedjax_sim as fjs
from fedjax_sim.core.devices import double_precision
from fedjax_sim.studies.phases.refining import refined
from fedjax_sim.studies.phases.result import PhaseDiagram

RUN = {"task": fjs.quadratic(), "rounds": 3, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.uniform(2)}
METHODS = {
    "FedAvg": fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)),
    "FedProx": fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1), mu=0.0),
}


def draw(seed):
    return fjs.datasets.quadratics(num_clients=3, dim=2, seed=seed)


def diagram(values, x=None, y=None, less=True, computed=None):
    X, Y, M, S = values.shape
    return PhaseDiagram(
        "x", np.arange(X) if x is None else x, "y", np.arange(Y) if y is None else y, tuple("abc"[:M]), list(range(S)),
        "loss", less, values, np.zeros((*values.shape, 2), int),
        np.ones((X, Y), bool) if computed is None else computed, {}, {"environment": {"float": "float64"}},
    )  # fmt: skip


def test_cells_are_those_of_simulate_paired_and_resumed(tmp_path):
    with double_precision():
        axes = {"x": {"client_optimizer.learning_rate": [0.05, 0.1, 0.2]}, "y": {"K": [1, 4]}}
        run = RUN | {"work": lambda K: fjs.local.given_steps(K, most=4)}
        found = fjs.phase(METHODS, draw, **axes, seeds=2, **run, resume=tmp_path)
        for (i, rate), (j, K), seed in itertools.product(enumerate([0.05, 0.1, 0.2]), enumerate([1, 4]), range(2)):
            method = fjs.fedavg(client_optimizer=fjs.optim.sgd(rate))
            alone = fjs.simulate(method, draw(seed), seeds=seed, **RUN, work=fjs.local.steps(K), eval_every=3)
            np.testing.assert_allclose(found.values[i, j, 0, seed], alone.final("loss")[0], rtol=1e-12)
        assert (np.diff(found.values[:, :, 0].mean(axis=2), axis=1) < 0).all()  # more steps are better
        assert (found.steps[:, 1, ..., 0] == 4 * found.steps[:, 0, ..., 0]).all()
        assert (found.verdict().winner == -1).all()  # FedProx with mu = 0 is FedAvg
        sorted(tmp_path.glob("runs-*.npz"))[0].unlink()
        again = fjs.phase(METHODS, draw, **axes, seeds=2, **run, resume=tmp_path)
        np.testing.assert_array_equal(found.values, again.values)
        with pytest.raises(ValueError, match="other data or settings"):
            fjs.phase(METHODS, lambda seed: draw(seed + 1), **axes, seeds=2, **run, resume=tmp_path)


@pytest.mark.parametrize(("correction", "test"), [("bh", "t"), ("holm", "t"), (None, "sign")])
def test_winners_are_those_of_scipy(correction, test):
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4, 3, 2, 8))
    values[..., 1, :] += np.linspace(0, 2, 12).reshape(4, 3, 1)
    found = diagram(values).verdict(test=test, correction=correction)
    d = (values[..., 0, :] - values[..., 1, :]).reshape(12, 8)
    p = stats.ttest_1samp(d, 0, axis=1).pvalue
    if test == "t":
        np.testing.assert_allclose(found.p.ravel(), p)
    order, raised = np.argsort(found.p.ravel()), found.p.ravel().copy()
    if correction == "holm":
        raised[order] = [max((12 - k) * found.p.ravel()[order[k]] for k in range(i + 1)) for i in range(12)]
    elif correction == "bh":
        raised = stats.false_discovery_control(p)
    np.testing.assert_allclose(found.adjusted.ravel(), np.minimum(raised, 1))
    better = np.where(d.mean(axis=1) < 0, 0, 1)
    np.testing.assert_array_equal(found.winner.ravel(), np.where(raised <= 0.05, better, -1))
    assert len(set(found.winner.ravel())) > 1
    flipped = diagram(-values, less=False).verdict(test=test, correction=correction)
    np.testing.assert_array_equal(flipped.winner, found.winner)


def test_divergence_loses_and_what_is_missing_is_neither():
    values = np.random.default_rng(0).normal(size=(3, 1, 2, 5))
    values[0, 0, 0, 2] = np.nan
    values[1] = np.nan
    found = diagram(values, computed=np.array([[True], [True], [False]]))
    assert found.verdict().winner.ravel().tolist() == [1, -1, -2]
    assert found.diverged.tolist() == [[[True, False]], [[True, True]], [[False, False]]]
    assert len(found.records()) == 2 * 2 * 5


def test_a_figure_is_not_transposed_and_blank_where_nothing_was_computed(tmp_path):
    pytest.importorskip("matplotlib")
    values = np.zeros((3, 2, 1, 1)) + np.arange(3)[:, None, None, None]
    found = diagram(values, x=np.array([1.0, 10.0, 100.0]), computed=np.array([[1, 1], [1, 1], [1, 0]], bool))
    found.save(tmp_path / "a.npz")
    ax = PhaseDiagram.load(tmp_path / "a.npz").plot("a")
    assert ax.get_xlabel() == "x"
    assert ax.get_xscale() == "log"
    assert ax.get_yscale() == "linear"
    drawn = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(drawn, -1), [[0, 1, 2], [0, 1, -1]])


def test_notebooks_count_the_cells_of_each_method(tmp_path):
    values = np.array([[[[1.0, 1.0], [2.0, 2.0]], [[1.0, np.nan], [2.0, 2.0]], [[1.0, 1.0], [0.0, 0.0]]]])
    computed = np.array([[True, True, True]])
    found = diagram(values, computed=computed)
    cells = re.findall("<td[^>]*>([^<]*)", found._repr_html_())
    assert cells == ["a", "1 of 3 cells", "1 of 3 cells", "b", "2 of 3 cells", "0 of 3 cells"]
    found.to_csv(tmp_path / "cells.csv")
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    assert lines[:2] == ["x,y,method,seed,loss,diverged,needed_steps,computed_steps", "0,0,a,0,1.0,False,0,0"]
    assert len(lines) == 1 + 12


def test_refinement_goes_to_the_boundary():
    done = []
    winner = np.where(np.arange(17)[:, None] + np.zeros(17) < 6.5, 0, 1)
    refined(17, 17, 120, done.extend, lambda: winner)
    assert len(done) == len(set(done)) <= 120
    assert {(6, 8), (7, 8)} <= set(done)
    assert (15, 15) not in done


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "drift"}, "less=True or False"),
        ({"metric": "losss", "less": True}, "did you mean 'loss'"),
        ({"y": {"K": [4, 1]}}, "ascending"),
        ({"y": {"nothing": [0.5, 1.0]}}, "no function has the parameter"),
        ({"choosing_seeds": [7]}, "best_of"),
    ],
)
def test_bad_input(changes, message):
    given = {"x": {"client_optimizer.learning_rate": [0.1]}, "y": {"K": [1, 4]}, "seeds": 2} | RUN
    work = {"work": fjs.local.steps(2) if "y" in changes else lambda K: fjs.local.given_steps(K, most=4)}
    with pytest.raises((ValueError, TypeError), match=message):
        fjs.phase(METHODS, draw, **given | work | changes)
