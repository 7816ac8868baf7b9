"""What version 0.1.0 wrote (``data_0_1_0``, by ``write.py`` there) is read, run again, or refused in words."""

import copy
import dataclasses
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.core import old_formats as earlier
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.core.devices import double_precision
from fedjax_sim.core.keys import GENERATOR
from fedjax_sim.papers import writing
from fedjax_sim.reporting.recorded import in_words
from fedjax_sim.run.checkpoints import Store, read
from fedjax_sim.run.simulation import _check_ends
from fedjax_sim.studies.sweeps import Sweep, program
from tests.run.data_0_1_0 import write

OLD = write.HERE
ROOT = pathlib.Path(__file__).parents[2]
RUNS = (*write.runs(), "float64")


def old(name: str) -> fjs.History:
    return fjs.History.load(OLD / f"{name}.npz")


def raw(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file and what it says beside them, as they are."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(arrays.pop("about").tobytes())


def written(path: pathlib.Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> pathlib.Path:
    np.savez(path, **arrays, about=np.frombuffer(json.dumps(about).encode(), np.uint8))
    return path


def assert_same(one: fjs.History, other: fjs.History) -> None:
    for field in dataclasses.fields(fjs.History):
        left, right = (getattr(history, field.name) for history in (one, other))
        if field.name in ("evaluated", "metrics", "rounds", "params"):
            jax.tree.map(np.testing.assert_array_equal, left, right)
        else:
            assert left == right


@pytest.mark.parametrize("name", RUNS)
def test_runs_load_and_are_written_in_the_present_format(name, tmp_path):
    arrays, about = raw(OLD / f"{name}.npz")
    history = old(name)
    assert about["format"] == 1
    assert history.seeds == about["seeds"]
    assert history.description["environment"] == about["description"]["environment"]
    assert history.description["environment"]["fedjax_sim"] == earlier.VERSION
    parts = {"metrics": history.metrics, "rounds": history.rounds}
    names = {f"{part}/{one}" for part, of in parts.items() for one in of}
    assert names == {one for one in arrays if one.partition("/")[0] in parts}
    for part, of in parts.items():
        for one, values in of.items():
            if one not in ("mu", "client_ids"):
                np.testing.assert_array_equal(values, arrays[f"{part}/{one}"])
    assert "loss" in history.table()
    history.save(tmp_path / "again.npz")
    assert raw(tmp_path / "again.npz")[1]["format"] == 2
    assert_same(fjs.History.load(tmp_path / "again.npz"), history)


def kept(before: Any, now: Any) -> bool:
    """Whether a description says all that another one says; of what it does not say there is a default."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and kept(value, now[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(kept, before, now))
    return before == now and type(before) is type(now)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "opaque"])
def test_descriptions_build_the_same(name):
    about = raw(OLD / f"{name}.npz")[1]["description"]
    parts = [about["algorithm"], about["dataset"], *about["run"].values(), *about["run"]["diagnostics"]]
    built = [part for part in parts if isinstance(part, dict) and "name" in part]
    assert len(built) >= 7
    for part in built:
        assert kept(part, describe(build(part)))


def test_losses_have_their_present_names():
    with_penalty, without = old("fedavg"), old("scaffold")
    np.testing.assert_array_equal(without["data_loss"], without["loss"])
    np.testing.assert_array_equal(with_penalty.final("test_loss"), with_penalty.metrics["test_loss"][:, -1])
    for name in ("data_loss", "test_data_loss"):  # was not recorded, and does not follow from what was
        with pytest.raises(KeyError, match=name):
            with_penalty[name]
    assert in_words("loss", [with_penalty]) == "training loss with penalty"
    assert in_words("loss", [without]) == "training loss"


@pytest.mark.parametrize("name", ["fedprox_adaptive", "wrapped_fedprox"])
def test_mu_is_what_the_round_used(name):
    recorded = raw(OLD / f"{name}.npz")[0]["rounds/mu"]
    mu = old(name)["mu"]
    assert mu.dtype == np.float32
    np.testing.assert_array_equal(mu[:, 0], np.float32(0.3))
    np.testing.assert_array_equal(mu[:, 1:], recorded[:, :-1])
    assert (mu != recorded).any()


def test_nobody_came_after_a_seed_had_stopped():
    recorded, history = raw(OLD / "fedbuff.npz")[0]["rounds/client_ids"], old("fedbuff")
    assert {seed: stop.round for seed, stop in history.stops.items()} == {0: 2, 1: 4}
    assert recorded[0, 2:].tolist() == [[0, 0], [0, 0]]
    assert history["client_ids"][0, 2:].tolist() == [[-1, -1], [-1, -1]]
    np.testing.assert_array_equal(history["client_ids"][0, :2], recorded[0, :2])
    np.testing.assert_array_equal(history["client_ids"][1], recorded[1])


def test_divergences_are_those_of_the_rule_that_was():
    history = old("growing")
    assert [(one.seed, one.round, one.what, one.factor) for one in history.divergences] == [
        (0, 3, "loss", None), (4, 2, "loss", None),
    ]  # fmt: skip
    start = history["loss"][0, 0].astype(float)
    assert 0 < start < 1
    assert history.description["run"]["divergence_factor"] == 1000 / start
    assert (history["loss"][0, 2] > 10 * start) & (history["loss"][0, 2] < 1000)  # no divergence then
    nearly = {"metrics/loss": np.asarray([[5e-324, 1.0], [np.nan, 1.0]])}
    assert _check_ends(None, "record", earlier._factor(nearly)) == np.finfo(np.float32).max
    assert old("scaffold").description["run"]["divergence_factor"] == 1000  # F(x_0) > 1
    assert old("wrapped").description["run"]["divergence_factor"] == 1000  # F(x_0) = 0


UNSAID = {
    "fedavg": {f"metrics/{part}{each}data_loss{of}" for part in ("", "test_") for each, of in
               (("", ""), ("client_", ""), ("", "_worst"))}
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n == "growing" else pytest.param(n, marks=pytest.mark.slow) for n in RUNS if n not in ("opaque", "fedbuff")],
)
def test_runs_are_verified(name):
    history = old(name)
    if name == "float64":
        with double_precision():
            found = fjs.verify(history)
    else:
        found = fjs.verify(history)
    assert found.passed, str(found)
    assert found.environment.startswith(f"fedjax_sim: 0.1.0 in the result, {fjs.__version__} now")
    unrecorded = {one for one in found.unsaid if "/" in one or one == "divergences"}
    assert unrecorded == {"rounds/nonfinite_ids"} | UNSAID.get(name, set())
    assert "not recorded by the version that wrote it, so not compared: " in str(found)
    if name == "growing":
        changed = dataclasses.replace(history, metrics=history.metrics | {"loss": history["loss"] * np.float32(1.01)})
        assert [one.name for one in fjs.verify(changed).failed] == ["metrics/loss"]


@pytest.mark.slow
def test_clients_of_an_asynchronous_server_are_sent_off_in_another_order_than_in_0_1_0():
    found = fjs.verify(old("fedbuff"))
    assert not found.passed
    assert "rounds/client_ids" in {one.name for one in found.failed}


def test_what_was_never_recorded_cannot_be_run_again():
    with pytest.raises(ValueError, match=r"algorithm\.client_optimizer: .*; run\.evaluate: .* were given as bare"):
        fjs.verify(old("opaque"))


def test_sweeps_load(tmp_path):
    sweep = Sweep.load(OLD / "sweep.npz")
    arrays, about = raw(OLD / "sweep.npz")
    assert about["format"] == 1
    assert sweep.shape == (2, 2, 2)
    np.testing.assert_array_equal(sweep.runs["loss"], arrays["metrics/loss"])
    assert sweep.diverged.tolist() == [[[False, False], [True, True]]] * 2
    np.testing.assert_array_equal(sweep["mu"][0, ..., 0], np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(sweep["mu"][1, ..., 0], np.full((2, 2), 0.5, np.float32))
    np.testing.assert_array_equal(sweep.runs["mu"][:, 1:], arrays["rounds/mu"][:, :-1])
    assert sweep.best("loss").point["client_optimizer.learning_rate"] == 0.1
    sweep.save(tmp_path / "again.npz")
    assert_same(Sweep.load(tmp_path / "again.npz").runs, sweep.runs)


@pytest.mark.slow
def test_points_of_sweeps_are_verified():
    sweep = Sweep.load(OLD / "sweep.npz")
    for point in range(4):
        found = fjs.verify(sweep.at(point))
        assert found.passed
        assert ("divergences" in found.unsaid) == bool(point % 2)  # sweeps did not say where runs diverged


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(OLD / "sweep", tmp_path / "sweep")


@pytest.mark.cpu
def test_a_finished_sweep_in_a_folder_is_read(folder, monkeypatch):
    monkeypatch.setattr(program.Executor, "run", None)
    with pytest.warns(UserWarning, match=rf"computed elsewhere \(fedjax_sim: 0\.1\.0 there, {fjs.__version__} here\)"):
        sweep = write.swept(resume=folder)
    whole = Sweep.load(OLD / "sweep.npz").runs
    for part in ("metrics", "rounds"):
        jax.tree.map(np.testing.assert_array_equal, getattr(sweep.runs, part), getattr(whole, part))
    assert json.loads((folder / "sweep.json").read_text())["format"] == 1  # nothing is written


def test_arguments_that_there_were_not_are_what_was_always_so():
    now = {
        "algorithm": describe(fjs.clipped(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), norm=1.0)),
        "run": {"divergence_factor": 1000.0, "cohort": describe(fjs.cohort.given([[0, 1]]))},
        "generator": {**GENERATOR},
    }
    then = copy.deepcopy(now)
    del then["generator"], then["run"]["divergence_factor"]
    del then["algorithm"]["arguments"]["base"]["arguments"]["keep_optimizer"]
    for name in ("probability", "repeats", "earlier"):
        del then["run"]["cohort"]["arguments"][name]
    assert earlier.configuration(then, now) == now


@pytest.mark.cpu
def test_an_unfinished_one_is_refused(folder):
    (folder / "runs-000004.npz").unlink()
    with pytest.raises(
        ValueError, match=r"of fedjax_sim 0\.1\.0 and has 4 of 8 runs, .*: finish the sweep with fedjax"
    ):
        write.swept(resume=folder)


@pytest.mark.cpu
def test_another_sweep_in_an_old_folder_is_refused(folder):
    said = r"\(generator\.jax_default_prng_impl: threefry2x32 there, rbg here"
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match=said):  # which it was is assumed: the usual one
        write.swept(resume=folder)
    with pytest.raises(ValueError, match=r"another sweep \(keep_params: false there, true here\)"):
        write.swept(resume=folder, keep_params=True)
    runs = folder / "runs-000000.npz"
    arrays, about = raw(runs)
    about["description"]["runs"] = [0, 1, 2, 99]
    written(runs, arrays, about)
    with pytest.raises(ValueError, match=r"runs-000000\.npz is damaged"):
        write.swept(resume=folder)


def test_checkpoints_are_refused(tmp_path):
    shutil.copytree(OLD / "checkpoint", tmp_path, dirs_exist_ok=True)
    names = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = (
        r"round-00000004\.safetensors was written by fedjax_sim 0\.1\.0, .*: finish the run with fedjax_sim 0\.1\.0, "
        "or give another directory to begin anew"
    )
    with pytest.raises(ValueError, match=said):
        fjs.simulate(**write.runs()["scaffold"], checkpoint=tmp_path)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "round-00000004.safetensors")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == names


def test_checkpoints_that_do_not_say_who_wrote_them(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fedjax_sim.checkpoints.files._FORMAT", 1)
        with Store(tmp_path) as store:
            path = store.save(1, {}, {})
    with pytest.raises(ValueError, match=r"was written by fedjax_sim 0\.1\.0, whose states"):
        read(path)
    with Store(tmp_path / "new") as store:
        path = store.save(1, {"a": np.ones(2)}, {"x": 1})
    assert read(path).about == {"x": 1}


def test_pages_and_tables_of_old_files(tmp_path, capsys):
    files = [str(OLD / f"{name}.npz") for name in ("fedavg", "scaffold", "sweep", "opaque")]
    assert cli.main(["show", *files]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("fedavg", "scaffold", "opaque", "training loss with penalty"))
    assert cli.main(["report", *files, "--out", str(tmp_path / "page.html")]) == 0
    assert "fedjax_sim 0.1.0" in (tmp_path / "page.html").read_text()


def test_reports_of_experiments_are_read(tmp_path):
    folders = sorted(path.parent for path in (ROOT / "benchmarks" / "experiments" / "results").glob("*/claims.json"))
    found = [writing.read(folder) for folder in folders]
    assert None not in found
    # No stored report is of the first format, which had claims without reasons: it is as if none were there.
    content = json.loads((folders[0] / "claims.json").read_text())
    assert content["format"] == 2
    (tmp_path / "claims.json").write_text(json.dumps(content | {"format": 1}))
    assert writing.read(tmp_path) is None


@pytest.mark.parametrize("name", ["scaffold", "sweep"])
def test_files_of_a_format_to_come_are_refused(name, tmp_path):
    arrays, about = raw(OLD / f"{name}.npz")
    path = written(tmp_path / "run.npz", arrays, about | {"format": 3, "params": "of another kind"})
    with pytest.raises(ValueError, match=r"run\.npz has format 3, and .* knows formats up to 2: use the version that"):
        (Sweep if name == "sweep" else fjs.History).load(path)


def test_so_are_folders_of_sweeps(folder):
    about = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(about | {"format": 3}))
    with pytest.raises(ValueError, match=r"sweep\.json has format 3, and .* knows formats up to 2: use the version"):
        write.swept(resume=folder)
