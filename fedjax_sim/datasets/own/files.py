"""Own data by the names of files, as configurations give them: what was read is known again by its checksum.

Each set remembers how it was made, with the SHA-256 of its files, so that a run of it can be made again and does not
take other data for the same.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.files import check_regular
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import HELD_OUT, FederatedDataset
from fedjax_sim.datasets.own.directory import from_directory
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.own.table import from_table


def _by_names(
    reader: Callable[..., FederatedDataset], places: tuple[str, ...], inside: tuple[str, ...], without: set[str]
) -> Callable[..., FederatedDataset]:
    """A reader for configurations: of its arguments, ``places`` name files, or folders of files.

    It takes the checksum ``sha256`` too, and refuses another content; the set describes itself by its arguments and it.
    The files of a folder are those that match one of ``inside``.
    """
    signature, name = inspect.signature(reader), reader.__name__
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in without]
    checksum = inspect.Parameter("sha256", inspect.Parameter.KEYWORD_ONLY, default=None)
    signature = signature.replace(parameters=[*kept, checksum])

    @functools.wraps(reader)
    def make(*args: Any, **kwargs: Any) -> FederatedDataset:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        wanted, files = given.pop("sha256"), []
        for argument in places:
            value = given[argument]
            for place in [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]:
                if not isinstance(place, str):
                    raise TypeError(
                        f"{name}({argument}) has {shown(place)}: a configuration names files; in Python, "
                        f"fedjax_sim.datasets.{name} takes other things too"
                    )
                path = Path(place)
                found = sorted(one for pattern in inside for one in path.glob(pattern)) if path.is_dir() else []
                files += [(one.relative_to(path).as_posix(), one) for one in found] or [(path.name, path)]
        sums = [f"{_sha256(path)}  {called}\n" for called, path in files if not path.is_dir()]
        # Of one file it is what sha256sum prints; of several, that of what it prints of them, in order.
        digest = sums[0][:64] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
        if wanted not in (None, digest):
            raise ValueError(
                f"{', '.join(str(path) for _, path in files[:3])}: the content has the SHA-256 {digest}, and sha256 = "
                f"{shown(wanted)}: give the data of then, or leave sha256 out to take these"
            )
        made = reader(**given)
        object.__setattr__(made, "_recipe", (f"dataset.{name}", {**given, "sha256": digest}))
        return made

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def _sha256(path: Path) -> str:
    check_regular(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


register("dataset.from_table", _by_names(from_table, ("table",), (), set()))
register(
    "dataset.from_directory",
    _by_names(
        from_directory, ("folder",), ("*.npz", *(f"{part}/*.npz" for part in ("train", *HELD_OUT))), {"max_bytes"}
    ),
)
register("dataset.from_leaf", _by_names(from_leaf, ("train", "test"), ("*.json",), {"encode", "encode_label"}))
