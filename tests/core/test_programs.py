"""Compiled programs that are kept: where, when not, silently, and what the user says to JAX comes first."""

import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

import fedjax_sim as fjs
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core import programs
from fedjax_sim.core.files import shrink
from fedjax_sim.core.programs import keep_programs
from tests.processes import environment

SETTINGS = (
    "jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs",
)  # fmt: skip
found = {"hits": 0, "misses": 0}


def _count(event, **_):
    for name in found:
        found[name] += event == f"/jax/compilation_cache/cache_{name}"


jax.monitoring.register_event_listener(_count)


def settings():
    return [getattr(jax.config, name) for name in SETTINGS]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A process that has not begun to keep programs, and a cache of its own; both are as before afterwards."""
    for name, own in (("get_executable_and_time", "read"), ("put_executable_and_time", "write")):
        present = getattr(compilation_cache, name)  # JAX's own, or what stands around it since an earlier test's run
        monkeypatch.setattr(compilation_cache, name, getattr(getattr(present, "__self__", None), own, present))
    before = settings()
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "cache"))
    programs._kept.cache_clear()
    yield tmp_path / "cache" / f"programs-{programs._machine()}"
    for name, value in zip(SETTINGS, before, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    programs._kept.cache_clear()


def compiled():
    """A program as a new process compiles it, and its hits and misses; numpy's numbers, so that it is the only one."""
    before = dict(found)
    assert float(jax.jit(lambda x: x * 3.25)(np.float32(2))) == 6.5
    return found["hits"] - before["hits"], found["misses"] - before["misses"]


def test_programs_are_kept_for_the_user_alone(folder, capfd):
    assert compiled() == (0, 0)
    assert not folder.exists()
    assert keep_programs() == ""
    assert compiled() == (0, 1)
    assert compiled() == (1, 0)
    assert folder.stat().st_mode & 0o077 == 0
    assert keep_programs() == ""
    assert compiled() == (1, 0)
    assert capfd.readouterr() == ("", "")


def test_what_is_damaged_is_replaced_without_a_word(folder, capfd):
    keep_programs()
    compiled()
    (file,) = folder.glob("*lambda*")
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:-20] + b"x" * 20):
        file.write_bytes(damaged)
        assert compiled() == (0, 1)
        assert len(file.read_bytes()) > len(whole) // 2
        assert compiled() == (1, 0)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_written_is_left_out_without_a_word(folder, monkeypatch, capfd):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(compilation_cache, "put_executable_and_time", full)
        keep_programs()
        compiled()
        compiled()
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_gone_is_no_error(folder, capfd):
    keep_programs()
    compiled()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    compiled()
    assert capfd.readouterr() == ("", "")


def test_xla_is_silent_while_programs_are_loaded_and_no_longer(monkeypatch):
    levels = []
    monkeypatch.setattr(jax._src.lib.utils, "absl_set_min_log_level", levels.append, raising=False)
    keep_programs()
    read, during = compilation_cache.get_executable_and_time, []

    def watched(*given):
        loaded = read(*given)
        during.append(list(levels))
        return loaded

    monkeypatch.setattr(compilation_cache, "get_executable_and_time", watched)
    compiled()
    assert during == [[3, 1]]  # before it is compiled the level is what it was
    assert levels == [3, 1]

    with programs._unlogged(), programs._unlogged():  # two threads that load programs
        levels.clear()
    assert levels == [1]


def test_an_error_puts_the_level_back(monkeypatch):
    levels = []
    monkeypatch.setattr(jax._src.lib.utils, "absl_set_min_log_level", levels.append, raising=False)
    with pytest.raises(KeyError), programs._unlogged():
        raise KeyError
    assert levels == [3, 1]


@pytest.mark.parametrize(
    ("said", "variable", "level"),
    [
        ("NOTSET", None, 1),
        ("NOTSET", "0", 0),
        ("NOTSET", "none", 1),
        (None, "2", 2),
        ("DEBUG", "3", 0),
        ("ERROR", "0", 2),
    ],
)
def test_the_level_that_comes_back(monkeypatch, said, variable, level):
    class Config:
        jax_logging_level = said

    monkeypatch.setattr(programs, "_config", Config)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if variable is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", variable)
    assert programs._level() == level


def test_a_version_that_logs_nothing_needs_no_silence(monkeypatch):
    monkeypatch.delattr(jax._src.lib.utils, "absl_set_min_log_level", raising=False)
    keep_programs()
    compiled()
    assert compiled() == (1, 0)


def test_a_version_that_keeps_its_programs_elsewhere(monkeypatch):
    monkeypatch.delattr(compilation_cache, "put_executable_and_time")
    before = settings()
    assert "put_executable_and_time" in keep_programs()
    assert settings() == before


# What the user says to JAX


@pytest.mark.parametrize(
    ("name", "value"), [("jax_compilation_cache_dir", "mine"), ("jax_enable_compilation_cache", False)]
)
def test_a_choice_that_was_made_before(folder, tmp_path, name, value):
    jax.config.update(name, str(tmp_path / value) if name.endswith("dir") else value)
    before = settings()
    assert keep_programs() == ""
    assert settings() == before
    assert not folder.exists()


def test_a_place_that_is_given_later(folder, tmp_path):
    keep_programs()
    compiled()
    kept = sorted(folder.iterdir())
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    compiled()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0  # JAX's own again
    assert not list((tmp_path / "mine").glob("*"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compiled()
    assert list((tmp_path / "mine").glob("*lambda*"))
    assert sorted(folder.iterdir()) == kept
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")


def test_a_cache_that_is_switched_off_later():
    keep_programs()
    compiled()
    jax.config.update("jax_enable_compilation_cache", False)
    assert compiled() == (0, 0)
    jax.config.update("jax_enable_compilation_cache", True)
    assert compiled() == (1, 0)
    jax.config.update("jax_compilation_cache_dir", None)
    assert compiled() == (0, 0)
    keep_programs()
    assert compiled() == (0, 0)


def test_a_least_time_of_the_users_own_stays(folder):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 20.0)
    keep_programs()
    compiled()
    assert list(folder.iterdir()) == []
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 20.0


# Where nothing is kept


def test_off(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_SIM_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    before = settings()
    assert keep_programs() == ""
    assert settings() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["file", "others", "readonly", "homeless"])
def test_a_place_that_cannot_be_used_is_no_error(folder, tmp_path, monkeypatch, capfd, wrong):
    if wrong == "file":
        (tmp_path / "cache").write_text("")
    elif wrong == "others":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    elif wrong == "readonly":
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    else:
        monkeypatch.delenv("FEDJAX_SIM_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(pathlib.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    before, said = settings(), {"file": "cache", "others": "others may write to", "readonly": "cannot be written"}
    assert said.get(wrong, "no home directory") in keep_programs()
    assert settings() == before
    assert compiled() == (0, 0)
    assert capfd.readouterr() == ("", "")


def test_each_kind_of_processor_and_number_of_threads_has_a_folder(monkeypatch):
    """A program is cut into as many parts as there were threads, which JAX's key does not say."""
    monkeypatch.delenv("NPROC", raising=False)
    kinds = {programs._machine()}
    with monkeypatch.context() as patch:
        patch.setattr(programs, "affinity", lambda: range(1000))
        kinds.add(programs._machine())
    with monkeypatch.context() as patch:
        patch.setattr(programs, "processor", lambda *_: ("x86_64", "avx"))
        kinds.add(programs._machine())
    for threads in ("1", "2"):
        monkeypatch.setenv("NPROC", threads)
        kinds.add(programs._machine())
    assert len(kinds) == 5


# How much


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x" * 100)
        os.utime(tmp_path / str(number), (number, number))
    os.utime(tmp_path / "0", (9, 0))  # read since
    shrink(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]
    shrink(tmp_path, 250)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_folder_is_bounded_when_something_is_written(folder, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 1000)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "old").write_bytes(b"x" * 900)
    os.utime(folder / "old", (0, 0))
    keep_programs()
    assert (folder / "old").exists()
    compiled()
    assert not (folder / "old").exists()


# Several processes

COUNTED = """
import jax
found = [0, 0]
def count(event, **_):
    found[0] += event == "/jax/compilation_cache/cache_hits"
    found[1] += event == "/jax/compilation_cache/cache_misses"
jax.monitoring.register_event_listener(count)
"""
SMALL = """
import numpy as np
from fedjax_sim.core.programs import keep_programs
keep_programs()
product = jax.jit(lambda x: x @ x / 3)(np.eye(3, dtype="f"))
print(*found, np.asarray(product).tobytes().hex())
"""
RUN = """
import fedjax_sim as fjs
assert jax.config.jax_compilation_cache_dir is None
data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
history = fjs.simulate(
    fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=fjs.quadratic(), rounds=2,
    batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
)
print(*found, history["loss"].tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "at_once"),
    [
        pytest.param(SMALL, 1, id="one program"),
        *(pytest.param(RUN, number, marks=pytest.mark.slow, id=f"a run-{number}") for number in (1, 2)),
    ],
)
def test_processes_share_what_they_compile(program, at_once, tmp_path):
    """One or two at once, then another, which compiles nothing: the same to the last bit, and nobody speaks."""
    variables = environment(FEDJAX_SIM_CACHE=str(tmp_path / "cache"))
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)

    def begun():
        return subprocess.Popen([sys.executable, "-W", "error", "-c", COUNTED + program], env=variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def ended(process):
        said, wrong = process.communicate(timeout=120)
        assert (process.returncode, wrong) == (0, "")
        hits, misses, loss = said.split()
        return int(hits), int(misses), loss

    first = [ended(process) for process in [begun() for _ in range(at_once)]]
    last = ended(begun())
    assert sum(misses for _, misses, _ in first) > 0  # whoever began later may find all there
    assert last[:2] == (first[0][0] + first[0][1], 0)
    assert {loss for _, _, loss in first} == {last[2]}


def test_threads_begin_once(monkeypatch):
    begun = []
    monkeypatch.setattr(programs._Watched, "begin", lambda self: begun.append(self))
    threads = [threading.Thread(target=keep_programs) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_pythons_collector_waits_while_a_run_is_traced_and_no_longer(before, monkeypatch):
    """And is as it was after an error, and where somebody has switched it off."""
    seen, rooms = [], []
    monkeypatch.setattr(programs, "make_room", lambda: rooms.append(None))

    def loss(params, examples):
        seen.append(gc.isenabled())
        if fail:
            raise RuntimeError("a loss that fails")
        return examples["x"][:, 0] * params

    class Watching(fjs.callbacks.Callback):
        def report(self, reported):
            seen.append("as it was" if gc.isenabled() == before else "changed")

    data = fjs.datasets.from_clients([{"x": np.ones((3, 1), np.float32)}] * 2)
    rounds = {"rounds": 2, "cohort": fjs.cohort.full(), "work": fjs.local.epochs(1), "batch_size": 3}
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        for fail in (False, True):
            task = fjs.functions(lambda key: jax.numpy.zeros(()), loss)
            with pytest.raises(ValueError, match="fails") if fail else contextlib.nullcontext():
                fjs.simulate(
                    fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=task, **rounds,
                    callbacks=[Watching()],
                )  # fmt: skip
            assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()
    assert {one for one in seen if isinstance(one, bool)} == {False}
    assert {one for one in seen if isinstance(one, str)} == {"as it was"}
    assert rooms


def test_programs_go_before_a_process_has_as_many_memory_maps_as_it_may(monkeypatch, tmp_path):
    """Linux alone bounds them."""
    (tmp_path / "maps").write_text("a map\n" * 70)
    monkeypatch.setattr(programs, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(programs, "_MOST_MAPS", tmp_path / "most")
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append("programs"))
    monkeypatch.setattr(gc, "collect", lambda: cleared.append("what held them"))  # of all tests before, two seconds
    for most, expected in ((None, 0), (106, 0), (104, 2)):  # two thirds: 71 and 69
        if most is not None:
            (tmp_path / "most").write_text(f"{most}\n")
        with programs.compiling():
            assert len(cleared) == expected


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone bounds memory maps")
def test_programs_that_go_leave_their_memory_maps():
    def maps():
        gc.collect()
        return programs._MAPS.read_bytes().count(b"\n")

    kept = [jax.jit(lambda x, n=n: jax.numpy.sin(x * n) @ x) for n in range(30)]
    before = maps()
    for one in kept:
        one(np.ones(5))
    compiled = maps()
    jax.clear_caches()
    assert compiled - before > 60
    assert maps() - before < (compiled - before) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sweep", pytest.param("search", marks=pytest.mark.slow), pytest.param("tune", marks=pytest.mark.slow)]
)
def test_it_waits_while_a_study_is_traced(name, monkeypatch):
    seen, rooms = [], []
    monkeypatch.setattr(programs, "make_room", lambda: rooms.append(None))

    def loss(params, examples):
        seen.append(gc.isenabled())
        return (examples["x"][:, 0] - params) ** 2

    rate = "client_optimizer.learning_rate"
    arguments = {
        "sweep": {"space": fjs.sweeps.grid({rate: [0.1, 0.2]})},
        "search": {
            "space": fjs.sweeps.grid({rate: [0.1, 0.2]}), "strategy": fjs.hyper.halving(rungs=2),
            "objective": fjs.hyper.final("loss"),
        },
        "tune": {"over": [rate], "objective": fjs.hyper.final("loss"), "steps": 1},
    }[name]  # fmt: skip
    data = fjs.datasets.from_clients([{"x": np.ones((3, 1), np.float32)}] * 2)
    task = fjs.functions(lambda key: jax.numpy.zeros(()), loss)
    getattr(fjs, name)(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=task, rounds=2, cohort=fjs.cohort.full(),
        work=fjs.local.epochs(1), batch_size=3, **arguments,
    )  # fmt: skip
    assert gc.isenabled()
    assert set(seen) == {False}
    assert rooms


MEASURED, STEPPED, SCALE = 1.0, 1.0, 1.0


def measured(params, dataset):
    return {"measured": jnp.float32(MEASURED)}


class Scaled(FedAvg):
    def step(self, g, y, state, k, sent, c_i, client):
        return super().step(STEPPED * g, y, state, k, sent, c_i, client)


DATA = fjs.datasets.quadratics(num_clients=2, dim=2)
RUN = {
    "task": fjs.quadratic(), "rounds": 1, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(),
    "work": fjs.local.steps(1), "evaluate": measured,
}  # fmt: skip


@pytest.mark.parametrize("constant", ["MEASURED", "STEPPED"])
def test_programs_go_once_what_a_part_reads_has_changed(constant, monkeypatch):
    """JAX knows the part as the same: it would run the old program, and the record would name the new constant."""
    gone = []
    monkeypatch.setattr(jax, "clear_caches", lambda: gone.append(constant))

    def traced(rate):
        jax.eval_shape(fjs.make_train(**RUN), Scaled(client_optimizer=fjs.optim.sgd(rate)), DATA, jax.random.key(0))
        return len(gone)

    first = traced(0.1)
    assert traced(0.2) == first
    monkeypatch.setattr(sys.modules[__name__], constant, 2.0)
    assert (traced(0.3), traced(0.4)) == (first + 1, first + 1)


@pytest.mark.parametrize("function", [fjs.evaluate, fjs.predict, lambda *given: fjs.diagnostics.gamma(given[0], DATA)])
def test_programs_go_where_a_task_is_used_outside_of_a_run(function, monkeypatch):
    task = fjs.functions(lambda key: jnp.ones(2), lambda params, examples: SCALE * examples["e"] @ params,
                         outputs_function=lambda params, examples: SCALE * examples["e"])  # fmt: skip
    gone = []
    monkeypatch.setattr(jax, "clear_caches", lambda: gone.append(task))
    for value, times in ((1.0, 0), (1.0, 0), (2.0, 2)):  # of both functions
        monkeypatch.setattr(sys.modules[__name__], "SCALE", value)
        jax.eval_shape(lambda: function(task, jnp.ones(2), DATA))
        assert len(gone) == times


@pytest.mark.slow
def test_a_constant_that_has_changed_is_computed_with(monkeypatch):
    for value in (3.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], "MEASURED", value)
        history = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), DATA, **RUN)
        assert history["measured"].tolist() == [[value, value]]
