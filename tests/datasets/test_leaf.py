"""LEAF's json files."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.datasets.own.leaf import read_leaf
from fedjax_sim.datasets.text import Characters
from tests.datasets.stored import REAL, needs

LETTERS = Characters()


def letter_labels(letters: list[str]) -> np.ndarray:
    return LETTERS.encode("".join(letters))


def write(path: Path, users: dict[str, Any], **changes: Any) -> Path:
    content: dict[str, Any] = {"users": list(users), "num_samples": [0] * len(users), "user_data": users}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


ANN = {"x": [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]], "y": [0, 1, 1]}
ROB = {"x": [[3.5, 4.0]], "y": [2]}


def test_users_are_clients_in_sorted_order(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", {"rob": ROB, "ann": ANN})
    test = write(tmp_path / "test.json", {"rob": {"x": [[9.5, 9.5]], "y": [0]}})
    data = datasets.from_leaf(train, test)
    assert datasets.client_names(data) == ("ann", "rob")
    assert (data.num_clients, data.num_examples, data.num_classes) == (2, 4, 3)
    np.testing.assert_array_equal(data.client(0)["x"], np.array(ANN["x"], np.float32))
    np.testing.assert_array_equal(data.client(1)["y"], [2])
    assert data.test is not None
    np.testing.assert_array_equal(data.test.sizes, [0, 1])
    assert data.examples["x"].dtype == np.float32


def test_the_number_of_samples_is_counted_and_not_read(tmp_path: Path) -> None:
    data = datasets.from_leaf(write(tmp_path / "a.json", {"ann": ANN}, num_samples=[82]))
    assert data.num_examples == 3


def test_several_files_and_folders_give_the_same_data(tmp_path: Path) -> None:
    files = [write(tmp_path / "train" / f"all_data_{i}.json", {name: user}) for i, (name, user) in
             enumerate([("rob", ROB), ("ann", ANN)])]  # fmt: skip
    (tmp_path / "train" / "notes.txt").write_text("no json")
    whole = write(tmp_path / "whole.json", {"ann": ANN, "rob": ROB})
    expected = datasets.from_leaf(whole)
    for source in (tmp_path / "train", str(tmp_path / "train"), files, files[::-1], [tmp_path / "train"]):
        data = datasets.from_leaf(source)
        jax.tree.map(np.testing.assert_array_equal, data.examples, expected.examples)
        assert datasets.client_names(data) == ("ann", "rob")


def test_text_through_encode(tmp_path: Path) -> None:
    users = {"PLAY_ROLE": {"x": ["To be, or", " not to b"], "y": [" ", "e"]}}
    data = datasets.from_leaf(
        write(tmp_path / "a.json", users), encode=LETTERS.encode, encode_label=letter_labels, num_classes=80
    )
    assert data.examples["x"].dtype == np.uint8
    assert LETTERS.decode(np.asarray(data.examples["x"])[1]) == " not to b"
    assert LETTERS.decode(np.asarray(data.examples["y"])) == " e"


def test_sent140_as_leaf_writes_it(tmp_path: Path) -> None:
    rows = [["1467", "Mon Apr 06", "NO_QUERY", "ann", "what a day"], ["1468", "Tue Apr 07", "NO_QUERY", "ann", "oh no"]]
    vocabulary = datasets.text.Words(("day", "no"), length=4)
    data = datasets.from_leaf(
        write(tmp_path / "a.json", {"ann": {"x": rows, "y": ["4", "0"]}}),
        encode=lambda tweets: vocabulary.encode([tweet[4] for tweet in tweets]),
        encode_label=lambda labels: [int(label) // 4 for label in labels],
    )
    np.testing.assert_array_equal(data.examples["x"], [[1, 1, 2, 0], [1, 3, 0, 0]])
    np.testing.assert_array_equal(data.examples["y"], [1, 0])


def test_encode_is_not_asked_for_lists_without_entries(tmp_path: Path) -> None:
    """LEAF's test halves of Shakespeare have users of whom no window is left."""
    train = write(tmp_path / "train.json", {"ann": {"x": ["ab", "ba"], "y": ["a", "b"]}})
    test = write(tmp_path / "test.json", {"ann": {"x": [], "y": []}})

    def stacked(texts: list[str]) -> np.ndarray:
        return np.stack([LETTERS.encode(text) for text in texts])

    data = datasets.from_leaf(train, test, encode=stacked, encode_label=lambda y: stacked(y)[:, 0], num_classes=80)
    assert (data.num_examples, data.test) == (2, None)


def test_labels_written_as_floats(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"ann": {"x": [[1.0], [2.0]], "y": [3.0, 4.0]}})
    classes = datasets.from_leaf(path, num_classes=5)
    assert (classes.num_classes, classes.examples["y"].dtype) == (5, np.int32)
    targets = datasets.from_leaf(path)
    assert (targets.num_classes, targets.examples["y"].dtype) == (None, np.float32)


def test_whole_numbers_of_one_user_and_floats_of_another(tmp_path: Path) -> None:
    users = {"ann": {"x": [[0, 1]], "y": [0]}, "rob": {"x": [[0.5, 1]], "y": [1]}}
    data = datasets.from_leaf(write(tmp_path / "a.json", users))
    np.testing.assert_array_equal(data.examples["x"], np.array([[0, 1], [0.5, 1]], np.float32))


def test_double_precision_is_kept(tmp_path: Path, x64: None) -> None:
    data = datasets.from_leaf(write(tmp_path / "a.json", {"ann": {"x": [[1 / 3]], "y": [0]}}))
    assert np.asarray(data.examples["x"])[0, 0] == 1 / 3


def failing(x: list[Any]) -> Any:
    raise KeyError("missing word")


BAD: dict[str, tuple[str, str]] = {
    "no json": ("{", "is not a json file"),
    "nothing": ("", "is not a json file"),
    "too deep": ("[" * 200_000, "is not a json file"),
    "endless number": ('{"users": [' + "1" * 5000 + "]}", "is not a json file"),
    "not text": ("\udcff", "is not a json file"),
    "a list": ("[]", "it has a list"),
    "other keys": ('{"images": []}', r"it has the keys \['images'\]"),
    "no users": ('{"user_data": {}}', "'users' must be the list"),
    "users are numbers": ('{"users": [1], "user_data": {"1": {"x": [1], "y": [1]}}}', "'users' must be the list"),
    "user without data": ('{"users": ["a"], "user_data": {}}', "'a' must be once in 'users' and once in 'user_data'"),
    "data without user": ('{"users": [], "user_data": {"a": {"x": [1], "y": [1]}}}', "'a' must be once in 'users' and"),
    "user listed twice": ('{"users": ["a", "a"], "user_data": {"a": {"x": [1], "y": [1]}}}', "'a' must be once"),
    "user's data twice": (
        '{"users": ["a"], "user_data": {"a": {"x": [1], "y": [1]}, "a": {"x": [1], "y": [1]}}}', "has 'a' twice"
    ),
    "no y": ('{"users": ["a"], "user_data": {"a": {"x": [1]}}}', r"user 'a' must have two lists, .* it has \['x'\]"),
    "y is no list": ('{"users": ["a"], "user_data": {"a": {"x": [1], "y": 1}}}', "user 'a' must have two lists"),
    "data is a list": ('{"users": ["a"], "user_data": {"a": [1]}}', "must have two lists, 'x' and 'y'; it has list"),
    "lengths": ('{"users": ["a"], "user_data": {"a": {"x": [1, 2], "y": [1]}}}', "'a': x has 2 entries but y has 1"),
    "ragged": ('{"users": ["a"], "user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}', "'a': x has lists of dif"),
    "text": ('{"users": ["a"], "user_data": {"a": {"x": ["to"], "y": [1]}}}', "first 'to': .* encode="),
    "text labels": ('{"users": ["a"], "user_data": {"a": {"x": [1], "y": ["4"]}}}', "first '4': .* encode_label="),
    "null": ('{"users": ["a"], "user_data": {"a": {"x": [null], "y": [1]}}}', "'a': x has 1 missing values, .* row 0"),
    "huge integer": ('{"users": ["a"], "user_data": {"a": {"x": [1' + "0" * 30 + '], "y": [1]}}}', "in row 0, more"),
    "no examples": ('{"users": ["a"], "user_data": {"a": {"x": [], "y": []}}}', "'a' has no training examples"),
    "NaN": ('{"users": ["a"], "user_data": {"a": {"x": [NaN], "y": [1]}}}', "NaN or infinite"),
    "negative label": ('{"users": ["a"], "user_data": {"a": {"x": [1], "y": [-1]}}}', "the label -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_malformed_files(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message) as caught:
        datasets.from_leaf(path)
    assert str(path) in str(caught.value) or name in ("no examples", "NaN", "negative label")


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (failing, "user 'ann': encode failed: KeyError: 'missing word'"),
        (lambda x: ["a"] * len(x), "encode must return numbers"),
        (lambda x: np.zeros(2), r"encode returned shape \(2,\) for 3 examples"),
        (lambda x: 1.0, r"encode returned shape \(\) for 3 examples"),
        (lambda x: [[1], [1, 2], [1]], "user 'ann': what encode returned has lists of different"),
    ],
    ids=["raises", "text", "rows", "scalar", "ragged"],
)
def test_encode_that_does_not_do(tmp_path: Path, encode: Any, message: str) -> None:
    path = write(tmp_path / "a.json", {"ann": ANN})
    with pytest.raises(ValueError, match=message):
        datasets.from_leaf(path, encode=encode)


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json", {"ann": ANN}), write(tmp_path / "b.json", {"ann": ANN, "rob": ROB})
    with pytest.raises(ValueError, match=f"'ann' is twice in {re.escape(str(a))} and in {re.escape(str(b))}"):
        datasets.from_leaf([a, b])
    with pytest.raises(ValueError, match=r"the user 'rob' has no training examples.*-t sample"):
        datasets.from_leaf(a, b)
    shapes = write(tmp_path / "c.json", {"eve": {"x": [[1.0]], "y": [0]}, "ann": ANN})
    with pytest.raises(ValueError, match="one kind of number"):
        datasets.from_leaf(shapes)
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        datasets.from_leaf(tmp_path / "none.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no \*.json files"):
        datasets.from_leaf(tmp_path / "empty")
    with pytest.raises(ValueError, match="no LEAF files were given"):
        datasets.from_leaf([])


def test_integers_of_some_users_are_not_rounded_for_the_floats_of_others(tmp_path: Path) -> None:
    users = {"ann": {"x": [[2**24 + 1]], "y": [0]}, "rob": {"x": [[0.5]], "y": [1]}}
    with pytest.raises(
        ValueError, match="x of the user 'ann' has the integer 16777217 in row 0, which float32 would round"
    ):
        datasets.from_leaf(write(tmp_path / "a.json", users))
    users["ann"]["x"] = [[2**24 + 2]]
    assert datasets.from_leaf(write(tmp_path / "a.json", users)).examples["x"].tolist() == [[2.0**24 + 2], [0.5]]
    users["ann"] = {"x": [[1.0], [0.5]], "y": [1, True]}
    with pytest.raises(ValueError, match=r"the user 'ann': y mixes bool, int .row 0 has 1, row 1 True."):
        datasets.from_leaf(write(tmp_path / "a.json", users))


def test_lists_are_not_kept(tmp_path: Path) -> None:
    """The parser's lists of one user are gone before those of the next are read."""
    rng = np.random.Generator(np.random.PCG64(0))
    users = {f"u{i}": {"x": rng.integers(0, 10, (20, 784)).tolist(), "y": [0] * 20} for i in range(10)}
    path = write(tmp_path / "big.json", users)
    elements = 10 * 20 * 784
    tracemalloc.start()
    read_leaf(path, encode=lambda x: np.asarray(x, np.uint8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lists = 8 * elements  # bytes of all users' lists together
    # the text, as it is read and decoded; the arrays; two users' lists
    assert peak < 2 * path.stat().st_size + elements + 2 * lists / 10


@needs("leaf_shakespeare_sample")
def test_real_leaf_output() -> None:
    folder = REAL / "leaf_shakespeare_sample"
    halves = [folder / f"all_data_niid_023_keep_64_{half}_9.json" for half in ("train", "test")]
    data = datasets.from_leaf(*halves, encode=LETTERS.encode, encode_label=letter_labels, num_classes=80)
    assert data.test is not None
    assert (data.num_clients, data.num_examples, data.test.num_examples) == (10, 41_990, 3_881)
    written = json.loads(halves[1].read_text())
    assert sum(written["num_samples"]) - data.test.num_examples == 10 * 79
    stats = data.statistics()
    assert (stats.min, stats.max) == (823, 13_790)
    lear = written["user_data"]["THE_TRAGEDY_OF_KING_LEAR_PHILOSTRATE"]
    position = datasets.client_names(data).index("THE_TRAGEDY_OF_KING_LEAR_PHILOSTRATE")
    held = data.test.client(position)
    assert LETTERS.decode(held["x"][0]) == lear["x"][0]
    assert LETTERS.decode(held["y"]) == "".join(lear["y"])
    # successive windows of one text: the next window ends with this one's label
    own = data.client(position)
    np.testing.assert_array_equal(own["x"][1:, -1], own["y"][:-1])
