"""``python -m tests.fuzzing --inputs 20000 --seed 0``: hostile files for every reader, and what came of them.

Each reader runs in a process of its own with bounded memory. The exit status is 1 if anything happened that is not
documented in docs/robustness.md.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.fuzzing.running import Tally, bound_memory, run
from tests.fuzzing.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(TARGETS), action="append", help="one reader, in this process")
    parser.add_argument("--json", action="store_true", help="print the tallies as JSON")
    parser.add_argument("--together", action="store_true", help="all readers in one process")
    parser.add_argument("--note", type=Path, help="a file that says which input is being read")
    given = parser.parse_args()
    names = given.only or list(TARGETS)
    each = -(-given.inputs // len(names))
    if given.only or given.together:
        for name in names:
            run(TARGETS[name], 1, given.seed)  # what is loaded at the first use is not the reader's
        bound_memory()
        tallies = {name: run(TARGETS[name], each, given.seed, note=given.note) for name in names}
    else:
        tallies = {name: _in_a_process(name, each, given.seed) for name in names}
    if given.json:
        print(json.dumps({name: dataclasses.asdict(tally) for name, tally in tallies.items()}))
    else:
        print(table(tallies))
    return int(any(tally.faults for tally in tallies.values()))


def _in_a_process(name: str, inputs: int, seed: int) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        command = [sys.executable, "-m", "tests.fuzzing", "--only", name, "--inputs", str(inputs), "--seed", str(seed)]
        done = subprocess.run([*command, "--json", "--note", str(note)], capture_output=True, text=True, check=False)
        if done.stdout.startswith("{"):
            return Tally(**json.loads(done.stdout)[name])
        last = note.read_text() if note.exists() else "the start"
        return Tally(faults=[f"{name}: the process ended with {done.returncode} at {last}: {done.stderr[-500:]}"])


def table(tallies: dict[str, Tally]) -> str:
    """A Markdown table, and the faults."""
    lines = [
        "| reader | inputs | read | refused | slowest, ms | most memory, MiB | faults |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for name, tally in tallies.items():
        refused = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.refused.items()))
        lines.append(
            f"| `{name}` | {tally.inputs} | {tally.accepted} | {refused} | {1000 * tally.slowest:.0f} | "
            f"{tally.peak / 2**20:.0f} | {len(tally.faults)} |"
        )
    total = sum(tally.inputs for tally in tallies.values())
    lines.append(f"| all | {total} | {sum(tally.accepted for tally in tallies.values())} | | | | |")
    return "\n".join([*lines, *(fault for tally in tallies.values() for fault in tally.faults)])


if __name__ == "__main__":
    sys.exit(main())
