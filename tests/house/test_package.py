"""The package as a user meets it: light to import, complete, and helpful when a name is wrong."""

import importlib.metadata
import importlib.util
import json
import pathlib
import re
import subprocess
import tomllib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from tests.processes import printed

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
    return json.loads(printed("-c", code))


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


@pytest.mark.slow
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
    with pytest.raises(AttributeError, match="did you mean 'scaffold'"):
        _ = fedjax_sim.SCAFFOLD
    with pytest.raises(AttributeError, match="qwertyuiop"):
        fedjax_sim.qwertyuiop  # noqa: B018
    assert not hasattr(fedjax_sim, "qwertyuiop")
    with pytest.raises(AttributeError, match=r"'fedjax_sim.datasets' has no .* mean 'partition.dirichlet'"):
        fedjax_sim.datasets.dirichlet  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean 'from_table'"):
        fedjax_sim.datasets.from_csv  # noqa: B018


def test_the_installed_version_is_the_package_s():
    try:
        installed = importlib.metadata.version("fedjax_sim")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fedjax_sim is not installed, it is imported from the source tree")
    assert installed == fedjax_sim.__version__


def test_files_written_for_0_2_0_are_rewritten_by_the_page_s_command(tmp_path: pathlib.Path) -> None:
    before = """\
from fedjax_sim.adjoints import checkpointed
from fedjax_sim.aggregators import median
from fedjax_sim.asynchronous import fedbuff
from fedjax_sim.attacks import sign_flip
from fedjax_sim.callbacks import Callback
from fedjax_sim.checkpoints import read
from fedjax_sim.citations import cite
from fedjax_sim.client_states import dense
from fedjax_sim.cohort import uniform
from fedjax_sim.configuration import read
from fedjax_sim.descriptions import factory
from fedjax_sim.devices import use_cpu_devices
from fedjax_sim.divergence import first
from fedjax_sim.evaluation import evaluate
from fedjax_sim.history import History
from fedjax_sim.hyper import tune
import fedjax_sim.layout as layout
from fedjax_sim.local import epochs
from fedjax_sim.min_norm import min_norm
from fedjax_sim.paths import walk
from fedjax_sim.privacy import accountant
from fedjax_sim.rates import constant
from fedjax_sim.simulation import simulate
from fedjax_sim.stopping import target
from fedjax_sim.sweeps import sweep
from fedjax_sim.systems import fleet
from fedjax_sim.task import Task
    from fedjax_sim.trackers import wandb
from fedjax_sim.training import make_train
from fedjax_sim.trees import scale
from fedjax_sim.verification import verify
fjs.reporting.results_table(histories, markdown=True)
"""
    (tmp_path / "mine.py").write_text(before, encoding="utf-8")
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    command = page.partition("## From 0.2.0")[2].partition("```sh\n")[2].partition("```")[0]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    after = (tmp_path / "mine.py").read_text(encoding="utf-8").splitlines()
    assert after[-1] == 'fjs.reporting.results_table(histories, form="markdown")'
    for was, now in zip(before.splitlines()[:-1], after[:-1], strict=True):
        module = now.split()[1]
        assert importlib.util.find_spec(module), f"{was} became {now}"


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
