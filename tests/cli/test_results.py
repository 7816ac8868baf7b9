"""``fedjax-sim show`` and ``report``: which runs are in the files and folders that they are given."""

import dataclasses
import json
import types

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import sweeps
from fedjax_sim.cli import main as cli
from fedjax_sim.cli import output
from fedjax_sim.cli import sweep as sweep_command
from fedjax_sim.cli.results import MOST_POINTS, read
from fedjax_sim.core.descriptions import describe
from fedjax_sim.reporting import results_table
from fedjax_sim.reporting.table import objectives
from tests.fuzzing import samples
from tests.reporting.test_html_report import made


def swept(count, *, seeds=2):
    """A sweep over mu, the k-th point of which ends with a loss of about count - k."""
    space = sweeps.grid({"mu": [0.5 * number for number in range(count)]})
    runs = made(seeds=seeds * count, algorithm="fedprox")
    runs.metrics["loss"][:, -1] = np.repeat(count - np.arange(count), seeds)
    del runs.metrics["test_accuracy"]
    about = {**runs.description, "space": describe(space), "seeds": list(range(seeds))}
    runs = dataclasses.replace(runs, description=about, seeds=list(range(seeds)) * count)
    return sweeps.Sweep(runs, space, list(range(seeds)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(folder, labels):
    """What `compare` writes."""
    runs = []
    for number, (stem, label) in enumerate(labels.items()):
        made(seeds=1, mu=number).save(folder / f"{stem}.npz")
        runs.append({"label": label, "files": {"history": str(folder / f"{stem}.npz")}})
    runs.append({"label": "no files", "status": "failed", "error": "of anything"})
    (folder / "results.json").write_text(json.dumps({"runs": runs}))
    (folder / "comparison.png").write_bytes(b"png")


def test_a_sweep_is_its_points(folder):
    swept(3).save("out/sweep.npz")
    for result in ("out", "out/sweep.npz"):
        found = read([result])
        assert list(found.histories) == ["mu=0", "mu=0.5", "mu=1"]
        assert found.notes == []
    point = found.histories["mu=0.5"]
    assert point.seeds == [0, 1]
    assert point.description["algorithm"]["arguments"]["mu"] == 0.5
    np.testing.assert_array_equal(point.final("loss"), [2, 2])
    made().save("run/history.npz")
    assert list(read(["run", "out"]).histories) == ["run", "out: mu=0", "out: mu=0.5", "out: mu=1"]


def test_points_are_compared_without_their_penalties(folder):
    """As a sweep over a weight decay needs: with its penalty in the loss the weakest one wins."""
    sweep = swept(30, seeds=1)
    sweep.runs.metrics["test_loss"] = sweep.runs.metrics["loss"]  # the 30th is the least
    sweep.runs.metrics["test_data_loss"] = -sweep.runs.metrics["loss"]  # the first
    sweep.save("out/sweep.npz")
    found = read(["out"])
    assert list(found.histories)[:2] == ["mu=0", "mu=0.5"]
    assert found.notes == ["out/sweep.npz: the best 12 of 30 points by test loss without penalty"]


def test_of_many_points_there_are_the_best(folder, capsys):
    swept(30, seeds=1).save("out/sweep.npz")
    found = read(["out"])
    assert list(found.histories)[:2] == ["mu=14.5", "mu=14"]
    assert len(found.histories) == MOST_POINTS
    assert found.notes == ["out/sweep.npz: the best 12 of 30 points by training loss"]
    assert cli.main(["report", "out", "--out", "page.html"]) == 0
    assert "note: out/sweep.npz: the best 12 of 30 points" in capsys.readouterr().err
    assert "<h1>out/sweep.npz: the best 12 of 30 points by training loss</h1>" in (folder / "page.html").read_text()
    bad = swept(20, seeds=1)
    bad.runs.metrics["loss"][:, -1] = np.nan
    bad.save("bad/sweep.npz")
    assert read(["bad"]).notes == ["bad/sweep.npz: the first 12 of 20 points"]


def test_points_that_look_alike_have_numbers(folder):
    space = sweeps.grid({"mu": [0.1, 0.1 + 1e-6]})
    runs = made(seeds=2)
    about = {**runs.description, "space": describe(space), "seeds": [0]}
    sweeps.Sweep(dataclasses.replace(runs, description=about, seeds=[0, 0]), space, [0]).save("sweep.npz")
    assert list(read(["sweep.npz"]).histories) == ["point 0: mu=0.1", "point 1: mu=0.1"]


def test_what_reads_one_run_says_that_it_is_a_sweep(folder, capsys):
    sweep = swept(3)
    sweep.save("sweep.npz")
    with pytest.raises(ValueError, match=r"sweep\.npz is no run but a sweep of 3 points: .*Sweep\.load"):
        fjs.History.load("sweep.npz")
    with pytest.raises(ValueError, match=r"all runs of a sweep.*verify\(sweep\.at\(0\)\)"):
        fjs.verify(sweep.runs)
    assert cli.main(["verify", "sweep.npz"]) == 1
    assert "is no run but a sweep of 3 points" in capsys.readouterr().err
    assert sweeps.Sweep.load("sweep.npz").shape == (3, 2)


def test_a_comparison_is_its_runs_by_their_names(folder, capsys):
    compared(folder, {"small": "small", "lr-1e6": "lr 1e6", "a": "first of all"})
    made().save("older.npz")  # of an earlier call
    for results in ([str(folder)], ["small.npz", "lr-1e6.npz", "a.npz"]):
        found = read(results)
        assert list(found.histories) == ["small", "lr 1e6", "first of all"]
        assert found.notes == []
    assert cli.main(["show", "."]) == 0
    assert "lr 1e6" in capsys.readouterr().out


def test_runs_of_a_comparison_that_are_called_as_files_of_other_commands(folder):
    compared(folder, {"history": "history", "sweep": "sweep"})
    assert list(read(["."]).histories) == ["history", "sweep"]


@pytest.mark.parametrize("beside", ["a comparison", "nothing else"])
def test_a_folder_that_several_commands_wrote_to_has_all_their_runs(folder, beside):
    made().save("out/history.npz")
    swept(2).save("out/sweep.npz")
    made().save("out/tuned.npz")
    np.savez("out/mine.npz", x=np.ones(3))  # is not the commands'
    if beside == "a comparison":
        compared(folder / "out", {"a": "one", "b": "two"})
    where = folder / "out"
    names = [f"{where / 'history.npz'}", *(f"{where / 'sweep.npz'}: mu={mu}" for mu in ("0", "0.5")), "tuned"]
    assert list(read(["out"]).histories) == [*names, *(["one", "two"] if beside == "a comparison" else [])]


@pytest.mark.parametrize(
    "content",
    ["no JSON", "[]", "{}", '{"runs": 5}', '{"runs": [{"files": {"history": 5}, "label": "b"}]}',
     '{"runs": [{"files": {"history": "a.npz"}, "label": "\\u001b[2J"}]}', '{"a problem": {"FedAvg": {}}}'],
)  # fmt: skip
def test_names_from_another_file_are_none(folder, content):
    (folder / "results.json").write_text(content)
    made().save("a.npz")
    assert list(read(["."]).histories) == ["a"]


def test_everything_in_a_folder_of_results(folder, capsys):
    (folder / "results" / "cmp").mkdir(parents=True)
    (folder / "results" / "empty").mkdir()
    (folder / "results" / "plot.png").write_bytes(b"png")
    made().save("results/run/history.npz")
    swept(2).save("results/run-sweep/sweep.npz")
    compared(folder / "results" / "cmp", {"x": "one", "y": "two"})
    everything = sorted(str(path) for path in (folder / "results").iterdir())
    found = read(everything)
    assert list(found.histories) == ["one", "two", "run", "run-sweep: mu=0", "run-sweep: mu=0.5"]
    assert found.notes == [f"no runs in {folder / 'results' / 'empty'}, {folder / 'results' / 'plot.png'}"]
    assert cli.main(["report", *everything, "--out", "page.html"]) == 0
    assert "fedjax-sim report: note: no runs in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("empty", "empty has no history.npz or sweep.npz, nor other .npz files"),
        ("results", "results has no runs itself, but folders of runs: give results/*"),
        ("plot.png", "plot.png is no history: give the folder that it is in"),
        ("none", "none"),
    ],
)
def test_where_there_is_no_run(folder, capsys, result, said):
    (folder / "empty").mkdir()
    (folder / "plot.png").write_bytes(b"png")
    made().save("results/run/history.npz")
    for command in ("show", "report"):
        assert cli.main([command, result]) == 1
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_note_where_runs_do_not_minimise_the_same(folder, capsys):
    sample, plain = ("sample", "sum p_i F_i"), ("plain", "(1/N) sum F_i")
    runs = {}
    for name, (average, objective) in {"fedavg": sample, "fedprox": sample, "scaffold": plain}.items():
        runs[name] = made(algorithm=name)
        runs[name].description.update(average=average, objective=objective)
        runs[name].save(f"{name}.npz")
    said = (
        "not the same objectives: fedavg, fedprox: sum p_i F_i (average 'sample'); scaffold: (1/N) sum F_i (average "
        "'plain')"
    )
    assert objectives(runs)[0].startswith(said)
    assert f"note: {said}" in results_table(runs)
    assert objectives({name: runs[name] for name in ("fedavg", "fedprox")}) == []
    assert objectives({"fedavg": runs["fedavg"], "unknown": made()}) == []
    assert cli.main(["show", *(f"{name}.npz" for name in runs)]) == 0
    assert said in capsys.readouterr().out
    assert cli.main(["report", *(f"{name}.npz" for name in runs), "--out", "page.html"]) == 0
    assert '<p class="note">Not the same objectives: fedavg' in (folder / "page.html").read_text(encoding="utf-8")
    # alike in the average, but not in the objective
    runs["scaffold"].description.update(average="sample")
    assert "average=" not in objectives(runs)[0]


@pytest.mark.parametrize("passed", [True, False])
def test_the_status_says_whether_a_result_is_verified(tmp_path, monkeypatch, passed):
    samples.history().save(tmp_path / "a.npz")
    monkeypatch.setattr("fedjax_sim.run.verification.verify", lambda *_, **__: types.SimpleNamespace(passed=passed))
    assert cli.main(["verify", str(tmp_path / "a.npz")]) == (0 if passed else 1)


def test_a_table_counts_the_rounds_to_a_target(tmp_path, capsys):
    samples.history().save(tmp_path / "a.npz")
    assert cli.main(["show", str(tmp_path / "a.npz"), "--target", "0.25"]) == 0
    assert "rounds to 0.25" in capsys.readouterr().out


def test_json_has_no_accuracy_of_a_model_that_diverged():
    """As tables have none: that of NaN is the share of class 0."""
    run = made(seeds=2)
    run.metrics["loss"][1, -1] = np.nan
    final = output.summary(run, {})["final"]
    assert (final["loss"][1], final["test_accuracy"][1]) == (None, None)
    assert final["test_accuracy"][0] == run.final("test_accuracy")[0]
    swept_runs = swept(2)
    accuracies = np.full_like(swept_runs.runs["loss"], 0.25)
    swept_runs.runs.metrics.update(test_accuracy=accuracies)
    swept_runs.runs.metrics["loss"][3, -1] = np.inf
    points = sweep_command._as_json(swept_runs, "loss", swept_runs.ranked("loss"))["points"]
    assert [point["final"]["test_accuracy"] for point in points] == [[0.25, 0.25], [0.25, None]]


@pytest.mark.parametrize("given", ["--target 1 --json", "--target 1 --against a", "--json --form csv"])
def test_options_that_show_nothing_are_refused(tmp_path, capsys, given):
    samples.history().save(tmp_path / "a.npz")
    assert cli.main(["show", str(tmp_path / "a.npz"), *given.split()]) == 1
    assert f"{given.split()[-2] if 'csv' in given else '--target'} " in capsys.readouterr().err


def test_differences_from_a_run_in_every_form(folder, capsys):
    for number, name in enumerate(("near", "far")):
        made(seeds=3, mu=number).save(f"{name}.npz")
    for form, said in (("csv", "method,test accuracy,"), ("latex", r"\begin{tabular}{lrrrrr}"), ("html", "<table>")):
        assert cli.main(["show", "near.npz", "far.npz", "--against", "far", "--form", form]) == 0
        assert capsys.readouterr().out.startswith(said)
    assert cli.main(["show", "near.npz", "far.npz", "--against", "fra"]) == 1
    assert "did you mean 'far'?" in capsys.readouterr().err
    assert cli.main(["show", "near.npz", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| method |")


def test_a_folder_is_verified_run_by_run(folder, capsys, monkeypatch):
    compared(folder, {"a": "one", "b": "two"})
    seen = []

    def verify(history, *, parts, tolerance):
        seen.append((history.description["algorithm"]["arguments"]["mu"], tolerance))
        return types.SimpleNamespace(passed=len(seen) != 1)

    monkeypatch.setattr("fedjax_sim.run.verification.verify", verify)
    assert cli.main(["verify", "."]) == 1  # the first fails, and the second is looked at all the same
    assert seen == [(0, None), (1, None)]
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]


@pytest.mark.parametrize(("key", "value"), [("float", "float64"), ("device", "64 x cpu"), ("generator", {"a": 1})])
def test_runs_that_one_process_cannot_verify_are_refused_before_any_is_run(folder, capsys, monkeypatch, key, value):
    monkeypatch.setattr("fedjax_sim.run.verification.verify", lambda *_, **__: pytest.fail("something was run"))
    one = made()
    one.save("a.npz")
    about = one.description | {"environment": one.description["environment"] | {key: value}}
    dataclasses.replace(one, description=about).save("b.npz")
    assert cli.main(["verify", "."]) == 1
    assert "a and b were computed in another precision" in capsys.readouterr().err


@pytest.mark.parametrize("point", [["1"], ["mu=0.5"], ["algorithm.mu=0.5"]])
def test_a_point_of_a_sweep_is_verified(folder, monkeypatch, point):
    """What passes, round-off of another program, its history says itself."""
    swept(3).save("out/sweep.npz")
    seen = []

    def verify(history, *, parts, tolerance):
        seen.append((history.description["algorithm"]["arguments"]["mu"], tolerance))
        return types.SimpleNamespace(passed=True)

    monkeypatch.setattr("fedjax_sim.run.verification.verify", verify)
    given = [word for one in point for word in ("--point", one)]
    assert cli.main(["verify", "out", *given]) == 0
    assert cli.main(["verify", "out", *given, "--tolerance", "0"]) == 0
    assert seen == [(0.5, None), (0.5, 0.0)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["out", "--point", "3"], "points have the numbers 0 to 2"),
        (["out", "--point", "mu=7"], "no point of the sweep has these values"),
        (["out", "--point", "nu=1"], "the space has no 'nu'"),
        (["out", "--point", "mu"], "--point mu: write KEY=VALUE"),
        (["out"], "--point 0 to --point 2 take one"),
        (["run.npz", "--point", "0"], "run.npz is no sweep"),
    ],
)
def test_points_that_there_are_not(folder, capsys, given, said):
    swept(3).save("out/sweep.npz")
    made().save("run.npz")
    assert cli.main(["verify", *given]) == 1
    assert said in capsys.readouterr().err


def test_what_a_configuration_and_a_result_cite(folder, capsys):
    (folder / "run.toml").write_text(
        'dataset = "mnist"\nlayout = "tune"\ntask = "mine:task"\n'
        '[algorithm]\nname = "robust"\nrule = { name = "krum", malicious = 1 }\n'
        'base = { name = "scaffold", client_optimizer = { name = "optim.sgd", learning_rate = 0.1 } }\n'
    )
    made(algorithm="fedprox").save("run.npz")
    assert cli.main(["cite", "run.toml"]) == 0  # nothing is read: there are no files of mnist
    said = capsys.readouterr().out
    for key in ("fedjax_sim", "karimireddy2020scaffold", "blanchard2017machine"):
        assert f"{{{key}," in said
    assert cli.main(["cite", "run.npz", "optim.fedyogi", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["bibtex"]
    assert "li2020federated" in said
    assert "reddi2021adaptive" in said
    assert cli.main(["cite", "scafold"]) == 1
    assert "did you mean 'scaffold'?" in capsys.readouterr().err
    (folder / "run.toml").write_text('[algorithm]\nname = "fedporx"\n')
    assert cli.main(["cite", "run.toml"]) == 1
    assert "did you mean 'fedprox'?" in capsys.readouterr().err
