"""Phase diagrams: cells against simulate, pairing, axes, tests by hand, resumption."""

import dataclasses
import importlib
import itertools
import pathlib
import re
import threading

import numpy as np
import pytest
from scipy import stats

import fedjax_sim as fjs
from fedjax_sim.core.devices import double_precision
from fedjax_sim.studies.phases import runs
from fedjax_sim.studies.phases.result import PhaseDiagram
from fedjax_sim.studies.phases.runs import refined

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


def by_hand(data, rate, steps, start=0.0):
    """The loss after three rounds of everybody, of clients of one example."""
    H, e = (np.asarray(data.examples[name], float) for name in "He")
    x = np.full(H.shape[-1], start)
    for _ in range(RUN["rounds"]):
        y = np.tile(x, (len(H), 1))
        for _ in range(steps):
            y = y - rate * (np.einsum("ide,ie->id", H, y) - e)
        x = y.mean(axis=0)
    return np.mean(np.einsum("d,ide,e->i", x, H, x) / 2 - e @ x)


def test_cells_are_those_of_runs_paired_and_resumed(tmp_path):
    with double_precision():
        axes = {"x": {"client_optimizer.learning_rate": [0.05, 0.2]}, "y": {"K": [1, 4]}}
        run = RUN | {"work": lambda K: fjs.local.given_steps(K, most=4), "cohort": fjs.cohort.full()}
        found = fjs.phase(METHODS, draw, **axes, seeds=range(2), **run, resume=tmp_path)
        for (i, rate), (j, K), seed in itertools.product(enumerate([0.05, 0.2]), enumerate([1, 4]), range(2)):
            np.testing.assert_allclose(found.values[i, j, 0, seed], by_hand(draw(seed), rate, K), rtol=1e-12)
        assert (np.diff(found.values[:, :, 0].mean(axis=2), axis=1) < 0).all()  # more steps are better
        assert (found.steps[:, 1, ..., 0] == 4 * found.steps[:, 0, ..., 0]).all()
        assert (found.verdict().winner == -1).all()  # FedProx with mu = 0 is FedAvg
        sorted(tmp_path.glob("runs-*.npz"))[0].unlink()
        again = fjs.phase(METHODS, draw, **axes, seeds=range(2), **run, resume=tmp_path)
        np.testing.assert_array_equal(found.values, again.values)
        with pytest.raises(ValueError, match="other data or settings"):
            fjs.phase(METHODS, lambda seed: draw(seed + 1), **axes, seeds=range(2), **run, resume=tmp_path)


@pytest.mark.parametrize("correction", ["bh", "holm", None])
def test_winners_are_those_of_scipy(correction):
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4, 3, 2, 8))
    values[..., 1, :] += np.linspace(0, 2, 12).reshape(4, 3, 1)
    found = diagram(values).verdict(correction=correction)
    d = (values[..., 0, :] - values[..., 1, :]).reshape(12, 8)
    p = stats.ttest_1samp(d, 0, axis=1).pvalue
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
    flipped = diagram(-values, less=False).verdict(correction=correction)
    np.testing.assert_array_equal(flipped.winner, found.winner)


def test_the_best_of_three_is_better_than_both():
    """Each pair is tested two-sided, so that half a p times three methods that may be best bounds the error."""
    values = np.random.default_rng(0).normal(size=(3, 1, 3, 6)) * 0.2 + np.array([0.0, 0.3, 5.0])[:, None]
    found = diagram(values).verdict(correction=None)
    for place in np.ndindex(3, 1):
        best = int(values[place].mean(axis=1).argmin())
        others = [m for m in range(3) if m != best]
        p = max(stats.ttest_rel(values[place][best], values[place][other]).pvalue for other in others)
        np.testing.assert_allclose(found.p[place], min(1.5 * p, 1.0))
        assert found.winner[place] == (best if 1.5 * p <= 0.05 else -1)


def test_differences_that_are_all_equal_have_no_winner():
    """One example of 50 more in both of two seeds: Student's t would be as large as round-off is small, and p 0."""
    values = np.array([[[[0.80, 0.86], [0.82, 0.88]], [[0.80, 0.86], [0.81, 0.8701]]]])
    for correction in ("bh", None):
        found = diagram(values, less=False).verdict(correction=correction)
        assert found.winner.tolist() == [[-1, 1]]
        assert np.isnan(found.p).tolist() == [[True, False]]
        assert found.adjusted[0, 1] == found.p[0, 1] < 0.05  # one test is left
    third = np.concatenate([values, values[:, :, :1] - [[[0.1, 0.2]]]], axis=2)  # is told apart from the best, a is not
    assert diagram(third, less=False).verdict().winner[0, 0] == -1


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


def test_columns_of_one_name_keep_their_values():
    """A partition has an alpha, and so has FedDyn, whose best is chosen; a metric of one's own may have any name."""
    found = diagram(np.arange(8.0).reshape(1, 2, 2, 2), y=np.array([0.5, 1.0]))
    found = dataclasses.replace(found, x_name="alpha", chosen={"alpha": np.full((1, 2, 2), 7.0)}, metric="y")
    first, *_, last = found.records()
    assert {name: first[name] for name in ("alpha", "y", "alpha_chosen", "y_recorded")} == {
        "alpha": 0, "y": 0.5, "alpha_chosen": 7.0, "y_recorded": 0.0,
    }  # fmt: skip
    assert (last["y"], last["y_recorded"]) == (1.0, 7.0)


def test_refinement_goes_to_the_boundary():
    done = []
    winner = np.where(np.arange(17)[:, None] + np.zeros(17) < 6.5, 0, 1)
    refined(17, 17, 120, done.extend, lambda: winner)
    assert len(done) == len(set(done)) <= 120
    assert {(6, 8), (7, 8)} <= set(done)
    assert (15, 15) not in done
    few, unknown = [], []
    refined(17, 17, 40, few.extend, lambda: winner)
    assert len(few) == 40  # of the 42 that two steps would take
    refined(17, 17, 289, unknown.extend, lambda: np.full((17, 17), -1))
    assert len(unknown) == 289  # where nothing separates there may be a boundary anywhere


def test_the_best_value_is_chosen_by_the_choosing_seeds_alone():
    """One step at the rate 1/h ends in the optimum of 1/2 h x^2; h = 2 for the seeds that choose, 5 for the others."""

    def data(seed):
        return fjs.datasets.quadratics(num_clients=2, dim=1, seed=seed, hessians=np.eye(1) * (2 if seed >= 100 else 5))

    rates = fjs.sweeps.grid({"client_optimizer.learning_rate": [0.2, 0.5, 2.0, 1e30]})  # the last one diverges
    found = fjs.phase(
        {"FedAvg": METHODS["FedAvg"]}, data, x={"K": [1, 2]}, y={"server_learning_rate": [0.5, 1.0]}, seeds=range(2),
        best_of=rates, choosing_seeds=[100, 101], work=lambda K: fjs.local.given_steps(K, most=2),
        **RUN | {"cohort": fjs.cohort.full()},
    )  # fmt: skip
    assert (found.chosen["client_optimizer.learning_rate"] == 0.5).all()
    for seed in range(2):
        np.testing.assert_allclose(found.values[1, 1, 0, seed], by_hand(data(seed), 0.5, 2), rtol=1e-5)
    assert found.records()[0]["client_optimizer.learning_rate"] == 0.5


@pytest.mark.slow
def test_nothing_is_chosen_where_nothing_was_computed():
    found = fjs.phase(
        METHODS, draw, x={"K": [1, 2, 3]}, y={"server_learning_rate": [0.5, 1.0]}, seeds=range(2), refine=4,
        best_of=fjs.sweeps.grid({"client_optimizer.learning_rate": [0.01, 0.1]}), choosing_seeds=[100],
        work=lambda K: fjs.local.given_steps(K, most=3), **RUN,
    )  # fmt: skip
    assert found.computed.tolist() == [[True, True], [False, False], [True, True]]
    chosen = found.chosen["client_optimizer.learning_rate"]
    np.testing.assert_array_equal(chosen, np.where(found.computed[..., None], 0.1, np.nan) * np.ones(2))


@pytest.mark.slow
def test_rounds_of_a_coin_are_as_long_as_each_probability_makes_them():
    """On an axis, and among the values to choose from, which are one program."""
    run = RUN | {"cohort": fjs.cohort.full(), "task": fjs.quadratic(start=1.0)}
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.001))
    coins, rates = [0.02, 0.9], [0.5, 1.0]
    axis = fjs.phase(
        {"a": method}, draw, x={"work.p": coins}, y={"server_learning_rate": rates}, seeds=[0],
        work=fjs.local.geometric(0.9), **run,
    )  # fmt: skip
    best = fjs.phase(
        {"a": method}, draw, x={"server_learning_rate": rates}, y={"client_optimizer.learning_rate": [0.001]},
        seeds=[0], best_of=fjs.sweeps.grid({"work.p": coins[::-1]}), choosing_seeds=[5],
        work=fjs.local.geometric(0.9), **run,
    )  # fmt: skip
    assert (best.chosen["work.p"] == 0.02).all()
    for number, p in enumerate(coins):
        alone = fjs.simulate(method, draw(0), work=fjs.local.geometric(p), seeds=0, eval_every=3, **run)
        np.testing.assert_allclose(axis.values[number, 1, 0, 0], alone.final("loss")[0], rtol=1e-5)
        if p == 0.02:
            np.testing.assert_allclose(best.values[1, 0, 0, 0], alone.final("loss")[0], rtol=1e-5)


def alone(rate, data, work, seed, cohort=None):
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(rate))
    run = RUN | {"cohort": cohort or fjs.cohort.full(), "eval_every": 3}
    return fjs.simulate(method, data, seeds=seed, **run, work=work)


@pytest.mark.slow
def test_cells_that_refine_computes_are_those_of_the_full_grid():
    methods = {"slow": lambda rate: fjs.fedavg(client_optimizer=fjs.optim.sgd(rate)), "fast": METHODS["FedAvg"]}
    axes = {"x": {"rate": np.linspace(0.01, 0.19, 9)}, "y": {"K": [1, 2, 3]}}
    run = RUN | {"work": lambda K: fjs.local.given_steps(K, most=3), "task": fjs.quadratic(start=9.0)} | axes
    full = fjs.phase(methods, draw, seeds=range(3), **run)
    assert full.verdict().winner[:, 0].tolist() == [1, 1, 1, 1, -1, 0, 0, 0, 0]
    some = fjs.phase(methods, draw, seeds=range(3), refine=21, **run)
    np.testing.assert_array_equal(some.values[some.computed], full.values[some.computed])
    assert np.isnan(some.values[~some.computed]).all()
    assert (some.verdict().winner[~some.computed] == -2).all()
    assert some.computed.all(axis=1).tolist() == [True, False, True, True, True, True, True, False, True]  # around 0.1


@pytest.mark.slow
def test_programs_are_as_many_as_structures():
    def count(rates, work, methods=METHODS):
        before = runs._compute._cache_size()
        axes = {"x": {"client_optimizer.learning_rate": rates}, "y": {"K": [1, 3]}}
        fjs.phase(methods, draw, **axes, seeds=range(2), **RUN | {"rounds": 5}, work=work)
        return runs._compute._cache_size() - before

    assert count([0.1, 0.2], lambda K: fjs.local.given_steps(K, most=3)) == 2
    assert count([0.3, 0.4], lambda K: fjs.local.given_steps(K, most=3)) == 0
    assert count([0.1, 0.2], lambda K: fjs.local.steps(K), {"FedAvg": METHODS["FedAvg"]}) == 2


@pytest.mark.slow
def test_numbers_of_clients_and_of_slots_are_axes():
    """The cohort's slots follow from its probability: cells of one structure before it meets data, of several after."""

    def data(N, seed):
        return fjs.datasets.quadratics(num_clients=N, dim=2, seed=seed)

    axes = {"x": {"N": [3, 60]}, "y": {"p": [0.05, 0.5]}}
    run = RUN | {"cohort": lambda p: fjs.cohort.independent(p), "work": fjs.local.steps(2)}
    found = fjs.phase({"FedAvg": METHODS["FedAvg"]}, data, **axes, seeds=[7], **run)
    for i, N, j, p in ((0, 3, 1, 0.5), (1, 60, 0, 0.05)):
        history = alone(0.1, data(N, 7), fjs.local.steps(2), 7, cohort=fjs.cohort.independent(p))
        np.testing.assert_allclose(found.values[i, j, 0, 0], history.final("loss")[0], rtol=2e-5)
        assert found.steps[i, j, 0, 0, 0] == history.rounds["useful_steps"].sum()


@pytest.mark.slow
def test_a_diagram_that_was_killed_goes_on_to_the_same_bits(tmp_path, monkeypatch, capsys):
    axes = {"x": {"client_optimizer.learning_rate": [0.05, 0.1]}, "y": {"K": [1, 4]}}
    run = RUN | {"work": lambda K: fjs.local.given_steps(K, most=4)} | axes
    whole = fjs.phase(METHODS, draw, seeds=range(3), progress=True, **run)
    assert "run 24/24" in capsys.readouterr().err
    add, added = runs.Folder.add, []

    def dies(self, numbers, history):
        add(self, numbers, history)
        added.append(numbers)
        if len(added) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.Folder, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        fjs.phase(METHODS, draw, seeds=range(3), **run, resume=tmp_path)
    again = fjs.phase(METHODS, draw, seeds=range(3), **run, resume=tmp_path)
    np.testing.assert_array_equal(again.values, whole.values)
    np.testing.assert_array_equal(again.steps, whole.steps)
    assert sorted(itertools.chain(*added)) == list(range(24))  # none of them twice


@pytest.mark.slow
def test_what_cannot_be_known_is_not_stored(tmp_path):
    lock = threading.Lock()

    def loss(params, batch):
        return params["x"] ** 2 * batch["e"][:, 0] + float(lock.locked())

    def evaluate(params, dataset):
        return {"locked": np.float32(lock.locked())}

    axes = {"x": {"client_optimizer.learning_rate": [0.1]}, "y": {"K": [1, 2]}, "seeds": [0]}
    work = {"work": lambda K: fjs.local.given_steps(K, most=2)}
    task = fjs.functions(lambda key: {"x": np.float32(1.0)}, loss)
    for changes, part in (({"task": task}, "task"), ({"evaluate": evaluate}, "evaluate")):
        with pytest.raises(ValueError, match=f"a phase diagram that is stored .*opaque parts .*{part}"):
            fjs.phase(METHODS, draw, **axes, **RUN | work | changes, resume=tmp_path / part)


def test_colours_are_those_of_planted_winners_and_differences():
    pytest.importorskip("matplotlib")
    values = np.random.default_rng(0).normal(size=(3, 2, 2, 6), scale=1e-3)
    planted = np.array([[-1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])  # a - b
    values[..., 0, :] += planted[..., None]
    values[2, 0, 0] = values[2, 0, 1]
    found = diagram(values, x=np.array([1, 2, 4]))
    ax = found.plot()
    np.testing.assert_array_equal(np.asarray(ax.collections[0].get_array()), [[1, 2, 0], [2, 1, 2]])  # 0 is grey
    assert {text.get_text() for text in ax.get_legend().get_texts()} >= {"a better", "b better", "not significant"}
    assert ax.get_xlim() == (1.0, 4.0)  # no cell beyond the values
    drawn = np.asarray(found.plot("difference").collections[0].get_array())
    np.testing.assert_allclose(drawn, planted.T, atol=3e-3)
    assert found.difference("a", "b").low[1, 0] < 1 < found.difference("a", "b").high[1, 0] + 2e-3


@pytest.mark.slow
def test_accuracies_of_models_that_diverged_are_none():
    """And those of whole models are: more is better, which the metric's name says."""
    data = fjs.datasets.from_clients([{"x": np.eye(2, dtype=np.float32) * 1e20, "y": np.array([0, 1])}] * 2)
    rates = {"client_optimizer.learning_rate": [1e-30, 1e10]}
    run = {"task": fjs.classification(fjs.models.LogisticRegression(2)), "rounds": 3, "batch_size": 2}
    found = fjs.phase(
        {"FedAvg": METHODS["FedAvg"]}, data, x=rates, y={"K": [1, 2]}, seeds=[0], metric="accuracy", **run,
        cohort=fjs.cohort.full(), work=lambda K: fjs.local.given_steps(K, most=2),
    )  # fmt: skip
    assert not found.less
    assert found.diverged[..., 0].tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "drift"}, "less=True or False"),
        ({"metric": "losss", "less": True}, "did you mean 'loss'"),
        ({"y": {"K": [4, 1]}}, "ascending"),
        ({"y": {"method": [1, 4]}}, "a column of this name: call the axis otherwise"),
        ({"y": {"nothing": [0.5, 1.0]}}, "no function has the parameter"),
        ({"choosing_seeds": [7]}, "best_of"),
        (
            {"best_of": fjs.sweeps.grid({"client_optimizer.learning_rate": [0.1, 0.2]}), "choosing_seeds": [7]},
            "an axis",
        ),
        ({"layout": fjs.layout.mesh(1)}, "runs of its own"),
        ({"x": {"client_optimizer.learning_rate": 0.1}}, "ascending"),
    ],
)
def test_bad_input(changes, message):
    given = {"x": {"client_optimizer.learning_rate": [0.1, 0.2]}, "y": {"K": [1, 4]}, "seeds": range(2)} | RUN
    work = {"work": fjs.local.steps(2) if "y" in changes else lambda K: fjs.local.given_steps(K, most=4)}
    with pytest.raises((ValueError, TypeError), match=message):
        fjs.phase(METHODS, draw, **given | work | changes)


STUDY = pathlib.Path(__file__).parents[2] / "benchmarks" / "studies" / "results"


@pytest.mark.nightly
def test_the_study_runs(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    found = importlib.import_module("benchmarks.studies.phase").main(["--size", "smoke", "--out", str(tmp_path)])
    assert found["cells"] == 4
    assert (tmp_path / "phase.png").stat().st_size > 0
    assert len((tmp_path / "phase.csv").read_text().splitlines()) == 1 + 4 * 2 * 2
