"""Figure 3: SGD, FedAvg and SCAFFOLD on two quadratic clients whose gradients differ by G, exactly.

f_1(x) = mu x^2 + G x,   f_2(x) = -G x,   f = (f_1 + f_2) / 2 = mu/2 x^2,   minimum 0 at 0

All steps are along full gradients and everybody takes part, so every method is a linear recursion in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.devices import double_precision
from fedjax_sim.engine.plan import TrainState
from fedjax_sim.papers.bench import Bench, Claim, Effect, Outcome, Setting, Table, rounds_in_words
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.measuring import largest
from fedjax_sim.reporting.plots import LEGEND, line_style, plain

MU = 1.0  # delta = mu, beta = 2 mu
SPREADS = (1.0, 10.0, 100.0)  # G
STEPS = (2, 10)  # K
START = 1.0  # x_0
RATE, SMALL_RATE = 0.1, 0.01  # eta_l of the figure, and one at which second-order effects vanish
ROUNDS = 300
TARGET = 1e-6  # of f(x) / f(x_0), for SGD and SCAFFOLD, which go to the minimum at any rate
TUNED_TARGET, TUNED_ROUNDS = 1e-2, 2000  # FedAvg comes so far at a small rate only
GRID = tuple(base * 10.0**-power for power in range(5) for base in (1.0, 0.5, 0.2))
EXACT = 1e-9
PAPERS_SPEED = {2: 2.0, 10: 5.0}  # SCAFFOLD's over SGD's by K, in the paper's text
_DRAWN = 61  # points

Row = list[str | float | int | None]
Runs = dict[tuple[str, int, float], np.ndarray]  # x_0 .. x_R by method, K and G


def clients(spread: float) -> fjs.FederatedDataset:
    """The two clients."""
    return fjs.datasets.quadratics_from(np.array([[[2 * MU]], [[0.0]]]), np.array([[-spread], [spread]]))


def recursion(
    method: str, steps: int, spread: float, rate: float, rounds: int, *, informed: bool = False
) -> np.ndarray:
    """x_0 .. x_R in closed form.

    Client 1 comes in K steps from x to a^K x - s (G + c - c_1) with a = 1 - 2 mu eta, s = eta (1 + a + ... + a^{K-1}),
    client 2 to x + eta K (G - c + c_2). ``informed``: SCAFFOLD starts from c_i = f_i'(x_0) and not from 0.
    """
    k = 1 if method == "sgd" else steps
    shrunk = (1 - 2 * MU * rate) ** k
    moved = (1 - shrunk) / (2 * MU)
    x, c_1, c_2 = START, 0.0, 0.0
    if informed:
        c_1, c_2 = 2 * MU * START + spread, -spread
    xs = [x]
    for _ in range(rounds):
        c = (c_1 + c_2) / 2
        y_1, y_2 = shrunk * x - moved * (spread + c - c_1), x + rate * k * (spread - c + c_2)
        if method == "scaffold":
            c_1, c_2 = c_1 - c + (x - y_1) / (k * rate), c_2 - c + (x - y_2) / (k * rate)
        x = (y_1 + y_2) / 2
        xs.append(x)
    return np.array(xs)


def stays_below(x: np.ndarray, target: float) -> float:
    """The first round from which on f(x) <= target f(x_0); inf if the last one is not."""
    above = np.flatnonzero(~(x**2 <= target * x[0] ** 2))  # NaN is above
    first = 0 if above.size == 0 else int(above[-1]) + 1
    return float(first) if first < len(x) else np.inf


def perform(bench: Bench) -> Outcome:
    """Runs it, compares it with the recursions, draws it."""
    rounds, rates = bench.choose(3, ROUNDS), (RATE, SMALL_RATE)
    with double_precision():
        fixed, pairs = _trajectories(bench, rates, rounds), [*itertools.product(STEPS, SPREADS)]
        informed = {rate: {at: _from_gradients(bench, *at, rate, rounds) for at in pairs} for rate in rates}
    figure_runs, small = fixed
    with np.errstate(over="ignore"):  # the largest rates diverge
        tuned = {  # rounds at the best rate of the grid, by the recursion: that runs follow it is a claim of its own
            key: min(stays_below(recursion(*key, rate, TUNED_ROUNDS), TUNED_TARGET) for rate in GRID)
            for key in figure_runs
        }
    claims = [
        _exact(rates, fixed, informed),
        *_fedavg_claims(figure_runs, tuned),
        *_scaffold_claims(bench, figure_runs, small, informed),
    ]
    x = {f"{method}, K = {steps}, G = {spread:g}": xs for (method, steps, spread), xs in figure_runs.items()}
    starts = {f"K = {steps}, G = {spread:g}": xs for (steps, spread), xs in informed[RATE].items()}
    numbers = {"x": x, "x of SCAFFOLD from c_i = f_i'(x_0)": starts}
    effects = [
        Effect(f"SCAFFOLD's speed-up over SGD, K = {k}, quadratics", "ratio", paper, [speed(figure_runs, informed, k)])
        for k, paper in PAPERS_SPEED.items()
    ]
    figures = {"figure3": _figure(figure_runs, informed[RATE])}
    return Outcome(
        _settings(bench, rounds), claims, figures, _tables(figure_runs, informed[RATE], tuned), numbers, effects
    )


def _trajectories(bench: Bench, rates: tuple[float, ...], rounds: int) -> list[Runs]:
    """For each rate x_0 .. x_R of all methods. SGD is FedAvg with one step along the full gradient."""
    found: list[Runs] = [{} for _ in rates]
    space = fjs.sweeps.grid({"client_optimizer.learning_rate": list(rates)})
    fedavg, scaffold = (make(client_optimizer=fjs.optim.sgd(1.0)) for make in (fjs.fedavg, fjs.scaffold))
    methods: list[tuple[str, int, Method]] = [("sgd", 1, fedavg)]
    methods += [("fedavg", steps, fedavg) for steps in STEPS] + [("scaffold", steps, scaffold) for steps in STEPS]
    for spread in SPREADS:
        for method, steps, algorithm in methods:
            label, setting = f"{method}, K={steps}, G={spread:g}", _run(steps, rounds)
            of_rates = bench.runs(
                label, algorithm, clients(spread), space, initial_params=jnp.array([START]), **setting
            )
            for runs, history in zip(found, of_rates, strict=True):
                runs[method, steps, spread] = history["x"][0, :, 0]
    return found


def _run(steps: int, rounds: int) -> dict[str, Any]:
    """Keywords of a run of K steps for everybody; they are an array, so that other numbers compile nothing."""
    return {
        "task": fjs.quadratic(),
        "rounds": rounds,
        "cohort": fjs.cohort.full(average="plain"),
        "work": fjs.local.given_steps(jnp.full((rounds, 2), steps, jnp.int32), most=max(STEPS)),
        "batches": fjs.local.full_batch(),
        "evaluate": position,
        "seeds": [0],
    }


def position(params: Any, _: Any) -> dict[str, jax.Array]:
    """x, recorded at every round."""
    return {"x": params}


def _from_gradients(bench: Bench, steps: int, spread: float, rate: float, rounds: int) -> np.ndarray:
    """x_0 .. x_R of SCAFFOLD that starts from c_i = f_i'(x_0), c their mean; by itself it starts from zero."""
    controls = jnp.array([[2 * MU * START + spread], [-spread]])
    algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(rate))
    server = algorithm.init(jnp.array([START]), jnp.full(2, 0.5))._replace(extra=jnp.mean(controls, axis=0))
    state = jax.tree.map(lambda leaf: leaf[None], TrainState(server, controls))  # of the only seed
    label = f"scaffold from gradients, K={steps}, G={spread:g}, rate={rate:g}"
    history = bench.simulate(label, algorithm, clients(spread), initial_state=state, **_run(steps, rounds))
    return np.asarray(history["x"][0, :, 0])


def _exact(
    rates: tuple[float, ...], fixed: list[Runs], informed: Mapping[float, Mapping[tuple[int, float], np.ndarray]]
) -> Claim:
    found: dict[str, list[float]] = {}
    for rate, runs in zip(rates, fixed, strict=True):
        for (method, steps, spread), xs in runs.items():
            error = _error(xs, recursion(method, steps, spread, rate, len(xs) - 1))
            found.setdefault(method, []).append(error)
        for (steps, spread), xs in informed[rate].items():
            error = _error(xs, recursion("scaffold", steps, spread, rate, len(xs) - 1, informed=True))
            found.setdefault("scaffold from c_i = f_i'(x_0)", []).append(error)
    errors = {name: largest(of) for name, of in found.items()}
    numbers = {"largest |x - x closed| / max(1, largest |x closed|)": errors}
    statement = "all trajectories are those of the closed-form recursions (float64)"
    return Claim(statement, largest(errors.values()) <= EXACT, numbers, own=True, seeds=0)


def _error(xs: np.ndarray, closed: np.ndarray) -> float:
    return float(np.abs(xs - closed).max() / max(1.0, np.abs(closed).max()))


def _fedavg_claims(runs: Runs, tuned: Mapping[tuple[str, int, float], float]) -> list[Claim]:
    ends = {(method, steps, spread): xs[-1] ** 2 for (method, steps, spread), xs in runs.items()}
    low, high = STEPS
    by_spread, told = (
        {f"G = {spread:g}": [of["sgd", 1, spread], *(of["fedavg", k, spread] for k in STEPS)] for spread in SPREADS}
        for of in (ends, tuned)
    )
    ordered = [all(a < b for a, b in itertools.pairwise(row)) for row in by_spread.values()]
    first = SPREADS[0]
    early = {"SGD": stays_below(runs["sgd", 1, first], TUNED_TARGET)}
    early |= {f"K = {k}": stays_below(runs["fedavg", k, first], TUNED_TARGET) for k in STEPS}
    slower = [tuned["fedavg", low, spread] < tuned["fedavg", high, spread] for spread in SPREADS]
    return [
        Claim("FedAvg gets worse with more local steps, for every G (one rate for all: f at the end)",
              all(ordered), {"f(x) / f(x_0) at the end: SGD, K = 2, K = 10": by_spread}, seeds=0,
              quote="FEDAVG gets slower as we increase the number of local steps", place="Section 7.2, Figure 3"),
        Claim("FedAvg gets slower with more local steps, for every G (best rate of a grid for each)",
              all(slower), {"rounds to 1 % of f(x_0): SGD, K = 2, K = 10": told}, own=True, seeds=0),
        Claim("FedAvg gets slower as G grows",
              all(ends["fedavg", k, a] < ends["fedavg", k, b] and tuned["fedavg", k, a] < tuned["fedavg", k, b]
              for k in STEPS for a, b in itertools.pairwise(SPREADS)),
              {"f(x) / f(x_0) at the end": by_spread, "rounds with the best rate": told}, seeds=0,
              quote="as we increase G, FEDAVG continues to slow down", place="Section 7.2, Figure 3", central=True),
        Claim("with G = 1 FedAvg can compete with SGD",
              min(early[f"K = {k}"] for k in STEPS) <= early["SGD"], {"rounds to 1 % of f(x_0)": early},
              "later it stalls; and with the best rate for each it cannot: SGD with rate 1 needs one round in one "
              "dimension", seeds=0, quote="FEDAVG can be competitive with SGD", place="Section 7.2",
              ours=f"at one rate for both, {RATE:g}, at most SGD's rounds to 1 % of f(x_0) for the better K"),
    ]  # fmt: skip


def _scaffold_claims(
    bench: Bench, runs: Runs, small: Runs, informed: Mapping[float, Mapping[tuple[int, float], np.ndarray]]
) -> list[Claim]:
    low, high = STEPS
    fast = {k: speed(runs, informed, k) for k in STEPS}
    slow = {k: _speed(small["sgd", 1, SPREADS[0]], informed[SMALL_RATE][k, SPREADS[0]], TUNED_TARGET) for k in STEPS}
    known = bench.size != "smoke"  # three rounds reach no target
    apart = largest(
        _error(informed[rate][k, spread], informed[rate][k, SPREADS[0]])
        for rate in informed for k in STEPS for spread in SPREADS
    )  # fmt: skip
    zero = {f"K = {k}": [stays_below(runs["scaffold", k, spread], TARGET) for spread in SPREADS] for k in STEPS}
    rates = {f"K = {k}": [contraction(runs["scaffold", k, spread]) for spread in SPREADS] for k in STEPS}
    return [
        Claim("SCAFFOLD with K = 2 is twice as fast as SGD, with K = 10 about five times",
              (1.5 < fast[low] < 2.5 and 3.5 < fast[high] < 6.5) if known else None,
              {f"rounds of SGD over rounds of SCAFFOLD to {TARGET:g} f(x_0)": {f"K = {k}": fast[k] for k in STEPS}},
              f"eta_l = {RATE:g}; the ratio depends on it", seeds=0, central=True,
              quote="K = 2 being twice as fast and K = 10 about 5 times faster", place="Section 7.2, Figure 3",
              ours="1.5 to 2.5 and 3.5 to 6.5 times"),
        Claim("as eta_l becomes small SCAFFOLD is K times as fast as SGD",
              all(abs(slow[k] / k - 1) < 0.15 for k in STEPS) if known else None,
              {f"the same to {TUNED_TARGET:g} f(x_0) at eta_l = {SMALL_RATE:g}": {f"K = {k}": slow[k] for k in STEPS}},
              "from theory, not from the paper's figure", own=True, seeds=0),
        Claim("SCAFFOLD is not affected by G: started from c_i = f_i'(x_0) all its iterates are the same",
              apart <= EXACT, {"largest difference to G = 1": apart}, seeds=0, identity=True,
              quote="its convergence is completely unaffected by G", place="Section 7.2, Figure 3"),
        Claim("SCAFFOLD is not affected by G: started from c_i = 0 it contracts at the same rate",
              all(abs(value - row[0]) <= 1e-6 for row in rates.values() for value in row) if known else None,
              {"spectral radius of a round, G = 1, 10, 100": rates, "rounds to the target": zero},
              "its first round is FedAvg's, which depends on G, so the iterates do", own=True, seeds=0),
    ]  # fmt: skip


def speed(runs: Runs, informed: Mapping[float, Mapping[tuple[int, float], np.ndarray]], steps: int) -> float:
    """How many times SCAFFOLD's rounds SGD needs, at the rate of the figure."""
    return _speed(runs["sgd", 1, SPREADS[0]], informed[RATE][steps, SPREADS[0]], TARGET)


def _speed(sgd: np.ndarray, scaffold: np.ndarray, target: float) -> float:
    return stays_below(sgd, target) / max(stays_below(scaffold, target), 1.0)


def contraction(x: np.ndarray) -> float:
    """The spectral radius of SCAFFOLD's recursion, from its iterates.

    c_2 = -G from round 1 on, so what is left is a linear recursion of x and c_1: x_{t+2} = p x_{t+1} + q x_t, whose
    p and q are fitted and whose radius is that of z^2 - p z - q. (|x| itself oscillates where the roots are complex.)
    """
    if len(x) < 8:
        return np.nan
    rows = np.stack([x[2:10], x[1:9]], axis=1) if len(x) > 10 else np.stack([x[2:-1], x[1:-2]], axis=1)
    scale = np.abs(rows).max(axis=1)
    ahead = x[3 : 3 + len(rows)]
    p, q = np.linalg.lstsq(rows / scale[:, None], ahead / scale, rcond=None)[0]
    return float(np.abs(np.roots([1.0, -p, -q])).max())


def _settings(bench: Bench, rounds: int) -> list[Setting]:
    return [
        Setting("functions", "N = 2, after Theorem II, delta = 1, beta = 1",
                "mu x^2 + G x and -G x with mu = 1: delta = 1, beta = 2"),
        Setting("G, local steps", "1, 10, 100; K = 2, 10", "1, 10, 100; K = 2, 10"),
        Setting("gradients, participation", "full, everybody", "full, everybody"),
        Setting("local step size", "not given",
                f"{RATE:g} for all; also {SMALL_RATE:g}, and the best of {GRID[-1]:g} .. {GRID[0]:g} for each"),
        Setting("x_0, c_i at the start", "not given", f"{START:g}; c_i = f_i'(x_0), and c_i = 0"),
        Setting("rounds", "not given", str(rounds)),
        Setting("target", "not given", f"f(x) <= {TARGET:g} f(x_0); {TUNED_TARGET:g} f(x_0) with the grid"),
    ]  # fmt: skip


def _tables(
    runs: Runs, informed: Mapping[tuple[int, float], np.ndarray], tuned: Mapping[tuple[str, int, float], float]
) -> list[Table]:
    names = {"sgd": "SGD", "fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
    keys = [("sgd", 1), *(("fedavg", k) for k in STEPS), *(("scaffold", k) for k in STEPS)]
    limit, most = len(next(iter(runs.values()))) - 1, TUNED_ROUNDS
    at_rate = {(names[method], k): [runs[method, k, spread] for spread in SPREADS] for method, k in keys}
    at_rate |= {("SCAFFOLD from c_i = f_i'(x_0)", k): [informed[k, spread] for spread in SPREADS] for k in STEPS}
    fixed: list[Row] = [
        [method, k, *(rounds_in_words(stays_below(xs, TARGET), limit) for xs in of)]
        for (method, k), of in at_rate.items()
    ]
    best: list[Row] = [
        [names[method], k, *(rounds_in_words(tuned[method, k, spread], most) for spread in SPREADS)]
        for method, k in keys
    ]
    columns = ("method", "K", *(f"G = {spread:g}" for spread in SPREADS))
    return [
        Table(f"Rounds to f(x) <= {TARGET:g} f(x_0) at eta_l = {RATE:g}", columns, fixed,
              "The paper gives a figure only. SCAFFOLD starts from c_i = 0 where nothing else is said."),
        Table(f"Rounds to f(x) <= {TUNED_TARGET:g} f(x_0), each with the best rate of the grid", columns, best),
    ]  # fmt: skip


def _figure(runs: Runs, informed: Mapping[tuple[int, float], np.ndarray]) -> Any:
    """FedAvg above, SCAFFOLD below, each beside SGD; G grows to the right. SCAFFOLD from zero is a row of its own."""
    figure, axes = canvas(9.5, 7.2, 3, len(SPREADS), sharex=True, sharey="row")
    for row, name in enumerate(("FedAvg", "SCAFFOLD", "SCAFFOLD from $c_i = 0$")):
        for column, spread in enumerate(SPREADS):
            ax = axes[row][column]
            sgd = runs["sgd", 1, spread][:_DRAWN]
            ax.plot(MU / 2 * sgd**2, label="SGD", color="black", linestyle="--", linewidth=1.5)
            for k, colour in zip(STEPS, ((4, 1), (5, 0), (5, 0))[row], strict=True):
                xs = informed[k, spread] if row == 1 else runs["scaffold" if row else "fedavg", k, spread]
                style = line_style(colour) | {"linestyle": "-"}
                ax.plot(MU / 2 * xs[:_DRAWN] ** 2, label=f"K = {k}", **style)
            ax.set_yscale("log")
            plain(ax)
            if row == 0:
                ax.set_title(f"G = {spread:g}", fontsize="medium")
        axes[row][0].set_ylabel(f"{name}\n$f(x) - f^*$")
        if row > 0:
            axes[row][0].set_ylim(bottom=1e-10)
        axes[row][0].legend(**LEGEND)
    for ax in axes[-1]:
        ax.set_xlabel("round")
    return figure
