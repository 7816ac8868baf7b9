"""The studies of ``benchmarks/studies`` at their smallest size."""

import importlib
import json

import pytest


def at_smoke_size(name, folder, *, data=True, largest=100_000):
    """The result of a study, whose files are in ``folder``; ``data``: whether it takes scikit-learn's.

    Its figure has less than the ``largest`` number of bytes.
    """
    pytest.importorskip("matplotlib")
    if data:
        pytest.importorskip("sklearn")
    study = importlib.import_module(f"benchmarks.studies.{name}").STUDY
    result = study.main(["--size", "smoke", "--out", str(folder)])
    assert json.loads((folder / f"{name}.json").read_text())["environment"]["size"] == "smoke"
    assert 0 < (folder / f"{name}.png").stat().st_size < largest
    return result
