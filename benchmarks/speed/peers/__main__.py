"""Federated averaging in this project and in others: identical arrays, cohorts and hyper-parameters.

    python -m benchmarks.speed.peers [--peers ours,fedjax] [--workloads W1,W4] [--rounds 10] [--repeats 3]
                                     [--environments DIR] [--out results.json] [--markdown README.md]

Every peer gets a virtual environment with pinned versions, made once. In each repeat the peers take turns, each in a
process of its own. Nobody's time is reported unless the weights that it returns are those of the others. See
docs/peers.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.speed import workloads
from benchmarks.speed.peers import tables
from benchmarks.speed.peers.child import descendants
from benchmarks.speed.peers.compare import check, flat
from benchmarks.speed.peers.contract import PEERS, Peer, describe
from benchmarks.speed.peers.environments import EnvironmentFailed, default_directory, ensure, last_line
from fedjax_sim.core.files import write_atomically

ROOT = pathlib.Path(__file__).resolve().parents[3]
_NOT_PASSED_ON = ("JAX_", "XLA_", "NPROC", "OMP_", "PYTHON", "VIRTUAL_ENV")  # what would make another program of a peer


def main() -> None:
    """Runs what was asked for, or reads an earlier report, and writes the tables."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by Ctrl-C: the child and its workers go too
    if options.read:
        report = json.loads(options.read.read_text(encoding="utf-8"))
    else:
        report = measure(options)
    print(f"\n{tables.summary(report)}\n\n{tables.details(report)}")
    for path in options.markdown:
        print(f"{path}: wrote {', '.join(tables.write(path, report))}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=_names(PEERS), default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--workloads", type=_names(workloads.NAMES), default=list(workloads.NAMES))
    parser.add_argument("--rounds", type=int, default=10, help="the first is not timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients and the cohort, to try things")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of one run, after which it is given up")
    parser.add_argument("--environments", type=pathlib.Path, default=default_directory())
    parser.add_argument("--out", type=pathlib.Path, help="the report as JSON")
    parser.add_argument("--read", type=pathlib.Path, help="an earlier report, instead of running")
    parser.add_argument("--markdown", type=pathlib.Path, nargs="*", default=[], help="files with marks for the tables")
    options = parser.parse_args()
    if options.rounds < 2 or options.repeats < 1:
        parser.error(f"--rounds {options.rounds} --repeats {options.repeats}: two rounds and one repeat at least")
    return options


def _names(known: Any) -> Any:
    def parsed(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(known)}")
        return chosen

    return parsed


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All workloads; the report so far is written after each."""
    peers = {name: describe(name) for name in options.peers}
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "rounds": options.rounds,
        "repeats": options.repeats,
        "fraction": options.fraction,
        "peers": {
            name: {
                "title": peer.title, "framework": peer.framework, "configuration": peer.configuration,
                "requirements": peer.requirements,
            }
            for name, peer in peers.items()
        },
        "workloads": {},
    }  # fmt: skip
    interpreters: dict[str, pathlib.Path] = {}
    broken: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            interpreters[name] = ensure(name, peer, options.environments.resolve())
        except (EnvironmentFailed, OSError, subprocess.TimeoutExpired) as error:
            broken[name] = f"no environment: {error}"
            print(f"{peer.title}: {broken[name]}", file=sys.stderr, flush=True)
    for name in options.workloads:
        report["workloads"][name] = run_workload(name, options, peers, interpreters, broken)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(options.out, json.dumps(report, indent=1).encode())
    return report


def run_workload(
    name: str,
    options: argparse.Namespace,
    peers: dict[str, Peer],
    interpreters: dict[str, pathlib.Path],
    broken: dict[str, str],
) -> dict[str, Any]:
    """All repeats of one workload; who fails once is not run again."""
    work = workloads.make(name, options.rounds, options.fraction)
    found: dict[str, Any] = {peer: {"runs": [], "error": broken.get(peer)} for peer in peers}
    print(f"\n{name}: {work.steps():.0f} steps a round", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        arrays = pathlib.Path(folder) / "arrays"
        work.save(arrays)
        first: dict[str, workloads.Weights] = {}
        for repeat in range(options.repeats):
            ends: dict[str, workloads.Weights] = {}
            for peer, interpreter in interpreters.items():
                if found[peer]["error"] is None:
                    out = pathlib.Path(folder) / f"{peer}-{repeat}"
                    found[peer]["error"] = run_once(peer, interpreter, arrays, out, options.limit)
                    if found[peer]["error"] is None:
                        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
                        found[peer]["versions"] = result.pop("versions")
                        found[peer]["runs"].append(result)
                        ends[peer] = workloads.load_weights(out / "weights.npz")
                    print(_progress(peers[peer], repeat, found[peer]), file=sys.stderr, flush=True)
            if repeat == 0:
                first = ends
                for peer, finding in (check(work, ends, peers) if ends else {}).items():
                    found[peer].update(loss=finding.loss, distance=finding.distance, error=finding.error)
            else:
                start = flat(work.start)
                for peer, end in ends.items():
                    away = np.linalg.norm(flat(end) - flat(first[peer])) / np.linalg.norm(flat(first[peer]) - start)
                    if not away <= work.tolerance().distance:
                        found[peer]["error"] = f"repeat {repeat + 1} ended {away:.2g} of the way from the first"
    return {"steps": work.steps(), "start_loss": work.loss(work.start), "peers": found}


def run_once(peer: str, interpreter: pathlib.Path, arrays: pathlib.Path, out: pathlib.Path, limit: float) -> str | None:
    """One process; returns what went wrong."""
    out.mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(_NOT_PASSED_ON)},
        "PYTHONPATH": str(ROOT),
        "PYTHONNOUSERSITE": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_TRACEBACK_FILTERING": "off",  # so that the last line is the error
        "CUDA_VISIBLE_DEVICES": "",
        "FEDJAX_SIM_CACHE": "off",  # whose set-up is measured has not run before
        "FEDJAX_SIM_PEERS_WORKLOAD": str(arrays),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [str(interpreter), "-m", "benchmarks.speed.peers.child", peer, str(arrays), str(out)]
    log = out / "log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [*command, repr(time.monotonic())], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                _end(child)
    if code is None:
        return f"not done after {limit:.0f} s"
    if code or not (out / "result.json").is_file():
        said = last_line(log.read_text(encoding="utf-8", errors="replace"))
        return said or f"exit code {code}"
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a process and the workers that it started."""
    for pid in reversed(descendants(child.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    child.wait()


def _progress(peer: Peer, repeat: int, one: dict[str, Any]) -> str:
    if one["error"] is not None:
        return f"  {repeat + 1}  {peer.title:22} {one['error']}"
    run = one["runs"][-1]
    return (
        f"  {repeat + 1}  {peer.title:22} {1e3 * run['round_s']:9.2f} ms a round, set-up {run['set_up_s']:6.1f} s, "
        f"peak {run['peak_mb']:7.0f} MB"
    )


def machine() -> str:
    """Cores and their kind."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="ascii", errors="replace").splitlines() if info.is_file() else []
    kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} x {kind}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
