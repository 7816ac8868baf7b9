"""The comparison's part for personal models: what is judged, beside what, on which problems, and kept apart."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import paths
from fedjax_sim.cli.main import main
from fedjax_sim.models.passes import Clients
from fedjax_sim.studies import benchmark
from fedjax_sim.studies.benchmark import problems, result, running
from fedjax_sim.studies.benchmark.methods import BASE, RATE, entered
from fedjax_sim.studies.benchmark.personal import TUNED, fine_tuned, fitting
from tests.studies.test_benchmark import clients, row

TASK = fjs.classification(fjs.models.LogisticRegression(3))
SGD = fjs.optim.sgd(0.01)


def said(model: Any, part: fjs.FederatedDataset, at: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A client's features and labels, and the logarithms of the probabilities of its classes."""
    (of,) = model["params"].values()
    x, y = (np.asarray(part.client(at)[name]) for name in "xy")
    logits = x @ np.asarray(of["kernel"]) + np.asarray(of["bias"])
    return x, y, logits - np.log(np.exp(logits).sum(1, keepdims=True))


def by_hand(models: list[object], part: fjs.FederatedDataset, name: str = "accuracy") -> tuple[float, float]:
    """The mean over examples, and over clients, of each client's own model on its own examples."""
    each = []
    for at, model in enumerate(models):
        _, y, log_p = said(model, part, at)
        right = {"loss": -log_p[np.arange(len(y)), y], "accuracy": log_p.argmax(1) == y}
        each.append(right[name])
    return float(np.concatenate(each).mean()), float(np.mean([values.mean() for values in each]))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    made = benchmark.Problem("three clients", lambda draw: problems.by_parts(clients(8, 30, 12), draw), TASK, None,
                             fjs.local.steps(1), 4, (0.01, 0.1), 2)  # fmt: skip
    monkeypatch.setitem(benchmark.PROBLEMS, "three clients", made)
    monkeypatch.setattr(result, "SMOKE", benchmark.SMOKE._replace(draws=1, widenings=0))
    return "three clients"  # runs of another problem of this name would be of its data


def test_every_method_has_models_of_the_clients_own_and_draws_over_its_parameters() -> None:
    assert not benchmark.PERSONAL.keys() & benchmark.METHODS.keys()
    assert not any(entry.personal for entry in benchmark.METHODS.values())
    for name, entry in benchmark.PERSONAL.items():
        leaves = paths.real_leaves(entry.method())
        assert entry.personal, name
        assert {*entry.rates, *entry.space} <= leaves.keys(), name
        assert sum(of.endswith(RATE) for of in entry.rates) == 1, name
        served = any(of.endswith("server_learning_rate") for of in entry.space)
        assert served != (name in ("alone", "MR-MTL")), "one has no server, the other's is a mean by definition"
        run = running.Runs(benchmark.PROBLEMS["synthetic(1, 1)"], None, entry, None, benchmark.PROTOCOL, "", print)  # type: ignore[arg-type]
        paths.replace(entry.method(), run._points(0, 0, run._ranges()).point(0))


def test_a_wrapper_does_not_change_what_is_drawn() -> None:
    def drawn(entry: benchmark.Entry, name: str) -> list[float]:
        run = running.Runs(benchmark.PROBLEMS["synthetic(1, 1)"], None, entry, None, benchmark.PROTOCOL, "", print)  # type: ignore[arg-type]
        space = run._points(3, 1, run._ranges())
        return [space.point(at)[name] for at in range(space.num_points)]

    plain, inside = benchmark.METHODS[BASE], benchmark.PERSONAL[TUNED]
    for name in (RATE, "server_learning_rate"):
        assert drawn(plain, name) == drawn(inside, f"base.{name}")
    assert drawn(inside, "tuning_rate") != drawn(inside, f"base.{RATE}")
    twice = entered(lambda client_optimizer: fjs.ema(fjs.last_k(fjs.fedavg(client_optimizer=client_optimizer))))
    assert drawn(twice, f"base.base.{RATE}") == drawn(plain, RATE)
    two = plain._replace(space={"decay": fjs.sweeps.uniform(0, 1), "base.decay": fjs.sweeps.uniform(2, 3)})
    assert max(drawn(two, "decay")) < 1 < min(drawn(two, "base.decay")), "each has its own range"


def test_ones_own_is_judged_by_its_personal_models() -> None:
    mine = entered(lambda client_optimizer: fjs.keep(fjs.fedavg(client_optimizer=client_optimizer), ("bias",)))
    assert mine.personal
    assert mine.rates == (f"base.{RATE}",)
    assert mine.space.keys() == {"base.server_learning_rate"}
    assert not entered(fjs.fedprox).personal


def test_problems_without_held_out_examples_of_the_clients_own_are_refused() -> None:
    for name, problem in benchmark.PROBLEMS.items():
        assert problem.people == ("by_people" in problem.data.__code__.co_names), name
    ditto = benchmark.PERSONAL["Ditto"]
    with pytest.raises(ValueError, match="whole people"):  # first where nothing would be run
        fitting("Ditto", ditto, ("phones by person",))
    with pytest.raises(ValueError, match=r"'Ditto', problems=\['phones by person'\].*whole people.*give some of synth"):
        benchmark.run("Ditto", problems=["synthetic(1, 1)", "phones by person"])
    with pytest.raises(ValueError, match="keeps a layer"):
        benchmark.run("FedPer", problems=["MNIST, two digits"])
    with pytest.raises(ValueError, match="whole people"):
        result.performed("phones by person", {"Ditto": ditto}, benchmark.SMOKE, pathlib.Path("none"))
    assert fitting("FedPer", benchmark.PERSONAL["FedPer"]) == ["MNIST, Dir(0.1)"]
    assert len(fitting("Ditto", ditto)) == 5
    assert fitting("Ditto", ditto, ("EMNIST, CNN",)) == ["EMNIST, CNN"]
    assert len(fitting(BASE, benchmark.METHODS[BASE])) == 12
    assert main(["benchmark", "Ditto", "--problems", "phones by person", "--dry-run"]) == 2


def some_models(data: fjs.FederatedDataset) -> object:
    """A model for each client: leaves [3, ...]."""
    params = TASK.init(jax.random.key(0), data)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.1, (3, *leaf.shape)), leaf.dtype), params)


def test_own_models_are_read_on_own_examples_and_one_that_diverged_is_not_left_out() -> None:
    data = problems.by_parts(clients(8, 30, 12), 0)
    models = some_models(data)
    one_each = [jax.tree.map(lambda leaf, at=at: leaf[at], models) for at in range(3)]
    unseen = Clients(fjs.ditto(client_optimizer=SGD), None, models, jnp.array([True, False, True]))
    read = jax.jit(benchmark.own_models(TASK, 4))
    found = read(one_each[0], data, clients=unseen)
    for part, held in (("validation", data.validation), ("test", data.test)):
        assert held is not None
        for name in ("loss", "accuracy"):
            wanted = by_hand(one_each, held, name)  # of all clients, the one that was not visited too
            got = [float(found[f"{part}_own_{of}{name}"]) for of in ("", "clients_")]
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
    lost = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), models)
    found = read(one_each[0], data, clients=unseen._replace(states=lost))
    assert np.isnan([found[f"{part}_own_{of}loss"] for part in ("validation", "test") for of in ("", "clients_")]).all()
    with pytest.raises(ValueError, match="one model for all"):
        benchmark.own_models(TASK, 4)(one_each[0], data)


def test_fine_tuning_is_by_the_training_examples_alone() -> None:
    data = problems.by_parts(clients(8, 30, 12), 0)
    start = jax.tree.map(lambda leaf: leaf[0], some_models(data))
    method = fine_tuned(fjs.fedavg(client_optimizer=SGD), tuning_rate=0.003)
    server = method.init(start, jnp.ones(3) / 3)
    # A batch of all examples: the epoch is one step of gradient descent.
    found = jax.jit(benchmark.own_models(TASK, 15))(start, data, clients=Clients(method, server, (), None))

    models: list[object] = []
    for at in range(3):
        x, y, log_p = said(start, data, at)
        slope = (np.exp(log_p) - np.eye(3)[y]) / len(y)
        gradient = {"bias": slope.sum(0), "kernel": x.T @ slope}
        ((name, of),) = start["params"].items()
        models.append({"params": {name: {leaf: of[leaf] - 0.003 * gradient[leaf] for leaf in of}}})
    assert data.test is not None
    wanted = by_hand(models, data.test, "loss")
    np.testing.assert_allclose([found["test_own_loss"], found["test_own_clients_loss"]], wanted, rtol=1e-5)
    assert not np.allclose(wanted, by_hand([start] * 3, data.test, "loss"), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ditto", TUNED])
def test_numbers_are_those_of_a_run_of_the_chosen_point(name: str, tiny: str, tmp_path: pathlib.Path) -> None:
    found = benchmark.run(name, problems=[tiny], size="smoke", folder=tmp_path, show=lambda line: None)
    data, seeds = problems.by_parts(clients(8, 30, 12), 0), [101, 102]
    points = {of.method: json.loads(of.point) for of in found.choices}

    def ended(method: Any, point: dict[str, float]) -> fjs.History:
        return fjs.simulate(
            paths.replace(method, point), data, task=TASK, rounds=2, eval_every=2, cohort=fjs.cohort.full(),
            work=fjs.local.steps(1), batch_size=4, evaluate=benchmark.by_clients(TASK), seeds=seeds,
            keep_state=name != TUNED, progress=False,
        )  # fmt: skip

    base = ended(fjs.fedavg(client_optimizer=SGD), points[BASE])
    if name == TUNED:
        # The training is plain FedAvg's; fine-tuning comes after it.
        inside = {of.removeprefix("base."): value for of, value in points[name].items() if of != "tuning_rate"}
        trained = ended(fjs.fedavg(client_optimizer=SGD), inside)
        rate = fjs.optim.sgd(points[name]["tuning_rate"])
        tuned = fjs.personalise(TASK, rate, fjs.local.epochs(1), fjs.local.shuffled(4))
        of_seed = [tuned.models(jax.tree.map(lambda leaf, at=at: leaf[at], trained.params), data) for at in range(2)]
    else:
        trained = ended(fjs.ditto(client_optimizer=SGD), points[name])
        of_seed = [jax.tree.map(lambda leaf, at=at: leaf[at], trained.state.clients) for at in range(2)]
    own = [
        by_hand([jax.tree.map(lambda leaf, at=at: leaf[at], models) for at in range(3)], data.test)  # type: ignore[arg-type]
        for models in of_seed
    ]
    shared = np.stack([base.final("test_accuracy"), base.final("test_clients_accuracy")])
    for by, wanted, beside in zip(("examples", "clients"), np.mean(own, axis=0), shared.mean(axis=1), strict=True):
        [one] = found.differences(by=by)
        assert one.method == name
        assert one.value == pytest.approx(wanted, abs=1e-6)
        assert one.mean == pytest.approx(wanted - beside, abs=1e-6)


def test_personal_methods_are_a_part_of_their_own() -> None:
    from benchmarks.studies.benchmark import mean_ranks, part, personal_tables

    rng = np.random.default_rng(1)
    problem = "synthetic(1, 1)"
    level = {BASE: 0.5, "SCAFFOLD": 0.6, "FedProx": 0.55, TUNED: 0.62, "Ditto": 0.64, "APFL": 0.63}
    rows = [row(problem, name, draw, 0, of + rng.normal(0, 0.02)) for name, of in level.items() for draw in range(4)]
    rows += [row("MNIST, two digits", name, 0, 0, 0.5) for name in (BASE, "FedProx")]
    everything = benchmark.Result([], rows)
    shared, own = part(everything, False), part(everything, True)
    assert {of.method for of in shared.rows} == {BASE, "SCAFFOLD", "FedProx"}
    assert {of.method for of in own.rows} == {BASE, TUNED, "Ditto", "APFL"}
    assert {of.problem for of in own.rows} == {problem}
    for each in (shared, own):  # p is corrected within the part, also where both are in one result
        together = {of.method: of for of in everything.differences() if of.problem == problem}
        alone = [of for of in each.differences() if of.problem == problem]
        assert alone == [together[of.method] for of in alone]
    assert mean_ranks(everything, "rounds", 1.0).keys() == {BASE, "FedProx"}
    said = personal_tables(own)
    assert "better than FedAvg, fine-tuned by" in said
    assert "| synthetic(1, 1) | Ditto |" in said
    assert "SCAFFOLD" not in said


def test_others_are_run_on_the_problems_of_the_method_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running.Runs, "measured", lambda runs: 1.0)
    monkeypatch.setattr(running, "data_of", lambda problem, draw: None)
    assert main(["benchmark", "FedPer", "--beside", "SCAFFOLD", "Ditto", "--dry-run", "--json"]) == 0
    told = {(of["method"], of["problem"]) for of in json.loads(capsys.readouterr().out)["cost"]}
    assert told == {(name, "MNIST, Dir(0.1)") for name in ("FedPer", "SCAFFOLD", "Ditto")}
