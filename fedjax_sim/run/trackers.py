"""Where curves go while a run goes on: TensorBoard, Weights & Biases, MLflow.

Each is a callback for ``simulate(callbacks=[...])`` and needs its own package, imported when it is made.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.reporting.recorded import of_finite_models
from fedjax_sim.run.callbacks import Callback, Reported, Started
from fedjax_sim.run.history import History

_PARAMETERS = 100  # in one request, as MLflow allows


def scalars(reported: Reported, seeds: list[int], *, each_seed: bool = False) -> dict[str, float]:
    """All that is one number a seed: means over the seeds, and with several seeds ``..._std``.

    That is of a sample, divided by seeds - 1, as tables print it.

    Records of rounds are means over the rounds since the last evaluation, under ``rounds/``, of the seeds that had not
    stopped before. Arrays (accuracies by client, matrices) are left out. With ``each_seed`` also every seed's own
    number, ``..._seed_3``. As in tables, the metrics of a model whose loss is not finite are NaN.

    Example:
      >>> import numpy as np
      >>> scalars(Reported(2, {"loss": np.array([1.0, 3.0])}, {"cohort_size": np.array([[4, 4], [4, 4]])}), [0, 1])
      {'loss': 2.0, 'loss_std': 1.4142135623730951, 'rounds/cohort_size': 4.0, 'rounds/cohort_size_std': 0.0}
    """
    running = np.ones(len(seeds), bool) if reported.running is None else reported.running
    left = [seed for seed, runs in zip(seeds, running, strict=True) if runs]
    metrics = {name: values[:, None] for name, values in reported.metrics.items()}
    found = {
        name: (of_finite_models(values, name, metrics)[:, 0], seeds)
        for name, values in metrics.items()
        if values.ndim == 2
    }
    for name, values in reported.rounds.items():
        if values.ndim == 2 and left:
            found[f"rounds/{name}"] = values[running].mean(axis=1), left
    means = {name: float(values.mean()) for name, (values, _) in found.items()}
    numbers: dict[str, float] = {}
    for name, (values, own) in found.items():
        numbers[name] = means[name]
        if len(own) > 1:
            numbers[f"{name}_std"] = float(values.std(ddof=1))
        if len(seeds) > 1 and each_seed:
            numbers |= {f"{name}_seed_{seed}": float(value) for seed, value in zip(own, values, strict=True)}
    return numbers | means  # a metric may be called as the deviation of another is


def configuration(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """A description's arguments under dotted names: ``algorithm.client_optimizer.learning_rate``.

    Lists, arrays and what is None are JSON text.

    >>> configuration({"algorithm": {"name": "algorithm.fedavg", "arguments": {"server_learning_rate": 1.0}}})
    {'algorithm': 'algorithm.fedavg', 'algorithm.server_learning_rate': 1.0}
    """
    found: dict[str, str | int | float | bool] = {}

    def put(name: str, value: Any) -> None:
        inner = value
        if isinstance(value, Mapping) and isinstance(value.get("name"), str) and "arguments" in value:
            found[name], inner = value["name"], value["arguments"]
        elif not isinstance(value, Mapping) or not value:
            found[name], inner = value if isinstance(value, (str, int, float, bool)) else json.dumps(value), {}
        for key, one in inner.items():
            put(f"{name}.{key}", one)

    for key, value in description.items():
        put(key, value)
    return found


class _Tracker(Callback):
    def __init__(self, module: str, package: str, *, each_seed: bool) -> None:
        try:
            self._module: Any = importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"this tracker needs {package}: pip install 'fedjax_sim[trackers]' (or {package} alone)"
            ) from error
        self._each_seed = each_seed
        self._seeds: list[int] = []
        self._run: Any = None  # what the library has made for this run

    def _given(self, started: Started) -> dict[str, Any]:
        return configuration(started.description) | {"seeds": started.seeds, "rounds": started.rounds}

    def _numbers(self, reported: Reported) -> dict[str, float]:
        return scalars(reported, self._seeds, each_seed=self._each_seed)


class tensorboard(_Tracker):
    """Writes TensorBoard's event files: scalars against the round, and the configuration as text.

    Args:
      directory: of the run; ``tensorboard --logdir`` its parent compares runs.
      each_seed: also a curve for every seed, beside mean and standard deviation.

    Raises:
      ImportError: tensorboardX, which writes its files without TensorFlow, is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, each_seed: bool = False) -> None:
        super().__init__("tensorboardX", "tensorboardX", each_seed=each_seed)
        self._directory = os.fspath(directory)

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        # Points of a run that is resumed, or begun anew, take the place of older ones from where it goes on.
        purge = started.finished + 1 if started.finished else 0
        # The package names its file by the second, and writes over one of that name.
        suffix = f".{time.time_ns()}"
        self._run = self._module.SummaryWriter(self._directory, purge_step=purge, filename_suffix=suffix)
        written = json.dumps(started.description, indent=2, default=str)
        self._run.add_text("configuration", "\n".join(f"    {line}" for line in written.splitlines()))

    def report(self, reported: Reported) -> None:
        for name, value in self._numbers(reported).items():
            self._run.add_scalar(name, value, reported.round)
        self._run.flush()

    def end(self, history: History | None) -> None:
        if self._run is not None:
            self._run.close()


class wandb(_Tracker):
    """Logs to Weights & Biases: scalars against ``round``, and the configuration.

    Args:
      each_seed: also every seed's own numbers, beside mean and standard deviation.
      **arguments: of ``wandb.init``: ``project="fl"``, ``name="fedavg"``, ``mode="offline"``, ``dir="runs"``.

    Raises:
      ImportError: wandb is not installed.
    """

    def __init__(self, *, each_seed: bool = False, **arguments: Any) -> None:
        super().__init__("wandb", "wandb", each_seed=each_seed)
        self._arguments = arguments

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        config = self._given(started) | dict(self._arguments.get("config") or {})
        self._run = self._module.init(**{**self._arguments, "config": config})
        self._run.define_metric("round", hidden=True)
        self._run.define_metric("*", step_metric="round")

    def report(self, reported: Reported) -> None:
        self._run.log({"round": reported.round, **self._numbers(reported)})

    def end(self, history: History | None) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(history is None))


class mlflow(_Tracker):
    """Logs to MLflow: scalars with the round as step, and the configuration as parameters.

    Args:
      experiment: made if it is not there.
      name: of the run; None lets MLflow choose.
      tracking_uri: where: ``"sqlite:///runs.db"``, an address; None for MLflow's own setting.
      each_seed: also every seed's own numbers, beside mean and standard deviation.

    Raises:
      ImportError: MLflow is not installed.
    """

    def __init__(
        self,
        experiment: str,
        name: str | None = None,
        *,
        tracking_uri: str | os.PathLike[str] | None = None,
        each_seed: bool = False,
    ) -> None:
        super().__init__("mlflow", "mlflow-skinny (or mlflow)", each_seed=each_seed)
        # A client of its own: the process's active run and tracking address are the user's.
        self._client = self._module.tracking.MlflowClient(None if tracking_uri is None else str(tracking_uri))
        self._experiment, self._name = experiment, name

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        known = self._client.get_experiment_by_name(self._experiment)
        where = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        self._run = self._client.create_run(where, run_name=self._name).info.run_id
        given = [self._module.entities.Param(key, str(value)[:500]) for key, value in self._given(started).items()]
        for at in range(0, len(given), _PARAMETERS):
            self._client.log_batch(self._run, params=given[at : at + _PARAMETERS])

    def report(self, reported: Reported) -> None:
        now, metric = int(1000 * time.time()), self._module.entities.Metric
        metrics = [metric(name, value, now, reported.round) for name, value in self._numbers(reported).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, history: History | None) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FAILED" if history is None else "FINISHED")
