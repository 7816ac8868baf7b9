"""What the studies share: their command line, their files, and values of an objective at given hyper-parameters."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim import paths
from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.plots import save_figure

RESULTS = pathlib.Path(__file__).parent / "results"


class Study(NamedTuple):
    """One study.

    Attributes:
      name: of its files.
      about: its first lines of help.
      run: ``run(size) -> result``, plain data; size is "smoke" (seconds) or "cpu" (the committed figures).
      lines: what to print of a result.
      plot: a figure of a result.
    """

    name: str
    about: str
    run: Callable[[str], dict[str, Any]]
    lines: Callable[[dict[str, Any]], list[str]]
    plot: Callable[[dict[str, Any]], Any]

    def main(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Runs the study, prints it and writes ``NAME.json`` and ``NAME.png``, of smoke with ``--out`` alone."""
        parser = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--size", choices=["smoke", "cpu"], default="cpu")
        options = with_folder(parser, arguments)
        started = time.perf_counter()
        result = self.run(options.size)
        result["seconds"] = round(time.perf_counter() - started, 1)
        result["environment"] = {
            "size": options.size,
            "jax": jax.__version__,
            "device": str(jax.devices()[0]),
            "cores": os.cpu_count(),
        }
        for line in [*self.lines(result), f"{result['seconds']} s with compilation, jax {jax.__version__}"]:
            print(line)
        if options.out is not None:
            write_atomically(options.out / f"{self.name}.json", json.dumps(rounded(result), indent=1).encode())
            save_figure(self.plot(result), options.out / f"{self.name}.png")
        return result


def with_folder(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, ``out`` among them: committed figures are of the size cpu, others go nowhere by default."""
    parser.add_argument("--out", type=pathlib.Path, help="the folder of its files; of sizes but cpu there are none")
    options = parser.parse_args(arguments)
    if options.size == "cpu" and options.out is None:
        options.out = RESULTS
    return options


def rounded(value: Any) -> Any:
    """Plain data with floats of ten significant digits; not finite ones become None."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.10g}") if np.isfinite(value) else None
    return value


def at_points(
    algorithm: Any,
    data: fjs.FederatedDataset,
    points: Sequence[dict[str, float]],
    objectives: Sequence[Callable[[Any], jax.Array]],
    seeds: Sequence[int],
    run: dict[str, Any],
) -> tuple[np.ndarray, float]:
    """Objectives of forward runs at hyper-parameters, one program for all.

    Returns:
      float[points, objectives, seeds], and the seconds without compilation.
    """
    stacked = {path: jnp.asarray([point[path] for point in points]) for path in points[0]}
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))

    @jax.jit
    def program(algorithm: Any, data: Any, stacked: dict[str, jax.Array], keys: jax.Array) -> jax.Array:
        def one(values: dict[str, jax.Array], key: jax.Array) -> jax.Array:
            result = fjs.make_train(**run)(paths.replace(algorithm, values), data, key)
            return jnp.stack([objective(result) for objective in objectives])

        return jax.lax.map(lambda values: jax.lax.map(lambda key: one(values, key), keys), stacked)

    compiled = program.lower(algorithm, data, stacked, keys).compile()
    started = time.perf_counter()
    found = np.asarray(compiled(algorithm, data, stacked, keys))
    return found.swapaxes(1, 2), time.perf_counter() - started


def validation_and_test(data: fjs.FederatedDataset) -> tuple[fjs.FederatedDataset, fjs.FederatedDataset]:
    """The same training data twice: with the first half of every client's test examples, and with the second."""
    clients = [data.client(i) for i in range(data.num_clients)]
    halves: tuple[list[Any], list[Any]] = ([], [])
    for i in range(data.num_clients):
        examples = data.test.client(i)
        half = len(examples["y"]) // 2
        halves[0].append({name: leaf[:half] for name, leaf in examples.items()})
        halves[1].append({name: leaf[half:] for name, leaf in examples.items()})
    ids = np.asarray(data.client_ids)
    first, second = (
        fjs.datasets.from_clients(clients, test=half, client_ids=ids, num_classes=data.num_classes) for half in halves
    )
    return first, second
