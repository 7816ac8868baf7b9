"""Tuning by gradient: coordinates, the guard, what a study returns, its errors; sensitivities to the data."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import hyper
from fedjax_sim.core.descriptions import build
from fedjax_sim.studies.hyper import final, influence, tune
from fedjax_sim.studies.hyper.tuning import _perturbations, advance, begin
from fedjax_sim.studies.objectives import check_inputs
from fedjax_sim.studies.subject import Subject
from tests.worked_studies import at_smoke_size

pytestmark = pytest.mark.xdist_group("tuning")  # one worker compiles what they share

sgd = fjs.optim.sgd
RATE = "client_optimizer.learning_rate"


@pytest.mark.slow
@pytest.mark.parametrize(
    "study", ["search", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tune", "outer", "phase"))]
)
def test_an_evaluation_of_the_run_s_task_is_of_the_values_that_are_tried(study):
    """Of its penalty: in a search, by tuning, as an outer problem and in a phase diagram."""
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=20, test_fraction=0.3, seed=0)
    task = fjs.classification(fjs.models.LogisticRegression(10), weight_decay=0.1)
    method, path, metric = fjs.fedavg(client_optimizer=sgd(0.1)), "task.weight_decay", "test_loss_worst"
    common = {
        "rounds": 2, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)
    }  # fmt: skip
    run = {**common, "task": task, "evaluate": fjs.per_client(task, worst=1.0)}
    objective, decays = final(metric), [0.1, 0.5]
    if study == "tune":
        tuned = tune(method, data, over=[path], objective=objective, steps=1, eval_every=2, **run)
        decays, found = map(float, tuned.hyper[path][0]), tuned.values[0]
    elif study == "outer":
        problem = fjs.outer.federated(method, data, over=[path], objective=objective, eval_every=2, **run)
        decays, at = [0.5], {path: jnp.log(0.5)}
        found = [jax.jit(fjs.outer.estimate)(fjs.outer.exact(), problem, at, jax.random.key(0)).value]
    elif study == "search":
        halving, space = hyper.halving(rungs=1), fjs.sweeps.grid({path: decays})
        found = fjs.search(method, data, space, halving, objective=objective, eval_every=2, **run).scores[:, -1]
    else:
        axes = {"x": {path: decays}, "y": {RATE: [0.1]}}
        found = fjs.phase({"FedAvg": method}, data, metric=metric, **axes, seeds=[0], **run).values.ravel()
    expected = []
    for decay in decays:
        own = task.replace(weight_decay=decay)
        alone = fjs.simulate(method, data, **common, task=own, evaluate=fjs.per_client(own, worst=1.0), eval_every=2)
        expected.append(alone.final(metric)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_without_an_objective_the_validation_part_chooses_where_there_is_one():
    both = fjs.datasets.synthetic(1.0, 1.0, num_clients=3, max_size=20, test_fraction=0.3, seed=0)
    divided = fjs.datasets.with_validation(both, 0.3)
    task, method = fjs.classification(fjs.models.LogisticRegression(10)), fjs.fedavg(client_optimizer=sgd(0.1))
    run = {"task": task, "rounds": 1, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full()}
    for data, name in ((both, "test_loss"), (divided, "validation_loss")):
        problem = fjs.outer.federated(method, data, over=[RATE], work=fjs.local.steps(1), **run)
        assert problem.objective == fjs.hyper.mean(name)
    of_rate = {"seeds": 0, "work": fjs.local.steps(1), **run}
    tuned = tune(method, divided, over=[RATE], steps=1, **of_rate)
    expected = fjs.simulate(method, divided, **of_rate).final("validation_loss")[0]
    np.testing.assert_allclose(tuned.values[0][0], expected, rtol=1e-5)


def test_searches_and_coalitions_take_the_objective_of_tuning(monkeypatch):
    both = fjs.datasets.synthetic(1.0, 1.0, num_clients=3, max_size=20, test_fraction=0.3, seed=0)
    task, method = fjs.classification(fjs.models.LogisticRegression(10)), fjs.fedavg(client_optimizer=sgd(0.1))
    run = {"task": task, "rounds": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
    given = (fjs.sweeps.points([{RATE: 0.1}]), hyper.halving(rungs=1))
    calls = {"search.running": lambda data: fjs.search(method, data, *given, batch_size=5, **run),
             "search.asking": lambda data: hyper.evaluator(method, data, batch_size=5, **run),
             "coalitions": lambda data: hyper.coalitions(method, data, batch_size=5, **run)}  # fmt: skip

    def seen(*given):
        raise ZeroDivisionError(check_inputs(*given).name)

    for module, call in calls.items():
        monkeypatch.setattr(f"fedjax_sim.studies.{module}.check_inputs", seen)
        for data, name in ((both, "test_loss"), (fjs.datasets.with_validation(both, 0.3), "validation_loss")):
            with pytest.raises(ZeroDivisionError, match=f"^{name}\\b"):
                call(data)


# Coordinates.

TRANSFORMS = {
    "identity": (hyper.identity(), [-3.0, 0.0, 2.5]),
    "positive": (hyper.positive(), [1e-4, 1.0, 30.0]),
    "interval": (hyper.interval(-1.0, 3.0), [-0.999, 0.0, 2.9]),
    "unit_interval": (hyper.unit_interval(), [0.001, 0.5, 0.99]),
    "simplex": (hyper.simplex(), [0.2, 0.7, 0.1]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_coordinate_leads_back_to_its_value(name, x64):
    transform, values = TRANSFORMS[name]
    again = build(fjs.describe(transform))
    transform.check("x", np.array(values))

    @jax.jit
    def found(values):
        u = transform.coordinate(values)
        slopes = jax.vmap(jax.grad(lambda one: transform.value(one)))(u) if name != "simplex" else jnp.ones(3)
        return transform.value(u), again.value(u), slopes

    back, same, slopes = found(np.array(values))
    np.testing.assert_allclose(back, values, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(same, back)
    assert (slopes > 0).all()


OUTSIDE = {
    "positive": (hyper.positive(), 0.0, "x is 0.0: it must be in"),
    "interval": (hyper.interval(0.0, 2.0), 2.0, r"must be in \(0, 2\)"),
    "simplex_sum": (hyper.simplex(), np.array([0.5, 0.6]), "sums to 1.1"),
    "simplex_number": (hyper.simplex(), 0.5, "is one number"),
    "identity": (hyper.identity(), np.nan, "must be finite"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_without_a_coordinate_are_refused(name):
    transform, value, message = OUTSIDE[name]
    with pytest.raises(ValueError, match=message):
        transform.check("x", value)


def test_an_interval_is_open_however_far_a_step_goes():
    momentum = hyper.unit_interval()
    ends = momentum.value(jnp.array([-200.0, 200.0]))
    assert 0 < ends[0] < 1e-30
    assert 0.999999 < ends[1] < 1
    with pytest.raises(ValueError, match="low < high"):
        hyper.interval(1.0, 1.0)


def test_the_owner_is_asked_for_the_transform():
    algorithm = fjs.ema(fjs.fedprox(client_optimizer=sgd(0.1, momentum=0.5), mu=0.1), decay=0.9)
    algorithm = algorithm.replace(base=algorithm.base.replace(client_learning_rate=fjs.rates.over_rounds([1.0, 0.5])))
    task = fjs.classification(fjs.models.LogisticRegression(3), weight_decay=0.1)
    subject = Subject(algorithm, {"task": task, "rounds": 2})
    expected = {
        "base.client_optimizer.learning_rate": hyper.positive(),
        "base.client_optimizer.momentum": hyper.unit_interval(),
        "base.mu": hyper.positive(),
        "base.client_learning_rate.values": hyper.positive(),
        "decay": hyper.unit_interval(),
        "task.weight_decay": hyper.positive(),
    }
    assert {path: subject.natural(path) for path in expected} == expected
    free = Subject(fjs.fedavg(client_optimizer=sgd(0.1)), {"task": fjs.quadratic(start=1.0)})
    assert free.natural("task.start") == hyper.identity()


# The guard.


def test_a_step_into_divergence_is_halved_and_grows_back():
    solver = sgd(1.0)
    descent = begin(solver, {"u": jnp.array(0.0)}, {"u": jnp.array(8.0)})

    def evaluate(u):  # finite below 3 only; the gradient pushes up
        return u < 3, {"u": jnp.where(u < 3, jnp.float32(-1.5), jnp.float32(jnp.nan))}

    seen = []
    for _ in range(6):
        u = descent.proposal["u"]
        accepted, gradient = evaluate(u)
        seen.append((float(u), bool(accepted), float(descent.scale)))
        descent = advance(solver, descent, accepted, gradient)
    assert seen == [
        (8.0, False, 1.0),
        (4.0, False, 0.5),
        (2.0, True, 0.25),
        (2.75, True, 0.5),  # 2 + 0.5 * 1.5
        (4.25, False, 1.0),  # 2.75 + 1.0 * 1.5
        (3.5, False, 0.5),
    ]


def test_a_rejected_step_leaves_the_optimiser_where_it_was():
    solver = fjs.optim.adam(0.1)
    descent = begin(solver, {"u": jnp.array(1.0)}, {"u": jnp.array(0.0)})
    descent = advance(solver, descent, jnp.array(True), {"u": jnp.array(0.5)})
    after = advance(solver, descent, jnp.array(False), {"u": jnp.array(jnp.nan)})
    for name in ("point", "direction", "solver"):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, getattr(after, name), getattr(descent, name))), name
    assert float(after.scale) == 0.5
    np.testing.assert_allclose(after.proposal["u"], (1.0 + float(descent.proposal["u"])) / 2, rtol=1e-6)


# Studies.

DATA = fjs.datasets.quadratics(num_clients=3, dim=2, scale=1.0, hessians=np.diag([1.0, 3.0]), sizes=[1, 2, 3])
RUN = {
    "task": fjs.quadratic(start=2.0),
    "rounds": 3,
    "eval_every": 3,
    "batches": fjs.local.full_batch(),
    "cohort": fjs.cohort.full(),
    "work": fjs.local.steps(2),
}
METHOD = fjs.fedprox(client_optimizer=sgd(0.05), mu=0.5)


@pytest.fixture(scope="module")
def tuned():
    return tune(
        METHOD, DATA, over=["mu", RATE], objective=final("loss"), optimizer=fjs.optim.adam(0.2), steps=8,
        seeds=[0, 1], restarts=2, restart_seed=3, **RUN,
    )  # fmt: skip


def by_hand(values):
    """The loss after the rounds."""
    H, e = (np.asarray(DATA.examples[name], float) for name in "He")
    rows = [slice(int(a), int(a + n)) for a, n in zip(DATA.offsets, DATA.sizes, strict=True)]
    x = np.full(2, 2.0)
    for _ in range(RUN["rounds"]):
        ends = []
        for own in rows:
            y = x
            for _ in range(2):
                y = y - values[RATE] * (H[own].mean(axis=0) @ y - e[own].mean(axis=0) + values["mu"] * (y - x))
            ends.append(y)
        x = np.average(ends, axis=0, weights=DATA.sizes)
    return np.mean(np.einsum("d,jde,e->j", x, H, x) / 2 - e @ x)


def test_values_and_gradients_are_those_of_the_runs(tuned):
    """Of a loop in numpy and its differences."""
    for restart, evaluation in ((0, 0), (0, 5), (1, 8)):
        values = {path: float(leaf[restart, evaluation]) for path, leaf in tuned.hyper.items()}
        # the runs are deterministic, so both seeds have one value
        np.testing.assert_allclose(tuned.by_seed[restart, evaluation], by_hand(values), rtol=1e-5)
        for path, value in values.items():
            up, down = (by_hand(values | {path: value * (1 + h)}) for h in (1e-5, -1e-5))
            slope = (up - down) / (2e-5 * value)
            np.testing.assert_allclose(tuned.gradients[path][restart, evaluation], slope, rtol=1e-4, err_msg=path)


def test_what_is_best_is_returned(tuned):
    assert tuned.values.shape == (2, 9)
    assert tuned.value == tuned.values.min() < tuned.values[0, 0]
    assert tuned.found == {"mu": tuned.algorithm.mu, RATE: tuned.algorithm.client_optimizer.learning_rate}
    assert isinstance(tuned.algorithm.mu, float)
    history = fjs.simulate(tuned.algorithm, DATA, **tuned.run)
    np.testing.assert_allclose(history.final("loss")[0], tuned.value, rtol=1e-5)
    assert tuned.rejected == 0
    assert tuned.runs == 2 * 9 * 2
    # the first restart begins where it was told, the other elsewhere; Adam's first step in log coordinates is 20 %
    np.testing.assert_allclose([tuned.hyper["mu"][0, 0], tuned.hyper[RATE][0, 0]], [0.5, 0.05], rtol=1e-6)
    assert abs(np.log(tuned.hyper["mu"][1, 0] / 0.5)) > 0.01
    np.testing.assert_allclose(np.abs(np.log(tuned.hyper["mu"][0, 1] / 0.5)), 0.2, rtol=1e-4)


def test_a_study_can_be_written_down(tuned, tmp_path):
    tuned.save(tmp_path / "tuned.json")

    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads((tmp_path / "tuned.json").read_text(), parse_constant=refuse)
    assert read["description"]["over"]["mu"]["name"] == "transform.positive"
    assert build(read["description"]["objective"]) == final("loss")
    assert build(read["description"]["algorithm"]) == METHOD
    assert build(read["algorithm"]).mu == tuned.algorithm.mu
    np.testing.assert_allclose(read["hyper"]["mu"], tuned.hyper["mu"], rtol=1e-6)
    text = tuned.table()
    assert RATE in text
    assert "36 differentiated runs, 0 steps rejected" in text


def test_the_plot_has_a_panel_for_each(tuned):
    pytest.importorskip("matplotlib")
    figure = tuned.plot()
    assert [ax.get_title() for ax in figure.axes] == ["objective", "mu", RATE]
    assert all((ax.get_xticks() % 1 == 0).all() for ax in figure.axes)  # steps are whole numbers


def test_the_plot_names_the_extra(tuned, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"fedjax_sim\[plot\]"):
        tuned.plot()


@pytest.mark.slow
def test_divergence_is_recorded_and_survived():
    # a step of 3 in log coordinates: rates of 0.05 * e^3 = 1 and more diverge where the curvature is 3
    traced = []

    def guarded(result):
        traced.append(None)
        loss = result.metrics["loss"][-1]
        return jnp.where(loss < 50, loss, jnp.inf)

    found = tune(METHOD, DATA, over=[RATE], objective=guarded, optimizer=sgd(30.0), steps=6, **RUN)
    assert found.rejected > 0
    assert len(traced) <= 2  # one program, however many steps
    assert np.isinf(found.values[~found.accepted]).all()
    assert np.isfinite(found.value)
    assert found.accepted[found.best]
    rejected = np.flatnonzero(~found.accepted[0])
    following = rejected[rejected < 6] + 1
    np.testing.assert_allclose(found.scales[0, following], found.scales[0, following - 1] / 2)
    assert json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.slow
def test_parts_of_the_run_and_arrays_can_be_tuned():
    rates = fjs.rates.over_rounds([0.4, 0.5, 0.6])
    method = fjs.fedavg(client_optimizer=sgd(0.1), client_learning_rate=rates)
    over = {"client_learning_rate.values": None, "task.start": None}
    found = tune(
        method, DATA, over=over, objective=final("loss"), optimizer=optax.adam(0.1), steps=6,
        **RUN | {"task": fjs.quadratic(start=1.0)},
    )  # fmt: skip
    np.testing.assert_allclose(found.hyper["client_learning_rate.values"][0, 0], [0.4, 0.5, 0.6], rtol=1e-6)
    assert found.hyper["task.start"][0, 0] == 1.0
    assert found.run["task"].start == found.found["task.start"] != 1.0
    assert found.algorithm.client_learning_rate.values.shape == (3,)
    assert found.value < found.values[0, 0]
    pytest.importorskip("matplotlib")
    assert len(found.plot().axes) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_restarts_begin_around_the_start_by_draws_of_single_precision(dtype):
    """bfloat16's own draws are 128 numbers, none beyond 2.9 deviations."""
    start = {"b": jnp.zeros(2_000, dtype), "a": jnp.zeros((), dtype)}
    found = _perturbations(start, 3, 0.5, 1)
    keys = jax.random.split(jax.random.key(1), 2)
    for key, (path, leaf) in zip(keys, start.items(), strict=True):
        drawn = 0.5 * jax.random.normal(key, (3, *leaf.shape), jnp.float32)
        assert found[path].dtype == dtype
        np.testing.assert_allclose(found[path][1:].astype(jnp.float32), drawn[1:], rtol=0.01)
        assert not found[path][0].any()


# What is wrong is said before anything is compiled.

WRONG = {
    "unknown": ({"over": ["muu"]}, ValueError, "did you mean 'mu'"),
    "unknown_in_run": ({"over": ["task.stat"]}, ValueError, "did you mean 'start'"),
    "structure": ({"over": ["adaptive"]}, ValueError, "structure"),
    "integer": ({"over": ["patience"]}, ValueError, "structure|real"),
    "none": ({"over": ["client_optimizer.momentum"]}, ValueError, "None"),
    "empty": ({"over": []}, ValueError, "at least one"),
    "one_string": ({"over": "mu"}, TypeError, "give paths"),
    "transform": ({"over": {"mu": "log"}}, TypeError, "give a transform"),
    "outside": ({"over": {"mu": hyper.interval(1.0, 2.0)}}, ValueError, "the start is outside.*another value"),
    "no_test_part": ({"objective": None}, ValueError, "no test examples"),
    "unknown_metric": ({"objective": final("los")}, ValueError, "did you mean 'loss'"),
    "more_is_better": ({"objective": final("test_accuracy")}, ValueError, "made small, and more of it is better"),
    "metric_name": ({"objective": "loss"}, TypeError, "give a function"),
    "not_scalar": ({"objective": lambda result: result.metrics["loss"]}, TypeError, "one real number"),
    "steps": ({"steps": 0}, ValueError, "at least 1"),
    "spread": ({"spread": -1.0}, ValueError, r"spread"),
    "seeds": ({"seeds": []}, ValueError, "at least one seed"),
    "optimizer": ({"optimizer": 0.1}, TypeError, "give an optimiser"),
    "run": ({"rounds": 0}, ValueError, "rounds"),
    "algorithm": ({"algorithm": "fedavg"}, TypeError, "give a method"),
    "dataset": ({"dataset": np.zeros(3)}, TypeError, "FederatedDataset"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    changes, kind, message = WRONG[name]
    given = {"algorithm": METHOD, "dataset": DATA, "over": ["mu"], "objective": final("loss"), **RUN, **changes}
    with pytest.raises(kind, match=message):
        tune(given.pop("algorithm"), given.pop("dataset"), **given)


def test_traced_values_are_refused():
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(lambda mu: tune(METHOD.replace(mu=mu), DATA, over=["mu"], objective=final("loss"), **RUN).value)(0.1)


@pytest.mark.slow
def test_a_start_that_diverges_ends_the_study():
    def diverging(result):
        return result.metrics["loss"][-1] * jnp.float32(jnp.inf)

    with pytest.raises(FloatingPointError, match=r"at the start \(mu = 0.5\).*smaller learning rates"):
        tune(METHOD, DATA, over=["mu"], objective=diverging, steps=1, **RUN)


def test_a_start_without_a_gradient_ends_the_study():
    def steep(result):  # finite, its derivative is not
        loss = result.metrics["loss"][-1]
        return jnp.sqrt(jnp.abs(loss - jax.lax.stop_gradient(loss)))

    with pytest.raises(FloatingPointError, match="gradient in mu is not finite"):
        tune(METHOD, DATA, over=["mu"], objective=steep, steps=1, **RUN)


# Sensitivity to the data.


@pytest.mark.slow
def test_influence_is_the_derivative_in_the_weights(x64):
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((n, 3)), rng.integers(0, 2, n)) for n in (3, 2, 4)]
    tests = [(rng.standard_normal((2, 3)), rng.integers(0, 2, 2)) for _ in clients]
    data = fjs.datasets.from_clients(clients, test=tests, client_ids=[7, 2, 5], num_classes=2)
    weights = jnp.asarray(rng.uniform(0.5, 1.5, 9))
    run = {
        "task": fjs.classification(fjs.models.LogisticRegression(2, param_dtype=jnp.float64)),
        "rounds": 3, "eval_every": 3, "batch_size": 2, "cohort": fjs.cohort.uniform(2), "work": fjs.local.epochs(1),
    }  # fmt: skip
    algorithm = fjs.fedavg(client_optimizer=sgd(0.3))
    found = influence(algorithm, data.with_example_weights(weights), seeds=[1, 2], **run)

    @jax.jit
    def mean(weights):
        weighted = data.with_example_weights(weights)
        losses = [
            fjs.make_train(**run)(algorithm, weighted, jax.random.key(seed)).metrics["test_loss"][-1] for seed in (1, 2)
        ]
        return (losses[0] + losses[1]) / 2

    step = 1e-5
    for j in range(9):
        ahead, behind = mean(weights.at[j].add(step)), mean(weights.at[j].add(-step))
        np.testing.assert_allclose(found.examples[j], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.value, mean(weights), rtol=1e-12)
    by_client = np.asarray(weights) * found.examples
    np.testing.assert_allclose(found.clients, [by_client[:3].sum(), by_client[3:5].sum(), by_client[5:].sum()])


def test_a_client_s_influence_is_that_of_its_examples_with_their_weights():
    data = fjs.datasets.from_clients([(np.eye(2), [0, 1]), (np.ones((1, 2)), [1])], num_classes=2)
    weights = jnp.asarray([0.5, 2.0, 3.0])
    run = {
        "task": fjs.classification(fjs.models.LogisticRegression(2)), "rounds": 1, "batches": fjs.local.full_batch(),
        "cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "objective": final("loss"),
    }  # fmt: skip
    found = influence(fjs.fedavg(client_optimizer=sgd(0.3)), data.with_example_weights(weights), **run)
    each = np.asarray(weights * found.examples)
    assert (each != 0).all()
    np.testing.assert_allclose(found.clients, [each[:2].sum(), each[2]], rtol=1e-5)


@pytest.mark.slow
def test_influence_refuses_what_it_cannot_differentiate():
    with pytest.raises(TypeError, match="give a method"):
        influence(None, DATA, **RUN)
    with pytest.raises(ValueError, match="no test examples"):
        influence(METHOD, DATA, **RUN)
    diverging = METHOD.replace(client_optimizer=sgd(1e20))
    with pytest.raises(FloatingPointError, match="lower the learning rates"):
        influence(diverging, DATA, objective=final("loss"), **RUN)


# The worked studies.


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("weights", marks=pytest.mark.slow),
        pytest.param("clients", marks=pytest.mark.slow),
        pytest.param("fedprox", marks=pytest.mark.nightly),
        pytest.param("schedule", marks=pytest.mark.nightly),
    ],
)
def test_studies_run(name, tmp_path):
    CLAIMS[name](at_smoke_size(name, tmp_path, data=name == "clients"))


def _fedprox(result):
    rows = result["candidates"]
    assert rows["learned"]["validation_loss"] < rows["paper's grid of mu"]["validation_loss"]


def _weights(result):
    assert result["error"] < 1e-3
    assert result["gap"]["learned weights"] < 1e-3 * result["gap"]["FedAvg"]
    # equal weights for equal tau would be FedAvg's: the rule is not that
    assert np.max(np.abs(np.array(result["rule"]) / np.array(result["shares"]) - 1)) > 0.1


def _schedule(result):
    rows = result["schedules"]
    assert rows["learned"]["tuning_loss"] <= min(row["tuning_loss"] for row in rows.values())


def _clients(result):
    assert result["spearman"]["weights 0"] > 0.8
    assert result["spearman"]["left out"] > 0.6


CLAIMS = {"fedprox": _fedprox, "weights": _weights, "schedule": _schedule, "clients": _clients}


def test_committed_results_hold_the_claims():
    results = pathlib.Path(__file__).parents[2] / "benchmarks" / "studies" / "results"
    for name, claim in CLAIMS.items():
        result = json.loads((results / f"{name}.json").read_text())
        assert result["environment"]["size"] == "cpu"
        claim(result)
