"""Data of other packages: tables, tensors, data sets of pairs; calls that mean another one; sizes beyond memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import datasets
from fedjax_sim.core.devices import double_precision
from fedjax_sim.datasets import validate
from fedjax_sim.datasets.columns import column_of

RNG = np.random.default_rng(0)
N = 40
SITE = RNG.choice(["b", "a", "d", "c"], size=N)
DOSE = RNG.normal(size=N)  # none of them is a float32
AGE = RNG.integers(20, 90, N)
SEEN = RNG.normal(size=(N, 3))
ILL = RNG.integers(0, 3, N)
COLUMNS = {
    "site": SITE.tolist(),
    "age": AGE.tolist(),
    "dose": DOSE.tolist(),
    "seen": SEEN.tolist(),
    "ill": ILL.tolist(),
}


class Column:
    """As much of a polars Series as is looked at."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def is_null(self) -> Any:
        return np.zeros(len(self.values), bool)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


class Frame:
    """A data frame as polars and many others have it: names, and columns by name; no items()."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.held, self.columns = dict(columns), list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.held.values())))

    def __getitem__(self, name: str) -> Column:
        return Column(self.held[name])


class Hugging:
    """A Dataset of Hugging Face: its own columns are lists, those in another format float32."""

    def __init__(self, columns: Mapping[str, Any], kind: Any = None, images: tuple[str, ...] = ()) -> None:
        self.held, self.column_names, self.format, self.images = dict(columns), list(columns), {"type": kind}, images
        self.features = {name: SimpleNamespace(decode_example=1) if name in images else None for name in columns}

    def __len__(self) -> int:
        return N

    def __getitem__(self, key: Any) -> Any:
        if self.format["type"] == "arrow":
            return {name: np.asarray(values) for name, values in self.held.items()}
        values = np.asarray(self.held[key])
        return values.astype(np.float32) if values.dtype.kind == "f" else list(values)

    def with_format(self, kind: str, columns: list[str]) -> Hugging:
        assert not set(columns) & set(self.images), "images are not packed"
        return Hugging({name: self.held[name] for name in columns}, kind)


class Plan:
    """polars' LazyFrame: there are no rows before they are collected, and to be asked for names is no small thing."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError

    @property
    def columns(self) -> Any:
        raise AssertionError("a plan was resolved")

    def collect(self) -> None: ...


class Tensor:
    """As much of a torch tensor as is looked at: one that remembers how it was computed."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype = self.values.shape, f"torch.{self.values.dtype}"

    def detach(self) -> Tensor:
        return self

    def numpy(self, force: bool = False) -> Any:
        if not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()


class Sparse(Tensor):
    def numpy(self, force: bool = False) -> Any:
        raise TypeError("can't convert Sparse layout tensor to numpy. Use Tensor.to_dense() first.\nmore")


class Pairs:
    """A map-style data set of torch."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, number: int) -> Any:
        return tuple(part[number] for part in self.parts)


class Loader:
    """A DataLoader: batches, in an order of its own."""

    dataset = Pairs(SEEN, ILL)

    def __len__(self) -> int:
        return 3


def table(kind: str, columns: Mapping[str, Any]) -> Any:
    """``columns`` as a table of that kind; the real package where it is there."""
    if kind in ("dict", "frame", "hugging"):
        return {"dict": dict, "frame": Frame, "hugging": Hugging}[kind](columns)
    if kind == "records":
        arrays = {name: np.asarray(values) for name, values in columns.items()}
        made = np.zeros(N, [(name, one.dtype, one.shape[1:]) for name, one in arrays.items()])
        for name, one in arrays.items():
            made[name] = one
        return made
    package = pytest.importorskip({"batch": "pyarrow", "shuffled": "datasets"}.get(kind, kind))
    if kind == "datasets":
        return package.Dataset.from_dict(dict(columns))
    if kind == "shuffled":  # rows in an order that the table keeps apart from them
        order = np.random.default_rng(1).permutation(N)
        mixed = {name: [values[row] for row in order] for name, values in columns.items()}
        return package.Dataset.from_dict(mixed).select(np.argsort(order).tolist())
    if kind == "batch":
        return package.RecordBatch.from_pydict(dict(columns))
    return package.table(dict(columns)) if kind == "pyarrow" else package.DataFrame(dict(columns))


KINDS = ["dict", "frame", "hugging", "records", "pandas", "pyarrow", "batch", "polars", "datasets", "shuffled"]


def same(data: Any, x: np.ndarray, y: np.ndarray | None = ILL) -> None:
    """Whether the examples are those of numpy's stable sort by client, to the bit."""
    order = np.argsort(SITE, kind="stable")
    assert datasets.client_names(data) == ("a", "b", "c", "d")
    np.testing.assert_array_equal(data.sizes, np.unique(SITE, return_counts=True)[1])
    found = np.asarray(data.examples["x"])
    assert found.dtype == (np.int32 if x.dtype.kind == "i" else x.dtype)
    np.testing.assert_array_equal(found, x[order])
    if y is not None:
        np.testing.assert_array_equal(data.examples["y"], y[order])


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_the_numpy_way(kind: str) -> None:
    """In double precision: what goes through float32 on its way shows."""
    given = table(kind, COLUMNS)
    with double_precision():
        same(datasets.from_table(given, client="site", x="seen", y="ill"), SEEN)
        same(datasets.from_table(given, client="site", x=["dose", "age"], y="ill"), np.stack([DOSE, AGE], axis=1))
        same(datasets.from_table(given, client="site", x="age"), AGE, None)
        seen, ill, site = (column_of(given, name) for name in ("seen", "ill", "site"))
        same(datasets.from_ids((seen, ill), site), SEEN)
        numbers = {"x": COLUMNS["seen"], "y": COLUMNS["ill"]}
        same(datasets.from_ids(table(kind, numbers), SITE), SEEN)
        rows = [np.flatnonzero(name == SITE) for name in "abcd"]
        part = datasets.from_partition(table(kind, numbers), rows, test_fraction=0.25, seed=3)
        want = datasets.from_partition((SEEN, ILL), rows, test_fraction=0.25, seed=3)
        np.testing.assert_array_equal(part.examples["x"], want.examples["x"])
        np.testing.assert_array_equal(part.test.examples["y"], want.test.examples["y"])  # type: ignore[union-attr]
        if kind != "dict":  # which is a pytree of its own
            same(datasets.from_ids((table(kind, {"a": DOSE, "b": AGE}), ILL), SITE), np.stack([DOSE, AGE], axis=1))


def test_columns_that_are_not_asked_for_are_not_read() -> None:
    days = np.array(["2020-01-01"] * N, "datetime64[D]")
    same(datasets.from_table({**COLUMNS, "day": days}, client="site", x="seen", y="ill"), SEEN.astype(np.float32))


def test_formats_and_images_of_hugging_face_stay() -> None:
    given = Hugging({**COLUMNS, "image": np.ones((N, 2, 2), np.uint8)}, images=("image",))
    assert datasets.from_table(given, client="site", x="image", y="ill").examples["x"].shape == (N, 2, 2)
    halves = Hugging(COLUMNS, kind="numpy")
    with double_precision():
        found = datasets.from_table(halves, client="site", x="dose").examples["x"]
    assert found.dtype == np.float32  # what the user's format makes of them


def test_tensors_and_data_sets_of_pairs() -> None:
    x, y = SEEN.astype(np.float32), ILL
    rows = [np.flatnonzero(name == SITE) for name in "abcd"]
    pairs = Pairs([Tensor(row) for row in x], [int(label) for label in y])
    same(datasets.from_ids((Tensor(x), Tensor(y)), SITE), x)
    same(datasets.from_ids(pairs, SITE), x)
    same(datasets.from_ids([pairs[row] for row in range(N)], SITE), x)
    on_host = datasets.host.from_ids(pairs, SITE)
    np.testing.assert_array_equal(on_host.client(2)["x"], x[rows[2]])
    clients = datasets.from_clients([Pairs(x[own], y[own]) for own in rows], test=[Pairs(x[:1], y[:1])] * 4)
    np.testing.assert_array_equal(clients.examples["x"], x[np.argsort(SITE, kind="stable")])
    np.testing.assert_array_equal(clients.client(2)["y"], y[rows[2]])
    assert clients.num_classes == 3
    torch = pytest.importorskip("torch")
    real = torch.utils.data.TensorDataset(torch.tensor(x, requires_grad=True), torch.tensor(y))
    same(datasets.from_ids(real, SITE), x)
    np.testing.assert_array_equal(
        datasets.from_clients([torch.utils.data.Subset(real, own.tolist()) for own in rows]).examples["x"],
        clients.examples["x"],
    )


def test_lists_of_tuples_of_numbers_are_arrays() -> None:
    assert datasets.from_clients([{"x": [(1.0, 2.0), (3.0, 4.0)]}]).examples["x"].shape == (2, 2)
    assert datasets.from_clients([[(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]]).examples.shape == (3, 2)
    with pytest.raises(TypeError, match=r"pairs \(x, y\) or two features\?"):
        datasets.from_clients([[(1.0, 0), (2.0, 1)], [(3.0, 1)]])


def test_arrow_keeps_shapes() -> None:
    arrow = pytest.importorskip("pyarrow")
    x = np.arange(24.0).reshape(6, 2, 2)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(x)
    for column in (tensors, arrow.chunked_array([tensors[:4], tensors[4:]]), arrow.array(x.tolist())):
        data = datasets.from_table(arrow.table({"who": [0] * 6, "x": column}), client="who", x="x")
        np.testing.assert_array_equal(data.examples["x"], x)
    parts = arrow.array([[1, None], [1, 2]], arrow.list_(arrow.int64(), 2))
    holes = arrow.ExtensionArray.from_storage(arrow.fixed_shape_tensor(arrow.int64(), (2,)), parts)
    with pytest.raises(ValueError, match="'x' has 1 missing values within its rows"):  # numpy would have a 0 there
        datasets.from_table(arrow.table({"who": [0, 1], "x": holes}), client="who", x="x")


X, Y, IDS = np.zeros((6, 3), np.float32), np.arange(6) % 2, np.array(list("aabbcc"))
XS, YS = [X[:2], X[2:]], [Y[:2], Y[2:]]
IMAGE = SimpleNamespace(mode="P", getpalette=list)
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: datasets.from_ids(X, Y, IDS),  # type: ignore[call-arg]
        r"from_ids.float32.6, 3., int64.6., <U1.6.*give from_ids\(\(float32\[6, 3\], int64\[6\]\), <U1\[6\]\)",
    ),
    (lambda: datasets.host.from_ids(X, Y, IDS), r"give from_ids\(\(float32\[6, 3\], int64\[6\]\)"),  # type: ignore[call-arg]
    (lambda: datasets.from_ids(IDS, (X, Y)), r"come first, from_ids\(\(float32\[6, 3\], int64\[6\]\), <U1\[6\]\)"),
    (lambda: datasets.from_ids((X, Y)), "missing a required argument: 'ids'; its signature is .examples, ids"),  # type: ignore[call-arg]
    (lambda: datasets.from_ids(x=X, y=Y, ids=IDS), "has no argument 'x'.*its signature"),  # type: ignore[call-arg]
    (
        lambda: datasets.from_clients(XS, YS),  # type: ignore[misc]
        r"give from_clients\(list\(zip\(\[float32\[2, 3\], float32\[4, 3\]\], \[int64\[2\], int64\[4\]\]\)\)\)",
    ),
    (lambda: datasets.from_clients(X, Y, IDS), r"give from_ids\(\(float32\[6, 3\], int64\[6\]\), <U1\[6\]\)"),  # type: ignore[misc]
    (lambda: datasets.from_clients((X, Y)), r"two arrays, float32.* give from_clients\(\[\(float32\[6, 3\], int64"),
    (lambda: datasets.from_clients([X, Y]), "two arrays"),
    (lambda: datasets.from_clients((X[:, 0], Y * 1.0)), r"two arrays, float32\[6\] and float64\[6\]"),
    (lambda: datasets.from_clients(X), r"one array, float32\[6, 3\]: give a list.*list\(array\)"),
    (lambda: datasets.from_clients((X, Y) for _ in range(2)), "a generator: give a list"),  # type: ignore[arg-type]
    (
        lambda: datasets.from_partition(X, Y, [[0, 1], [2]]),  # type: ignore[call-arg]
        r"give from_partition\(\(float32\[6, 3\], int64\[6\]\), \[\[0, 1\], \[2\]\]\)",
    ),
    (lambda: datasets.from_partition((X, Y), Y), r"of the client of each row from_ids\(\(x, y\), ids\)"),
    (lambda: datasets.from_partition((X, Y), {0: [0, 1]}), r"list\(partition.values\(\)\)"),  # type: ignore[arg-type]
    (
        lambda: datasets.from_table(COLUMNS, "site", "ill"),  # type: ignore[misc]
        r"give from_table\(dict, client='site', y='ill'\)",
    ),
    (lambda: datasets.from_table(Plan(), client="site"), r"a Plan is not a table: .collect\(\) it first"),
    (lambda: datasets.from_table({"train": Frame(COLUMNS)}, client="site"), "'train' of the dict is a table itself"),
    (lambda: datasets.from_ids(Frame(COLUMNS), SITE), r"columns \['site', 'age', .*from_table\(table, client"),
    (lambda: datasets.from_clients([Frame(COLUMNS)]), "client 0 is a Frame: .*from_table"),
    (lambda: datasets.from_ids((Plan(), Y), IDS), r"'x'\] is a Plan: give what its .collect\(\) returns"),
    (lambda: datasets.from_clients([Loader()]), "examples of client 0 is a Loader: give its .dataset"),
    (lambda: datasets.from_clients([Pairs(X, Y, Y)]), r"of client 0: row 0 of the Pairs is .*rows are pairs \(x, y\)"),
    (lambda: datasets.from_ids((Sparse(X), Y), IDS), r"cannot hold \(can't .* first.\): .float\(\) or .to_dense"),
    (lambda: datasets.from_ids((X, IDS), IDS), r"dtype <U1.*numpy.unique\(values, return_inverse=True\)"),
    (lambda: datasets.from_ids({"x": [{"bytes": b""}] * 6}, IDS), "entries of type dict, first {'bytes': b''}: turn"),
    (lambda: datasets.from_ids({"x": [X[0], X[0, :1]] * 3}, IDS), "lists of different lengths: pad"),
    (lambda: datasets.from_ids({"x": [IMAGE] * 6}, IDS), "entries of type SimpleNamespace"),
    (lambda: datasets.from_ids((Frame({"a": Y, "b": IDS}), Y), IDS), r"'x'\]: the column 'b' is <U1\[6\]: only single"),
    (
        lambda: datasets.from_ids((Frame({"a": [2**24 + 1] * 6, "b": X[:, 0]}), Y), IDS),
        r"'x'\]: the column 'a' has the integer 16777217 in row 0, which float32 would round",
    ),
    (lambda: fjs.optim.sgd(fjs.rates.over_rounds([0.1, 0.2])), "OverRounds.*client_learning_rate= or server_learning"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_what_was_meant_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_images_of_a_palette_are_no_pictures() -> None:
    class Image:
        mode = "P"

        def getpalette(self) -> None: ...

    with pytest.raises(ValueError, match=r"'x'\] has an image of a palette in row 0: image.convert"):
        datasets.from_ids({"x": [Image()] * 6}, IDS)


@pytest.mark.parametrize("of", [datasets, datasets.host])
def test_features_keep_their_columns(of: Any) -> None:
    kinds = [("age", float), ("dose", float)]
    table, turned = np.array([(1.0, 10.0), (2.0, 20.0)], kinds), np.array([(30.0, 3.0), (40.0, 4.0)], kinds[::-1])
    y, who = np.array([0, 1]), ["ann", "rob"]
    found = of.from_clients([(table, y), (turned[kinds[0][0]][:, None] * [1.0, 10.0], y)])  # an array has no names
    assert found.client(1)["x"].tolist() == [[3.0, 30.0], [4.0, 40.0]]
    assert of.from_ids((turned, y), who).client(0)["x"].tolist() == [[30.0, 3.0]]
    other = r"has the columns \['dose', 'age'\] and examples\['x'\].* \['age', 'dose'\]: .* in the same order"
    calls: dict[str, Callable[[], object]] = {
        "^examples.* of client 1 ": lambda: of.from_clients([(table, y), (turned, y)]),
        "^validation .* of client 0 ": lambda: of.from_clients([(table, y)], validation=[(turned, y)]),
        "^test examples.* ": lambda: of.from_ids((table, y), who, test=(turned, y), test_ids=who),
    }
    for start, call in calls.items():
        with pytest.raises(ValueError, match=start + other):
            call()


def test_what_does_not_fit_is_refused_before_anything_is_taken() -> None:
    vast = np.broadcast_to(np.float32(0), (4, 10**13))  # 160 TB, one number of which is there
    with pytest.raises(MemoryError, match=r"4 rows of 40,000,000,000,00[48] bytes are 160,000.00 GB, and "):
        datasets.from_ids((vast, np.arange(4)), [0, 0, 1, 1])
    for module in (datasets, datasets.host):
        with pytest.raises(MemoryError, match="from_clients: the clients' examples in one array: 8 rows of 40,000"):
            module.from_clients([{"x": vast}, {"x": vast}])
    with pytest.raises(MemoryError, match=r"quadratics: 3 rows of 800,000,000,000,000 bytes.*smaller dim"):
        datasets.quadratics(num_clients=3, dim=10**7)


def test_what_is_drawn_is_refused_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "free_memory", lambda device=True: 16e9)
    drawn = importlib.import_module("fedjax_sim.datasets.synthetic")
    monkeypatch.setattr(drawn, "_clients", lambda *_: pytest.fail("drawn"))
    sizes = r"\d{3},\d{3},\d{3} rows of 960 bytes are \d{3}.\d\d GB, and the machine has 16.00 GB free: cap .* max_size"
    with pytest.raises(MemoryError, match=sizes):
        datasets.synthetic(1.0, 1.0, num_clients=10**6)


def test_what_is_encoded_and_read_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "free_memory", lambda device=True: 1000.0)
    many = {"who": np.arange(40), "name": [str(number) for number in range(40)]}
    with pytest.raises(MemoryError, match="a column for each value of 'name': 40 rows of 40 bytes"):
        datasets.from_table(many, client="who", x="name", encode="name")
    with pytest.raises(MemoryError, match="examples of client 0: 40 rows of 80 bytes"):
        datasets.from_clients([Pairs(np.zeros((40, 10)), ILL)])
    assert datasets.from_table(many | {"x": np.arange(40)}, client="who", x="x").num_examples == 40
