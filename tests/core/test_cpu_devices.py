"""The number of CPU devices: the rule, and that it must be said before JAX starts."""

import json
import os

import jax
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import devices
from tests.processes import printed

PROGRAM = """
import json, os
import fedjax_sim as fjs
first, second = fjs.use_cpu_devices(3), fjs.use_cpu_devices(3)
import jax
jax.devices()
third = fjs.use_cpu_devices()
try:
    fjs.use_cpu_devices(2)
except RuntimeError as error:
    print(json.dumps([first, second, third, len(jax.devices()), os.environ.get("NPROC"), str(error)]))
"""


@pytest.mark.slow
def test_before_and_after_jax_starts(monkeypatch):
    first, second, third, present, threads, error = json.loads(printed("-c", PROGRAM, NPROC="1"))
    assert first == second == third == [3, 1]
    assert (present, threads) == (3, "1")
    assert "use_cpu_devices(2)" in error
    assert "with 3 cpu device(s)" in error


def test_too_late():
    jax.devices()
    with pytest.raises(RuntimeError, match="JAX has started already, with 1 cpu"):
        fjs.use_cpu_devices(5)


@pytest.mark.parametrize(("arguments", "error"), [((0,), ValueError), ((1.5,), TypeError), ((1, 0), ValueError)])
def test_what_is_no_number(arguments, error):
    with pytest.raises(error, match="use_cpu_devices"):
        fjs.use_cpu_devices(*arguments)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with this many sockets, cores a socket and threads a core."""
    asked = []

    def make(sockets, cores, threads, quota=None, only=None):
        number = 0
        for _ in range(threads):
            for socket in range(sockets):
                for core in range(cores):
                    place = tmp_path / f"cpu{number}" / "topology"
                    place.mkdir(parents=True, exist_ok=True)
                    (place / "physical_package_id").write_text(f"{socket}\n")
                    (place / "core_id").write_text(f"{core}\n")
                    number += 1
        (tmp_path / "max").write_text(quota or "max 100000")
        monkeypatch.setattr(devices, "_TOPOLOGY", tmp_path)
        monkeypatch.setattr(devices, "_QUOTA", tmp_path / "max")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: only or set(range(number)), raising=False)
        monkeypatch.setattr(jax.config, "update", lambda name, value: asked.append(value))
        monkeypatch.delenv("NPROC", raising=False)
        monkeypatch.delenv("XLA_FLAGS", raising=False)
        return devices.available_cores()

    make.asked = asked
    return make


@pytest.mark.parametrize(
    ("description", "cores", "chosen"),
    [
        ({"sockets": 1, "cores": 2, "threads": 1}, 2, (2, 1)),
        ({"sockets": 1, "cores": 4, "threads": 2}, 4, (4, 1)),
        ({"sockets": 2, "cores": 4, "threads": 2}, 8, (8, 1)),
        ({"sockets": 2, "cores": 16, "threads": 2}, 32, (8, None)),  # cores are left: XLA may use them
        ({"sockets": 2, "cores": 16, "threads": 2, "quota": "350000 100000"}, 3, (3, 1)),
        ({"sockets": 1, "cores": 4, "threads": 1, "quota": "50000 100000"}, 1, (1, 1)),
        ({"sockets": 1, "cores": 4, "threads": 2, "only": {0, 4, 1}}, 2, (2, 1)),  # 0 and 4 are one core
        ({"sockets": 1, "cores": 4, "threads": 1, "quota": "nonsense"}, 4, (4, 1)),
    ],
)
def test_the_rule(machine, description, cores, chosen):
    assert machine(**description) == cores
    assert tuple(fjs.use_cpu_devices()) == chosen
    assert machine.asked == [chosen[0]]
    assert os.environ.get("NPROC") == (None if chosen[1] is None else "1")


def test_what_was_said_elsewhere_is_respected(machine, monkeypatch):
    machine(1, 4, 1)
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_force_host_platform_device_count=3")
    monkeypatch.setenv("NPROC", "2")
    assert fjs.use_cpu_devices() == (3, 2)
    assert fjs.use_cpu_devices(2, threads=4) == (2, 4)
    assert os.environ["NPROC"] == "4"
    assert fjs.use_cpu_devices(1) == (1, 4)


def test_one_device_leaves_the_threads_to_xla(machine):
    machine(1, 4, 1)
    assert fjs.use_cpu_devices(1) == (1, None)
    assert str(devices.CpuDevices(1, None)) == "1 CPU device"
    assert str(devices.CpuDevices(4, 2)) == "4 CPU devices, 2 threads for their operations"
