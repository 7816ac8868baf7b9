"""One virtual environment a peer, made from the package index with pinned versions."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from benchmarks.speed.peers.contract import Peer

_STAMP = "peer.stamp"


class EnvironmentFailed(RuntimeError):
    """A peer has no environment; the message is the last line of what went wrong."""


def default_directory() -> pathlib.Path:
    """Where the environments live if nobody says otherwise: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "fedjax_sim" / "peers"


def ensure(name: str, peer: Peer, directory: pathlib.Path) -> pathlib.Path:
    """The Python of the peer's environment, which is made if it is not there or was made for other pins.

    Raises:
      EnvironmentFailed: no such Python, or pip could not install the pins.
    """
    if not peer.requirements:
        return pathlib.Path(sys.executable)
    home = directory / (peer.environment or name)
    interpreter, stamp = home / "bin" / "python", stamp_of(peer)
    if interpreter.exists() and (home / _STAMP).is_file() and (home / _STAMP).read_text(encoding="ascii") == stamp:
        return interpreter
    base = find_python(peer.python)
    if home.exists():
        if not (home / "pyvenv.cfg").is_file():
            raise EnvironmentFailed(f"{home} is there and is no virtual environment: name another --environments")
        shutil.rmtree(home)
    print(f"making the environment of {peer.title} in {home}", file=sys.stderr, flush=True)
    _run([str(base), "-m", "venv", str(home)])
    _run([str(interpreter), "-m", "pip", "install", "--quiet", "--no-input", *peer.requirements])
    (home / _STAMP).write_text(stamp, encoding="ascii")
    return interpreter


def stamp_of(peer: Peer) -> str:
    """Changes when the pins or the Python do."""
    text = "\n".join((*peer.requirements, peer.python or f"{sys.version_info.major}.{sys.version_info.minor}"))
    return hashlib.sha256(text.encode()).hexdigest()


def find_python(version: str | None) -> pathlib.Path:
    """An interpreter of this version: on the path, or of pyenv.

    Raises:
      EnvironmentFailed: there is none.
    """
    if version is None:
        return pathlib.Path(sys.executable)
    candidates = [pathlib.Path(found)] if (found := shutil.which(f"python{version}")) else []
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in candidates:
        asked = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return candidate
    raise EnvironmentFailed(f"needs Python {version}, and there is no python{version} on the path or in {pyenv}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        raise EnvironmentFailed(last_line(done.stderr) or last_line(done.stdout) or f"exit code {done.returncode}")


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
