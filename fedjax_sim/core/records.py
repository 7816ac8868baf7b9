"""What is said of a method beside its code: its paper, what its clients keep and send, and a case for the tests.

Tables, citations and tests of all methods are made from these records. Nothing here imports JAX: the command line reads
the records out of the source.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import re
import unicodedata
from typing import Any

_NUMBERS = {"1": "one model", "2": "two models", "3": "three models"}
_ACCENTS = {'"': "\N{COMBINING DIAERESIS}", "v": "\N{COMBINING CARON}", "'": "\N{COMBINING ACUTE ACCENT}"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What is said of a method.

    Attributes:
      step: one round in a line.
      cite: its papers, keys of ``citations.bib`` or an entry of BibTeX itself.
      paper: who wrote them, where that is not to be read from the first.
      kept: models that a client keeps, ``"1"`` or ``"none"``.
      sent: models down and up, a round and client: ``"1 / 1 + a scalar"``; "" for one each, or for the base's.
      options: its own hyper-parameters with a word about them; "" for their names alone.
      group: the part of the tables of methods where a new one is put; there it may be moved.
      case: arguments with which the tests of all methods run it, beside a client optimiser, or a base (by name) other
        than FedAvg; ``"inert"`` names those that do nothing there. None where the tests cannot make it.
    """

    step: str
    cite: str | tuple[str, ...] = ()
    paper: str = ""
    kept: str = "none"
    sent: str = ""
    options: str = ""
    group: str = ""
    case: dict[str, Any] | None = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sent:
            object.__setattr__(self, "sent", "the base's" if self.kept.startswith("the base's") else "1 / 1")

    @property
    def entries(self) -> dict[str, str]:
        """The papers' entries by their keys."""
        given = (self.cite,) if isinstance(self.cite, str) else self.cite
        return {_key(one): one if one.startswith("@") else _file()[one] for one in given}

    @property
    def authors(self) -> str:
        """Who wrote the paper, and when: ``"Li et al. 2020"``."""
        return self.paper or next(map(_authors, self.entries.values()), "")

    @property
    def keeps(self) -> str:
        """What a client keeps, in words."""
        return _words(self.kept)

    @property
    def sends(self) -> str:
        """What is sent, in words."""
        down, slash, up = self.sent.partition(" (")[0].partition(" / ")
        if not slash:
            return down.replace("the base's", "as the base")
        return f"{_words(down).capitalize()} down, {re.sub(' models?', '', _words(up))} up"


RECORDS: dict[str, Record] = {}
"""The records by registered names, of what has been imported."""


def entries() -> dict[str, str]:
    """All entries of BibTeX by their keys: those of the package's file, and those in records."""
    return _file() | {key: entry for record in RECORDS.values() for key, entry in record.entries.items()}


@functools.cache
def _file() -> dict[str, str]:
    text = importlib.resources.files("fedjax_sim").joinpath("reporting", "citations.bib").read_text(encoding="utf-8")
    return {_key(entry): entry for entry in text.strip().split("\n\n")}


def _key(cite: str) -> str:
    return cite.partition("{")[2].partition(",")[0] if cite.startswith("@") else cite


def _authors(entry: str) -> str:
    """Of one or two all names, of more the first."""
    found = dict(re.findall(r"^  (author|year) = \{(.+)\},$", entry, re.MULTILINE))
    names = [name.partition(",")[0] for name in _plain(found["author"]).split(" and ")]
    who = names[0] + (" et al." if len(names) > 2 else f" and {names[1]}" if len(names) == 2 else "")
    return f"{who} {found['year']}"


def _plain(text: str) -> str:
    """BibTeX without its braces and its ways of writing accents."""
    accented = re.sub(r"\{\\(.)\{?(\w)\}?\}", lambda found: found[2] + _ACCENTS[found[1]], text)
    return unicodedata.normalize("NFC", re.sub(r"[{}]", "", accented))


def _words(cell: str) -> str:
    """A cell of the table in words: ``"1 + a scalar"`` is one model and a scalar."""
    text = re.sub(r"\b[123]\b", lambda found: _NUMBERS[found[0]], cell.replace("`", ""))
    return text.replace(" + ", " and ")
