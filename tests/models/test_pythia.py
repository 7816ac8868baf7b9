"""Checkpoints in Hugging Face's layout: logits against a forward pass of its own in numpy, and what is refused."""

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.optim import third_party

safetensors_numpy = pytest.importorskip(
    "safetensors.numpy", reason="needs safetensors (pip install 'fedjax_sim[text]')"
)

CONFIG: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 23, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "rotary_pct": 0.5, "rotary_emb_base": 100, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
}  # fmt: skip
EMBED = "gpt_neox.embed_in.weight"
Tensors = dict[str, np.ndarray]


def checkpoint(config: dict[str, Any] = CONFIG, seed: int = 0, head: int | None = None) -> Tensors:
    """Random tensors, large enough that nothing is nearly linear."""
    rng = np.random.default_rng(seed)
    d, inside, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "gpt_neox.embed_in.weight": (vocabulary, d),
        "embed_out.weight": (vocabulary, d),
    }
    linear = {
        "attention.query_key_value": (3 * d, d), "attention.dense": (d, d),
        "mlp.dense_h_to_4h": (inside, d), "mlp.dense_4h_to_h": (d, inside),
    }  # fmt: skip
    for i in range(config["num_hidden_layers"]):
        for name, shape in linear.items():
            shapes[f"gpt_neox.layers.{i}.{name}.weight"] = shape
            shapes[f"gpt_neox.layers.{i}.{name}.bias"] = shape[:1]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        for i in range(config["num_hidden_layers"]):
            shapes |= {f"gpt_neox.layers.{i}.{norm}.{part}": (d,) for part in ("weight", "bias")}
    shapes |= {f"gpt_neox.final_layer_norm.{part}": (d,) for part in ("weight", "bias")}
    if head is not None:
        shapes["score.weight"] = (head, d)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def written(folder: pathlib.Path, tensors: Tensors, config: dict[str, Any] = CONFIG) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors_numpy.save_file(tensors, folder / "model.safetensors")
    return folder


# The architecture again, one sequence and one head at a time, from the papers' description and the files' layout.


def normed(x: np.ndarray, w: Tensors, name: str, eps: float) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def dense(x: np.ndarray, w: Tensors, name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def rotated(x: np.ndarray, position: int, rotary: int, base: float) -> np.ndarray:
    """A head's vector at a position: pairs (j, j + r/2) as complex numbers, turned."""
    half = rotary // 2
    pairs = x[:half] + 1j * x[half:rotary]
    turned = pairs * np.exp(1j * position * base ** (-2 * np.arange(half) / rotary))
    return np.concatenate([turned.real, turned.imag, x[rotary:]])


def forward(tensors: Tensors, config: dict[str, Any], tokens: np.ndarray) -> np.ndarray:
    """Last layer's states [T, d] of one sequence, float64."""
    w = {name.removeprefix("gpt_neox."): tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    size = config["hidden_size"] // heads
    rotary = int(size * config["rotary_pct"])
    h = w["embed_in.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        at = f"layers.{i}"
        fused = dense(normed(h, w, f"{at}.input_layernorm", eps), w, f"{at}.attention.query_key_value")
        mixed = np.zeros_like(h)
        for head in range(heads):
            own = fused[:, 3 * size * head : 3 * size * (head + 1)]
            q, k, v = own[:, :size], own[:, size : 2 * size], own[:, 2 * size :]
            q = np.stack([rotated(q[t], t, rotary, config["rotary_emb_base"]) for t in range(len(tokens))])
            k = np.stack([rotated(k[t], t, rotary, config["rotary_emb_base"]) for t in range(len(tokens))])
            for t in range(len(tokens)):
                e = np.exp(q[t] @ k[: t + 1].T / math.sqrt(size))
                mixed[t, size * head : size * (head + 1)] = e / e.sum() @ v[: t + 1]
        attended = dense(mixed, w, f"{at}.attention.dense")
        base = h if config["use_parallel_residual"] else h + attended
        inside = dense(normed(base, w, f"{at}.post_attention_layernorm", eps), w, f"{at}.mlp.dense_h_to_4h")
        inside = inside * (1 + np.vectorize(math.erf)(inside / math.sqrt(2))) / 2
        h = base + dense(inside, w, f"{at}.mlp.dense_4h_to_h")
        h = h + attended if config["use_parallel_residual"] else h
    return normed(h, w, "final_layer_norm", eps)


TOKENS = np.array([[5, 3, 22, 9, 1, 1], [7, 1, 4, 2, 8, 1], [2, 6, 9, 14, 15, 3]], np.int32)  # 1 is the padding
ENDS = [3, 4, 5]


def expected(tensors: Tensors, config: dict[str, Any] = CONFIG) -> np.ndarray:
    ends = [forward(tensors, config, row)[end] for row, end in zip(TOKENS, ENDS, strict=True)]
    return np.stack(ends) @ tensors["score.weight"].astype(np.float64).T


def logits(model: Any, params: Any) -> np.ndarray:
    with third_party():
        return np.asarray(jax.jit(model.apply)(params, jnp.asarray(TOKENS)))


@pytest.mark.parametrize(
    "parallel", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["parallel", "sequential"]
)
def test_logits_in_double_precision(tmp_path: pathlib.Path, parallel: bool, x64: None) -> None:
    config = CONFIG | {"use_parallel_residual": parallel}
    tensors = checkpoint(config, head=4)
    model, params = fjs.models.load_pythia(
        written(tmp_path, tensors, config), num_classes=4, padding=1, param_dtype=jnp.float64
    )
    np.testing.assert_allclose(logits(model, params), expected(tensors, config), rtol=1e-10, atol=1e-10)


def test_logits_in_single_precision(tmp_path: pathlib.Path) -> None:
    tensors = checkpoint(head=4)
    model, params = fjs.models.load_pythia(written(tmp_path, tensors), 4, padding=1)
    np.testing.assert_allclose(logits(model, params), expected(tensors), rtol=1e-5, atol=1e-5)


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b))
    )


def test_the_parameters_are_those_of_the_model(tmp_path: pathlib.Path) -> None:
    """Names and shapes as ``init`` makes them; the new head depends on the seed alone."""
    model, params = fjs.models.load_pythia(written(tmp_path, checkpoint()), 5, seed=3)
    with third_party():
        made = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), made)
    assert same(params, fjs.models.load_pythia(tmp_path, 5, seed=3)[1])
    other = fjs.models.load_pythia(tmp_path, 5, seed=4)[1]["params"]
    assert same(params["params"]["decoder"], other["decoder"])
    assert not same(params["params"]["head"], other["head"])


@pytest.mark.slow
def test_it_is_fine_tuned(tmp_path: pathlib.Path) -> None:
    model, params = fjs.models.load_pythia(written(tmp_path, checkpoint()), 3, padding=1)
    data = fjs.datasets.from_ids((TOKENS, [0, 1, 2]), [0, 0, 1])
    train = fjs.make_train(
        task=fjs.classification(model), rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1), batch_size=2
    )
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01))
    result = jax.jit(train)(algorithm, data, jax.random.key(0), initial_params=params)
    assert result.metrics["loss"][1] < result.metrics["loss"][0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_are_converted(tmp_path: pathlib.Path, dtype: str) -> None:
    narrow = {name: tensor.astype(jnp.dtype(dtype)) for name, tensor in checkpoint().items()}
    _, params = fjs.models.load_pythia(written(tmp_path / "narrow", narrow), 3)
    wide = {name: tensor.astype(np.float32) for name, tensor in narrow.items()}
    assert same(params, fjs.models.load_pythia(written(tmp_path / "wide", wide), 3)[1])


def shards(folder: pathlib.Path, tensors: Tensors) -> dict[str, str]:
    """The checkpoint in two files and an index, which is returned."""
    written(folder, {})
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        safetensors_numpy.save_file({n: tensors[n] for n in names if places[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_forms_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """In parts, of the bare decoder, with what old versions stored: all the same parameters."""
    tensors = checkpoint()
    expected_params = fjs.models.load_pythia(written(tmp_path / "whole", tensors), 3)
    shards(tmp_path / "parts", tensors)
    assert same(fjs.models.load_pythia(tmp_path / "parts", 3)[1], expected_params[1])
    bare = {n.removeprefix("gpt_neox."): t for n, t in tensors.items() if n != "embed_out.weight"}
    assert same(fjs.models.load_pythia(written(tmp_path / "bare", bare), 3)[1], expected_params[1])
    old = {
        "gpt_neox.layers.0.attention.bias": np.ones((1, 1, 4, 4), bool),
        "gpt_neox.layers.1.attention.masked_bias": np.array(-1e9, np.float32),
        "gpt_neox.layers.1.attention.rotary_emb.inv_freq": np.ones(2, np.float32),
    }
    assert same(fjs.models.load_pythia(written(tmp_path / "old", tensors | old), 3)[1], expected_params[1])
    config = {k: v for k, v in CONFIG.items() if k not in ("rotary_pct", "rotary_emb_base")}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 100, "partial_rotary_factor": 0.5}
    assert fjs.models.load_pythia(written(tmp_path / "new", tensors, config), 3)[0] == expected_params[0]


def test_heads(tmp_path: pathlib.Path) -> None:
    tensors = checkpoint(head=3)
    folder = written(tmp_path, tensors, CONFIG | {"pad_token_id": 1})
    model, params = fjs.models.load_pythia(folder, 3)
    assert model.padding == 1
    np.testing.assert_array_equal(params["params"]["head"]["kernel"], tensors["score.weight"].T)
    with pytest.raises(ValueError, match=r"score.weight has shape \(3, 24\), not \(4, 24\); .*new_head=True"):
        fjs.models.load_pythia(folder, 4)
    assert fjs.models.load_pythia(folder, 4, new_head=True)[1]["params"]["head"]["kernel"].shape == (24, 4)


# What is refused.


def change_config(**changes: Any) -> Callable[[pathlib.Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG | changes))


def change_tensors(change: Callable[[Tensors], Tensors]) -> Callable[[pathlib.Path], object]:
    return lambda folder: written(folder, change(checkpoint()))


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def point_outside(folder: pathlib.Path) -> None:
    places = shards(folder, checkpoint())
    places["gpt_neox.embed_in.weight"] = "../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def lose_a_part(folder: pathlib.Path) -> None:
    shards(folder, checkpoint())
    (folder / "model-00002-of-00002.safetensors").unlink()


def pickled(folder: pathlib.Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BAD: dict[str, tuple[Callable[[pathlib.Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "config is no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[]"), "holds list: it must hold a JSON"),
    "another model": (change_config(model_type="gpt2"), "model_type is 'gpt2'; this loader reads 'gpt_neox'"),
    "no size": (change_config(model_type="gpt_neox", hidden_size=None), "hidden_size is None; this loader reads whole"),
    "activation": (change_config(hidden_act="gelu_new"), "hidden_act is 'gelu_new'"),
    "dropout": (change_config(hidden_dropout=0.1), "hidden_dropout is 0.1"),
    "no attention bias": (change_config(attention_bias=False), "attention_bias is False"),
    "scaled rotations": (change_config(rope_scaling={"type": "linear", "factor": 2.0}), "type is 'linear'"),
    "more layers": (change_config(num_hidden_layers=3), r"does not have gpt_neox.layers.2.* and 7 more"),
    "fewer layers": (change_config(num_hidden_layers=1), r"has, beyond the model.*gpt_neox.layers.1"),
    "another width": (change_config(intermediate_size=48), r"has shape \(\d+,.*\), not \("),
    "a tensor less": (change_tensors(without(EMBED)), f"does not have {EMBED}"),
    "a tensor more": (change_tensors(lambda t: t | {"extra.weight": np.ones(1)}), "extra.weight"),
    "integers": (change_tensors(lambda t: t | {EMBED: t[EMBED].astype(np.int8)}), f"{EMBED} is I8; weights must be"),
    "transposed": (change_tensors(lambda t: t | {EMBED: t[EMBED].T.copy()}), r"has shape \(24, 23\), not \(23, 24\)"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "pickled": (pickled, "pickled checkpoint, which can run code"),
    "no safetensors": (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "is not a safetensors file"),
    "cut short": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8]),
        "is not a safetensors file",
    ),
    "outside the directory": (point_outside, r"'\.\./elsewhere.safetensors': only files of its directory"),
    "a part is missing": (lose_a_part, "model-00002-of-00002.safetensors is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_checkpoints(tmp_path: pathlib.Path, case: str) -> None:
    spoil, message = BAD[case]
    folder = written(tmp_path / "checkpoint", checkpoint())
    spoil(folder)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        fjs.models.load_pythia(folder, 3)


def test_the_extra_is_named_where_safetensors_is_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, checkpoint())
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_sim\[text\]'"):
        fjs.models.load_pythia(folder, 3)
