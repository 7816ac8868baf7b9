"""Hostile files: a few hundred drawn ones for every reader, and those that once did harm or would do most."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'fedjax_sim[tables]')")
pytest.importorskip("safetensors", reason="needs safetensors (pip install 'fedjax_sim[text]')")
pytest.importorskip("sklearn", reason="needs scikit-learn (pip install 'fedjax_sim[data]')")

from tests.fuzzing import running
from tests.fuzzing.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("fuzz")


def judge(name: str, tally: dict[str, Any], inputs: int) -> None:
    assert tally["faults"] == [], name
    assert tally["inputs"] == inputs, name
    assert tally["refused"], name  # the changes do reach what is checked
    assert sum(tally["refused"].values()) + tally["accepted"] == inputs, name


@pytest.mark.slow
def test_drawn_files_are_read_or_refused() -> None:
    """Four inputs a reader, always the same ones."""
    for name, target in TARGETS.items():
        judge(name, dataclasses.asdict(running.run(target, 4, 0)), 4)


@pytest.mark.slow
def test_more_drawn_files_are_read_or_refused() -> None:
    """30 inputs a reader, always the same ones, in a process whose memory is bounded."""
    inputs = str(30 * len(TARGETS))
    command = [sys.executable, "-m", "tests.fuzzing", "--inputs", inputs, "--seed", "0", "--together", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.keys() == TARGETS.keys()
    for name, tally in found.items():
        judge(name, tally, 30)


OPENING = [name for name, target in TARGETS.items() if target.opens and name != "Store.newest"]


@pytest.mark.parametrize(
    ("name", "odd"),
    [  # of every reader one, of every kind some
        pytest.param(name, odd, marks=pytest.mark.slow if (number - place) % len(running.PATHS) else ())
        for number, name in enumerate(OPENING) for place, odd in enumerate(running.PATHS)
    ],
)  # fmt: skip
def test_only_files_are_opened(name: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to would be waited for, /dev/zero would be read for ever."""
    target = TARGETS[name]
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    for changed in target.files():
        folder = tmp_path / "input"
        monkeypatch.setenv("FEDJAX_SIM_DATA", str(folder))
        running.write(folder, target.files())
        running.replace(folder / changed, odd)
        with pytest.raises(FileNotFoundError, match="input"), running.limited(2.0):
            target.read(folder)
        running.delete(folder)


# What the harness itself must see: else its silence would mean nothing


def one(read: Callable[[Path], Any], content: bytes = b"1", **changes: Any) -> running.Tally:
    files = {"file": content}
    same = lambda data, rng: data
    return running.run(Target("one", lambda: files, {"": same}, read, opens=False, **changes), 1, 0)


@pytest.mark.slow
def test_the_harness_sees_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter((True, False, True, False, True, False, True, False, True, False, True, False))

    def second_time(action: Callable[[Path], Any]) -> Callable[[Path], Any]:
        # the valid files are read once before the changed ones
        return lambda folder: None if next(first) else action(folder)

    def refuse(error: Exception) -> Callable[[Path], Any]:
        def action(folder: Path) -> None:
            raise error

        return action

    monkeypatch.setattr(running, "SECONDS", 1.0)
    cases = {
        "KeyError": refuse(KeyError("x")),
        "UnicodeDecodeError": refuse(UnicodeDecodeError("utf-8", b"", 0, 1, "x")),
        "without the file": refuse(ValueError("it is wrong")),
        "not finished": lambda folder: time.sleep(5),
        "touched": lambda folder: (folder.parent / "elsewhere").write_text("x"),
        "MiB": lambda folder: np.ones(2**26, np.uint8).any(),
    }
    for message, action in cases.items():
        (fault,) = one(second_time(action), bound=2**25).faults
        assert message in fault
