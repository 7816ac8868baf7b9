"""Anyone's own data: tables with a client column, directories with a file for each client."""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
import threading
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis.extra import numpy as npst

from fedjax_sim import datasets
from fedjax_sim.datasets.from_arrays import held_out
from fedjax_sim.datasets.reading.archives import BoundedStream

TABLE = {
    "site": ["b", "a", "b", "c"],
    "age": [40, 51, 62, 33],
    "dose": [0.5, 1.0, 1.5, 2.0],
    "colour": ["red", "blue", "red", "green"],
    "ill": [0, 1, 1, 0],
}
NUMBERS = {name: column for name, column in TABLE.items() if name != "colour"}


def make(kind: str, table: Mapping[str, Any], tmp_path: Path) -> Any:
    """``table`` as one of the kinds that from_table takes."""
    if kind == "dict":
        return table
    pandas = pytest.importorskip("pandas")
    if kind == "pandas":
        return pandas.DataFrame(table)
    arrow = pytest.importorskip("pyarrow")
    if kind == "pyarrow":
        return arrow.table(table)
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        pandas.DataFrame(table).to_csv(path, index=False)
    else:
        pandas.DataFrame(table).to_parquet(path)
    return path


KINDS = ["dict", "pandas", "pyarrow", "csv", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_table(kind: str, tmp_path: Path) -> None:
    data = datasets.from_table(make(kind, NUMBERS, tmp_path), client="site", x=["age", "dose"], y="ill")
    assert datasets.client_names(data) == ("a", "b", "c")
    assert (data.num_classes, data.examples["x"].dtype) == (2, np.float32)
    np.testing.assert_array_equal(data.client(1)["x"], np.array([[40, 0.5], [62, 1.5]], np.float32))
    np.testing.assert_array_equal(data.client(1)["y"], [0, 1])
    everything = datasets.from_table(make(kind, NUMBERS, tmp_path), client="site", y="ill")
    np.testing.assert_array_equal(everything.examples["x"], data.examples["x"])


@pytest.mark.parametrize("kind", KINDS)
def test_categories(kind: str, tmp_path: Path) -> None:
    table = make(kind, TABLE, tmp_path)
    labels = datasets.from_table(table, client="site", x="dose", y="colour", encode=["colour"])
    assert (labels.num_classes, labels.examples["x"].shape) == (3, (4,))
    np.testing.assert_array_equal(labels.examples["y"], [0, 2, 2, 1])  # blue, green, red; clients a, b, b, c
    features = datasets.from_table(table, client="site", x=["dose", "colour"], encode=["colour"])
    np.testing.assert_array_equal(features.client(0)["x"], [[1.0, 1, 0, 0]])
    one = datasets.from_table(table, client="site", x=["dose", "colour"], encode="colour")
    np.testing.assert_array_equal(one.examples["x"], features.examples["x"])
    with pytest.raises(ValueError, match=r"'colour' \(x\) has strings, first 'red'.*encode=\['colour'\].*0 and 1"):
        datasets.from_table(table, client="site", x=["dose", "colour"])
    with pytest.raises(ValueError, match=r"'colour' \(y\) has strings.*class numbers"):
        datasets.from_table(table, client="site", x="dose", y="colour")


@pytest.mark.parametrize("kind", KINDS)
def test_integer_clients_keep_their_numbers(kind: str, tmp_path: Path) -> None:
    table = make(kind, {"patient": [70, 3, 70], "t": [0.0, 1.0, 2.0]}, tmp_path)
    data = datasets.from_table(table, client="patient", x="t")
    np.testing.assert_array_equal(data.client_ids, [3, 70])
    assert datasets.client_names(data) == ("3", "70")
    assert data.num_classes is None


def test_held_out_rows() -> None:
    owner = np.repeat(np.arange(20), np.arange(1, 21))
    table = {"who": owner, "row": np.arange(owner.size, dtype=np.float32)}
    data = datasets.from_table(table, client="who", x="row", test_fraction=0.25, seed=3)
    assert data.test is not None
    sizes = np.arange(1, 21)
    np.testing.assert_array_equal(data.sizes, np.maximum(1, np.floor(0.75 * sizes)))
    np.testing.assert_array_equal(np.asarray(data.sizes) + np.asarray(data.test.sizes), sizes)
    both = np.concatenate([data.examples["x"], data.test.examples["x"]])
    np.testing.assert_array_equal(np.sort(both), np.arange(owner.size))
    again = datasets.from_table(table, client="who", x="row", test_fraction=0.25, seed=3)
    np.testing.assert_array_equal(again.examples["x"], data.examples["x"])
    other = datasets.from_table(table, client="who", x="row", test_fraction=0.25, seed=4)
    assert not np.array_equal(other.examples["x"], data.examples["x"])


def test_the_split_is_that_of_a_partition() -> None:
    owner = np.array([0, 1, 1, 0, 0, 1, 1, 1, 2, 0])
    x = np.arange(10.0)
    rows = [np.flatnonzero(owner == client) for client in range(3)]
    mask = held_out(np.sort(owner, kind="stable"), 0.4, seed=5)
    cut = datasets.from_partition({"x": x}, rows, test_fraction=0.4, seed=5)
    np.testing.assert_array_equal(cut.examples["x"], x[np.argsort(owner, kind="stable")][~mask])
    same = datasets.from_clients([{"x": x[row]} for row in rows], test_fraction=0.4, seed=5)
    np.testing.assert_array_equal(same.examples["x"], cut.examples["x"])


def test_row_numbers_of_pandas_are_no_features(tmp_path: Path) -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    kept = pandas.DataFrame(NUMBERS, index=[4, 9, 2, 7])[1:3]  # numbers that are no range are written as a column
    named = kept.rename_axis("row")
    for number, frame in enumerate((kept, named, kept.assign(site2=kept["site"]).set_index("site2", append=True))):
        path = tmp_path / f"{number}.parquet"
        frame.to_parquet(path)
        for table in (path, arrow.Table.from_pandas(frame), frame):
            assert datasets.from_table(table, client="site", y="ill").client(0)["x"].tolist() == [[51.0, 1.0]]
    without = {"__index_level_0__": [9, 2], **kept.to_dict("list")}  # what others make of such a file
    assert datasets.from_table(without, client="site", y="ill").client(0)["x"].tolist() == [[51.0, 1.0]]
    chosen = datasets.from_table(tmp_path / "1.parquet", client="row", x="age")
    assert datasets.client_names(chosen) == ("2", "9")
    kept.to_csv(tmp_path / "kept.csv")
    with pytest.raises(ValueError, match=r"a column has no name.*to_csv\(index=False\)"):
        datasets.from_table(tmp_path / "kept.csv", client="site", y="ill")
    assert datasets.from_table(tmp_path / "kept.csv", client="site", x=["age", "dose"]).num_clients == 2


def test_texts_of_several_lines_in_a_large_csv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a text that look like rows are none, wherever a block of the file ends."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("fedjax_sim.datasets.own.table._LONGEST", 1 << 20)
    path, note = tmp_path / "notes.csv", "see:" + "\nc,7,1,none" * 999
    path.write_text("site,age,ill,note\n" + "".join(f'{"ba"[i % 2]},{i},0,"{note}"\n' for i in range(300)))
    data = datasets.from_table(path, client="site", x="age", y="ill")
    assert datasets.client_names(data) == ("a", "b")
    np.testing.assert_array_equal(data.client(0)["x"], np.arange(1, 300, 2))
    np.testing.assert_array_equal(data.client(1)["x"], np.arange(0, 300, 2))


def test_columns_of_a_csv_file_that_are_not_asked_for(tmp_path: Path) -> None:
    """They may have missing values, or numbers that nothing holds."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "notes.csv"
    path.write_text(f"site,age,note,serial\nb,40,,{10**30}\na,51,late,7\n")
    assert datasets.from_table(path, client="site", x="age").client(0)["x"].tolist() == [51]
    for column, message in (("note", "1 missing values, first in row 0"), ("serial", "integers beyond 64 bits")):
        with pytest.raises(ValueError, match=f"the column '{column}' has {message}"):
            datasets.from_table(path, client="site", x=["age", column])


def test_rows_of_a_csv_file_may_be_long(tmp_path: Path) -> None:
    """Arrow reads blocks of 1 MiB, and called a file empty whose first line is longer."""
    pytest.importorskip("pyarrow")
    path, name = tmp_path / "scans.csv", "voxel" * 2**18
    path.write_text(f"site,{name},scan\nb,1,{'7' * 2**21}\na,2,{'8' * 2**21}\n")
    np.testing.assert_array_equal(datasets.from_table(path, client="site", x=name).examples["x"], [2, 1])


@pytest.mark.parametrize("end", ["", "\n", '""', "\nb,2,none\n", '\nb,2,""""'])
def test_a_quote_that_is_never_closed(end: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "notes.csv"
    path.write_text(f'site,age,note\na,1,"see{end}')
    with pytest.raises(
        ValueError, match=r"notes.csv is not a readable csv file \(.*a quote is opened and never closed"
    ):
        datasets.from_table(path, client="site", x="age")
    path.write_text(f'site,age,note\na,1,"see{end}"')
    assert datasets.from_table(path, client="site", x="age").num_examples == 1


@pytest.mark.parametrize("last", ['""', '""""', '""""""', '"""a"', '6"', '"a"\n'])
def test_a_quote_that_is_closed_at_the_end(last: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "notes.csv"
    path.write_text(f'site,age,note\na,1,"see"\nb,2,{last}')
    assert datasets.from_table(path, client="site", x="age").num_examples == 2


def test_the_split_of_a_table_is_that_of_ids() -> None:
    ids = np.array(["b", "a", "c", "a", "b", "b", "a", "b", "b", "a"])
    x = np.arange(10.0)
    mask = held_out(ids, 0.4, seed=5)
    for data in (
        datasets.from_ids({"x": x}, ids, test_fraction=0.4, seed=5),
        datasets.from_table({"who": ids, "x": x}, client="who", x="x", test_fraction=0.4, seed=5),
        datasets.host.from_ids({"x": x}, ids, test_fraction=0.4, seed=5).on_device(),
    ):
        order = np.argsort(ids, kind="stable")
        assert data.test is not None
        np.testing.assert_array_equal(data.examples["x"], x[order][~mask[order]])
        np.testing.assert_array_equal(data.test.examples["x"], x[order][mask[order]])
        assert data.test.sizes.tolist() == [2, 2, 0]


def test_columns_of_higher_rank() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(3, 2, 4, 1)
    data = datasets.from_table({"who": ["b", "a", "b"], "image": images}, client="who", x="image")
    assert data.examples["x"].dtype == np.uint8
    np.testing.assert_array_equal(data.client(1)["x"], images[[0, 2]])
    with pytest.raises(ValueError, match=r"'image' has the shape \[3, 2, 4, 1\].*x='image'"):
        datasets.from_table({"who": [0, 0, 1], "image": images}, client="who", x=["image"])


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"dose": [0.5, 1.0, NAN, NAN]}, {}, "'dose' has 2 missing or infinite values, first in row 2"),
        ({"dose": [0.5, float("inf"), 1, 1]}, {}, "'dose' has 1 missing or infinite values, first in row 1"),
        ({"dose": [0.5, None, 1.0, 1.0]}, {}, "'dose' has 1 missing .* row 1"),
        ({"site": ["a", None, "b", "b"]}, {}, "'site' has 1 missing .* row 1"),
        ({"dose": [0.5, 1.0]}, {}, "different lengths"),
        ({"dose": 0.5}, {}, "single value"),
        ({"dose": [[1.0], [1.0, 2.0], [], []]}, {}, "'dose' has lists of different lengths"),
        ({}, {"client": "sight"}, "no column 'sight': did you mean 'site'"),
        ({}, {"x": ["age", "doze"]}, "no column 'doze': did you mean 'dose'"),
        ({}, {"y": "sick"}, "no column 'sick'"),
        ({}, {"x": ["age", "ill"]}, "a column has two of these parts"),
        ({}, {"x": ["age", "site"]}, "a column has two of these parts"),
        ({}, {"x": []}, "no features"),
        ({}, {"encode": ["illness"]}, r"no column 'illness': .*known: age, dose, ill"),
        ({}, {"encode": ["dose"]}, "has no categories"),
        ({}, {"test_fraction": 1.0}, r"test_fraction is 1.0: it must be in \[0, 1\)"),
        ({}, {"seed": -1}, "seed is -1"),
    ],
    ids=[
        "nan", "infinite", "none", "no client", "lengths", "scalar", "ragged", "client", "x", "y", "y in x",
        "client in x", "no x", "encode", "encode float", "fraction", "seed",
    ],
)  # fmt: skip
def test_tables_that_do_not_do(changes: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        datasets.from_table({**NUMBERS, **changes}, **{"client": "site", "y": "ill", **arguments})


def test_tables_of_other_types(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ndarray is not a table"):
        datasets.from_table(np.zeros((3, 2)), client="a")
    when = np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")
    with pytest.raises(TypeError, match=r"'day' has dtype datetime64.*timedelta64"):
        datasets.from_table({"who": [0, 1], "day": when}, client="who")
    with pytest.raises(TypeError, match="client ids are integers or strings"):
        datasets.from_table({"who": [0.0, 1.0], "x": [1, 2]}, client="who", x="x")
    with pytest.raises(ValueError, match=r"ends in neither \.csv nor \.parquet"):
        datasets.from_table(tmp_path / "table.pkl", client="who")
    with pytest.raises(FileNotFoundError, match="not there"):
        datasets.from_table(tmp_path / "table.csv", client="who")


def test_only_who_asks_for_a_csv_file_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow's that reads ahead from Python may do so while the interpreter ends: the process aborts."""
    pytest.importorskip("pyarrow")
    readers: set[int] = set()
    read = BoundedStream.read

    def watched(stream: BoundedStream, size: int) -> bytes:
        readers.add(threading.get_ident())
        return read(stream, size)

    monkeypatch.setattr(BoundedStream, "read", watched)
    (tmp_path / "table.csv").write_text("who,x\n" + "a,1.5\n" * 200_000)
    assert datasets.from_table(tmp_path / "table.csv", client="who").num_examples == 200_000
    assert readers == {threading.get_ident()}


# Who owns which rows: ids are what is written.

INTEGER = re.compile("[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?")
ANY_IDS = st.one_of(
    st.lists(st.integers(-2, 9), min_size=1, max_size=12),
    st.lists(st.integers(2**31 - 2, 2**31 + 1), min_size=1, max_size=6),
    st.lists(st.integers(2**63 - 2, 2**63 + 1), min_size=1, max_size=6),
    st.lists(st.text('07.e-+ aA\u00e9\u0301",', min_size=1, max_size=4), min_size=1, max_size=12),
    st.lists(st.sampled_from(["7", "007", "07", "7 ", " 7", "7.0", "-7"]), min_size=1, max_size=12),
)


def names_of(data: Any) -> list[str]:
    try:
        return list(datasets.client_names(data))
    except ValueError:
        return [str(number) for number in np.asarray(data.client_ids).tolist()]


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@hypothesis.given(ANY_IDS)
def test_the_clients_rows_put_together_are_the_table(ids: list[Any]) -> None:
    """Whatever the ids and whoever reads them: no row is another client's, and no two ids are one client."""
    rows = {name: [row for row, other in enumerate(ids) if other == name] for name in sorted(set(ids))}
    given = ids if isinstance(ids[0], str) else np.array(ids, np.uint64 if max(ids) > 2**62 else np.int64)
    table = {"who": given, "row": np.arange(len(ids), dtype=np.float32), "y": np.arange(len(ids)) % 3}
    x = {"x": table["row"], "y": table["y"]}
    whole = [
        datasets.from_ids(x, ids), datasets.host.from_ids(x, given), datasets.host.from_ids(x, np.array(given, object)),
    ]  # fmt: skip
    numbered = [
        datasets.from_partition(x, datasets.partition.natural(ids)),
        datasets.host.from_partition(x, datasets.partition.natural(given)),
        datasets.from_clients([{name: column[own] for name, column in x.items()} for own in rows.values()]),
        datasets.host.from_clients([{name: column[own] for name, column in x.items()} for own in rows.values()]),
        datasets.on_host(whole[0]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            try:
                made = make(kind, table, pathlib.Path(folder))
            except pytest.skip.Exception:
                continue
            texts = [str(name) for name in ids]
            if kind == "csv" and all(map(NUMBER.fullmatch, texts)) and not all(map(INTEGER.fullmatch, texts)):
                with pytest.raises(TypeError, match="'who' has dtype float64, first"):
                    datasets.from_table(made, client="who", x="row", y="y")
                continue
            whole.append(datasets.from_table(made, client="who", x="row", y="y"))
            if kind == "pandas":
                made["who"] = made["who"].astype("category")
                whole.append(datasets.from_table(made, client="who", x="row", y="y"))
    for data in whole:
        found = {name: data.client(place)["x"].astype(int).tolist() for place, name in enumerate(names_of(data))}
        assert found == {str(name): own for name, own in rows.items()}
    for data in [*whole, *numbered]:
        held = [data.client(place) for place in range(data.num_clients)]
        assert sorted(client["x"].astype(int).tolist() for client in held) == sorted(rows.values())
        assert all((client["x"].astype(int) % 3 == client["y"]).all() for client in held)


@pytest.mark.parametrize(
    ("content", "names", "ids"),
    [
        ("who,x\n007,1\n7,2\n0,3\n", ("0", "007", "7"), [0, 1, 2]),
        ("who,x\n70,1\n7,2\n-0,3\n", ("-0", "7", "70"), [0, 1, 2]),
        ("who,x\n70,1\n7,2\n3,3\n", ("3", "7", "70"), [3, 7, 70]),
        ("who,x\n123456789012345678901,1\n7,2\n", ("123456789012345678901", "7"), [0, 1]),
        ("who,x\n12345678901234567890,1\n7,2\n", ("7", "12345678901234567890"), [0, 1]),
        ('who,x\n"a,b",1\n"a ",2\na,3\n', ("a", "a ", "a,b"), [0, 1, 2]),
        ('who,x\n"NA",1\ntrue,2\n1e5,3\n', ("1e5", "NA", "true"), [0, 1, 2]),
        ("\ufeffwho,x\n2,1\n1,2\n", ("1", "2"), [1, 2]),
    ],
    ids=["zeros", "minus", "plain", "text", "beyond int64", "quoted", "alike", "bom"],
)
def test_ids_of_csv_files(tmp_path: Path, content: str, names: tuple[str, ...], ids: list[int]) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text(content, encoding="utf-8")
    data = datasets.from_table(tmp_path / "t.csv", client="who", x="x")
    assert (datasets.client_names(data), np.asarray(data.client_ids).tolist()) == (names, ids)


def test_a_csv_column_is_of_one_type(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    def table(*cells: str, **arguments: Any) -> Any:
        (tmp_path / "t.csv").write_text("who,z\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells)))
        return datasets.from_table(tmp_path / "t.csv", client="who", **{"x": "z", **arguments}).examples

    assert table("007", " 7", "+7")["x"].tolist() == [7, 7, 7]  # as numbers they are the same
    assert table("007", "7", x=["z"], encode="z")["x"].tolist() == [[1, 0], [0, 1]]
    assert table("1.5", "7")["x"].tolist() == [1.5, 7.0]
    assert table("true", "FALSE")["x"].tolist() == [True, False]
    with pytest.raises(ValueError, match=r"'z' .x. has strings, first 'many'"):
        table("3", "many")
    with pytest.raises(ValueError, match="'z' has integers beyond 64 bits"):
        table("3", "18446744073709551616")
    with pytest.raises(ValueError, match="'z' has integers beyond 64 bits"):
        table("3", "9" * 5000)
    with pytest.raises(ValueError, match=r"client 1 .* outside int32"):
        table("3", "18446744073709551615")
    (tmp_path / "t.csv").write_text("who,x,y\n1,1,18446744073709551616\n")
    with pytest.raises(ValueError, match="'y' has integers beyond 64 bits"):  # not a target of regression
        datasets.from_table(tmp_path / "t.csv", client="who", x="x", y="y")


class Polars:
    """As much of a polars Series as is looked at: numpy would take what is missing for a zero."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def is_null(self) -> Any:
        return np.array([value is None for value in self.values])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([0 if value is None else value for value in self.values], dtype)


def missing_ids() -> dict[str, Any]:
    """Columns without an entry in row 1."""
    mask = np.ma.array(["a", "b", "c"], mask=[False, True, False])
    kinds: dict[str, Any] = {
        "none": ["a", None, "b"], "nan": ["a", NAN, "b"], "of integers": [1, None, 2], "floats": [1.0, NAN, 2.0],
        "array": np.array([1.0, NAN, 2.0]), "objects": np.array(["a", None, "b"], object), "masked": mask,
        "a masked one": [1, np.ma.masked, 2], "polars": Polars([1, None, 2]),
    }  # fmt: skip
    with contextlib.suppress(ImportError):
        import pandas

        kinds |= {
            "series": pandas.Series(["a", None, "b"]), "Int64": pandas.Series([1, None, 2], dtype="Int64"),
            "string": pandas.Series(["a", None, "b"], dtype="string"), "float": pandas.Series([1, None, 2]),
            "category": pandas.Series(["a", None, "b"], dtype="category"),
            "times": pandas.Series(pandas.to_datetime(["2020-01-01", None, "2020-01-02"])),
            "NA": [1, pandas.NA, 2],
        }  # fmt: skip
    with contextlib.suppress(ImportError):
        import pyarrow

        values = pyarrow.array(["a", None, "b"])
        kinds |= {
            "arrow": values, "chunks": pyarrow.chunked_array([[1], [None, 2]]),
            "dictionary": values.dictionary_encode(),
            "in the dictionary": pyarrow.DictionaryArray.from_arrays([0, 1, 2], values),
        }  # fmt: skip
    return kinds


@pytest.mark.parametrize("kind", missing_ids())
def test_missing_ids_are_nobody_s(kind: str) -> None:
    ids, x = missing_ids()[kind], np.arange(3.0)
    for name, call in {
        "ids": lambda: datasets.from_ids({"x": x}, ids),
        "test_ids": lambda: datasets.from_ids({"x": x}, ["a"] * 3, test={"x": x}, test_ids=ids),
        r"natural\(ids\)": lambda: datasets.partition.natural(ids),
        "owner": lambda: held_out(ids, 0.5, 0),
        "from_table: the column 'who'": lambda: datasets.from_table({"who": ids, "x": x}, client="who"),
        "from_table: the column 'kind'": lambda: datasets.from_table(
            {"who": [0, 1, 2], "x": x, "kind": ids}, client="who", encode="kind"
        ),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} has 1 (missing|masked|missing or infinite) values, .* row 1"):
            call()


@pytest.mark.parametrize(("cell", "row"), [("", 1), ('""', 1), ("NA", 1), ("null", 1)])
def test_empty_cells_are_nobody_s(tmp_path: Path, cell: str, row: int) -> None:
    pytest.importorskip("pyarrow")
    for other in ("a", "7"):
        for column in ("who", "x", "kind"):
            values = {"who": other, "x": "1", "kind": other} | {column: cell}
            (tmp_path / "t.csv").write_text(f"who,x,kind\n{other},1,{other}\n{','.join(values.values())}\n")
            with pytest.raises(ValueError, match=f"the column '{column}' has 1 missing values, first in row {row}"):
                datasets.from_table(tmp_path / "t.csv", client="who", x=["x", "kind"], encode="kind")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, "1"], r"mixes int, str .row 0 has 1, row 1 '1'."),
        (["1", "a", 1], r"mixes int, str .row 0 has '1', row 2 1."),
        ([1, True], r"mixes bool, int .row 0 has 1, row 1 True."),
        ([b"a", "a"], r"mixes bytes, str .row 0 has b'a', row 1 'a'."),
        (np.array([1, "1"], object), "mixes int, str"),
        ([1, 1.5], "dtype float64, first 1.0: client ids are integers or strings"),
        ([1, -0.0], "dtype float64"),
        ([True, False], "dtype bool, first True"),
        ([b"a", b"b"], r"dtype \|S1"),
        ([1 + 0j, 2], "dtype complex128|mixes complex, int"),
        (np.array(["2020-01-01"], "datetime64[D]"), "dtype datetime64"),
    ],
)
def test_ids_are_of_one_type(ids: Any, message: str) -> None:
    x = {"x": np.zeros(len(ids))}
    for module in (datasets, datasets.host):
        with pytest.raises(TypeError, match=message):
            module.from_ids(x, ids)
    if "mixes" in message:
        with pytest.raises(TypeError, match=f"the column 'who' {message}"):
            datasets.from_table({"who": ids, **x}, client="who")
        with pytest.raises(TypeError, match=f"the column 'y' {message}"):
            datasets.from_table({"who": np.arange(len(ids)), **x, "y": ids}, client="who", y="y", encode="y")


def test_ids_that_numpy_cannot_hold() -> None:
    x = {"x": np.arange(2.0)}
    with pytest.raises(ValueError, match=r"ids has 'a\\x00' in row 0: numpy's texts lose a NUL"):
        datasets.from_ids(x, ["a\0", "a"])
    with pytest.raises(ValueError, match=f"ids has {2**64} in row 1, more than integers of 64 bits"):
        datasets.from_ids(x, [1, 2**64])
    with pytest.raises(ValueError, match=f"ids has {2**63} in row 0, more than"):
        datasets.from_ids(x, [2**63, -1])
    data = datasets.from_ids(x, [2**63 + 1, 2**63], test=x, test_ids=[2**63, 2**63])  # as floats they are the same
    assert datasets.client_names(data) == (str(2**63), str(2**63 + 1))
    assert data.test is not None
    assert data.test.sizes.tolist() == [2, 0]
    with pytest.raises(ValueError, match=f"client {2**53 + 1} has test examples but no"):
        datasets.from_ids(x, np.array([2**53, 2**63], np.uint64), test=x, test_ids=[2**53 + 1, 2**53 + 1])


def test_names_of_ids_that_are_no_client_ids() -> None:
    x = {"x": np.arange(3.0)}
    for module in (datasets, datasets.host):
        assert datasets.client_names(module.from_ids(x, ["007", "7", "007"])) == ("007", "7")
        assert datasets.client_names(module.from_ids(x, [-7, 2**40, -7])) == ("-7", str(2**40))


def test_integers_beside_floats_are_not_rounded() -> None:
    table = {"who": [0, 1], "count": [3, 2**24 + 1], "dose": [0.5, 1.5], "big": np.array([1, 2], np.uint64)}
    for x in (["count", "dose"], ["dose", "count"]):
        with pytest.raises(ValueError, match="'count' has the integer 16777217 in row 1, which float32 would round"):
            datasets.from_table(table, client="who", x=x)
    assert datasets.from_table(table, client="who", x="count").examples["x"].tolist() == [3, 2**24 + 1]
    exact = datasets.from_table({**table, "count": [3, 2**24 + 2]}, client="who", x=["count", "dose"])
    assert exact.examples["x"].tolist() == [[3.0, 0.5], [2.0**24 + 2, 1.5]]
    table["big"] = np.array([1, 2**64 - 1], np.uint64)
    with pytest.raises(ValueError, match=f"'big' has the integer {2**64 - 1} in row 1, which float32 would round"):
        datasets.from_table({**table, "count": [3, -4]}, client="who", x=["count", "big"])


def test_a_client_is_not_predicted() -> None:
    with pytest.raises(ValueError, match=r"y='ill'.: a column has two of these parts"):
        datasets.from_table(NUMBERS, client="ill", y="ill", x="age")


def test_files_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "table.csv").write_text("who,x\n0,1\n")
    with pytest.raises(ImportError, match=r"fedjax_sim\[tables\]"):
        datasets.from_table(tmp_path / "table.csv", client="who")


def test_pandas_types() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(NUMBERS)
    frame["age"] = frame["age"].astype("Int64")
    frame["ill"] = frame["ill"].astype("boolean")
    data = datasets.from_table(frame, client="site", y="ill")
    np.testing.assert_array_equal(data.client(0)["x"], [[51.0, 1.0]])
    np.testing.assert_array_equal(data.client(0)["y"], [1])
    categories = pandas.DataFrame(TABLE).astype({"colour": "category"})
    with pytest.raises(ValueError, match=r"'colour' .x. has strings"):
        datasets.from_table(categories, client="site", y="ill")
    assert datasets.from_table(categories, client="site", y="ill", encode=["colour"]).examples["x"].shape == (4, 5)
    frame.loc[2, "age"] = pandas.NA
    with pytest.raises(ValueError, match=r"'age' has 1 missing .* row 2"):
        datasets.from_table(frame, client="site", y="ill")
    twice = pandas.DataFrame([[1, 2, 3]], columns=["who", "x", "x"])
    with pytest.raises(ValueError, match="two columns 'x'"):
        datasets.from_table(twice, client="who")


def test_pyarrow_types(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"who": ["a", "b"], "seen": arrow.array([[1.0, 2.0], [3.0, 4.0]])})
    np.testing.assert_array_equal(datasets.from_table(table, client="who", x="seen").examples["x"], [[1, 2], [3, 4]])
    table = arrow.table({"who": arrow.array(["b", "a"]).dictionary_encode(), "x": [1, 2]})
    assert datasets.client_names(datasets.from_table(table, client="who", x="x")) == ("a", "b")
    table = arrow.table({"who": ["a", "b"], "x": arrow.array([1, None])})
    with pytest.raises(ValueError, match=r"'x' has 1 missing .* row 1"):
        datasets.from_table(table, client="who", x="x")
    (tmp_path / "table.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        datasets.from_table(tmp_path / "table.parquet", client="who")


# A directory with a file for each client.


def fill(folder: Path, clients: Mapping[str, Mapping[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in clients.items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


ANN = {"x": np.arange(6.0).reshape(3, 2), "y": np.array([0, 1, 1])}
ROB = {"x": np.ones((1, 2)), "y": np.array([2])}


def test_directory(tmp_path: Path) -> None:
    data = datasets.from_directory(fill(tmp_path, {"rob": ROB, "ann": ANN}))
    assert datasets.client_names(data) == ("ann", "rob")
    assert (data.num_classes, data.test) == (3, None)
    np.testing.assert_array_equal(data.client(0)["x"], ANN["x"])
    np.testing.assert_array_equal(data.client(1)["y"], [2])
    for number in range(12):
        (tmp_path / f"{number:02}.csv").write_text("x,y\n")
    with pytest.warns(UserWarning, match="not read in .*: 00.csv, .*, 09.csv and 2 more; .* the folder itself"):
        datasets.from_directory(tmp_path)
    for number in range(12):
        (tmp_path / f"{number:02}.csv").unlink()
    cut = datasets.from_directory(str(tmp_path), test_fraction=0.5, num_classes=7)
    assert cut.test is not None
    assert cut.num_classes == 7
    np.testing.assert_array_equal(cut.test.sizes, [2, 0])


def test_directory_with_a_test_part(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"rob": ROB, "ann": ANN})
    fill(tmp_path / "test", {"rob": ANN})
    data = datasets.from_directory(tmp_path)
    assert data.test is not None
    np.testing.assert_array_equal(data.test.sizes, [0, 3])
    np.testing.assert_array_equal(data.test.client(1)["x"], ANN["x"])
    with pytest.raises(ValueError, match="test has the held-out examples: leave one of them out"):
        datasets.from_directory(tmp_path, test_fraction=0.1)
    (tmp_path / "old").mkdir()
    for name in ("eve.npz", "README", ".hidden", "train/zoe.NPZ", "train/.hidden"):
        (tmp_path / name).write_bytes(b"")
    listed = r"README, eve.npz, old/, train/zoe.NPZ; only \*.npz in the folders train, validation and test"
    with pytest.warns(UserWarning, match=listed) as warned:
        assert datasets.from_directory(tmp_path).num_clients == 2
    assert warned[0].filename == __file__
    for name in ("eve.npz", "README", "train/zoe.NPZ"):
        (tmp_path / name).unlink()
    (tmp_path / "old").rmdir()
    fill(tmp_path / "validation", {"ann": ROB})
    both = datasets.from_directory(tmp_path)
    assert both.validation is not None
    assert both.test is not None
    np.testing.assert_array_equal(both.validation.client(0)["x"], ROB["x"])
    np.testing.assert_array_equal(both.test.client(1)["x"], ANN["x"])
    fill(tmp_path / "test", {"eve": ROB})
    with pytest.raises(ValueError, match=r"eve.npz has no counterpart in"):
        datasets.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("stems", "ids"), [(["7", "10", "0"], [0, 7, 10]), (["7", "010"], [0, 1]), (["7", "a"], [0, 1])]
)
def test_file_names_as_ids(tmp_path: Path, stems: list[str], ids: list[int]) -> None:
    data = datasets.from_directory(fill(tmp_path, {s: {"x": np.full(1, float(i))} for i, s in enumerate(stems)}))
    assert np.asarray(data.client_ids).tolist() == ids
    for position, name in enumerate(datasets.client_names(data)):
        assert data.client(position)["x"].tolist() == [float(stems.index(name))]


class Boom:
    """Unpickling this would say so."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def npz_bytes(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


PICKLE = npy(np.array([Boom()], object), allow_pickle=True)


def huge_header() -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    return stream.getvalue() + bytes(64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable npz"),
        (b"PK\x03\x04 nothing", "not a readable npz"),
        (PICKLE, "not a readable npz"),
        (npz_bytes(x__npy=PICKLE), "'x' holds Python objects"),
        (npz_bytes(x__npy=huge_header()), "bytes and its header says 8796093022"),
        (npz_bytes(x__npy=npy(np.ones((2, 2)))[:-8]), "its header says"),
        (npz_bytes(x__npy=b"\x93NUMPY\x09\x00"), "not a readable npz"),
        (npz_bytes(x__txt=b"text"), "member 'x.txt'"),
        (npz_bytes(x__npy=npy(np.array(["text"]))), "'x' has dtype <U4"),
        (npz_bytes(x__npy=npy(np.ones(1, complex))), "'x' has dtype complex128"),
        (npz_bytes(x__npy=npy(np.ones(())), y__npy=npy(np.ones(1, int))), "'x'. of .* is the scalar"),
        (npz_bytes(x__npy=npy(np.ones((0, 2))), y__npy=npy(np.ones(0, int))), "has no examples"),
        (npz_bytes(x__npy=npy(np.ones((1, 2)))), r"has the arrays \['x'\] but"),
        (npz_bytes(x__npy=npy(np.ones((1, 3))), y__npy=npy(np.ones(1, int))), r"are float64\[1, 3\] but"),
        (npz_bytes(x__npy=npy(np.ones((1, 2))), y__npy=npy(np.ones(1))), r"are float64\[1\] but"),
        (npz_bytes(x__npy=npy(np.ones((1, 2))), y__npy=npy(np.ones(2, int))), "'y'. of .* has 2 rows but .*'x'. has 1"),
        (npz_bytes(x__npy=npy(np.full((2, 2), NAN)), y__npy=npy(np.ones(2, int))), "NaN or infinite .* row 0"),
        (npz_bytes(x__npy=npy(np.ones((1, 2))), y__npy=npy(np.full(1, 2**63, np.uint64))), f"'y' has {2**63}: "),
    ],
    ids=[
        "empty", "cut", "a pickle", "objects", "huge", "truncated", "version", "member", "text", "complex", "scalar",
        "no rows", "names", "shape", "kind", "rows", "nan", "uint64",
    ],
)  # fmt: skip
def test_files_that_do_not_do(tmp_path: Path, content: bytes, message: str) -> None:
    fill(tmp_path, {"ann": ANN})
    (tmp_path / "eve.npz").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message) as caught:
        datasets.from_directory(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(tmp_path / "eve.npz") in str(caught.value)
    assert peak < 8 << 20


def test_integers_of_several_types_in_files(tmp_path: Path) -> None:
    y = {"ann": np.array([0, 2]), "rob": np.array([1], np.uint64), "zoe": np.array([3], np.uint8)}
    data = datasets.from_directory(
        fill(tmp_path, {name: {"x": np.zeros(own.size), "y": own} for name, own in y.items()})
    )
    assert (data.num_classes, data.examples["y"].tolist()) == (4, [0, 2, 1, 3])


def test_a_damaged_body_is_found(tmp_path: Path) -> None:
    fill(tmp_path, {"ann": ANN, "rob": ROB})
    path = tmp_path / "rob.npz"
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(1.0).tobytes())] ^= 1  # the checksum does not fit any more
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rob.npz is not a readable npz file .*CRC"):
        datasets.from_directory(tmp_path)


def test_folders_that_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a directory"):
        datasets.from_directory(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"has no \*.npz files: write one for each client, numpy.savez"):
        datasets.from_directory(tmp_path)
    (tmp_path / "berlin.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"from_table reads csv .* from_leaf LEAF's json"):
        datasets.from_directory(tmp_path)
    fill(tmp_path / "test", {"ann": ANN})
    with pytest.raises(ValueError, match="'test' but no 'train'"):
        datasets.from_directory(tmp_path)


def test_names_are_the_object_s(tmp_path: Path) -> None:
    data = datasets.from_directory(fill(tmp_path, {"ann": ANN}))
    with pytest.raises(ValueError, match="has no client names"):
        datasets.client_names(data.replace(test=None))
    assert jax.tree.structure(data) == jax.tree.structure(datasets.from_directory(tmp_path))


# Whatever the dtype and the rank, what goes in comes out.

DTYPES = st.sampled_from(["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, max_side=3)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def stored(dtype: str) -> np.dtype[Any]:
    """The type that a data set keeps it in."""
    kept = {"int8": "int32", "int16": "int32", "int64": "int32", "float64": "float32"}
    return np.dtype(kept.get(dtype, dtype))


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    st.data(), SIZES, st.dictionaries(st.sampled_from(["x", "target", "mask"]), st.tuples(DTYPES, SHAPES), min_size=1)
)
def test_any_arrays_come_back(
    data: st.DataObject, sizes: list[int], leaves: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    def array(size: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = np.dtype(dtype)
        elements = (
            st.floats(-8, 8, width=16) if kind.kind == "f" else npst.from_dtype(kind, min_value=0, max_value=100)
            if kind.kind in "iu" else st.booleans()
        )  # fmt: skip
        return data.draw(npst.arrays(kind, (size, *shape), elements=elements))

    clients = {f"c{i}": {k: array(n, *leaf) for k, leaf in leaves.items()} for i, n in enumerate(sizes)}
    flat = {name: np.concatenate([client[name] for client in clients.values()]) for name in leaves}
    ids = np.repeat(list(clients), sizes)
    with tempfile.TemporaryDirectory() as folder:
        made = [
            datasets.from_clients(list(clients.values())),
            datasets.from_ids(flat, ids),
            datasets.from_directory(fill(pathlib.Path(folder), clients)),
        ]
    for federated in made:
        assert federated.num_clients == len(sizes)
        for position, client in enumerate(clients.values()):
            held = federated.client(position)
            assert held.keys() == leaves.keys()
            for name, (dtype, _) in leaves.items():
                assert held[name].dtype == stored(dtype)
                np.testing.assert_array_equal(held[name], client[name])
    name = min(leaves)
    table = datasets.from_table({"who": ids, name: flat[name]}, client="who", x=name)
    for position, client in enumerate(clients.values()):
        np.testing.assert_array_equal(table.client(position)["x"], client[name])
