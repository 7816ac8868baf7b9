"""Numbers by name out of a report and a configuration, the same for every tracker."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fedjax_sim.run.callbacks import Reported


def scalars(reported: Reported, seeds: list[int], *, each_seed: bool = False) -> dict[str, float]:
    """All that is one number a seed: means over the seeds, and with several seeds ``..._std``.

    Records of rounds are means over the rounds since the last evaluation, under ``rounds/``. Arrays (accuracies by
    client, matrices) are left out.

    Args:
      reported: the report.
      seeds: one number a run.
      each_seed: also every seed's own number, ``..._seed_3``.

    Example:
      >>> import numpy as np
      >>> scalars(Reported(2, {"loss": np.array([1.0, 3.0])}, {"cohort_size": np.array([[4, 4], [4, 4]])}), [0, 1])
      {'loss': 2.0, 'loss_std': 1.0, 'rounds/cohort_size': 4.0, 'rounds/cohort_size_std': 0.0}
    """
    found = {name: values for name, values in reported.metrics.items() if values.ndim == 1}
    for name, values in reported.rounds.items():
        if values.ndim == 2:
            found[f"rounds/{name}"] = values.mean(axis=1)
    means = {name: float(values.mean()) for name, values in found.items()}
    numbers: dict[str, float] = {}
    for name, values in found.items():
        more = {name: means[name]}
        if len(seeds) > 1:
            more[f"{name}_std"] = float(values.std())
            if each_seed:
                more |= {f"{name}_seed_{seed}": float(value) for seed, value in zip(seeds, values, strict=True)}
        numbers |= more
    return numbers | means  # a metric may be called as the deviation of another is


def configuration(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """A description's arguments under dotted names: ``algorithm.client_optimizer.learning_rate``.

    Lists, arrays and what is None are JSON text.

    Example:
      >>> configuration({"algorithm": {"name": "algorithm.fedavg", "arguments": {"server_learning_rate": 1.0}}})
      {'algorithm': 'algorithm.fedavg', 'algorithm.server_learning_rate': 1.0}
    """
    found: dict[str, str | int | float | bool] = {}

    def put(name: str, value: Any) -> None:
        if isinstance(value, Mapping) and isinstance(value.get("name"), str) and "arguments" in value:
            found[name] = value["name"]
            for key, inner in value["arguments"].items():
                put(f"{name}.{key}", inner)
        elif isinstance(value, Mapping) and value:
            for key, inner in value.items():
                put(f"{name}.{key}", inner)
        else:
            found[name] = value if isinstance(value, (str, int, float, bool)) else json.dumps(value)

    for key, value in description.items():
        put(key, value)
    return found


def needed(module: str, package: str, what: str) -> ModuleType:
    """The module of an extra.

    Raises:
      ImportError: it is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"fedjax_sim.trackers.{what} needs {package}: pip install 'fedjax_sim[trackers]' (or {package} alone)"
        ) from error
