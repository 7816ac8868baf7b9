"""Client states off the device, and in fewer bits: the same run, wherever they are, and nothing of size N unasked."""

import errno
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import client_states
from fedjax_sim.engine import client_table, streaming
from fedjax_sim.engine.client_states import UNUSED, Rows, kept, moved, on_device, on_disk, on_host
from fedjax_sim.engine.client_table import Table
from fedjax_sim.engine.streaming import ClientWindows, cohorts
from fedjax_sim.run import simulation
from fedjax_sim.run.checkpoints import Store, files, read
from tests.run.test_resume import Killer, assert_same, dies

SGD = fjs.optim.sgd(0.05)
DATA = fjs.datasets.synthetic(1.0, 1.0, num_clients=9, max_size=30, seed=0)
RUN: dict[str, Any] = {
    "task": fjs.classification(fjs.models.LogisticRegression(10)),
    "rounds": 7,
    "eval_every": 3,
    "batch_size": 8,
    "cohort": fjs.cohort.uniform(4),  # of nine: most cohorts share clients with the next one
    "work": fjs.local.random_epochs(1, 2),
    "seeds": [0, 3],
}
SMALL = RUN | {"task": fjs.quadratic(), "batch_size": None, "batches": fjs.local.full_batch()}
QUADRATICS = fjs.datasets.quadratics(num_clients=9, dim=3, seed=0)
STATEFUL = {
    "scaffold": fjs.scaffold(client_optimizer=SGD),
    "scaffold-I": fjs.scaffold(client_optimizer=SGD, option="I"),
    "feddyn": fjs.feddyn(client_optimizer=SGD),
    "vrl_sgd": fjs.vrl_sgd(client_optimizer=SGD),
    "top_k-feddyn": fjs.top_k(fjs.feddyn(client_optimizer=SGD), 0.2),
    "top_k-fedadam": fjs.top_k(fjs.fedadam(client_optimizer=SGD, server_learning_rate=0.1), 0.2),
    "ema-clipped-scaffold": fjs.ema(fjs.clipped(fjs.scaffold(client_optimizer=SGD), norm=0.5), 0.9),
}


# Whether XLA fuses the programs of a run with client states on the device and off it alike: as users compile them.
FUSED_ALIKE = "--xla_cpu_use_fusion_emitters=false" not in os.environ["XLA_FLAGS"]

take, put = jax.jit(client_states.take), jax.jit(client_states.put)


def kept_in(where: str, directory: pathlib.Path, dtype: str | None = None) -> fjs.client_states.ClientStates:
    return on_disk(directory, dtype=dtype) if where == "disk" else on_host(dtype=dtype)


def assert_equal(one: fjs.History, other: fjs.History, *, metrics: bool = True) -> None:
    """Every bit but that of the description; metrics of data on the host are summed in another order."""
    for left, right in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(left, right, rtol=0 if FUSED_ALIKE else 1e-5, atol=0 if FUSED_ALIKE else 1e-7)
    for name in one.metrics:
        rtol = 0 if metrics and FUSED_ALIKE else 2e-6
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, err_msg=name)
    assert one.rounds.keys() == other.rounds.keys()
    for name, values in one.rounds.items():
        np.testing.assert_array_equal(values, other.rounds[name], err_msg=name)


@pytest.mark.slow
def test_runs_are_the_same_to_the_last_bit_as_users_compile_them():
    """Without the emitters, which the tests leave out to compile faster, XLA fuses the two programs differently."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", f"{__file__}::TestRuns"],
        cwd=pathlib.Path(__file__).parents[2], env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


class TestRuns:
    @pytest.mark.parametrize(
        ("name", "where", "dtype"),
        [
            pytest.param("scaffold", "disk", "bfloat16", marks=pytest.mark.slow),
            pytest.param("scaffold", "host", None, marks=pytest.mark.slow),
            pytest.param("scaffold-I", "disk", None, marks=pytest.mark.nightly),
            pytest.param("feddyn", "host", "bfloat16", marks=pytest.mark.nightly),
            pytest.param("vrl_sgd", "host", None, marks=pytest.mark.nightly),
            pytest.param("top_k-feddyn", "disk", "bfloat16", marks=pytest.mark.slow),
            pytest.param("top_k-fedadam", "host", None, marks=pytest.mark.nightly),
            pytest.param("ema-clipped-scaffold", "disk", None, marks=pytest.mark.nightly),
        ],
    )
    def test_a_run_is_the_same_wherever_client_states_are(self, tmp_path, name, where, dtype):
        run = RUN | {"cohort": fjs.cohort.full()} if name == "vrl_sgd" else RUN
        expected = fjs.simulate(STATEFUL[name], DATA, **run, client_states=on_device(dtype=dtype))
        place = kept_in(where, tmp_path, dtype)
        assert_equal(fjs.simulate(STATEFUL[name], DATA, **run, client_states=place), expected)
        if dtype is None and name != "scaffold-I":
            host = fjs.datasets.on_host(DATA)
            assert_equal(fjs.simulate(STATEFUL[name], host, **run, client_states=place), expected, metrics=False)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_a_small_run_is_the_same_on_disk(self, tmp_path):
        expected, found = (
            fjs.simulate(STATEFUL["scaffold"], QUADRATICS, **SMALL, client_states=place)
            for place in (on_device(), on_disk(tmp_path))
        )
        assert_equal(found, expected)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "cohort",
        [
            pytest.param(fjs.cohort.independent(0.3), id="empty"),
            pytest.param(fjs.cohort.shuffled(3), id="apart", marks=pytest.mark.nightly),
        ],
    )
    def test_cohorts_that_may_be_empty_or_share_nobody(self, cohort):
        algorithm = STATEFUL["scaffold"]
        expected = fjs.simulate(algorithm, DATA, **RUN | {"cohort": cohort, "rounds": 12})
        assert_equal(
            fjs.simulate(algorithm, DATA, **RUN | {"cohort": cohort, "rounds": 12}, client_states=on_host()), expected
        )

    @pytest.mark.slow
    def test_seeds_that_stop(self):
        stop = fjs.stopping.reached("loss", 0.9)
        run = RUN | {"rounds": 20, "eval_every": 2, "stop": stop}
        expected = fjs.simulate(STATEFUL["scaffold"], DATA, **run)
        assert len({stop.round for stop in expected.stops.values()}) == 2  # one goes on alone
        for data in (DATA, fjs.datasets.on_host(DATA)):
            found = fjs.simulate(STATEFUL["scaffold"], data, **run, client_states=on_host())
            assert_equal(found, expected, metrics=data is DATA)
            assert {seed: stop.round for seed, stop in found.stops.items()} == {
                seed: stop.round for seed, stop in expected.stops.items()
            }

    @pytest.mark.slow
    def test_bfloat16_is_scaffold_with_rounded_control_variates(self, x64):
        rng, n, d, eta, steps = np.random.default_rng(1), 6, 3, 0.1, 2
        factors = rng.normal(size=(n, d, d))
        hessians, linear = np.einsum("nij,nkj->nik", factors, factors) / d + np.eye(d), rng.normal(size=(n, d))
        data = fjs.datasets.quadratics_from(hessians, linear)
        scheme, key = fjs.cohort.uniform(3), jax.random.key(2)
        draw = jax.jit(lambda t: scheme.draw(data, key, t).ids)

        def scaffold(keep: Any) -> np.ndarray:
            x, c, rows = np.zeros(d), np.zeros(d), np.zeros((n, d))
            for t in range(8):
                deltas, changes = [], []
                for i in np.asarray(draw(jnp.int32(t))):
                    y = x.copy()
                    for _ in range(steps):
                        y -= eta * (hessians[i] @ y - linear[i] - rows[i] + c)
                    new = rows[i] - c + (x - y) / (steps * eta)
                    deltas.append(y - x)
                    changes.append(new - rows[i])
                    rows[i] = keep(new)
                x, c = x + np.mean(deltas, axis=0), c + np.sum(changes, axis=0) / n
            return x

        found = fjs.simulate(
            fjs.scaffold(client_optimizer=fjs.optim.sgd(eta)), data, task=fjs.quadratic(), rounds=8, eval_every=8,
            batches=fjs.local.full_batch(), cohort=scheme, work=fjs.local.steps(steps), seeds=2,
            initial_params=np.zeros(d), client_states=on_host(dtype="bfloat16"),
        )  # fmt: skip
        in_bfloat16 = scaffold(lambda new: new.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64))
        # Round-off could turn a single rounding over, which would be 1e-4 here.
        np.testing.assert_allclose(found.params[0], in_bfloat16, rtol=1e-12)
        assert np.abs(scaffold(lambda new: new) - in_bfloat16).max() > 1e-5

    @pytest.mark.slow
    def test_no_array_of_all_clients_is_on_the_device(self, monkeypatch):
        data = fjs.datasets.on_host(fjs.datasets.synthetic(1.0, 1.0, num_clients=300, sizes=[2] * 300, seed=0))
        largest, made = [], []

        def watch(params: Any, dataset: Any) -> dict[str, jax.Array]:
            largest.append(max(leaf.size for leaf in jax.live_arrays() if leaf.shape[:1] == (300,)))
            return {}

        def observed(*args: Any) -> Table:
            made.append(Table(*args))
            return made[-1]

        monkeypatch.setattr(streaming, "Table", observed)
        before = max([0, *(leaf.size for leaf in jax.live_arrays() if leaf.shape[:1] == (300,))])
        run = RUN | {"rounds": 3, "seeds": 0, "evaluate": watch, "eval_every": 1}
        fjs.simulate(STATEFUL["scaffold"], data, **run, client_states=on_host())
        assert max(largest) <= max(before, 300)  # sizes, ids, ...; client states are 300 x 10 and 300 x 60 x 10
        assert 4 <= made[0]._count <= 8  # the first two cohorts; the rows of the last one are on the device

    @pytest.mark.slow
    def test_methods_without_state_take_no_place(self, tmp_path, monkeypatch):
        def no_driver(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("no rows to keep")

        monkeypatch.setattr(simulation, "StreamedDriver", no_driver)
        algorithm = fjs.fedavg(client_optimizer=SGD)
        expected = fjs.simulate(algorithm, QUADRATICS, **SMALL)
        place = on_disk(tmp_path / "never made")
        found = fjs.simulate(algorithm, QUADRATICS, **SMALL, client_states=place)
        assert_equal(found, expected)
        assert list(tmp_path.iterdir()) == []
        assert found.description["run"]["client_states"] == json.loads(json.dumps(fjs.describe(place)))


class TestResuming:
    @pytest.mark.slow
    def test_a_run_that_died_ends_as_one_that_did_not(self, tmp_path, monkeypatch):
        run = SMALL | {
            "algorithm": STATEFUL["scaffold"],
            "dataset": QUADRATICS,
            "every": 3,
            "checkpoint": tmp_path / "run",
        }
        on_hosts, on_disks = ({"client_states": place} for place in (on_host(), on_disk(tmp_path)))
        dies(monkeypatch, run | on_hosts, 2)
        again = fjs.simulate(**run | on_disks)  # where the rows are kept is no matter
        whole = {name: value for name, value in run.items() if name not in ("every", "checkpoint")}
        assert_same(again, fjs.simulate(**whole | on_disks))
        with pytest.raises(ValueError, match=r"run.client_states: .*nothing now"):
            fjs.simulate(**run)
        with pytest.raises(ValueError, match=r"run.client_states.dtype: null in the checkpoint, bfloat16 now"):
            fjs.simulate(**run, client_states=on_host(dtype="bfloat16"))

    def test_large_arrays_stay_in_the_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "_LARGE", 100)
        arrays = {f"a{size}": np.arange(size, dtype=np.float32) for size in (0, 3, 25, 26, 49, 50, 51, 1000)}
        with Store(tmp_path, keep=1) as store:
            path = store.save(1, arrays, {})
        found = read(path)
        path.unlink()  # its space stays as long as the arrays
        assert found.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)
            assert found.arrays[name].flags.writeable == (array.nbytes <= 100)

    @pytest.mark.nightly
    def test_killed(self, tmp_path):
        killer = Killer(tmp_path, "disk", rounds=8, most=3)
        killer.run(3)
        assert killer.kills == 3
        killer.finish()
        killer.check()

    @pytest.mark.slow
    def test_verify(self):
        assert fjs.verify(fjs.simulate(STATEFUL["scaffold"], DATA, **RUN, client_states=on_host())).passed


class TestRefusals:
    def test_arguments(self, tmp_path):
        for make, name in ((on_device, "on_device"), (on_host, "on_host")):
            with pytest.raises(ValueError, match=rf"{name}\(dtype=...\) is 'float16': did you mean 'bfloat16'"):
                make(dtype="float16")
        with pytest.raises(ValueError, match="known: bfloat16, float32"):
            on_host(dtype="what")
        with pytest.raises(TypeError, match=r"on_disk\(directory=\.\.\.\) is 3: give a directory"):
            on_disk(3)
        assert on_disk(tmp_path) == on_disk(str(tmp_path))

    @pytest.mark.slow
    def test_runs(self, tmp_path):
        with pytest.raises(TypeError, match="client_states is 'disk': it must be a ClientStates"):
            fjs.simulate(STATEFUL["scaffold"], QUADRATICS, **SMALL, client_states="disk")
        for aware in (fjs.fedaware(client_optimizer=SGD), fjs.ema(fjs.aware(STATEFUL["scaffold"]), 0.5)):
            with pytest.raises(ValueError, match=r"keeps a vector of every client on the server.*leave client_states"):
                fjs.simulate(aware, QUADRATICS, **SMALL, client_states=on_host())
        system = fjs.systems.devices(seconds_per_step=0.1)
        with pytest.raises(ValueError, match="who reports in a round is known once its clock has run"):
            fjs.simulate(
                fjs.fedavg(client_optimizer=SGD), QUADRATICS, **SMALL, system=system, client_states=on_host(),
                asynchronous=fjs.asynchronous.fedbuff(2),
            )  # fmt: skip
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="client states cannot be kept here"):
            fjs.simulate(STATEFUL["scaffold"], QUADRATICS, **SMALL, client_states=on_disk(tmp_path / "file"))

    def test_a_full_disk(self, tmp_path, monkeypatch):
        def full(*_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"client states need 4,096 more bytes .* free .*on a larger disk") as error:
            client_table.in_file(str(tmp_path))(10, 16)
        assert error.value.errno == errno.ENOSPC


def tree(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """States of some clients: every kind of leaf."""
    return {
        "x": rng.normal(size=(rows, 2, 3)).astype(np.float32),
        "scalar": rng.normal(size=rows).astype(np.float32),
        "count": rng.integers(0, 9, (rows, 1)).astype(np.int32),
        "seen": rng.integers(0, 2, rows).astype(bool),
        "nothing": np.zeros((rows, 0), np.float32),
        "key": jax.random.split(jax.random.key(int(rng.integers(100))), rows),
    }


def plain(states: Any) -> list[np.ndarray]:
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(states)
    ]


def assert_rows(one: Any, other: Any) -> None:
    for left, right in zip(plain(one), plain(other), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def at(states: Any, clients: Any) -> list[np.ndarray]:
    return [leaf[clients] for leaf in plain(states)]


def rounded(states: dict[str, Any]) -> dict[str, Any]:
    """The states as bfloat16 keeps them."""
    reals = {name: np.asarray(states[name]).astype(ml_dtypes.bfloat16).astype(np.float32) for name in ("x", "scalar")}
    return states | reals


class TestRows:
    @pytest.mark.parametrize("dtype", [pytest.param(None, marks=pytest.mark.slow), "bfloat16"])
    def test_take_and_put(self, dtype):
        rng = np.random.default_rng(0)
        as_kept = rounded if dtype else (lambda states: states)
        every, new = (tree(rng, rows) for rows in (8, 4))
        rows, as_they_are = jax.jit(lambda every: (kept(every, dtype), kept(every, None)))(every)
        indices, everyone = np.array([6, 8, 1, 3], np.int32), np.arange(8, dtype=np.int32)  # the second slot is void
        present = [0, 2, 3]
        expected = at(as_kept(every), indices[present])
        assert_rows(at(take(rows, indices), present), expected)
        in_window = np.array([1, 3, 6, 0])
        leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[in_window], rows.leaves)
        window = Rows(leaves, np.array([1, 3, 6, UNUSED], np.int32), rows.used)
        assert_rows(at(take(window, indices), present), expected)
        after = put(rows, indices, new)
        for clients in (after, put(window, indices, new)):
            assert_rows(at(take(clients, indices), present), at(as_kept(new), present))
        untouched = [0, 2, 4, 5, 7]
        assert_rows(at(take(after, everyone), untouched), at(take(rows, everyone), untouched))
        assert_rows(put(every, indices, new), take(put(as_they_are, indices, new), everyone))

    def test_rounding_is_to_nearest_and_ties_to_even(self):
        values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1e-45, 3.4e38, np.inf, -0.0], np.float32)
        found = take(kept(values, "bfloat16"), jnp.arange(len(values)))
        np.testing.assert_array_equal(found, [1.0, 1 + 2**-6, 1 + 2**-7, -0.0, np.inf, np.inf, -0.0])
        assert np.isnan(take(kept(np.array([np.nan], np.float32), "bfloat16"), jnp.arange(1)))

    @pytest.mark.slow
    def test_numbers_of_fewer_bits_stay(self, x64):
        given = [jnp.ones(2, dtype) for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64)]
        for dtype, expected in {
            "bfloat16": ["float16", "bfloat16", "uint16", "uint16", "complex64"],
            "float32": ["float16", "bfloat16", "float32", "float32", "complex64"],
        }.items():
            rows = kept(given, dtype)
            assert [str(leaf.dtype) for leaf in rows.leaves] == expected
            again = put(rows, jnp.arange(2), take(rows, jnp.arange(2)))
            assert_rows(take(again, jnp.arange(2)), given)

    def test_moved(self):
        def window(indices: list[int], value: float) -> Rows:
            return Rows(jnp.full((len(indices), 2), value), jnp.array(indices, jnp.int32), (np.dtype(np.float32),))

        found = moved(window([2, 5, UNUSED], 1.0), window([1, 5, UNUSED], 2.0))
        np.testing.assert_array_equal(found.leaves[:, 0], [2, 1, 2])


def test_cohorts_are_client_indices() -> None:
    data = fjs.datasets.from_clients([{"x": np.zeros((1, 1))}] * 4, client_ids=[30, 10, 40, 20])
    planned = np.array([[0, 3, 4], [1, 2, 3], [4, 4, 4]])  # storage positions; 4 for nobody
    indices = cohorts(planned, data)
    assert indices.tolist() == [[1, 2, UNUSED], [0, 1, 3], [UNUSED] * 3]


class TestWindows:
    @pytest.mark.parametrize("size", [3, 8])
    def test_every_order_of_cohorts(self, size, monkeypatch, tmp_path):
        """Rounds that add to what their clients have, saved and restored in between, against a list."""
        monkeypatch.setattr(client_table, "_FIRST", 64)

        @jax.jit
        def computed(before: Rows, sent: Rows, indices: jax.Array, add: jax.Array) -> tuple[jax.Array, Rows]:
            rows = moved(before, sent)
            have = take(rows, indices)
            return have["a"], put(rows, indices, have | {"a": have["a"] + add[:, None]})

        rng, n, rounds = np.random.default_rng(size), 8, 40
        drawn = [rng.choice(n, rng.integers(0, size + 1), replace=False) for _ in range(rounds)]
        planned = np.full((rounds, size), UNUSED, np.int32)
        for row, clients in zip(planned, drawn, strict=True):
            row[: len(clients)] = np.sort(clients)
        first = kept({"a": np.full(3, 7.0, np.float32), "b": np.float32(1)}, None)
        expected = np.full((n, 3), 7.0, np.float32)
        with ThreadPoolExecutor(1) as thread:
            windows = ClientWindows(first, planned, n, client_table.in_file(str(tmp_path)), thread)
            for t, clients in enumerate(drawn):
                slots, add = np.full(size, n, np.int32), rng.integers(1, 9, size).astype(np.float32)
                slots[: len(clients)] = clients
                have, rows = computed(windows.on_device, windows.window(t), slots, add)
                windows.computed(t, rows)
                np.testing.assert_array_equal(have[: len(clients)], expected[clients])
                expected[clients] += add[: len(clients), None]
                if t % 7 == 3:
                    stored = {name: array.copy() for name, array in windows.stored().items()}
                if t % 14 == 10:
                    windows = ClientWindows(first, planned, n, client_table.in_memory, thread)
                    windows.restore(stored)

    def test_an_error_of_the_disk_is_raised_in_the_run(self):
        def allocate(rows: int, row_bytes: int) -> np.ndarray:
            raise OSError(errno.ENOSPC, "the disk is full")

        planned = np.array([[0], [1], [2]], np.int32)
        with ThreadPoolExecutor(1) as thread:
            windows = ClientWindows(kept(np.zeros(2), None), planned, 3, allocate, thread)
            for t in range(2):
                windows.computed(t, moved(windows.on_device, windows.window(t)))
            with pytest.raises(OSError, match="the disk is full"):
                windows.window(2)


class TestTable:
    INITIAL: ClassVar = {"x": np.arange(3, dtype=np.float32), "seen": np.array(True), "empty": np.zeros((0, 2))}

    def made(self, n: int = 1000, allocate: client_table.Allocate = client_table.in_memory) -> Table:
        return Table(self.INITIAL, n, allocate)

    def leaves(self, values: np.ndarray) -> list[np.ndarray]:
        x = np.asarray(values, np.float32)[:, None] + np.zeros(3, np.float32)
        return [x, np.asarray(values) % 2 == 0, np.zeros((len(values), 0, 2))]

    @pytest.mark.parametrize("where", ["host", "disk"])
    def test_rows(self, monkeypatch, tmp_path, where):
        monkeypatch.setattr(client_table, "_FIRST", 130)  # ten rows of 13 bytes
        sizes = []
        allocate = client_table.in_memory if where == "host" else client_table.in_file(str(tmp_path))

        def counted(rows: int, row_bytes: int) -> np.ndarray:
            sizes.append(rows)
            return allocate(rows, row_bytes)

        rows, rng, expected = self.made(allocate=counted), np.random.default_rng(0), {}
        for _ in range(60):
            clients = rng.choice(1000, 7, replace=False)
            values = rng.integers(0, 99, 7)
            rows.write(clients, self.leaves(values))
            expected |= dict(zip(clients.tolist(), values.tolist(), strict=True))
        x, seen, empty = rows.read(np.arange(1000))
        for client in range(1000):
            value = expected.get(client)
            np.testing.assert_array_equal(x[client], np.arange(3) if value is None else np.full(3, value))
            assert seen[client] == (value is None or value % 2 == 0)
        assert empty.shape == (1000, 0, 2)
        assert rows._count == len(expected) < 400
        assert sum(map(len, rows._blocks)) == sum(sizes) <= 1.25 * rows._count + 10
        assert sizes[0] == 10
        assert len(sizes) < 20
        np.testing.assert_array_equal(rows.read(np.array([-1, -1]))[0], [np.arange(3)] * 2)
        stored = rows.stored()
        assert sum(array.nbytes for array in stored.values()) <= (13 + 4) * rows._count + 13
        again = self.made()
        again.restore(stored)
        for one, other in zip(rows.read(np.arange(1000)), again.read(np.arange(1000)), strict=True):
            np.testing.assert_array_equal(one, other)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_made_before_it_is_written(self):
        def never(rows: int, row_bytes: int) -> np.ndarray:
            raise AssertionError

        rows = self.made(10**6, never)
        assert rows.read(np.arange(5))[1].all()
        assert [*rows.stored()] == ["initial/x", "initial/seen", "initial/empty", "owners"]

    def test_all_clients_and_no_more(self):
        rows = self.made(20)
        rows.write(np.arange(20), self.leaves(np.arange(20)))
        assert sum(map(len, rows._blocks)) == 20

    def test_what_is_of_another_run_is_refused(self):
        rows = self.made()
        rows.write(np.arange(4), self.leaves(np.arange(4)))
        stored = rows.stored()
        wrong = {
            "not float32[3]": stored | {"initial/x": np.zeros(4, np.float32)},
            "not int32[0]": {name: array for name, array in stored.items() if name != "owners"},
            "13 bytes for 1000 clients": stored | {"rows/0": stored["rows/0"][:3]},
            "for 1000 clients": stored | {"owners": np.array([0, 1, 2, 2], np.int32)},
            "bytes for 1000": stored | {"owners": np.array([0, 1, 2, 1000], np.int32)},
            "client states": stored | {"rows/0": stored["rows/0"].view(np.int8)},
        }
        for message, given in wrong.items():
            with pytest.raises(ValueError, match=re.escape(message)):
                self.made().restore(given)
