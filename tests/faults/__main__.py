"""Plants each fault in a copy of the tree and says which tests notice: ``python -m tests.faults [ROOM ...]``.

The test that noticed it last time (noticed.json) runs first. If it passes, so do the tests of the fault's own room, of
these the file's own before the others, up to the first failure; and if they pass, all fast tests. A fault that no
test notices survives: the exit status is 1 if more than one in ten do. Compiled programs are kept from one fault to the
next, for most are not touched by it. ``--record`` writes down what noticed each.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time

from fedjax_sim.core.files import write_atomically
from tests.faults import NOTICED, ROOT, Fault, faults, noticed, rooms


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    listed.check_returncode()
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _copy(tree: pathlib.Path) -> pathlib.Path:
    for name in _tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    return tree


_NO_TEST = 5  # pytest's exit status where no test is left, all that were named being slow


def _first_failure(tree: pathlib.Path, arguments: list[str], limit: int) -> str | None:
    """The first test that fails in the copy, None if all pass; a run that takes too long counts as noticed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    kept = {
        "JAX_COMPILATION_CACHE_DIR": f"{tree}-programs",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    # Python compiles anew what has another time; no run of tests is so short that a fault keeps the time of the last.
    kept |= {"PYTHONPYCACHEPREFIX": f"{tree}-bytecode", "PYTHONDONTWRITEBYTECODE": ""}
    environment = {**os.environ, **kept, "PYTHONPATH": str(tree), "CI": "1"}
    try:
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, errors="replace", timeout=limit
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {limit} s"
    if ran.returncode in (0, _NO_TEST) or "ERROR: not found:" in ran.stderr:
        return None
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else f"pytest's exit status {ran.returncode}"


def _named(tree: pathlib.Path, fault: Fault) -> list[str]:
    """The room's files of tests that bear the name of the fault's file or of a folder on the way to it."""
    about = pathlib.PurePath(fault.file).with_suffix("").parts[1:]
    tests = {path: path.stem.removeprefix("test_") for path in (tree / "tests" / fault.room).glob("test_*.py")}
    return sorted(
        str(path.relative_to(tree))
        for path, name in tests.items()
        if any(name in part or part in name for part in about)
    )


def _verdict(
    tree: pathlib.Path, fault: Fault, last_time: str | None, limit: int, own: bool, sound: set[str]
) -> dict[str, str | float | None]:
    """Plants the fault, runs the tests and takes the fault back; a test that fails without it, too, notices nothing.

    ``sound`` has those known to pass without a fault, and gets this one.
    """
    path = tree / "fedjax_sim" / fault.file
    source = path.read_text("utf-8")
    start = time.monotonic()
    path.write_text(fault.planted(source), "utf-8")
    try:
        by = _first_failure(tree, [last_time], limit) if last_time else None
        if by is None:
            by = _first_failure(tree, [*_named(tree, fault), f"tests/{fault.room}"], limit)
        if by is None and not own:
            # That each fault still has its place is what a planted one always breaks.
            others = ["--ignore", f"tests/{fault.room}", "--ignore", "tests/house/test_faults.py"]
            by = _first_failure(tree, others, limit)
    finally:
        path.write_text(source, "utf-8")
    name = (by or "").partition(" ")[2]
    unsound = None
    if "::" in name and name not in sound:
        if _first_failure(tree, [name], limit):
            unsound = name
        else:
            sound.add(name)
    return {
        "name": fault.name, **dataclasses.asdict(fault), "noticed_by": None if unsound else by,
        "fails_without": unsound, "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def _record(verdict: dict[str, str | float | None]) -> None:
    """Writes down what noticed the fault this time; a run that is stopped loses nothing."""
    test = f"{verdict['noticed_by'] or ''}".partition(" ")[2]
    if "::" in test:
        known = {**noticed(), f"{verdict['name']}": test}
        write_atomically(NOTICED, (json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def main() -> int:
    """Runs the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms())}; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree that are tested at a time (default 2)")
    parser.add_argument("--limit", type=int, default=1800, help="seconds a run of tests may take (default 1800)")
    parser.add_argument("--own", action="store_true", help="run the tests of a fault's own room alone")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults whose file or reason has this text")
    parser.add_argument("--record", action="store_true", help="write the tests that noticed into noticed.json")
    parser.add_argument("--out", type=pathlib.Path, help="also write every verdict to this file, a JSON object a line")
    given = parser.parse_args()
    if unknown := set(given.rooms) - set(rooms()):
        parser.error(f"no list of faults for {', '.join(sorted(unknown))}; there are {', '.join(rooms())}")
    planned = [
        fault
        for room in given.rooms or rooms()
        for fault in faults(room)
        if given.only in fault.file or given.only in fault.why
    ]
    for fault in planned:  # one that has lost its place would end the run when its turn comes
        fault.planted((ROOT / "fedjax_sim" / fault.file).read_text("utf-8"))
    verdicts, last_time, sound = [], noticed(), set[str]()
    with tempfile.TemporaryDirectory(prefix="fedjax_sim-faults-") as scratch:
        trees: queue.Queue[pathlib.Path] = queue.Queue()
        for job in range(given.jobs):
            trees.put(_copy(pathlib.Path(scratch, str(job))))

        def judge(fault: Fault) -> dict[str, str | float | None]:
            tree = trees.get()
            try:
                return _verdict(tree, fault, last_time.get(fault.name), given.limit, given.own, sound)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            for done in concurrent.futures.as_completed([pool.submit(judge, fault) for fault in planned]):
                verdict = done.result()
                verdicts.append(verdict)
                print(f"{len(verdicts):3}/{len(planned)} {verdict['seconds']:6.0f} s  {verdict['name']}")
                unsound = verdict["fails_without"] and f"NOT JUDGED: {verdict['fails_without']} fails without it, too"
                print(f"{'':17}{verdict['noticed_by'] or unsound or 'SURVIVED'}", flush=True)
                if given.record:
                    _record(verdict)
                if given.out:
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(verdict) + "\n")
    survived = [verdict for verdict in verdicts if not verdict["noticed_by"]]
    in_room = sum(f" tests/{verdict['room']}/" in f"{verdict['noticed_by']}" for verdict in verdicts)
    elsewhere = len(verdicts) - in_room - len(survived)
    print(f"{len(verdicts)} faults: {in_room} noticed in their room, {elsewhere} elsewhere, {len(survived)} survived")
    for verdict in survived:
        print(f"  {verdict['name']}")
    return int(10 * len(survived) > len(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
