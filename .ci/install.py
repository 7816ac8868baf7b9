"""Installs into the environment of the Python that runs it:  PYTHON .ci/install.py REQUIREMENT...

By uv, which takes a tenth of pip's time. It reads no settings of pip's, so it is told them. Where uv is not to be
had or fails, pip installs. Modules are compiled when they are first imported, which most never are; where Python is
told to write no bytecode, they are compiled here.
"""

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip"]
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "constraint": "UV_CONSTRAINT",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}


def settings() -> dict[str, str]:
    """What pip's settings are for uv; those of the environment come first in pip's list, and go before files'."""
    listed = subprocess.run([*PIP, "config", "list"], check=True, capture_output=True, text=True).stdout
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best release of all indexes
    for line in listed.splitlines():
        place, _, value = line.partition("=")
        name = SETTINGS.get(place.rpartition(".")[2])
        if name:
            found.setdefault(name, ("," if name == "UV_FIND_LINKS" else " ").join(ast.literal_eval(value).split()))
    return found | os.environ


def main(requirements: list[str]) -> int:
    """Installs; an exit status."""
    compiled = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    by_pip = [*PIP, "install", "-qq", *([] if compiled else ["--no-compile"])]
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable]
    by_uv += ["--compile-bytecode"] if compiled else []
    if subprocess.run([*by_pip, "uv"]).returncode == 0:
        if subprocess.run([*by_uv, *requirements], env=settings()).returncode == 0:
            return 0
        print("uv could not; pip tries", file=sys.stderr)
    return subprocess.run([*by_pip, *requirements]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
