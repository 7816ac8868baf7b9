"""MLflow."""

from __future__ import annotations

import os
from typing import Any

from fedjax_sim.run.callbacks import Callback, Reported, Started
from fedjax_sim.run.history import History
from fedjax_sim.run.trackers.scalars import configuration, needed, scalars

_PARAMETERS = 100  # in one request, as MLflow allows


class MLflow(Callback):
    """See :func:`mlflow`."""

    def __init__(
        self, experiment: str, name: str | None, tracking_uri: str | os.PathLike[str] | None, *, each_seed: bool
    ) -> None:
        module = needed("mlflow", "mlflow-skinny (or mlflow)", "mlflow")
        # A client of its own: the process's active run and tracking address are the user's.
        self._client: Any = module.tracking.MlflowClient(None if tracking_uri is None else str(tracking_uri))
        self._entities: Any = module.entities
        self._experiment, self._name, self._each_seed = experiment, name, each_seed
        self._seeds: list[int] = []
        self._run: str | None = None

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        known = self._client.get_experiment_by_name(self._experiment)
        where = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        self._run = self._client.create_run(where, run_name=self._name).info.run_id
        given = configuration(started.description) | {"seeds": str(started.seeds), "rounds": started.rounds}
        parameters = [self._entities.Param(key, str(value)[:500]) for key, value in given.items()]
        for at in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._run, params=parameters[at : at + _PARAMETERS])

    def report(self, reported: Reported) -> None:
        import time

        now = int(1000 * time.time())
        numbers = scalars(reported, self._seeds, each_seed=self._each_seed)
        metrics = [self._entities.Metric(name, value, now, reported.round) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, history: History | None) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FAILED" if history is None else "FINISHED")


def mlflow(
    experiment: str,
    name: str | None = None,
    *,
    tracking_uri: str | os.PathLike[str] | None = None,
    each_seed: bool = False,
) -> MLflow:
    """Logs to MLflow: scalars with the round as step, and the configuration as parameters.

    Args:
      experiment: made if it is not there.
      name: of the run; None lets MLflow choose.
      tracking_uri: where: ``"sqlite:///runs.db"``, an address; None for MLflow's own setting.
      each_seed: also every seed's own numbers, beside mean and standard deviation.

    Raises:
      ImportError: MLflow is not installed.
    """
    return MLflow(experiment, name, tracking_uri, each_seed=each_seed)
