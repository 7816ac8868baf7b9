"""Data sets prepared by tensorflow-datasets, read without TensorFlow, straight from the prepared folder."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_flag, close, suggest
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.from_arrays import check_split
from fedjax_sim.datasets.sources.sharing import clients_of, deal

Partition = Sequence[Any] | Callable[[np.ndarray], Sequence[Any]]

_CHUNK = 1024  # examples decoded before they are packed into arrays: many small objects take more room
_LARGE = 4096  # bytes of a record, on average, from which threads are worth their while
_EXTRA = "pip install 'fedjax_sim[tfds]'"
_PREPARE = (
    "Preparing needs TensorFlow, best in an environment of its own: pip install tensorflow-datasets tensorflow "
    "importlib_resources; reading does not"
)


@recipe("dataset.from_tfds")
def from_tfds(
    name: str,
    split: str = "train",
    partition: Partition | None = None,
    *,
    client: str | None = None,
    validation_split: str | None = None,
    test_split: str | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    features: Mapping[str, str] | None = None,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    scaled: bool = True,
    num_classes: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> FederatedDataset:
    """Any data set that tensorflow-datasets has prepared in the array_record format.

    Neither TensorFlow nor the builder's own code is imported, and nothing is downloaded. Examples come in the order in
    which they are stored, which tensorflow-datasets shuffled when it prepared them.

    Args:
      name: as in ``tfds.builder``: ``"mnist"``, ``"emnist/letters"``, ``"mnist:3.0.1"``, or a builder of your own.
      split: which examples to train on: ``"train"``, ``"train[:10%]"``, ``"train+validation"``, ...
      partition: who holds which of them, where no feature says so: the rows of each client, or a function that makes
        them from the labels "y", for instance ``functools.partial(partition.dirichlet, num_clients=100, alpha=0.1,
        seed=0)`` (:mod:`fedjax_sim.datasets.partition`).
      client: instead of ``partition``: the feature that names the client of each example, an integer or a text.
        Integers become the ``client_ids``; texts are numbered in sorted order.
      validation_split: examples to choose by, as ``test_split``.
      test_split: examples to test on. With ``partition`` they are dealt to the clients uniformly at random, in numbers
        that differ by at most one; with ``client`` everybody gets their own, and a client who has test examples only
        is an error.
      test_fraction: instead of ``test_split``: share of each client's examples to hold out.
      seed: of the held-out examples or their deal.
      features: ``{our name: the builder's feature}``, ``{"x": "image", "y": "label"}``, nested ones as
        ``"outer/inner"``; by default "x" and "y" are the builder's supervised pair. No other feature is decoded.
      transform: makes the pytree that is kept from one example's ``{our name: value}``: arrays, numbers, bytes (of
        texts, which must become numbers) and lists (of sequences, which must become equally long).
      scaled: whether images of bytes become float32 in [0, 1] and do not stay uint8; not with a ``transform``.
      num_classes: by default the builder's own, where "y" is one of its class labels.
      data_dir: the folder that holds the prepared data sets; by default that of tensorflow-datasets.

    Returns:
      The data set. It describes itself fully (:func:`fedjax_sim.describe`) where ``client`` is used without a
      ``transform``; functions are recorded as opaque.

    Raises:
      ImportError: tensorflow-datasets, array-record or pillow is missing.
      FileNotFoundError: the data set is not prepared; the message has the command that prepares it.
      ValueError: a builder, split or feature that does not exist, data in a format without random access, values
        whose shapes differ between examples, or bad values (as in :func:`fedjax_sim.datasets.from_ids`).
      TypeError: texts without a ``transform``, clients that are neither integers nor texts.

    Source: https://www.tensorflow.org/datasets/data_source.
    """
    if (partition is None) == (client is None):
        raise ValueError(
            "from_tfds: who holds the examples? Give either partition=functools.partial(partition.dirichlet, "
            "num_clients=..., alpha=..., seed=...) or client='the feature that names the client'"
        )
    check_split(test_split, test_fraction, seed)  # before anything is read
    check_flag("from_tfds(scaled=...)", scaled)
    builder = _open_builder(name, data_dir)
    columns = _chosen_columns(builder, features, client, transform, scaled)
    classes = columns.num_classes if num_classes is None else num_classes
    examples, ids = _read_split(builder, split, columns)
    held_out: dict[str, Any] = {}
    for part, its_split in (("validation", validation_split), ("test", test_split)):
        if its_split is not None:
            held_out[part], held_out[f"{part}_ids"] = _read_split(builder, its_split, columns)
    if ids is not None:
        return from_ids(examples, ids, **held_out, test_fraction=test_fraction, seed=seed, num_classes=classes)
    if callable(partition):
        if not isinstance(examples, Mapping) or "y" not in examples:
            raise ValueError(
                "from_tfds(partition=...): a function makes the rows of each client from the labels 'y', but the "
                "examples have none: name them, features={'x': ..., 'y': ...}, or give the rows themselves"
            )
        partition = partition(examples["y"])
    assert partition is not None
    if not held_out:
        return from_partition(examples, partition, test_fraction=test_fraction, seed=seed, num_classes=classes)
    for part in ("validation", "test"):
        if part in held_out:
            held_out[f"{part}_ids"] = deal(len(jax.tree.leaves(held_out[part])[0]), len(partition), seed)
    rows, owner = clients_of(partition, examples)
    examples = jax.tree.map(lambda leaf: leaf[rows], examples)
    return from_ids(examples, owner, **held_out, test_fraction=test_fraction, seed=seed, num_classes=classes)


def _open_builder(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    """The read-only builder of a prepared data set.

    Only the prepared folder is looked at: ``tfds.builder`` would import the builder's code, which may import
    TensorFlow, and ask the network for what is not there.
    """
    tfds = _import_tfds()
    place = None if data_dir is None else os.path.expanduser(os.fspath(data_dir))
    if not isinstance(name, str) or not name:
        raise ValueError(f"from_tfds(name={name!r}): give the name of a builder, 'mnist' or 'name/config:1.0.0'")
    try:
        builder = tfds.core.read_only_builder.builder_from_files(name, data_dir=place)
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(tfds, name, place) from error
    except ValueError as error:
        raise ValueError(f"from_tfds(name={name!r}): {error}") from error
    formats, readable = builder.info.available_file_formats(), tfds.core.FileFormat.with_random_access()
    if not formats & readable:
        raise ValueError(
            f"{name} is prepared in {builder.data_dir}, but in the format {_listed(formats)}: only "
            f"{_listed(readable)} can be read one by one and without TensorFlow. Prepare it again into another folder: "
            f"{_command(name, 'ANOTHER_FOLDER')} ({_PREPARE})"
        )
    return builder


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Which features are read, and what becomes of them; made by :func:`_chosen_columns`."""

    paths: Mapping[str, tuple[str, ...]]  # our name of each feature that is kept, and its keys in an example
    dtypes: Mapping[str, np.dtype] | None  # our name of each feature, and the type it is kept in unless transformed
    scaled: frozenset[str]  # our names of the images that are scaled to [0, 1]
    client: tuple[str, ...] | None  # keys of the feature that names the client
    needed: Any  # the features to decode, a tfds.features.FeaturesDict
    transform: Callable[[dict[str, Any]], Any] | None
    num_classes: int | None  # of the class label that is called "y"


def _chosen_columns(
    builder: Any,
    features: Mapping[str, str] | None,
    client: str | None,
    transform: Callable[[dict[str, Any]], Any] | None,
    scaled: bool,
) -> _Columns:
    """The columns that the arguments of ``from_tfds`` mean for this builder."""
    tfds = _import_tfds()
    known = builder.info.features
    nodes = dict(_nodes(tfds, known))
    names = sorted(path for path, node in nodes.items() if not isinstance(node, tfds.features.FeaturesDict))
    if features is None:
        pair = builder.info.supervised_keys
        if pair is None or len(pair) != 2 or not all(isinstance(key, str) for key in pair):
            raise ValueError(
                f"from_tfds: {builder.info.full_name} names no supervised pair ({pair}): say which features to take, "
                f"features={{'x': ..., 'y': ...}}; it has {', '.join(names)}"
            )
        features = {"x": pair[0], "y": pair[1]}
    if not isinstance(features, Mapping) or not features:
        raise ValueError(f"from_tfds(features={features!r}): give {{our name: feature}}, {{'x': 'image', ...}}")
    for path in [*features.values(), *([] if client is None else [client])]:
        if not path or path not in nodes:
            raise ValueError(f"from_tfds: there is no feature {path!r}: {suggest(path, names)}")
    found = {ours: nodes[theirs] for ours, theirs in features.items()}
    paths = {ours: tuple(theirs.split("/")) for ours, theirs in features.items()}
    first = {path[0] for path in paths.values()}
    if client is not None:
        named = nodes[client]
        whole = not isinstance(known[client.split("/")[0]], tfds.features.Sequence) and named.shape == ()
        if not whole or not (_numeric(named, "iu") or isinstance(named, tfds.features.Text)):
            raise TypeError(f"from_tfds(client={client!r}): this feature is {named}; it must be one integer or text")
        first.add(client.split("/")[0])
    if transform is None:
        for ours, feature in found.items():
            if not _numeric(feature, "iufb"):
                raise TypeError(
                    f"from_tfds: {ours!r} is the feature {features[ours]!r}, {feature}, and no number: encode it with "
                    "transform=..., a function of one example, or leave it out with features={...}"
                )
    label = found.get("y")
    images = {key for key, it in found.items() if isinstance(it, tfds.features.Image) and it.np_dtype == np.uint8}
    return _Columns(
        paths=paths,
        dtypes=None if transform else {ours: np.dtype(feature.np_dtype) for ours, feature in found.items()},
        scaled=frozenset(images if scaled and transform is None else ()),
        client=None if client is None else tuple(client.split("/")),
        needed=tfds.features.FeaturesDict({key: known[key] for key in known if key in first}),
        transform=transform,
        num_classes=label.num_classes if transform is None and isinstance(label, tfds.features.ClassLabel) else None,
    )


def _read_split(builder: Any, split: str, columns: _Columns) -> tuple[Any, np.ndarray | None]:
    """The examples of a split, a pytree of arrays in stored order, and their clients (None without such a column)."""
    tfds = _import_tfds()
    name = f"the split {split!r} of {builder.info.full_name}"
    try:
        source = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        count = len(source)
    except ImportError as error:
        raise _incomplete(error) from error
    except ValueError as error:
        raise ValueError(f"from_tfds: {name}: {error} (splits: {', '.join(builder.info.splits)})") from error
    if count == 0:
        raise ValueError(f"from_tfds: {name} has no examples")
    chunks: list[Any] = []
    owners: list[Any] = []
    for start in range(0, count, _CHUNK):
        records = source.__getitems__(list(range(start, min(start + _CHUNK, count))))
        try:
            decoded = _decoded(columns.needed, records)
        except ImportError as error:
            raise _incomplete(error) from error
        if columns.client is not None:
            found = [_value(example, columns.client) for example in decoded]
            # surrogates keep two texts apart whatever their encoding
            owners += [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else one for one in found]
        chunks.append(_packed(decoded, columns))
    examples = _joined(np.concatenate, chunks)
    return examples, None if columns.client is None else host_array("from_tfds(client=...)", owners)


def _decoded(features: Any, records: list[bytes]) -> list[Any]:
    """The examples of records; threads help where records are large images and slow down the Python code of others."""
    decode = features.deserialize_example_np
    if sum(map(len, records)) < _LARGE * len(records):
        return [decode(record) for record in records]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(decode, records))


def _packed(decoded: list[Any], columns: _Columns) -> Any:
    """The columns of some examples."""
    kept = {ours: [_value(example, path) for example in decoded] for ours, path in columns.paths.items()}
    if columns.transform is not None:
        rows = zip(*kept.values(), strict=True)
        return _joined(np.asarray, [columns.transform(dict(zip(kept, row, strict=True))) for row in rows])
    assert columns.dtypes is not None
    packed = {}
    for ours, values in kept.items():
        packed[ours] = _array(np.asarray, f"[{ours!r}]", values).astype(columns.dtypes[ours], copy=False)
        if ours in columns.scaled:
            packed[ours] = packed[ours].astype(np.float32) / np.float32(255)
    return packed


def _joined(join: Callable[[Any], np.ndarray], trees: Sequence[Any]) -> Any:
    """One tree whose leaves are those of ``trees`` joined; a list is a leaf."""

    def is_list(node: Any) -> bool:
        return isinstance(node, list)

    structures: list[Any] = [jax.tree.structure(tree, is_leaf=is_list) for tree in trees]
    for other in structures:
        if other != structures[0]:
            raise ValueError(
                f"from_tfds(transform=...): it makes {structures[0]} of one example and {other} of another: one "
                "structure for all"
            )
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: _array(join, jax.tree_util.keystr(path), leaves), *trees, is_leaf=is_list
    )


def _array(join: Callable[[Any], np.ndarray], path: str, values: Sequence[Any]) -> np.ndarray:
    try:
        return join(values)
    except ValueError as error:
        try:
            shapes = sorted({np.shape(value) for value in values})
            found = f"the shapes {', '.join(str(list(shape)) for shape in shapes[:4])}"
        except ValueError:
            found = "lists of unequal length in them"
        raise ValueError(
            f"from_tfds: examples{path} have {found}: all examples need one shape; cut, pad or resize them with "
            "transform=..., a function of one example"
        ) from error


def _nodes(tfds: Any, feature: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All features by their paths, each the innermost one inside any sequences."""
    while isinstance(feature, tfds.features.Sequence):
        feature = feature.feature
    yield path, feature
    if isinstance(feature, tfds.features.FeaturesDict):
        for key in feature:
            yield from _nodes(tfds, feature[key], f"{path}/{key}" if path else key)


def _numeric(feature: Any, kinds: str) -> bool:
    """Whether the feature's values are numbers of these kinds; a mapping has several types, a text none of numpy's."""
    dtype = getattr(feature, "np_dtype", None)
    return isinstance(dtype, (type, np.dtype)) and np.dtype(dtype).kind in kinds


def _value(example: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        example = example[key]
    return example


def _not_found(tfds: Any, name: str, place: str | None) -> Exception:
    base = name.partition("/")[0].partition(":")[0]
    folders = [Path(str(folder)) for folder in tfds.core.utils.file_utils.list_data_dirs(given_data_dir=place)]
    looked = ", ".join(map(str, folders))
    there = sorted(
        str(info.parent.relative_to(folder))
        for folder in folders
        for pattern in ("*", "*/*")
        for info in (folder / base).glob(f"{pattern}/dataset_info.json")
    )
    known = tfds.list_builders(with_community_datasets=False)
    if not there and base not in known:
        hint = "".join(f"did you mean {near!r}? " for near in close(base, known))
        return ValueError(
            f"from_tfds(name={name!r}): {hint}tensorflow-datasets has no builder {base!r}, and nothing of that name is "
            f"prepared in {looked}. Prepare a builder of your own with YourBuilder(data_dir={str(folders[0])!r})"
            f".download_and_prepare(file_format='array_record') ({_PREPARE})"
        )
    found = f"; there are {', '.join(there)}: name one as name/config:version" if there else ""
    return FileNotFoundError(
        f"{name} is not prepared in {looked}{found}; prepare it with {_command(name, str(folders[0]))} ({_PREPARE}), "
        "or say where it is with data_dir=... or the environment variable TFDS_DATA_DIR"
    )


def _command(name: str, folder: str) -> str:
    return (
        f'python -c "import tensorflow_datasets as tfds; tfds.builder({name!r}, data_dir={folder!r})'
        ".download_and_prepare(file_format='array_record')\""
    )


def _listed(formats: Iterable[Any]) -> str:
    return " or ".join(sorted(item.value for item in formats))


def _import_tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise _incomplete(error) from error
    return tfds


def _incomplete(error: ImportError) -> ImportError:
    return ImportError(f"from_tfds() reads with tensorflow-datasets, array-record and pillow: {_EXTRA} ({error})")
