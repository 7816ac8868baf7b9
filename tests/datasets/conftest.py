"""What the tests of data sets from files share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory."""
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    return tmp_path
