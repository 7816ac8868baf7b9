"""How large the programs of README's examples are, and which part of the code is behind what.

    python -m benchmarks.speed.program_size [--examples simulate gradient] [--parts]

Each example runs twice, in a process of its own: once for the processor's seconds until its result is there, nearly all
of it compilation, and once with XLA writing down what it compiles. Counted over all programs of an example are lines
and instructions of optimised HLO, fusions, loops, and kernels: what LLVM compiles, fusions and loops that became one
function alike; equal ones are compiled once. A kernel costs most of what it costs whatever is in it. Instructions
belong to the part of the code on whose behalf they are there, by the functions that were at work when they were traced.

Clock time and processor time both depend on what else the machine does; the counts do not.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter

EXAMPLES = ("simulate", "fedavg", "gradient")
COLUMNS = ("programs", "lines", "instructions", "fusions", "kernels", "loops")

# The first of the functions, from the inside out, decides; names of the optimised HLO's table of frames.
PARTS = {
    "draw of the cohort": ("Participation.select", "Uniform.select", "choose", "choose.<locals>.insert"),
    "keys and words of clients": ("client_draws", "ClientDraws.purpose", "purpose_key", "round_key"),
    "work and weights": ("draw", "assemble", "RandomEpochs.steps", "_probed"),
    "batches": ("Shuffled.positions", "permute", "fetch"),
    "gradient": ("gradient", "Solver.step.<locals>.objective"),
    "local step": ("Solver.step", "Solver._moved", "Solver.begin"),
    "end of a client": ("Solver.finish",),
    "layout": ("Turns.run", "run_turns", "run_queue"),
    "evaluation": ("measure", "passed", "_scanned"),
    "aggregation": ("_updated", "_received"),
    "record of a round": ("_recorded", "_divergence", "_measured"),
    "loop of rounds": ("counted.<locals>.scan", "some_rounds", "run_round", "Nested.run", "PerRound.run"),
    "start": ("init_state",),
    "checks": ("unmet", "_spoilt", "check_recorded"),
}  # fmt: skip
_PART_OF = {name: part for part, names in PARTS.items() for name in names}
_OTHER = "without a name"
_CALLERS = {"fusion", "reduce", "reduce-window", "scatter", "sort", "map"}  # what they call is theirs
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%\S+ = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\(")


class Size:
    """What was counted, and by part."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.parts: dict[str, Counter[str]] = {}

    def add(self, what: str, part: str) -> None:
        """One more of ``what``."""
        self.total[what] += 1
        self.parts.setdefault(part, Counter())[what] += 1


def count(text: str, found: Size) -> None:
    """Adds a program, from its optimised HLO."""
    part_of_frame = _frames(text)
    found.total["programs"] += 1
    found.total["lines"] += text.count("\n")
    computations: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}  # (kind, part or "", computations it calls)
    inside: list[tuple[str, str, tuple[str, ...]]] = []
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%(\S+) .*\{$", line):
            inside = computations.setdefault(header[1], [])
        elif matched := _INSTRUCTION.match(line):
            frame = re.search(r"stack_frame_id=(\d+)", line)
            part = part_of_frame.get(int(frame[1]), "") if frame else ""
            inside.append((matched[1], part, tuple(re.findall(r"(?:calls|body|condition|to_apply)=%([\w.-]+)", line))))
    fused = {name for of in computations.values() for kind, _, called in of if kind in _CALLERS for name in called}
    # What XLA adds (copies, tuples, loops of its own) has no frame: it is of the part that most around it is of.
    usual = {name: Counter(part for _, part, _ in of if part).most_common(1) for name, of in computations.items()}
    callers = {name: (part, outer) for outer, of in computations.items() for _, part, called in of for name in called}

    def around(name: str) -> str:
        if usual[name]:
            return usual[name][0][0]
        part, outer = callers.get(name, ("", ""))
        return part or (around(outer) if outer else _OTHER)

    for name, of in computations.items():
        for kind, part, called in of:
            inner = [around(one) for one in called]
            part = part or (inner[0] if inner else around(name))
            found.add("instructions", part)
            if kind == "while":
                found.add("loops", part)
            if name not in fused and kind == "fusion":
                found.add("fusions", part)


def _frames(text: str) -> dict[int, str]:
    """The part that each frame of the HLO's table belongs to."""
    functions = {int(n): name for n, name in re.findall(r'^(\d+) "(.*)"$', _section(text, "FunctionNames"), re.M)}
    places = {
        int(n): int(f)
        for n, f in re.findall(r"^(\d+) \{.*?function_name_id=(\d+)", _section(text, "FileLocations"), re.M)
    }
    stacks = {
        int(n): (int(place), int(parent))
        for n, place, parent in re.findall(
            r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}", _section(text, "StackFrames"), re.M
        )
    }
    found = {}
    for frame in stacks:
        at, part = frame, ""
        while at in stacks:
            place, parent = stacks[at]
            name = functions.get(places.get(place, 0), "")
            if name in _PART_OF:
                part = _PART_OF[name]
                break
            at = parent - 1  # 0 for none
        found[frame] = part
    return found


def _section(text: str, name: str) -> str:
    matched = re.search(rf"^{name}\n(.*?)\n\n", text, re.M | re.S)
    return matched[1] if matched else ""


def example(name: str) -> float:
    """Runs an example as README has it; the processor's seconds that it took."""
    import jax

    import fedjax_sim as fjs

    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=0)
    task = fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-4)
    common = {
        "task": task, "rounds": 20, "eval_every": 5, "batch_size": 20,
        "cohort": fjs.cohort.uniform(10), "work": fjs.local.random_epochs(1, 5),
    }  # fmt: skip
    started = time.process_time()
    if name == "gradient":
        train, key = fjs.make_train(**common), jax.random.key(0)
        algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(0.02), mu=0.1)
        gradient = jax.grad(lambda algorithm, data, key: train(algorithm, data, key).metrics["loss"][-1])
        jax.block_until_ready(jax.jit(gradient)(algorithm, data, key))
    else:
        momentum = fjs.optim.sgd(0.02, momentum=0.9)
        method = fjs.fednova(client_optimizer=momentum) if name == "simulate" else None
        fjs.simulate(method or fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data, **common, seeds=range(3))
    return time.process_time() - started


def _child(name: str, **environment: str) -> float:
    command = [sys.executable, "-m", "benchmarks.speed.program_size", "--child", name]
    own = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0", **environment}
    done = subprocess.run(command, env=os.environ | own, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def measured(name: str) -> tuple[Size, float]:
    """The size of an example's programs, and its seconds."""
    found, seconds = Size(), _child(name)
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        _child(name, XLA_FLAGS=flags, JAX_TRACEBACK_IN_LOCATIONS_LIMIT="-1")
        for path in sorted(pathlib.Path(folder).glob("*cpu_after_optimizations.txt")):
            count(path.read_text(encoding="utf-8"), found)
        found.total["kernels"] = len(list(pathlib.Path(folder).glob("*.ir-no-opt.ll")))
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=EXAMPLES)
    parser.add_argument("--parts", action="store_true", help="instructions, fusions and loops of each part of the code")
    parser.add_argument("--child", choices=EXAMPLES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(example(given.child))
        return
    print(f"{'':26}" + "".join(f"{name:>14}" for name in (*COLUMNS, "cpu seconds")))
    for name in given.examples:
        found, seconds = measured(name)
        print(f"{name:26}" + "".join(f"{found.total[column]:14}" for column in COLUMNS) + f"{seconds:14.2f}")
        for part, counts in sorted(found.parts.items(), key=lambda of: -of[1]["instructions"]) if given.parts else ():
            cells = (counts.get(column, "") for column in COLUMNS)
            print(f"  {part:24}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
