"""The tables and figures of the fair comparison's page: ranks, edges, seeds, curves, what tuning is worth."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedjax_sim.studies import benchmark
from fedjax_sim.studies.benchmark import running
from fedjax_sim.studies.benchmark.methods import BASE, RATE
from tests.studies.test_benchmark import row


@pytest.fixture
def script() -> Any:
    """Imported here, for it chooses the CPU: not while tests are collected that may run on another device."""
    from benchmarks.studies import benchmark as found

    return found


def test_how_points_were_chosen(script: Any) -> None:
    def choice(draw: int, wider: str, **point: float) -> benchmark.Choice:
        return benchmark.Choice("1", "synthetic(1, 1)", "FedAvgM", draw, 16 * (1 + bool(wider)), wider,
                                json.dumps(point), 0.25, "sum p_i F_i", "x", "")  # fmt: skip

    inside = {RATE: 0.05, "server_learning_rate": 0.2, "momentum": 0.6}
    found = [
        choice(0, "server_learning_rate 0.02 to 20", **inside | {"server_learning_rate": 9.0}),  # a tenth in is 10
        choice(1, "server_learning_rate 0.02 to 20", **inside | {"server_learning_rate": 11.0}),
        choice(2, "every point diverged"),  # made no range wider
        choice(3, "", **inside | {"momentum": 0.91}),  # of 0.3 to 0.97
    ]
    assert script._wider(benchmark.Result(found, [])).splitlines()[-1] == "| FedAvgM | 28 | 2 of 4 | 1 of 4 | 1 of 4 |"


@pytest.mark.parametrize("problem", ["synthetic(1, 1)", "Parkinsons by patient"])
def test_ranks_put_what_diverged_last_the_base_too(script: Any, problem: str) -> None:
    sign = -1 if problem.startswith("Parkinsons") else 1
    level = {BASE: 0.5, "SCAFFOLD": 0.6, "FedProx": 0.4}
    rows = [row(problem, name, draw, 0, sign * (of + 0.01 * draw)) for name, of in level.items() for draw in range(3)]
    found = script.mean_ranks(benchmark.Result([], rows), "rounds", 1.0)
    assert found == {BASE: 2, "FedProx": 3, "SCAFFOLD": 1}
    for name, wanted in (
        (BASE, {BASE: 3, "FedProx": 2, "SCAFFOLD": 1}),
        ("SCAFFOLD", {BASE: 1, "FedProx": 2, "SCAFFOLD": 3}),
    ):
        lost = [of._replace(by_examples=float("nan")) if of[2:4] == (name, 1) else of for of in rows]
        assert script.mean_ranks(benchmark.Result([], lost), "rounds", 1.0) == wanted


def test_what_seeds_see(script: Any) -> None:
    problem = "synthetic(1, 1)"
    values = {BASE: [[0.5, 0.7], [0.1, 0.3]], "SCAFFOLD": [[0.6, 0.9], [0.3, 0.3]], "FedDyn": [[0.6, 0.6], [0.3, 0.5]]}
    rows = [
        row(problem, method, draw, seed, value)
        for method, table in values.items() for draw, of in enumerate(table) for seed, value in enumerate(of)
    ]  # fmt: skip
    base, scaffold, feddyn = script._seeds(benchmark.Result([], rows)).splitlines()[2:]
    assert base == f"| {problem} | FedAvg | 0.1414 | 0.2828 |  |"
    # differences 0.1, 0.2 and 0.2, 0: no difference has no sign
    assert scaffold == f"| {problem} | SCAFFOLD less FedAvg | 0.1061 | 0.0354 | 0% |"
    assert feddyn.endswith("| 25% |"), "0.1, -0.1, 0.2, 0.2"
    lost = [of._replace(by_examples=float("nan")) if of[2:5] == ("FedDyn", 1, 0) else of for of in rows]
    assert script._seeds(benchmark.Result([], lost)).endswith("| nan | nan |  |"), "no share of what has no mean"


@pytest.mark.parametrize(("problem", "sign"), [("synthetic(1, 1)", 1), ("Parkinsons by patient", -1)])
def test_what_tuning_is_worth(
    script: Any, problem: str, sign: int, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The point that validation chooses is not the best of the test part, and one of five diverged."""
    chosen_by = sign * np.array([0.1, 0.5, 0.3, np.nan, 0.2])
    reported = sign * np.array([0.0, 0.6, 0.9, np.nan, 0.4])
    of_draws = {draw: (chosen_by, np.where(np.arange(5) == 1, reported + 0.01 * sign * draw, reported))
                for draw in range(10)}  # fmt: skip
    monkeypatch.setattr(running.Runs, "first", lambda runs, draw: of_draws[draw])
    monkeypatch.setattr("benchmarks.studies.benchmark.data_of", lambda problem, draw: None)
    median = [np.nanmedian(sign * of) for _, of in of_draws.values()]
    gains = np.array([0.6 + 0.01 * draw - middle for draw, middle in enumerate(median)])
    half = stats.t.ppf(0.975, 9) * stats.sem(gains)
    with pytest.raises(SystemExit, match="no runs of FedAvg"):
        script.tuning([problem], [BASE], tmp_path)
    for draw in range(10):
        (running.place_of(tmp_path, problem, BASE, draw) / "search-0").mkdir(parents=True)
    said = script.tuning([problem], [BASE], tmp_path).splitlines()[-1].split()
    assert said[-8:] == [
        f"{sign * 0.5:.3f}",
        f"{sign * 0.25:.3f}",
        "1.0",
        "of",
        "5",
        f"{gains.mean():.4f}",
        "±",
        f"{half:.4f}",
    ]


@pytest.mark.parametrize("problem", ["synthetic(1, 1)", "Parkinsons by patient"])
def test_curves_are_medians_of_draws_at_what_the_base_costs(script: Any, problem: str) -> None:
    """A method that sends twice as much is half as far; a seed that diverges is the worst from there on."""
    worst = np.inf if problem.startswith("Parkinsons") else -np.inf

    def run(method: str, draw: int, seed: int, every: float, last: float) -> list[benchmark.Row]:
        values = [0.1, 0.2, 0.3, 0.4, last]
        return [row(problem, method, draw, seed, value + draw + 2 * seed, rounds=at, bytes=every * at)
                for at, value in enumerate(values)]  # fmt: skip

    rows = [of for draw in range(3) for seed in range(2) for of in run(BASE, draw, seed, 10.0 * (1 + seed), 0.5)]
    rows += [of for draw in range(3) for seed in range(2) for of in run("SCAFFOLD", draw, seed, 20.0 * (1 + seed), 0.5)]
    rows += [of for draw in range(3) for of in run("FedDyn", draw, 0, 10.0, float("nan") if draw else 0.5)]
    found = script.reached(rows[::-1], "bytes")
    shares = [0, 24, 48, 72, 96]
    assert script.GRID[shares].tolist() == [0, 0.25, 0.5, 0.75, 1]
    np.testing.assert_allclose(found[BASE][shares], np.array([0.1, 0.2, 0.3, 0.4, 0.5]) + 1 + 1, rtol=1e-6)
    np.testing.assert_allclose(found["SCAFFOLD"][shares], np.array([0.1, 0.1, 0.2, 0.2, 0.3]) + 1 + 1, rtol=1e-6)
    np.testing.assert_allclose(found["FedDyn"][shares[:4]], np.array([0.1, 0.2, 0.3, 0.4]) + 1, rtol=1e-6)
    assert found["FedDyn"][-1] == worst
    lost = [of._replace(method="FedNova", by_examples=float("nan")) for of in rows if of.method == BASE and of.rounds]
    lost += [of._replace(method="FedNova") for of in rows if of.method == BASE and not of.rounds]
    [ax, *_] = script.curves(benchmark.Result([], [*rows, *lost]), "bytes").axes
    assert np.isfinite(ax.get_ylim()).all(), "what diverged has no place in the limits"
