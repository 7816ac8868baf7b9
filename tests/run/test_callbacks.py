"""Callbacks of a run, and the trackers against the real libraries, offline, with what they wrote read back."""

import json
import os
import sys
import time

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.run.callbacks import Callback, Calls, Reported, Started
from fedjax_sim.run.trackers import configuration, scalars
from tests.processes import printed

pytestmark = pytest.mark.xdist_group("callbacks")  # one worker compiles what they share

DATA = fjs.datasets.quadratics(num_clients=5, dim=2, seed=0)
SETTING = {
    "task": fjs.quadratic(start=1.0), "rounds": 5, "eval_every": 2, "batches": fjs.local.full_batch(),
    "cohort": fjs.cohort.uniform(2), "work": fjs.local.steps(2),
}  # fmt: skip
FEDAVG = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))


def simulate(*callbacks, **changes):
    return fjs.simulate(FEDAVG, DATA, **SETTING | {"seeds": range(2), **changes}, callbacks=callbacks)


class Noted(Callback):
    def __init__(self, fails_in=None):
        self.calls, self.fails_in = [], fails_in

    def note(self, name, value):
        self.calls.append((name, value))
        if name == self.fails_in:
            raise KeyError(name)

    def start(self, started):
        self.note("start", started)

    def report(self, reported):
        self.note("report", reported)

    def end(self, history):
        self.note("end", history)


def test_a_run_is_told_as_it_goes():
    noted = Noted()
    history = simulate(noted)
    names = [name for name, _ in noted.calls]
    assert names == ["start", "report", "report", "report", "report", "end"]
    started, reports = noted.calls[0][1], [value for name, value in noted.calls if name == "report"]
    assert (started.seeds, started.rounds, started.finished) == ([0, 1], 5, 0)
    assert started.description == history.description
    assert [reported.round for reported in reports] == [0, 2, 4, 5]
    for at, reported in enumerate(reports):
        np.testing.assert_array_equal(reported.metrics["loss"], history["loss"][:, at])
    assert not reports[0].rounds
    told = np.concatenate([reported.rounds["useful_steps"] for reported in reports[1:]], axis=1)
    np.testing.assert_array_equal(told, history.rounds["useful_steps"])
    assert noted.calls[-1][1] is history


@pytest.mark.parametrize("where", ["start", "report", "end"])
def test_what_a_callback_raises_ends_the_run_and_all_are_ended(where):
    first, failing, never = Noted(), Noted(fails_in=where), Noted()
    with pytest.raises(KeyError, match=where):
        simulate(first, failing, never)
    for noted in (first, failing, *([never] if where != "start" else [])):
        assert [name for name, _ in noted.calls].count("end") == 1
    assert (first.calls[-1][1] is None) == (where != "end")
    assert bool(never.calls) == (where != "start")


@pytest.mark.parametrize("calls", [1, 2])  # of the start, of the first evaluation
def test_of_several_processes_none_waits_for_one_whose_callback_failed(monkeypatch, calls):
    said = iter([[[0], [0]]] * (calls - 1) + [[[1], [0]]])
    monkeypatch.setattr("fedjax_sim.core.devices.all_said", lambda numbers: np.array(next(said)))
    with pytest.raises(RuntimeError, match="process 0 of this run has failed"):
        simulate()


def test_a_run_that_is_resumed_reports_what_is_new(tmp_path):
    noted = Noted()
    simulate(rounds=2, checkpoint=tmp_path)
    simulate(noted, checkpoint=tmp_path)
    assert noted.calls[0][1].finished == 2
    assert [value.round for name, value in noted.calls if name == "report"] == [4, 5]
    again = Noted()
    simulate(again, checkpoint=tmp_path)  # nothing is left to do
    assert again.calls == []


def test_a_callback_may_change_the_working_directory(tmp_path, monkeypatch):
    """Checkpoints stay together, in the directory that was meant when the run began."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    class Moving(Callback):
        def report(self, reported):
            os.chdir(tmp_path / "elsewhere")

    simulate(Moving(), checkpoint="kept", every=2)
    assert len(list((tmp_path / "kept").glob("round-*"))) == 2
    assert not (tmp_path / "kept" / ".lock").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_callback_does_not_write_into_the_record():
    class Scaled(Callback):
        def report(self, reported):
            reported.metrics["loss"] /= reported.metrics["loss"][0]

    with pytest.raises(ValueError, match="read-only"):  # of one seed the arrays are JAX's, of several they were ours
        simulate(Scaled())


def test_a_callback_does_not_write_into_the_description():
    class Short(Callback):
        def start(self, started):
            started.description.pop("algorithm")
            started.seeds.reverse()

    noted = Noted()
    history = simulate(Short(), noted)
    assert noted.calls[0][1].description == history.description
    assert "algorithm" in history.description
    assert history.seeds == [0, 1]


class Misspelt(Callback):
    def on_evaluation(self, reported):
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Noted(), "derived from"),
        ([print], "derived from"),
        (3, "derived from"),
        ([Noted(), Misspelt()], "has none of start"),
    ],
)
def test_something_else_is_refused(given, why):
    with pytest.raises(TypeError, match=why):
        fjs.simulate(FEDAVG, DATA, **SETTING, callbacks=given)


def test_scalars():
    metrics = {"loss": np.array([1.0, 3.0]), "test_accuracy_by_client": np.zeros((2, 5))}
    rounds = {"cohort_size": np.array([[1, 3], [2, 2]]), "cosine_matrix": np.zeros((2, 2, 3, 3))}
    found = scalars(Reported(2, metrics, rounds), [4, 7], each_seed=True)
    assert found == {
        "loss": 2.0, "loss_std": 2**0.5, "loss_seed_4": 1.0, "loss_seed_7": 3.0, "rounds/cohort_size": 2.0,
        "rounds/cohort_size_std": 0.0, "rounds/cohort_size_seed_4": 2.0, "rounds/cohort_size_seed_7": 2.0,
    }  # fmt: skip
    alone = Reported(1, {"loss": np.array([np.nan])}, {})
    assert np.isnan(scalars(alone, [0])["loss"])
    assert list(scalars(alone, [0])) == ["loss"]
    named = Reported(2, {"loss_std": np.array([7.0, 9.0]), "loss": np.array([1.0, 3.0])}, {})
    assert scalars(named, [4, 7])["loss_std"] == 8.0  # a metric, not the deviation of another


def test_records_of_seeds_that_had_stopped_are_no_part_of_the_means():
    rounds = {"cohort_size": np.array([[4, 2], [0, 0], [3, 1]]), "e_lud": np.array([[1.0, 1.0], [0, 0], [2, 2]])}
    reported = Reported(6, {"loss": np.array([1.0, 2.0, 3.0])}, rounds, np.array([True, False, True]))
    found = scalars(reported, [4, 5, 7], each_seed=True)
    assert (found["loss"], found["rounds/cohort_size"], found["rounds/e_lud"]) == (2.0, 2.5, 1.5)
    assert found["rounds/e_lud_std"] == pytest.approx(0.5**0.5)
    assert "rounds/e_lud_seed_5" not in found
    assert "rounds/e_lud_std" not in scalars(reported._replace(running=np.array([True, False, False])), [4, 5, 7])
    noted = Noted()
    for running in (np.array([True, True]), np.array([True, False])):
        Calls([noted]).report(2, {}, {}, 0, running)
    told = [reported.running for _, reported in noted.calls]
    assert (told[0], told[1].tolist()) == (None, [True, False])


def test_a_model_that_diverged_has_no_accuracy_in_trackers():
    reported = Reported(2, {"loss": np.array([1.0, np.nan]), "test_accuracy": np.array([0.5, 0.1])}, {})
    found = scalars(reported, [4, 7], each_seed=True)
    assert np.isnan([found["test_accuracy"], found["test_accuracy_seed_7"]]).all()
    assert found["test_accuracy_seed_4"] == 0.5


def test_a_configuration_by_dotted_names():
    found = configuration(simulate().description)
    assert found["algorithm"] == "algorithm.fedavg"
    assert found["algorithm.client_optimizer.learning_rate"] == 0.02
    assert found["run.cohort.num_sampled"] == 2
    assert found["environment.jax"] == jax.__version__
    json.dumps(found)


def expected(history):
    return dict(zip(history.evaluated.tolist(), history["loss"].mean(axis=0).tolist(), strict=True))


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra trackers")
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard, to read what was written"
    )
    history = simulate(fjs.trackers.tensorboard(tmp_path / "run", each_seed=True))
    read = accumulator.EventAccumulator(str(tmp_path / "run"))
    read.Reload()
    losses = {event.step: event.value for event in read.Scalars("loss")}
    assert losses == pytest.approx(expected(history), rel=1e-6)
    assert [event.value for event in read.Scalars("loss_seed_1")] == pytest.approx(
        history["loss"][1].tolist(), rel=1e-6
    )
    assert [event.step for event in read.Scalars("rounds/useful_steps")] == [2, 4, 5]
    text = read.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"name": "algorithm.fedavg"' in text


def test_tensorboard_has_each_point_once(tmp_path):
    """Of a run that ended early, began anew and went on from its checkpoint, all in one second."""
    pytest.importorskip("tensorboardX", reason="needs the extra trackers")
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard, to read what was written"
    )
    for finished, rounds in ((0, (0, 2)), (0, (0, 2, 4)), (2, (4, 6))):
        tracker = fjs.trackers.tensorboard(tmp_path)
        tracker.start(Started({}, [0], 6, finished))
        for number in rounds:
            tracker.report(Reported(number, {"loss": np.ones(1)}, {}))
        tracker.end(None)
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == [0, 2, 4, 6]


def wandb_records(path):
    """The serialised records of an offline run's file, a log of LevelDB's format behind a header of 7 bytes."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # of a block, too little for another one
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts = b"" if kind in (1, 2) else parts  # whole or first, else a middle or last part
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(data):
            yield parts


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra trackers")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    history = simulate(fjs.trackers.wandb(project="federated", mode="offline", dir=str(tmp_path), config={"note": "a"}))
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows, given, exits = [], {}, []
    until = time.monotonic() + 30
    while not exits and time.monotonic() < until:  # another process writes it, and may lag behind
        rows, given = [], {}
        for data in wandb_records(written):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("history"):
                row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append({key: json.loads(value) for key, value in row.items()})
            if record.HasField("run"):
                given |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("exit"):
                exits.append(record.exit.exit_code)
    assert {row["round"]: row["loss"] for row in rows} == pytest.approx(expected(history), rel=1e-6)
    assert given["algorithm.client_optimizer.learning_rate"] == 0.02
    assert given["note"] == "a"
    assert given["seeds"] == [0, 1]
    assert exits == [0]


@pytest.mark.slow
def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra trackers")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs the whole of MLflow
    from mlflow.tracking import MlflowClient

    where = (tmp_path / "runs").as_uri()
    history = simulate(fjs.trackers.mlflow("federated", "fedavg", tracking_uri=where))
    with pytest.raises(KeyError):
        simulate(fjs.trackers.mlflow("federated", "broken", tracking_uri=where), Noted(fails_in="report"))
    client = MlflowClient(where)
    experiment = client.get_experiment_by_name("federated")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in runs.items()} == {"fedavg": "FINISHED", "broken": "FAILED"}
    metrics = client.get_metric_history(runs["fedavg"].info.run_id, "loss")
    assert {metric.step: metric.value for metric in metrics} == pytest.approx(expected(history), rel=1e-6)
    assert runs["fedavg"].data.params["algorithm.client_optimizer.learning_rate"] == "0.02"
    assert runs["fedavg"].data.params["seeds"] == "[0, 1]"


@pytest.mark.parametrize("module", ["tensorboardX", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    make = {
        "tensorboardX": lambda: fjs.trackers.tensorboard("runs"), "wandb": fjs.trackers.wandb,
        "mlflow": lambda: fjs.trackers.mlflow("a"),
    }  # fmt: skip
    with pytest.raises(ImportError, match=r"pip install 'fedjax_sim\[trackers\]'"):
        make[module]()


@pytest.mark.slow
def test_trackers_are_imported_where_they_are_made():
    code = (
        "import sys; from fedjax_sim import trackers; "
        "print([m for m in ('tensorboardX', 'wandb', 'mlflow') if m in sys.modules])"
    )
    assert printed("-c", code).strip() == "[]"
