"""Every test runs on the CPU and with jax's strictest rules: nothing is promoted or broadcast silently.

The rules are set in the environment, before jax is imported, so that they also hold for the docstrings' examples and in
the processes that tests start.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("MPLBACKEND", "Agg")

from collections.abc import Iterator

import hypothesis
import jax
import pytest

# Compilation makes the first example slow, so there is no deadline; in CI the examples are the same every time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test in double precision."""
    if hasattr(jax, "enable_x64"):
        enable_x64 = jax.enable_x64
    else:  # jax < 0.8
        from jax.experimental import enable_x64
    with enable_x64(True):
        yield
