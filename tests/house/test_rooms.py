"""The house: a dozen rooms, imports that point down, no circle, no file that is too long."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "site" / "house.py")
house = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(house)


def lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_module_imports_itself_in_a_circle():
    assert house.circles(house.imports()) == []


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}
    assert house.circles(graph) == [["b", "c"], ["d"]]


def test_rooms_stand_on_rooms_below():
    assert house.circles(house.rooms()) == []
    assert len(house.floors()) <= 13
    assert len(house.rooms()) <= 14  # thirteen, and the door


def test_no_module_stands_outside_of_the_rooms():
    assert sorted(path.name for path in (ROOT / "fedjax_sim").glob("*.py*")) == ["__init__.py", "__init__.pyi"]


def test_no_file_is_too_long():
    assert {name: lines(path) for name, path in house.modules().items() if lines(path) > 400} == {}


def test_the_picture_shows_what_is():
    assert house.PICTURE.read_text(encoding="utf-8") == house.picture(), "python docs/site/house.py draws it again"
