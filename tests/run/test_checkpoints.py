"""Checkpoint files and their directory: what goes in comes out, and what was damaged is never taken for whole."""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import tracemalloc
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import files as core_files
from fedjax_sim.core.files import Lock
from fedjax_sim.run.checkpoints import Damaged, Interrupted, Store, files, interruptions, read
from fedjax_sim.run.checkpoints.differences import differences, environment_changes
from tests.killing import without_permission

ROOT = pathlib.Path(__file__).parents[2]
STANDARD = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
EXTENDED = [name for name in vars(ml_dtypes) if name.startswith(("bfloat", "float", "int", "uint"))]
DTYPES = [np.dtype(name) for name in STANDARD] + [np.dtype(getattr(ml_dtypes, name)) for name in EXTENDED]
ARRAYS = {"params/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "keys": np.array([[0, 7]], np.uint32)}
ABOUT = {"seeds": [0, 1], "description": {"algorithm": "fedavg"}}


def encoded(arrays: dict[str, Any], about: dict[str, Any] = ABOUT, round: int = 7) -> bytes:
    return b"".join(files.encoded(round, arrays, about))


def file_of(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file made by hand, without a checksum of its own."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@st.composite
def any_array(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    count = int(np.prod(shape)) * dtype.itemsize
    if dtype.name in STANDARD and dtype.kind != "b":
        raw = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8)  # NaN with its payload as well
        return raw.view(dtype).reshape(shape)
    # few bits: from numbers, so that the unused ones are what the type makes of them
    numbers = draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return np.asarray(numbers).astype(dtype)


# Of one to four bytes each; hypothesis takes two seconds for a table of all characters.
SOME = "".join(map(chr, [*range(0x300), 0x2028, 0x4E2D, 0xFFFD, 0xFFFF, 0x1F600, 0x10FFFF]))
TEXT = st.text(SOME, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


class TestFiles:
    @hypothesis.given(st.dictionaries(TEXT, any_array(), max_size=5), st.dictionaries(TEXT, JSON, max_size=3))
    def test_what_goes_in_comes_out(self, tmp_path_factory, arrays, about):
        path = tmp_path_factory.getbasetemp() / "any.safetensors"
        path.write_bytes(encoded(arrays, about, round=12))
        found = read(path)
        assert (found.round, found.about, found.path) == (12, about, path)
        assert list(found.arrays) == list(arrays)
        assert all(same(found.arrays[name], array) for name, array in arrays.items())

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_type_of_jax(self, tmp_path, dtype):
        values = np.array([[0, 1, 1], [1, 0, 1]]).astype(np.float32).astype(dtype)
        arrays = {
            "matrix": values,
            "number": values[0, 1],
            "none": values[:0],
            "turned": values.T,
            "step": values[:, ::2],
        }
        (tmp_path / "file").write_bytes(encoded(arrays))
        found = read(tmp_path / "file").arrays
        assert all(same(found[name], np.asarray(array)) for name, array in arrays.items())
        assert jnp.dtype(dtype.name) == dtype

    def test_arrays_of_jax_and_of_the_other_byte_order(self, tmp_path):
        (tmp_path / "file").write_bytes(encoded({"jax": jnp.arange(3.0), "big": np.arange(3, dtype=">i4")}))
        found = read(tmp_path / "file").arrays
        assert same(found["jax"], np.arange(3, dtype=np.float32))
        assert same(found["big"], np.arange(3, dtype=np.int32))

    def test_what_was_read_can_be_written_to(self, tmp_path):
        (tmp_path / "file").write_bytes(encoded(ARRAYS))
        array = read(tmp_path / "file").arrays["keys"]
        array += np.uint32(1)
        assert array.tolist() == [[1, 8]]

    def test_other_readers_of_safetensors_open_it(self, tmp_path):
        safetensors = pytest.importorskip("safetensors", reason="needs safetensors (pip install 'fedjax_sim[text]')")
        arrays = {
            "flag": np.array([True, False, True]), "half": np.float16([1.5]), "scalar": np.float64(3.0),
            "none": np.zeros((0, 3), np.int64), "complex": np.array([1 + 2j], np.complex64), "keys": ARRAYS["keys"],
        }  # fmt: skip
        (tmp_path / "file").write_bytes(encoded(arrays))
        with safetensors.safe_open(tmp_path / "file", framework="numpy") as file:
            assert set(file.keys()) == set(arrays)
            assert json.loads(file.metadata()["about"]) == ABOUT
            assert same(file.get_tensor("complex").view(np.complex64).reshape(-1), arrays.pop("complex"))
            assert all(same(file.get_tensor(name), np.asarray(array)) for name, array in arrays.items())

    def test_no_copy_of_the_state_is_made(self, tmp_path):
        arrays = {"state": np.ones((1000, 2500), np.float32), "more": np.ones(2_500_000, np.int8)}  # 10 + 2.5 MB
        with Store(tmp_path) as store:
            tracemalloc.start()
            try:
                path = store.save(1, arrays, {})
                _, written = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                found = read(path)
                _, taken = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert written < 1e6
        assert taken < 12.5e6 + 1e6
        assert same(found.arrays["state"], arrays["state"])

    @pytest.mark.parametrize(
        ("array", "dtype"),
        [
            (np.array([None]), "object"),
            (np.array(["a"]), "<U1"),
            (np.zeros(1, "M8[s]"), "datetime64"),
            (np.zeros(1, "V3"), "V3"),
        ],
    )
    def test_other_types_are_refused(self, array, dtype):
        with pytest.raises(TypeError, match=rf"the array 'x' has dtype .*{dtype}.*numbers"):
            encoded({"x": array})

    def test_what_is_no_json_is_refused(self):
        with pytest.raises(TypeError, match=r"a checkpoint was given \{'x': array.*must be plain JSON"):
            encoded({}, {"x": np.ones(2)})

    def test_the_name_of_the_metadata_is_refused(self):
        with pytest.raises(ValueError, match="is called '__metadata__'"):
            encoded({"__metadata__": np.ones(2)})


BEGIN = files.MAGIC + b'1","sha256":"' + b"0" * 64 + b'","round":"1","about":"{}","dtypes":"{}"}'
BOMBS = {
    "length": file_of(b"{", length=2**63),
    "long header": file_of(b"{", length=90_000_000),
    "nesting": file_of(BEGIN + b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "array": file_of(BEGIN + b',"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}'),
    "overlap": file_of(
        BEGIN + b',"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"1234",
    ),
    "backwards": file_of(BEGIN + b',"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,-4]}}', b"1234"),
    "number": file_of(BEGIN + b',"a":{"dtype":"U8","shape":[4],"data_offsets":[0,' + b"9" * 5000 + b"]}}", b"1234"),
    "twice": file_of(
        BEGIN + b',"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
        b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "no metadata": file_of({"__metadata__": {"fedjax_sim.checkpoint": "1"}}),
    "another's": file_of({"__metadata__": {"format": "pt"}}),
    "a list": file_of(files.MAGIC[:-1] + b"}]"),
    "not JSON": file_of(b"PK\3\4 is another format"),
    "not unicode": file_of(files.MAGIC + b'\xff"}}'),
}  # fmt: skip


class TestDamage:
    WHOLE = encoded(
        {"a": np.arange(5, dtype=np.int16), "flag": np.array([True, False]), "b": np.float32(0.5)}, {"x": [1]}
    )

    def test_every_truncation_is_found(self, tmp_path):
        path = tmp_path / "file"
        for length in range(len(self.WHOLE)):
            path.write_bytes(self.WHOLE[:length])
            with pytest.raises(Damaged):
                read(path)

    def test_a_flipped_bit_is_found_in_every_byte(self, tmp_path):
        path = tmp_path / "file"
        content = bytearray(self.WHOLE)
        for place in range(len(content)):
            content[place] ^= 1 << place % 8
            path.write_bytes(content)
            with pytest.raises(Damaged):
                read(path)
            content[place] ^= 1 << place % 8
        path.write_bytes(content)
        assert read(path).about == {"x": [1]}

    @pytest.mark.parametrize("more", [b"\0", b" " * 8, WHOLE])
    def test_bytes_at_the_end_are_found(self, tmp_path, more):
        (tmp_path / "file").write_bytes(self.WHOLE + more)
        with pytest.raises(Damaged, match=f"{len(more)} bytes too many"):
            read(tmp_path / "file")

    @pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
    def test_bombs_are_refused_at_no_cost(self, tmp_path, content):
        (tmp_path / "file").write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(Damaged):
                read(tmp_path / "file")
            assert tracemalloc.get_traced_memory()[1] < 40 * len(content) + 1e5
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"shape":[5]', b'"shape":[6]'), (b'"I16"', b'"F99"'), (b'"shape":[5]', b'"shape":[]'),
            (b'\\"x\\":[1]', b'\\"x\\":[1 '), (b'"round":"7"', b'"round":"x"'),
            (b'"dtypes":"{}"', b'"dtypes":"{\\"a\\":\\"object\\"}"'), (b'"dtypes":"{}"', b'"dtypes":"[]"'),
        ],
    )  # fmt: skip
    def test_nonsense_with_a_right_checksum_is_refused(self, tmp_path, old, new):
        import hashlib

        length = int.from_bytes(self.WHOLE[:8], "little")
        header, data = self.WHOLE[8 : 8 + length], self.WHOLE[8 + length :]
        assert header.count(old) == 1
        metadata = json.loads(header)["__metadata__"]
        header = header.replace(metadata["sha256"].encode(), b"0" * 64).replace(old, new)
        checksum = hashlib.sha256(len(header).to_bytes(8, "little") + header + data).hexdigest()
        (tmp_path / "file").write_bytes(file_of(header.replace(b"0" * 64, checksum.encode()), data))
        with pytest.raises(Damaged, match=r"file is damaged \(its header makes no sense: "):
            read(tmp_path / "file")

    def test_a_file_of_a_later_version_is_not_damaged(self, tmp_path, monkeypatch):
        with Store(tmp_path) as store:
            store.save(1, ARRAYS, ABOUT)
            with monkeypatch.context() as patch:
                patch.setattr(files, "_FORMAT", 3)
                store.save(2, ARRAYS, ABOUT)
            with pytest.raises(ValueError, match="has format 3, and this version of fedjax_sim knows formats up to 2"):
                store.newest()


class TestStore:
    def test_the_newest_is_found_and_the_oldest_are_deleted(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "round-12.safetensors").write_text("not one of ours")
        with Store(tmp_path, keep=3) as store:
            assert store.newest() is None
            for round in (0, 5, 10, 15, 20):
                assert store.save(round, {"round": np.int32(round)}, ABOUT) == store.paths()[-1]
            found = store.newest()
            assert (found.round, found.arrays["round"], found.about) == (20, 20, ABOUT)
            assert [path.name for path in store.paths()] == [f"round-{n:08d}.safetensors" for n in (10, 15, 20)]
        rest = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("round-000"))
        assert rest == ["notes.txt", "round-12.safetensors"]

    def test_another_store_goes_on(self, tmp_path):
        for round in range(4):
            with Store(tmp_path, keep=2) as store:
                assert (store.newest() or (None,))[0] == (round - 1 if round else None)
                store.save(round, ARRAYS, ABOUT)
        assert len(list(tmp_path.glob("round-*"))) == 2

    def test_rounds_beyond_eight_digits_are_numbers_not_text(self, tmp_path):
        with Store(tmp_path) as store:
            for round in (99_999_999, 100_000_000):
                store.save(round, {}, {})
            assert store.newest().round == 100_000_000

    def test_a_round_can_be_written_again_but_none_before_it(self, tmp_path):
        with Store(tmp_path) as store:
            store.save(5, {"x": np.int32(1)}, {})
            store.save(5, {"x": np.int32(2)}, {})
            assert store.newest().arrays["x"] == 2
            with pytest.raises(ValueError, match=r"round-00000005.safetensors is of a later round than 4"):
                store.save(4, {}, {})

    def test_damaged_files_are_passed_over_and_deleted_with_the_next(self, tmp_path):
        with Store(tmp_path, keep=3) as store:
            paths = [store.save(round, {"round": np.int32(round)}, {}) for round in (1, 2, 3)]
            paths[2].write_bytes(b"")
            paths[1].write_bytes(paths[1].read_bytes()[:-1])
            told = (
                r"round-00000003.safetensors is damaged \(it is cut off after 0 bytes\); .*round-00000002.safetensors "
                r"is damaged \(it is cut off: 3 of 4 bytes.*\): using round-00000001.safetensors, of round 1, instead"
            )
            with pytest.warns(UserWarning, match=told):
                assert store.newest().round == 1
            store.save(2, {}, {})
            assert [path.name for path in store.paths()] == ["round-00000001.safetensors", "round-00000002.safetensors"]

    def test_where_all_are_damaged_nothing_begins_again(self, tmp_path):
        with Store(tmp_path) as store:
            for round in (1, 2):
                store.save(round, {}, {}).write_bytes(b"?")
            with pytest.raises(ValueError, match=r"no checkpoint in .* can be read: .*002\.s.*001\.s.*restore one"):
                store.newest()
            assert len(store.paths()) == 2

    def test_a_renamed_file_is_not_taken_for_another_round(self, tmp_path):
        with Store(tmp_path) as store:
            store.save(1, {}, {}).rename(tmp_path / "round-00000009.safetensors")
            with pytest.raises(ValueError, match=r"9\.safetensors is of round 1, not of the round in its name"):
                store.newest()

    def test_what_the_disk_cannot_read_is_damaged_and_other_errors_are_told(self, tmp_path, monkeypatch):
        with Store(tmp_path) as store:
            for round in (1, 2):
                store.save(round, {}, {})

            def failing(number):
                def open_(path, *_):
                    if "002" in str(path):
                        raise OSError(number, os.strerror(number), path)
                    return open(path, "rb")

                return open_

            monkeypatch.setattr(files, "open_regular", failing(errno.EIO))
            with pytest.warns(UserWarning, match="the disk cannot read it"):
                assert store.newest().round == 1
            monkeypatch.setattr(files, "open_regular", failing(errno.EACCES))
            with pytest.raises(PermissionError):
                store.newest()

    def test_what_killed_writers_left_is_deleted_and_nothing_of_others(self, tmp_path):
        (tmp_path / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(encoded(ARRAYS)[:200])
        (tmp_path / ".0123456789abcdef.tmp").write_bytes(b"PK\3\4 is an archive")
        Store(tmp_path).close()
        assert [path.name for path in tmp_path.iterdir()] == [".0123456789abcdef.tmp"]

    @pytest.mark.parametrize("keep", [0, -1])
    def test_keep_is_at_least_one(self, tmp_path, keep):
        with pytest.raises(ValueError, match=f"keep is {keep}: it must be at least 1"):
            Store(tmp_path, keep)

    def test_directories_are_made_and_files_refused(self, tmp_path):
        with Store(tmp_path / "new" / "deep") as store:
            store.save(1, ARRAYS, ABOUT)
        (tmp_path / "file").write_text("x")
        with pytest.raises(NotADirectoryError, match=r"this is a file, and a directory is needed\): '.*file'"):
            Store(tmp_path / "file")
        with pytest.raises(OSError, match=r"checkpoints cannot be written here \(Not a directory\): '.*file/below'"):
            Store(tmp_path / "file" / "below")

    def test_a_directory_that_cannot_be_written_is_named(self, tmp_path, monkeypatch):
        def refuse(path, *_):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(PermissionError, match=rf"cannot be written here \(Permission denied\): '{tmp_path}'"):
            Store(tmp_path)

    def test_so_is_one_whose_lock_can_be_written(self, tmp_path, monkeypatch):
        (tmp_path / ".lock").write_bytes(b"process 1 on a host\n")
        without_permission(monkeypatch, tmp_path)
        with pytest.raises(PermissionError, match=rf"cannot be written here \(Permission denied\): '{tmp_path}'"):
            Store(tmp_path)

    @pytest.mark.parametrize("kind", ["a link to nowhere", "a pipe", "a socket", "a directory", "one with files"])
    def test_what_is_no_file_is_passed_over(self, tmp_path, kind):
        with Store(tmp_path) as store:
            store.save(1, {}, {})
        newest = tmp_path / "round-00000002.safetensors"
        if kind == "a link to nowhere":
            newest.symlink_to(tmp_path / "nowhere")
        elif kind == "a pipe":
            os.mkfifo(newest)
        elif kind == "a socket":
            os.mknod(newest, stat.S_IFSOCK | 0o600)
        else:
            newest.mkdir()
            if kind == "one with files":
                (newest / "of a user").write_bytes(b"")
        with Store(tmp_path) as store:
            with pytest.warns(UserWarning, match=r"02\.safetensors is not .*: using round-00000001"):
                assert store.newest().round == 1
            store.save(2, {}, {})  # the same name
            assert store.newest().round == 2
        left = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert len(left) == (kind in ("a directory", "one with files"))
        assert [path.name for folder in left for path in folder.iterdir()] == ["of a user"] * ("files" in kind)


HOLD = """
import sys, time
from fedjax_sim.run.checkpoints import Store
store = Store(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


class TestLock:
    def test_one_writer_a_directory(self, tmp_path):
        store = Store(tmp_path)
        with pytest.raises(BlockingIOError, match=rf"another run .*\(process {os.getpid()} on .*\).*: '{tmp_path}'"):
            Store(tmp_path)
        store.close()
        store.close()
        Store(tmp_path).close()
        assert tmp_path.exists()

    @pytest.mark.parametrize("kept", [False, True])
    def test_no_directory_is_made_for_nothing(self, tmp_path, kept):
        with Lock(tmp_path / "runs" / "one", "tests"):
            (tmp_path / "runs" / "beside").touch()
            if kept:
                (tmp_path / "runs" / "one" / "result").touch()
        assert (tmp_path / "runs").exists()
        assert (tmp_path / "runs" / "one").exists() == kept

    @pytest.mark.slow
    def test_a_killed_process_holds_it_no_longer(self, tmp_path):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            try:
                assert holder.stdout.readline() == "held\n"
                with pytest.raises(BlockingIOError, match=rf"process {holder.pid} on"):
                    Store(tmp_path)
            finally:
                holder.kill()
            holder.wait(10)
            Store(tmp_path).close()

    def test_it_leaves_nothing_and_takes_over_what_a_killed_process_left(self, tmp_path):
        (tmp_path / ".lock").write_bytes(b"process 1 on a host\n")
        with Lock(tmp_path, "tests"):
            assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
            with Lock(tmp_path, "tests", "another"):
                pass
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("kind", ["a link", "a hard link", "a user's file", "a pipe", "a directory", "a socket"])
    def test_what_is_no_lock_of_ours_is_not_touched(self, tmp_path, kind):
        lock, target = tmp_path / ".lock", tmp_path / "target"
        target.write_bytes(b"process of mine, described")
        if kind == "a link":
            lock.symlink_to(target)
        elif kind == "a hard link":
            os.link(target, lock)
        elif kind == "a user's file":
            lock.write_bytes(b"Process")
        elif kind == "a pipe":
            os.mkfifo(lock)
        elif kind == "a directory":
            lock.mkdir()
        else:
            os.mknod(lock, stat.S_IFSOCK | 0o600)
        with pytest.raises(FileExistsError, match=r"\.lock is no lock of ours: take it away, or give"):
            Store(tmp_path)
        assert target.read_bytes() == b"process of mine, described"
        assert kind != "a user's file" or lock.read_bytes() == b"Process"

    def test_a_lock_that_its_holder_has_removed_is_nobody_s(self, tmp_path, monkeypatch):
        flock, holders = fcntl.flock, [Lock(tmp_path, "tests")]

        def late(file, how):
            if holders and how & fcntl.LOCK_NB:  # between opening and locking the holder ends, and another one begins
                holders.pop().release()
                (tmp_path / ".lock").write_bytes(b"process 1 on a host\n")
            flock(file, how)

        monkeypatch.setattr("fcntl.flock", late)
        with Lock(tmp_path, "tests"), pytest.raises(BlockingIOError):
            Lock(tmp_path, "tests")

    def test_a_directory_that_its_last_holder_has_removed_is_made_again(self, tmp_path, monkeypatch):
        check, holders = core_files.check_writable, [Lock(tmp_path / "new", "tests")]

        def late(directory):
            check(directory)
            if holders:
                holders.pop().release()
                assert not directory.exists()

        monkeypatch.setattr(core_files, "check_writable", late)
        with Lock(tmp_path / "new", "tests"):
            assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]
        assert (tmp_path / "new").exists()  # it was there when the lock was asked for

    def test_a_process_that_was_forked_does_not_remove_it(self, tmp_path, monkeypatch):
        with Lock(tmp_path, "tests") as lock:
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: -1)
                lock.release()
            assert (tmp_path / ".lock").exists()

    def test_a_file_system_without_locks_is_warned_of(self, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr("fcntl.flock", flock)
        with pytest.warns(UserWarning, match=rf"the file system of {tmp_path} has no locks"):
            Store(tmp_path).close()


LIMITED = """
import json, resource, sys
import numpy as np
from fedjax_sim.run.checkpoints import Store
with Store(sys.argv[1]) as store:
    store.save(1, {"x": np.ones(10)}, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    try:
        store.save(2, {"x": np.ones(100_000)}, {})
    except OSError as error:
        print(json.dumps([str(error), store.newest().round]))
"""


class TestFullDisk:
    MESSAGE = (
        r"the checkpoint of round 2 could not be written \({}\): it needs [\d,]+ bytes, [\d,]+ are free; "
        r"round-00000001.safetensors is still there, and a run goes on from it: '.*round-00000002.safetensors'"
    )

    @pytest.mark.parametrize("call", ["fsync", "replace", "open"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
    def test_the_last_one_stays_and_nothing_half_written(self, tmp_path, monkeypatch, call, number):
        with Store(tmp_path, keep=1) as store:
            store.save(1, ARRAYS, ABOUT)
            with monkeypatch.context() as patch:

                def full(*_):
                    raise OSError(number, os.strerror(number))

                patch.setattr(os, call, full)
                with pytest.raises(OSError, match=self.MESSAGE.format(os.strerror(number))) as raised:
                    store.save(2, {"x": np.ones(50_000)}, ABOUT)
            assert raised.value.errno == number
            assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "round-00000001.safetensors"]
            assert store.newest().round == 1
            store.save(2, ARRAYS, ABOUT)  # there is room again
            assert store.newest().round == 2

    def test_the_first_one(self, tmp_path, monkeypatch):
        with Store(tmp_path) as store:

            def full(*_):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="there is no earlier one"):
                store.save(1, ARRAYS, ABOUT)
            assert store.paths() == []

    def test_a_file_system_that_is_really_full(self, tmp_path):
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("this user may not mount a small file system")
        try:
            with Store(tmp_path) as store:
                store.save(1, ARRAYS, ABOUT)
                with pytest.raises(OSError, match=self.MESSAGE.format("No space left on device")):
                    store.save(2, {"x": np.ones(200_000)}, ABOUT)
                assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "round-00000001.safetensors"]
                assert same(store.newest().arrays["keys"], ARRAYS["keys"])
                store.save(3, {"x": np.ones(50_000)}, ABOUT)
        finally:
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)

    def test_a_file_system_that_can_be_read_only(self, tmp_path):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("this user may not mount a small file system")
        try:
            Store(tmp_path).close()
            (tmp_path / ".lock").write_bytes(b"process 1 on a host\n")
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            with pytest.raises(OSError, match=r"checkpoints cannot be written here \(Read-only file system\)"):
                Store(tmp_path)
        finally:
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)

    def test_a_limit_of_the_process(self, tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        message, newest = json.loads(done.stdout)
        assert "(File too large)" in message
        assert newest == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000001.safetensors"]


def described(**changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "algorithm": fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1, momentum=0.9), mu=0.5),
        "cohort": fjs.cohort.uniform(10),
        "work": fjs.local.steps(3),
    }
    parts = {name: fjs.describe(part) for name, part in (parts | changes).items()}
    return {
        "algorithm": parts.pop("algorithm"),
        "run": parts | {"rounds": 20},
        "environment": {"jax": "1", "python": "3"},
    }


class TestDifferences:
    def test_equal_descriptions_have_none(self):
        assert differences(described(), json.loads(json.dumps(described()))) == []

    @pytest.mark.parametrize(
        ("changes", "lines"),
        [
            ({"cohort": fjs.cohort.uniform(20)}, ["run.cohort.num_sampled: 10 in the checkpoint, 20 now"]),
            (
                {"cohort": fjs.cohort.full()},
                [
                    "run.cohort: cohort.uniform(average=null, num_sampled=10) in the checkpoint, "
                    "cohort.full(average=null) now"
                ],
            ),
            (
                {"algorithm": fjs.fedprox(client_optimizer=fjs.optim.sgd(0.2), mu=0.25), "work": fjs.local.steps(4)},
                [
                    "algorithm.client_optimizer.learning_rate: 0.1 in the checkpoint, 0.2 now",
                    "algorithm.client_optimizer.momentum: 0.9 in the checkpoint, null now",
                    "algorithm.mu: 0.5 in the checkpoint, 0.25 now",
                    "run.work.num_steps: 3 in the checkpoint, 4 now",
                ],
            ),
        ],
    )
    def test_each_is_named_by_its_path_with_both_values(self, changes, lines):
        assert differences(described(), described(**changes)) == lines

    @pytest.mark.parametrize(
        ("old", "new", "line"),
        [
            ({"a": [1, 2]}, {"a": [1, 3]}, "a: [1, 2] in the checkpoint, [1, 3] now"),
            ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, "a.1.b: 2 in the checkpoint, 3 now"),
            ({"a": [{"b": 1}]}, {"a": []}, 'a: [{"b": 1}] in the checkpoint, [] now'),
            ({"a": 1}, {}, "a: 1 in the checkpoint, nothing now"),
            ({}, {"a": None}, "a: nothing in the checkpoint, null now"),
            ({"a": True}, {"a": 1}, "a: true in the checkpoint, 1 now"),
            ({"a": {"opaque": "f"}}, {"a": {"opaque": "g"}}, "a: f in the checkpoint, g now"),
            (
                {"a": {"array": [0.5] * 1000, "dtype": "float32"}},
                {"a": {"array": [0.5], "dtype": "float32"}},
                f"a: float32 {json.dumps([0.5] * 11)[:52]}... in the checkpoint, float32 [0.5] now",
            ),
            (
                {"a": {"array": [*range(100), 5], "dtype": "int32"}},
                {"a": {"array": [*range(100), 7], "dtype": "int32"}},
                "a: ..., 93, 94, 95, 96, 97, 98, 99, 5] in the checkpoint, ..., 93, 94, 95, 96, 97, 98, 99, 7] now",
            ),
        ],
    )
    def test_values_of_all_kinds(self, old, new, line):
        assert differences(old, new) == [line]

    def test_nan_is_itself_and_tuples_are_lists(self):
        assert differences({"a": float("nan"), "b": (1, 2)}, {"a": float("nan"), "b": [1, 2]}) == []

    def test_the_environment_is_no_configuration(self):
        saved, given = described(), described()
        given["environment"] = {"jax": "2", "python": "4"}
        assert differences(saved, given) == []
        assert environment_changes(saved, given) == "jax: 1 in the checkpoint, 2 now"
        assert environment_changes(saved, saved) is None


TERMINATED = """
import signal
from fedjax_sim.run.checkpoints import interruptions
with interruptions():
    signal.raise_signal(signal.SIGTERM)
    print("work", flush=True)
print("more")
"""


@pytest.mark.usefixtures("handlers")
class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_is_noted_and_the_handlers_come_back(self, number):
        with contextlib.suppress(InterruptedError), interruptions() as caught:
            assert caught.signal is None
            signal.raise_signal(number)
            assert caught.signal is number
            signal.raise_signal(signal.SIGTERM)
            assert caught.signal is number
            raise InterruptedError  # the answer
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_a_second_sigint_ends_at_once(self):
        with contextlib.suppress(InterruptedError), interruptions() as caught:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)  # the first SIGINT
            assert caught.signal is signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise InterruptedError
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_what_nobody_answered_is_delivered_in_the_end(self):
        done = []

        def run():
            with interruptions():
                signal.raise_signal(signal.SIGINT)
                done.append("work")

        with pytest.raises(KeyboardInterrupt):
            run()
        assert done == ["work"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @pytest.mark.slow
    def test_an_unanswered_sigterm_ends_the_process_after_the_work(self):
        done = subprocess.run([sys.executable, "-c", TERMINATED], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "work\n", "")

    def test_handlers_of_the_program_around_stay(self):
        seen = []
        signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interruptions() as caught:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        assert (seen, caught.signal) == ([signal.SIGTERM], None)

    def test_elsewhere_than_in_the_main_thread_nothing_is_caught(self):
        found = []

        def work():
            with interruptions() as caught:
                found.append((signal.getsignal(signal.SIGTERM), caught.signal))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [(signal.SIG_DFL, None)]

    def test_the_message_says_how_to_go_on(self):
        error = Interrupted(signal.SIGTERM, 40, 100, "run/round-00000040.safetensors")
        assert str(error) == (
            "stopped by SIGTERM after round 40 of 100, which is saved in run/round-00000040.safetensors: call simulate "
            "again with the same arguments to go on from there"
        )
        assert not isinstance(error, Exception)
