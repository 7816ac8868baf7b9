"""``fedjax-sim compare``: which runs it makes of its arguments, what it writes, and what becomes of failures."""

import json
import pathlib

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import compare as command
from fedjax_sim.cli import main as cli
from fedjax_sim.core.files import Lock
from fedjax_sim.run.configuration import read
from tests.run.test_configuration import SMALL

PROX = SMALL.replace('name = "fedavg"', 'name = "fedprox"\nmu = 0.5').replace(
    "rounds = 2", "rounds = 3\nseeds = [1, 2]"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(PROX)
    (tmp_path / "other.toml").write_text(PROX.replace("[1, 2]", "[1]"))
    return tmp_path


def made(files, *, changes=(), each=(), algorithms=()):
    return command.variants(files, changes, each, algorithms)


def test_variants_of_one_configuration(folder):
    chosen = made(
        ["small.toml"], changes=["run.rounds=1"],
        each=[["algorithm.mu=0.1"], ["big step", "algorithm.mu=1", "algorithm.client_optimizer.learning_rate=0.2"]],
    )  # fmt: skip
    assert [variant.label for variant in chosen] == ["mu=0.1", "big step"]
    assert [variant.stem for variant in chosen] == ["mu=0.1", "big-step"]
    assert [variant.tables.content["algorithm"]["mu"] for variant in chosen] == [0.1, 1]
    assert all(variant.tables.content["run"]["rounds"] == 1 for variant in chosen)
    # Keys are shortened only where that says which one is meant
    chosen = made(["small.toml"], each=[["algorithm.mu=0.1"], ["work.mu=0.1"], ["cohort.name=full"]])
    assert [variant.label for variant in chosen] == ["algorithm.mu=0.1", "work.mu=0.1", "cohort.name=full"]


def test_other_methods_keep_what_all_methods_have(folder):
    chosen = made(["small.toml"], algorithms=["fedprox", "algorithm.scaffold"])
    assert [variant.left_out for variant in chosen] == [(), ("algorithm.mu",)]
    prox, scaffold = (variant.tables.content["algorithm"] for variant in chosen)
    assert prox["mu"] == 0.5
    assert scaffold == {"name": "scaffold", "client_optimizer": prox["client_optimizer"]}


def test_files_of_the_same_name_are_told_apart(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "small.toml").write_text(PROX)
    assert [variant.label for variant in made(["small.toml", "deep/small.toml"])] == ["small", "deep/small"]
    assert [variant.stem for variant in made(["small.toml", "deep/small.toml"])] == ["small", "deep-small"]
    both = made(["small.toml", "other.toml"], algorithms=["fedavg", "fedprox"])
    assert [variant.label for variant in both] == [
        "small, fedavg", "small, fedprox", "other, fedavg", "other, fedprox",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["small.toml", "other.toml", "--out", "taken"], 1, "another run writes results to this directory (process"),
        (["small.toml", "other.toml", "--out", "there"], 1, "this is a directory, and no file is written over it"),
        (["small.toml"], 2, "there is one run"),
        (["small.toml", "--algorithms", "fedavg"], 2, "there is one run"),
        (["small.toml", "--algorithms", "fedprocks", "fedavg"], 2, "did you mean 'fedprox'?"),
        (["small.toml", "--variant", "algorithm.mu"], 2, "'algorithm.mu' is no KEY=VALUE"),
        (["small.toml", "--variant", "a=1", "small.toml"], 2, "configurations stand before --variant"),
        (["small.toml", "--variant", "algorithm.mu=1", "--variant", "algorithm.mu=1"], 2, "'mu=1'"),
        (["small.toml", "--variant", "algorithm.mux=1", "--variant", "algorithm.mu=1"], 2, "did you mean 'mu'?"),
        (["small.toml", "--variant", "environment.float=float64", "--variant", "run.rounds=1"], 2, "the precisions"),
        (["small.toml", "none.toml"], 1, "none.toml"),
        (["small.toml", "other.toml", "--out", "small.toml/inside"], 1, "small.toml"),
    ],
)  # fmt: skip
def test_how_it_fails_before_anything_runs(folder, capsys, monkeypatch, arguments, status, said):
    monkeypatch.setattr(command, "_outcome", lambda *_: pytest.fail("something was run"))
    (folder / "there" / "other.npz").mkdir(parents=True)
    with Lock(folder / "taken", "results", ".results.lock"):
        assert cli.main(["compare", *arguments]) == status
    out, err = capsys.readouterr()
    assert err.startswith("fedjax-sim compare: ")
    assert said in err
    assert err.count("\n") == 1
    assert "wrote" not in out


@pytest.mark.slow
def test_every_run_is_written_and_the_others_go_on(folder, capsys, monkeypatch):
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(folder / "nothing"))
    variants = ["--variant", "algorithm.mu=0.5", "--variant", "big", "algorithm.client_optimizer.learning_rate=1e30",
                "--variant", "no files", "dataset={name='mushrooms'}"]  # fmt: skip
    checkpoint = ["--set", "run.checkpoint=saved"]
    assert cli.main(["compare", "small.toml", *variants, *checkpoint]) == 1
    said = capsys.readouterr()
    assert "no files failed: mushrooms" in said.err
    lines = {line.partition("  ")[0]: line for line in said.out.splitlines()}
    assert "±" in lines["mu=0.5"]
    assert "diverged" in lines["big"]
    assert "failed" in lines["no files"]
    out = folder / "results" / "small-compare"
    assert (out / "comparison.png").stat().st_size > 1000
    about = json.loads((out / "results.json").read_text())
    assert [run["status"] for run in about["runs"]] == ["done", "diverged", "failed"]
    assert about["runs"][1]["final"]["loss"] == [None, None]
    assert about["runs"][1]["mean"]["loss"] is None
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["big", "mu=0.5"]

    # The numbers are those of the runs alone, and what was written is a run again
    alone = fjs.simulate(**read(folder / "small.toml"))
    history = fjs.History.load(out / "mu=0.5.npz")
    np.testing.assert_array_equal(history["loss"], alone["loss"])
    np.testing.assert_allclose(about["runs"][0]["mean"]["loss"], alone.final("loss").mean(), rtol=1e-6)
    np.testing.assert_allclose(about["runs"][0]["std"]["loss"], alone.final("loss").std(ddof=1), rtol=1e-5)
    assert read(out / "mu=0.5.toml")["algorithm"] == read(folder / "small.toml")["algorithm"]


@pytest.mark.slow
def test_as_json_with_a_note_on_what_differs(folder, capsys):
    assert cli.main(["compare", "small.toml", "other.toml", "--json", "--out", "j"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    about = json.loads(said.out)
    assert about == json.loads((folder / "j" / "results.json").read_text())
    assert about["notes"] == ["seeds differ (small: [1, 2], other: [1])"]
    assert [run["label"] for run in about["runs"]] == ["small", "other"]
    assert all(pathlib.Path(path).exists() for run in about["runs"] for path in run["files"].values())
    assert cli.main(["compare", "small.toml", "other.toml", "--quiet", "--out", "q"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


@pytest.mark.slow
def test_a_note_where_methods_do_not_minimise_the_same(folder, capsys):
    call = ["compare", "small.toml", "--algorithms", "fedavg", "scaffold", "--set", "run.rounds=1"]
    assert cli.main([*call, "--out", "n"]) == 0
    said = "not the same objectives: fedavg: sum p_i F_i (average 'sample'); scaffold: (1/N) sum F_i (average 'plain')"
    assert f"note: {said}" in capsys.readouterr().out
    about = json.loads((folder / "n" / "results.json").read_text())
    notes, (pair,) = about["notes"], about["paired"]
    assert (pair["method"], pair["against"], pair["metric"]) == ("scaffold", "fedavg", "loss")
    first, second = (np.array(run["final"]["loss"]) for run in about["runs"])
    assert pair["mean"] == pytest.approx((second - first).mean())
    assert [note for note in notes if note.startswith(said)] == notes
    assert cli.main([*call, "--set", "cohort.average=plain", "--json", "--out", "p"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.slow
def test_a_run_that_is_refused_says_by_which_table(folder, capsys):
    call = ["compare", "small.toml", "--variant", "large", "cohort.num_sampled=40", "--variant", "run.rounds=1"]
    assert cli.main([*call, "--out", "n"]) == 1
    assert "large failed: small.toml, [cohort]: " in capsys.readouterr().err


def test_runs_that_fail_have_checkpoints_of_their_own(folder, capsys, monkeypatch):
    saved = []

    def simulate(**given):
        saved.append(given["checkpoint"])
        raise RuntimeError("no power")

    monkeypatch.setattr("fedjax_sim.run.simulation.simulate", simulate)
    variants = ["--variant", "algorithm.mu=0.5", "--variant", "big", "algorithm.mu=2"]
    assert cli.main(["compare", "small.toml", *variants, "--set", "run.checkpoint=saved"]) == 1
    assert saved == [pathlib.Path("saved/mu=0.5"), pathlib.Path("saved/big")]
    assert "big failed: no power" in capsys.readouterr().err


def test_data_sets_that_differ_inside_are_not_one(folder, tmp_path):
    """``with_validation`` of two data sets: compare says so, and draws a column for each."""
    about = [fjs.describe(fjs.datasets.synthetic(1.0, beta, num_clients=4)) for beta in (0.0, 1.0)]
    held = [{"name": "dataset.with_validation", "arguments": {"dataset": one, "fraction": 0.2}} for one in about]
    words = [command._in_words(one) for one in held]
    assert "dataset=synthetic(alpha=1.0, beta=0.0" in words[0]
    assert words[0] != words[1]
