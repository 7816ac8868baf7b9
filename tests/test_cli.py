"""The command line: what stops it, and what it does then."""

import signal

import numpy as np
import pytest

from fedjax_sim import cli
from fedjax_sim.checkpoints import Interrupted
from fedjax_sim.experiments import demo


def test_the_exit_status_says_which_signal(monkeypatch, capsys):
    def stopped(*args, **kwargs):
        raise Interrupted(signal.SIGTERM, 20, 100, "runs/round-00000020.safetensors")

    monkeypatch.setattr(demo, "run_demo", stopped)
    assert cli.main(["demo"]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after round 20 of 100" in capsys.readouterr().err

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", interrupted)
    assert cli.main(["demo"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "fedjax-sim demo: stopped\n"


@pytest.mark.parametrize(("arguments", "near"), [(["comparee"], "compare"), (["data", "descripe", "x"], "describe")])
def test_a_command_that_is_none(arguments, near, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert f"did you mean {near!r}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "a.toml", "--set", "algorithm.mu", "0.2"], "write --set algorithm.mu=0.2, in one word"),
        (["run", "a.toml", "--rounds", "10"], "changed by --set run.rounds=10"),
        (["run", "a.toml", "--batch-size=5"], "changed by --set run.batch_size="),
        (["sweep", "a.toml", "--over", "a=1", "--mu", "3"], "changed by --set TABLE.mu=3"),
        (["show", "a.npz", "--quiet"], "unrecognized arguments: --quiet"),
    ],
)
def test_changes_that_are_options(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_what_comes_after_the_demo(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: {})
    assert cli.main(["demo", "--out", "my results"]) == 0
    assert "fedjax-sim report 'my results'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_demo_with_checkpoints_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    name = "synthetic(1, 1)"
    data, methods, settings = demo.problems()[name]
    monkeypatch.setattr(demo, "problems", lambda: {name: (data, {"FedAvg": methods["FedAvg"]}, settings)})
    options = ["--seeds", "1", "--checkpoint", str(tmp_path / "runs")]
    assert cli.main(["demo", "--out", str(tmp_path / "short"), "--rounds", "2", *options]) == 0
    assert cli.main(["demo", "--out", str(tmp_path / "long"), "--rounds", "4", *options]) == 0
    assert cli.main(["demo", "--out", str(tmp_path / "whole"), "--rounds", "4", "--seeds", "1"]) == 0
    stem = "synthetic-fedavg"
    assert (tmp_path / "runs" / stem / "round-00000004.safetensors").exists()
    resumed, whole = (np.load(tmp_path / folder / f"{stem}.npz") for folder in ("long", "whole"))
    np.testing.assert_array_equal(resumed["metrics/loss"], whole["metrics/loss"])
    assert "FedAvg" in capsys.readouterr().out
