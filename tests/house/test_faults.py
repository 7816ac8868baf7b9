"""The lists of faults to plant (``python -m tests.faults``) fit the package as it is."""

import ast
import functools

import pytest

from tests.faults import ROOT, faults, noticed, rooms


def test_every_room_has_its_list():
    assert rooms() == sorted(path.parent.name for path in (ROOT / "fedjax_sim").glob("*/__init__.py"))


@functools.cache
def sound(file):
    """The file's text and its program; most files have several faults."""
    text = (ROOT / "fedjax_sim" / file).read_text("utf-8")
    return text, ast.dump(ast.parse(text))


@pytest.mark.parametrize("room", rooms())
def test_each_fault_has_one_place_and_leaves_a_program(room):
    listed = faults(room)
    assert len(listed) >= 8
    assert len({(fault.file, fault.before, fault.after) for fault in listed}) == len(listed)
    for fault in listed:
        assert fault.file.startswith(f"{room}/"), fault
        assert fault.why, fault
        text, program = sound(fault.file)
        assert ast.dump(ast.parse(fault.planted(text))) != program, fault


def test_what_noticed_them_last_time_is_known_by_their_names():
    names = [fault.name for room in rooms() for fault in faults(room)]
    assert len(set(names)) == len(names)
    known = noticed()
    assert known.keys() <= set(names)
    assert all((ROOT / test.partition("::")[0]).is_file() for test in known.values())
    assert not [name for name, test in known.items() if test.startswith("tests/house/test_faults.py")]  # fails of all
