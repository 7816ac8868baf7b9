"""``fedjax-sim run`` and ``init``: what they write and print, how they end, alone and in several processes."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import launch as processes
from fedjax_sim.cli import main as cli
from fedjax_sim.cli import output
from fedjax_sim.cli import run as command
from fedjax_sim.core.files import Lock
from fedjax_sim.run.configuration import read
from tests.killing import without_permission
from tests.processes import environment, printed
from tests.run.test_configuration import SMALL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small configuration."""
    monkeypatch.chdir(tmp_path)
    # One shape for all, so that one program is compiled
    (tmp_path / "small.toml").write_text(SMALL.replace("rounds = 2", "rounds = 3\nseeds = [1, 2]"))
    return tmp_path


def test_init_writes_an_example_once(folder, capsys):
    assert cli.main(["init", "new/run.toml"]) == 0
    text = (folder / "new/run.toml").read_text()
    assert text.startswith("# A run of fedjax_sim")
    assert "fedjax-sim run new/run.toml" in capsys.readouterr().out
    (folder / "new/run.toml").write_text("mine")
    assert cli.main(["init", "new/run.toml"]) == 1
    assert (folder / "new/run.toml").read_text() == "mine"
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_writes_and_prints(folder, capsys):
    assert cli.main(["run", "small.toml"]) == 0
    said = capsys.readouterr()
    out = folder / "results" / "small"
    assert said.err == ""
    for words in ("small.toml: fedavg on quadratics, 3 rounds, 2 seeds", "on 1 x cpu", "training loss", str(out.name)):
        assert words in said.out
    history = fjs.History.load(out / "history.npz")
    assert history.seeds == [1, 2]
    assert history.evaluated.tolist() == [0, 1, 2, 3]
    again = read(out / "configuration.toml")
    assert (again["rounds"], again["seeds"], again["layout"]) == (3, (1, 2), fjs.layout.turns())
    assert fjs.build(history.description["algorithm"]) == again["algorithm"]
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []

    # As JSON, as a run that cannot be finite, and not at all
    exploding = "algorithm.client_optimizer.learning_rate=1e30"
    assert cli.main(["run", "small.toml", "--json", "--out", "j", "--set", exploding]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert said.err == ""
    assert answer["final"]["loss"] == [None, None]
    assert answer["divergences"]
    assert answer["layout"] == {"name": "layout.turns", "arguments": {}}
    assert pathlib.Path(answer["files"]["history"]) == pathlib.Path("j/history.npz")
    assert all(pathlib.Path(path).exists() for path in answer["files"].values())
    assert cli.main(["run", "small.toml", "--quiet", "--out", "q"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert cli.main(["run", "q/configuration.toml", "--quiet", "--out", "q2"]) == 0
    first, second = (fjs.History.load(folder / name / "history.npz") for name in ("q", "q2"))
    np.testing.assert_array_equal(first["loss"], second["loss"])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["small.toml", "--set", "work.num_stps=1"], 2, "did you mean 'num_steps'"),
        (["small.toml", "--set", "run.rounds=0"], 2, "small.toml, [run] (--set run.rounds=0): rounds is 0"),
        (["small.toml", "--set", "rounds=3"], 2, "it belongs into [run]: did you mean run.rounds?"),
        (["small.toml", "--set", "learning_rate=3"], 2, "did you mean algorithm.client_optimizer.learning_rate?"),
        (["small.toml", "--set", "run.seeds='0, 1'"], 2, "seeds is '0, 1': give an integer or several"),
        (["small.toml", "--set", "run.seeds=-1"], 2, "seeds has -1"),
        (["small.toml", "--set", "cohort.num_sampled=4"], 2, "small.toml, [cohort]: "),
        (["small.toml", "--set", "work.num_stps=1", "--processes", "2"], 2, "did you mean"),
        (["small.toml", "--set", "dataset={name='mushrooms'}"], 1, "mushroom"),
        (["none.toml"], 1, "none.toml"),
        (["small.toml", "--out", "small.toml/inside"], 1, "small.toml"),
        (["small.toml", "--set", "run.on_divergence=raise", "--set",
          "algorithm.client_optimizer.learning_rate=1e30"], 1, "FedAvg, seed 1"),
    ],
)  # fmt: skip
def test_how_it_fails(folder, capsys, monkeypatch, arguments, status, said):
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(folder / "nothing"))
    # Configurations are read before processes are started, and understood by each of them.
    monkeypatch.setattr(processes, "start", lambda given, count: cli.main(given))
    assert cli.main(["run", *arguments]) == status
    out, err = capsys.readouterr()
    assert err.startswith("fedjax-sim run: ")
    assert said in err
    assert err.count("\n") == 1
    assert "wrote" not in out
    assert not (folder / "results").exists()


HUGE = "1" * 5001


@pytest.mark.parametrize(
    ("arguments", "said", "wrong"),
    [
        (["small.toml", "--set", f"run.rounds={HUGE}"], "--set run.rounds=1111", "4300 digits"),
        (["small.toml", "--set", f"run.seeds=[1, 0x{HUGE}]"], "--set run.seeds=[1, 0x1111", "more than 300 digits"),
        (["huge.toml"], "huge.toml is not TOML", "4300 digits"),
        (["hex.toml"], "hex.toml, [a.b]: it has an integer", "more than 300 digits: write a smaller one"),
    ],
)
def test_integers_of_thousands_of_digits(folder, capsys, arguments, said, wrong):
    (folder / "huge.toml").write_text(f"# a comment\na = {{ c = 1, b = [1, {HUGE}] }}\nd = 2")
    (folder / "hex.toml").write_text(f"a = {{ b = 0x{HUGE} }}")
    assert cli.main(["run", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedjax-sim run: {said}")
    assert wrong in err
    assert len(err) < 900


def test_the_folder_is_for_one_run_and_is_tried_before_it(folder, capsys, monkeypatch):
    monkeypatch.setattr("fedjax_sim.run.simulation.simulate", lambda **_: pytest.fail("something was run"))
    with Lock(folder / "out", "results", ".results.lock"):
        for more in ([], ["--processes", "2"]):
            assert cli.main(["run", "small.toml", "--out", "out", *more]) == 1
            assert "another run writes results to this directory (process" in capsys.readouterr().err
    (folder / "full" / "history.npz").mkdir(parents=True)
    assert cli.main(["run", "small.toml", "--out", "full"]) == 1
    assert "this is a directory, and no file is written over it" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        without_permission(patch, pathlib.Path("out"))
        assert cli.main(["run", "small.toml", "--out", "out"]) == 1
    assert "results cannot be written here (Permission denied)" in capsys.readouterr().err


def test_what_fails_after_the_run_is_no_refusal(folder, capsys, monkeypatch):
    def fails(*_):
        raise ValueError("no such colour")

    def simulated(**_):
        assert pathlib.Path("out/.results.lock").exists()

    monkeypatch.setattr("fedjax_sim.run.simulation.simulate", simulated)
    monkeypatch.setattr(command, "_write", fails)
    (folder / "out").mkdir()
    (folder / "out" / ".results.lock").write_bytes(b"process 1 on a host\n")  # of one that was killed
    assert cli.main(["run", "small.toml", "--quiet", "--out", "out"]) == 1
    assert capsys.readouterr().err == "fedjax-sim run: no such colour\n"
    assert list((folder / "out").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [[], ["small.toml", "--devices", "0"], ["small.toml", "--quiet", "--json"], ["small.toml", "--processes", "x"],
     ["small.toml", "--processes", "2", "--distributed"], ["small.toml", "--out", ""], [""]],
)  # fmt: skip
def test_bad_usage(folder, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *arguments])
    assert ended.value.code == 2
    assert "usage: fedjax-sim run" in capsys.readouterr().err


def test_the_traceback_is_shown_where_it_is_asked_for(folder):
    with pytest.raises(ValueError, match="num_steps"):
        cli.main(["run", "small.toml", "--traceback", "--set", "work.num_steps=0"])


# Several processes, without JAX in them


def scripted(monkeypatch, *programs):
    """Lets ``processes.start`` start these programs."""

    def process(arguments, number, said):
        assert arguments[-1].startswith(f"{number}/{len(programs)}@127.0.0.1:")
        return subprocess.Popen([sys.executable, "-c", programs[number]], stdin=subprocess.PIPE, stderr=said,
                                start_new_session=True)  # fmt: skip

    monkeypatch.setattr(processes, "_process", process)
    monkeypatch.setattr(processes, "_ENDING", 1.0)
    begun = time.monotonic()
    status = processes.start(["run"], len(programs))
    assert time.monotonic() - begun < 30
    return status


WAIT = "import time; time.sleep(60)"


def test_all_processes_end_well(monkeypatch):
    assert scripted(monkeypatch, "", "import time; time.sleep(0.2)", "") == 0


def test_one_that_fails_ends_all(monkeypatch, capsys):
    assert scripted(monkeypatch, WAIT, "import sys; sys.exit('no such thing')") == 1
    assert "process 1 of 2 ended with status 1\nno such thing" in capsys.readouterr().err
    assert scripted(monkeypatch, "import sys; sys.exit(2)", WAIT) == 2
    assert capsys.readouterr().err == ""  # the first speaks for itself
    assert scripted(monkeypatch, WAIT, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == 128 + 9
    assert "process 1 of 2 was ended by SIGKILL" in capsys.readouterr().err


@pytest.mark.slow
def test_one_that_does_not_listen_is_killed(monkeypatch, capsys):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert scripted(monkeypatch, "import sys, time; time.sleep(0.5); sys.exit(3)", deaf) == 3


@pytest.mark.slow
def test_signals_are_passed_on(monkeypatch):
    ends = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); time.sleep(60)"
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    before = signal.getsignal(signal.SIGTERM)
    assert scripted(monkeypatch, ends, ends) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_ends_with_its_parent():
    program = "import time; from fedjax_sim.cli.launch import end_with_parent; end_with_parent(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment())
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGTERM


def test_a_seat_is_read_as_it_is_written():
    seat = processes.Seat(1, 3, "[::1]:80")
    assert processes.Seat.read(str(seat)) == seat


def test_the_command_line_is_passed_on():
    given = ["run", "a.toml", "--set=b.c=-1", "--set=d='x'", "--out=-o", "--devices=2", "--quiet", "--no-cache"]
    options = cli.parser().parse_args([*given, "--processes", "2"])
    passed = cli.parser().parse_args([*command._arguments(options), "--seat", "0/2@here:1"])
    for name in ("configuration", "changes", "out", "devices", "threads", "quiet", "json", "no_cache", "traceback"):
        assert getattr(passed, name) == getattr(options, name), name
    assert passed.processes is None


# Compiled programs


@pytest.mark.parametrize(
    ("reason", "said"), [("", ""), ("a reason", "fedjax-sim: compiled programs are not kept: a reason\n")]
)
def test_the_command_says_why_programs_are_not_kept(monkeypatch, capsys, reason, said):
    monkeypatch.setattr("fedjax_sim.core.programs.keep_programs", lambda: reason)
    monkeypatch.setattr("fedjax_sim.core.devices.use_cpu_devices", lambda *_: "devices")
    assert output.settle(argparse.Namespace(own_process=True)) == "devices"
    assert capsys.readouterr().err == said


def test_without_a_cache_none_is_used(monkeypatch):
    settings = {}
    monkeypatch.setattr("jax.config", SimpleNamespace(update=settings.__setitem__))
    monkeypatch.setattr("fedjax_sim.core.devices.use_cpu_devices", lambda *_: "devices")
    output.settle(argparse.Namespace(own_process=True), cache=False)
    assert settings == {"jax_enable_compilation_cache": False}


# Processes of their own


COUNTING = """
import sys
import jax
counted = {"hits": 0, "misses": 0}
def count(event, **kwargs):
    for name in counted:
        counted[name] += event == f"/jax/compilation_cache/cache_{name}"
jax.monitoring.register_event_listener(count)
from fedjax_sim.cli.main import main
status = main()
print(status, counted["hits"], counted["misses"], len(jax.devices()))
"""


@pytest.mark.slow
def test_the_second_run_compiles_nothing(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)

    def call(*more):
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, "run", "small.toml", "--quiet", "--devices", "2", *more], cwd=tmp_path,
            capture_output=True, text=True, check=False, env=environment(FEDJAX_SIM_CACHE=str(tmp_path / "cache")),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [*map(int, done.stdout.split())], done.stderr

    (status, hits, misses, devices), _ = call()
    assert (status, hits, devices) == (0, 0, 2)
    assert misses > 0
    programs = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert programs
    assert all(path.parent.stat().st_mode & 0o077 == 0 for path in programs)
    (status, hits, again, _), _ = call()
    assert (status, again) == (0, 0)
    assert hits == misses
    (status, hits, misses, _), _ = call("--no-cache")
    assert (status, hits, misses) == (0, 0, 0)
    for path in programs:
        path.write_bytes(path.read_bytes()[:100])
    (status, hits, _, _), said = call()
    assert (status, hits, said) == (0, 0, "")
    assert all(path.stat().st_size > 100 for path in programs)


@pytest.mark.slow
def test_a_result_is_verified_in_its_own_precision(folder):
    fjs.simulate(**read("small.toml")).save("single.npz")
    said = printed("-m", "fedjax_sim.cli", "verify", "single.npz", JAX_ENABLE_X64="1", FEDJAX_SIM_CACHE="off")
    assert "verified (to the last bit)" in said


def several(folder, name, *more):
    begun = [sys.executable, "-m", "fedjax_sim.cli", "run", "small.toml", "--json", "--out", name]
    done = subprocess.run(
        [*begun, *more], cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        env=environment(FEDJAX_SIM_CACHE=str(folder / "cache")),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"]["history"] == f"{name}/history.npz"
    return fjs.History.load(folder / name / "history.npz")


def as_slurm_does(folder, name, *more):
    """Two tasks of one job on this machine, with the variables that SLURM sets."""
    begun = [sys.executable, "-m", "fedjax_sim.cli", "run", "small.toml", "--json", "--out", name]
    tasks = []
    for rank in range(2):
        variables = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": processes.LOOPBACK, "SLURM_NTASKS": "2",
                     "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}  # fmt: skip
        tasks.append(subprocess.Popen(
            [*begun, *more], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(FEDJAX_SIM_CACHE=str(folder / "cache"), **variables),
        ))  # fmt: skip
    said = [task.communicate(timeout=120) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert json.loads(said[0][0])["rounds"] == 2
    assert said[1][0] == ""
    return fjs.History.load(folder / name / "history.npz")


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL.replace("num_clients = 3", "num_clients = 6"))
    scaffold = ["--set", "algorithm.name=scaffold", "--set", "layout.name=mesh", "--set", "cohort.num_sampled=4"]
    two = several(tmp_path, "two", *scaffold, "--processes", "2", "--devices", "1")
    programs = sorted((tmp_path / "cache").rglob("*"))
    again = as_slurm_does(tmp_path, "again", *scaffold, "--distributed", "--devices", "1", "--no-cache")
    assert sorted((tmp_path / "cache").rglob("*")) == programs
    alone = fjs.simulate(**read(tmp_path / "small.toml", [*scaffold[1::2], "layout.name=turns"]))
    assert two.description["environment"]["device"] == "2 x cpu of 2 processes"
    for name in two.metrics:
        np.testing.assert_array_equal(two[name], again[name])  # to the last bit
        np.testing.assert_allclose(two[name], alone[name], rtol=1e-5)
    np.testing.assert_allclose(two.params, alone.params, rtol=1e-5)


def test_of_several_processes_the_first_one_writes(folder, monkeypatch):
    written = []
    monkeypatch.setattr("fedjax_sim.run.simulation.simulate", lambda **_: None)
    monkeypatch.setattr(command, "_write", lambda *_: written.append(True))
    for process in (0, 1):
        monkeypatch.setattr("jax.process_index", lambda process=process: process)
        assert cli.main(["run", "small.toml"]) == 0
    assert written == [True]
