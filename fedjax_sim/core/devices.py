"""Where a run computes: devices, processes and threads, what they hold at a time, and what changes their rounding."""

from __future__ import annotations

import functools
import importlib
import math
import os
import platform
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import flax
import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.core.keys import generator
from fedjax_sim.core.values import check_count
from fedjax_sim.core.version import __version__

T = TypeVar("T")

MOST = 8  # devices that the rule takes: more were never measured
THREADS = "NPROC"  # the variable from which XLA reads how many threads its operations may use
_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY = Path("/proc/meminfo")
# JAX's settings that change how results are rounded and no draw, as they are unless it is told otherwise.
_ROUNDING = {
    "jax_accurate_erf_inv": False,
    "jax_allow_f16_reductions": True,
    "jax_compiler_enable_remat_pass": True,
    "jax_default_device": None,
    "jax_default_matmul_precision": None,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_optimization_level": "UNKNOWN",
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": True,
    "jax_use_hlo_logistic_lowering": None,
}
# Flags of XLA that change no result: how many CPU devices there are is said beside them; files to look at.
_NO_MATTER = re.compile(r"--xla_(force_host_platform_device_count|dump_)")
# Bytes of the largest intermediate array. 128 MB leave room for a few of them in 2 GB. On a CPU what leaves the cache
# is slow: an evaluation of a small CNN took 502 ms with 128 MB, 363 with 16, 233 with 8, 201 with 4 and 207 with 2
# (of FemnistCNN 1,247, 1,081, 976, 859, 872; of logistic regression the same with all).
_BUDGETS = {"cpu": 1 << 22}
_BUDGET = 1 << 27
_PROBE = 64  # rows of the program that is looked at: what has no rows (a cast of the weights) must count little
_AHEAD = 2  # items made ahead: one being used by the device, one ready, one being made


class CpuDevices(NamedTuple):
    """The numbers of virtual CPU devices and of the threads that their operations share; None leaves those to XLA."""

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

    Raises:
      TypeError, ValueError: not a positive integer.
      RuntimeError: JAX has started already, with other settings.
    """
    for name, value in (("count", count), ("threads", threads)):
        if value is not None:
            check_count(f"use_cpu_devices({name}=...)", value)
    cores = available_cores()
    if count is None:
        count = _asked_for() or min(cores, MOST)
    said = os.environ.get(THREADS, "")
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
        os.environ[THREADS] = str(chosen.threads)
    return chosen


def available_cores() -> int:
    """Physical cores that this process may keep busy, by its affinity and its container's quota; at least 1."""
    cores = len({_core(processor) for processor in affinity()})
    try:
        granted, period = _QUOTA.read_text().split()
        return max(1, min(cores, int(float(granted) / float(period))))
    except (OSError, ValueError):  # no control group, or one that grants the "max"
        return max(1, cores)


def affinity() -> list[int]:
    """The processors that this process may use."""
    given = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))  # not every system has it
    return sorted(given(0))


@functools.cache
def processor(*about: str) -> tuple[str, ...]:
    """What is known of the CPU, whose ``device_kind`` says nothing: its kind, the models or what is asked."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    found = {line.partition(":")[2].strip() for line in lines if line.startswith(about or "model name")}
    return (platform.machine(), *sorted(found))


def _core(processor: int) -> tuple[str, ...]:
    """What the hyper-threads of one core have in common; the processor itself where the system does not say."""
    try:
        place = _TOPOLOGY / f"cpu{processor}" / "topology"
        return tuple((place / name).read_text().strip() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(processor),)


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
    return enable(enabled)


def environment() -> dict[str, Any]:
    """Versions, device, and the settings in force that change draws or rounding."""
    settings = {name: getattr(jax.config, name, usual) for name, usual in _ROUNDING.items()}
    flags = os.environ.get("XLA_FLAGS", "").split()
    device, processes = jax.devices()[0], jax.process_count()
    return {
        "fedjax_sim": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "device": f"{jax.device_count()} x {device.device_kind}{f' of {processes} processes' if processes > 1 else ''}",
        **(
            {"processor": list(processor())} if device.platform == "cpu" else {"driver": device.client.platform_version}
        ),
        "float": str(jnp.result_type(float)),
        "generator": generator(),
        "settings": {
            name: value if isinstance(value, (bool, int, float, NoneType)) else str(value)
            for name, value in settings.items()
            if value != _ROUNDING[name]
        },
        "flags": sorted(flag for flag in flags if not _NO_MATTER.match(flag)),
    }


def is_first() -> bool:
    """Whether this process is, of those that compute a run together, the one that speaks and writes."""
    return jax.process_index() == 0


def all_said(numbers: Sequence[int]) -> np.ndarray:
    """What every process says, int[processes, len(numbers)]; all of them must call this at the same point."""
    own = np.asarray([numbers], np.int32)
    if jax.process_count() == 1:
        return own
    mesh, hear = _meeting()
    shape = (jax.process_count(), len(numbers))
    said = jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec("processes")), lambda _: own)
    heard = hear(said)
    return np.asarray(heard.addressable_data(0))


@functools.cache  # a function that is made anew is compiled anew
def _meeting() -> tuple[Mesh, Any]:
    """One device of each process, and what gives all of them what each has."""
    # They may have different numbers of devices.
    one_each = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.asarray([one_each[index] for index in sorted(one_each)]), ("processes",))
    return mesh, jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))


def together(action: Callable[[], T]) -> T:
    """Does something in every process, and fails in all where it failed in one, so that none waits for the others."""
    error = None
    try:
        done = action()
    except Exception as raised:
        error = raised
    failed = np.flatnonzero(all_said([error is not None])[:, 0])
    if error is not None:
        raise error
    if failed.size:
        raise RuntimeError(f"process {failed[0]} of this run has failed, and says why")
    return done


def prefetched(make: Callable[[int], T], count: int) -> Iterator[T]:
    """Yields ``make(0)``, ..., ``make(count - 1)``, each made in a background thread before it is asked for.

    ``make`` is called in order, never twice at a time; its error is raised where the item is asked for. What was begun
    is finished or dropped when the iterator is closed. It sees the caller's precision and default device, which
    contexts set for one thread alone: float64 examples would arrive as float32 without them.
    """
    double, device = jnp.result_type(float) == jnp.float64, jax.config.jax_default_device  # type: ignore[attr-defined]

    def made(item: int) -> T:
        with double_precision(double), jax.default_device(device):
            return make(item)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fedjax_sim-prefetch") as thread:
        waiting: deque[Future[T]] = deque()
        try:
            for item in range(count):
                while len(waiting) <= _AHEAD and item + len(waiting) < count:
                    waiting.append(thread.submit(made, item + len(waiting)))
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def threads_for_programs(count: int) -> ThreadPoolExecutor | None:
    """So many threads, from which compiled programs of one CPU device run side by side; None where they would not.

    XLA runs what one thread asks of a device in order. A setting of JAX may be that of the calling thread alone
    (``jax.enable_x64(True)`` and other contexts): then there are no threads, which would compile the programs again,
    with settings of their own.
    """
    if count < 2 or jax.default_backend() != "cpu":
        return None
    threads = ThreadPoolExecutor(count, thread_name_prefix="fedjax_sim-programs")
    if threads.submit(_settings).result() == _settings():
        return threads
    threads.shutdown()
    return None


def _settings() -> dict[str, Any]:
    """All settings of JAX as this thread has them."""
    config: Any = jax.config
    return {name: getattr(config, name, None) for name in config.values}


def free_memory(*, device: bool = True) -> float:
    """Bytes that may still be taken of a ``device`` with memory of its own, else of the host's; infinity if unknown."""
    found = (jax.local_devices()[0].memory_stats() or {}) if device else {}
    if "bytes_limit" in found:
        return float(found["bytes_limit"] - found.get("bytes_in_use", 0))
    available = re.search(r"MemAvailable: *(\d+)", _MEMORY.read_text()) if _MEMORY.exists() else None
    return math.inf if available is None else float(available[1]) * 1024


def rows_within(function: Callable[[Any, Any], Any], params: Any, examples: Any, *, most: int) -> int:
    """How many examples ``function`` can take at once within bounded memory: at least 1, at most ``most``.

    ``function(params, examples)`` is traced, not run: the largest array in it, of all its inner programs, decides.
    ``params`` and ``examples``, whose leading axis may have any length, are arrays or their shapes.
    """
    rows = min(most, _PROBE)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), examples)
    program = jax.make_jaxpr(function)(like, some)
    largest = max(_sizes(program.jaxpr), default=1)
    return max(1, min(most, _BUDGETS.get(jax.default_backend(), _BUDGET) * rows // max(largest, 1)))


def _sizes(program: Any) -> Iterator[int]:
    """Bytes of what every instruction of a program, and of the programs inside it, computes."""
    for instruction in program.eqns:
        for variable in instruction.outvars:
            shape, dtype = getattr(variable.aval, "shape", None), getattr(variable.aval, "dtype", None)
            yield 0 if shape is None or dtype is None else math.prod(shape) * dtype.itemsize
        for inner in inner_programs(instruction):
            yield from _sizes(inner)


def check_not_summed(who: str, tree: Any) -> None:
    """Raises where ``jax.shard_map`` follows over which devices the values vary that a function is given.

    It then sums every gradient in a value that is alike on all devices over these: those of clients' steps too.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct)):
            kind: Any = jax.typeof(leaf) if isinstance(leaf, jax.core.Tracer) else leaf
            if getattr(getattr(kind, "manual_axis_type", kind), "varying", None) or getattr(kind, "vma", None):
                raise ValueError(
                    f"{who} was given a value that varies over the devices of a jax.shard_map with check_vma=True, its "
                    "default, which sums gradients over devices, those of the clients' steps too: give it "
                    "check_vma=False, or share out the clients with layout=fedjax_sim.layout.mesh()"
                )


def inner_programs(instruction: Any) -> Iterator[Any]:
    """The programs (jaxprs) in the parameters of an instruction of one: branches, bodies of loops, functions."""
    for parameter in instruction.params.values():
        for inner in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner
