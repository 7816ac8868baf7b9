"""``layout="tune"``: what is chosen for given times, what is kept, and that the run is the one of the chosen layout."""

import functools
import inspect
import json
import pathlib
import re

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.files import cache_directory
from fedjax_sim.engine import layout_timing, layout_tuning
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.layout_timing import Timing, label
from fedjax_sim.engine.layout_tuning import Tuning
from fedjax_sim.run import resuming
from tests.processes import printed

TURNS, STACKED, LANES = fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes
TAU = np.array([[3, 1, 2, 5], [1, 1, 1, 1], [2, 0, 4, 1], [1, 2, 3, 4]])


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "cache"))


def kept():
    return cache_directory() / "layouts.json"


@functools.cache
def data(seed=0, host=False, **changes):
    made = fjs.datasets.quadratics(num_clients=4, dim=2, seed=seed, **changes)
    return fjs.datasets.on_host(made) if host else made


def run(**changes):
    return {
        "algorithm": fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), "dataset": data(), "task": fjs.quadratic(),
        "rounds": len(TAU), "cohort": fjs.cohort.full(), "work": fjs.local.given_steps(TAU),
        "batches": fjs.local.full_batch(), **changes,
    }  # fmt: skip


def times(monkeypatch, seconds):
    """Rounds are not computed, and take as long as said; returns the calls by layout."""
    calls = {}

    def program(plan, initial_params, clients, length):
        name = label(plan.layout)
        made = calls[name] = []

        def run(start, count):
            made.append((start, count))
            taken = seconds[name]
            if callable(taken):
                taken = taken(len(made))
            if isinstance(taken, Exception):
                raise taken
            return taken * count, 4.0 * count, 8.0 * count

        return run

    monkeypatch.setattr(layout_timing, "_program", program)
    return calls


def unmeasured(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(layout_tuning, "timings", fail)


def plan_of(given):
    names = ("task", "rounds", "cohort", "work", "batches", "system", "asynchronous")
    asked, _ = asked_of({name: given[name] for name in names if name in given})
    return asked._replace(algorithm=given["algorithm"], dataset=given["dataset"])


def signature(**changes):
    given = run(**changes)
    candidates = given.pop("candidates", [TURNS])
    return layout_tuning._signature(plan_of(given), candidates, 1)


def test_the_fastest_is_chosen(monkeypatch):
    calls = times(monkeypatch, {"turns()": 0.011, "lanes(4)": 0.01, "stacked()": 0.0105})
    tuning = fjs.layout.tune(**run())
    assert tuning.layout == LANES(4)
    assert not tuning.cached
    assert tuning.milliseconds == pytest.approx(10)
    assert [one.layout for one in tuning.timings] == [TURNS, LANES(4), STACKED]
    assert [one.milliseconds for one in tuning.timings] == pytest.approx([11, 10, 10.5])
    assert [one.computed for one in tuning.timings] == [2, 2, 2]
    timed = calls["turns()"][-5:]  # the clock sees 20 ms, and all see the same rounds
    assert timed == [(0, 2), (2, 2), (1, 2), (0, 2), (2, 2)]
    assert calls["lanes(4)"][-5:] == calls["stacked()"][-5:] == timed
    rows = tuning.table().splitlines()
    assert re.split(r"  +", rows[0]) == ["layout", "ms a round", "x best", "computed / needed", "compile s"]
    assert rows[2].startswith("lanes(4) *      10.000    1.00               2.00")
    assert [row.split()[0] for row in rows[2:]] == ["lanes(4)", "stacked()", "turns()"]


def test_candidates_take_turns(monkeypatch):
    order = []
    seconds = {name: lambda call, name=name: order.append(name) or 0.3 for name in ("turns()", "lanes(4)", "stacked()")}
    times(monkeypatch, seconds)
    fjs.layout.tune(**run())
    assert order == ["turns()", "lanes(4)", "stacked()"] * 6  # a first round, then the repeats


def test_the_rule_s_layout_is_kept_where_it_is_as_good(monkeypatch):
    times(monkeypatch, {"turns()": 0.0102, "lanes(4)": 0.01, "stacked()": 0.02})
    assert fjs.layout.tune(**run()).layout == TURNS


def test_hopeless_candidates_are_given_up(monkeypatch):
    calls = times(monkeypatch, {"turns()": 0.01, "lanes(2)": 0.016, "stacked()": 0.05})
    first, second, last = fjs.layout.tune(**run(), candidates=[TURNS, LANES(2), STACKED]).timings
    assert (first.note, second.note, last.note) == ("", "", "given up after its first round")
    assert calls["stacked()"] == [(0, 1), (0, 1)]
    assert len(calls["turns()"]) == len(calls["lanes(2)"]) == 7
    assert last.milliseconds == pytest.approx(50)


def test_the_time_of_one_candidate_is_limited(monkeypatch):
    calls = times(monkeypatch, {"turns()": 0.8, "lanes(4)": 0.9, "stacked()": 2.4})
    tuning = fjs.layout.tune(**run())
    assert tuning.layout == TURNS
    assert {name: len(made) for name, made in calls.items()} == {"turns()": 4, "lanes(4)": 4, "stacked()": 2}


@pytest.mark.slow
def test_candidates_without_room(monkeypatch):
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
    program = layout_timing._program
    times(monkeypatch, {"turns()": 0.01, "lanes(4)": full, "stacked()": 0.02})
    tuning = fjs.layout.tune(**run())
    assert tuning.layout == TURNS
    assert [one.note for one in tuning.timings] == ["", "out of memory", ""]
    assert tuning.timings[1].milliseconds is None
    assert "–" in tuning.table()
    times(monkeypatch, {"turns()": 0.01, "lanes(4)": lambda call: 0.009 if call < 6 else full, "stacked()": 0.02})
    tuning = fjs.layout.tune(**run(), refresh=True)
    assert tuning.layout == TURNS
    assert tuning.timings[1] == Timing(LANES(4), note="out of memory")
    times(monkeypatch, {"turns()": jax.errors.JaxRuntimeError("INTERNAL: broken"), "lanes(4)": 1.0, "stacked()": 1.0})
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: broken"):
        fjs.layout.tune(**run(), refresh=True)
    monkeypatch.setattr(layout_timing, "_program", program)
    monkeypatch.setattr(layout_timing, "free_memory", lambda: -1.0)
    with pytest.raises(RuntimeError, match=r"turns\(\): out of memory.*give the run a layout"):
        fjs.layout.tune(**run(), refresh=True, candidates=[TURNS])


def test_candidates_by_default():
    def labels(**changes):
        given = run(**changes)
        found = layout_tuning.default_candidates(plan_of(given))
        return [label(one) for one in found]

    assert labels() == ["turns()", "lanes(4)", "stacked()"]
    assert labels(cohort=fjs.cohort.uniform(3)) == ["turns()", "stacked()"]
    # The rule's choice is first.
    assert labels(work=fjs.local.steps(1)) == ["stacked()", "turns()", "lanes(4)", "pooled(stacked())"]
    many = fjs.datasets.quadratics(num_clients=20, dim=2)
    assert labels(dataset=many, work=fjs.local.steps(2)) == [
        "turns()", "lanes(4)", "lanes(8)", "lanes(16)", "stacked()"
    ]  # fmt: skip
    buffered = {
        "work": fjs.local.steps(2), "system": fjs.systems.devices(0.1),
        "asynchronous": fjs.asynchronous.fedbuff(buffer=3),
    }  # fmt: skip
    assert labels(**buffered) == ["turns()", "stacked()"]


def test_what_needs_another_measurement(monkeypatch):
    same = signature()
    assert signature(algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(0.5))) == same
    assert signature(dataset=data(seed=1)) == same
    others = [
        signature(algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1, momentum=0.9))),
        signature(algorithm=fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1))),
        signature(algorithm=fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))),
        signature(dataset=fjs.datasets.quadratics(num_clients=4, dim=3, seed=0)),
        signature(dataset=data(sizes=(1, 2, 1, 1))),
        signature(work=fjs.local.given_steps(TAU + 1)),
        signature(cohort=fjs.cohort.uniform(3)),
        signature(batches=fjs.local.in_order(1)),
        signature(candidates=[TURNS, STACKED]),
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    others.append(signature())
    assert len({same, *others}) == len(others) + 1


def test_a_measurement_is_kept(monkeypatch):
    times(monkeypatch, {"turns()": 0.02, "lanes(4)": 0.01, "stacked()": 0.03})
    first = fjs.layout.tune(**run())
    with monkeypatch.context() as patch:
        unmeasured(patch)
        again = fjs.layout.tune(**run(seeds=[4, 5], algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(0.3))))
        assert again == first._replace(cached=True)
        assert str(again).endswith("* chosen, as measured before")
    times(monkeypatch, {"turns()": 0.01, "lanes(4)": 0.02, "stacked()": 0.03})
    assert fjs.layout.tune(**run(), refresh=True).layout == TURNS
    assert fjs.layout.tune(**run()).layout == TURNS
    assert json.loads(kept().read_text()).keys() == {"version", "layouts"}


def test_the_file_is_bounded(monkeypatch):
    tuning = Tuning(TURNS, (Timing(TURNS, 1.0, 3.0, 1.0),))
    monkeypatch.setattr(layout_tuning, "_MOST", 3)
    kept().parent.mkdir(parents=True, exist_ok=True)
    (kept().parent / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(b"{")  # of a process that was killed
    for key in "abcade":
        layout_tuning.remember(key, tuning)
    assert not list(kept().parent.glob(".fedjax_sim-*"))
    assert list(json.loads(kept().read_text())["layouts"]) == ["a", "d", "e"]
    assert layout_tuning.recall("b") is None
    assert layout_tuning.recall("a") == tuning._replace(cached=True)
    kept().write_text(json.dumps({"version": 3, "layouts": {"a": tuning.to_json()}}))
    assert layout_tuning.recall("a") is None  # of a later version of the package: left alone until it is written


GOOD = {"layout": fjs.describe(TURNS), "timings": [{"layout": fjs.describe(TURNS), "milliseconds": 1.0}]}


def file_with(**changes):
    return json.dumps({"version": 2, "layouts": {"a": GOOD | changes}}).encode()


DAMAGED = {
    "no JSON": b'{"version": 2, "layouts": {"a"',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "no layouts": b'{"version": 2, "layouts": []}',
    "no measurement": b'{"version": 2, "layouts": {"a": [1, 2]}}',
    "another thing": file_with(layout=fjs.describe(fjs.optim.sgd(0.1))),
    "an unknown layout": file_with(layout={"name": "layout.spiral", "arguments": {}}),
    "not measured": file_with(layout=fjs.describe(STACKED)),
    "no number": file_with(timings=[GOOD["timings"][0] | {"milliseconds": "fast"}]),
    "a huge number": file_with(timings=[GOOD["timings"][0] | {"milliseconds": 10**400}]),
    "no time at all": file_with(timings=[GOOD["timings"][0] | {"milliseconds": 0.0}]),
    "a long name": file_with(timings=[GOOD["timings"][0] | {"a" * 10_000: 1}]),
    "nested deeply": b'{"version": 2, "layouts": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_ignored_and_replaced(name):
    kept().parent.mkdir(parents=True)
    kept().write_bytes(DAMAGED[name])
    with pytest.warns(
        UserWarning, match=r"layouts\.json, with the layouts measured before, is ignored, .*replaces it: "
    ) as said:
        assert layout_tuning.recall("a") is None
    assert len(str(said[0].message)) < 1000
    good = Tuning.from_json(GOOD)
    layout_tuning.remember("a", good)
    assert layout_tuning.recall("a") == good


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be kept for the next run.*set FEDJAX_SIM_CACHE to a directory"):
        layout_tuning.remember("a", Tuning.from_json(GOOD))


def test_off_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDJAX_SIM_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    layout_tuning.remember("a", Tuning.from_json(GOOD))
    assert layout_tuning.recall("a") is None
    assert list(tmp_path.iterdir()) == []


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDJAX_SIM_CACHE", "~/own")
    assert cache_directory() == pathlib.Path.home() / "own"
    monkeypatch.delenv("FEDJAX_SIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "fedjax_sim"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory() == pathlib.Path.home() / ".cache" / "fedjax_sim"
    assert not (tmp_path / "fedjax_sim").exists()
    monkeypatch.setenv("FEDJAX_SIM_CACHE", "off")
    assert cache_directory() is None


@pytest.mark.slow
def test_rounds_are_measured():
    given = run(algorithm=fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), seeds=[3, 4])
    turns, stacked = fjs.layout.tune(**given, candidates=[TURNS, STACKED]).timings
    assert min(one.milliseconds for one in (turns, stacked)) > 0
    assert min(one.compile_seconds for one in (turns, stacked)) > 0
    assert turns.computed == 1
    assert 1 < stacked.computed <= 4 * TAU.max() / TAU.sum(axis=1).min()


@pytest.mark.slow
def test_a_tuned_run_is_the_run_of_the_layout(monkeypatch, capfd):
    given = run(algorithm=fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), eval_every=2, seeds=[3, 4])
    found = Tuning(STACKED, (Timing(TURNS, 2.0), Timing(STACKED, 1.2345)), cached=True)
    with monkeypatch.context() as patch:
        patch.setattr(layout_tuning, "recall", lambda key: found)
        history = fjs.simulate(**given, layout="tune", progress=True)
    assert "layout: stacked(), 1.23 ms a round: measured before" in capfd.readouterr().err
    recorded = history.description["run"]
    assert recorded["layout"] == {"name": "layout.stacked", "arguments": {}}
    assert Tuning.from_json(recorded["layout_tuning"]) == found
    json.dumps(recorded["layout_tuning"])
    expected = fjs.simulate(**given, layout=STACKED)
    for name, values in {**expected.metrics, **expected.rounds}.items():
        np.testing.assert_array_equal(values, {**history.metrics, **history.rounds}[name])
    jax.tree.map(np.testing.assert_array_equal, history.params, expected.params)
    assert "layout_tuning" not in expected.description["run"]
    unmeasured(monkeypatch)
    assert fjs.verify(history).passed  # in the layout that was chosen: to the last bit


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_layout_of_its_checkpoint(monkeypatch, tmp_path):
    found = Tuning(STACKED, (Timing(TURNS, 2.0), Timing(STACKED, 1.0)), cached=True)
    given = run(checkpoint=tmp_path / "run", layout="tune")
    with monkeypatch.context() as patch:
        patch.setattr(layout_tuning, "recall", lambda key: found)
        first = fjs.simulate(**given | {"rounds": 2})
    unmeasured(monkeypatch)
    second = fjs.simulate(**given)
    assert second.description["run"]["layout"] == first.description["run"]["layout"] == fjs.describe(STACKED)
    assert second["loss"].shape == (1, 5)
    assert fjs.simulate(**given | {"layout": STACKED}).final("loss") == second.final("loss")
    with pytest.warns(UserWarning, match=r"layout: layout\.stacked\(\) in the checkpoint, layout\.turns\(\) now"):
        fjs.simulate(**given | {"layout": "auto"})
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "round-00000002.safetensors").write_bytes(b"no checkpoint")
    with pytest.raises(AssertionError, match="measured again"):
        fjs.simulate(**given | {"checkpoint": tmp_path / "empty"})


def test_a_layout_that_this_machine_has_no_devices_for_is_not_taken_from_a_checkpoint(monkeypatch, tmp_path):
    (tmp_path / "round-00000002.safetensors").write_bytes(b"")
    for layout, expected in ((fjs.layout.mesh(4096), None), (fjs.layout.mesh(1), fjs.layout.mesh(1)), (TURNS, TURNS)):
        about = {"configuration": {"environment": {"layout": fjs.describe(layout)}}}
        monkeypatch.setattr(resuming, "read_about", lambda path, about=about: about)
        assert resuming.saved_layout(tmp_path) == expected
    assert resuming.saved_layout(tmp_path / "elsewhere") is None


@pytest.mark.slow
def test_data_on_the_host(monkeypatch):
    taken, window = [], fjs.datasets.HostDataset.window

    def noted(self, positions, length):
        taken.append(positions.tolist())
        return window(self, positions, length)

    monkeypatch.setattr(fjs.datasets.HostDataset, "window", noted)
    given = run(dataset=data(host=True), work=fjs.local.steps(2), rounds=50, cohort=fjs.cohort.uniform(1))
    tuning = fjs.layout.tune(**given, candidates=[TURNS, STACKED])
    assert tuning.layout in (TURNS, STACKED)
    assert len(taken) == 1
    schemes = [given["cohort"].draw(data(), jax.random.key(0), t).ids[0] for t in range(4)]
    assert taken[0] == sorted({int(one) for one in schemes})  # the clients of the first four rounds
    unmeasured(monkeypatch)
    monkeypatch.setattr(layout_tuning, "recall", lambda key: tuning)
    history = fjs.simulate(**given, layout="tune")
    np.testing.assert_array_equal(history["loss"], fjs.simulate(**given, layout=tuning.layout)["loss"])


@pytest.mark.slow
def test_client_states_on_the_host():
    given = run(
        algorithm=fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), cohort=fjs.cohort.uniform(2),
        client_states=fjs.client_states.on_host(dtype="bfloat16"),
    )  # fmt: skip
    timings = fjs.layout.tune(**given, candidates=[TURNS, STACKED]).timings
    assert all(one.milliseconds > 0 for one in timings)
    assert timings[0].computed == 1


@pytest.mark.slow
def test_an_asynchronous_run():
    given = run(
        work=fjs.local.steps(2), system=fjs.systems.devices(0.1), asynchronous=fjs.asynchronous.fedbuff(buffer=2)
    )
    tuning = fjs.layout.tune(**given, candidates=[TURNS, LANES(2)])
    assert {one.computed for one in tuning.timings} == {1.0}


TWO_DEVICES = """
import jax, json
import fedjax_sim as fjs
from fedjax_sim.engine.layout_timing import label

data = fjs.datasets.quadratics(num_clients=5, dim=2, seed=0)
algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))
run = {
    "task": fjs.quadratic(), "rounds": 4, "cohort": fjs.cohort.uniform(3), "work": fjs.local.random_epochs(1, 3),
    "batches": fjs.local.full_batch(),
}
turns, mesh = fjs.layout.turns(), fjs.layout.mesh
tuning = fjs.layout.tune(algorithm, data, **run, candidates=[turns, mesh(2, inner=turns), fjs.layout.lanes(2)])
print(json.dumps({label(one.layout): [one.milliseconds, one.computed] for one in tuning.timings}))
"""


@pytest.mark.slow
def test_several_devices():
    found = json.loads(printed("-c", TWO_DEVICES, devices=2))
    assert list(found) == ["turns()", "mesh(2, inner=turns())", "lanes(2)"]
    assert all(milliseconds > 0 for milliseconds, _ in found.values())
    assert found["turns()"][1] == found["mesh(2, inner=turns())"][1] == 1


def test_the_keyword_list_is_simulate_s():
    ours, theirs = (dict(inspect.signature(function).parameters) for function in (fjs.layout.tune, fjs.simulate))
    ends = ("stop", "on_divergence", "divergence_factor")
    goes_on = ("initial_state", "keep_best", "keep_state", "checkpoint", "every", "keep", "allow_opaque")
    for name in ("layout", *ends, *goes_on, "callbacks"):
        del theirs[name]  # what is chosen, and what ends, resumes or follows a run
    assert [name for name in ours if name in theirs] == list(theirs)
    assert all(ours[name].default == parameter.default for name, parameter in theirs.items())
    assert set(ours) - set(theirs) == {"candidates", "refresh"}


def test_what_is_refused(monkeypatch):
    with pytest.raises(
        TypeError, match=r"layout is 'turns': it must be a Layout.*layout\.turns\(\), 'tune'.*'auto' or None"
    ):
        fjs.simulate(**run(layout="turns"))
    tune = (
        r"layout='tune': only simulate measures.*layout=fedjax_sim\.layout\.tune\(algorithm, dataset, \.\.\.\)\.layout"
    )
    given = run(layout="tune")
    algorithm, dataset = given.pop("algorithm"), given.pop("dataset")
    with pytest.raises(ValueError, match=tune):
        fjs.make_train(**given)
    with pytest.raises(ValueError, match=tune):
        fjs.sweep(algorithm, dataset, fjs.sweeps.grid({"client_optimizer.learning_rate": [0.1]}), **given)
    for wrong in ([], ["turns"], "turns", TURNS, [TURNS, None]):
        with pytest.raises(TypeError, match=r"tune\(candidates=\.\.\.\) is .*it must be layouts"):
            fjs.layout.tune(**run(), candidates=wrong)
    with pytest.raises(TypeError, match=r"tune\(refresh=\.\.\.\) is 1"):
        fjs.layout.tune(**run(), refresh=1)
    with pytest.raises(TypeError, match="traced values: measure outside jit, grad and vmap"):
        jax.grad(lambda rate: fjs.layout.tune(**run(algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(rate)))))(0.1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"cannot be measured in a run of 2 processes.*give all of them that layout"):
        fjs.layout.tune(**run())
    with pytest.raises(AttributeError, match="has no attribute 'tunes'"):
        fjs.layout.tunes  # noqa: B018
