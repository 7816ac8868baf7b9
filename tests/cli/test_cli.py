"""The command line: what stops it, and what it does then; streams that cannot be written to; folders of results."""

import io
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from fedjax_sim.cli import list_names as names
from fedjax_sim.cli import main as cli
from fedjax_sim.core.files import Lock
from fedjax_sim.papers import demo
from fedjax_sim.run.checkpoints import Interrupted
from tests.fuzzing import samples

ROOT = pathlib.Path(__file__).parents[2]


def test_the_exit_status_says_which_signal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def stopped(*args, **kwargs):
        raise Interrupted(signal.SIGTERM, 20, 100, "runs/round-00000020.safetensors")

    monkeypatch.setattr(demo, "run_demo", stopped)
    assert cli.main(["demo"]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after round 20 of 100" in capsys.readouterr().err

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", interrupted)
    assert cli.main(["demo"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "fedjax-sim demo: stopped\n"


# What a command may be busy with: work that Python cannot interrupt (hashing lets other threads go on), what loses the
# exception, and what answers itself, as a run with checkpoints does.
BUSY = {
    "in a library": "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
    "lost": """
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass""",
    "answered": """
    signal.signal(signal.SIGINT, lambda *_: None)
    if not os.fork():
        signal.raise_signal(signal.SIGINT)  # a terminal tells children too, which is no second Ctrl-C
        os._exit(0)
    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)""",
}
WAITING = """
import hashlib, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from fedjax_sim.cli import list_names, main, process
process._ANSWER = 0.2
def run(options):
    print("before")
    threading.Timer(0.3, os.write, (1, b"ready\\n")).start()
    {busy}
list_names.run = run
sys.argv = ["fedjax-sim", "list"]
sys.exit(main.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", [*BUSY][:1] + [pytest.param(one, marks=pytest.mark.slow) for one in [*BUSY][1:]])
def test_ctrl_c_ends_what_does_not_listen(busy):
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with subprocess.Popen([sys.executable, "-c", WAITING.format(busy=BUSY[busy])], cwd=ROOT, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            if busy == "answered":
                process.send_signal(signal.SIGINT)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)  # longer than others are given
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert process.stdout.read() == "before\n"  # what was printed is not lost
        assert process.stderr.read().endswith("fedjax-sim: stopped\n")


SAID = "0.5 ± 0.1 – 2² → ü √ 你 \ud800"


def test_letters_that_cannot_be_encoded(monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(names, "run", lambda _: print(SAID) or print(SAID, file=sys.stderr) or 0)
    assert cli.main(["list"]) == 0
    for stream in streams.values():
        stream.flush()
        assert stream.buffer.getvalue() == b"0.5 +- 0.1 - 22 -> u sqrt ? ?\n"
        assert stream.errors == "strict"  # as it was


def test_letters_that_can_be_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(names, "run", lambda _: print(SAID[:-1]) or 0)
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == f"{SAID[:-1]}\n"


def test_a_table_in_ascii(monkeypatch, tmp_path):
    samples.history().save(tmp_path / "a.npz")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert cli.main(["show", str(tmp_path / "a.npz")]) == 0
    assert b" +- " in sys.stdout.buffer.getvalue()


@pytest.mark.slow
def test_closed_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["list"]) == 0
    assert cli.main(["show", "nothing.npz"]) == 1
    assert (sys.stdout, sys.stderr) == (None, None)


SHELL = """
exec 3>&1
fedjax() { "$PYTHON" -m fedjax_sim.cli "$@"; }
fedjax list >&-; echo closed $? >&3
fedjax list >/dev/full; echo full $? >&3
fedjax init new.toml <&- >&- 2>&-; echo all $? >&3
fedjax list >&4; echo unread $? >&3
"""


@pytest.mark.slow
def test_streams_of_a_shell(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    reading, writing = os.pipe()
    os.close(reading)
    script = f"exec 4>&{writing}\n{SHELL}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=120, check=True, pass_fds=[writing])  # fmt: skip
    os.close(writing)
    assert done.stdout.splitlines() == ["closed 0", "full 1", "all 0", "unread 141"]
    assert done.stderr == "fedjax-sim: standard output cannot be written (No space left on device)\n"
    assert (tmp_path / "new.toml").read_text().startswith("# A run of fedjax_sim")  # descriptor 1 was not its file's


@pytest.mark.parametrize("command", [["demo"], ["reproduce", "fednova-fig2"], ["reproduce", "--all", "--fresh"]])
def test_one_command_a_folder_of_results(tmp_path, monkeypatch, capsys, command):
    for name in ("fedjax_sim.papers.demo.run_demo", "fedjax_sim.cli.examples._performed"):
        monkeypatch.setattr(name, lambda *_, **__: 0)
    with Lock(tmp_path / "out", "results", ".results.lock"):
        assert cli.main([*command, "--out", str(tmp_path / "out")]) == 1
    assert "another run writes results to this directory (process" in capsys.readouterr().err
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out").exists()  # nothing was written


def test_where_a_report_goes_is_known_before_it_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedjax_sim.cli.results.read", lambda _: pytest.fail("it was read"))
    (tmp_path / "file").write_bytes(b"")
    for out, said in [
        ("", "this is a directory, and no file is written over it"),
        ("file/report.html", "this is a file"),
    ]:
        assert cli.main(["report", "a.npz", "--out", str(tmp_path / out)]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "near"), [(["comparee"], "compare"), (["data", "descripe", "x"], "describe")])
def test_a_command_that_is_none(arguments, near, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert f"did you mean {near!r}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "a.toml", "--set", "algorithm.mu", "0.2"], "write --set algorithm.mu=0.2, in one word"),
        (["run", "a.toml", "--rounds", "10"], "changed by --set run.rounds=10"),
        (["run", "--rounds", "10", "a.toml"], "changed by --set run.rounds=10\n"),
        (["run", "a.toml", "--round", "10"], "changed by --set run.rounds=10\n"),
        (["run", "a.toml", "--batch-size=5"], "changed by --set run.batch_size=5\n"),
        (["run", "a.toml", "--steps", "5"], "changed by --set TABLE.steps=5\n"),
        (["run", "a.toml", "--learning-rate", "1"], "changed by --set algorithm.client_optimizer.learning_rate=1\n"),
        (["run", "a.toml", "--algorithm.mu", "1"], "changed by --set algorithm.mu=1\n"),
        (["sweep", "a.toml", "--over", "a=1", "--mu", "3"], "changed by --set TABLE.mu=3"),
        (["show", "a.npz", "--quiet"], "unrecognized arguments: --quiet"),
    ],
)
def test_changes_that_are_options(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_what_comes_after_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: {})
    assert cli.main(["demo", "--out", "my results"]) == 0
    assert "fedjax-sim report 'my results'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_demo_with_checkpoints_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    name = "synthetic(1, 1)"
    data, methods, settings = demo.problems()[name]
    monkeypatch.setattr(demo, "problems", lambda: {name: (data, {"FedAvg": methods["FedAvg"]}, settings)})
    options = ["--seeds", "1", "--checkpoint", str(tmp_path / "runs")]
    assert cli.main(["demo", "--out", str(tmp_path / "short"), "--rounds", "2", *options]) == 0
    assert cli.main(["demo", "--out", str(tmp_path / "long"), "--rounds", "4", *options]) == 0
    assert cli.main(["demo", "--out", str(tmp_path / "whole"), "--rounds", "4", "--seeds", "1"]) == 0
    stem = "synthetic-fedavg"
    assert (tmp_path / "runs" / stem / "round-00000004.safetensors").exists()
    resumed, whole = (np.load(tmp_path / folder / f"{stem}.npz") for folder in ("long", "whole"))
    np.testing.assert_array_equal(resumed["metrics/loss"], whole["metrics/loss"])
    assert "FedAvg" in capsys.readouterr().out
