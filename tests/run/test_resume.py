"""A run that was stopped, in whatever way, and called again ends as if nothing had happened: to the last bit."""

import contextlib
import errno
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import devices
from fedjax_sim.run.checkpoints import Checkpoint, Interrupted, Store, read
from fedjax_sim.run.resident import ResidentDriver
from tests import killing

pytestmark = pytest.mark.xdist_group("resume")  # one worker compiles what they share

ROOT = pathlib.Path(__file__).parents[2]
KINDS = killing.kinds()
RUN = KINDS["fedadam"]
ROUNDS = 8


def assert_same(one: fjs.History, other: fjs.History) -> None:
    """Every bit of the results, and whatever says how they came about but the time."""

    def bits(array: np.ndarray) -> tuple[Any, ...]:
        return array.dtype, array.shape, array.tobytes()

    assert one.seeds == other.seeds
    assert bits(one.evaluated) == bits(other.evaluated)
    for part in ("metrics", "rounds"):
        left, right = getattr(one, part), getattr(other, part)
        assert list(left) == list(right)
        assert [name for name in left if bits(left[name]) != bits(right[name])] == []
    left, right = (jax.tree_util.tree_leaves_with_path(history.params) for history in (one, other))
    assert [(jax.tree_util.keystr(path), bits(leaf)) for path, leaf in left] == [
        (jax.tree_util.keystr(path), bits(leaf)) for path, leaf in right
    ]
    assert one.description == other.description
    assert (one.divergences, one.stops) == (other.divergences, other.stops)


class Died(BaseException):
    """What a test ends a run with."""


def _locked(lock: Any) -> optax.GradientTransformation:
    """An optimiser that closes over what is no value."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        assert not lock.locked()
        return jax.tree.map(lambda leaf: -0.05 * leaf, gradients), state

    return optax.GradientTransformation(lambda params: (), update)


def dies(monkeypatch: pytest.MonkeyPatch, run: dict[str, Any], save: int, *, before: bool = True) -> None:
    """Starts a run that ends at its ``save``-th checkpoint, before or after it is written."""
    saves, write = iter(range(1, 1000)), Store.save

    def fatal(self: Store, *args: Any) -> pathlib.Path:
        last = next(saves) == save
        if last and before:
            raise Died
        path = write(self, *args)
        if last:
            raise Died
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", fatal)
        with pytest.raises(Died):
            fjs.simulate(**run)


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rounds that are computed inside."""
    computed, advance = [], ResidentDriver.advance

    def counts(self: ResidentDriver, start: int, count: int, *args: Any) -> Any:
        computed.extend(range(start, start + count))
        return advance(self, start, count, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ResidentDriver, "advance", counts)
        yield computed


@pytest.fixture(scope="module")
def whole() -> fjs.History:
    return fjs.simulate(**RUN, rounds=ROUNDS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The directory of a complete run; nobody writes to it."""
    path = tmp_path_factory.mktemp("finished")
    fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=path, every=2)
    return path


@pytest.fixture
def copied(tmp_path: pathlib.Path, finished: pathlib.Path) -> pathlib.Path:
    for path in finished.glob("*.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


class TestResuming:
    @pytest.mark.parametrize(
        "kind", ["scaffold", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fedadam", "host"))]
    )
    def test_a_run_that_died_ends_as_one_that_did_not(self, tmp_path, monkeypatch, kind):
        run = KINDS[kind] | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 2}
        dies(monkeypatch, run, 2)
        dies(monkeypatch, run, 1, before=False)
        assert [path.name for path in tmp_path.glob("*.safetensors")] != []
        assert_same(fjs.simulate(**run), fjs.simulate(**KINDS[kind], rounds=ROUNDS))

    @pytest.mark.slow
    def test_what_was_computed_is_not_computed_again(self, tmp_path, monkeypatch):
        run = RUN | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 2}
        dies(monkeypatch, run, 3)
        with counted(monkeypatch) as computed:
            fjs.simulate(**run)
        assert computed == [4, 5, 6, 7]

    def test_a_finished_run_is_read_and_no_round_computed(self, copied, monkeypatch, whole):
        names = {path.name: path.stat().st_mtime_ns for path in copied.glob("*.safetensors")}
        with counted(monkeypatch) as computed:
            history = fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied, every=2)
        assert computed == []
        assert_same(history, whole)
        assert {path.name: path.stat().st_mtime_ns for path in copied.glob("*.safetensors")} == names

    def test_more_rounds_continue_a_finished_run(self, copied, monkeypatch):
        with counted(monkeypatch) as computed:
            longer = fjs.simulate(**RUN, rounds=ROUNDS + 3, checkpoint=copied)
        assert computed == [8, 9, 10]
        assert_same(longer, fjs.simulate(**RUN, rounds=ROUNDS + 3))

    def test_fewer_rounds_and_rounds_between_evaluations_are_refused(self, copied, tmp_path):
        with pytest.raises(ValueError, match=r"has finished 8 rounds, and rounds=6 asks for fewer"):
            fjs.simulate(**RUN, rounds=6, checkpoint=copied)
        with pytest.raises(ValueError, match=r"is of another run \(run.eval_every: 2 in the checkpoint, 4 now\)"):
            fjs.simulate(**RUN | {"eval_every": 4}, rounds=12, checkpoint=copied)
        fjs.simulate(**RUN, rounds=3, checkpoint=tmp_path / "odd")
        with pytest.raises(ValueError, match=r"ends after 3 rounds, no multiple of eval_every=2"):
            fjs.simulate(**RUN, rounds=8, checkpoint=tmp_path / "odd")

    @pytest.mark.slow
    def test_seeds_that_have_stopped_stay_so(self, tmp_path, monkeypatch):
        losses = fjs.simulate(**RUN, rounds=ROUNDS)["loss"]
        between = float(losses[:, 1].mean())  # one seed is there after two rounds, the other is not
        rule = fjs.stopping.any_of([fjs.stopping.reached("loss", between), fjs.stopping.reached("loss", -1e3)])
        run = RUN | {"rounds": ROUNDS, "stop": rule}
        saved = run | {"checkpoint": tmp_path, "every": 2}
        dies(monkeypatch, saved, 1, before=False)
        history = fjs.simulate(**saved)
        assert sorted(stop.round for stop in history.stops.values()) == [2, 4]
        assert_same(history, fjs.simulate(**run))

    def test_seconds_are_those_of_all_parts(self, tmp_path, monkeypatch):
        run = RUN | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 2}
        dies(monkeypatch, run, 3)
        assert read(max(tmp_path.glob("*.safetensors"))).about["seconds"] > 0
        newest, begun = Store.newest, time.perf_counter()

        def long_ago(self: Store) -> Any:
            found = newest(self)
            assert found is not None
            found.about["seconds"] = 1000.0
            return found

        monkeypatch.setattr(Store, "newest", long_ago)
        seconds = fjs.simulate(**run).seconds
        assert 1000 < seconds < 1000 + time.perf_counter() - begun
        assert 1000 < read(max(tmp_path.glob("*.safetensors"))).about["seconds"] <= seconds


class TestCadence:
    @pytest.mark.parametrize(
        ("every", "keep", "rounds"),
        [(2, 10, [2, 4, 6, 8]), (4, 10, [4, 8]), (3, 10, [4, 6, 8]), (100, 1, [8]), (2, 1, [8])],
    )
    def test_every_and_keep(self, tmp_path, every, keep, rounds):
        fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=tmp_path, every=every, keep=keep)
        assert sorted(read(path).round for path in tmp_path.glob("*.safetensors")) == rounds

    def test_by_itself_a_run_spends_a_small_part_of_its_time_on_saving(self, tmp_path, monkeypatch):
        saves, save = [], Store.save

        def slow(self: Store, *args: Any) -> pathlib.Path:
            saves.append(args[0])
            time.sleep(0.2)  # a round takes a few milliseconds
            return save(self, *args)

        monkeypatch.setattr(Store, "save", slow)
        fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=tmp_path)
        assert saves[-1] == ROUNDS
        assert len(saves) <= 2


NEW = RUN["algorithm"].replace(beta1=0.5)
OTHERS = [
    ({"seeds": [3, 6]}, r"seeds: \[3, 5\] in the checkpoint, \[3, 6\] now"),
    ({"cohort": fjs.cohort.uniform(4)}, r"run.cohort.num_sampled: 3 in the checkpoint, 4 now"),
    ({"cohort": fjs.cohort.full()}, r"run.cohort: cohort.uniform\(.*\) in the checkpoint, cohort.full\(.*\) now"),
    ({"batch_size": 6}, r"run.batches.batch_size: 5 in the checkpoint, 6 now"),
    ({"diagnostics": ["e_lud"]}, r"run.diagnostics: \[\] in the checkpoint, \[.*\] now"),
    ({"skip_nonfinite": True}, r"run.skip_nonfinite: false in the checkpoint, true now"),
    ({"on_divergence": "stop"}, r"run.on_divergence: record in the checkpoint, stop now"),
    ({"dataset": KINDS["host"]["dataset"]}, r"dataset.*"),
    ({"algorithm": KINDS["scaffold"]["algorithm"]}, r"algorithm: algorithm.fedadam\(.* now"),
    (
        {"algorithm": NEW, "work": fjs.local.steps(2)},
        r"algorithm.beta1: 0.9 in the checkpoint, 0.5 now; run.work: work.random_epochs\(.* now",
    ),
]


@contextlib.contextmanager
def seeds_offset(by: int) -> Iterator[None]:
    """What ``JAX_RANDOM_SEED_OFFSET`` does, inside."""
    jax.config.update("jax_random_seed_offset", by)
    try:
        yield
    finally:
        jax.config.update("jax_random_seed_offset", 0)


class TestOtherRuns:
    @pytest.mark.parametrize(
        ("changes", "line"), OTHERS, ids=lambda value: "-" if isinstance(value, str) else "-".join(value)
    )
    def test_they_are_refused_with_what_differs(self, copied, changes, line):
        told = rf"round-00000008.safetensors is of another run \({line}\): .*another directory"
        with pytest.raises(ValueError, match=told):
            fjs.simulate(**RUN | changes, rounds=ROUNDS, checkpoint=copied)

    def test_a_model_to_start_from_is_part_of_the_run(self, copied):
        zeros = jax.tree.map(jnp.zeros_like, RUN["task"].init(jax.random.key(0), RUN["dataset"]))
        with pytest.raises(ValueError, match=r"initial_params: null in the checkpoint, [0-9a-f]{16} now"):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied, initial_params=zeros)

    def test_so_is_every_example(self, copied):
        data = RUN["dataset"]
        other = data.replace(examples=jax.tree.map(lambda leaf: leaf.at[-1].add(leaf.dtype.type(1)), data.examples))
        object.__setattr__(other, "_recipe", data._recipe)  # told apart by its values, whatever it says of itself
        with pytest.raises(ValueError, match=r"dataset.checksum: [0-9a-f]{16} in the checkpoint, [0-9a-f]{16} now"):
            fjs.simulate(**RUN | {"dataset": other}, rounds=ROUNDS, checkpoint=copied)

    @pytest.mark.parametrize("allow", [False, True])
    def test_data_that_no_recipe_made_are_known_by_their_checksum(self, tmp_path, allow):
        bare = RUN["dataset"].replace()
        run = RUN | {"rounds": 2, "eval_every": 2, "checkpoint": tmp_path, "allow_opaque": allow}
        fjs.simulate(**run | {"dataset": bare})
        other = bare.replace(examples=jax.tree.map(lambda leaf: leaf + leaf, bare.examples))
        with pytest.raises(ValueError, match=r"run \(dataset.checksum: \w{16} in the .*, \w{16} now\): .* directory$"):
            fjs.simulate(**run | {"dataset": other, "rounds": 4})

    def test_the_precision_is_part_of_the_run(self, copied, x64):
        with pytest.raises(ValueError, match="float: float32 in the checkpoint, float64 now"):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)

    @pytest.mark.parametrize(
        ("generator", "line"),
        [
            (
                lambda: jax.default_prng_impl("rbg"),
                r"jax_default_prng_impl: threefry2x32 in the checkpoint, rbg now; .*",
            ),
            (lambda: jax.threefry_partitionable(False), r"jax_threefry_partitionable: true in .*, false now"),
            (lambda: seeds_offset(1), r"jax_random_seed_offset: 0 in the checkpoint, 1 now"),
        ],
        ids=["implementation", "partitionable", "offset"],
    )
    def test_so_is_the_random_generator(self, copied, generator, line):
        said = rf"is of another run \(generator\.{line}\)"
        with generator(), pytest.raises(ValueError, match=said):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)

    @pytest.mark.parametrize(
        ("elsewhere", "line"),
        [
            (lambda patch: patch.setattr(np, "__version__", "9.0"), r"numpy: \S+ in the checkpoint, 9\.0 now"),
            (
                lambda patch: patch.setenv("XLA_FLAGS", "--xla_dump_to=x --xla_cpu_enable_fast_math=true"),
                r'flags: \[.* in the checkpoint, \["--xla_cpu_enable_fast_math=true"\] now',
            ),
            (
                lambda patch: patch.setattr(devices, "processor", lambda: ["abacus"]),
                r'processor: \[".* in the checkpoint, \["abacus"\] now',
            ),
            (  # of jax 0.12, whose normal numbers are others with it
                lambda patch: patch.setattr(type(jax.config), "jax_accurate_erf_inv", True, raising=False),
                r"settings\.jax_accurate_erf_inv: .* in the checkpoint, [Tt]rue now",
            ),
        ],
        ids=["numpy", "flags", "processor", "setting"],
    )
    def test_what_rounds_otherwise_is_warned_of(self, copied, monkeypatch, whole, elsewhere, line):
        elsewhere(monkeypatch)
        with pytest.warns(UserWarning, match=rf"was written elsewhere \({line}\)"):
            history = fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)
        assert history["loss"].tobytes() == whole["loss"].tobytes()

    def test_state_that_the_run_has_not_is_not_dropped(self, copied):
        written_again(copied, lambda found: (found.arrays | {"state.server.more": np.zeros(2)}, found.about))
        with pytest.raises(ValueError, match=r"has state\.server\.more, which this run has not: it was written by"):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)

    def test_a_run_says_that_a_part_of_it_was_elsewhere(self, copied, monkeypatch):
        with jax.default_matmul_precision("highest"), pytest.warns(UserWarning, match="was written elsewhere"):
            fjs.simulate(**RUN, rounds=ROUNDS + 2, checkpoint=copied)
        with pytest.warns(UserWarning, match="was written elsewhere"):
            history = fjs.simulate(**RUN, rounds=ROUNDS + 2, checkpoint=copied)
        name = "settings.jax_default_matmul_precision"
        assert history.description["environment"]["earlier"] == [
            f"{name}: nothing before, highest from round {ROUNDS} on",
            f"{name}: highest before, nothing from round {ROUNDS + 2} on",
        ]
        found = fjs.verify(history)
        assert found.passed
        assert found.tolerance == 1e-3
        assert f"computed elsewhere: resumed elsewhere, ['{name}: nothing before" in str(found)

    def test_other_versions_are_warned_of(self, copied, monkeypatch, whole):
        monkeypatch.setattr(jax, "__version__", "99.0")
        with pytest.warns(UserWarning, match=r"was written elsewhere \(jax: \S+ in the checkpoint, 99.0 now\)"):
            history = fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)
        assert history["loss"].tobytes() == whole["loss"].tobytes()

    def test_parts_without_a_description_are_refused_by_name(self, tmp_path):
        run = RUN | {"algorithm": fjs.fedavg(client_optimizer=_locked(threading.Lock())), "rounds": 4}
        why = r"as lock of it is an object of _thread.lock, which is neither a value nor code"
        with pytest.raises(ValueError, match=rf"\(algorithm.client_optimizer: \S+, {why}\): .*allow_opaque=True"):
            fjs.simulate(**run, checkpoint=tmp_path / "new")
        assert not (tmp_path / "new").exists()

    @pytest.mark.slow
    def test_they_can_be_allowed(self, tmp_path, monkeypatch):
        run = RUN | {"algorithm": fjs.fedavg(client_optimizer=_locked(threading.Lock())), "rounds": 4}
        run |= {"checkpoint": tmp_path, "every": 2, "allow_opaque": True}
        dies(monkeypatch, run, 2)
        resumed = fjs.simulate(**run)
        assert_same(resumed, fjs.simulate(**RUN | {"algorithm": run["algorithm"]}, rounds=4))
        with pytest.raises(ValueError, match="opaque parts"):
            fjs.simulate(**run | {"allow_opaque": False})

    def test_a_function_that_evaluates_is_opaque_too(self, tmp_path):
        lock = threading.Lock()

        def norm(params: Any, dataset: Any) -> dict[str, Any]:
            return {"norm": optax.global_norm(params), "locked": jnp.float32(lock.locked())}

        with pytest.raises(ValueError, match=r"opaque parts \(run.evaluate: .*norm"):
            fjs.simulate(**RUN, rounds=2, evaluate=norm, checkpoint=tmp_path / "new")

    def test_two_runs_do_not_write_to_one_directory(self, copied):
        with Store(copied), pytest.raises(BlockingIOError, match=rf"another run writes .*{re.escape(str(copied))}"):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)
        fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)  # and it is free again, also after an error

    @pytest.mark.parametrize(
        ("arguments", "error", "told"),
        [
            ({"checkpoint": 3}, TypeError, r"checkpoint is 3: give a directory"),
            ({"checkpoint": ""}, ValueError, r"checkpoint is '': give a directory"),
            ({"every": 0}, ValueError, r"every is 0: it must be at least 1"),
            ({"keep": 0}, ValueError, r"keep is 0: it must be at least 1"),
            ({"allow_opaque": 1}, TypeError, r"allow_opaque is 1: it must be True or False"),
        ],
    )
    def test_bad_arguments(self, tmp_path, arguments, error, told):
        with pytest.raises(error, match=told):
            fjs.simulate(**RUN, rounds=2, **{"checkpoint": tmp_path} | arguments)


def written_again(path: pathlib.Path, changed: Callable[[Checkpoint], tuple[Any, Any]]) -> None:
    """Leaves the newest checkpoint of a directory alone there, with other arrays and another ``about``."""
    paths = sorted(path.glob("*.safetensors"))
    found = read(paths[-1])
    for one in paths:
        one.unlink()
    with Store(path) as store:
        store.save(found.round, *changed(found))


class TestDamage:
    @pytest.mark.parametrize("content", [b"", slice(100), slice(-1), "flip"], ids=["empty", "head", "tail", "flip"])
    def test_the_one_before_is_used_and_the_end_is_the_same(self, copied, whole, content):
        newest = max(copied.glob("*.safetensors"))
        old = newest.read_bytes()
        flipped = old[:-9] + bytes([old[-9] ^ 4]) + old[-8:]
        newest.write_bytes(content if isinstance(content, bytes) else flipped if content == "flip" else old[content])
        with pytest.warns(UserWarning, match=rf"{newest.name} is damaged .*: using round-00000006.safetensors"):
            history = fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied, every=2)
        assert_same(history, whole)
        assert newest.read_bytes() == old or read(newest).round == ROUNDS

    def test_where_none_is_whole_the_run_does_not_begin_again(self, copied):
        for path in copied.glob("*.safetensors"):
            path.write_bytes(b"")
        with pytest.raises(ValueError, match=r"no checkpoint in .* can be read"):
            fjs.simulate(**RUN, rounds=ROUNDS, checkpoint=copied)

    def test_a_full_disk_ends_the_run_and_the_last_one_is_good(self, tmp_path, monkeypatch, whole):
        calls, fsync = iter(range(1000)), os.fsync

        def full(descriptor: int) -> None:
            if next(calls) == 4:  # two a checkpoint: the file, its directory
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        run = RUN | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 2}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"round 6 could not be written \(No space left.*00000004.* still there"):
                fjs.simulate(**run)
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == [
            "round-00000002.safetensors", "round-00000004.safetensors",
        ]  # fmt: skip
        assert_same(fjs.simulate(**run), whole)


@pytest.mark.usefixtures("handlers")
class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_run_is_saved_and_goes_on(self, tmp_path, monkeypatch, whole, number):
        run = RUN | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 100}
        advance = ResidentDriver.advance

        def interrupted(self: ResidentDriver, start: int, *args: Any) -> Any:
            if start == 4:
                signal.raise_signal(number)
            return advance(self, start, *args)

        told = rf"stopped by {number.name} after round 6 of 8, .*round-00000006.safetensors: call simulate again"
        with monkeypatch.context() as patch:
            patch.setattr(ResidentDriver, "advance", interrupted)
            with pytest.raises(Interrupted, match=told) as raised:
                fjs.simulate(**run)
        assert (raised.value.signal, raised.value.round, raised.value.rounds) == (number, 6, ROUNDS)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with counted(monkeypatch) as computed:
            assert_same(fjs.simulate(**run), whole)
        assert computed == [6, 7]

    def test_in_the_last_rounds_the_run_is_complete_and_the_signal_is_not_lost(self, tmp_path, monkeypatch, whole):
        run = RUN | {"rounds": ROUNDS, "checkpoint": tmp_path, "every": 100}
        advance = ResidentDriver.advance

        def interrupted(self: ResidentDriver, start: int, *args: Any) -> Any:
            if start == 6:
                signal.raise_signal(signal.SIGINT)
            return advance(self, start, *args)

        with monkeypatch.context() as patch:
            patch.setattr(ResidentDriver, "advance", interrupted)
            with pytest.raises(KeyboardInterrupt) as kept:  # a notebook keeps the last traceback, too
                fjs.simulate(**run)
        assert type(kept.value) is KeyboardInterrupt
        with counted(monkeypatch) as computed:
            assert_same(fjs.simulate(**run), whole)
        assert computed == []

    def test_without_checkpoints_signals_are_what_they_were(self, monkeypatch):
        def interrupted(self: ResidentDriver, *_: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the signal was noted, and not answered")

        monkeypatch.setattr(ResidentDriver, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fjs.simulate(**RUN, rounds=ROUNDS)


class Killer:
    """Runs ``tests.killing`` again and again and ends each process at a random moment, until one gets to its end.

    Args:
      directory: for its files.
      kinds: of runs.
      rounds: of every run.
      seed: of the moments.
      most: the largest number of writes that a process begins before it is killed.
    """

    def __init__(self, directory: pathlib.Path, *kinds: str, rounds: int, seed: int = 0, most: int = 1) -> None:
        self._directory, self._kinds, self._rounds, self._most = directory, kinds, rounds, most
        self._rng = np.random.default_rng(seed)
        self.kills, self.in_a_write = 0, 0

    def run(self, kills: int) -> bool:
        """Kills at most so many processes; whether the last one got to its end."""
        for _ in range(kills):
            if not self._killed(signal.SIGKILL, int(self._rng.integers(1, self._most + 1))):
                return True
            self.kills += 1
            self.in_a_write += any(self._directory.glob("*/.*.tmp"))
        return False

    def finish(self) -> None:
        assert not self._killed(None, 10**6)

    def terminate(self, writes: int) -> tuple[int, str]:
        """Ends a process by SIGTERM after so many writes: how it exits, and what it says."""
        with self._started() as process:
            self._wait(process, writes)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        return process.returncode, said

    def _killed(self, number: signal.Signals | None, writes: int) -> bool:
        with self._started() as process:
            ended = self._wait(process, writes)
            if not ended and number is not None:
                # a write takes about 5 PAUSE, what is between two of them less
                time.sleep(float(self._rng.uniform(0, 8 * killing.PAUSE)))
                process.send_signal(number)
            _, said = process.communicate(timeout=120)
        assert process.returncode in (0, *([] if number is None else [-number])), said
        return process.returncode != 0

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.killing", str(self._directory), str(self._rounds), *self._kinds],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    @staticmethod
    def _wait(process: subprocess.Popen[str], writes: int) -> bool:
        """Reads until so many writes have begun; whether the process ended before."""
        return any(process.stdout.readline() == "" for _ in range(writes))

    def check(self) -> None:
        for kind in self._kinds:
            found = fjs.History.load(self._directory / f"{kind}.npz")
            fjs.simulate(**KINDS[kind], rounds=self._rounds).save(self._directory / "expected.npz")
            assert_same(found, fjs.History.load(self._directory / "expected.npz"))


@pytest.mark.slow
class TestKilled:
    def test_two_kills(self, tmp_path):
        killer = Killer(tmp_path, "scaffold", rounds=8, most=2)
        killer.run(2)
        assert killer.kills == 2
        killer.finish()
        killer.check()

    def test_sigterm(self, tmp_path):
        killer = Killer(tmp_path, "fedadam", rounds=40)
        code, said = killer.terminate(writes=2)
        assert code == 1
        assert re.search(r"stopped by SIGTERM after round \d+ of 40, .*: call simulate again", said.splitlines()[-1])


@pytest.mark.nightly
def test_thirty_kills(tmp_path):
    kills = in_a_write = trials = 0
    while kills < 30:
        killer = Killer(tmp_path / str(trials), *KINDS, rounds=24, seed=trials, most=3)
        if not killer.run(30 - kills):
            killer.finish()
        killer.check()
        kills, in_a_write, trials = kills + killer.kills, in_a_write + killer.in_a_write, trials + 1
    print(f"{kills} kills in {trials} trials, {in_a_write} of them in a write")
    assert in_a_write >= 3
