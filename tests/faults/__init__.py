"""Faults to plant in the package, a file of them for each room, and what becomes of them.

A fault is one small change that makes the package wrong: a sign, a bound, a forgotten case. Tests are as good as the
share of faults that they notice; ``python -m tests.faults`` measures it.
"""

import dataclasses
import json
import pathlib
import tomllib

FOLDER = pathlib.Path(__file__).parent
NOTICED = FOLDER / "noticed.json"
ROOT = FOLDER.parent.parent


@dataclasses.dataclass(frozen=True)
class Fault:
    """One change: in ``file`` of the package, ``before``, which is there exactly once, becomes ``after``."""

    room: str
    file: str
    before: str
    after: str
    why: str

    @property
    def name(self) -> str:
        """Where it is and what."""
        return f"{self.file}: {self.why}"

    def planted(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: If ``before`` is not there exactly once.
        """
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.room}.toml: {self.file} has {count} times, not once: {self.before!r}")
        return text.replace(self.before, self.after)


def rooms() -> list[str]:
    """The rooms that have a list of faults."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def faults(room: str) -> list[Fault]:
    """The faults of one room, in the order of its list."""
    listed = tomllib.loads((FOLDER / f"{room}.toml").read_text("utf-8"))["fault"]
    return [Fault(room=room, **fault) for fault in listed]


def noticed() -> dict[str, str]:
    """The test that noticed each fault when it was last planted, by the fault's name."""
    found: dict[str, str] = json.loads(NOTICED.read_text("utf-8"))
    return found
