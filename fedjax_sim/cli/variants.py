"""The runs of a comparison: configurations, with the changes or the methods that tell them apart."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables


class Variant(NamedTuple):
    """One run of a comparison."""

    label: str  # as it is printed; unique
    stem: str  # of its files; unique, without signs that file systems or shells read
    tables: Tables  # its configuration
    left_out: tuple[str, ...] = ()  # keys of the configuration's method that the other method does not take over


def variants(
    files: Sequence[str], changes: Sequence[str], each: Sequence[Sequence[str]], algorithms: Sequence[str]
) -> list[Variant]:
    """All runs of a comparison, read but not built; ``changes`` are made to all of them.

    ``each`` makes variants of every file: ``[["algorithm.mu=0.1"], ["small", "algorithm.mu=0.01"]]``, in which a first
    word without ``=`` is a label. ``algorithms`` take the place of every file's own.
    """
    from fedjax_sim.run.configuration.tables import load

    stems = [Path(file).stem for file in files]
    if len(set(stems)) < len(stems):
        stems = [str(Path(file).with_suffix("")) for file in files]
    made: list[Variant] = []
    if algorithms:
        for (file, stem), name in itertools.product(zip(files, stems, strict=True), algorithms):
            tables, left_out = _with_method(load(file, changes), name)
            made.append(Variant(f"{stem}, {name}" if len(files) > 1 else name, "", tables, left_out))
    elif each:
        pairs = [_label_and_changes(words) for words in each]
        short = _short_keys(change for _, own in pairs for change in own)
        for (file, stem), (label, own) in itertools.product(zip(files, stems, strict=True), pairs):
            said = label or ", ".join(map(short, own))
            made.append(Variant(f"{stem}, {said}" if len(files) > 1 else said, "", load(file, [*changes, *own])))
    else:
        made = [Variant(stem, "", load(file, changes)) for file, stem in zip(files, stems, strict=True)]
    if len(made) < 2:
        raise ValueError(
            "there is one run, and nothing to compare it with: give several configurations, --algorithms fedavg "
            "fednova, or --variant algorithm.mu=0.01 --variant algorithm.mu=0.1"
        )
    labels = [variant.label for variant in made]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"two runs are called {twice!r}: give each once, or a name: --variant NAME KEY=VALUE")
    return [variant._replace(stem=stem) for variant, stem in zip(made, _file_names(labels), strict=True)]


def _with_method(tables: Tables, name: str) -> tuple[Tables, tuple[str, ...]]:
    """Another method in a configuration: what all methods have stays (optimisers, rates), its own arguments go."""
    from fedjax_sim.algorithms import Algorithm
    from fedjax_sim.core.descriptions import all_registered
    from fedjax_sim.core.values import suggest

    known = [one.partition(".")[2] for one in all_registered() if one.startswith("algorithm.")]
    short = name.removeprefix("algorithm.")
    if short not in known and ":" not in short:
        raise tables.place._replace(source=f"--algorithms {name}", path=()).error(
            f"unknown method: {suggest(short, known)}"
        )
    table = tables.content.get("algorithm", {})
    if not isinstance(table, dict):
        table = {"name": table}
    if str(table.get("name", "")).removeprefix("algorithm.") == short:
        return tables, ()
    given = table.get("arguments", {key: value for key, value in table.items() if key != "name"})
    common = {field.name for field in dataclasses.fields(Algorithm)}
    kept = {key: value for key, value in given.items() if key in common}
    left_out = tuple(f"algorithm.{key}" for key in given if key not in common)
    return tables._replace(content={**tables.content, "algorithm": {"name": short, **kept}}), left_out


def _label_and_changes(words: Sequence[str]) -> tuple[str, list[str]]:
    first, *rest = words
    label, changes = ("", list(words)) if "=" in first else (first, rest)
    bare = next((word for word in changes if "=" not in word), None)
    if bare is not None or not changes:
        hint = ": configurations stand before --variant" if str(bare or first).endswith(".toml") else ""
        raise ValueError(
            f"--variant {' '.join(words)}: {bare or first!r} is no KEY=VALUE{hint or ', as algorithm.mu=0.1 is'}; a "
            "variant is [NAME] KEY=VALUE [KEY=VALUE ...]"
        )
    return label, changes


def _short_keys(changes: Iterable[str]) -> Any:
    """A function that writes a change with the last part of its key alone, where that says which one is meant."""
    keys = {change.partition("=")[0].strip() for change in changes}
    last = [key.rpartition(".")[2] for key in keys]

    def short(change: str) -> str:
        key, _, value = change.partition("=")
        end = key.strip().rpartition(".")[2]
        alone = last.count(end) == 1 and end != "name"
        return f"{end if alone else key.strip()}={value.strip()}"

    return short


def _file_names(labels: Sequence[str]) -> list[str]:
    names = [re.sub(r"[^\w.=+-]+", "-", label).strip("-.")[:80] or "run" for label in labels]
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name}-{count}" for name, count in zip(names, counts, strict=True)]


def differences(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What runs should share to be comparable and do not, a line each; of what each has, by its label."""
    lines = []
    for what in next(iter(described.values()), ()):
        values = {label: about[what] for label, about in described.items()}
        distinct = list(dict.fromkeys(map(str, values.values())))
        if len(distinct) > 1:
            shown = ", ".join(f"{label}: {value}" for label, value in list(values.items())[:4])
            lines.append(f"{what} differ ({shown}{', ...' if len(values) > 4 else ''})")
    return lines
