"""Models, tasks, methods, data sets and evaluations of one's own on the command line: module:object."""

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.run.configuration import read

MINE = """
import os
from os import system
import flax.linen as nn, jax.numpy as jnp, numpy as np
import fedjax_sim as fjs

class Net(nn.Module):
    width: int = 4
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(self.width)(x)))

def data(clients=2):
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    return fjs.datasets.from_ids((x, np.arange(6) % 3), ids=np.arange(6) % clients)

class Mine(type(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)))):
    pass

def task(width=3):
    return fjs.classification(Net(width))

fixed = task(2)

def score(params, dataset):
    return {"score": jnp.float32(2.0)}
"""
CONFIGURATION = """
cohort = "full"
dataset = "mine:data"
evaluate = "mine:score"
algorithm = { name = "mine:Mine", client_optimizer = { name = "optim.sgd", learning_rate = 0.05 } }
work = { name = "steps", num_steps = 1 }
batches = "full_batch"
[task]
name = "classification"
model = { name = "mine:Net", width = 5 }
[run]
rounds = 1
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "run.toml").write_text(CONFIGURATION)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_every_kind_is_taken(folder: pathlib.Path) -> None:
    given = read("run.toml")
    mine = sys.modules["mine"]
    assert isinstance(given["algorithm"], mine.Mine)
    assert given["task"] == fjs.classification(mine.Net(5))
    assert isinstance(given["dataset"], fjs.FederatedDataset)
    assert given["evaluate"] is mine.score
    assert read("run.toml", ["task='mine:task'"])["task"] == mine.task()
    assert read("run.toml", ["task={name='mine:task', width=7}"])["task"] == mine.task(7)
    assert read("run.toml", ["task='mine:fixed'"])["task"] is mine.fixed
    assert read("run.toml", ["task.model='mine:Net'"])["task"].model == mine.Net()
    assert read("run.toml", ["dataset={name='mine:data', clients=3}"])["dataset"].num_clients == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("task.model='mine:Nett'", r"\[task.model\].*mine.py has no Nett: did you mean 'Net'\? known: "),
        ("task.model='nowhere:Net'", r"there is no nowhere.py and no folder nowhere in "),
        ("task.model='mine.py:Net'", "a module is named without .py, mine:Net"),
        ("task.model='mine.inner:Net'", "cannot be imported: No module named 'mine.inner'"),
        ("task.model='os:system'", "os:system is of python"),
        ("task.model='mine:system'", "is not of .*mine.py but imported there"),
        ("task.model='mine:os'", "is not of .*mine.py but imported there"),
        ("task.model='mine:os.system'", "is no module:object"),
        ("task.model='optax:adam'", "is of optax"),
        ("task.model='fedjax_sim:fedavg'", "is of fedjax_sim"),
        ("task.model.wdth=3", "mine:Net has no argument 'wdth'.*did you mean 'width'"),
        ("task='mine:Net'", "it must be a task, a class of them or a function that makes one"),
        ("task='mine:data'", "mine:data has made .*it must make a task"),
        ("task={name='mine:fixed', width=3}", "mine:fixed has no argument 'width'"),
        ("work='mine:task'", "stands where no object of your own can"),
        ("algorithm.client_optimizer={name='mine:Net'}", "stands where no object of your own can"),
    ],
)
def test_what_is_refused_before_anything_runs(folder: pathlib.Path, change: str, told: str) -> None:
    with pytest.raises(fjs.configuration.ConfigurationError, match=told):
        read("run.toml", [change])


@pytest.mark.slow
def test_a_run_is_written_again_and_verified_with_its_configuration(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verified(*more: str) -> tuple[int, Any]:
        return cli.main(["verify", "results/run/history.npz", *more]), capsys.readouterr()

    assert cli.main(["run", "run.toml"]) == 0
    assert "Mine on FederatedDataset" in capsys.readouterr().out
    again = read("results/run/configuration.toml")
    assert (again["task"], again["evaluate"].__name__) == (read("run.toml")["task"], "score")
    status, said = verified()
    assert (status, sys.modules.pop("mine") is None) == (1, False)
    assert "imported only if you say so: --configuration results/run/configuration.toml" in said.err
    assert "mine" not in sys.modules
    status, said = verified("--configuration", "results/run/configuration.toml")
    assert (status, said.out.splitlines()[-1]) == (0, "verified (to the last bit)")
    (folder / "mine.py").write_text(MINE.replace("nn.relu", "nn.tanh"))
    del sys.modules["mine"]
    status, said = verified("--configuration", "results/run/configuration.toml")
    assert status == 1
    assert "run.task.model: the source of mine.Net.__call__ now differs from that in the result" in said.err
    assert cli.main(["report", "results/run", "--out", "page.html"]) == 0
    known = fjs.History.load("results/run/history.npz").description["run"]["task"]["arguments"]["model"]
    from fedjax_sim.core.sources import opaque_name

    assert opaque_name(known) in (folder / "page.html").read_text()


def test_other_values_inside_a_part_of_ones_own_are_refused(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = "algorithm.client_learning_rate"
    for command, over in (("sweep", f"{rate}=0.5,1"), ("tune", rate)):
        assert cli.main([command, "run.toml", "--over", over]) == 2
        assert "mine.Mine is a part of your own" in capsys.readouterr().err
    assert not (folder / "results" / "run-sweep" / "sweep.npz").exists()
