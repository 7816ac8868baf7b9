"""``fedjax-sim sweep`` and ``tune``: the spaces that texts stand for, and what is written of a study."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import hyper, sweeps
from fedjax_sim.cli import main as cli
from fedjax_sim.cli import spaces
from fedjax_sim.cli import sweep as sweep_command
from fedjax_sim.cli import tune as tune_command
from fedjax_sim.cli.output import taken_by
from fedjax_sim.core.files import Lock
from fedjax_sim.reporting.divergence import FACTOR
from fedjax_sim.run.configuration import read
from fedjax_sim.run.configuration.tables import toml_value
from tests.cli.test_compare import PROX

ROOT = pathlib.Path(__file__).parents[2]
RATE = "algorithm.client_optimizer.learning_rate"
# A command that tells when its program is compiled.
INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from fedjax_sim.studies.sweeps.program import Executor
run = Executor.run
Executor.run = lambda *given: (os.write(1, b"it computes\\n"), run(*given))[1]
from fedjax_sim.cli.main import main
sys.argv = ["fedjax-sim", *sys.argv[1:], "--quiet", "--no-cache", "--out", "small-sweep"]
sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(PROX)
    return tmp_path


def space(*over, zipped=False, random=None):
    return spaces.space_of(over, zipped=zipped, random=random, seed=3)


def test_texts_are_spaces():
    assert space("algorithm.mu=0, 0.1", "task.weight_decay=[1e-4]") == sweeps.grid(
        {"mu": [0.0, 0.1], "task.weight_decay": [1e-4]}
    )
    assert space("mu=0,1", "server_learning_rate=1,2", zipped=True) == sweeps.zipped(
        {"mu": [0.0, 1.0], "server_learning_rate": [1.0, 2.0]}
    )
    np.testing.assert_allclose(space("mu=geomspace(0.01, 1, 3)").points()["mu"], [0.01, 0.1, 1.0])
    np.testing.assert_allclose(space("mu=linspace(0, 1, 3)").points()["mu"], [0.0, 0.5, 1.0])
    assert space("mu=log_uniform(0.01, 1)", random=4) == sweeps.random({"mu": sweeps.log_uniform(0.01, 1)}, 4, 3)


@pytest.mark.parametrize(
    ("over", "random", "said"),
    [
        ("algorithm.mu", None, "write KEY=VALUE"),
        ("algorithm.mu=", None, "write KEY=VALUE"),
        ("algorithm.mu=a,b", None, "no TOML value"),
        ("algorithm.mu='a'", None, "'a' is no number"),
        ("algorithm.mu=true", None, "True is no number"),
        ("algorithm.mu=geomspac(1, 2, 3)", None, "did you mean 'geomspace'?"),
        ("algorithm.mu=geomspace(0, 2, 3)", None, "geomspace"),
        ("algorithm.mu=linspace(0)", None, "linspace"),
        ("algorithm.mu=uniform(0, 1)", None, "add --random 20"),
        ("algorithm.mu=0,1", 4, "with --random values are drawn"),
        ("algorithm.mu=uniform(1, 0)", 4, "low must be below high"),
        ("algorithm.mu=1,1", None, "twice"),
    ],
)
def test_texts_that_are_none(over, random, said):
    with pytest.raises(ValueError, match=r".") as caught:
        space(over, random=random)
    assert said in str(caught.value)


TABLE = """
[sweep]
metric = "loss"
[sweep.over]
algorithm.mu = [0, 0.5]
"algorithm.client_optimizer.learning_rate" = "geomspace(0.01, 0.1, 2)"
"""


@pytest.mark.parametrize(
    ("given", "said", "metric"),
    [
        ([], sweeps.grid({"mu": [0.0, 0.5], RATE.partition(".")[2]: [0.01, 0.1]}), "loss"),
        (["--set", "sweep.zip=true"], sweeps.zipped({"mu": [0.0, 0.5], RATE.partition(".")[2]: [0.01, 0.1]}), "loss"),
        (["--over", "algorithm.mu=3", "--metric", "accuracy"], sweeps.grid({"mu": [3.0]}), "accuracy"),
    ],
)
def test_a_table_says_what_is_swept(folder, monkeypatch, given, said, metric):
    (folder / "small.toml").write_text(PROX + TABLE)
    seen = []
    monkeypatch.setattr(sweep_command, "_result", lambda _, points, options, *__: seen.append((points, options.metric)))
    monkeypatch.setattr(sweep_command, "_write", lambda _, tables, *__: seen.append("sweep" in tables.content))
    assert cli.main(["sweep", "small.toml", *given]) == 0
    ((points, chosen), left) = seen
    assert points.names == said.names
    assert chosen == metric
    assert not left  # best.toml is a configuration of a run
    for name, values in points.points().items():
        np.testing.assert_allclose(values, said.points()[name])


@pytest.mark.parametrize(
    "given", [["--over", "algorithm.mu=3", "--random-seed", "5"], ["--set", "sweep.random_seed=5"]]
)
def test_a_seed_without_draws_is_refused(folder, capsys, given):
    (folder / "small.toml").write_text(PROX + TABLE)
    assert cli.main(["sweep", "small.toml", *given]) == 2
    assert "is of the draws of" in capsys.readouterr().err


def test_a_run_does_not_pass_over_a_sweep(folder, capsys):
    (folder / "small.toml").write_text(PROX + TABLE)
    assert cli.main(["run", "small.toml"]) == 2
    assert "the table [sweep] is for `fedjax-sim sweep` alone" in capsys.readouterr().err


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="mu is there twice"):
        space("algorithm.mu=1", "mu=2")


def test_texts_are_transforms():
    chosen = spaces.transforms_of(["algorithm.mu", "task.weight_decay=positive", "server_learning_rate=interval(0, 2)"])
    assert chosen == {
        "mu": None, "task.weight_decay": hyper.positive(), "server_learning_rate": hyper.interval(0, 2),
    }  # fmt: skip
    with pytest.raises(ValueError, match="did you mean 'interval'"):
        spaces.transforms_of(["algorithm.mu=intervall(0, 1)"])
    with pytest.raises(ValueError, match="low < high"):
        spaces.transforms_of(["algorithm.mu=interval(1, 0)"])


def test_values():
    assert spaces.call("f(1, 'a')", "here") == spaces.Call("f", [1, "a"])
    assert spaces.call("1", "here") is None
    assert toml_value("word", "here") == "word"
    assert toml_value("{ name = 'a' }", "here") == {"name": "a"}
    with pytest.raises(ValueError, match="give one value"):
        toml_value("1\nb = 2", "here")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "small.toml", "--over", "algorithm.mux=1,2"], "did you mean 'algorithm.mu'?"),
        (["sweep", "small.toml", "--over", "rounds=1,2"], "there is no such hyper-parameter"),
        (["sweep", "small.toml", "--over", "work.num_steps=1,2"], "--variant work.num_steps="),
        (["sweep", "small.toml", "--over", "algorithm.mu=1,2", "--metric", "lss"], "did you mean 'loss'?"),
        (["sweep", "small.toml", "--over", "algorithm.mu=-1,2"], "-1"),
        (["sweep", "small.toml"], "nothing is varied: --over"),
        (["sweep", "small.toml", "--over", "learning_rate=1,2"], f"did you mean '{RATE}'?"),
        (["sweep", "small.toml", "--random", "3"], "of points that --over gives"),
        (["sweep", "small.toml", "--set", "sweep.ovr=1"], "did you mean 'over'?"),
        (["sweep", "small.toml", "--set", "sweep.top=0"], "top is 0: it must be a whole number, at least 1"),
        (["sweep", "small.toml", "--set", "sweep.zip=1"], "zip is 1: it must be true or false"),
        (
            ["sweep", "small.toml", "--set", "sweep.over.algorithm.mu='geomspac(1, 2, 3)'"],
            "[sweep.over]: algorithm.mu=",
        ),
        (["tune", "small.toml", "--over", "algorithm.mux"], "did you mean 'algorithm.mu'?"),
        (["tune", "small.toml", "--over", "algorithm.mu=interval(0, 0.1)"], "the start is outside"),
        (["tune", "small.toml", "--over", "algorithm.mu", "--rate", "-1"], "tune: --rate is -1"),
        (["tune", "small.toml", "--over", "algorithm.mu", "--rate", "0"], "tune: --rate is 0"),
        (["sweep", "small.toml", "--over", f"algorithm.mu=1,{'1' * 5001}"], "--over algorithm.mu=1,1111"),
        (["sweep", "small.toml", "--over", f"algorithm.mu=geomspace(1, 2, 0x{'1' * 5001})"], "of more than 300 digits"),
    ],
)
def test_how_they_fail_before_anything_runs(folder, capsys, monkeypatch, arguments, said):
    for command in (sweep_command, tune_command):
        monkeypatch.setattr(command, "_write", lambda *_: pytest.fail("something was run"))
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"fedjax-sim {arguments[0]}: ")
    assert said in err
    assert "wrote" not in out


@pytest.mark.parametrize("name", ["sweep", "tune"])
def test_one_command_a_folder(folder, capsys, monkeypatch, name):
    for command in (sweep_command, tune_command):
        monkeypatch.setattr(command, f"_{'result' if command is sweep_command else 'tuned'}",
                            lambda *_: pytest.fail("something was run"))  # fmt: skip
    over = "algorithm.mu=1,2" if name == "sweep" else "algorithm.mu"
    with Lock(folder / "out", "results", ".results.lock"):
        assert cli.main([name, "small.toml", "--over", over, "--out", "out"]) == 1
    assert "another run writes results to this directory (process" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["small.toml", "--over", "a=1", "--zip", "--random", "2"]])
def test_bad_usage(folder, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", *arguments])
    assert ended.value.code == 2
    assert "usage: fedjax-sim sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_whose_device_has_hours_to_go(folder):
    changes = ["run.rounds=100_000", "run.eval_every=1000", "work.num_steps=10_000", "run.checkpoint='stored'"]
    arguments = ["sweep", "small.toml", "--over", "algorithm.mu=1,2", *(f"--set={change}" for change in changes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE, *arguments], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "it computes\n"
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert [path.name for path in (folder / "stored").iterdir()] == ["sweep.json"]
    assert not (folder / "small-sweep").exists()


@pytest.mark.slow
def test_a_sweep_writes_its_points_and_the_best(folder, capsys):
    changes = ["--set", "run.on_divergence=stop", "--set", "run.checkpoint=chunks"]
    call = ["sweep", "small.toml", "--over", "algorithm.mu=0,1", "--over", f"{RATE}=0.01,0.1,1e30", *changes]
    assert cli.main(call) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for words in ("at each of 6 points", "without on_divergence", "diverged", "best by training loss: mu = 0"):
        assert words in said.out
    out = folder / "results" / "small-sweep"
    assert (out / "sweep.png").stat().st_size > 1000
    result = sweeps.Sweep.load(out / "sweep.npz")
    assert result.shape == (2, 3, 2)
    about = json.loads((out / "sweep.json").read_text())
    assert about["best"]["values"] == {"mu": 0.0, "client_optimizer.learning_rate": 0.1}
    assert [point["place"] for point in about["points"]].count(None) == 2
    assert about["points"][2]["final"]["loss"] == [None, None]
    # The best point's configuration is a run with its values, and gives its numbers
    best = read(out / "best.toml")
    assert float(best["algorithm"].mu) == 0.0
    np.testing.assert_allclose(fjs.simulate(**best).final("loss"), about["best"]["final"]["loss"], rtol=1e-5)
    # Again: nothing is left to run
    assert cli.main([*call, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["compile_seconds"] == 0.0
    assert again["points"] == about["points"]


@pytest.mark.slow
def test_a_list_of_points_where_all_diverge(folder, capsys):
    earlier = folder / "results" / "small-sweep" / "best.toml"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("rounds = 1")
    assert cli.main(["sweep", "small.toml", "--random", "3", "--over", f"{RATE}=log_uniform(1e28, 1e30)"]) == 0
    said = capsys.readouterr()
    assert "no best point; 3 of 3 points diverged" in said.out
    assert not earlier.exists()
    out = folder / "results" / "small-sweep"
    assert not (out / "best.toml").exists()
    assert json.loads((out / "sweep.json").read_text())["best"] is None


@pytest.mark.slow
def test_a_tuning_is_judged_on_other_seeds(folder, capsys):
    (folder / "small.toml").write_text(PROX.replace("dim = 2", "dim = 2\nscale = 1.0"))
    call = ["tune", "small.toml", "--over", RATE, "--steps", "4", "--other-seeds", "2"]
    assert cli.main(call) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "with the seeds 3, 4, which the tuning has not seen" in said.out
    out = folder / "results" / "small-tune"
    found = json.loads((out / "tuning.json").read_text())["best"]
    tuned, start = read(out / "tuned.toml"), read(out / "start.toml")
    assert start["algorithm"] == read("small.toml")["algorithm"]
    rate = float(tuned["algorithm"].client_optimizer.learning_rate)
    np.testing.assert_allclose(rate, found["found"]["client_optimizer.learning_rate"], rtol=1e-6)
    assert rate != 0.1
    assert fjs.History.load(out / "tuned.npz").seeds == [3, 4]
    assert (out / "tuning.png").stat().st_size > 1000


def test_arguments_that_a_sweep_does_not_take_are_named_if_they_matter():
    given = {"rounds": 2, "stop": fjs.stopping.converged(1e-3), "on_divergence": "record", "keep": 2}
    given |= {"divergence_factor": FACTOR}
    assert taken_by(sweeps.sweep, given) == ({"rounds": 2}, ["stop"])
