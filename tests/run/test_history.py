"""History: what is recorded comes back from a file, and a damaged file is refused."""

import copy
import dataclasses
import functools
import io
import json
import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.reporting.paired import paired
from fedjax_sim.run.records import Stop
from fedjax_sim.run.training import TrainResult
from tests.fuzzing.structures import packed, unpacked

pytestmark = pytest.mark.xdist_group("history")  # one worker compiles what they share


@functools.cache
def history():
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=40, seed=0)
    return fjs.simulate(
        fjs.scaffold(client_optimizer=fjs.optim.sgd(0.02)),
        data,
        task=fjs.classification(fjs.models.LogisticRegression(10)),
        rounds=5,
        eval_every=2,
        batches=fjs.local.in_order(10),
        cohort=fjs.cohort.uniform(2),
        work=fjs.local.random_epochs(1, 2),
        seeds=[3, 5],
    )


@pytest.mark.cpu
def test_what_is_recorded():
    h = history()
    assert h.evaluated.tolist() == [0, 2, 4, 5]
    assert h["loss"].shape == h["test_accuracy"].shape == (2, 4)
    assert h.rounds["useful_steps"].shape == (2, 5)
    assert (h.rounds["cohort_size"] == 2).all()
    assert h["loss"][:, 0] == pytest.approx(np.log(10), rel=1e-5)  # zero weights: uniform over ten classes
    assert h.params["params"]["Dense_0"]["kernel"].shape == (2, 60, 10)
    assert h.useful_ratio == 1.0
    nobody = {name: np.zeros_like(values) for name, values in h.rounds.items()}
    assert dataclasses.replace(h, rounds=nobody).useful_ratio == 1.0, "nothing was wasted"
    assert h.algorithm == "scaffold"
    assert h.description["objective"] == "(1/N) sum F_i"
    assert "personal" not in h.description
    assert h.description["run"]["layout"]["name"] == "layout.turns"


def test_a_record_taken_for_an_attribute_is_told_how_it_is_read():
    for name in ("loss", "cohort_size"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': .* history\['{name}'\]$"):
            getattr(history(), name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        history().nothing  # noqa: B018
    assert copy.copy(history()).seeds == pickle.loads(pickle.dumps(history())).seeds == [3, 5]


def with_norms():
    return dataclasses.replace(history(), rounds=history().rounds | {"norms": np.ones((2, 5, 3))})


def test_to_pandas():
    pytest.importorskip("pandas")
    frame = history().to_pandas()
    assert len(frame) == 2 * 4
    assert list(frame.columns[:2]) == ["seed", "round"]
    row = frame[(frame["seed"] == 5) & (frame["round"] == 4)]
    assert row["test_accuracy"].item() == history()["test_accuracy"][1, 2]
    by_round = with_norms().to_pandas(each="round")
    assert by_round["round"].tolist() == [1, 2, 3, 4, 5] * 2
    assert by_round["useful_steps"].tolist() == history().rounds["useful_steps"].ravel().tolist()
    assert "norms" not in by_round  # several numbers a round
    with pytest.raises(ValueError, match=r"to_pandas\(each=...\) is 'seed': known: evaluation, round"):
        history().to_pandas(each="seed")


def test_to_xarray():
    pytest.importorskip("xarray")
    labelled = with_norms().to_xarray()
    assert labelled["loss"].dims == ("seed", "evaluation")
    np.testing.assert_array_equal(labelled["loss"].sel(seed=5).values, history()["loss"][1])
    assert labelled["round"].values.tolist() == [0, 2, 4, 5]
    assert labelled["norms"].dims == ("seed", "t", "norms_0")
    assert labelled.attrs["algorithm"] == "scaffold"


def test_save_and_load(tmp_path):
    h = history()
    h.save(tmp_path / "new" / "run.npz")
    back = fjs.History.load(tmp_path / "new" / "run.npz")
    for name in ("seeds", "seconds", "compile_seconds", "description"):
        assert getattr(back, name) == getattr(h, name)
    for name in ("evaluated", "metrics", "rounds", "params"):
        jax.tree.map(np.testing.assert_array_equal, getattr(back, name), getattr(h, name))
        assert jax.tree.structure(getattr(back, name)) == jax.tree.structure(getattr(h, name))


@pytest.mark.slow
def test_one_array_of_parameters_comes_back_as_one(tmp_path):
    data = fjs.datasets.quadratics(num_clients=3, dim=4)
    h = fjs.simulate(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=fjs.quadratic(start=1.0), rounds=1,
        batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
    )  # fmt: skip
    h.save(tmp_path / "run.npz")
    assert fjs.History.load(tmp_path / "run.npz").params.shape == (1, 4)


def test_bfloat16_parameters_keep_their_type(tmp_path):
    params = {"w": np.asarray(jnp.ones((2, 2), jnp.bfloat16))}
    dataclasses.replace(history(), params=params).save(tmp_path / "run.npz")
    back = fjs.History.load(tmp_path / "run.npz").params["w"]
    assert back.dtype == jnp.bfloat16
    np.testing.assert_array_equal(back.astype(np.float32), np.ones((2, 2), np.float32))


@pytest.mark.parametrize("keep", [0, 10, 200, -30, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "run.npz"
    history().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"run\.npz is not a result of fedjax_sim, or is damaged"):
        fjs.History.load(path)


def test_flipped_bytes_are_refused_or_harmless(tmp_path):
    path = tmp_path / "run.npz"
    history().save(path)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), max(len(whole) // 60, 1)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            fjs.History.load(path)
        except ValueError:
            refused += 1
    assert refused > 30  # a flip in a time stamp changes nothing


def test_pickled_objects_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    history().save(path)
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("metrics/evil.npy", buffer.getvalue())
    with pytest.raises(ValueError, match="is damaged"):
        fjs.History.load(path)


def test_rounds_to_and_unknown_names():
    h = history()
    losses = h["loss"]
    assert h.rounds_to("loss", 10.0).tolist() == [0, 0]
    assert h.rounds_to("loss", -1.0).tolist() == [np.inf, np.inf]
    reached = h.rounds_to("loss", float(losses[0, 1]))
    assert reached[0] == 2
    assert h.rounds_to("test_accuracy", 0.0).tolist() == [0, 0]
    with pytest.raises(TypeError, match=r"^metric is \['loss', 'accuracy'\]: give the name of a metric"):
        h.plot(["loss", "accuracy"])
    with pytest.raises(KeyError, match="did you mean 'loss'"):
        h["los"]
    np.testing.assert_array_equal(h.final("loss"), losses[:, -1])


@pytest.mark.usefixtures("pyplot")
def test_table_and_plot():
    assert "scaffold" in history().table(target=0.5)
    ax = history().plot("test_accuracy")
    assert ax.get_xlabel() == "rounds"


def with_rounds():
    rng = np.random.default_rng(0)
    norms = np.sort(rng.gamma(3.0, size=(2, 5, 5)), axis=-1) / np.arange(1, 6)[None, :, None]
    v = rng.normal(size=(2, 5, 6, 4)) + 0.7
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    records = {
        "e_lud": 1 + rng.uniform(size=(2, 5)),
        "update_norms": norms,
        "cosine_matrix": np.einsum("srid,srjd->srij", v, v),
    }
    return dataclasses.replace(history(), rounds={**history().rounds, **records})


def test_records_of_every_round_are_found_like_metrics(tmp_path):
    h = with_rounds()
    assert h["e_lud"] is h.rounds["e_lud"]
    np.testing.assert_array_equal(h.final("e_lud"), h.rounds["e_lud"][:, -1])
    assert h.rounds_to("e_lud", 0.0).tolist() == [1, 1]
    with pytest.raises(KeyError, match="did you mean 'e_lud'"):
        h["elud"]
    h.save(tmp_path / "run.npz")
    back = fjs.History.load(tmp_path / "run.npz")
    jax.tree.map(np.testing.assert_array_equal, back.rounds, h.rounds)


@pytest.mark.usefixtures("pyplot")
def test_plots_of_every_round():
    h = with_rounds()
    assert h.plot("e_lud").get_lines()[0].get_xdata().tolist() == [1, 2, 3, 4, 5]
    ax = h.plot("update_norms", seed=1)
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), h["update_norms"][1, :, 2])
    assert ax.get_ylabel() == "update norms"
    ax = h.plot("cosine_matrix", round=2)
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), h["cosine_matrix"][0, 1])
    assert ax.get_title() == "round 2"
    with pytest.raises(IndexError, match="rounds are 1 to 5"):
        h.plot("cosine_matrix", round=6)
    with pytest.raises(IndexError, match="positions 0 to 1"):
        h.plot("update_norms", seed=2)
    zero = {name: np.array(h[name]) for name in ("update_norms", "cosine_matrix")}  # as after a stop
    for values in zero.values():
        values[0, 3:] = 0
    early = dataclasses.replace(h, rounds=h.rounds | zero, stops={h.seeds[0]: Stop(3, "x")})
    drawn = early.plot("update_norms").get_lines()[0].get_ydata()
    np.testing.assert_array_equal(drawn, h["update_norms"][0, [0, 1, 2, 2, 2], 2])
    ax = early.plot("cosine_matrix")
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), h["cosine_matrix"][0, 2])
    assert ax.get_title() == "round 3"
    assert early.plot("cosine_matrix", seed=1).get_title() == "round 5"
    with pytest.raises(IndexError, match="rounds are 1 to 3"):
        early.plot("cosine_matrix", round=4)


def test_parameters_keep_their_structure(tmp_path):
    params = {"a/b": {"": np.ones((2, 2)), "none": {}}, "a": {"b": np.zeros((2, 3))}, "state": {}}
    dataclasses.replace(history(), params=params).save(tmp_path / "run.npz")
    back = fjs.History.load(tmp_path / "run.npz").params
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_files_that_name_parameters_by_their_path_still_load(tmp_path):
    path = tmp_path / "run.npz"
    dataclasses.replace(history(), params={}).save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays["about"].tobytes())
    del about["params"]
    about["format"] = 1
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **arrays, **{"params/params/Dense_0/bias": np.ones((2, 2))})
    np.testing.assert_array_equal(fjs.History.load(path).params["params"]["Dense_0"]["bias"], np.ones((2, 2)))


# What a file holds: a list of changes that used to load, and then failed in a table, a plot or a page


def about_with(**entries):
    return lambda arrays, about: about.update(entries)


def arrays_with(**entries):
    def change(arrays, about):
        for name, array in entries.items():
            arrays[name.replace("__", "/")] = np.asarray(array)

    return change


def evaluated_at(*numbers):
    return arrays_with(evaluated=np.array(numbers, int))


def changed(name, change):
    def apply(arrays, about):
        arrays[name] = change(arrays[name])

    return apply


WRONG = {
    "a divergence": (about_with(divergences=[[0, 1, "evil", [1], "x"]]), "divergence"),
    "a divergence of another seed": (about_with(divergences=[[9, 1, "loss", [], "x"]]), "divergence"),
    "a divergence after the end": (about_with(divergences=[[3, 6, "loss", [], "x"]]), "divergence"),
    "a divergence before the start": (about_with(divergences=[[3, -1, "loss", [], "x"]]), "divergence"),
    "a divergence of a half": (about_with(divergences=[[3, 0.5, "loss", [], "x"]]), "divergence"),
    "a divergence's clients": (about_with(divergences=[[3, 1, "clients", ["x"], "x"]]), "divergence"),
    "a divergence's factor": (about_with(divergences=[[3, 1, "loss", [], "x", "10"]]), "divergence"),
    "a short divergence": (about_with(divergences=[[3, 1, "loss"]]), "ValueError"),
    "a stop": (about_with(stops=[[0, "x", 5]]), "stop"),
    "a stop of another seed": (about_with(stops=[[9, 1, "x"]]), "stop"),
    "a stop at the start": (about_with(stops=[[3, 0, "x"]]), "stop"),
    "two stops of a seed": (about_with(stops=[[3, 1, "x"], [3, 2, "x"]]), "stop"),
    "no seeds": (about_with(seeds=[]), "seeds"),
    "a seed of text": (about_with(seeds=["3", 5]), "seeds"),
    "a negative seed": (about_with(seeds=[-3, 5]), "seeds"),
    "endless seconds": (about_with(seconds=10**400), "seconds"),
    "seconds that are no number": (about_with(seconds=float("nan")), "seconds"),
    "negative seconds": (about_with(compile_seconds=-1), "compile_seconds"),
    "an algorithm that is a number": (about_with(description={"algorithm": {"name": 3}}), "algorithm"),
    "nothing evaluated": (evaluated_at(), "evaluated"),
    "not from the start": (evaluated_at(1, 2, 4, 5), "evaluated"),
    "decreasing": (evaluated_at(0, 4, 2, 5), "evaluated"),
    "negative": (evaluated_at(-1, 2, 4, 5), "evaluated"),
    "twice": (evaluated_at(0, 2, 2, 5), "evaluated"),
    "other rounds": (evaluated_at(0, 2, 4, 6), "the first axes are"),
    "rounds of another length": (arrays_with(rounds__mine=np.ones((2, 4))), "the first axes are"),
    "a complex metric": (arrays_with(metrics__mine=np.ones((2, 4), complex)), "real numbers"),
    "two of one name": (arrays_with(metrics__cohort_size=np.ones((2, 4))), "both called 'cohort_size'"),
    "a name that is a column": (arrays_with(metrics__seed=np.ones((2, 4))), "seed"),
    "no name": (arrays_with(metrics__=np.ones((2, 4))), "1 to 200"),
    "no metric": (
        lambda arrays, about: [arrays.pop(full) for full in list(arrays) if full.startswith("metrics/")],
        "it has no metric",
    ),
    "no cohort sizes": (lambda arrays, about: arrays.pop("rounds/cohort_size"), "it has no rounds/cohort_size"),
    "a loss by client": (changed("metrics/loss", lambda loss: loss[..., None]), "one number"),
    "steps that are no integers": (changed("rounds/useful_steps", lambda steps: steps + 0.5), "integers"),
    "fewer than no steps": (changed("rounds/useful_steps", lambda steps: -steps), "below 0"),
    "parameters of one seed": (changed("params/0", lambda leaf: leaf[:1]), "the first axes are"),
    "parameters by text": (about_with(params={"w": "0"}), "array's number"),
    "parameters without a place": (about_with(params=None), "no place"),
    "parameters that are not there": (about_with(params={"w": 99}), "99"),
    "a type for what has one": (about_with(dtypes={"metrics/loss": "int32"}), "float32 as one of int32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_another_structure_is_refused(tmp_path, name):
    change, message = WRONG[name]
    path = tmp_path / "run.npz"
    history().save(path)
    arrays, about = unpacked(path.read_bytes())
    change(arrays, about)
    path.write_bytes(packed(arrays, about))
    with pytest.raises(ValueError, match=r"run\.npz is not a result of fedjax_sim, or is damaged.*") as caught:
        fjs.History.load(path)
    assert message in str(caught.value)


def test_unchanged_arrays_pass(tmp_path):
    path = tmp_path / "run.npz"
    history().save(path)
    arrays, about = unpacked(path.read_bytes())
    about["divergences"] = [[3, 2, "loss", [], "x"], [5, 2, "loss", [], "x", 10.0]]  # older files have no factor
    about["stops"] = [[5, 4, "x"]]
    path.write_bytes(packed(arrays, about))
    read = fjs.History.load(path)
    assert [one.factor for one in read.divergences] == [None, 10.0]
    assert read.stops == {5: Stop(4, "x")}


def test_what_has_several_values_reaches_no_target():
    h = dataclasses.replace(history(), metrics=history().metrics | {"each": np.ones((2, 4, 3))})
    with pytest.raises(ValueError, match=r"shape \(2, 4, 3\): give one number"):
        h.rounds_to("each", 0.5)


def test_the_zeros_after_a_stop_reach_no_target():
    own = {"own_loss": np.array([[3.0, 2, 0, 0, 0], [3, 2, 2, 1, 1]]), "duration": np.ones((2, 5))}
    h = dataclasses.replace(history(), rounds=history().rounds | own, stops={3: Stop(2, "x")})
    assert h.rounds_to("own_loss", 1.0).tolist() == h.time_to("own_loss", 1.0).tolist() == [np.inf, 4]


def test_the_zeros_after_a_stop_are_no_last_values():
    own = {"own_loss": np.array([[3.0, 2, 0, 0, 0], [3, 2, 2, 1, 1]])}
    whole = dataclasses.replace(history(), rounds=history().rounds | own)
    early = dataclasses.replace(whole, stops={3: Stop(2, "x")})
    assert whole.final("own_loss").tolist() == [0, 1]
    assert early.final("own_loss").tolist() == [2, 1]
    assert paired({"whole": whole, "early": early}, "own_loss")[0].finals.tolist() == [2, 1]


def test_the_zeros_after_a_stop_are_in_no_frame(tmp_path):
    own = {"own_loss": np.array([[3.0, 2, 0, 0, 0], [3, 2, 2, 1, 1]])}
    early = dataclasses.replace(with_norms(), rounds=with_norms().rounds | own, stops={3: Stop(2, "x")})
    early.to_csv(tmp_path / "rounds.csv", each="round")
    rows = [line.split(",") for line in (tmp_path / "rounds.csv").read_text().splitlines()]
    assert [row[:2] for row in rows[1:]] == [["3", "1"], ["3", "2"], *(["5", str(t)] for t in range(1, 6))]
    assert [float(row[rows[0].index("own_loss")]) for row in rows[1:]] == [3, 2, 3, 2, 2, 1, 1]
    pytest.importorskip("xarray")
    labelled = early.to_xarray()
    assert labelled["own_loss"].mean("t").values.tolist() == [2.5, 1.8]
    assert labelled["norms"].sum().item() == (2 + 5) * 3


def test_an_accuracy_by_class_is_no_column():
    by_class = {"test_accuracy": np.ones((2, 4, 3)), "accuracy": np.full((2, 4), 0.25)}
    table = dataclasses.replace(history(), metrics=history().metrics | by_class).table(target=0.2)
    assert "test accuracy" not in table
    assert "0.2500 ± 0.0000" in table


def test_ids_are_not_drawn():
    pytest.importorskip("matplotlib")
    assert (history()["nonfinite_ids"] == -1).all()
    with pytest.raises(ValueError, match=r"plot\('nonfinite_ids'\): these are ids of clients"):
        history().plot("nonfinite_ids")


def test_a_history_is_short_to_look_at():
    short = repr(history())
    assert short.startswith("History(scaffold, 2 seeds, 5 rounds, 4 evaluations; loss ")
    assert "±" in short
    assert "\n" not in short
    assert repr(dataclasses.replace(history(), metrics={})) == "History(scaffold, 0 seeds, 5 rounds, 4 evaluations)"
    bad = {**history().metrics, "loss": np.full((2, 4), np.nan)}
    assert "loss diverged" in repr(dataclasses.replace(history(), metrics=bad))
    assert "<table>" in history()._repr_html_()
    assert "cohort_size" in history()._ipython_key_completions_()


def test_a_csv_is_written_by_its_own_name(tmp_path):
    with pytest.raises(ValueError, match="a csv is to_csv"):
        history().save(tmp_path / "run.csv")
    with pytest.raises(ValueError, match="json is to_pandas"):
        history().save(tmp_path / "run.json")
    history().to_csv(tmp_path / "run.csv")
    history().to_csv(tmp_path / "rounds.csv", each="round")
    rows = [line.split(",") for line in (tmp_path / "run.csv").read_text().splitlines()]
    assert rows[0] == ["seed", "round", *history().metrics]
    assert len(rows) == 1 + 2 * 4
    assert [np.float32(one) for one in rows[-1][2:]] == [of[-1, -1] for of in history().metrics.values()]
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 2 * 5


@pytest.mark.usefixtures("pyplot")
def test_a_plot_has_the_band_that_is_asked_for():
    assert "95 % interval" in history().plot("loss", band="ci95").get_legend().get_title().get_text()


def test_a_result_of_train_is_short_to_look_at():
    state, rounds = None, {"cohort_size": jnp.ones(5)}
    result = TrainResult({}, state, {"round": jnp.array([0, 5]), "loss": jnp.array([2.0, 0.5])}, rounds)
    assert repr(result) == "TrainResult(round 5, loss 0.5; 1 records of every round)"
    assert "<td" in result._repr_html_()
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), result)
    assert "loss [2, 2]" in repr(several)
    seen = []
    jax.eval_shape(lambda of: seen.append(repr(of)), result)
    assert "loss [2]" in seen[0]


def test_a_data_set_is_a_table_in_notebooks():
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=3, sizes=[50, 100, 150], test_fraction=0.2)
    for one in (data, fjs.datasets.host.on_host(data)):
        assert [cell in one._repr_html_() for cell in (">training<", ">test<", ">240<", ">120<")] == [True] * 4
