"""Runs with parts of one's own: resumed in a new process, refused once edited, verified with the parts given."""

import dataclasses
import linecache
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import flax.linen as nn, numpy as np, optax
import fedjax_sim as fjs

class Net(nn.Module):
    width: int = 3
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(self.width)(x)))

def train(rounds, allow_opaque=False):
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    data = fjs.datasets.from_ids((x, np.arange(6) % 3), ids=np.arange(6) % 2)
    return fjs.simulate(
        fjs.fedavg(client_optimizer=optax.sgd(0.1)), data, task=fjs.classification(Net()), rounds=rounds,
        cohort=fjs.cohort.full(), work=fjs.local.steps(1), batches=fjs.local.full_batch(), checkpoint="kept",
        allow_opaque=allow_opaque, progress=False,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", ["this one", pytest.param("a new one", marks=pytest.mark.slow)])
def test_a_run_goes_on_in_a_new_process_until_its_model_is_edited(
    process: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "mine.py"

    def edited(before: str = "", after: str = "") -> Any:
        """The module anew, as a process that begins now has it."""
        script.write_text(SCRIPT.replace(before, after))
        linecache.clearcache()
        module = types.ModuleType("mine")
        module.__file__ = str(script)
        monkeypatch.setitem(sys.modules, "mine", module)
        exec(compile(script.read_text(), module.__file__, "exec"), vars(module))
        return module

    edited().train(2)
    if process == "this one":
        assert edited().train(3).evaluated.tolist() == [0, 1, 2, 3]
    else:
        longer = subprocess.run(
            [sys.executable, "-c", "import mine; print(mine.train(3).evaluated.tolist())"],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert longer.stdout.startswith("[0, 1, 2, 3]"), longer.stderr
    another = edited("nn.relu", "nn.tanh")
    told = "run.task.model: the source of mine.Net.__call__ now differs from that in the checkpoint"
    with pytest.raises(
        ValueError, match=rf"(?s){re.escape(told)}.*another directory, or allow_opaque=True if you have"
    ):
        another.train(4)
    another.train(4, allow_opaque=True)
    with pytest.raises(ValueError, match=r"run.task.model.width: 3 in the checkpoint, 4 now"):
        edited("width: int = 3", "width: int = 4").train(5, allow_opaque=True)


class Net(nn.Module):
    """A model of one's own."""

    width: int = 3
    note: Any = None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.relu(nn.Dense(self.width)(x)))


def score(params: Any, dataset: Any) -> dict[str, Any]:
    return {"score": jnp.float32(2.0)}


X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
DATA = fjs.datasets.from_ids((X, np.arange(6) % 3), ids=np.arange(6) % 2)
PARTS = {
    "algorithm.client_optimizer": optax.sgd(0.1), "dataset": DATA, "run.task.model": Net(), "run.evaluate": score,
}  # fmt: skip


@pytest.fixture(scope="module")
def history() -> fjs.History:
    return fjs.simulate(
        fjs.fedavg(client_optimizer=optax.sgd(0.1)), DATA, task=fjs.classification(Net()), rounds=1, evaluate=score,
        cohort=fjs.cohort.full(), work=fjs.local.steps(1), batches=fjs.local.full_batch(),
    )  # fmt: skip


def test_a_result_is_verified_with_the_parts_given(history: fjs.History) -> None:
    assert fjs.verify(history, parts=PARTS).passed
    whole = {
        "algorithm": fjs.fedavg(client_optimizer=optax.sgd(0.1)), "run.task": fjs.classification(Net()),
        "dataset": DATA, "run.evaluate": score,
    }  # fmt: skip
    assert fjs.verify(history, parts=whole).passed


def test_parts_that_are_missing_are_named(history: fjs.History) -> None:
    with pytest.raises(ValueError, match=r"run.task.model: \S+Net was given .* parts=\{'run.task.model': ...\}"):
        fjs.verify(history, parts={path: part for path, part in PARTS.items() if path != "run.task.model"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "part", "told"),
    [
        ("run.task.model", Net(4), "run.task.model.width: 3 in the result, 4 now"),
        ("run.task.model", nn.Dense(3), "Dense"),
        ("run.evaluate", lambda params, dataset: {"score": jnp.float32(2.0)}, "lambda"),
        ("algorithm.client_optimizer", optax.sgd(0.2), "algorithm.client_optimizer"),
    ],
)
def test_other_parts_are_refused_before_anything_runs(history: fjs.History, path: str, part: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"parts\['{path}'\] is not what the result was computed with: .*{told}"):
        fjs.verify(history, parts=PARTS | {path: part})


@pytest.mark.slow
def test_a_path_to_nothing_is_refused(history: fjs.History) -> None:
    with pytest.raises(ValueError, match=r"there is no part 'run.task.modl': did you mean 'model'"):
        fjs.verify(history, parts={"run.task.modl": Net()})


@pytest.mark.slow
def test_a_result_of_an_earlier_version_is_told_by_what_it_computes(history: fjs.History) -> None:
    about = history.description
    task = about["run"]["task"]
    older = {**task, "arguments": {**task["arguments"], "model": {"opaque": task["arguments"]["model"]["opaque"]}}}
    told = dataclasses.replace(history, description={**about, "run": {**about["run"], "task": older}})
    assert fjs.verify(told, parts=PARTS).passed
    assert not fjs.verify(told, parts=PARTS | {"run.task.model": Net(4)}).passed


def swept(model: Any, folder: pathlib.Path) -> Any:
    return fjs.sweep(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), DATA, fjs.sweeps.grid({"server_learning_rate": [0.5]}),
        task=fjs.classification(model), rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1),
        batches=fjs.local.full_batch(), resume=folder,
    )  # fmt: skip


def searched(model: Any, folder: pathlib.Path) -> Any:
    return fjs.search(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), DATA, fjs.sweeps.grid({"server_learning_rate": [0.5, 1.0]}),
        fjs.hyper.halving(rungs=1), objective=fjs.hyper.final("loss"), task=fjs.classification(model), rounds=1,
        cohort=fjs.cohort.full(), work=fjs.local.steps(1), batches=fjs.local.full_batch(), checkpoint=folder,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "name"), [(swept, "sweep"), pytest.param(searched, "search", marks=pytest.mark.slow)]
)
def test_stored_studies_know_their_parts(study: Any, name: str, tmp_path: pathlib.Path) -> None:
    study(Net(3), tmp_path)
    with pytest.raises(ValueError, match=rf"another {name} \(run.task.model.width: 3 (there|in the checkpoint), 4 "):
        study(Net(4), tmp_path)
    with pytest.raises(
        ValueError, match=rf"a {name} .* must be known by its description, .*run.task.model: .*Net, as "
    ):
        study(Net(note=threading.Lock()), tmp_path / "new")
