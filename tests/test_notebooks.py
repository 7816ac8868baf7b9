"""The notebooks' code runs from the first cell to the last."""

import json
import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.mark.docs
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_cells_run(notebook, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": notebook.stem}
    for number, cell in enumerate(cells(notebook)):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), scope)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(notebook):
    for cell in cells(notebook):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
