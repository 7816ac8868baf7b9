"""Single files that once did harm, or would do most: bombs, pickles, headers that lie, files of later versions."""

import gzip
import io
import json
import pickle
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.datasets import array_checks as arrays
from fedjax_sim.datasets.own import table as tables
from fedjax_sim.datasets.reading.archives import read_members
from fedjax_sim.datasets.sources.image_files import read_idx
from fedjax_sim.studies.sweeps.stored import Folder

pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'fedjax_sim[tables]')")
pytest.importorskip("safetensors", reason="needs safetensors (pip install 'fedjax_sim[text]')")

from tests.fuzzing import mutations, samples


def bounded(read: Callable[[], object], message: str, most: int = 2**25) -> None:
    """``read`` refuses with that message, in little memory and little time."""
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read()
        assert type(caught.value) is ValueError
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 10


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.slow
def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = bytes(2**25)
    idx = b"\0\0\x08\x01" + (2**25).to_bytes(4, "big") + zeros
    bounded(lambda: read_idx(put(tmp_path / "a.gz", gzip.compress(idx, 1)), max_bytes=2**20), "at most 1048576 are")
    (tmp_path / "clients").mkdir()
    put(tmp_path / "clients" / "ann.npz", npz(x=np.zeros(2**23)))
    bounded(lambda: fjs.datasets.from_directory(tmp_path / "clients", max_bytes=2**22), "more than 4194304 bytes")
    put(tmp_path / "clients" / "ann.npz", npz(x=np.zeros(2**18)))
    put(tmp_path / "clients" / "rob.npz", npz(x=np.zeros(2**18)))
    bounded(lambda: fjs.datasets.from_directory(tmp_path / "clients", max_bytes=2**21 + 1), "4194304 bytes")
    content = dict(np.load(io.BytesIO(samples.history_files()["run.npz"])))
    put(tmp_path / "run.npz", npz(**content, **{"params/9": np.zeros(2**23)}))
    bounded(lambda: fjs.History.load(tmp_path / "run.npz", max_bytes=2**22), "more than 4194304 bytes")
    monkeypatch.setattr(tables, "_MAX_BYTES", 2**20)
    monkeypatch.setattr(arrays, "_MAX_BYTES", 2**20)
    rows = b"who,x\n" + b"1,1\n" * 2**20
    table = put(tmp_path / "t.csv.gz", gzip.compress(rows, 9))
    bounded(lambda: fjs.datasets.from_table(table, client="who"), "more than 1048576 bytes")
    bounded(
        lambda: fjs.datasets.from_table(
            {"who": np.array(["a"] * 999 + ["b" * 999], object), "x": np.ones(1000)}, client="who"
        ),
        "1000 texts and one of 999 characters",
    )


def test_a_parquet_file_of_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"who": np.zeros(2**20, int), "x": np.zeros(2**20)}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 2**14
    monkeypatch.setattr(tables, "_MAX_BYTES", 2**20)
    bounded(
        lambda: fjs.datasets.from_table(tmp_path / "t.parquet", client="who"), "announces 1048576 rows of 2 columns"
    )


def test_an_xz_file_that_asks_for_gigabytes(tmp_path: Path) -> None:
    path = put(tmp_path / "cifar10" / "data", mutations.greedy_xz(bytes(3073)))
    bounded(lambda: read_members(path, ["x"]), "Memory usage limit")


HEADERS: dict[str, tuple[str, bytes, str]] = {
    "negative": ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -2)}", bytes(16), r"shape \(-1, -2\)"),
    "a truth value": ("{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}", bytes(8), r"shape \(True,\)"),
    "huge beside empty": (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 0, 4611686018427387904)}", b"", "unpacks to more than",
    ),
    "huge": ("{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}", b"", "its header says"),
    "of nothing": ("{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,)}", b"", "has dtype"),
    "nested": ("-" * 9000 + "1", b"", "is not a readable npz file"),
    "unhashable": ("{[]: 1}", b"", "is not a readable npz file"),
    "pairs": ("{'descr': ('<f4', (3,)), 'fortran_order': False, 'shape': (1,)}", bytes(12), "is not|has dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_arrays(name: str, tmp_path: Path) -> None:
    header, body, message = HEADERS[name]
    member = mutations.npy_of(header, body)
    put(tmp_path / "clients" / "ann.npz", mutations.zip_of([("x.npy", member)]))
    bounded(lambda: fjs.datasets.from_directory(tmp_path / "clients"), message)
    record = put(tmp_path / "run.npz", mutations.zip_of([("about.npy", member)]))
    bounded(lambda: fjs.History.load(record), message)


def test_a_size_that_nothing_can_be_packed_to(tmp_path: Path) -> None:
    """A member that says it unpacks to 4 GiB, and its array's header agrees."""
    member = mutations.npy_of("{'descr': '|u1', 'fortran_order': False, 'shape': (4294967167,)}", b"")
    packed = mutations.zip_of([("x.npy", member)])
    entry = packed.rfind(b"PK\x01\x02")
    packed = packed[: entry + 24] + (4294967167 + len(member)).to_bytes(4, "little") + packed[entry + 28 :]
    put(tmp_path / "ann.npz", packed)
    bounded(lambda: fjs.datasets.from_directory(tmp_path), "cannot be 429496.* bytes packed in")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """Every reader is given a pickle that would write a file, as a file and as an array of objects."""
    canary = tmp_path / "canary"
    content = mutations.pickled(str(canary))
    member = mutations.npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", content)
    for kind, packed in {
        "pickle": content,
        "objects": mutations.zip_of([("x.npy", member), ("about.npy", member)]),
    }.items():
        put(tmp_path / kind / "ann.npz", packed)
        with pytest.raises(ValueError, match=r"ann\.npz"):
            fjs.datasets.from_directory(tmp_path / kind)
        with pytest.raises(ValueError, match=r"ann\.npz"):
            fjs.History.load(tmp_path / kind / "ann.npz")
        for name in ("table.csv", "table.parquet"):
            with pytest.raises((ValueError, TypeError)):
                fjs.datasets.from_table(put(tmp_path / kind / name, packed), client="who")
        with pytest.raises(ValueError, match="is not a json file"):
            fjs.datasets.from_leaf(put(tmp_path / kind / "leaf.json", packed))
        put(tmp_path / kind / "config.json", json.dumps(samples.CONFIG).encode())
        put(tmp_path / kind / "model.safetensors", packed)
        with pytest.raises(ValueError, match="is not a safetensors file"):
            fjs.models.load_pythia(tmp_path / kind, 2)
        with pytest.raises(ValueError, match="an idx file starts with 0000"):
            read_idx(put(tmp_path / kind / "x", packed))
    assert not canary.exists()
    pickle.loads(content).close()
    assert canary.exists()  # the pickle does what it is for


DEEP = ("[" * 100_000, '{"a":' * 100_000, '{"users": ' + "[" * 5000 + "]" * 5000 + "}")


@pytest.mark.parametrize("text", DEEP, ids=["lists", "objects", "closed"])
def test_deep_nesting(text: str, tmp_path: Path) -> None:
    path = put(tmp_path / "deep.json", text.encode())
    bounded(lambda: fjs.datasets.from_leaf(path), r"deep\.json")
    put(tmp_path / "config.json", text.encode())
    bounded(lambda: fjs.models.load_pythia(tmp_path, 2), r"config\.json")
    put(tmp_path / "sweep" / "sweep.json", text.encode())
    bounded(lambda: Folder(tmp_path / "sweep", {}), r"sweep\.json")


def test_a_deep_description() -> None:
    deep: Any = 1.0
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        fjs.build({"name": "optim.sgd", "arguments": {"learning_rate": deep}})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"array": [1.0], "dtype": "O"}, "unknown dtype 'O'"),
        ({"array": ["a"], "dtype": "U99999999"}, "unknown dtype 'U99999999'"),
        ({"array": [1e400], "dtype": "int32"}, "is not one of int32"),
        ({"array": [2**70], "dtype": "int32"}, "is not one of int32"),
        ({"array": [[1], [1, 2]], "dtype": "float32"}, "is not one of float32"),
        ({"array": [1.0], "dtype": [["a", "f4"]]}, "unknown dtype"),
        ({"mapping": 3}, "'mapping' must be one"),
    ],
)
def test_descriptions_of_arrays(argument: Any, message: str) -> None:
    bounded(lambda: fjs.build({"name": "optim.sgd", "arguments": {"learning_rate": argument}}), message)


def test_text_among_the_numbers_of_a_leaf_file(tmp_path: Path) -> None:
    """numpy would make all 2,000 entries as long as the longest one: 16 GB."""
    users = {"ann": {"x": [[1] * 1999 + ["z" * 2_000_000]], "y": [0]}}
    path = put(tmp_path / "a.json", json.dumps({"users": ["ann"], "user_data": users}).encode())
    bounded(lambda: fjs.datasets.from_leaf(path), "x mixes int, str", most=2**26)


def test_repeated_names_are_found_in_one_pass(tmp_path: Path) -> None:
    """Counting each name in the list of all took minutes for a file of a megabyte."""
    names = [str(number) for number in range(30_000)]
    listed = json.dumps({"users": [*names, names[-1]], "user_data": dict.fromkeys(names)})
    bounded(lambda: fjs.datasets.from_leaf(put(tmp_path / "a.json", listed.encode())), "must be once in 'users'")
    twice = "{" + ",".join(f'"{name}":1' for name in [*names, names[-1]]) + "}"
    bounded(lambda: fjs.datasets.from_leaf(put(tmp_path / "a.json", twice.encode())), "twice in one object")


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; this loader reads whole numbers"),
    "text": ({"vocab_size": "5"}, "vocab_size is '5'"),
    "truth": ({"hidden_size": True}, "hidden_size is True"),
    "rope": ({"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
    "base": ({"rotary_emb_base": [1]}, r"rotary_base=...\) is \[1\]"),
    "epsilon": ({"layer_norm_eps": "x"}, r"epsilon=...\) is 'x'"),
    "flag": ({"use_parallel_residual": "no"}, r"parallel=...\) is 'no'"),
    "padding": ({"pad_token_id": [0]}, r"pad_token_id is \[0\]"),
    "heads": ({"num_attention_heads": 3}, "is not the configuration of a GPT-NeoX model"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str, tmp_path: Path) -> None:
    changes, message = CONFIGS[name]
    files = samples.pythia_files()
    put(tmp_path / "config.json", json.dumps(samples.CONFIG | changes).encode())
    put(tmp_path / "model.safetensors", files["one/model.safetensors"])
    bounded(lambda: fjs.models.load_pythia(tmp_path, 3), message)


def record(path: Path, **changes: Any) -> Path:
    """A saved history whose description of itself is changed."""
    arrays = dict(np.load(io.BytesIO(samples.history_files()["run.npz"])))
    about = json.loads(arrays["about"].tobytes()) | changes
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return put(path, npz(**arrays))


def test_files_of_later_versions_say_so(tmp_path: Path) -> None:
    fjs.History.load(record(tmp_path / "run.npz"))  # else what follows would pass for a wrong reason
    with pytest.raises(
        ValueError, match=r"run\.npz has format 3, and this version of fedjax_sim knows formats up to 2"
    ):
        fjs.History.load(record(tmp_path / "run.npz", format=3, something_new={}))
    folder = tmp_path / "sweep"
    Folder(folder, {"rounds": 1}).close()
    about = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(about | {"format": 3, "configuration": "of another kind"}))
    with pytest.raises(ValueError, match=r"sweep\.json has format 3, and this version of fedjax_sim knows"):
        Folder(folder, {"rounds": 1})
    (folder / "sweep.json").write_text(json.dumps(about | {"format": None}))
    with pytest.raises(ValueError, match=r"sweep\.json has format None: it must be a number from 1 to 2"):
        Folder(folder, {"rounds": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": "01"}, "its seeds are '01'"),
        ({"seeds": [0]}, "first axes are"),
        ({"seconds": "long"}, "its seconds are 'long'"),
        ({"description": [1]}, r"its description is \[1\]"),
        ({"format": "1"}, "format '1': it must be a number from 1 to 2"),
        ({"format": 0}, "format 0: it must be"),
        ({"dtypes": {"evaluated": "O"}}, "unknown dtype 'O'"),
        ({"dtypes": [1]}, "is not a result of fedjax_sim"),
        ({"params": {"a": 77}}, "is not a result of fedjax_sim"),
    ],
)
def test_records_of_other_shapes(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    bounded(lambda: fjs.History.load(record(tmp_path / "run.npz", **changes)), message)


def test_runs_that_are_there_twice(tmp_path: Path) -> None:
    folder = Folder(tmp_path, samples.CONFIGURATION)
    folder.add([0, 1], samples.history())
    (tmp_path / "runs-000009.npz").write_bytes((tmp_path / "runs-000000.npz").read_bytes())
    with pytest.raises(ValueError, match=r"runs-000009\.npz has run 0, and so has runs-000000\.npz"):
        folder.finished()
    (tmp_path / "runs-000009.npz").unlink()
    folder.add([2], samples.history())
    with pytest.raises(ValueError, match=r"runs-000002\.npz does not say which runs it has"):
        folder.finished()


PARKINSONS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no rows": (lambda content: content.partition(b"\n")[0] + b"\n", "has no rows"),
    "few columns": (lambda content: content.partition(b"\n")[0] + b"\n1,2\n", "2 fields and not 22"),
    "not a number": (lambda content: content.replace(b"\n1,", b"\nnan,"), "missing or infinite"),
    "half a patient": (lambda content: content.replace(b"\n1,", b"\n1.5,"), r"not whole, or too large, first 1\.5"),
}


@pytest.mark.parametrize("name", PARKINSONS)
def test_patients_that_are_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    place = "parkinsons_telemonitoring/parkinsons_updrs.data"
    change, message = PARKINSONS[name]
    put(tmp_path / place, change(samples.table_files()[place]))
    bounded(lambda: fjs.datasets.parkinsons(verify=False), message)


@pytest.mark.parametrize(
    ("place", "content", "call", "message"),
    [
        ("ag_news/train.csv", b"", lambda: fjs.datasets.ag_news(2, verify=False), "has no articles"),
        (
            "shakespeare/tinyshakespeare_input.txt", b"FOOL:\nNo.\n",
            lambda: fjs.datasets.tinyshakespeare(verify=False), "none of 1 roles",
        ),
        (
            "shakespeare/tinyshakespeare_input.txt", b"\xff\xfe",
            lambda: fjs.datasets.tinyshakespeare(verify=False), "input.txt is not text",
        ),
        (
            "shakespeare/moby_speeches.jsonl.gz", gzip.compress(b'{"play": "p", "speaker": "s", "lines": "abc"}'),
            lambda: fjs.datasets.shakespeare_roles(verify=False), "line 1: no speech",
        ),
        (
            "shakespeare/moby_speeches.jsonl.gz", gzip.compress(b"[" * 100_000),
            lambda: fjs.datasets.shakespeare_roles(verify=False), "line 1: no speech",
        ),
    ],
    ids=["no articles", "no long roles", "bytes", "lines", "deep"],
)  # fmt: skip
def test_other_sources(
    place: str, content: bytes, call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    put(tmp_path / "ag_news/test.csv", samples.news_files()["ag_news/test.csv"])
    put(tmp_path / place, content)
    bounded(call, message)
