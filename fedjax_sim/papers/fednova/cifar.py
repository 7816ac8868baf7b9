"""Table I: local solvers with plain and with normalised averaging, CIFAR-10 among 16 unlike clients."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table, mapped
from fedjax_sim.papers.fednova.synthetic import rounds_to_each
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

CLIENTS, ALPHA, SMALLEST = 16, 0.1, 10
BATCH, ROUNDS = 32, 100
DECAYS, FACTOR = (0.5, 0.75), 0.1  # of all rounds
RATE, HEAVY_RATE, MOMENTUM = 0.05, 0.02, 0.9
IMAGES, POOL, HIDDEN = 10_000, 4, (64,)  # at the cpu size: images, pixels a side that are averaged, the MLP's layers
DATA_SEED = 0

SGD, HEAVY, PROX, VR, HEAVY_VR = "SGD", "momentum", "proximal", "VR", "momentum + VR"
SERVER, HYBRID = "server momentum", "momentum + server momentum"


@dataclasses.dataclass(frozen=True)
class Regime:
    """A half of the table."""

    name: str  # of the rows
    work: fjs.local.Work  # local epochs
    mu: float  # the best proximal parameter of the paper's appendix
    solvers: tuple[str, ...]  # the rows


REGIMES = (
    Regime("E = 2", fjs.local.epochs(2), 0.005, (SGD, HEAVY, PROX)),
    Regime("E(t) ~ U(2, 5)", fjs.local.random_epochs(2, 5), 0.001, (SGD, HEAVY, PROX, VR, HEAVY_VR, SERVER, HYBRID)),
)

# Test accuracy in percent, FedAvg's and FedNova's column: Table 2 of the preprint arXiv:2007.07481; the last two are
# in the text (of the method with server momentum alone it does not say that it is FedNova).
PAPER = {
    ("E = 2", SGD): (60.68, 66.31), ("E = 2", HEAVY): (65.26, 73.32), ("E = 2", PROX): (60.44, 69.92),
    ("E(t) ~ U(2, 5)", SGD): (64.22, 73.22), ("E(t) ~ U(2, 5)", HEAVY): (70.44, 77.07),
    ("E(t) ~ U(2, 5)", PROX): (63.74, 73.41), ("E(t) ~ U(2, 5)", VR): (74.72, 74.72),
    ("E(t) ~ U(2, 5)", HEAVY_VR): (None, 79.19), ("E(t) ~ U(2, 5)", SERVER): (None, 77.49),
    ("E(t) ~ U(2, 5)", HYBRID): (None, 81.15),
}  # fmt: skip

Pair = dict[str, History]  # "FedAvg" (where it is defined) and "FedNova"


def perform(bench: Bench) -> Outcome:
    """Nine programs: for each regime what averages, what normalises, and the proximal one; U(2, 5) has three more."""
    data = _data(bench)
    runs = {regime.name: _runs(bench, data, regime) for regime in REGIMES}
    both = [(regime, (SGD, HEAVY, PROX)) for regime in REGIMES]
    rows: list[list[Panel | None]] = [
        [Panel(runs[regime.name][solver], "test_accuracy", f"{regime.name}, {solver}") for solver in solvers]
        for regime, solvers in (*both, (REGIMES[1], (VR, HEAVY_VR)))
    ]
    [*_, last] = runs.values()
    with_server = {f"FedNova, {solver}": last[solver]["FedNova"] for solver in (SERVER, HYBRID)}
    rows[-1].append(Panel(with_server, "test_accuracy", f"{REGIMES[1].name}, {SERVER}"))
    return Outcome(_settings(bench, data), _claims(runs, bench.size), {"accuracy": panels(rows)}, [_table(runs)])


def _data(bench: Bench) -> fjs.FederatedDataset:
    def real() -> fjs.FederatedDataset:
        if bench.size == "paper":
            return fjs.datasets.cifar10_dirichlet(ALPHA, CLIENTS, DATA_SEED, min_size=SMALLEST)
        return pooled(
            fjs.datasets.cifar10(
                batches=(1,), partition=lambda y: fjs.datasets.partition.dirichlet(
                    y[:IMAGES], CLIENTS, ALPHA, DATA_SEED, SMALLEST), normalise=True,
            ), POOL,
        )  # fmt: skip

    def digits() -> fjs.FederatedDataset:
        return fjs.datasets.digits(bench.choose(4, CLIENTS), ALPHA, DATA_SEED)

    return bench.load("CIFAR-10", real, digits, "scikit-learn's digits, Dir(0.1)")


def pooled(data: fjs.FederatedDataset, factor: int) -> fjs.FederatedDataset:
    """The same data set with images [n, height, width, channels] of means of ``factor`` x ``factor`` pixels."""

    def means(images: jax.Array) -> jax.Array:
        n, height, width, channels = images.shape
        blocks = np.asarray(images).reshape(n, height // factor, factor, width // factor, factor, channels)
        return jnp.asarray(blocks.mean(axis=(2, 4)))

    return mapped(data, "x", means)


def _runs(bench: Bench, data: fjs.FederatedDataset, regime: Regime) -> dict[str, Pair]:
    """Histories by solver and method."""
    rounds = bench.choose(2, ROUNDS)
    model = bench.choose(smoke=None, cpu=fjs.models.MLP(10, HIDDEN), paper=fjs.models.VGG11(10))
    setting: dict[str, Any] = {
        "task": fjs.classification(bench.model(model, 10)),
        "rounds": rounds,
        "cohort": fjs.cohort.full(average="sample"),
        "work": bench.choose(fjs.local.epochs(1), regime.work),
        "batch_size": BATCH,
        "eval_every": bench.choose(smoke=2, cpu=10, paper=5),
    }
    decayed = fjs.rates.piecewise(1.0, tuple(int(share * rounds) for share in DECAYS), FACTOR)
    solver: dict[str, Any] = {"client_optimizer": fjs.optim.sgd(HEAVY_RATE, MOMENTUM), "client_learning_rate": decayed}
    light = {"client_optimizer.learning_rate": RATE, "client_optimizer.momentum": 0.0}
    heavy = {"client_optimizer.learning_rate": HEAVY_RATE, "client_optimizer.momentum": MOMENTUM}

    def swept(name: str, algorithm: Any, *points: dict[str, float]) -> list[History]:
        return bench.runs(f"{name}, {regime.name}", algorithm, data, fjs.sweeps.points(points), **setting)

    average = fjs.fedprox(mu=regime.mu, **solver)
    avg = swept("FedAvg", average, {"mu": 0.0, **light}, {"mu": 0.0, **heavy}, {"mu": regime.mu, **light})
    nova = swept("FedNova", fjs.fednova(**solver), light, heavy)
    nova += swept("FedNova, proximal", fjs.fednova(mu=regime.mu, tau_eff="steps", **solver), light)
    found: dict[str, Pair] = {
        name: {"FedAvg": one, "FedNova": other} for name, one, other in zip((SGD, HEAVY, PROX), avg, nova, strict=True)
    }
    if VR in regime.solvers:
        [control] = swept("SCAFFOLD", fjs.scaffold(**solver), light)
        reduced = swept("FedNova, VR", fjs.fednova(variance_reduction=True, **solver), light, heavy)
        server = fjs.fednova(server_optimizer=fjs.optim.sgd(1.0, momentum=MOMENTUM), **solver)
        alone, both = swept("FedNova, server momentum", server, light, heavy)
        found |= {VR: {"FedAvg": control, "FedNova": reduced[0]}, HEAVY_VR: {"FedNova": reduced[1]},
                  SERVER: {"FedNova": alone}, HYBRID: {"FedNova": both}}  # fmt: skip
    return found


def _accuracy(history: History) -> float:
    """In percent, mean of the seeds."""
    return float(100 * history.final("test_accuracy").mean())


def _spread(history: History) -> str:
    finals = 100 * history.final("test_accuracy")
    return f"{finals.mean():.1f} ± {finals.std():.1f}"


def _gap(pair: Pair) -> float:
    """How many points FedNova is above FedAvg."""
    return _accuracy(pair["FedNova"]) - _accuracy(pair["FedAvg"])


def _table(runs: dict[str, dict[str, Pair]]) -> Table:
    rows: list[tuple[str | float | None, ...]] = []
    for regime, solvers in runs.items():
        for solver, pair in solvers.items():
            average, nova = PAPER[regime, solver]
            gaps: tuple[float | None, ...] = (None, None, None)
            if average is not None:
                gaps = (_gap(pair), nova - average, _gap(pair) - (nova - average))
            plain = _spread(pair["FedAvg"]) if "FedAvg" in pair else None
            rows.append((regime, solver, plain, _spread(pair["FedNova"]), average, nova, *gaps))
    return Table(
        "Test accuracy at the end in percent (± standard deviation over seeds)",
        ("local epochs", "solver", "FedAvg", "FedNova", "paper: FedAvg", "paper: FedNova", "gap", "paper: gap",
         "difference"),
        rows,
        "FedAvg with VR is SCAFFOLD (sample-weighted). The paper's cells are quoted from memory of the preprint, "
        "arXiv:2007.07481, whose table was not at hand; they lie in the ranges that the paper's text states. Those of "
        "the last two rows are in the text.",
    )  # fmt: skip


def _claims(runs: dict[str, dict[str, Pair]], size: str) -> list[Claim]:
    claims = []

    def of_this_size(statement: str, held: bool, numbers: dict[str, Any]) -> Claim:
        """A number of points, which belongs to a model and a data set; orders can be told with any."""
        if size == "paper":
            return Claim(statement, held, numbers)
        return Claim(statement, None, numbers, "a size of the paper's model and data; here the order is tested")

    for regime, solvers in runs.items():
        gaps = {solver: _gap(pair) for solver, pair in solvers.items() if "FedAvg" in pair}
        plain = {solver: gaps[solver] for solver in (SGD, HEAVY)}
        claims += [
            Claim(f"{regime}: FedNova is more accurate than FedAvg with SGD and with momentum",
                  all(gap > 0 for gap in plain.values()), {"points": plain}),
            of_this_size(f"{regime}: ... by 6 to 9 points", all(5.5 <= gap <= 9.5 for gap in plain.values()),
                         {"points": plain}),
            Claim(f"{regime}: FedNova-Prox is more accurate than FedProx", gaps[PROX] > 0, {"points": gaps[PROX]}),
            of_this_size(f"{regime}: ... by about 10 points", 8 <= gaps[PROX] <= 12, {"points": gaps[PROX]}),
        ]  # fmt: skip
        finals = {solver: {name: _accuracy(run) for name, run in pair.items()} for solver, pair in solvers.items()}
        better = {name: finals[HEAVY][name] - finals[SGD][name] for name in ("FedAvg", "FedNova")}
        rounds = {solver: _rounds_to_fedavg(solvers[solver]) for solver in (SGD, HEAVY, PROX)}
        claims += [
            Claim(f"{regime}: FedNova reaches FedAvg's last accuracy in fewer rounds, with all three",
                  all(of["FedNova"] < of["FedAvg"] for of in rounds.values()),
                  {"rounds to it": rounds}),
            Claim(f"{regime}: momentum in the local solver is more accurate than SGD, for FedAvg and for FedNova",
                  all(points > 0 for points in better.values()), {"points": better}, "the paper: 3 to 7 points"),
        ]  # fmt: skip
        if VR in solvers:
            local = {solver: of for solver, of in finals.items() if solver not in (SERVER, HYBRID)}
            best = max((value, solver, name) for solver, of in local.items() for name, value in of.items())
            server = {solver: finals[solver]["FedNova"] for solver in (SERVER, HYBRID)}
            claims += [
                Claim(f"{regime}: with variance reduction FedNova is as accurate as SCAFFOLD (within 1 point)",
                      abs(gaps[VR]) <= 1, {"points": gaps[VR]}),
                Claim(f"{regime}: FedNova with momentum and variance reduction is the most accurate local solver",
                      best[1:] == (HEAVY_VR, "FedNova"), {"accuracy": local}),
                Claim(f"{regime}: local and server momentum together are more accurate than server momentum alone",
                      server[HYBRID] > server[SERVER], {"accuracy": server}, "the paper: 81.15 and 77.49"),
            ]  # fmt: skip
    return claims


def _rounds_to_fedavg(pair: Pair) -> dict[str, float]:
    """Rounds to the test accuracy at which the seed's FedAvg ends, mean of the seeds."""
    targets = pair["FedAvg"].final("test_accuracy")
    return {name: rounds_to_each(run, "test_accuracy", targets) for name, run in pair.items()}


def _settings(bench: Bench, data: fjs.FederatedDataset) -> list[Setting]:
    sizes = np.asarray(data.sizes)
    held = f"{len(sizes)} clients of {sizes.min()} to {sizes.max()} images, {data.num_examples:,} in all"
    side, row = 32 // POOL, bench.setting
    return [
        row("images", "CIFAR-10, 50,000, 32 x 32, crops and flips in the authors' code", f"not augmented; {held}",
            smoke=f"digits, 8 x 8; {held}",
            cpu=f"{IMAGES:,} (batch 1), averaged to {side} x {side}, not augmented; {held}"),
        row("clients", "16, Dir(0.1)", smoke="4, Dir(0.1)"),
        row("partition", f"authors' code: at least {SMALLEST} images each, and who has n/16 gets no further class",
            f"at least {SMALLEST} images each", smoke="whatever comes out"),
        row("model", "VGG-11", smoke="MLP, 16 hidden", cpu=f"MLP, {HIDDEN[0]} hidden"),
        row("rounds", "100", ROUNDS, smoke="2"),
        row("local epochs", "2; U(2, 5)", smoke="1"),
        row("U(2, 5)", "in the authors' code numpy's randint(2, 5): 2 to 4", "2 to 5"),
        row("batch size", "32"),
        row("learning rate", "0.05, momentum 0.02; tuned for FedAvg; decayed by a constant after 50 and 75 %",
            "0.05, momentum 0.02; not tuned; x 0.1 after 50 and 75 %"),
        row("weight decay", "authors' code: 1e-4", "none"),
        row("server momentum", "not given", f"{MOMENTUM:g}"),
        row("accuracy", "authors' code logs that of all rounds and the best", "after the last round"),
        row("mu", "0.005 (E = 2), 0.001 (U(2, 5)); the best of four", "0.005 (E = 2), 0.001 (U(2, 5))"),
        row("seeds", "3", len(bench.seeds)),
    ]  # fmt: skip
