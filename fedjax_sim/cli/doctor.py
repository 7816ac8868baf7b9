"""``fedjax-sim doctor``: what is installed, what JAX sees, where files go, what is wrong and how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedjax_sim.cli.options import add_json
from fedjax_sim.core.files import cache_directory, others_may_write
from fedjax_sim.core.version import __version__

_PACKAGE = "fedjax_sim"
_DATA_VARIABLE = "FEDJAX_SIM_DATA"
_PATIENCE = 120.0  # seconds that JAX may take to start
_TOOLS = ("bench", "test", "all", "demo", "docs")  # extras of the project's own work, or of several others
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"].*)?$")
_LOWER_BOUND = re.compile(r">=\s*(\d+(?:\.\d+)*?)(?:\.0)*(?![\d.])")
# In a process of its own: a broken JAX may raise, crash or hang.
_PROBE = """
import json
import jax
from fedjax_sim.core.devices import available_cores, use_cpu_devices
chosen = use_cpu_devices()
devices = jax.devices()
value = float(jax.jit(lambda x: (x * x).sum())(jax.numpy.arange(4.0)))
print(json.dumps({
    "backend": jax.default_backend(), "devices": [f"{one.device_kind} {one.id}" for one in devices],
    "cores": available_cores(), "chosen": str(chosen), "computes": value == 14.0,
}))
"""


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("doctor", help="versions, devices, data and cache directories: what is wrong here")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it; 1 where something is wrong."""
    problems: dict[str, str] = {}  # what is wrong, and what to do
    packages, extras = _packages(problems)
    settings = [_DATA_VARIABLE, "FEDJAX_SIM_CACHE", "XDG_CACHE_HOME", "NPROC", "XLA_FLAGS"]
    settings += sorted(name for name in os.environ if name.startswith("JAX_"))
    found = _jax(problems)
    about: dict[str, Any] = {
        "fedjax_sim": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "extras": extras,
        "jax": found,
        "settings": {name: os.environ[name] for name in settings if name in os.environ},
        "data": _data(problems, readable=found is not None),
        "cache": _cache(problems),
    }
    if options.json:
        print(json.dumps({**about, "problems": [{"what": what, "fix": fix} for what, fix in problems.items()]}))
    else:
        print(_text(about, problems))
    return 1 if problems else 0


def _packages(problems: dict[str, str]) -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """The versions of what is needed, and of what each extra brings; None for what is not there."""
    try:
        requirements = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        problems["the package is not installed, but imported from a folder"] = "pip install -e ."
        return {}, {}
    needed: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for name, bounds, extra in (found.groups() for found in map(_REQUIREMENT.match, requirements) if found):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if extra is None:
            needed[name] = version
            if version is None:
                problems[f"{name} is not installed"] = f"pip install '{name}{bounds}'"
            elif not _reaches(version, bounds):
                problems[f"{name} is {version}, and {bounds} is needed"] = f"pip install '{name}{bounds}'"
        elif extra not in _TOOLS and name.replace("-", "_") != _PACKAGE:
            extras.setdefault(extra, {})[name] = version
    return needed, extras


def _reaches(version: str, bounds: str) -> bool:
    """Whether a version is at least the lower bound, by its numbers."""
    low = _LOWER_BOUND.search(bounds)
    return low is None or _numbers(version) >= _numbers(low[1])


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _jax(problems: dict[str, str]) -> dict[str, Any] | None:
    """What JAX sees, asked in a process of its own; None where it does not answer."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    call = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=_PATIENCE, env=environment)
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        fix = "set JAX_PLATFORMS=cpu; if that helps, the driver of the accelerator is at fault"
        problems[f"JAX did not start within {_PATIENCE:.0f} seconds"] = fix
        return None
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        named = os.environ.get("JAX_PLATFORMS")
        fix = "pip install --force-reinstall jax jaxlib" if not named else f"unset JAX_PLATFORMS (it is {named})"
        problems[f"JAX does not start: {last[:300]}"] = fix
        return None
    if not found["computes"]:
        problems["JAX computes wrong sums"] = "pip install --force-reinstall jax jaxlib"
    if found["backend"] == "cpu" and shutil.which("nvidia-smi") and os.environ.get("JAX_PLATFORMS", "") != "cpu":
        problems["there is an NVIDIA driver, and JAX uses the CPU"] = "pip install -U 'jax[cuda12]'"
    return found


def data_directory() -> Path:
    """Where data sets are looked for: the rule of ``fedjax_sim.datasets.data_dir``, which needs JAX to be imported."""
    named = os.environ.get(_DATA_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / _PACKAGE


def _data(problems: dict[str, str], *, readable: bool) -> dict[str, Any]:
    """The data directory, and what is ready in it, where JAX starts: reading needs it."""
    folder, named = data_directory(), os.environ.get(_DATA_VARIABLE)
    if named and not folder.is_dir():
        problems[f"{_DATA_VARIABLE} names {folder}, which is no folder"] = f"mkdir -p '{folder}', or name another"
    elif folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        problems[f"{folder} cannot be read"] = f"chmod u+rx '{folder}'"
    about: dict[str, Any] = {"directory": str(folder), "exists": folder.is_dir(), "ready": None, "incomplete": None}
    if readable:
        from fedjax_sim.datasets.sources.record import sources

        states = {name: source.ready() for name, source in sources().items()}
        about["ready"] = [name for name, ready in states.items() if ready]
        about["incomplete"] = [name for name, ready in states.items() if not ready]
    return about


def _cache(problems: dict[str, str]) -> dict[str, Any]:
    """The cache directory, its size, and whether it can be used."""
    try:
        folder = cache_directory()
    except RuntimeError:
        problems["there is no home directory for the cache"] = "set FEDJAX_SIM_CACHE to a folder"
        folder = None
    if folder is None:
        return {"directory": None, "bytes": 0, "programs": 0}
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        wrong = f"compiled programs cannot be kept in {folder}: {nearest} cannot be written"
        problems[wrong] = "set FEDJAX_SIM_CACHE to a folder of yours"
    for programs in filter(others_may_write, folder.glob("programs-*")):
        problems[f"others may write to {programs}, so it is not used"] = f"chmod go-w '{programs}'"
    sizes = [path.stat().st_size for path in folder.glob("programs-*/*") if path.is_file()]
    return {"directory": str(folder), "bytes": sum(sizes), "programs": len(sizes)}


def _text(about: dict[str, Any], problems: dict[str, str]) -> str:
    found, data, cache = about["jax"], about["data"], about["cache"]
    devices = "JAX does not answer"
    if found is not None:
        beside = f"a run takes {found['chosen']}" if found["backend"] == "cpu" else f"backend {found['backend']}"
        devices = f"{', '.join(found['devices'])}; {found['cores']} cores; {beside}"
    where = str(data["directory"]) + ("" if data["exists"] else " (not there)")
    if data["ready"] is not None:
        known = len(data["ready"]) + len(data["incomplete"])
        where = f"{where}: {len(data['ready'])} of {known} data sets can be read (fedjax-sim data list)"
    kept = f"{cache['programs']} files of compiled programs, {cache['bytes'] / 2**20:.1f} MiB"
    said = {
        _PACKAGE: f"{about['fedjax_sim']}, Python {about['python']}, {about['platform']}",
        "packages": ", ".join(f"{name} {version or 'MISSING'}" for name, version in about["packages"].items()),
        "devices": devices,
        "variables": ", ".join(map("=".join, about["settings"].items())) or "none of ours or JAX's is set",
        "data": where,
        "cache": "none" if cache["directory"] is None else f"{cache['directory']}: {kept}",
    }
    lines = [f"{name:10} {words}" for name, words in said.items()]
    width = max(map(len, about["extras"]), default=0)
    lines += ["extras"] if about["extras"] else []
    for extra, versions in sorted(about["extras"].items()):
        parts = [", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)]
        absent = ", ".join(name for name, version in versions.items() if version is None)
        parts += [f"not there: {absent} (pip install '{_PACKAGE}[{extra}]')"] if absent else []
        lines.append(f"  {extra:{width}}  {'; '.join(filter(None, parts))}")
    lines += ["", *(f"wrong: {what}\n  mend: {fix}" for what, fix in problems.items())]
    return "\n".join(lines if problems else [*lines, "nothing is wrong"])
