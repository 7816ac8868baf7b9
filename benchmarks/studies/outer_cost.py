"""What a gradient of a run costs by each adjoint and estimator, and a population: time in forward runs, and memory.

    python -m benchmarks.studies.outer_cost [--size cpu]

FedAvg on synthetic(1, 1), a cohort drawn with a chance for each client, a loss after every round: the derivative of
their mean in the logarithm of the client learning rate and in all chances. Every program takes turns with the forward
run of the same problem, and a cost is the median of the ratios within repeats. Memory is what the compiled program
reserves beyond its arguments and results, by XLA's memory analysis, for several numbers of rounds. Adjoints are those
of ``make_train``, of the last loss alone; estimators go through ``fjs.outer``. A case is a line of ``cases``. A
population chooses after every round, and its time is what ``fjs.search`` reports, without compilation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study
from fedjax_sim import paths

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 4, "largest": 20, "rounds": [2, 4], "repeats": 1, "pairs": 2},
    "cpu": {"clients": 20, "largest": 60, "rounds": [16, 64, 256], "repeats": 15, "pairs": 8},
}
RATE, CHANCES = "client_optimizer.learning_rate", "cohort.probability"
FORWARD, FORWARD_TRAIN, POPULATION = "forward run", "forward run, make_train", "population(), members"
Case = Callable[[dict[str, Any], int], Callable[..., Any]]  # (run, pairs) -> program of (problem, u, key)


def of_problem(problem: Any, u: Any, key: jax.Array) -> jax.Array:
    """L of the problem's run."""
    state = problem.begin(u, key)
    steps = jnp.arange(problem.segments, dtype=jnp.int32)
    return jnp.sum(jax.lax.scan(lambda state, s: problem.advance(u, state, s), state, steps)[1])


def estimated(estimator: Any) -> Case:
    """A case of ``fjs.outer``; ``estimator`` is made of the number of samples."""
    return lambda run, pairs: lambda problem, u, key: fjs.outer.estimate(estimator(pairs), problem, u, key)


def through(adjoint: Any) -> Case:
    """A case of ``make_train``: the derivative of the last loss, or with None the loss."""

    def case(run: dict[str, Any], pairs: int) -> Callable[..., Any]:
        def loss(rate: Any, problem: Any, key: jax.Array) -> jax.Array:
            algorithm = paths.replace(problem.plan.algorithm, {RATE: rate})
            train = fjs.make_train(**run | {"eval_every": run["rounds"]}, adjoint=adjoint)
            return train(algorithm, problem.plan.dataset, key).metrics["loss"][-1]

        asked = loss if adjoint is None else jax.jacfwd(loss) if adjoint == fjs.adjoints.forward() else jax.grad(loss)
        return lambda problem, u, key: asked(jnp.exp(u[RATE]), problem, key)

    return case


def cases() -> dict[str, tuple[str, Case]]:
    """By name, the forward run to compare with and the case; a study of another way to learn adds its line here."""
    adjoints, outer = fjs.adjoints, fjs.outer
    return {
        FORWARD: (FORWARD, lambda run, pairs: of_problem),
        "exact()": (FORWARD, estimated(lambda pairs: outer.exact())),
        "truncated(1)": (FORWARD, estimated(lambda pairs: outer.truncated(1))),
        "es(), a pair": (FORWARD, estimated(lambda pairs: outer.es(0.1, 1))),
        "es(), pairs": (FORWARD, estimated(lambda pairs: outer.es(0.1, pairs))),
        "pes(window=1), pairs": (FORWARD, estimated(lambda pairs: outer.pes(0.1, pairs))),
        "forward_gradient(1)": (FORWARD, estimated(lambda pairs: outer.forward_gradient(1))),
        "score(runs)": (FORWARD, estimated(lambda pairs: outer.score(pairs))),
        FORWARD_TRAIN: (FORWARD_TRAIN, through(None)),
        "per_round()": (FORWARD_TRAIN, through(adjoints.per_round())),
        "nested()": (FORWARD_TRAIN, through(adjoints.nested())),
        "direct()": (FORWARD_TRAIN, through(adjoints.direct())),
        "truncated(2)": (FORWARD_TRAIN, through(adjoints.truncated(2))),
        "forward()": (FORWARD_TRAIN, through(adjoints.forward())),
    }


def population(data: Any, asked: dict[str, Any], members: int) -> float:
    """Seconds of a population, one in four of whose members is replaced after every round."""
    found = fjs.search(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05)), data,
        fjs.sweeps.random({RATE: fjs.sweeps.log_uniform(0.01, 0.1)}, members, seed=0), fjs.hyper.population(),
        objective=fjs.hyper.final("loss"), progress=False, **asked,
    )  # fmt: skip
    return found.seconds


def run(size: str) -> dict[str, Any]:
    """Memory at every number of rounds, and costs at the middle one."""
    n = SIZES[size]
    made = {rounds: _problem(n, rounds) for rounds in n["rounds"]}
    middle, key = n["rounds"][len(n["rounds"]) // 2], jax.random.key(0)
    found: dict[str, Any] = {name: {"against": base, "bytes": []} for name, (base, _) in cases().items()}
    programs: dict[str, Any] = {}
    for name, (_, case) in cases().items():
        for rounds, (problem, asked) in made.items():
            compiled = jax.jit(case(asked, n["pairs"])).lower(problem, problem.parameters, key).compile()
            found[name]["bytes"].append(int(compiled.memory_analysis().temp_size_in_bytes))
            if rounds == middle:
                programs[name] = compiled
    problem, asked = made[middle]
    found[POPULATION] = {"against": FORWARD, "bytes": []}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for repeat in range(n["repeats"] + 1):
        for name in found:
            start = time.perf_counter()
            if name in programs:
                jax.block_until_ready(programs[name](problem, problem.parameters, key))
                taken = time.perf_counter() - start
            else:
                taken = population(problem.plan.dataset, asked, n["pairs"])
            if repeat:  # the first one warms up
                seconds[name].append(taken)
    for name, row in found.items():
        ratios = np.array(seconds[name]) / np.array(seconds[row["against"]])
        row["cost"], row["seconds"] = float(np.median(ratios)), float(np.median(seconds[name]))
        row["quartiles"] = np.quantile(ratios, [0.25, 0.75]).tolist()
    return {"rounds": n["rounds"], "timed_rounds": middle, "pairs": n["pairs"], "cases": found}


def _problem(n: dict[str, Any], rounds: int) -> tuple[Any, dict[str, Any]]:
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=n["clients"], max_size=n["largest"], test_fraction=0.0, seed=0)
    asked = {
        "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3), "rounds": rounds,
        "eval_every": 1, "batch_size": 10, "work": fjs.local.steps(5),
        "cohort": fjs.cohort.independent([0.25] * n["clients"], cap=n["clients"], average="inverse"),
    }  # fmt: skip
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))
    objective = fjs.hyper.mean("loss")
    return fjs.outer.federated(method, data, over=[RATE, CHANCES], objective=objective, **asked), asked


def lines(result: dict[str, Any]) -> list[str]:
    """A row a case: its cost in forward runs, memory by the number of rounds."""
    head = "".join(f"{f'MB, {rounds} rounds':>17}" for rounds in result["rounds"])
    table = [f"{result['timed_rounds']} rounds, {result['pairs']} pairs or runs", f"{'':<26}{'cost':>8}{head}"]
    for name, row in result["cases"].items():
        memory = "".join(f"{size / 1e6:>17.2f}" for size in row["bytes"]) or f"{'-':>17}" * len(result["rounds"])
        table.append(f"{name:<26}{row['cost']:>8.2f}{memory}")
    return table


def plot(result: dict[str, Any]) -> Any:
    """Costs as bars, memory as a mark for each number of rounds."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.figures import plain_numbers
    from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = {name: row for name, row in result["cases"].items() if name != FORWARD_TRAIN}
    for place, (name, row) in enumerate(rows.items()):
        if name != row["against"]:
            spread = np.abs(np.array(row["quartiles"]) - row["cost"])
            left.barh(place, row["cost"], xerr=spread[:, None], color=COLOURS[0], height=0.6)
        if not row["bytes"]:
            right.text(0.02, place, "not measured", transform=right.get_yaxis_transform(), va="center", color="0.4")
        else:
            memory = np.array(row["bytes"]) / 1e6
            right.plot(memory, np.full(len(memory), place), color="0.6", zorder=1)
            for number, value in enumerate(memory):
                of = f"{result['rounds'][number]} rounds" if not place else None
                right.scatter(value, place, color=COLOURS[number], marker="o^s"[number], label=of, zorder=2)
    left.set_yticks(range(len(rows)), list(rows))
    left.invert_yaxis()
    left.set_xlabel("cost of a gradient,\nor of all members, forward runs")
    right.set_xscale("log")
    plain_numbers(right.xaxis, (1.0,))
    right.set_xlabel("memory, MB")
    figure.legend(loc="outside lower right", ncols=3, **LEGEND)
    for ax in (left, right):
        plain(ax)
    return figure


STUDY = Study("outer_cost", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
