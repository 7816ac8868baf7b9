"""``--one-in N --turn T``: each turn runs another N-th of the slow tests, N turns all of them; the fast ones always."""

import dataclasses
import doctest
import pkgutil
import types
from typing import Any

import pytest

from tests.conftest import LONG_EXAMPLES, pytest_collection_modifyitems

CASES = {"alone": 1, "few": 3, "eight": 8, "many": 21}
SLOW = {f"tests/a.py::{name}[{case}]" for name, number in CASES.items() for case in range(number)}
FAST = {f"tests/a.py::fast[{case}]" for case in range(9)}


@dataclasses.dataclass(frozen=True)
class Item:
    """What the selection reads of a test."""

    nodeid: str

    @property
    def keywords(self) -> set[str]:
        return {"slow"} if self.nodeid in SLOW else set()


def selected(share: int, turn: int) -> set[str]:
    items: Any = [Item(name) for name in sorted(SLOW | FAST)]
    gone: list[Any] = []
    config: Any = types.SimpleNamespace(
        getoption={"one_in": share, "turn": turn, "as_accelerator": False}.__getitem__,
        hook=types.SimpleNamespace(pytest_deselected=lambda items: gone.extend(items)),
    )
    pytest_collection_modifyitems(config, items)
    assert len(items) + len(gone) == len(SLOW | FAST)
    return {item.nodeid for item in items}


@pytest.mark.parametrize("first", [0, 1234])
def test_turns_share_the_slow_tests_out(first: int) -> None:
    turns = [selected(8, turn) for turn in range(first, first + 8)]
    assert all(one >= FAST for one in turns)
    assert sorted(name for one in turns for name in one - FAST) == sorted(SLOW)
    assert selected(8, first + 8) == turns[0]  # the same ones again
    for one in turns:
        of = {name: len([case for case in one if f"::{name}[" in case]) for name in CASES}
        assert of["eight"] == 1
        assert of["many"] in (2, 3)


def test_without_a_share_all_are_run() -> None:
    assert selected(1, 5) == SLOW | FAST


@pytest.mark.parametrize("name", sorted(LONG_EXAMPLES))
def test_a_long_example_is_where_it_is_said_to_be(name: str) -> None:
    """As doctest names it: after the module in which it is written. What has gone elsewhere is fast again unseen."""
    thing = pkgutil.resolve_name(name)
    module = pkgutil.resolve_name(thing.__module__)
    found = doctest.DocTestFinder(recurse=False).find(thing, f"{module.__name__}.{thing.__qualname__}", module)
    assert [test.name for test in found if test.examples] == [name]
