"""Finished runs of a sweep in a folder, so that a sweep that was stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from pathlib import Path
from typing import Any

from fedjax_sim.core import files
from fedjax_sim.core import old_formats as earlier
from fedjax_sim.core.descriptions import build
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.fingerprints import digest
from fedjax_sim.run.checkpoints.differences import differences, environment_changes, listed
from fedjax_sim.run.history import History

_FORMAT = 2
_FIX = "delete the folder, or give another one"


class Folder(files.Locked):
    """A folder with one sweep: ``sweep.json`` says which, each ``runs-....npz`` has some of its runs.

    Another study of many runs, a ``what``, has a file of its own name.

    Every file is written whole or not at all, and an interrupted sweep leaves nothing to clean up. The folder is locked
    for this process until it is closed. The ``configuration`` is the plain JSON data that decides the results, the
    ``environment`` where runs to come are computed; ``earlier`` says what was another one for runs that
    :meth:`finished` has read.

    Raises:
      ValueError: the folder has a sweep of another configuration (the message lists the differences), of a later
        version of this package, or other files.
      OSError: it is no folder, cannot be made or written, or another process stores a sweep in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        configuration: dict[str, Any],
        environment: dict[str, Any] | None = None,
        what: str = "sweep",
    ) -> None:
        self._path, self._environment, self._what = Path(path), environment or {}, what
        self.earlier: list[str] = []
        self._old: dict[str, Any] | None = None  # of a folder of format 1, what it says in format 2
        self._lock = files.Lock(self._path, f"a {what}")
        try:
            self._begin(configuration)
        except BaseException:
            self.close()
            raise

    def finished(self) -> list[tuple[list[int], History]]:
        """The stored runs: their numbers and what they recorded; warns of those that were computed elsewhere.

        A ``ValueError`` says what is wrong with a file. Runs of 0.1.0 cannot be put together with those of this
        version: such a folder must have them all.
        """
        found = []
        seen: dict[int, str] = {}
        for file in sorted(self._path.glob("runs-*.npz")):
            history = History.load(file)
            if history.description.get("sweep") != self._digest:
                raise ValueError(f"{file} has runs of another {self._what}: take it out of the folder")
            numbers = history.description.get("runs")
            if not isinstance(numbers, list) or [type(number) for number in numbers] != [int] * len(history.seeds):
                raise ValueError(f"{file} does not say which runs it has, but {shown(numbers)}: delete it")
            for number in numbers:
                if number < 0 or number in seen:
                    raise ValueError(
                        f"{file} has run {number}, and so has {seen.get(number, f'no {self._what}')}: delete it"
                    )
                seen[number] = file.name
            if self._old is not None:
                with files.parsing(file, "is damaged", _FIX):
                    used = earlier.used(history.rounds, self._old, numbers)
                history = dataclasses.replace(history, rounds=history.rounds | used)
            found.append((numbers, history))
            changes = environment_changes(history.description, {"environment": self._environment}, ("there", "here"))
            if changes is not None and changes not in self.earlier:
                self.earlier.append(changes)
        if self._old is not None:
            self._check_complete(len(seen), self._old)
        if self.earlier:
            warnings.warn(
                f"{self._what}(resume={str(self._path)!r}): runs in the folder were computed elsewhere "
                f"({'; or '.join(self.earlier)}): they may differ by round-off from what is computed now",
                stacklevel=4,
            )
        return found

    def add(self, numbers: list[int], history: History) -> None:
        """Stores the runs of these numbers, in the history's order, with what its description says."""
        about = {**history.description, "sweep": self._digest, "runs": numbers, "environment": self._environment}
        dataclasses.replace(history, description=about).save(self._path / f"runs-{numbers[0]:06d}.npz")

    def _begin(self, configuration: dict[str, Any]) -> None:
        # through JSON, so that tuples and lists are one
        configuration = json.loads(json.dumps(configuration))
        about = self._path / f"{self._what}.json"
        if os.path.lexists(about):
            configuration = self._compare(about, configuration)
        elif any(item.name != files.LOCK_NAME for item in self._path.iterdir()):
            raise ValueError(
                f"{self._what}(resume={str(self._path)!r}): the folder has other files: give an empty or new one"
            )
        else:
            content = {"format": _FORMAT, "configuration": configuration}
            files.write_atomically(about, json.dumps(content, indent=1).encode())
        self._digest = digest(json.dumps(configuration, sort_keys=True).encode())

    def _check_complete(self, there: int, configuration: dict[str, Any]) -> None:
        total = build(configuration["space"]).num_points * len(configuration["seeds"])
        if there < total:
            raise ValueError(
                f"sweep(resume={str(self._path)!r}): the folder is of fedjax_sim {earlier.VERSION} and has {there} of "
                f"{total} runs, and what this version records of the others is more: finish the sweep with fedjax_sim "
                f"{earlier.VERSION}, or give another folder to begin anew"
            )

    def _compare(self, about: Path, configuration: dict[str, Any]) -> dict[str, Any]:
        """The folder's own configuration; older ones say less of it."""
        content = files.json_object(about, files.read_json(about, wrong="is damaged", fix=_FIX))
        files.check_format(about, content.get("format"), _FORMAT)
        with files.parsing(about, "is damaged", _FIX):
            saved: dict[str, Any] = content["configuration"]
            known = saved
            if content["format"] == 1:
                self._old = known = earlier.configuration(saved, configuration)
            lines = differences(known, configuration, ("there", "here"))
        if lines:
            raise ValueError(
                f"{self._what}(resume={str(self._path)!r}): the folder has another {self._what} ({listed(lines)}): "
                "give the same arguments, or another folder"
            )
        return saved


def environment(finished: list[tuple[list[int], History]]) -> dict[str, Any] | None:
    """Where all runs of a folder were computed: the environment of the first, ``earlier`` what differs in others'.

    None where they do not say.
    """
    first, *others = [history.description for _, history in finished]
    if "environment" not in first:
        return None
    found = dict.fromkeys(environment_changes(of, first, ("in some runs", "in the first")) for of in others)
    earlier = [changes for changes in found if changes is not None]
    return {**first["environment"], **({"earlier": earlier} if earlier else {})}
