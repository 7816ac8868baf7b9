"""Pretrained GPT-NeoX weights from a Hugging Face checkpoint directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from fedjax_sim.core.files import check_regular, json_object, parsing, read_json
from fedjax_sim.core.values import LARGEST_SEED, check_count, check_flag, shown
from fedjax_sim.models.base import wide
from fedjax_sim.models.transformer import GPTNeoX, GPTNeoXClassifier

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F16", "BF16", "F32", "F64")
_HEAD = "score.weight"
# Sizes by our name: that in a configuration, and the largest that is believed, far beyond any model's.
_SIZES = {
    "vocabulary": ("vocab_size", 2**24),
    "width": ("hidden_size", 2**24),
    "layers": ("num_hidden_layers", 1000),
    "heads": ("num_attention_heads", 2**24),
    "feedforward": ("intermediate_size", 2**24),
}
# The next-token matrix, a head that is replaced, and masks and frequencies that old versions stored.
_UNUSED = re.compile(r"(embed_out|score)\.weight|.*\b(attention\.(bias|masked_bias)|rotary_emb\.inv_freq)")


class _Target(NamedTuple):
    """Where a tensor goes: its path in the parameters, its shape in the file, and whether it is transposed there."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False


def load_pythia(
    directory: str | os.PathLike[str],
    num_classes: int,
    *,
    padding: int | None = None,
    new_head: bool = False,
    seed: int = 0,
    param_dtype: Any = jnp.float32,
) -> tuple[GPTNeoXClassifier, dict[str, Any]]:
    """A classifier with a checkpoint's weights: Pythia of any size, or another GPT-NeoX model.

    ``model, params = load_pythia(directory, 4)``, then ``fjs.classification(model)`` as the task and
    ``initial_params=params`` for ``simulate`` or ``train``. Needs the package safetensors
    (``pip install 'fedjax_sim[text]'``). Pickled checkpoints (``pytorch_model.bin``) are not read.

    Args:
      directory: holds ``config.json`` and ``model.safetensors``, or ``model.safetensors.index.json`` and the files that
        it names, as downloaded from https://huggingface.co/EleutherAI/pythia-70m or written by ``save_pretrained``.
      num_classes: outputs of the classifier.
      padding: the padding token; None takes ``pad_token_id`` of the configuration (Pythia's own has none: texts are
        then read at their last position).
      new_head: whether to ignore the checkpoint's own classification head (``score.weight``), if it has one.
      seed: of the head, N(0, 0.02²), where the checkpoint has none.
      param_dtype: what the weights are converted to.

    Returns:
      The model and its parameters.

    Raises:
      ImportError: safetensors is not installed.
      FileNotFoundError: a file is missing.
      ValueError: another architecture, a setting that the model does not have, a tensor that is missing, unknown, of
        another shape or not of a floating-point type, a head for another number of classes, or a file name that leaves
        the directory.

    Example:
      >>> model, params = load_pythia("pythia-70m", num_classes=4, padding=1)  # doctest: +SKIP
    """
    check_count("load_pythia(num_classes=...)", num_classes)
    check_flag("load_pythia(new_head=...)", new_head)
    check_count("load_pythia(seed=...)", seed, low=0, high=LARGEST_SEED)
    folder = Path(directory)
    path = folder / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: a checkpoint directory holds config.json and {_SINGLE}")
    config = json_object(path, read_json(path, fix="download it again"))
    decoder = _decoder(config, path, param_dtype)
    if padding is None:
        padding = config.get("pad_token_id")
        if padding is not None and (type(padding) is not int or not 0 <= padding < decoder.vocabulary):
            raise ValueError(f"{path}: pad_token_id is {shown(padding)}: no token; give padding=")
    model = GPTNeoXClassifier(num_classes, decoder, padding)
    places = _tensors(folder)
    # A checkpoint of the bare decoder has no prefix.
    prefix = "gpt_neox." if any(name.startswith("gpt_neox.") for name in places) else ""
    targets = {prefix + name: target for name, target in _targets(decoder)}
    if _HEAD in places and not new_head:
        targets[_HEAD] = _Target(("head", "kernel"), (num_classes, decoder.width), transposed=True)
    _check_names(folder, set(places), set(targets))
    leaves: dict[tuple[str, ...], jax.Array] = {}
    for file in sorted({places[name] for name in targets}):
        wanted = {name: target for name, target in targets.items() if places[name] == file}
        for target, array in _read(file, wanted):
            leaves[target.path] = jnp.asarray(array.T if target.transposed else array, param_dtype)
    if _HEAD not in targets:
        normal = wide(nn.initializers.normal(0.02))
        leaves["head", "kernel"] = normal(jax.random.key(seed), (decoder.width, num_classes), param_dtype)
    return model, {"params": unflatten_dict(leaves)}


def _decoder(config: Mapping[str, Any], path: Path, param_dtype: Any) -> GPTNeoX:
    """The architecture that a configuration describes."""
    get: Any = config.get

    def require(good: bool, name: str, value: Any, allowed: str) -> None:
        if not good:
            raise ValueError(f"{path}: {name} is {shown(value)}; this loader reads {allowed}")

    require(get("model_type") == "gpt_neox", "model_type", get("model_type"), "'gpt_neox' (Pythia, GPT-NeoX)")
    require(get("hidden_act", "gelu") == "gelu", "hidden_act", get("hidden_act"), "'gelu', the exact one")
    require(get("attention_bias", True), "attention_bias", False, "attention with biases")
    for name in ("hidden_dropout", "attention_dropout"):
        require(not get(name), name, get(name), "models without dropout: set it to 0 if you do not need it")
    # Configurations written since version 5 of transformers keep the rotary settings together.
    rope, scaling = get("rope_parameters") or {}, get("rope_scaling") or {}
    for name, value in (("rope_parameters", rope), ("rope_scaling", scaling)):
        require(isinstance(value, dict), name, value, "JSON objects there")
    for kind in (rope.get("rope_type", "default"), scaling.get("rope_type", scaling.get("type", "default"))):
        require(kind == "default", "the rotary embedding's type", kind, "'default'")
    for name, most in _SIZES.values():
        allowed = f"whole numbers from 1 to {most}"
        require(type(get(name)) is int and 1 <= get(name) <= most, name, get(name), allowed)
    with parsing(path, "is not the configuration of a GPT-NeoX model", "is it the checkpoint's own?"):
        return GPTNeoX(
            **{ours: get(name) for ours, (name, _) in _SIZES.items()},
            rotary=rope.get("partial_rotary_factor", get("rotary_pct", 0.25)),
            rotary_base=rope.get("rope_theta", get("rotary_emb_base", 10_000)),
            parallel=get("use_parallel_residual", True),
            epsilon=get("layer_norm_eps", 1e-5),
            param_dtype=param_dtype,
        )


def _targets(decoder: GPTNeoX) -> Iterator[tuple[str, _Target]]:
    """Every tensor of the decoder: its name in the file, without prefix, and where it goes."""
    width, inside = decoder.width, decoder.feedforward

    def norm(theirs: str, ours: str) -> Iterator[tuple[str, _Target]]:
        yield f"{theirs}.weight", _Target(("decoder", ours, "scale"), (width,))
        yield f"{theirs}.bias", _Target(("decoder", ours, "bias"), (width,))

    def dense(theirs: str, ours: str, inputs: int, outputs: int) -> Iterator[tuple[str, _Target]]:
        yield f"{theirs}.weight", _Target(("decoder", ours, "kernel"), (outputs, inputs), transposed=True)
        yield f"{theirs}.bias", _Target(("decoder", ours, "bias"), (outputs,))

    yield "embed_in.weight", _Target(("decoder", "embedding", "embedding"), (decoder.vocabulary, width))
    for i in range(decoder.layers):
        theirs, ours = f"layers.{i}", f"layer{i}"
        yield from norm(f"{theirs}.input_layernorm", f"{ours}_attention_norm")
        yield from norm(f"{theirs}.post_attention_layernorm", f"{ours}_mlp_norm")
        yield from dense(f"{theirs}.attention.query_key_value", f"{ours}_query_key_value", width, 3 * width)
        yield from dense(f"{theirs}.attention.dense", f"{ours}_attention_out", width, width)
        yield from dense(f"{theirs}.mlp.dense_h_to_4h", f"{ours}_mlp_in", width, inside)
        yield from dense(f"{theirs}.mlp.dense_4h_to_h", f"{ours}_mlp_out", inside, width)
    yield from norm("final_layer_norm", "final_norm")


def _tensors(folder: Path) -> dict[str, Path]:
    """The file of every tensor of a checkpoint."""
    if (folder / _SINGLE).exists():
        with _open(folder / _SINGLE) as file:
            return dict.fromkeys(file.keys(), folder / _SINGLE)
    if not (folder / _INDEX).exists():
        advice = "download the files of https://huggingface.co/EleutherAI/pythia-70m into it, for instance"
        if any(folder.glob("pytorch_model*.bin")):
            advice = (
                "it has a pickled checkpoint, which can run code when it is read and is refused: load it with "
                "transformers and write it again with save_pretrained(..., safe_serialization=True)"
            )
        raise FileNotFoundError(f"{folder} has neither {_SINGLE} nor {_INDEX}: {advice}")
    places = json_object(folder / _INDEX, read_json(folder / _INDEX)).get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{folder / _INDEX} has no mapping 'weight_map'")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            raise ValueError(f"{folder / _INDEX} names the file {shown(name)}: only files of its directory are read")
        if not os.path.exists(folder / name):  # no error for a name that is too long
            raise FileNotFoundError(f"{folder / name[:200]} is missing, but {_INDEX} lists it: download all files")
    return {tensor: folder / name for tensor, name in places.items()}


def _check_names(folder: Path, found: set[str], wanted: set[str]) -> None:
    missing, unknown = sorted(wanted - found), sorted(n for n in found - wanted if not _UNUSED.fullmatch(n))
    for what, names in (("does not have", missing), ("has, beyond the model of its config.json,", unknown)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            some = ", ".join(name[:200] for name in names[:5])
            raise ValueError(f"the checkpoint {folder} {what} {some}{more}: is config.json its own?")


def _read(path: Path, wanted: Mapping[str, _Target]) -> Iterator[tuple[_Target, Any]]:
    """The wanted tensors of one file; shapes and types are looked at before anything is read."""
    with _open(path) as file:
        for name, target in wanted.items():
            if name not in file.keys():  # noqa: SIM118, a file is no mapping
                raise ValueError(f"{path} does not have {name}, which {_INDEX} says it has")
            header = file.get_slice(name)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            if shape != target.shape:
                advice = "; give num_classes to match, or new_head=True" if name == _HEAD else ""
                raise ValueError(f"{path}: {name} has shape {shape}, not {target.shape}{advice}")
            if dtype not in _FLOATS:
                raise ValueError(f"{path}: {name} is {dtype}; weights must be one of {', '.join(_FLOATS)}")
        for name, target in wanted.items():
            yield target, file.get_tensor(name)


def _open(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError("reading checkpoints needs safetensors: pip install 'fedjax_sim[text]'") from error
    check_regular(path)
    with parsing(path, "is not a safetensors file", "download it again"):
        return safe_open(path, framework="numpy")
