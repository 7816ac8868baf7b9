"""What an experiment of a paper is, and what comes out of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.papers.bench import Bench

Size = Literal["smoke", "cpu", "paper"]


class Claim(NamedTuple):
    """A qualitative claim of a paper, held against what was measured.

    Attributes:
      statement: what the paper says, in our words, so that it can be true or false.
      held: whether it did; None where this size cannot tell.
      numbers: what the answer rests on, plain JSON data.
      note: why it cannot be told, or what else a reader should know.
      own: it is a check or a question of ours, which the paper does not claim; boards count these apart.
    """

    statement: str
    held: bool | None
    numbers: Mapping[str, Any]
    note: str = ""
    own: bool = False


class Setting(NamedTuple):
    """A part of the setting, the paper's beside the one that was run.

    Attributes:
      what: "rounds", "clients", "model".
      paper: as the paper states it; "not given" where it does not.
      here: as it was run; the same string where it is the same.
    """

    what: str
    paper: str
    here: str


class Table(NamedTuple):
    """A table of a paper, redrawn.

    Attributes:
      title: what the rows are.
      columns: the headings.
      rows: strings, numbers (printed with three digits), or None for nothing.
      note: below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]
    note: str = ""


class Outcome(NamedTuple):
    """What an experiment gives back to be written down.

    Attributes:
      settings: the paper's beside ours.
      claims: at least one.
      figures: matplotlib figures by the name of their file, without its ending.
      tables: in the order of printing.
      numbers: raw results beside the runs, which are recorded anyway; plain JSON data and arrays.
    """

    settings: Sequence[Setting]
    claims: Sequence[Claim]
    figures: Mapping[str, Any] = {}
    tables: Sequence[Table] = ()
    numbers: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, or several drawn from the same runs.

    Attributes:
      source: paper and number: "Wang et al. 2020 (FedNova), Figure 2".
      seeds: how many, by size; the paper's number at ``"paper"``.
      perform: runs it and draws it.
    """

    source: str
    seeds: Mapping[Size, int]
    perform: Callable[[Bench], Outcome]
