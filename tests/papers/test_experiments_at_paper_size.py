"""The experiments at the papers' own size: all is made and traced, nothing is computed; and the papers' models."""

from __future__ import annotations

import inspect
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.papers import bench, catalogue, reproducing
from fedjax_sim.papers.benchmarks import pfllib
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps.result import Sweep

pytest.importorskip("matplotlib")

OF_MAKE_TRAIN = set(inspect.signature(fjs.make_train).parameters)


def traced(algorithm: Any, dataset: Any, seeds: int, setting: dict[str, Any]) -> History:
    """What ``simulate`` would return, in names and shapes: the run is traced as a whole, its numbers are made up."""
    train = fjs.make_train(**{name: value for name, value in setting.items() if name in OF_MAKE_TRAIN})
    start = setting.get("initial_params")
    shapes = jax.eval_shape(lambda: train(algorithm, dataset, jax.random.key(0), initial_params=start))
    rounds, every = setting["rounds"], setting.get("eval_every", 1)
    draws = np.random.default_rng(0)

    def filled(records: Any) -> Any:
        return jax.tree.map(
            lambda shape: draws.uniform(0.1, 0.9, (seeds, *shape.shape)).astype(shape.dtype), records
        )  # fmt: skip

    evaluated = np.unique([*range(0, rounds + 1, every), rounds])
    metrics = {name: shape for name, shape in shapes.metrics.items() if name != "round"}
    about = {"algorithm": fjs.describe(algorithm), "run": {name: fjs.describe(part) for name, part in setting.items()}}
    return History(
        evaluated, filled(metrics), filled(shapes.rounds), filled(shapes.params), list(range(seeds)), 1.0, 1.0, about
    )


class Dry(bench.Bench):
    """A bench that computes nothing."""

    def simulate(self, label: str, algorithm: Any, dataset: Any, **setting: Any) -> History:
        setting, _ = self._checked(dataset, setting)
        history = traced(algorithm, dataset, len(list(setting.pop("seeds"))), setting)
        return self._record(label, history)

    def sweep(self, label: str, algorithm: Any, dataset: Any, space: Any, **setting: Any) -> Sweep:
        setting, _ = self._checked(dataset, setting)
        seeds = list(setting.pop("seeds"))
        history = traced(algorithm, dataset, len(seeds) * space.num_points, setting)
        return self._record(label, Sweep(history, space, seeds))


@pytest.mark.nightly
@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_the_paper_size_is_made_and_traced(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducing, "Bench", Dry)
    try:
        report = reproducing.reproduce(name, size="paper", out=tmp_path)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert report.claims or report.see  # of figures with the same runs one has the claims
    assert report.settings


MODELS = {
    "VGG-11 (FedNova)": (fjs.models.VGG11(10, hidden=(), dropout=0.0), (32, 32, 3)),
    "five-layer CNN (FedAWARE)": (fjs.models.CifarCNN(10), (32, 32, 3)),
    "LeNet (NIID-Bench)": (fjs.models.LeNet(10), (28, 28, 1)),
    "CNN (PFLlib)": (fjs.models.LeNet(10, **pfllib.NETWORK), (28, 28, 1)),
    "ResNet-18 (FedAWARE)": (fjs.models.ResNet18(100), (32, 32, 3)),
    "char LSTM (FedProx)": (fjs.models.CharLSTM(80), 80),
    "sentiment LSTM (FedProx)": (fjs.models.SentimentLSTM(2), (25, 300)),
    "Pythia-70M (FedAWARE)": (fjs.models.GPTNeoXClassifier(4), 16),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_the_papers_models(name: str) -> None:
    """The smoke sizes have an MLP in their place: here each takes one local step, which moves it and stays finite."""
    model, shape = MODELS[name]
    draws = np.random.default_rng(0)
    x = (
        draws.integers(0, 80, (2, shape))
        if isinstance(shape, int)
        else draws.normal(size=(2, *shape)).astype(np.float32)
    )
    data = fjs.datasets.from_clients([(x, np.array([0, 1]))])
    history = fjs.simulate(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01)), data, task=fjs.classification(model), rounds=1,
        cohort=fjs.cohort.full(), work=fjs.local.steps(1), batch_size=2,
    )  # fmt: skip
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][0, 0] != history["loss"][0, 1]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(history.params))
