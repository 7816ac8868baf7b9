"""Writes the cells that all notebooks have in common: the Colab badge, and the cell that installs the package.

    make notebooks        # or: python notebooks/first_cells.py

Both follow from pyproject.toml. The badge needs a ``Repository`` on GitHub in ``[project.urls]``; while there is none,
the notebooks have no badge, and outside of a checkout their first code cell installs a wheel that lies beside them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BRANCH = "main"
BADGE, INSTALL = "colab", "install"  # ids of the two cells

SOURCE = """\
# Installs fedjax_sim where it is missing: from the checkout around this notebook, a wheel beside it, or its repository.
import importlib.util
import os
import pathlib
import subprocess
import sys
from importlib.metadata import version

REPOSITORY = ""  # of [project.urls] in pyproject.toml
JAX = ""  # of its dependencies
NEEDED = ["fedjax_sim", "flax", "jax", "matplotlib", "optax", "rich", "sklearn"]

if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    from packaging.specifiers import SpecifierSet  # Jupyter has it

    here = pathlib.Path.cwd()
    checkout = next((folder for folder in [here, *here.parents] if (folder / "fedjax_sim/__init__.pyi").exists()), None)
    wheel = max(here.glob("fedjax_sim-*.whl"), key=os.path.getmtime, default=None)
    if checkout:
        wanted = ["-e", f"{checkout}[demo]"]
    elif wheel or REPOSITORY:
        wanted = [f"fedjax_sim[demo] @ {wheel.as_uri() if wheel else 'git+' + REPOSITORY}"]
    else:
        raise RuntimeError(
            f"{', '.join(missing)}: not installed, and there is nothing to install it from: no checkout around {here}, "
            "no wheel in it, and no public repository yet. Lay a wheel beside this notebook (in a checkout, 'pip wheel "
            "--no-deps -w FOLDER .' makes one), or open it in the folder notebooks/ of a checkout"
        )
    jaxes = [name for name in ("jax", "jaxlib") if importlib.util.find_spec(name)]
    fit = SpecifierSet(JAX, prereleases=True)
    if all(version(name) in fit for name in jaxes):  # they stay as they are: Colab's are for its GPU or TPU
        wanted += [f"{name}=={version(name)}" for name in jaxes]
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(wanted)}\\n{done.stdout}{done.stderr}")
    if checkout:
        sys.path.insert(0, str(checkout))  # this process does not see a new editable installation
    importlib.invalidate_caches()

import jax
import matplotlib.pyplot as plt

import fedjax_sim as fjs

plt.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
SMOKE = os.environ.get("FEDJAX_SIM_SMOKE") == "1"  # everything smaller: the tests run the notebooks so
print(f"fedjax_sim {fjs.__version__}, jax {jax.__version__} on {jax.device_count()} x {jax.devices()[0].device_kind}")
"""


def settings(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, str]:
    """The repository's address, "" without one, and the versions of jax that the package takes.

    Whatever names the address asks here, but for the installed package, whose metadata have it.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    bounds = next(found[1] for line in project["dependencies"] if (found := re.fullmatch(r"jax([<>=!~].*)", line)))
    return project.get("urls", {}).get("Repository", "").rstrip("/"), bounds


def badge(name: str, repository: str) -> str:
    """The badge of the notebook ``name``, Markdown; "" unless the repository is on GitHub, from where Colab reads."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?", repository)
    if found is None:
        return ""
    place = f"https://colab.research.google.com/github/{found[1]}/blob/{BRANCH}/notebooks/{name}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({place})"


def install_source(repository: str, bounds: str) -> str:
    """The code of the cell that installs the package."""
    filled = SOURCE.replace('REPOSITORY = ""', f'REPOSITORY = "{repository}"')
    return filled.replace('JAX = ""', f'JAX = "{bounds}"').rstrip("\n")


def updated(notebook: dict[str, Any], name: str, repository: str, bounds: str) -> dict[str, Any]:
    """The notebook with the two cells as they should be: the badge above all, the installation before any code."""
    cells = [cell for cell in notebook["cells"] if cell["id"] not in (BADGE, INSTALL)]
    code = [cell["cell_type"] for cell in cells].index("code")
    heads = [number for number in range(code) if cells[number]["source"][0].startswith("## ")]
    install = {
        "cell_type": "code", "execution_count": None, "id": INSTALL, "metadata": {}, "outputs": [],
        "source": install_source(repository, bounds).splitlines(keepends=True),
    }  # fmt: skip
    cells.insert(heads[0] if heads else code, install)
    if text := badge(name, repository):
        cells.insert(0, {"cell_type": "markdown", "id": BADGE, "metadata": {}, "source": [text]})
    return {**notebook, "cells": cells}


def written(notebook: dict[str, Any]) -> str:
    """The file's text, as Jupyter writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Updates every notebook of this folder and says which have changed."""
    repository, bounds = settings()
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = written(updated(json.loads(before), path.name, repository, bounds))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"updated {path.name}")
    if not badge("", repository):
        print("no badges: [project.urls] of pyproject.toml has no Repository on GitHub")
    return 0


if __name__ == "__main__":
    sys.exit(main())
