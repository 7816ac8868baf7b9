"""Both sides of docs/coming-from.md on one problem: do the averaged models agree to round-off?

    python -m benchmarks.migration [--only fedjax,flower] [--environments DIR] [--markdown docs/coming-from.md]

Ours is the page's Python code, run here. Theirs are the files from_NAME.py, each in a virtual environment with pinned
versions, made once; FedJAX, Flower and pfl share those of benchmarks/speed/peers. Exit code 1 if somebody's model
differs by more than round-off; who cannot be installed or fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.speed.peers import contract, environments

HERE, PAGE = pathlib.Path(__file__).parent, pathlib.Path(__file__).parents[2] / "docs" / "coming-from.md"
ROUND_OFF = 1e-5  # of the way that training went, in float32
LIMIT = 600  # seconds for a script


class Source(NamedTuple):
    """A simulator to come from.

    Attributes:
      environment: name of its environment's folder.
      peer: its pinned versions.
      bare: what is installed after these without its dependencies.
    """

    environment: str
    peer: contract.Peer
    bare: tuple[str, ...] = ()


SOURCES = {
    "fedjax": Source("fedjax", contract.describe("fedjax")),
    "flower": Source("flwr", contract.describe("flwr")),
    "pfl": Source("pfl", contract.describe("pfl")),
    # What it declares, but for jaxlib 0.4.14: the package index has that no more, for no Python. Nothing here uses JAX.
    "tff": Source(
        "tff",
        contract.Peer(
            title="TensorFlow Federated",
            requirements=(
                "tensorflow==2.14.1", "jax==0.4.18", "jaxlib==0.4.18", "absl-py~=1.0", "attrs~=23.1", "cachetools~=5.3",
                "dm-tree==0.1.8", "dp-accounting==0.4.3", "google-vizier==0.1.11", "googleapis-common-protos==1.61.0",
                "grpcio==1.74.0", "ml-dtypes==0.2.0", "numpy~=1.25", "portpicker~=1.6", "scipy~=1.9.3",
                "tensorflow-model-optimization==0.7.5", "tensorflow-privacy==0.9.0", "tqdm~=4.64",
                "typing-extensions==4.5.0",
            ),
            configuration="build_weighted_fed_avg on its default executors",
            python="3.10",
            versions=("tensorflow-federated", "tensorflow"),
        ),
        bare=("tensorflow-federated==0.87.0",),
    ),
}  # fmt: skip


def ours() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Runs the page's Python code.

    Returns:
      The problem as arrays; and what our side found, as the scripts write it.
    """
    scope: dict[str, Any] = {"__name__": "coming_from"}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8")):
        exec(compile(block, str(PAGE), "exec"), scope)
    problem: dict[str, np.ndarray] = {"clients": np.int64(len(scope["clients"]))}
    for prefix, parts in (("", scope["clients"]), ("test_", scope["held_out"])):
        for c, (x, y) in enumerate(parts):
            problem |= {f"{prefix}x{c}": x, f"{prefix}y{c}": y}
    found: dict[str, Any] = {}
    for prefix, history in (("", scope["history"]), ("short_", scope["short"])):
        bias, kernel = jax.tree.leaves(jax.tree.map(lambda leaf: leaf[0], history.params))
        found |= {f"{prefix}kernel": kernel, f"{prefix}bias": bias}
    return problem, found | {"accuracy": scope["history"]["test_accuracy"][0, -1]}


def theirs(name: str, problem: pathlib.Path, directory: pathlib.Path) -> dict[str, Any]:
    """Runs ``from_NAME.py`` in its environment.

    Returns:
      What it wrote, and "versions": of the package, and of the framework under it.

    Raises:
      EnvironmentFailed: the environment could not be made, or the script failed.
    """
    environment, peer, bare = SOURCES[name]
    python = environments.ensure(environment, peer, directory)
    out = problem.with_name(f"{name}.npz")
    asked = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]))"
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX_", "XLA_"))}
    alone |= {"CUDA_VISIBLE_DEVICES": "", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    commands = [[HERE / f"from_{name}.py", problem, out], ["-c", asked, *peer.versions]]
    if bare:
        commands.insert(0, ["-m", "pip", "install", "-q", "--no-deps", *bare])
    log, said = problem.with_name("log"), ""
    for command in commands:
        # Not through pipes: the worker that TFF leaves behind would keep them open. It ends with its group.
        with log.open("wb") as stream:
            child = subprocess.Popen(
                [python, *command], env=alone, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = child.wait(LIMIT)
            except subprocess.TimeoutExpired as error:
                raise environments.EnvironmentFailed(f"not done after {LIMIT} s") from error
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        said = environments.last_line(log.read_text(encoding="utf-8", errors="replace"))
        if code:
            raise environments.EnvironmentFailed(said or f"exit code {code}")
    with np.load(out) as found:
        return {**found, "versions": ", ".join(map(" ".join, zip(peer.versions, said.split(), strict=True)))}


def distance(one: dict[str, Any], other: dict[str, Any], prefix: str) -> float:
    """‖x − y‖ / ‖y‖ of two models; both began at zero, so that ‖y‖ is the way that training went."""
    x, y = (np.concatenate([np.ravel(found[prefix + leaf]) for leaf in ("kernel", "bias")]) for found in (one, other))
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


def main() -> int:
    """Runs both sides, prints the table, and writes it into the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migration", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SOURCES), help="some of them, with commas between")
    parser.add_argument("--environments", type=pathlib.Path, default=environments.default_directory())
    parser.add_argument("--markdown", type=pathlib.Path, help="the page, to be given the table")
    options = parser.parse_args()
    lines = ["| | with | FedAvg | a step of length 0.1 at most | accuracy |", "|---|---|---:|---:|---|"]
    differ = False
    with tempfile.TemporaryDirectory() as folder:
        arrays, own = ours()
        problem = pathlib.Path(folder) / "problem.npz"
        np.savez(problem, **arrays)
        for name in options.only.split(","):
            try:
                found = theirs(name, problem, options.environments.resolve())
            except environments.EnvironmentFailed as error:
                lines.append(f"| {SOURCES[name].peer.title} | did not run: {error} | | | |")
                continue
            away = [distance(found, own, prefix) for prefix in ("", "short_")]
            same = bool(np.isclose(found["accuracy"], own["accuracy"]))
            differ |= not (max(away) < ROUND_OFF and same)
            said = "the same" if same else f"{float(found['accuracy']):.3f}, not {float(own['accuracy']):.3f}"
            cells = [SOURCES[name].peer.title, found["versions"], *(f"{one:.1e}" for one in away), said]
            lines.append(f"| {' | '.join(cells)} |")
    table = "\n".join(
        [*lines, "", f"Python {sys.version.split()[0]}, jax {jax.__version__} here, {datetime.date.today()}."]
    )
    print(table)
    if options.markdown:
        text = options.markdown.read_text(encoding="utf-8")
        before, after = re.split(r"(?s)(?<=<!-- migration -->\n).*?(?=<!-- /migration -->)", text)
        options.markdown.write_text(f"{before}{table}\n{after}", encoding="utf-8")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
