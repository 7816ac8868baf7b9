"""64 runs as one program against 64 separate runs, and what a second device saves.

    python benchmarks/speed/sweeps.py [--runs 1 4 16 64] [--rounds 50] [--clients 100] [--repeats 2]

FedProx on synthetic(1, 1), at most 200 examples a client, with logistic regression; the runs differ in mu and the
local learning rate. Each number of devices is a process of its own, since XLA fixes it at the start: the devices are
parts of one CPU. "separate" is a jitted ``make_train`` that is called for each run with its own values, which compiles
once as well; "anew" compiles for each run, as a script does that is started once a run (the time of importing JAX is
left out). Times are the fastest of the repeats, in seconds; compilation is measured once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

_ROLE = "FEDJAX_SIM_BENCHMARK_DEVICES"
os.environ.setdefault("FEDJAX_SIM_CACHE", "off")  # what is compiled is measured


def fastest(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All times of one number of devices."""
    import jax
    import numpy as np

    import fedjax_sim as fjs
    from fedjax_sim.studies.sweeps import sweep, zipped

    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=options.clients, max_size=200, seed=0)
    run: dict[str, Any] = {
        "task": fjs.classification(fjs.models.LogisticRegression(10)), "rounds": options.rounds,
        "eval_every": max(options.rounds // 10, 1), "batch_size": 20, "cohort": fjs.cohort.uniform(10),
        "work": fjs.local.random_epochs(1, 5),
    }  # fmt: skip
    most = max(options.runs)
    values = {
        "mu": np.logspace(-3, 0, most), "client_optimizer.learning_rate": np.resize([0.005, 0.01, 0.02, 0.05], most)
    }  # fmt: skip

    def algorithm(number: int) -> fjs.Algorithm:
        rate = values["client_optimizer.learning_rate"][number]
        return fjs.fedprox(client_optimizer=fjs.optim.sgd(float(rate)), mu=float(values["mu"][number]))

    found: dict[str, Any] = {
        "jax": jax.__version__, "device": str(jax.devices()[0].device_kind), "devices": jax.device_count(),
        "cores": os.cpu_count(), "runs": {},
    }  # fmt: skip

    def swept(count: int) -> Any:
        space = zipped({name: column[:count] for name, column in values.items()})
        return sweep(algorithm(0), data, space, **run, chunk=most)

    for count in options.runs:
        jax.clear_caches()
        whole = fastest(functools.partial(swept, count), 1)
        again = fastest(functools.partial(swept, count), options.repeats)
        found["runs"][count] = {"sweep": whole, "sweep, compiled": again}
    if jax.device_count() > 1:
        return found
    train, key = fjs.make_train(**run), jax.random.key(0)

    def separately(function: Callable[..., Any], numbers: Iterable[int]) -> list[np.ndarray]:
        return [np.asarray(function(algorithm(number), data, key).metrics["loss"]) for number in numbers]

    jax.clear_caches()
    jitted = jax.jit(train)
    found["anew"] = fastest(functools.partial(separately, jitted, [0]), 1)
    for count in options.runs:
        again = fastest(functools.partial(separately, jitted, range(count)), options.repeats)
        found["runs"][count] |= {"separate, compiled": again, "separate": found["anew"] + again * (count - 1) / count}
    ours, theirs = swept(most)["loss"][:, 0], np.stack(separately(jitted, range(most)))
    found["difference"] = float(np.abs(ours - theirs).max())
    return found


def in_process(devices: int, arguments: list[str]) -> dict[str, Any]:
    """What :func:`measured` finds with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", _ROLE: str(devices)}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if _ROLE in os.environ:
        print(json.dumps(measured(options)))
        return
    one, two = (in_process(devices, sys.argv[1:]) for devices in (1, 2))
    print(
        f"jax {one['jax']}, {one['device']}, {one['cores']} cores; {options.clients} clients, {options.rounds} rounds; "
        f"largest difference of a loss {one['difference']:.1e}"
    )
    heads = ["anew", "separate", "1 device", "2 devices"]
    for title, names in (("with compilation", heads), ("without", heads[1:])):
        print(f"\n{title}, s; speed-up over separate runs in brackets")
        print(f"{'runs':>6} " + " ".join(f"{name:>16}" for name in names))
        for count in map(str, options.runs):
            first, second = one["runs"][count], two["runs"][count]
            suffix = "" if names is heads else ", compiled"
            separate = first[f"separate{suffix}"]
            ours = [times[f"sweep{suffix}"] for times in (first, second)]
            cells = [f"{separate:.3f}", *(f"{time_:.3f} ({separate / time_:.2f}x)" for time_ in ours)]
            if names is heads:
                cells.insert(0, f"{one['anew'] * int(count):.1f}")
            print(f"{count:>6} " + " ".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
