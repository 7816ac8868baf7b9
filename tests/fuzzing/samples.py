"""Small valid files of every format that the package reads, by their paths in a folder."""

import csv
import dataclasses
import functools
import gzip
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.reporting.divergence import Divergence
from fedjax_sim.run.checkpoints import Store
from fedjax_sim.run.configuration import writing
from fedjax_sim.run.history import History
from fedjax_sim.run.records import Stop
from fedjax_sim.studies.sweeps.stored import Folder
from tests.fuzzing import mutations

Files = dict[str, bytes]


def _idx(array: np.ndarray) -> bytes:
    code = {"uint8": 8, "int16": 11, "int32": 12, "float32": 13}[array.dtype.name]
    head = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def _npz(compressed: bool = True, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


@functools.cache
def idx_files() -> Files:
    return {
        "plain": _idx(_rng().integers(0, 9, (5, 3, 2)).astype(np.int16)),
        "packed.gz": gzip.compress(_idx(_rng().integers(0, 9, (4, 6)).astype(np.uint8))),
    }


@functools.cache
def mnist_files() -> Files:
    rng, files = _rng(), {}
    for stem in ("train", "t10k"):
        files[f"mnist/{stem}-images-idx3-ubyte.gz"] = gzip.compress(
            _idx(rng.integers(0, 256, (6, 28, 28), np.uint8)), 1
        )
        files[f"mnist/{stem}-labels-idx1-ubyte.gz"] = gzip.compress(_idx(rng.integers(0, 10, 6, np.uint8)))
    return files


@functools.cache
def cifar_files() -> Files:
    rng, members = _rng(), []
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = rng.integers(0, 10, (4, 3073), np.uint8)
        members.append((tarfile.TarInfo(f"cifar-10-batches-bin/{name}"), records.tobytes()))
    return {"cifar10/cifar-10-binary.tar.gz": gzip.compress(mutations.tar_of(members), 1)}


@functools.cache
def archive_files() -> Files:
    members = [("in/a", b"first" * 30), ("in/b", bytes(200)), ("in/c", b"unwanted")]
    return {"archive.tar": mutations.tar_of([(tarfile.TarInfo(name), content) for name, content in members])}


@functools.cache
def directory_files() -> Files:
    rng, files = _rng(), {}
    for part, count in (("train", 4), ("test", 2)):
        for name in ("ann", "rob"):
            x = rng.normal(size=(count, 3)).astype(np.float32)
            files[f"{part}/{name}.npz"] = _npz(part == "train", x=x, y=rng.integers(0, 3, count))
    return files


@functools.cache
def _rows() -> list[list[str]]:
    rng = _rng()
    head = ["who", "age", "dose", "smoker", "ill"]
    body = [
        [f"c{i % 3}", str(rng.integers(20, 80)), f"{rng.normal():.4f}", "yes" if i % 2 else "no", str(i % 2)]
        for i in range(12)
    ]
    return [head, *body]


def _csv(rows: list[list[str]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue().encode()


@functools.cache
def csv_files() -> Files:
    return {"table.csv": _csv(_rows()), "packed.csv.gz": gzip.compress(_csv(_rows()))}


@functools.cache
def parquet_files() -> Files:
    import pyarrow
    from pyarrow import parquet

    head, *body = _rows()
    columns = dict(zip(head, zip(*body, strict=True), strict=True))
    table = pyarrow.table(
        {
            "who": list(columns["who"]),
            "age": [int(value) for value in columns["age"]],
            "dose": [float(value) for value in columns["dose"]],
            "smoker": list(columns["smoker"]),
            "ill": [int(value) for value in columns["ill"]],
        }
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="gzip")
    return {"table.parquet": sink.getvalue()}


@functools.cache
def leaf_files() -> Files:
    users = {
        "ann": {"x": [[0.5, 1.0], [1.5, -2.0], [0.1, 0.2]], "y": [0, 1, 1]},
        "rob": {"x": [[2.5, 0.0]], "y": [2]},
    }
    content = {"users": list(users), "num_samples": [3, 1], "user_data": users}
    held = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [[1.0, 2.0]], "y": [1]}}}
    return {"train/all_data_0.json": json.dumps(content).encode(), "test/all_data_0.json": json.dumps(held).encode()}


@functools.cache
def news_files() -> Files:
    rows = [[str(i % 4 + 1), f"title {i}", f"the text, of {i}"] for i in range(8)]
    return {"ag_news/train.csv": _csv(rows), "ag_news/test.csv": _csv(rows[:4])}


@functools.cache
def tweets_files() -> Files:
    rows = [["4" if i % 2 else "0", str(i), "Mon", "NO_QUERY", f"user{i % 3}", f"hello you {i}"] for i in range(12)]
    return {"sent140/training.1600000.processed.noemoticon.csv": _csv(rows)}


@functools.cache
def plays_files() -> Files:
    speeches = [{"play": "Lear", "speaker": name, "lines": ["to be or not", "nuncle"]} for name in ("FOOL", "KENT") * 2]
    packed = gzip.compress("".join(json.dumps(speech) + "\n" for speech in speeches).encode())
    spoken = b"FOOL:\nNuncle, give me an egg.\n\nKENT:\nThis is not altogether fool, my lord.\n\nFOOL:\nNo, faith.\n"
    return {"shakespeare/moby_speeches.jsonl.gz": packed, "shakespeare/tinyshakespeare_input.txt": spoken}


@functools.cache
def table_files() -> Files:
    from fedjax_sim.datasets.sources.tables import PARKINSONS_HEADER

    rng, columns = _rng(), PARKINSONS_HEADER.split(",")
    rows = [[str(i % 3 + 1), *(f"{value:.5f}" for value in rng.normal(size=len(columns) - 1))] for i in range(9)]
    mushrooms = "".join(f"{i % 2 + 1} {i + 1}:1 {i + 20}:1 112:1\n" for i in range(8))
    return {
        "parkinsons_telemonitoring/parkinsons_updrs.data": _csv([columns, *rows]).replace(b"\r\n", b"\n"),
        "mushrooms/mushrooms_train": mushrooms.encode(),
    }


@functools.cache
def people_files() -> Files:
    from fedjax_sim.datasets.sources.activity import WISDM_HEADER

    rng = _rng()
    signals, images = io.BytesIO(), io.BytesIO()
    np.save(signals, rng.integers(-800, 800, (400, 6)).astype(np.int16))
    np.save(images, rng.integers(0, 255, (3, 28, 28)).astype(np.uint8))
    pocket = [[str(i), str(i % 2 + 1), *(f"{value:.2f}" for value in rng.normal(size=43)), "Walking"] for i in range(6)]
    census = "39, Private, 7, HS-grad, 9, Divorced, Sales, Wife, White, Female, 0, 0, 40, ?, {}\n"
    return {
        "hapt_smartphone/hapt_signals_int16.npy.xz": signals.getvalue(),  # packed or not is told by the first bytes
        "hapt_smartphone/experiments.csv": b"exp,user,first_row,rows\n1,1,0,400\n",
        "hapt_smartphone/segments.csv": b"exp,user,activity,start,end\n1,1,5,1,300\n1,1,7,301,310\n",
        "wisdm_transformed/wisdm_v1.1_transformed.csv": _csv([WISDM_HEADER, *pocket]),
        "leaf_femnist_520/femnist_images_uint8.npy": images.getvalue(),
        "leaf_femnist_520/femnist_labels.csv": b"row,writer,label\n0,f0,3\n1,f0,61\n2,f0,9\n",
        "adult/adult.data": "".join(census.format(income) for income in ("<=50K", ">50K")).encode(),
        "adult/adult.test": f"|1x3\n{census.format('>50K.')}".encode(),
    }


CONFIG: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 6, "rotary_pct": 0.5, "rotary_emb_base": 100, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    "use_parallel_residual": True, "pad_token_id": 1,
}  # fmt: skip


@functools.cache
def pythia_files() -> Files:
    from safetensors.numpy import save

    layer = {
        "attention.query_key_value": (24, 8), "attention.dense": (8, 8), "mlp.dense_h_to_4h": (6, 8),
        "mlp.dense_4h_to_h": (8, 6),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (5, 8)}
    for name, shape in layer.items():
        shapes |= {f"gpt_neox.layers.0.{name}.weight": shape, f"gpt_neox.layers.0.{name}.bias": shape[:1]}
    for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "final_layer_norm"):
        shapes |= {f"gpt_neox.{norm}.{part}": (8,) for part in ("weight", "bias")}
    tensors = {name: _rng().normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    index = {"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}
    content = save(tensors)
    return {
        "one/config.json": json.dumps(CONFIG).encode(),
        "one/model.safetensors": content,
        "many/config.json": json.dumps(CONFIG).encode(),
        "many/model.safetensors.index.json": json.dumps(index).encode(),
        "many/model-1.safetensors": content,
    }


def history() -> History:
    """A record as ``simulate`` returns it."""
    rng = _rng()
    return History(
        evaluated=np.array([0, 2, 4]),
        metrics={"loss": rng.normal(size=(2, 3)).astype(np.float32), "accuracy": rng.uniform(size=(2, 3))},
        rounds={name: rng.integers(1, 9, (2, 4)) for name in ("cohort_size", "useful_steps", "computed_steps")},
        params={"params": {"dense": {"kernel": rng.normal(size=(2, 3, 2)), "bias": np.zeros((2, 2), "float16")}}},
        seeds=[0, 1],
        seconds=1.5,
        compile_seconds=0.5,
        description={"algorithm": {"name": "algorithm.fedavg", "arguments": {}}, "run": {"rounds": 4}},
    )


def _saved(path: Path, record: History) -> bytes:
    record.save(path)
    content = path.read_bytes()
    path.unlink()
    return content


@functools.cache
def history_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        return {"run.npz": _saved(Path(folder, "run.npz"), history())}


@functools.cache
def record_files() -> Files:
    """A record that has everything a file can have."""
    rng = _rng()
    plain = history()
    broken = np.array([[0, 1, 2, 2], [0] * 4])
    counts = {"nonfinite_clients": broken, "diverged": broken > 1}
    ids = np.full((2, 4, 3), -1, np.int32)
    ids[0, 1:, 0] = 7
    matrix = np.tile(np.eye(3, dtype=np.float32), (2, 4, 1, 1))
    norms = np.sort(rng.uniform(size=(2, 4, 5)).astype(np.float32), axis=-1)
    clock = {name: rng.uniform(1, 9, (2, 4)) for name in ("duration", "bytes_down", "bytes_up")}
    accuracies = {"test_accuracy": rng.uniform(size=(2, 3)), "test_client_accuracy": rng.uniform(size=(2, 3, 6))}
    half = np.asarray(jnp.ones((2, 3), jnp.bfloat16))
    about = {
        "algorithm": fjs.describe(fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1), mu=0.1)),
        "run": {"rounds": 4, "task": fjs.describe(fjs.quadratic()), "cohort": fjs.describe(fjs.cohort.uniform(2))},
        "objective": "sum p_i F_i", "average": "sample", "environment": {"jax": "0.10.1", "float": "float32"},
    }  # fmt: skip
    record = dataclasses.replace(
        plain,
        metrics=plain.metrics | accuracies | {"half": half, "count": np.array([[1, 2, 3]] * 2)},
        rounds=plain.rounds | counts | clock | {"nonfinite_ids": ids, "cosine_matrix": matrix, "update_norms": norms},
        params=plain.params | {"half": half, "none": None, "empty": {}},
        description=about,
        divergences=[Divergence(0, 2, "clients", (7,), "FedProx"), Divergence(1, 4, "loss", (), "FedProx", 10.0)],
        stops={1: Stop(3, "loss reached 0.1")},
    )
    with tempfile.TemporaryDirectory() as folder:
        return {"run.npz": _saved(Path(folder, "run.npz"), record)}


@functools.cache
def swept_files() -> Files:
    """A sweep of four points and two seeds."""
    rng = _rng()
    space = fjs.sweeps.grid({"mu": [0.1, 1.0], "client_optimizer.learning_rate": [0.1, 0.2]})
    about = {
        "algorithm": fjs.describe(fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1), mu=0.1)),
        "run": {"rounds": 4}, "space": fjs.describe(space), "seeds": [3, 5],
    }  # fmt: skip
    record = dataclasses.replace(
        history(),
        metrics={"loss": rng.uniform(size=(8, 3)).astype(np.float32), "test_accuracy": rng.uniform(size=(8, 3))},
        rounds={name: rng.integers(1, 9, (8, 4)) for name in ("cohort_size", "useful_steps", "computed_steps")},
        params={"w": rng.normal(size=(8, 2))}, seeds=[3, 5] * 4, description=about,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return {"sweep.npz": _saved(Path(folder, "sweep.npz"), record)}


CONFIGURATION: dict[str, Any] = {"algorithm": {"name": "algorithm.fedavg"}, "run": {"rounds": 4}, "seeds": [0, 1]}


@functools.cache
def sweep_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        with Folder(folder, CONFIGURATION) as stored:
            stored.add([0, 1], history())
            stored.add([2, 3], history())
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@functools.cache
def description_files() -> Files:
    sgd, model = fjs.optim.sgd(0.1, momentum=0.9), fjs.models.LogisticRegression(3)
    described = [
        fjs.fedprox(client_optimizer=sgd, mu=0.1),
        fjs.ema(fjs.fedavg(client_optimizer=fjs.optim.from_optax("adam", learning_rate=0.1)), decay=0.9),
        fjs.cohort.available(fjs.cohort.uniform(2), fjs.cohort.bernoulli(np.array([0.5, 0.7]))),
        fjs.local.given_steps(np.array([[1, 2], [0, 3]])),
        fjs.classification(model, weight_decay=1e-4),
        fjs.rates.over_rounds([0.1, 0.2]),
    ]
    return {f"{place}.json": json.dumps(fjs.describe(made)).encode() for place, made in enumerate(described)}


@functools.cache
def configuration_files() -> Files:
    """Tables of parts that allocate nothing, in every spelling."""
    sgd = fjs.optim.sgd(0.1, momentum=0.9)
    parts = {
        "algorithm": fjs.fedprox(client_optimizer=sgd, client_learning_rate={"a": 0.5, "name": np.ones(2)}, mu=0.1),
        "cohort": fjs.cohort.available(fjs.cohort.uniform(2), fjs.cohort.bernoulli(np.array([0.5, 0.7]))),
        "work": fjs.local.given_steps(np.array([[1, 2], [0, 3]])),
        "task": fjs.classification(fjs.models.MLP(3), weight_decay=1e-4),
        "stop": fjs.stopping.any_of([fjs.stopping.converged(1e-3), fjs.stopping.reached("accuracy", 0.7)]),
        "server": fjs.optim.from_optax("adam", learning_rate=0.1),
    }
    content = {name: writing.plain(fjs.describe(part)) for name, part in parts.items()}
    text = writing.text({**content, "run": {"rounds": 3, "seeds": [0, 1], "checkpoint": "a 'b' \"c\""}})
    return {"run.toml": text.encode()}


@functools.cache
def checkpoint_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        with Store(folder, keep=3) as store:
            for number in (2, 4):
                arrays = {"params": np.arange(6, dtype=np.float32).reshape(2, 3), "key": np.arange(2, dtype=np.uint32)}
                store.save(number, arrays, {"seeds": [0], "run": {"rounds": 9}})
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.suffix}
