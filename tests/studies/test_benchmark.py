"""The fair comparison: splits, points and wider ranges, budgets, differences over draws; one's own method entered."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np
import optax
import pytest
from scipy import stats

import fedjax_sim as fjs
from fedjax_sim import paths
from fedjax_sim.cli.main import main
from fedjax_sim.datasets.fingerprints import dataset_fingerprint
from fedjax_sim.reporting.paired import adjusted
from fedjax_sim.studies import benchmark
from fedjax_sim.studies.benchmark import evidence, problems, result, running
from fedjax_sim.studies.benchmark.methods import BASE, RATE, entered


def clients(*sizes: int) -> fjs.FederatedDataset:
    """Example k of client i has x = (i, k), and the label i modulo 3."""
    made = [
        {"x": np.stack([np.full(n, i), np.arange(n)], axis=1).astype(np.float32), "y": np.full(n, i % 3, np.int32)}
        for i, n in enumerate(sizes)
    ]
    return fjs.datasets.from_clients(made, num_classes=3)


def rows_of(data: fjs.FederatedDataset) -> set[tuple[float, float]]:
    return {tuple(row) for row in np.asarray(data.examples["x"]).tolist()}


def test_people_are_in_one_part_each_and_whole() -> None:
    data = problems.by_people(clients(*range(4, 14)), 3)
    parts = [data, data.validation, data.test]
    people = [{row[0] for row in rows_of(part)} for part in parts]
    assert [len(of) for of in people] == [6, 2, 2]
    assert len(set.union(*people)) == 10
    assert sorted(row for part in parts for row in rows_of(part)) == sorted(rows_of(clients(*range(4, 14))))
    for part in parts:  # an entry of a part is one person
        assert all(np.ptp(part.client(at)["x"][:, 0]) == 0 for at in range(6) if len(part.client(at)["y"]))
    assert data.num_classes == 3
    assert rows_of(problems.by_people(clients(*range(4, 14)), 4)) != rows_of(data)
    assert len({row[0] for row in rows_of(problems.by_people(clients(*range(4, 14)), 3, most=5))}) == 3


def test_parts_of_every_client_are_apart_and_small_clients_go() -> None:
    data = problems.by_parts(clients(3, 4, 20, 100), 0)
    parts = [rows_of(part) for part in (data, data.validation, data.test)]
    assert [len(of) for of in parts] == [2 + 10 + 50, 1 + 3 + 15, 1 + 7 + 35]
    assert len(set.union(*parts)) == 124
    assert problems.by_parts(clients(100), 0, most=40).num_examples == 20


def test_arrays_are_standardised_by_what_is_trained_on() -> None:
    plain, scaled = (problems.by_parts(clients(30, 50), 1, names) for names in ((), ("x",)))
    known = np.asarray(plain.examples["x"], np.float64)
    for before, after in zip((plain, plain.validation, plain.test), (scaled, scaled.validation, scaled.test),
                             strict=True):  # fmt: skip
        wanted = (np.asarray(before.examples["x"]) - known.mean(axis=0)) / known.std(axis=0)
        np.testing.assert_allclose(after.examples["x"], wanted, atol=1e-5)


@pytest.mark.slow
def test_means_over_clients_leave_out_the_empty() -> None:
    data = problems.by_people(clients(*range(4, 14)), 3)
    task = fjs.classification(fjs.models.LogisticRegression(3))
    params = jax.tree.map(lambda leaf: leaf + 0.1, task.init(jax.random.key(0), data))
    params["params"]["Dense_0"]["kernel"] += np.array([[0.1, 0.2, 0.3], [0.0, 0.1, 0.0]])
    found = jax.jit(benchmark.by_clients(task))(params, data)
    assert data.test is not None
    by_hand = []
    for at in range(data.num_clients):
        owned = data.test.client(at)
        if len(owned["y"]):
            by_hand.append(float(np.mean(np.asarray(task.values(params, owned)["loss"]))))
    assert len(by_hand) == 2
    np.testing.assert_allclose(found["test_clients_loss"], np.mean(by_hand), rtol=1e-5)
    assert {"validation_clients_loss", "test_clients_accuracy"} <= found.keys()


def test_ranges_are_made_wider_where_the_best_is_at_an_edge() -> None:
    ranges = {"low": fjs.sweeps.log_uniform(0.01, 1.0), "high": fjs.sweeps.log_uniform(0.01, 1.0),
              "middle": fjs.sweeps.log_uniform(0.01, 1.0), "bounded": fjs.sweeps.uniform(0.0, 1.0)}  # fmt: skip
    best = {"low": 0.0155, "high": 0.66, "middle": 0.0165, "bounded": 0.999}  # a tenth in is 0.0158 and 0.631
    found = running.widened(ranges, best, 0.1)
    assert {name: (of.low, of.high) for name, of in found.items()} == {
        "low": (pytest.approx(0.001), 1.0), "high": (0.01, pytest.approx(10.0)),
    }  # fmt: skip


def test_every_method_draws_over_its_rates_and_parameters() -> None:
    for name, entry in benchmark.METHODS.items():
        leaves = paths.real_leaves(entry.method())
        assert {RATE, *entry.space} <= leaves.keys(), name
        assert ("server_learning_rate" in entry.space) == ("server_learning_rate" in leaves), name
        space = fjs.sweeps.random({RATE: fjs.sweeps.log_uniform(0.1, 1), **entry.space}, 1)
        paths.replace(entry.method(), space.point(0))
    assert benchmark.DEEP[0] == BASE
    mine = entered(fjs.fedprox, {"mu": fjs.sweeps.uniform(0, 1)})
    assert set(mine.space) == {"mu", "server_learning_rate"}
    own = fjs.sweeps.uniform(1, 2)
    assert entered(fjs.fedavg, {"server_learning_rate": own}).space["server_learning_rate"] == own
    with pytest.raises(ValueError, match="must use the client_optimizer"):
        entered(lambda client_optimizer: fjs.fedavg(client_optimizer=optax.rprop(0.1)))


def row(problem: str, method: str, draw: int, seed: int, value: float, **more: Any) -> benchmark.Row:
    return benchmark.Row(**{
        "version": "1", "problem": problem, "method": method, "draw": draw, "seed": seed, "rounds": 60,
        "bytes": 1e6, "gradients": 100.0, "seconds": 5.0, "by_examples": value, "by_clients": 1 - value, **more,
    })  # fmt: skip


def made_up(problem: str, seeds: int = 3) -> tuple[list[benchmark.Row], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0.5, 0.1, (6, seeds)) for name in (BASE, "SCAFFOLD", "FedProx")}
    values["SCAFFOLD"] += 0.2
    rows = [row(problem, name, draw, seed, float(of[draw, seed]))
            for name, of in values.items() for draw in range(6) for seed in range(seeds)]  # fmt: skip
    return rows, values


def test_a_run_is_read_at_its_last_evaluation_within_the_share() -> None:
    def run(method: str, seed: int, every: float) -> list[benchmark.Row]:
        return [row("synthetic(1, 1)", method, 0, seed, 0.1 * at, rounds=5 * at, bytes=every * at) for at in range(5)]

    runs = [*run(BASE, 0, 10.0), *run(BASE, 1, 100.0), *run("SCAFFOLD", 0, 20.0), *run("SCAFFOLD", 1, 20.1)]

    def read(budget: str, share: float) -> list[int]:
        return [of.rounds for of in evidence.within(runs[::-1], budget, share)][::-1]

    assert read("rounds", 1.0) == [20, 20, 20, 20]
    assert read("rounds", 0.5) == [10, 10, 10, 10]
    assert read("bytes", 1.0) == [20, 20, 10, 20]  # each beside the run of FedAvg with its seed
    assert read("bytes", 0.5) == [10, 10, 5, 20]  # 40 and 200 bytes in all
    assert read("bytes", 0.1) == [0, 0, 0, 10]  # 4 and 40, and a hundredth
    assert read("bytes", 0.0) == [0, 0, 0, 0]
    assert [of.rounds for of in evidence.within(run(BASE, 0, 10.0)[:4], "bytes", 0.661)] == [10]
    assert [of.rounds for of in evidence.within(run(BASE, 0, 10.0)[:4], "bytes", 0.65)] == [5]
    with pytest.raises(ValueError, match="no rows of FedAvg of draw 0, seed 1"):
        next(evidence.within([of for of in runs if (of.method, of.seed) != (BASE, 1)]))


@pytest.mark.parametrize(("problem", "sign"), [("synthetic(1, 1)", 1), ("Parkinsons by patient", -1)])
def test_differences_are_paired_by_draws_not_by_seeds(problem: str, sign: int) -> None:
    rows, values = made_up(problem)
    first, second = benchmark.differences([*rows, row(problem, "SCAFFOLD", 0, 0, 9.0, rounds=55)])
    base, own = (values[name].mean(axis=1) for name in (BASE, "SCAFFOLD"))
    wanted = stats.ttest_rel(own, base)
    assert (first.method, first.draws, first.value) == ("SCAFFOLD", 6, pytest.approx(own.mean()))
    assert first.mean == pytest.approx(sign * (own - base).mean())
    assert first.p == pytest.approx(wanted.pvalue)
    low, _ = wanted.confidence_interval()
    assert first.half == pytest.approx((own - base).mean() - low)
    assert first.effect == pytest.approx(sign * (own - base).mean() / (own - base).std(ddof=1))
    assert first.better == int((sign * (own - base) > 0).sum())
    assert first.adjusted == pytest.approx(2 * first.p)
    assert second.adjusted == pytest.approx(max(second.p, 2 * first.p))
    by_clients = benchmark.differences(rows, by="clients")[0]
    assert by_clients.mean == pytest.approx(-first.mean)
    back = {of.method: of for of in benchmark.differences(rows, base="SCAFFOLD")}
    assert set(back) == {BASE, second.method}
    assert (back[BASE].mean, back[BASE].half) == (pytest.approx(-first.mean), pytest.approx(first.half))
    assert "better than SCAFFOLD by" in benchmark.Result([], rows).table(base="SCAFFOLD")
    with pytest.raises(ValueError, match=r"differences\(base=...\) is 'FedDyn'"):
        benchmark.differences(rows, base="FedDyn")


def test_a_method_of_ones_own_is_corrected_with_shared_and_with_personal_ones() -> None:
    """Nobody knows from its name which it is."""
    rng = np.random.default_rng(3)
    values = {BASE: 0.0, "mine": 0.06, "Ditto": 0.05, "SCAFFOLD": 0.02, "FedDyn": 0.03}
    rows = [row("synthetic(1, 1)", name, draw, 0, 0.5 + more + 0.05 * rng.standard_normal())
            for name, more in values.items() for draw in range(6)]  # fmt: skip
    found = {of.method: of for of in benchmark.differences(rows)}

    def holm(*names: str) -> dict[str, float]:
        return dict(zip(names, adjusted(np.array([found[name].p for name in names]), "holm").tolist(), strict=True))

    shared, personal = holm("mine", "SCAFFOLD", "FedDyn"), holm("mine", "Ditto")
    assert found["Ditto"].adjusted == pytest.approx(personal["Ditto"])
    assert found["FedDyn"].adjusted == pytest.approx(shared["FedDyn"])
    assert found["mine"].adjusted == pytest.approx(max(shared["mine"], personal["mine"]))
    assert found["mine"].adjusted > found["mine"].p


def test_a_seed_that_diverged_leaves_no_number() -> None:
    rows, _ = made_up("synthetic(1, 1)")
    lost = [of._replace(by_examples=float("nan")) if (of.method, of.draw, of.seed) == ("SCAFFOLD", 2, 1) else of
            for of in rows]  # fmt: skip
    first, second = benchmark.differences(lost)
    assert np.isnan([first.mean, first.half, first.p, first.adjusted]).all()
    assert second.adjusted == second.p  # one test is left
    assert "diverged" in benchmark.Result([], lost).table()
    with pytest.raises(ValueError, match="no rows of FedAvg"):
        benchmark.differences([of for of in rows if of.method != BASE])
    with pytest.raises(ValueError, match="did you mean 'bytes'"):
        benchmark.differences(rows, "byte")
    with pytest.raises(ValueError, match="share"):
        benchmark.differences(rows, share=-0.5)


def test_equal_differences_and_round_off_tell_nothing() -> None:
    """Two draws of 40 reported examples in which a method has one more right: no spread to test by, not p = 0."""
    values = {BASE: (0.8, 0.85), "SCAFFOLD": (0.825, 0.875), "FedNova": (0.8 * (1 + 1e-7), 0.85 * (1 + 2e-7)),
              "FedDyn": (0.85, 0.95)}  # fmt: skip
    rows = [row("synthetic(1, 1)", name, draw, 0, of[draw]) for name, of in values.items() for draw in range(2)]
    alike, none, told = benchmark.differences(rows)
    assert (alike.mean, alike.half, alike.better) == (pytest.approx(0.025), 0.0, 2)
    assert np.isnan([alike.effect, alike.p, alike.adjusted]).all()
    assert (none.mean, none.half, none.better, none.p) == (0.0, 0.0, 0, 1.0)
    assert told.adjusted == pytest.approx(2 * stats.ttest_1samp([0.05, 0.1], 0).pvalue)  # of the two that have a test
    assert "*" not in benchmark.Result([], rows).table().partition("\n\n")[0]
    assert "value: " in benchmark.Result([], rows).table()
    smoke = [row._replace(version="1, smoke") for row in rows]
    assert "note: version '1, smoke'" in benchmark.Result([], smoke).table()


def test_the_smallest_effect_is_told_with_its_power() -> None:
    for draws, methods in ((2, 1), (3, 1), (3, 7), (4, 15), (10, 7)):  # of few draws scipy's nct and nctdtr are NaN
        effect, bound = benchmark.smallest_effect(draws, methods), stats.t.ppf(1 - 0.025 / methods, draws - 1)

        def told(s: float, shift: float = effect * np.sqrt(draws), bound: float = bound) -> float:
            return float(stats.norm.sf(bound * s - shift) + stats.norm.cdf(-bound * s - shift))

        deviation = stats.chi(draws - 1, scale=1 / np.sqrt(draws - 1))  # of normal numbers, over the true one
        power = deviation.expect(told, lb=0, ub=12, limit=500)
        assert power == pytest.approx(0.8, abs=1e-5)


def test_results_are_files_that_come_back(tmp_path: pathlib.Path) -> None:
    rows, _ = made_up("synthetic(1, 1)")
    choice = benchmark.Choice(
        "1",
        "synthetic(1, 1)",
        BASE,
        0,
        16,
        "",
        '{"a": 1.5, "b": 2}',
        0.25,
        "sum p_i F_i",
        "x",
        "1 x cpu, jax 0.10.1, fedjax_sim 0.3.0",
    )
    rows.append(row("synthetic(1, 1)", "FedNova", 0, 0, float("nan")))
    made = benchmark.Result([choice], rows)
    made.save(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in result.FILES}
    back = benchmark.Result.load(tmp_path)
    assert back.choices == made.choices
    np.testing.assert_allclose([of.by_examples for of in back.rows], [of.by_examples for of in rows], rtol=1e-5)
    assert [of[:8] for of in back.rows] == [of[:8] for of in rows]
    assert len(back.joined(made).rows) == len(rows)
    made.save(tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in result.FILES}
    with pytest.raises(ValueError, match="versions 1, 2 of the protocol"):
        made.joined(benchmark.Result([], [rows[0]._replace(version="2")]))
    (tmp_path / "choices.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no result of the benchmark"):
        benchmark.Result.load(tmp_path)


def test_names_are_checked_first() -> None:
    with pytest.raises(ValueError, match="did you mean 'FedProx'"):
        benchmark.run("FedProxx")
    with pytest.raises(ValueError, match=r"no problem of the benchmark is called 'digits': .*; MNIST, two digits; "):
        benchmark.run("FedProx", problems=["digits"])
    with pytest.raises(ValueError, match="has a method of this name"):
        benchmark.run(fjs.fedprox, {}, name="SCAFFOLD")
    with pytest.raises(ValueError, match="give these for a method of your own"):
        benchmark.run("FedProx", {})
    assert result.protocol_of("cpu", 4).version == "1, 4 points"
    assert main(["benchmark", "FedProx", "--over", "mu=uniform(0, 1)"]) == 2
    assert main(["benchmark", "nobody"]) == 2


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A problem of a second."""
    task = fjs.classification(fjs.models.LogisticRegression(3))
    made = benchmark.Problem("six small clients", lambda draw: problems.by_parts(clients(8, 9, 10), draw), task, None,
                             fjs.local.steps(1), 4, (0.01, 0.1), 2)  # fmt: skip
    monkeypatch.setitem(benchmark.PROBLEMS, "tiny", made)
    small = benchmark.SMOKE._replace(draws=1, widenings=0)
    monkeypatch.setattr(result, "SMOKE", small)
    return "tiny"


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_ones_own_method_is_entered_by_the_command(
    again: bool, tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "entered_here.py").write_text(
        "import fedjax_sim as fjs\n\n"
        "def twice(client_optimizer):\n    return fjs.scaffold(client_optimizer=client_optimizer)\n"
    )
    said = ["benchmark", "twice", "--mine", "entered_here:twice", "--size", "smoke", "--problems", tiny]
    assert main([*said, "--dry-run", "--json"]) == 0
    said_first = json.loads(capsys.readouterr().out)
    [cost] = said_first["cost"]
    assert set(said_first) == {"cost", "differences", "out"}
    assert said_first["differences"] is None
    assert (cost["fewest"], cost["most"]) == (8, 8)  # two methods: two points, then two seeds
    assert main(said) == 0
    assert "report" in capsys.readouterr().out
    found = benchmark.Result.load("results/benchmark")
    assert len(found.rows) == 2 * 2 * 3  # methods, seeds, evaluations
    at = {
        (of.method, budget, share): of.rounds
        for budget in evidence.BUDGETS for share in (0.5, 1.0) for of in evidence.within(found.rows, budget, share)
    }  # fmt: skip
    assert at[BASE, "bytes", 1.0] == at["twice", "rounds", 1.0] == at["twice", "gradients", 1.0] == 2
    assert at["twice", "bytes", 1.0] == at[BASE, "bytes", 0.5] == at["twice", "rounds", 0.5] == 1
    assert at["twice", "bytes", 0.5] == 0
    assert {of.method: of.objective for of in found.choices} == {BASE: "sum p_i F_i", "twice": "(1/N) sum F_i"}

    if not again:
        return
    with pytest.raises(ValueError, match="the folder has another sweep"):  # the method was edited
        result.cost(fjs.fedavgm, name="twice", problems=[tiny], size="smoke", folder="results/benchmark/runs")
    assert main(said) == 0  # all is there
    assert "compiling" not in capsys.readouterr().out.replace("compiling comes to it", "")
    assert main([*said, "--beside", "FedNova", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(of["base"], of["method"]) for of in told["differences"]} == {
        (BASE, "twice"), (BASE, "FedNova"), ("FedNova", BASE), ("FedNova", "twice")
    }  # fmt: skip
    assert [(of["method"], of["fewest"]) for of in told["cost"]] == [("twice", 0), ("FedNova", 4)]

    # A row is what a run of its point, seed and draw says.
    [chosen] = [of for of in found.choices if of.method == "twice"]
    problem = benchmark.PROBLEMS[tiny]
    data = problem.data(chosen.draw)
    history = fjs.simulate(
        paths.replace(fjs.scaffold(client_optimizer=fjs.optim.sgd(0.01)), json.loads(chosen.point)), data,
        task=problem.task, rounds=2, eval_every=1, cohort=fjs.cohort.full(), work=problem.work, batch_size=4,
        evaluate=benchmark.by_clients(problem.task), seeds=[102], system=running.FLEET,
    )  # fmt: skip
    [last] = [of for of in evidence.within(found.rows) if (of.method, of.seed) == ("twice", 102)]
    assert last.bytes == pytest.approx(history.bytes[0, -1])
    assert last.seconds == pytest.approx(history.virtual_time[0, -1], rel=1e-4)
    assert last.gradients == np.sum(history["useful_steps"])
    assert chosen.computed.startswith(f"1 x cpu, jax {jax.__version__}, fedjax_sim")
    assert last.by_examples == pytest.approx(history.final("test_accuracy")[0], abs=1e-5)
    assert last.by_clients == pytest.approx(history.final("test_clients_accuracy")[0], abs=1e-5)
    assert chosen.data == dataset_fingerprint(data)


def test_runs_of_another_version_are_others(tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other points or at another size nothing of what is there is taken, nor in the way."""
    monkeypatch.setattr(running.Runs, "measured", lambda runs: 1.0)
    report = running.place_of(tmp_path, tiny, BASE, 0, result.SMOKE) / "report"
    report.mkdir(parents=True)
    (report / "runs-000000.npz").touch()
    runs = [result.cost(BASE, problems=[tiny], size="smoke", points=of, folder=tmp_path)[0].fewest for of in (None, 3)]
    assert runs == [0, 3 + 2]
    of_version_1 = running.place_of(tmp_path, tiny, BASE, 0)
    assert of_version_1 == tmp_path / "tiny" / "fedavg" / "draw-0"


def test_what_is_there_counts_if_it_was_computed_and_is_of_the_method(
    tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.Runs, "measured", lambda runs: 1.0)
    read: list[pathlib.Path | None] = []
    monkeypatch.setattr(running.Runs, "search", lambda runs, draw: read.append(runs.place))
    asked = {"problems": [tiny], "size": "smoke", "folder": tmp_path}
    place = running.place_of(tmp_path, tiny, "mine", 0, result.SMOKE)
    (place / "report").mkdir(parents=True)  # and then the process was killed
    [cost] = result.cost(fjs.fedavg, name="mine", **asked)
    assert (cost.fewest, read) == (2 * 4, [])
    (place / "report" / "runs-000000.npz").touch()
    [cost] = result.cost(fjs.fedavg, name="mine", **asked)
    assert (cost.fewest, read) == (4, [place])  # which refuses runs of another method


def test_a_method_that_diverges_at_every_point_has_no_numbers(tiny: str, tmp_path: pathlib.Path) -> None:
    protocol = result.SMOKE._replace(widenings=1)
    lost = entered(fjs.fedavg, dict.fromkeys((RATE, "server_learning_rate"), fjs.sweeps.log_uniform(1e37, 1e38)))
    choice, rows = running.compared("lost", lost, tiny, 0, tmp_path, protocol, lambda line: None)
    assert (choice.point, choice.wider, choice.objective) == ("{}", "every point diverged", "")
    assert np.isnan([of.by_examples for of in rows]).all()


def test_means_over_clients_of_a_task_with_scores_read_the_data_as_they_are() -> None:
    plain = fjs.classification(fjs.models.LogisticRegression(3))
    assert benchmark.by_clients(plain).in_buckets
    assert not benchmark.by_clients(plain.replace(scores=(fjs.scores.f1(),))).in_buckets
    assert not benchmark.by_clients(fjs.cox(fjs.models.LogisticRegression(1))).in_buckets


def test_what_takes_less_than_a_minute_is_told_in_seconds() -> None:
    from fedjax_sim.cli.benchmark import _hours

    assert _hours((1 / 3600, 2 / 3600)) == "seconds"
    assert _hours((2 / 3600, 12 / 3600)) == "2 to 12 seconds"
    assert _hours((0.01, 0.1)) == "1 to 6 minutes"
    assert _hours((0.5, 2.0)) == "0.5 to 2.0 hours"
