"""One accelerator in under eight minutes: which layout, which convolution, which dtype, how many clients a second.

    python benchmarks/speed/gpu.py [--budget-s 440] [--sections ...] [--out results/gpu.json] [--tiny]

Needs a checkout and jax (with a plugin for the device), optax, flax, chex and numpy; nothing is installed. It runs on
whatever device JAX finds, a CPU too. Every section is a process of its own with a share of the time that is left: what
it has measured is kept when it runs out of time or memory, and the others run all the same.

  machine    products of square matrices in float32 and bfloat16, memory's bandwidth
  agreement  a few rounds in every layout, with each convolution, against the same rounds in float64 on the CPU (a
             process of its own), products at full precision. A difference over the tolerance fails the script
  workloads  W1 to W4 of workloads.py: the layouts, an evaluation, and a plain PyTorch loop where PyTorch is installed
  layouts    milliseconds a round in turns, stacked and lanes: logistic regression, MLP and CNN, clients with equal and
             with unequal numbers of steps; the best layout beside the rule's choice (fedjax_sim/layout/choose.py)
  numbers    MLP and CNN in float32 and bfloat16; the CNN by im2col products and by the library's convolutions, which a
             client axis makes grouped ones
  scale      clients a second against the size of the cohort, doubled until memory, time or --most-clients ends it
  choices    W3 with what a layout can do for an accelerator added in order, each beside the best before it: a loop of
             static length, loops that get narrower; keys and batches drawn ahead of the loop; one product in place of
             grouped convolutions. Then the package's layouts as they are. Each form is compared with float64 first;
             milliseconds a round, seconds to compile, working memory, steps computed and needed
  aims       rounds of published sizes: FLUTE's FEMNIST row, PFLlib's MNIST round, a million clients
  graphs     the layouts as they are, once more with loops in command buffers (a flag of XLA, so a process of its own)

A product's kernel is chosen once for all sections, by trial: they share a compilation cache, a new one for each run.

Times are medians of calls of several rounds in one program. Float32 products run at JAX's default precision; on some
GPUs that is TF32. In `agreement` they are float32, and `choices`, `aims` and `graphs` say of each row which it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the checkout, installed or not

import flax
import jax
import numpy as np
import optax

from benchmarks.speed import gpu_choices, gpu_sections, gpu_workloads
from benchmarks.speed.gpu_choices import FLOAT32
from benchmarks.speed.gpu_sections import OUT_OF_TIME, TOLERANCE, Clock, Row
from fedjax_sim.core.files import write_atomically

SECTIONS = gpu_sections.SECTIONS | gpu_workloads.SECTIONS | gpu_choices.SECTIONS
SHARES = {
    "machine": 2.0, "agreement": 3.0, "workloads": 8.0, "choices": 8.0, "aims": 6.0, "layouts": 5.0, "numbers": 3.0,
    "scale": 3.0, "graphs": 3.0,
}  # fmt: skip
FLAGS = {"graphs": gpu_choices.COMMAND_BUFFERS}  # of XLA, for the process of a section
MARK = "row: "
_LAST = 5.0  # seconds that the script needs beside its sections


def share(section: str, left: list[str], seconds: float) -> float:
    """Seconds for a section out of those that are left for all of ``left``."""
    return seconds * SHARES[section] / sum(SHARES[name] for name in left)


def run_section(section: str, seconds: float, options: argparse.Namespace) -> tuple[list[Row], str]:
    """The rows that a section's process printed before it ended or was ended, and how that was."""
    command = [sys.executable, __file__, "--section", section, "--budget-s", str(seconds)]
    command += ["--most-clients", str(options.most_clients), *(["--tiny"] if options.tiny else [])]
    started = time.monotonic()
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS.get(section, '')}".strip()
    env = os.environ | ({"XLA_FLAGS": flags} if flags else {})
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    rows: list[Row] = []
    outcome = "done"
    while True:
        try:
            line = lines.get(timeout=max(0.0, started + seconds - time.monotonic()))
        except queue.Empty:
            child.kill()
            outcome = OUT_OF_TIME
            break
        if line is None:
            break
        if line.startswith(MARK):
            rows.append(json.loads(line[len(MARK) :]))
            print("   " + shown(rows[-1]), flush=True)
    code = child.wait()
    return rows, outcome if outcome != "done" or code == 0 else f"failed with exit status {code}"


def shown(row: Row) -> str:
    """A row as one line."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
    )


def verdict(rows: list[Row]) -> list[str]:
    """For every case of `layouts`: the best layout, and what the rule's choice costs beside it."""
    lines = []
    for case in dict.fromkeys((row["model"], row["steps"]) for row in rows):
        times = {row["layout"]: row["ms"] for row in rows if (row["model"], row["steps"]) == case and "ms" in row}
        rule = next(row["rule"] for row in rows if (row["model"], row["steps"]) == case)
        if not times:
            continue
        best = min(times, key=lambda name: times[name])
        cost = f"{times[rule] / times[best]:.2f} times its time" if rule in times else "not measured"
        lines.append(f"{case[0]}, {case[1]} steps: best {best} {times[best]:.3f} ms; the rule takes {rule}: {cost}")
    return lines


def disagreements(rows: list[Row]) -> list[str]:
    """What is over the tolerance, in words; what was not measured is none of it, nor are coarse products."""
    compared = [row for row in rows if "difference" in row and row.get("precision", FLOAT32) == FLOAT32]
    return [
        f"differs from float64 by more than {TOLERANCE:g}: {shown(row)}"
        for row in compared
        if not row["difference"] <= TOLERANCE
    ]


def main(given: list[str] | None = None) -> None:
    """Runs the sections, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=440.0, help="seconds for all of it")
    parser.add_argument("--sections", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--most-clients", type=int, default=1 << 20, help="the largest cohort of `scale`")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--section", choices=list(SECTIONS), help="internal: one section in this process")
    parser.add_argument("--reference", type=pathlib.Path, help="internal: write the rounds in float64 here")
    options = parser.parse_args(given)
    if options.reference:
        of = gpu_choices if options.section == "choices" else gpu_sections
        of.write_reference(options.reference, tiny=options.tiny)
        return
    if options.section:
        clock = Clock(options.budget_s)
        most = min(options.most_clients, 4) if options.tiny else options.most_clients
        for row in SECTIONS[options.section](clock, tiny=options.tiny, most=most):
            print(MARK + json.dumps(row), flush=True)
            if row.get("ended") == OUT_OF_TIME:
                break  # nothing after it will have time
        return
    with tempfile.TemporaryDirectory(prefix="fedjax_sim-gpu-") as cache:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache  # of the sections' processes
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Runs the sections, each with its share of the time."""
    end = time.monotonic() + options.budget_s - _LAST
    result: dict[str, Any] = {"date": datetime.date.today().isoformat(), "versions": versions(), "sections": {}}
    for i, section in enumerate(options.sections):
        seconds = share(section, options.sections[i:], end - time.monotonic())
        print(f"{section}: up to {seconds:.0f} s", flush=True)
        rows, outcome = run_section(section, seconds, options)
        result["sections"][section] = {"outcome": outcome, "rows": rows}
        print(f"   {outcome}", flush=True)
        if options.out:
            write_atomically(options.out, json.dumps(result, indent=1).encode())
    for line in verdict(result["sections"].get("layouts", {}).get("rows", [])):
        print(line)
    sections = result["sections"]
    broken = [f"{name}: {of['outcome']}" for name, of in sections.items() if of["outcome"].startswith("failed")]
    broken += disagreements([row for of in sections.values() for row in of["rows"]])
    if broken:
        raise SystemExit("\n".join(broken))


def versions() -> dict[str, str]:
    """What ran; the device says its name in the section `machine`."""
    modules = {"jax": jax, "flax": flax, "optax": optax, "numpy": np}
    return {"python": sys.version.split()[0], **{name: module.__version__ for name, module in modules.items()}}


if __name__ == "__main__":
    main()
