"""The solvers of the shortest vector in a hull, at several numbers of vectors.

    python benchmarks/speed/min_norm.py [--sizes 10 100 500] [--dimension 610] [--repeats 7] [--float64]

The vectors share a common part, ``--common`` times as large as the parts of their own in each coordinate (0: the hull
holds 0 once there are more vectors than coordinates). A warm start solves again after one vector in ten has moved by a
tenth of its length, from the weights before. Times are medians in milliseconds without compilation and without the Gram
matrix; the gap is relative to |d|^2.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import min_norm

SOLVERS: dict[str, Callable[[], min_norm.MinNormSolver]] = {
    "active_set": min_norm.active_set,
    "away_steps": min_norm.away_steps,
    "frank_wolfe": min_norm.frank_wolfe,
}
_FACTORISED = 600  # vectors beyond which the active set, n^3 / 3 operations a step, is left out


def problem(size: int, dimension: int, common: float, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Vectors [n, D], and the same after one in ten has moved."""
    rng = np.random.default_rng(size)
    vectors = rng.normal(size=(size, dimension)) + common * rng.normal(size=dimension)
    later = vectors.copy()
    moved = rng.choice(size, max(size // 10, 1), replace=False)
    later[moved] += 0.1 * rng.normal(size=(len(moved), dimension))
    return jnp.asarray(vectors, dtype), jnp.asarray(later, dtype)


def timed(
    function: Callable[..., min_norm.Shortest], *args: jax.Array, repeats: int
) -> tuple[float, min_norm.Shortest]:
    """Median milliseconds, and what was found."""
    found = jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--dimension", type=int, default=610)
    parser.add_argument("--common", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--float64", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.float64)
    dtype = "float64" if options.float64 else "float32"
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores, D = {options.dimension}, {dtype}")
    print(
        f"{'n':>6} {'solver':<12} {'cold ms':>9} {'steps':>6} {'gap':>8} {'warm ms':>9} {'steps':>6} {'gap':>8}  |d|^2"
    )
    for size in options.sizes:
        vectors, later = problem(size, options.dimension, options.common, dtype)
        grams = [jax.jit(min_norm.full_gram)(v) for v in (vectors, later)]
        seen, nothing = jnp.ones(size, bool), jnp.zeros(size, dtype)
        for name, make in SOLVERS.items():
            if name == "active_set" and size > _FACTORISED:
                continue
            solve = jax.jit(functools.partial(min_norm.shortest, solver=make()))
            cells = []
            cold_ms, cold = timed(solve, vectors, grams[0], seen, nothing, repeats=options.repeats)
            warm_ms, warm = timed(solve, later, grams[1], seen, cold.weights, repeats=options.repeats)
            for ms, found in ((cold_ms, cold), (warm_ms, warm)):
                square = float(found.squared_norm)
                relative = float(found.gap) / square if square else 0.0
                cells.append(f"{ms:9.2f} {int(found.steps):6d} {relative:8.1e}")
            print(f"{size:6d} {name:<12} {' '.join(cells)}  {float(cold.squared_norm):.6g}", flush=True)


if __name__ == "__main__":
    main()
