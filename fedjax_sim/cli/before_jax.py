"""What a command says to JAX before it starts: where compiled programs are kept, how many CPU devices there are."""

from __future__ import annotations

import argparse

from fedjax_sim.cli.cache import use_compilation_cache
from fedjax_sim.core.devices import CpuDevices, use_cpu_devices


def settle(
    options: argparse.Namespace, *, devices: int | None = None, threads: int | None = None, cache: bool = True
) -> CpuDevices | None:
    """Settles both, if the process is the command's own.

    Args:
      options: of the command.
      devices: as :func:`fedjax_sim.use_cpu_devices`, as ``threads``.
      threads: of the operations.
      cache: whether compiled programs are kept.

    Returns:
      The devices and threads; None where a Python program called the command, whose settings are left as they are.
    """
    if not options.own_process:
        return None
    if cache:
        use_compilation_cache()
    return use_cpu_devices(devices, threads)
