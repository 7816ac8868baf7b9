"""Python in a process of its own, as tests start it."""

import os
import subprocess
import sys


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def printed(*arguments: str, devices: int | None = None, **variables: str) -> str:
    """What Python prints with these arguments, variables and so many devices of a CPU; it must end well."""
    if devices is not None:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        variables |= {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment(**variables), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
