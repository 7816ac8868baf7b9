"""Every test runs on the CPU and with jax's strictest rules: nothing is promoted or broadcast silently.

The rules are set in the environment, before jax is imported, so that they also hold for the docstrings' examples and in
the processes that tests start.
"""

import atexit
import gc
import importlib.metadata
import os
import shutil
import signal
import tempfile
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("MPLBACKEND", "Agg")
# The programs are many and tiny: their time is compilation, most of which this saves. One LLVM module a program: each
# costs a compiler of its own. Lines of Python in a program are for profilers.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    # jaxlib 0.11 and later refuse the flag
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith(("0.6.", "0.7.", "0.8.", "0.9.", "0.10.")),
)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# What tests measure or compile is not for the user's cache.
os.environ["FEDJAX_SIM_CACHE"] = tempfile.mkdtemp(prefix="fedjax_sim-tests-")

from collections.abc import Iterator
from typing import Any

import hypothesis
import jax
import pytest

from fedjax_sim.core.devices import double_precision
from fedjax_sim.core.programs import make_room

atexit.register(shutil.rmtree, os.environ["FEDJAX_SIM_CACHE"], ignore_errors=True)
# JAX keeps a few million objects, among which Python's collector would look for circles thousands of times.
gc.set_threshold(100_000, 100, 1000)

# Compilation makes the first example slow, so there is no deadline; in CI the examples are the same every time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test in double precision."""
    with double_precision():
        yield


@pytest.fixture
def pyplot() -> Iterator[Any]:
    """matplotlib's, without which the test is skipped; its figures are closed in the end."""
    plt = pytest.importorskip("matplotlib.pyplot")
    yield plt
    plt.close("all")


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals that Python starts with, whatever runs the tests."""
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="of the slow tests, run one in N")
    parser.addoption(
        "--turn",
        type=int,
        default=0,
        metavar="T",
        help="with --one-in: which ones; N turns in a row run all",
    )
    parser.addoption(
        "--as-accelerator",
        action="store_true",
        help="what the package does on a GPU or TPU, its layouts, draws and evaluations, computed by the CPU",
    )
    parser.addoption("--record", action="store_true", help="record the runs of tests/engine/test_regression.py again")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("as_accelerator"):
        jax.default_backend = lambda: "gpu"  # all that the package asks; the arrays stay where they are


# Examples of docstrings that take half a second or more, of what has tests beside them.
LONG_EXAMPLES = {
    "fedjax_sim.clients.cohort.fixed.Given",
    "fedjax_sim.engine.adjoints.gradients.checked_gradient",
    "fedjax_sim.engine.adjoints.implicit.fixed_point",
    "fedjax_sim.engine.adjoints.schedule.reverse_bound",
    "fedjax_sim.engine.layout_tuning.tune",
    "fedjax_sim.models.evaluation.evaluate",
    "fedjax_sim.models.predictions.predict",
    "fedjax_sim.models.survival.Cox",
    "fedjax_sim.reporting.client_plots.distributions",
    "fedjax_sim.reporting.client_plots.personal_models",
    "fedjax_sim.reporting.paired.paired_table",
    "fedjax_sim.reporting.personal.personal_table",
    "fedjax_sim.run.replay.draws",
    "fedjax_sim.run.simulation.simulate",
    "fedjax_sim.run.training.make_train",
    "fedjax_sim.run.verification.verify",
    "fedjax_sim.studies.coalitions.coalitions",
    "fedjax_sim.studies.hyper.tuning.tune",
    "fedjax_sim.studies.objectives.influence",
    "fedjax_sim.studies.outer.estimators.PES",
    "fedjax_sim.studies.outer.estimators.estimate",
    "fedjax_sim.studies.outer.problems.federated",
    "fedjax_sim.studies.personalise.Personalise",
    "fedjax_sim.studies.search.running.search",
    "fedjax_sim.studies.sweeps.running.sweep",
    "fedjax_sim.studies.tournament.tournament",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks long examples as slow, and leaves out all but one in N of the slow tests.

    With --as-accelerator those of a CPU are left out too. One in N is of a function's cases evenly many: they are
    numbered in the order of their names' checksums and every N-th is run, from a place that depends on the function and
    on the turn. Of N cases or more at least one runs; which one does not depend on other functions; and of N turns one
    after the other each case is run in one.
    """
    share, turn, elsewhere = (config.getoption(name) for name in ("one_in", "turn", "as_accelerator"))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.partition("::")[2] in LONG_EXAMPLES:
            item.add_marker("slow")
        if share > 1 and "slow" in item.keywords:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = [item for item in items if elsewhere and "cpu" in item.keywords]
    for function, of_function in cases.items():
        first = zlib.crc32(function.encode()) + turn
        of_function.sort(key=lambda item: (zlib.crc32(item.nodeid.encode()), item.nodeid))
        left_out += [item for number, item in enumerate(of_function, first) if number % share]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


_compiled = [0]  # programs since the maps were last counted


def _count_program(event: str, *_: object, **__: object) -> None:
    _compiled[0] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_program)


@pytest.fixture(autouse=True)
def _room_for_programs() -> Iterator[None]:
    """For tests that compile other programs than a run's; to count the maps takes up to 0.1 s."""
    yield
    if _compiled[0] >= 200:
        _compiled[0] = 0
        make_room()
