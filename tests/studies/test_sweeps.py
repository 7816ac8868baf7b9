"""A sweep is what separate runs are: labelled, ranked, stored, and computed by one program."""

import dataclasses
import inspect
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import sweeps
from fedjax_sim.core import descriptions
from fedjax_sim.datasets.fingerprints import fingerprint
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import resolve
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps import Sweep, program, running, stored, sweep
from fedjax_sim.studies.sweeps.program import compute
from fedjax_sim.studies.sweeps.result import means
from tests.killing import without_permission
from tests.processes import printed

pytestmark = pytest.mark.xdist_group("sweeps")  # one worker compiles what they share

ROOT = pathlib.Path(__file__).parents[2]
RATE = "client_optimizer.learning_rate"
MUS, RATES, SEEDS = (0.0, 0.5), (0.01, 0.05, 0.2), [3, 7]
GRID = sweeps.grid({"mu": MUS, RATE: RATES})
CHUNK = 4  # of all sweeps of `method()`, so that they share one program


def method():
    return fjs.fedprox(client_optimizer=fjs.optim.sgd(0.02), mu=0.1)


def data(num_clients=4):
    return fjs.datasets.synthetic(1.0, 1.0, num_clients=num_clients, max_size=40, test_fraction=0.2, seed=0)


def settings(**changes):
    task = fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3)
    return {
        "task": task, "rounds": 5, "eval_every": 2, "cohort": fjs.cohort.uniform(2), "work": fjs.local.epochs(1),
        "batches": fjs.local.in_order(20), **changes,
    }  # fmt: skip


def swept(space=GRID, seeds=SEEDS, **changes):
    return sweep(method(), data(), space, **settings(), seeds=seeds, chunk=CHUNK, keep_params=True, **changes)


@pytest.fixture(scope="module")
def grid_sweep():
    return swept()


def assert_equal_runs(ours, theirs):
    for name, values in theirs.metrics.items():
        np.testing.assert_allclose(ours.metrics[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
    for name, values in theirs.rounds.items():
        np.testing.assert_array_equal(ours.rounds[name], values, err_msg=name)
    assert ours.metrics.keys() == theirs.metrics.keys()
    assert ours.rounds.keys() == theirs.rounds.keys()
    np.testing.assert_array_equal(ours.evaluated, theirs.evaluated)


@pytest.mark.slow
def test_every_run_is_simulate_s(grid_sweep):
    for number, point in [(0, {"mu": 0.0, RATE: 0.01}), (5, {"mu": 0.5, RATE: 0.2})]:
        algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(point[RATE]), mu=point["mu"])
        history = fjs.simulate(algorithm, data(), **settings(), seeds=SEEDS)
        ours = grid_sweep.at(number)
        assert_equal_runs(ours, history)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours.params, history.params)
        assert ours.seeds == history.seeds
        environment = history.description["environment"] | {"program": "of a sweep"}
        described = {key: value for key, value in history.description.items() if key != "bounds"}  # those of one run
        assert ours.description == described | {"environment": environment}
        assert grid_sweep.at(point)["loss"].tolist() == ours["loss"].tolist()
        assert grid_sweep.space.point(number) == point


def test_axes_have_names(grid_sweep):
    assert grid_sweep.dims == ("mu", RATE, "seed")
    assert grid_sweep.shape == (2, 3, 2)
    assert grid_sweep["loss"].shape == grid_sweep["test_accuracy"].shape == (2, 3, 2, 4)
    assert grid_sweep["useful_steps"].shape == (2, 3, 2, 5)
    assert grid_sweep.final("loss").shape == (2, 3, 2)
    assert grid_sweep.params["params"]["Dense_0"]["kernel"].shape == (2, 3, 2, 60, 10)
    coordinates = {name: values.tolist() for name, values in grid_sweep.coordinates.items()}
    assert coordinates == {"mu": [0.0, 0.5], RATE: [0.01, 0.05, 0.2], "seed": [3, 7], "round": [0, 2, 4, 5]}
    assert len(np.unique(grid_sweep.final("loss"))) == 12
    # all points of a seed start alike and see the same draws
    assert (grid_sweep["loss"][..., 0] == grid_sweep["loss"][0, 0, :, 0]).all()
    assert repr(grid_sweep) == f"Sweep(fedprox, mu: 2, {RATE}: 3, seed: 2)"


def test_other_values_and_an_unfinished_chunk_are_the_same_program(grid_sweep):
    swept()  # the program may have been dropped since, to make room (conftest)
    programs = compute._cache_size()
    pairs = [(0.2, 0.5), (0.03, 1.0), (0.01, 0.0), (0.1, 0.1), (0.05, 0.5)]
    listed = sweeps.points([{RATE: rate, "mu": mu} for rate, mu in pairs])
    again = swept(listed)  # ten runs: calls of four, the last with two places left over
    assert compute._cache_size() == programs
    assert again.dims == ("point", "seed")
    for ours, theirs in [(0, (1, 2)), (2, (0, 0)), (4, (1, 1))]:
        np.testing.assert_array_equal(again["loss"][ours], grid_sweep["loss"][theirs])
    assert not (again["loss"][1] == again["loss"][0]).all()


def test_chunks_are_even_and_few():
    assert program.chunk_size(12, 5, 1, in_turn=True) == 4
    assert program.chunk_size(64, None, 1, in_turn=True) == 16
    assert program.chunk_size(64, None, 2, in_turn=True) == 32
    assert program.chunk_size(100, None, 1, in_turn=False) == 50
    assert program.chunk_size(3, 100, 2, in_turn=True) == 4
    assert program.chunk_size(10, 5, 2, in_turn=True) == 4
    assert program.chunk_size(0, 5, 1, in_turn=True) == 1


def test_a_diverged_run_is_recorded_and_never_the_best(grid_sweep):
    result = swept(sweeps.zipped({"mu": [0.1, 0.1], RATE: [1e30, 0.01]}))
    assert result.diverged.tolist() == [[True, True], [False, False]]
    assert np.isfinite(result["accuracy"]).all()  # that of a model of NaN is a number like any other
    for metric in ("loss", "test_accuracy"):
        assert result.best(metric).number == 1
        assert [ranked.number for ranked in result.ranked(metric)] == [1]
    assert result.best("test_accuracy", less=True).number == 1
    assert "diverged" in result.table().splitlines()[2]
    assert "diverged" in result.table("loss").splitlines()[3]
    undefined = {"test_roc_auc": np.full_like(result.runs.metrics["loss"], np.nan)}  # of examples of one class
    scored = dataclasses.replace(result.runs, metrics=result.runs.metrics | undefined)
    assert dataclasses.replace(result, runs=scored).best("loss").number == 1
    assert "2 of 4 runs diverged" in repr(result)
    wild = fjs.fedprox(client_optimizer=fjs.optim.sgd(1e30), mu=0.1)
    said = fjs.simulate(wild, data(), **settings(), seeds=SEEDS).divergences
    assert [sign.seed for sign in said] == SEEDS
    assert result.at(0).divergences == said
    assert result.at(1).divergences == []


def made(finals, space, seeds):
    """A sweep whose metrics are given, [P, seeds]."""
    losses = np.stack([np.ones_like(finals), finals], axis=-1).reshape(-1, 2)
    count = len(losses)
    metrics = {"loss": losses, "test_accuracy": 1 / losses, "vector": np.ones((count, 2, 3))}
    runs = History(
        evaluated=np.array([0, 5]), metrics=metrics,
        rounds={"useful_steps": np.ones((count, 5), int), "computed_steps": np.ones((count, 5), int)}, params=None,
        seeds=list(np.tile(seeds, space.num_points)), seconds=1.0, compile_seconds=2.0,
        description={"algorithm": {"name": "algorithm.fedavg", "arguments": {}}, "run": {}},
    )  # fmt: skip
    return Sweep(runs, space, list(seeds))


def test_a_table_has_the_losses_that_publications_report():
    result = made(np.array([[3.0], [1.0]]), sweeps.zipped({"a": [1.0, 2.0]}), [0])
    result.runs.metrics["data_loss"] = result.runs.metrics["loss"] - 0.5
    lines = result.table().splitlines()
    assert lines[0].split("  ")[1:3] == ["training loss without penalty", "test accuracy"]
    assert [line.split()[1] for line in lines[2:4]] == ["2.5000", "0.5000"]
    lines = result.table("loss").splitlines()
    assert lines[0].endswith("training loss with penalty")
    assert [line.split()[-1] for line in lines[2:4]] == ["1.0000", "3.0000"]
    assert result.best("data_loss").mean == 0.5
    del result.runs.metrics["data_loss"]
    assert result.best("data_loss").mean == 1.0  # of a task without a penalty
    assert "penalty" not in result.table("data_loss")


def test_values_of_clients_without_examples_are_no_divergence():
    result = made(np.array([[3.0], [1.0]]), sweeps.zipped({"a": [1.0, 2.0]}), [0])
    result.runs.metrics["test_client_loss"] = np.array([[[1.0, np.nan]] * 2] * 2)
    assert not result.diverged.any()
    assert result.best().number == 1


@pytest.mark.parametrize("metric", ["loss_worst", "test_data_loss_worst", "personal_loss_worst_before", "mse"])
def test_the_best_point_has_the_least_loss_of_the_worst_clients(metric):
    result = made(np.array([[3.0], [1.0]]), sweeps.zipped({"a": [1.0, 2.0]}), [0])
    result.runs.metrics[metric] = result.runs.metrics["loss"]
    assert result.best(metric).number == 1
    assert result.at(1).rounds_to(metric, 1.0).tolist() == [0]
    assert result.at(0).rounds_to(metric, 0.5).tolist() == [np.inf]
    reached = fjs.stopping.reached(metric, 2.0)
    ends = {number: reached.reason(result.evaluated, {metric: result.at(number)[metric][0]}) for number in (0, 1)}
    assert ends == {0: None, 1: f"{metric} reached 2"}


def test_ranking():
    space = sweeps.zipped({"a": [1.0, 2.0, 3.0, 4.0]})
    result = made(np.array([[3.0, 3.0], [0.1, np.nan], [1.0, 3.0], [np.inf, np.inf]]), space, [0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's too, of the deviation of infinities
        ranked = result.ranked("loss")
    assert [(one.number, one.mean) for one in ranked] == [(2, 2.0), (0, 3.0)]
    assert ranked[0].std == pytest.approx(np.sqrt(2.0))
    assert ranked[0].point == {"a": 3.0}
    assert result.best("test_accuracy").number == 2  # (1 + 1/3)/2 beats 1/3
    assert result.best("loss", less=False).number == 0
    with pytest.raises(ValueError, match="compared by one number"):
        result.best("vector")
    with pytest.raises(KeyError, match="did you mean 'loss'"):
        result.best("los")
    with pytest.raises(ValueError, match="all 2 points diverged"):
        made(np.array([[np.nan], [np.nan]]), sweeps.zipped({"a": [1.0, 2.0]}), [0]).best()


def test_at_finds_points_and_says_what_is_wrong(grid_sweep):
    assert grid_sweep.at({"mu": 0.5, RATE: np.float32(0.2)})["loss"].tolist() == grid_sweep["loss"][1, 2].tolist()
    described = grid_sweep.at(1).description["algorithm"]["arguments"]
    assert (described["mu"], described["client_optimizer"]["arguments"]["learning_rate"]) == (0.0, 0.05)
    with pytest.raises(IndexError, match="0 to 5"):
        grid_sweep.at(6)
    with pytest.raises(KeyError, match="did you mean 'mu'"):
        grid_sweep.at({"muu": 0.5})
    with pytest.raises(KeyError, match="'mu' is missing"):
        grid_sweep.at({RATE: 0.2})
    with pytest.raises(ValueError, match="no point"):
        grid_sweep.at({"mu": 0.4, RATE: 0.2})


def test_at_takes_the_nearest_of_points_that_lie_close():
    """As those of a central difference in double precision."""
    rates = [0.1 - 1e-8, 0.1, 0.1 + 1e-8]
    result = made(np.array([[1.0], [2.0], [3.0]]), sweeps.zipped({"a": rates}), [0])
    assert [result.at({"a": rate})["loss"][0, -1] for rate in rates] == [1.0, 2.0, 3.0]


def test_a_point_is_verified_as_what_another_program_computed(grid_sweep):
    point = grid_sweep.at(1)  # whose loss, with a penalty, may differ in the last bit from what simulate records
    found = fjs.verify(point)
    assert found.passed, str(found)
    assert found.tolerance == 1e-3
    assert found.environment == "program: of a sweep in the result, nothing now"
    assert "bounds" not in point.description  # of all points: more steps than this one may draw, in a sweep over work


def test_table(grid_sweep):
    lines = grid_sweep.table().splitlines()
    assert lines[0].split("  ")[0] == "mu "[:2]
    assert "learning_rate" in lines[0]
    assert RATE not in lines[0]
    assert "test accuracy" in lines[0]
    assert len(lines) == 2 + 6 + 2
    assert lines[-1] == "mean ± standard deviation over 2 seeds"
    best = grid_sweep.best("loss")
    first = grid_sweep.table("loss", top=2).splitlines()[2]
    assert f"{best.mean:.4f} ± {best.std:.4f}" in first
    assert grid_sweep.table("loss", top=2).endswith("2 of 6 points")
    assert grid_sweep.table(form="markdown").startswith("| mu | learning_rate |")
    steps = grid_sweep.best("useful_steps")  # a record of every round
    heading, _, first, *_ = grid_sweep.table("useful_steps").splitlines()
    assert heading.endswith("useful steps")
    assert f"{steps.mean:.4f} ± {steps.std:.4f}" in first


def test_a_file_has_everything(grid_sweep, tmp_path):
    grid_sweep.save(tmp_path / "sweep.npz")
    loaded = Sweep.load(tmp_path / "sweep.npz")
    assert loaded.space == grid_sweep.space
    assert loaded.seeds == grid_sweep.seeds
    assert loaded.description == json.loads(json.dumps(grid_sweep.description))
    for name in (*grid_sweep.metrics, *grid_sweep.rounds):
        np.testing.assert_array_equal(loaded[name], grid_sweep[name])
    jax.tree.map(np.testing.assert_array_equal, loaded.params, grid_sweep.params)
    assert loaded.best().point == grid_sweep.best().point
    grid_sweep.at(0).save(tmp_path / "history.npz")
    with pytest.raises(ValueError, match=r"has no sweep.*History\.load"):
        Sweep.load(tmp_path / "history.npz")


def interrupted_after(monkeypatch, chunks):
    """Stored chunks until the sweep is stopped."""
    add, done = stored.Folder.add, []

    def add_some(self, numbers, history):
        if len(done) == chunks:
            raise KeyboardInterrupt
        done.append(numbers)
        add(self, numbers, history)

    monkeypatch.setattr(stored.Folder, "add", add_some)


def test_an_interrupted_sweep_goes_on(grid_sweep, tmp_path, monkeypatch):
    folder = tmp_path / "sweep"
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            swept(resume=folder)
    assert sorted(file.name for file in folder.iterdir()) == ["runs-000000.npz", "runs-000004.npz", "sweep.json"]
    calls = []
    run = program.Executor.run
    monkeypatch.setattr(program.Executor, "run", lambda self, numbers: calls.append(numbers) or run(self, numbers))
    result = swept(resume=folder)
    assert calls == [[8, 9, 10, 11]]
    for name in (*grid_sweep.metrics, *grid_sweep.rounds):
        np.testing.assert_array_equal(result[name], grid_sweep[name], err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, result.params, grid_sweep.params)
    calls.clear()
    again = swept(resume=folder)  # nothing is left: nothing runs, nothing is compiled
    assert calls == []
    assert again.compile_seconds == 0
    np.testing.assert_array_equal(again["loss"], grid_sweep["loss"])
    jax.tree.map(np.testing.assert_array_equal, again.params, grid_sweep.params)


def tiny(**changes):
    """A sweep that compiles in no time."""
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    common = {
        "task": fjs.quadratic(), "rounds": 2, "eval_every": 2, "cohort": fjs.cohort.full(),
        "work": fjs.local.random_epochs(1, 9), "batches": fjs.local.full_batch(), "seeds": [3, 7],
    }  # fmt: skip
    space = sweeps.grid({RATE: [0.1, 0.2]})
    quadratics = fjs.datasets.quadratics(num_clients=4, dim=2, seed=0)
    return sweep(algorithm, quadratics, space, **common | changes), (algorithm, quadratics, common)


@pytest.mark.slow
def test_another_generator_is_another_program_and_another_sweep(tmp_path):
    usual, (algorithm, quadratics, common) = tiny(resume=tmp_path / "new")
    with jax.default_prng_impl("rbg"):
        drawn, _ = tiny()
        history = fjs.simulate(algorithm, quadratics, **common)
        with pytest.raises(ValueError, match=r"generator\.jax_default_prng_impl: threefry2x32 there, rbg here"):
            tiny(resume=tmp_path / "new")
    assert drawn.at(0)["useful_steps"].tolist() == history["useful_steps"].tolist()
    assert drawn.at(0)["useful_steps"].tolist() != usual.at(0)["useful_steps"].tolist()
    assert drawn.description["environment"]["generator"]["jax_default_prng_impl"] == "rbg"


@pytest.mark.slow
def test_arrays_too_large_for_a_description_are_told_apart(tmp_path, monkeypatch):
    for module in (descriptions, running):
        monkeypatch.setattr(module, "MAX_ARRAY", 3)
    steps = np.arange(1, 9).reshape(2, 4)
    tiny(resume=tmp_path, work=fjs.local.given_steps(steps))
    with pytest.raises(ValueError, match=r"\(arrays: [0-9a-f]{16} there, [0-9a-f]{16} here\)"):
        tiny(resume=tmp_path, work=fjs.local.given_steps(steps[:, ::-1]))


@pytest.mark.slow
def test_runs_that_were_computed_elsewhere_are_warned_of(tmp_path, monkeypatch):
    tiny(resume=tmp_path, chunk=1)
    there = np.__version__
    monkeypatch.setattr(np, "__version__", "9.0")
    words = r"runs in the folder were computed elsewhere \(numpy: \S+ there, 9\.0 here\)"
    with pytest.warns(UserWarning, match=words):
        result, _ = tiny(resume=tmp_path, chunk=1)
    assert result.description["environment"]["numpy"] == there, "nothing was computed here"
    assert "earlier" not in result.description["environment"]
    assert fjs.verify(result.at(0)).environment.startswith(f"numpy: {there} in the result, 9.0 now; program")
    sorted(tmp_path.glob("runs-*.npz"))[0].unlink()
    with pytest.warns(UserWarning, match=words):
        result, _ = tiny(resume=tmp_path, chunk=1)
    assert result.description["environment"]["numpy"] == "9.0"
    assert [change[:5] for change in result.description["environment"]["earlier"]] == ["numpy"]
    assert "resumed elsewhere, ['numpy" in fjs.verify(result.at(0)).environment
    with pytest.warns(UserWarning, match=words):  # now all are stored, of two environments
        result, _ = tiny(resume=tmp_path, chunk=1)
    assert result.description["environment"]["numpy"] == "9.0"
    assert result.description["environment"]["earlier"] == [f"numpy: {there} in some runs, 9.0 in the first"]


def test_a_sweep_that_was_killed_in_its_first_write_goes_on(tmp_path):
    (tmp_path / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(b'{"format": 1, "conf')
    (tmp_path / ".lock").write_bytes(b"process 1 on a host\n")
    with stored.Folder(tmp_path, {"rounds": 1}) as folder:
        assert folder.finished() == []
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]
    (tmp_path / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(b"PK\3\4")
    stored.Folder(tmp_path, {"rounds": 1}).close()
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_nothing(tmp_path):
    said = printed("-m", "tests.killing", str(tmp_path))
    assert min(map(int, said.split())) > 40  # steps of a sweep's folder, and of one of checkpoints


def test_the_folder_has_one_writer_and_is_tried_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(program.Executor, "compile", lambda self: pytest.fail("it was compiled"))
    with stored.Folder(tmp_path / "a", {}), pytest.raises(BlockingIOError, match="another run writes a sweep to this"):
        swept(resume=tmp_path / "a")
    with pytest.raises(ValueError, match="another sweep"):
        swept(resume=tmp_path / "a")  # it is free again
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match=r"a sweep cannot be written here \(this is a file"):
        swept(resume=tmp_path / "file")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".lock").write_bytes(b"process 1 on a host\n")  # which may be written
    without_permission(monkeypatch, tmp_path / "b")
    with pytest.raises(PermissionError, match="a sweep cannot be written here"):
        swept(resume=tmp_path / "b")


@pytest.mark.slow
def test_another_sweep_in_the_folder_is_refused(tmp_path, monkeypatch):
    interrupted_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        swept(resume=tmp_path)
    with pytest.raises(ValueError, match=r"seeds: \[3, 7\] there, \[3, 8\] here"):
        swept(seeds=[3, 8], resume=tmp_path)
    with pytest.raises(ValueError, match=r"run\.rounds: 5 there, 6 here"):
        sweep(method(), data(), GRID, **settings(rounds=6), seeds=SEEDS, chunk=CHUNK, keep_params=True, resume=tmp_path)
    other = data().with_example_weights(np.ones(data().num_examples))
    assert fingerprint(other) != fingerprint(data()) == fingerprint(data())
    with pytest.raises(ValueError, match=r"dataset: dataset\.synthetic\(.* there, .*FederatedDataset here"):
        sweep(method(), other, GRID, **settings(), seeds=SEEDS, chunk=CHUNK, keep_params=True, resume=tmp_path)
    content = (tmp_path / "runs-000000.npz").read_bytes()
    (tmp_path / "runs-000000.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"runs-000000\.npz is not a result of fedjax_sim, or is damaged"):
        swept(resume=tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep\.json is damaged"):
        swept(resume=tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match="has other files"):
        swept(resume=tmp_path)


def test_spaces():
    space = sweeps.grid({"b": [1, 2], "a": [3.0, 4.0, 5.0]})
    assert (space.names, space.dims, space.shape, space.num_points) == (("b", "a"), ("b", "a"), (2, 3), 6)
    assert space.points()["b"].tolist() == [1, 1, 1, 2, 2, 2]
    assert space.points()["a"].tolist() == [3, 4, 5, 3, 4, 5]
    assert space.point(4) == {"b": 2.0, "a": 4.0}
    assert fjs.build(json.loads(json.dumps(fjs.describe(space)))) == space
    pairs = sweeps.zipped({"a": np.logspace(-2, 0, 3), "b": [[1, 2], [3, 4], [5, 6]]})
    assert (pairs.dims, pairs.shape) == (("point",), (3,))
    assert pairs.points()["b"].shape == (3, 2)
    assert pairs.point(1)["b"].tolist() == [3.0, 4.0]
    assert sweeps.points([{"a": 1}, {"a": 2}]) == sweeps.zipped({"a": [1.0, 2.0]})


def test_random_draws_know_their_name_and_number_alone():
    draw = {"mu": sweeps.log_uniform(1e-3, 10.0), "alpha": sweeps.uniform(-1.0, 1.0)}
    small, large = sweeps.random(draw, 5, seed=2), sweeps.random({"mu": draw["mu"]}, 2000, seed=2)
    mus = large.points()["mu"]
    assert small.points()["mu"].tolist() == mus[:5].tolist()
    assert (mus.min() >= 1e-3) & (mus.max() < 10)
    np.testing.assert_allclose(np.histogram(np.log10(mus), 4, (-3, 1))[0], 500, atol=80)
    assert np.abs(small.points()["alpha"]).max() < 1
    assert sweeps.random(draw, 5, seed=3).points()["mu"].tolist() != small.points()["mu"].tolist()
    assert small.shape == (5,)
    alike = sweeps.random({"a": sweeps.uniform(0.0, 1.0), "b": sweeps.uniform(0.0, 1.0)}, 5, seed=2).points()
    assert alike["a"].tolist() != alike["b"].tolist()


def test_a_point_is_as_good_as_its_worst_seed():
    finals = np.array([[1.0, 3.0], [1.0, 1.0], [np.nan, 2.0], [4.0, 6.0]])
    diverged = np.array([[False, False], [False, True], [False, False], [False, False]])
    np.testing.assert_array_equal(means(finals, diverged), [2.0, np.nan, np.nan, 5.0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sweeps.grid({}), ValueError, "at least one name"),
        (lambda: sweeps.grid([0.1, 1.0]), TypeError, "give a mapping"),
        (lambda: sweeps.grid({"mu": []}), ValueError, "empty"),
        (lambda: sweeps.grid({"mu": 0.1}), TypeError, "give a list of numbers"),
        (lambda: sweeps.grid({"mu": ["a"]}), TypeError, "real number"),
        (lambda: sweeps.grid({"mu": [0.1, np.nan]}), ValueError, "finite"),
        (lambda: sweeps.grid({"mu": [0.1, 1, 0.1]}), ValueError, r"0\.1 twice"),
        (lambda: sweeps.grid({3: [0.1]}), TypeError, "names are strings"),
        (lambda: sweeps.grid({"mu": [0.1, [1.0, 2.0]]}), ValueError, "different shapes"),
        (lambda: sweeps.zipped({"a": [1.0], "b": [1.0, 2.0]}), ValueError, "equally long"),
        (lambda: sweeps.points({"mu": 0.1}), TypeError, "list of mappings"),
        (lambda: sweeps.points([]), ValueError, "at least one point"),
        (lambda: sweeps.points([{"a": 1.0}, {"b": 1.0}]), ValueError, "same names"),
        (lambda: sweeps.random({"mu": [0.1]}, 3), TypeError, "give a distribution"),
        (lambda: sweeps.random({"mu": sweeps.uniform(0, 1)}, 0), ValueError, "at least 1"),
        (lambda: sweeps.log_uniform(0.0, 1.0), ValueError, r"\(0, inf\)"),
        (lambda: sweeps.uniform(1.0, 1.0), ValueError, "low must be below high"),
    ],
)
def test_bad_spaces(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"muu": [0.1]}, "did you mean 'mu'"),
        ({"client_optimizer.rate": [0.1]}, "learning_rate"),
        ({"patience": [1]}, "structure"),
        ({"client_optimizer.momentum": [0.9]}, "None"),
        ({"client_optimizer": [0.1]}, "not one leaf"),
        ({"task.weight": [0.1]}, "weight_decay"),
        ({"work.low": [1, 2]}, "structure"),
        ({"mu": [[0.1, 0.2]]}, r"shape \(2,\)"),
        ({"mu": [0.1, -1.0]}, r"point 1 \(mu = -1\): fedprox\(mu=...\) is -1"),
        ({"task.weight_decay": [-1.0]}, "point 0"),
        ({"asynchronous.alpha": [0.5]}, r"a value of asynchronous=\.\.\., and the run has none"),
    ],
)
def test_names_and_values_are_checked_before_compiling(names, message):
    with pytest.raises(ValueError, match=message):
        swept(sweeps.grid(names))


def test_the_numbers_of_a_bare_optax_object_have_no_name():
    bare = fjs.fedprox(client_optimizer=optax.sgd(0.02), mu=0.1)
    for name in (RATE, "client_optimizer.numbers.0"):
        with pytest.raises(ValueError, match=rf"no hyper-parameter '{name}'.*known: client_learning_rate, server"):
            sweep(bare, data(), sweeps.grid({name: [0.1]}), **settings())


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"grid\(\{'mu'"):
        swept({"mu": [0.1]})
    with pytest.raises(TypeError, match="HostDataset"):
        sweep(method(), fjs.datasets.on_host(data()), GRID, **settings())
    with pytest.raises(ValueError, match="chunk"):
        sweep(method(), data(), GRID, **settings(), chunk=0)
    with pytest.raises(TypeError, match="True or False"):
        sweep(method(), data(), GRID, **settings(), keep_params=1)
    with pytest.raises(TypeError, match="traced values"):
        jax.jit(lambda mu: sweep(method().replace(mu=mu), data(), GRID, **settings())["loss"])(0.1)


def test_the_keyword_list_is_simulate_s():
    ours, theirs = inspect.signature(sweep).parameters, dict(inspect.signature(fjs.simulate).parameters)
    ends = ("stop", "on_divergence", "divergence_factor")
    goes_on = ("initial_state", "keep_best", "keep_state", "checkpoint", "every", "keep", "allow_opaque")
    for name in (*ends, *goes_on, "client_states", "callbacks"):
        del theirs[name]  # what ends, resumes or follows a single run, or keeps something of it off the device
    assert [name for name in ours if name in theirs] == list(theirs)
    assert set(ours) - set(theirs) == {"space", "keep_params", "chunk", "devices", "resume"}
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].annotation == parameter.annotation or name == "dataset"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seeds", [3]),
        ("seeds", [7, 3]),
        ("space", {"name": "optim.sgd", "arguments": {"learning_rate": 0.1}}),
        ("space", {"name": "space.grid", "arguments": 3}),
        ("space", fjs.describe(sweeps.grid({"mu": [0.0, 0.5]}))),
        ("space", fjs.describe(sweeps.grid({"asynchronous.alpha": [0.0, 0.5], RATE: RATES}))),
        ("algorithm", {"name": "algorithm.fedprox", "arguments": 3}),
    ],
)
def test_a_file_of_another_structure_is_refused(grid_sweep, tmp_path, name, value):
    path = tmp_path / "sweep.npz"
    grid_sweep.save(path)
    assert sweeps.Sweep.load(path).shape == grid_sweep.shape
    runs = grid_sweep.runs
    dataclasses.replace(runs, description=runs.description | {name: value}).save(path)
    with pytest.raises(ValueError, match=r"sweep\.npz is no sweep of fedjax_sim, or is damaged"):
        sweeps.Sweep.load(path)


def test_to_pandas(grid_sweep):
    pytest.importorskip("pandas")
    frame = grid_sweep.to_pandas()
    assert len(frame) == 6 * 2 * 4
    assert list(frame.columns[:5]) == ["mu", RATE, "seed", "round", "diverged"]
    row = frame[(frame["mu"] == 0.5) & (frame[RATE] == 0.05) & (frame["seed"] == 7) & (frame["round"] == 4)]
    assert row["loss"].item() == grid_sweep["loss"][1, 1, 1, 2]
    assert row["test_accuracy"].item() == grid_sweep["test_accuracy"][1, 1, 1, 2]


def test_to_csv_and_what_notebooks_show(grid_sweep, tmp_path):
    with pytest.raises(ValueError, match="a csv is to_csv"):
        grid_sweep.save(tmp_path / "sweep.csv")
    grid_sweep.to_csv(tmp_path / "sweep.csv")
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    assert lines[0].startswith(f"mu,{RATE},seed,round,diverged,")
    assert len(lines) == 1 + 6 * 2 * 4
    assert lines[1].startswith("0.0,0.01,3,0,False,")
    assert grid_sweep._repr_html_().count("<tr>") == 1 + 6
    assert "loss" in grid_sweep._ipython_key_completions_()
    assert grid_sweep.table(form="csv").splitlines()[0].startswith("mu,learning_rate,training loss without penalty,")


def test_what_is_recorded_by_the_name_of_a_hyper_parameter_has_another_in_tables(tmp_path):
    """As mu of FedProx that adapts it: the values of the point were lost, and xarray has no two of a name."""
    result = made(np.array([[3.0], [1.0]]), sweeps.grid({"mu": [0.1, 0.2]}), [0])
    result.runs.metrics["mu"] = result.runs.metrics["round"] = np.full((2, 2), 7.0)
    result.to_csv(tmp_path / "sweep.csv")
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    columns = "mu,seed,round,diverged,loss,test_accuracy,mu_recorded,round_recorded"
    assert lines[:2] == [columns, "0.1,0,0,False,1.0,1.0,7.0,7.0"]
    pytest.importorskip("xarray")
    labelled = result.to_xarray()
    assert labelled["mu"].values.tolist() == [0.1, 0.2]
    assert (labelled["mu_recorded"] == 7).all()


def test_to_xarray(grid_sweep):
    pytest.importorskip("xarray")
    labelled = grid_sweep.to_xarray()
    assert labelled["loss"].dims == ("mu", RATE, "seed", "evaluation")
    one = labelled["loss"].sel({"mu": 0.5, RATE: 0.05, "seed": 7})
    np.testing.assert_array_equal(one.values, grid_sweep["loss"][1, 1, 1])
    assert labelled["round"].values.tolist() == [0, 2, 4, 5]
    assert labelled["useful_steps"].dims == ("mu", RATE, "seed", "t")
    listed = made(np.ones((2, 1)), sweeps.zipped({"a": [1.0, 2.0]}), [0]).to_xarray()
    assert listed["loss"].dims == ("point", "seed", "evaluation")
    assert listed["a"].dims == ("point",)
    assert listed["vector"].dims == ("point", "seed", "evaluation", "vector_0")


@pytest.mark.usefixtures("pyplot")
class TestFigures:
    @pytest.mark.slow
    def test_heat_map(self, grid_sweep):
        ax = grid_sweep.heatmap("test_accuracy")
        (image,) = ax.get_images()
        np.testing.assert_allclose(image.get_array(), grid_sweep.final("test_accuracy").mean(axis=2), rtol=1e-6)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("learning_rate", "mu")
        assert [text.get_text() for text in ax.get_xticklabels()] == ["0.01", "0.05", "0.2"]
        turned = grid_sweep.heatmap("test_accuracy", x="mu")
        np.testing.assert_array_equal(turned.get_images()[0].get_array().T, image.get_array())
        assert len(ax.texts) == 6

    def test_heat_map_takes_the_best_of_other_axes_and_crosses_out_what_diverged(self):
        space = sweeps.grid({"a": [1.0, 2.0], "b": [10.0, 1.0], "c": [1.0, 2.0]})
        finals = np.array([3.0, 1.0, np.nan, np.nan, 0.01, np.nan, 7.0, 6.0])
        ax = made(finals[:, None], space, [0]).heatmap("loss", x="b", y="a")
        shown = ax.get_images()[0].get_array()
        np.testing.assert_allclose(np.ma.filled(shown, -1), [[-1, 1.0], [6.0, 0.01]])  # b rises to the right
        assert [line.get_xdata()[0] for line in ax.get_lines()] == [0]
        (frame,) = ax.patches
        assert frame.get_xy() == (0.5, 0.5)
        assert ax.get_title("right") == "best over c"

    def test_heat_map_says_what_it_needs(self, grid_sweep):
        with pytest.raises(ValueError, match="did you mean 'mu'"):
            grid_sweep.heatmap(x="muu")
        with pytest.raises(ValueError, match="both"):
            grid_sweep.heatmap(x="mu", y="mu")
        with pytest.raises(ValueError, match="use profile"):
            made(np.ones((2, 1)), sweeps.zipped({"a": [1.0, 2.0]}), [0]).heatmap()

    def test_profile_of_a_grid(self, grid_sweep):
        ax = grid_sweep.profile("loss", RATE)
        (line,) = ax.get_lines()
        np.testing.assert_allclose(line.get_ydata(), grid_sweep.final("loss").mean(axis=2).min(axis=0))
        assert ax.get_xscale() == "log"
        assert ax.get_title() == "best over mu"
        with pytest.raises(ValueError, match="no 'eta'"):
            grid_sweep.profile("loss", "eta")

    def test_profile_of_a_list(self):
        finals = np.array([[2.0], [1.0], [np.nan]])
        ax = made(finals, sweeps.zipped({"a": [0.1, 1.0, 10.0]}), [0]).profile("loss")
        dots, best, cross = ax.get_lines()
        assert dots.get_xdata().tolist() == [0.1, 1.0]
        assert list(np.ravel(best.get_xdata())) == [1.0]
        assert list(np.ravel(cross.get_xdata())) == [10.0]

    def test_curves_of_the_best(self, grid_sweep):
        ax = grid_sweep.curves("loss", top=2)
        labels = [text.get_text() for text in ax.get_legend().get_texts()]
        best = [ranked.point for ranked in grid_sweep.ranked("loss")[:2]]
        assert labels == [f"mu = {point['mu']:g}, learning_rate = {point[RATE]:g}" for point in best]


@pytest.mark.slow
def test_task_cohort_and_work_can_be_varied():
    """A wider cohort needs more slots: the program has those of the widest point."""
    space = sweeps.zipped({
        "task.weight_decay": [0.1, 1e-3], "cohort.probability": [0.2, 0.6], "work.fraction": [0.0, 0.9],
    })  # fmt: skip

    def settings_at(weight_decay, probability, fraction):
        return settings(
            task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=weight_decay), rounds=3,
            cohort=fjs.cohort.independent(probability), work=fjs.local.stragglers(fraction, 3),
        )  # fmt: skip

    result = sweep(method(), data(30), space, **settings_at(1.0, 0.1, 0.5), seeds=[1])
    for number, values in enumerate([(0.1, 0.2, 0.0), (1e-3, 0.6, 0.9)]):
        history = fjs.simulate(method(), data(30), **settings_at(*values), seeds=[1])
        ours = result.at(number)
        np.testing.assert_allclose(ours["loss"], history["loss"], rtol=2e-5)
        np.testing.assert_array_equal(ours["useful_steps"], history["useful_steps"])
        assert ours.description["run"]["work"] == history.description["run"]["work"]
        assert ours.description["run"]["task"] == history.description["run"]["task"]


@pytest.mark.slow
def test_rates_diagnostics_and_evaluations_of_every_client():
    """Leaves that are arrays, records that are, and metrics that are."""
    rates = np.array([[1.0, 0.5, 0.2], [0.3, 0.3, 0.3]])
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02), client_learning_rate=fjs.rates.over_rounds(np.ones(3)))
    run = settings(rounds=3, eval_every=3, diagnostics=["e_lud", "cosine_matrix"])
    run["evaluate"] = fjs.per_client(run["task"])
    space = sweeps.zipped({"client_learning_rate.values": rates})
    result = sweep(algorithm, data(), space, **run, seeds=[0, 1])
    for number in range(2):
        there = algorithm.replace(client_learning_rate=fjs.rates.over_rounds(rates[number]))
        assert_close = np.testing.assert_allclose
        history = fjs.simulate(there, data(), **run, seeds=[0, 1])
        for name in (*history.metrics, *history.rounds):
            assert_close(result.at(number)[name], history[name], rtol=2e-5, atol=1e-5, err_msg=name)
    assert result["cosine_matrix"].shape == (2, 2, 3, 2, 2)
    assert result.params is None
    assert result.best().point["client_learning_rate.values"].tolist() == rates[result.best().number].tolist()


@pytest.mark.slow
def test_runs_side_by_side_are_runs_in_turn(grid_sweep, monkeypatch):
    """As on accelerators."""
    monkeypatch.setattr(program, "takes_turns", lambda device: False)
    result = swept()
    for name in (*grid_sweep.metrics, *grid_sweep.rounds):
        np.testing.assert_allclose(result[name], grid_sweep[name], rtol=2e-5, atol=1e-6, err_msg=name)


TWO_DEVICES = """
import json, sys
import jax
import numpy as np
sys.path.insert(0, "tests")
from tests.studies import test_sweeps as t
assert len(jax.devices()) == 2
one = t.swept(devices=jax.devices()[:1])
space = t.sweeps.points([one.space.point(number) for number in range(5)])
programs = [t.swept(), t.swept(space)]
print(json.dumps([one["loss"].tolist(), *(both["loss"].tolist() for both in programs)]))
"""


@pytest.mark.slow
def test_devices_share_the_runs():
    one, both, listed = (np.array(values) for values in json.loads(printed("-c", TWO_DEVICES, devices=2)))
    np.testing.assert_allclose(both, one, rtol=1e-6)
    np.testing.assert_allclose(listed, one.reshape(6, 2, 4)[:5], rtol=1e-6)


def test_too_few_slots_end_the_sweep():
    history = made(np.ones((2, 1)), sweeps.zipped({"a": [1.0, 2.0]}), [0]).runs
    flags = np.zeros((2, 5), bool)
    flags[1, 3] = True
    history = dataclasses.replace(history, rounds={**history.rounds, "overflow": flags})
    from fedjax_sim.studies.sweeps.running import check_overflow

    with pytest.raises(RuntimeError, match=r"a = 2, seed 0: round 3 drew more clients"):
        check_overflow(history, ["sweep, a = 1", "sweep, a = 2"])


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_evaluation_of_the_run_s_task_is_of_each_point_s(whole):
    """Of its penalty: what is recorded of clients adds up to what is recorded of all."""
    task, dataset = settings()["task"], data()
    tuned = fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(1))
    space = sweeps.grid({"task.weight_decay": [0.5, 1e-3]})
    evaluate = fjs.per_client(task, tuned=tuned if whole else None)
    found = sweep(method(), dataset, space, **settings(evaluate=evaluate))
    sizes = np.asarray(dataset.test.sizes)
    for number, decay in enumerate([0.5, 1e-3]):
        ours, own = found.at(number), task.replace(weight_decay=decay)
        of_clients = np.sum(ours["test_client_loss"] * sizes, axis=-1) / sizes.sum()
        np.testing.assert_allclose(of_clients, ours["test_loss"], rtol=1e-5)
        if whole:
            again = fjs.per_client(own, tuned=tuned.replace(task=own))
            assert_equal_runs(ours, fjs.simulate(method(), dataset, **settings(task=own, evaluate=again)))
            assert fjs.verify(ours).passed


def test_what_is_not_defined_anywhere_is_no_divergence(grid_sweep):
    metrics = grid_sweep.runs.metrics | {
        "area": np.full_like(grid_sweep["loss"].reshape(-1, grid_sweep["loss"].shape[-1]), np.nan)
    }
    swept = dataclasses.replace(grid_sweep, runs=dataclasses.replace(grid_sweep.runs, metrics=metrics))
    with pytest.raises(ValueError, match=r"'area'.*: not defined at any of the"):
        swept.best("area")


def test_a_method_that_keeps_the_run_s_task_has_each_point_s():
    """As FedDF does, whose server asks what the task's model says: of a temperature, say, of a task of one's own."""
    dataset, run = data(), settings(task=settings()["task"].replace(weight_decay=0.1))
    method = fjs.feddf(client_optimizer=fjs.optim.sgd(0.1), public=dataset)
    asked = asked_of(run)[0]._replace(algorithm=method, dataset=dataset, key=jax.random.key(0))
    first, point = resolve(asked, 1), {"task.weight_decay": 0.5}
    at = program.placed(first, point)
    assert at.task.weight_decay == at.algorithm.task.weight_decay == 0.5
    of_first = {"algorithm": fjs.describe(first.algorithm), "run": {"task": fjs.describe(first.task)}}
    said = program.described(of_first, point)
    assert said["run"]["task"] == said["algorithm"]["arguments"]["task"] == fjs.describe(at.task)


@pytest.mark.slow
@pytest.mark.parametrize("points", [[0.9, 0.02], [0.02, 0.9]])
def test_the_program_has_the_steps_of_the_longest_rounds(points):
    """Rounds of a coin that falls seldom are cut short at no other point's bound, nor at that of the run itself."""
    problem = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01))
    run = {"task": fjs.quadratic(start=1.0), "rounds": 4, "cohort": fjs.cohort.full(), "seeds": SEEDS}
    run["batches"] = fjs.local.full_batch()
    found = sweep(method, problem, sweeps.grid({"work.p": points}), work=fjs.local.geometric(0.5), **run)
    for number, p in enumerate(points):
        alone = fjs.simulate(method, problem, work=fjs.local.geometric(p), **run)
        assert_equal_runs(found.at(number), alone)
        longest = int(alone["useful_steps"].max())
        assert (longest > 3 * fjs.local.geometric(0.5).most) == (p == 0.02)


@pytest.mark.parametrize("probabilities", [[0.01, 0.1, 0.05], [0.1, 0.01, 0.05]])
def test_the_program_has_the_slots_of_the_widest_cohort(probabilities):
    from fedjax_sim.engine.arguments import asked_of
    from fedjax_sim.engine.checks import resolve
    from fedjax_sim.studies.sweeps.program import of_all_points

    dataset = data(30)
    asked, rounds = asked_of(settings(cohort=fjs.cohort.independent(0.02), rounds=3))
    space = sweeps.zipped({"cohort.probability": probabilities})
    asked = asked._replace(algorithm=method(), dataset=dataset, key=jax.random.key(0))
    plan = of_all_points(resolve(asked, rounds), asked, space, rounds, None)
    size = plan.cohort.size(30)
    assert size == fjs.cohort.independent(0.1).size(30) > fjs.cohort.independent(0.05).size(30)
    assert plan.cohort.probability == probabilities[0]


def test_values_take_the_dtypes_of_the_leaves(x64):
    from fedjax_sim.engine.arguments import asked_of
    from fedjax_sim.studies.sweeps.program import stacked

    algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(jnp.float32(0.1)), mu=0.1)
    values = stacked(asked_of(settings())[0]._replace(algorithm=algorithm), GRID)
    assert (values["mu"].dtype, values[RATE].dtype) == (np.float64, np.float32)


def test_values_that_half_precision_rounds_are_refused():
    algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(jnp.bfloat16(0.5)), mu=0.1)
    with pytest.raises(ValueError, match=rf"value 0.1 of '{RATE}' would be 0.100097656 in the leaf's bfloat16"):
        sweep(algorithm, data(), sweeps.grid({RATE: [0.5, 0.1]}), **settings())
    from fedjax_sim.engine.arguments import asked_of
    from fedjax_sim.studies.sweeps.program import stacked

    asked, _ = asked_of(settings())
    exact = stacked(asked._replace(algorithm=algorithm), sweeps.grid({RATE: [0.5, 0.10009765625]}))
    assert exact[RATE].astype(float).tolist() == [0.5, 0.10009765625]


def test_values_that_are_one_in_a_program_are_refused():
    with pytest.raises(ValueError, match=r"0.1 and 0.1000000001, which are one number in float32"):
        sweeps.grid({"mu": [0.1, 0.2, 0.1000000001]})


def test_descriptions_keep_the_dtype_of_an_array():
    from fedjax_sim.studies.sweeps.program import described

    about = {"algorithm": fjs.describe(fjs.reweighted(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), np.ones(2)))}
    changed = described(about, {"logits": np.asarray([0.1, 0.2])})["algorithm"]["arguments"]["logits"]
    assert changed == {"array": [0.1, 0.2], "dtype": "float64"}


def test_descriptions_of_numbers_keep_them():
    from fedjax_sim.studies.sweeps.program import described

    about = {"algorithm": fjs.describe(fjs.optim.sgd(jnp.bfloat16(0.5)))}
    changed = described(about, {"learning_rate": 0.25})["algorithm"]["arguments"]["learning_rate"]
    assert changed == {"array": 0.25, "dtype": "bfloat16"}


def test_runs_of_xlas_generators_draw_what_each_does_alone():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
    counts = jnp.ones(3, jnp.int32)
    found = program.each_run(lambda key, count: jax.random.bits(key, (2,)), (keys,), counts, in_turn=False)
    np.testing.assert_array_equal(found, [jax.random.bits(key, (2,)) for key in keys])
