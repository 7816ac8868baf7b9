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
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}


def settings() -> tuple[dict[str, str], list[str]]:
    """What pip's settings are for uv, an environment and arguments: the environment's go before files'."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout.splitlines()
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best release of all indexes
    constraints = []
    for line in sorted(listed, key=lambda line: (line.startswith(":env:"), line.startswith("install."))):
        place, _, value = line.partition("=")
        name, values = place.rpartition(".")[2], ast.literal_eval(value).split()
        if name in SETTINGS:
            found[SETTINGS[name]] = ("," if name == "find-links" else " ").join(values)
        if name == "constraint":
            constraints = [part for value in values for part in ("-c", value)]
    return found | os.environ, constraints


def main(requirements: list[str]) -> int:
    """Installs; an exit status."""
    compiled = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    by_pip = [*PIP, "install", "-qq", *([] if compiled else ["--no-compile"])]
    if subprocess.run([*by_pip, "--only-binary", "uv", "uv"]).returncode == 0:
        environment, constraints = settings()
        by_uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable, *constraints]
        by_uv += ["--compile-bytecode"] if compiled else []
        if subprocess.run([*by_uv, *requirements], env=environment).returncode == 0:
            return 0
        print("uv could not; pip tries", file=sys.stderr)
    return subprocess.run([*by_pip, *requirements]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
