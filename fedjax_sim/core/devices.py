"""What JAX computes with: how many devices it sees on a CPU, said before it starts, and the precision of a block."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_sim.core.values import check_count

MOST = 8  # devices that the rule takes: more were never measured
_THREADS = "NPROC"  # the variable from which XLA reads how many threads its operations may use
_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class CpuDevices(NamedTuple):
    """What :func:`use_cpu_devices` chose.

    Attributes:
      devices: number of virtual CPU devices.
      threads: size of the pool of threads that the operations of all devices share; None leaves it to XLA, which takes
        one a processor.
    """

    devices: int
    threads: int | None

    def __str__(self) -> str:
        several = f"{self.devices} CPU device{'s' if self.devices != 1 else ''}"
        if self.threads is None:
            return several
        return f"{several}, {self.threads} thread{'s' if self.threads != 1 else ''} for their operations"


def use_cpu_devices(count: int | None = None, threads: int | None = None) -> CpuDevices:
    """Sets the number of CPU devices and of threads, before JAX starts.

    A CPU is one device to JAX, whose operations share out their work over all cores. The operations of small models are
    too small for that: one device a core, each with its share of the cohort, is faster (an MLP 784-200-200-10 with 50
    clients on two cores: 36 ms a round on one device, 32 ms with one thread, 19 ms on two devices; docs/devices.md).
    On a machine with a GPU or TPU this changes nothing but the CPU devices beside it.

    Args:
      count: number of devices; None for one a core that this process may use (physical cores, affinity and the
        container's quota respected), at most 8, unless JAX_NUM_CPU_DEVICES or XLA_FLAGS already say how many.
      threads: of the pool that the operations of all devices share; None for one where every core has a device, else
        for what the variable NPROC says, else for XLA's own choice. It is set in this process's environment (NPROC),
        from where XLA reads it.

    Returns:
      What was chosen.

    Raises:
      TypeError, ValueError: not a positive integer.
      RuntimeError: JAX has started already, with other settings.

    Example:
      >>> print(CpuDevices(2, 1))
      2 CPU devices, 1 thread for their operations
    """
    for name, value in (("count", count), ("threads", threads)):
        if value is not None:
            check_count(f"use_cpu_devices({name}=...)", value)
    cores = available_cores()
    if count is None:
        count = _asked_for() or min(cores, MOST)
    said = os.environ.get(_THREADS, "")
    if threads is None:
        threads = int(said) if said.isdecimal() and int(said) > 0 else 1 if count >= cores else None
    chosen = CpuDevices(int(count), None if threads is None else int(threads))
    if _configured() == chosen.devices and said == (str(chosen.threads) if chosen.threads is not None else said):
        return chosen  # said before, or by the environment
    try:
        if _configured() == chosen.devices:
            # JAX that has started takes the number it has without a word, with threads that come too late.
            jax.config.update("jax_num_cpu_devices", chosen.devices + 1)
        jax.config.update("jax_num_cpu_devices", chosen.devices)
    except RuntimeError as error:
        raise RuntimeError(
            f"use_cpu_devices({chosen.devices}): JAX has started already, with {jax.local_device_count()} "
            f"{jax.default_backend()} device(s), and cannot start again: call it before anything is computed, "
            "right after the imports"
        ) from error
    if chosen.threads is not None:
        os.environ[_THREADS] = str(chosen.threads)
    return chosen


def available_cores() -> int:
    """Physical cores that this process may keep busy, by its affinity and its container's quota; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        processors = os.sched_getaffinity(0)
    else:
        processors = set(range(os.cpu_count() or 1))
    cores = len({_core(processor) for processor in processors})
    quota = _quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


@functools.cache
def processor() -> tuple[str, ...]:
    """What is known of the CPU, whose ``device_kind`` says nothing: its kind and the models."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return (platform.machine(), *sorted(models))


def _core(processor: int) -> tuple[str, ...]:
    """What the hyper-threads of one core have in common; the processor itself where the system does not say."""
    try:
        place = _TOPOLOGY / f"cpu{processor}" / "topology"
        return tuple((place / name).read_text().strip() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(processor),)


def _quota() -> float | None:
    """How many processors' time the control group grants, or None."""
    try:
        granted, period = _QUOTA.read_text().split()
        return None if granted == "max" else float(granted) / float(period)
    except (OSError, ValueError):
        return None


def _asked_for() -> int | None:
    """The number of CPU devices that the environment asks JAX for, or None."""
    if _configured() > 0:
        return _configured()
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def _configured() -> int:
    """What JAX has been told, by its own variable or by us; -1 for nothing."""
    config: Any = jax.config
    return int(config.jax_num_cpu_devices)


def double_precision(enabled: bool = True) -> AbstractContextManager[Any]:
    """A context in which JAX has double precision (or has not), whatever it is set to outside; of one thread."""
    enable: Any = getattr(jax, "enable_x64", None)
    if enable is None:  # jax < 0.8
        enable = importlib.import_module("jax.experimental").enable_x64
    context: AbstractContextManager[Any] = enable(enabled)
    return context
