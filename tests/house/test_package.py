"""The package as a user meets it: light to import, complete, and helpful when a name is wrong."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim

ROOT = pathlib.Path(__file__).parents[2]
EXTRAS = [
    "dp_accounting",
    "griffe",
    "matplotlib",
    "mkdocs",
    "mlflow",
    "orbax.checkpoint",
    "pandas",
    "pyarrow",
    "safetensors",
    "sklearn",
    "tensorflow",
    "tensorboardX",
    "tensorflow_datasets",
    "torch",
    "wandb",
    "xarray",
]


def in_fresh_process(code: str) -> Any:
    """What ``code`` prints as JSON in a Python that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_import_is_light():
    # flax imports rich itself, so that name is only asked for here, where nothing of the package is used yet
    heavy = [*EXTRAS, "rich", "jax", "flax", "optax"]
    code = f"import json, sys, fedjax_sim; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    assert in_fresh_process(code) == []


RESOLVE = """
import importlib, json, pkgutil, sys
import fedjax_sim
names = sorted(fedjax_sim.__all__)
if {submodules_first}:
    for module in pkgutil.walk_packages(fedjax_sim.__path__, "fedjax_sim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    names.reverse()
first = {{name: getattr(fedjax_sim, name) for name in names}}
again = {{name: getattr(fedjax_sim, name) for name in names}}
print(json.dumps({{
    "kinds": {{name: [type(v).__name__, getattr(v, "__module__", None), getattr(v, "__name__", None)]
              for name, v in sorted(first.items())}},
    "changed": [name for name in names if first[name] is not again[name]],
    "extras": [m for m in {extras} if m in sys.modules],
}}))
"""


def kind(value: Any) -> list[Any]:
    return [type(value).__name__, getattr(value, "__module__", None), getattr(value, "__name__", None)]


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["submodules", "names"])
def test_every_name_resolves_whatever_was_imported_before(first):
    # A submodule of the same name as a function (describe) must not take its place once it is imported.
    found = in_fresh_process(RESOLVE.format(submodules_first=first, extras=EXTRAS))
    assert found["changed"] == []
    assert found["kinds"] == {name: kind(getattr(fedjax_sim, name)) for name in fedjax_sim.__all__}
    assert found["extras"] == []  # an extra is imported where it is used, not before


def test_dir_lists_every_public_name():
    assert len(set(fedjax_sim.__all__)) == len(fedjax_sim.__all__)
    assert set(fedjax_sim.__all__) <= set(dir(fedjax_sim))
    for name in dir(fedjax_sim):
        getattr(fedjax_sim, name)


def test_a_wrong_name_suggests_the_nearest():
    name = max((name for name in fedjax_sim.__all__ if not name.startswith("_")), key=len)
    with pytest.raises(AttributeError, match=rf"\b{name}\b"):
        getattr(fedjax_sim, name[:-2] + name[-1] + "x")
    with pytest.raises(AttributeError, match="qwertyuiop"):
        fedjax_sim.qwertyuiop  # noqa: B018
    assert not hasattr(fedjax_sim, "qwertyuiop")


def test_the_installed_version_is_the_package_s():
    try:
        installed = importlib.metadata.version("fedjax_sim")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fedjax_sim is not installed, it is imported from the source tree")
    assert installed == fedjax_sim.__version__


def test_lower_bounds_are_the_versions_that_ci_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = (
        "completion",
        "data",
        "docs",
        "frames",
        "plot",
        "privacy",
        "progress",
        "search",
        "tables",
        "text",
        "trackers",
    )
    tested = [extras[name] for name in names]
    requirements = [*project["dependencies"], *(requirement for extra in tested for requirement in extra)]
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / ".ci" / "oldest.txt").read_text(), re.MULTILINE))
    bounds = dict(requirement.partition(",")[0].split(">=") for requirement in requirements)
    assert bounds == {name: pins.get(name) for name in bounds}


def test_the_tests_run_under_strict_promotion():
    with pytest.raises(ValueError, match="implicit dtype promotion"):
        jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.int32)
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 2)) + jnp.ones(2)


def test_x64_is_on_only_inside_the_fixture(x64):
    assert jnp.asarray(np.ones(2)).dtype == jnp.float64
    assert jax.jit(lambda x: x + 1.0)(jnp.ones(2)).dtype == jnp.float64


def test_x64_is_off_elsewhere():
    assert jnp.ones(2).dtype == jnp.float32


@pytest.mark.xdist_group("together")
def test_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    """They share programs that one worker has compiled; a version of pytest that xdist does not know lets them part."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("of tests in several processes, --dist loadgroup")
    assert request.node.nodeid.endswith("@together")
