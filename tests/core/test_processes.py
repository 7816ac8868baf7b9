"""Several processes on this machine compute one run, each with devices of its own, and agree."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import devices
from tests import meeting

ROOT = pathlib.Path(__file__).parents[2]


def test_alone_a_process_is_the_first_and_hears_itself():
    assert devices.is_first()
    assert devices.all_said([3, 0]).tolist() == [[3, 0]]
    assert devices.together(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        devices.together(lambda: 1 // 0)


@pytest.mark.slow
def test_two_processes_compute_one_run(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.meeting", address, "2"]
    started = [
        subprocess.Popen(
            [*command, str(number), str(tmp_path)], env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    first, second = (np.load(tmp_path / f"{number}.npz") for number in range(2))
    for name in set(first.files) - {"failures"}:
        np.testing.assert_array_equal(first[name], second[name])  # both have the whole result
    assert "keep" in str(first["failures"][0])
    assert "process 0 of this run has failed" in str(second["failures"][0])
    assert str(first["failures"][3]) == "OSError: no tracker"
    assert "process 0 of this run has failed" in str(second["failures"][3])
    for found in (first, second):
        assert "process 1 has none of them" in str(found["failures"][1])
        assert not str(found["failures"][2])  # both directories are new: the first process's is the run's
    leaves = [name.removeprefix("whole/") for name in first.files if name.startswith("whole/")]
    alone = meeting.run(4, layout=fjs.layout.turns())
    for index, expected in zip(leaves, alone, strict=True):
        np.testing.assert_array_equal(first[f"both halves/{index}"], first[f"whole/{index}"])
        np.testing.assert_allclose(first[f"whole/{index}"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(first[f"replicated/{index}"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(first[f"on the host/{index}"], first[f"replicated/{index}"])
