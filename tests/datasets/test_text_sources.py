"""Text: characters, words, and the data sets by name."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.datasets.text import LEAF_CHARACTERS, Characters, Words, windows
from tests.datasets.stored import check_rebuilt, needs, put

# Characters, windows, words.


def test_the_alphabet_is_leaf_s() -> None:
    assert len(LEAF_CHARACTERS) == len(set(LEAF_CHARACTERS)) == 80
    assert list(LEAF_CHARACTERS) == sorted(LEAF_CHARACTERS)


# Hypothesis takes two seconds for a table of all characters.
SOME = "".join(map(chr, [*range(0x300), 0x2028, 0x4E2D, 0xD800, 0xFFFF, 0x1F600, 0x10FFFF]))


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.text(SOME, min_size=1, max_size=30), st.integers(1, 40))
def test_characters_come_back(text: str, copies: int) -> None:
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 10 * copies)))  # up to 400 characters more
    alphabet = Characters("".join(sorted(set(text + many))))
    numbers = alphabet.encode(text)
    assert numbers.dtype == (np.uint8 if len(alphabet) <= 256 else np.int32)
    assert alphabet.decode(numbers) == text
    np.testing.assert_array_equal(alphabet.encode([text, text]), [numbers, numbers])


def test_other_characters() -> None:
    with pytest.raises(ValueError, match=r"'\$' in 'sha\$l' is not in the alphabet"):
        Characters().encode("sha$l")
    with pytest.raises(ValueError, match="'😀'"):
        Characters().encode("fie 😀")
    assert Characters(unknown=" ").decode(Characters(unknown=" ").encode("a$😀b")) == "a  b"
    with pytest.raises(ValueError, match="2 to 3 characters"):
        Characters().encode(["abc", "ab"])
    with pytest.raises(TypeError, match="neither a text nor"):
        Characters().encode(["abc", 1])  # type: ignore[list-item]
    for wrong in ({"alphabet": ""}, {"alphabet": "aa"}, {"unknown": "$"}, {"unknown": "ab"}):
        with pytest.raises(ValueError, match="Characters"):
            Characters(**wrong)


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9), st.floats(0, 0.99), st.integers(1, 30))
def test_windows(size: int, length: int, stride: int, fraction: float, most: int) -> None:
    numbers = np.arange(size, dtype=np.uint8)
    (x, y), (test_x, test_y) = windows(numbers, length, stride, fraction, most)
    starts = np.arange(0, max(0, size - length), stride)[:most]
    train = max(1, int((1 - fraction) * starts.size + 1e-9)) if starts.size else 0
    assert (len(x), len(y)) == (train, train)
    for part_x, part_y in ((x, y), (test_x, test_y)):
        assert part_x.shape == (part_y.size, length)
        np.testing.assert_array_equal(part_x, part_y[:, None] - length + np.arange(length))
        assert set(part_x[:, 0].tolist()) <= set(starts.tolist())
    if train:
        own_end = int(x[-1, -1])
        np.testing.assert_array_equal(test_x[:, 0], starts[starts > own_end])  # all that do not overlap, no other


def test_windows_as_leaf_splits_them() -> None:
    """LEAF: n windows, the first 80 % train, the next 79 are dropped."""
    (x, _), (test_x, _) = windows(np.arange(1080) % 251, 80, 1, 0.2)
    assert (len(x), len(test_x)) == (800, 200 - 79)


def test_words() -> None:
    vocabulary = Words.fit(["b b a", "A c d"], size=5, length=2)
    assert vocabulary.words == ("a", "b", "c")  # twice each and by the alphabet, then c before d
    assert len(vocabulary) == 5
    np.testing.assert_array_equal(vocabulary.encode(["d B a", "", "Ä"]), [[1, 3], [0, 0], [1, 0]])
    assert vocabulary.encode([]).shape == (0, 2)
    for size, length in ((2, 3), (5, 0)):
        with pytest.raises(ValueError, match="must be at least"):
            Words.fit(["a"], size=size, length=length)
    with pytest.raises(ValueError, match="'a' is in the vocabulary more than once"):
        Words(("a", "b", "a"), 3)


# Shakespeare.

SPEECHES = [
    ("lear", "FOOL", ["Nuncle, give me", "an egg."]),
    ("lear", "LEAR", ["What  two crowns shall they be?"]),
    ("lear", "FOOL", ["Why, after I have cut the egg i'", "the middle,\tand eat up the meat"]),
    ("lear", "PAGE", ["My lord"]),
    ("hamlet", "FOOL", ["Cudgel thy brains no more about it, your dull ass"]),
]
FOOL = "Nuncle, give me an egg. Why, after I have cut the egg i' the middle, and eat up the meat"


def write_speeches(folder: Path) -> Path:
    lines = [json.dumps({"play": play, "speaker": who, "lines": lines}) for play, who, lines in SPEECHES]
    return put(folder / "shakespeare" / "moby_speeches.jsonl.gz", gzip.compress("\n".join(lines).encode()))


def write_tiny(folder: Path) -> Path:
    text = "\n\n".join(f"{who}:\n" + "\n".join(lines) for play, who, lines in SPEECHES if play == "lear") + "\n"
    return put(folder / "shakespeare" / "tinyshakespeare_input.txt", text.replace("\t", " "))


@pytest.mark.parametrize(
    ("make", "write", "names"),
    [
        (datasets.shakespeare_roles, write_speeches, ("hamlet: FOOL", "lear: FOOL", "lear: LEAR")),
        (datasets.tinyshakespeare, write_tiny, ("FOOL", "LEAR")),
    ],
    ids=["roles", "tiny"],
)
def test_roles_are_clients(
    folder: Path, make: Callable[..., datasets.FederatedDataset], write: Callable[[Path], Path], names: tuple[str, ...]
) -> None:
    write(folder)
    data = make(None, min_chars=12, length=10, test_fraction=0.25, verify=False)
    assert datasets.client_names(data) == names
    assert (data.num_classes, data.examples["x"].dtype) == (80, np.uint8)
    assert data.test is not None
    letters, position = Characters(), names.index(names[-2])
    own, held = data.client(position), data.test.client(position)
    starts = len(FOOL) - 10
    assert own["y"].size == int(0.75 * starts)
    for part, first in ((own, 0), (held, int(0.75 * starts) + 9)):
        text = letters.decode(part["x"][0]) + letters.decode(part["y"])
        assert text == FOOL[first : first + len(text)]
    assert held["y"].size == starts - int(0.75 * starts) - 9
    check_rebuilt(data)
    wide = make(None, min_chars=12, length=10, stride=7, max_windows=3, test_fraction=0.0, verify=False)
    assert np.asarray(wide.sizes).max() == 3
    assert letters.decode(np.asarray(wide.client(position)["x"])[1]) == FOOL[7:17]
    one = make(1, 5, min_chars=12, length=10, verify=False)
    assert one.num_clients == 1
    assert datasets.client_names(one)[0] in names
    with pytest.raises(ValueError, match=r"num_roles=9\): . of . roles in .* have 12 characters"):
        make(9, min_chars=12, length=10, verify=False)
    for bad in ({"length": 0}, {"stride": 0}, {"max_windows": 0}, {"min_chars": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="must be at least"):
            make(None, verify=False, **{"min_chars": 12, "length": 10, **bad})
    with pytest.raises(ValueError, match="is not the published file"):
        make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "line 1: no speech with 'play'"),
        (gzip.compress(b"{}"), "line 1: no speech with 'play'"),
        (gzip.compress(b"{"), "line 1"),
        (gzip.compress(b'{"play": "p", "speaker": "s", "lines": [1]}'), "line 1"),
        (gzip.compress(b"[]"), "line 1"),
        (gzip.compress(b"\xff"), "damaged file"),
        (gzip.compress(b"{}" * 999)[:-9], "is damaged|line 1"),
    ],
    ids=["plain", "keys", "cut json", "lines", "list", "bytes", "cut gzip"],
)
def test_speeches_that_are_none(folder: Path, content: bytes, message: str) -> None:
    put(folder / "shakespeare" / "moby_speeches.jsonl.gz", content)
    with pytest.raises(ValueError, match=message):
        datasets.shakespeare_roles(verify=False)
    put(folder / "shakespeare" / "tinyshakespeare_input.txt", "FOOL:\nNuncle\n\nno name here\n")
    with pytest.raises(ValueError, match="'no name here' does not begin with"):
        datasets.tinyshakespeare(verify=False)


@pytest.mark.slow
@needs("shakespeare")
def test_real_roles() -> None:
    data = datasets.shakespeare_roles(test_fraction=0.0, stride=20)
    stats = data.statistics()
    # FedProx, Table 1: 143 devices, 517,106 samples, mean 3,616, std 6,808; here from another edition
    assert stats.clients == 143
    assert stats.mean * 20 == pytest.approx(4_735, rel=0.01)
    names = datasets.client_names(data)
    assert len({name.partition(":")[0] for name in names}) > 30
    assert datasets.shakespeare_roles(None, stride=400).num_clients == 1054


@needs("shakespeare")
def test_real_tinyshakespeare() -> None:
    data = datasets.tinyshakespeare(stride=40)
    assert data.num_clients == 232
    assert datasets.client_names(data)[0] == "A Player"
    used = np.unique(np.asarray(data.examples["x"]))
    assert set(Characters().decode(used)) <= set(LEAF_CHARACTERS) - {"\n"}


# AG News.


def quoted(*fields: Any) -> str:
    return ",".join('"' + str(field).replace('"', '""') + '"' for field in fields) + "\n"


@pytest.fixture
def small_news(folder: Path) -> Path:
    """400 articles and 40 to test, "word<class>" in each; every fourth noisy label is the next class."""
    rows = [(i % 4, (i + (i % 16 < 4)) % 4, f'Title {i} . word{i % 4}, "said" he') for i in range(400)]
    subset = "label,gt,text,group\n" + "".join(
        quoted(noisy, true, text, i % 10) for i, (true, noisy, text) in enumerate(rows)
    )
    put(folder / "ag_news" / "train_subset_10000_noisyagnews.csv", subset)
    put(
        folder / "ag_news" / "test.csv",
        "".join(quoted(i % 4 + 1, f"Title {i}", f"word{i % 4} unseen") for i in range(40)),
    )
    return folder / "ag_news"


def test_articles(small_news: Path) -> None:
    data = datasets.ag_news(7, 0.5, length=6, vocabulary=50, verify=False)
    assert data.test is not None
    assert (data.num_clients, data.num_examples, data.test.num_examples, data.num_classes) == (7, 400, 40, 4)
    assert (data.examples["x"].shape, data.examples["x"].dtype) == ((400, 6), np.int32)
    x, y = np.asarray(data.examples["x"]), np.asarray(data.examples["y"])
    assert x.max() < 50
    marks = [np.unique(x[y == label, 2]) for label in range(4)]  # title, number, word
    assert len({int(mark[0]) for mark in marks}) == 4
    assert all(mark.size == 1 for mark in marks)
    held, held_y = np.asarray(data.test.examples["x"]), np.asarray(data.test.examples["y"])
    np.testing.assert_array_equal(held[:, 2], np.array([mark[0] for mark in marks])[held_y])
    np.testing.assert_array_equal(held[:, 3:], np.tile([1, 0, 0], (40, 1)))  # "unseen" is unknown, then padding
    assert np.ptp(np.asarray(data.test.sizes)) <= 1
    check_rebuilt(data)


def test_noisy_labels_have_the_same_clients(small_news: Path) -> None:
    true, noisy = (datasets.ag_news(5, 0.5, labels=kind, verify=False) for kind in ("true", "noisy"))
    np.testing.assert_array_equal(true.examples["x"], noisy.examples["x"])
    np.testing.assert_array_equal(true.sizes, noisy.sizes)
    assert np.mean(np.asarray(true.examples["y"]) == np.asarray(noisy.examples["y"])) == 0.75
    assert true.test is not None
    assert noisy.test is not None
    np.testing.assert_array_equal(true.test.examples["y"], noisy.test.examples["y"])


def test_the_full_training_file_is_preferred(small_news: Path) -> None:
    put(small_news / "train.csv", "".join(quoted(i % 4 + 1, f"Title {i}", "text") for i in range(80)))
    assert datasets.ag_news(5, partition="iid", verify=False).num_examples == 80
    assert datasets.ag_news(5, partition="iid", articles="full", verify=False).num_examples == 80
    assert datasets.ag_news(5, partition="iid", articles="subset", verify=False).num_examples == 400
    with pytest.raises(ValueError, match="only the subset has noisy labels"):
        datasets.ag_news(5, labels="noisy", verify=False)


def test_a_tokeniser_of_one_s_own(small_news: Path) -> None:
    lengths = datasets.ag_news(5, partition="iid", encode=lambda texts: [[len(t)] for t in texts], verify=False)
    assert lengths.examples["x"].shape == (400, 1)
    chosen = datasets.ag_news(partition=lambda y: [np.flatnonzero(y == 1), np.flatnonzero(y == 3)[:5]], verify=False)
    np.testing.assert_array_equal(chosen.sizes, [100, 5])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.csv", quoted(5, "a", "b"), "row 0 .* has the class '5', not 1 to 4"),
        ("test.csv", quoted(1, "a"), "line 1: 2 fields and not 3"),
        ("test.csv", '"1","a', "line 1.*complete"),
        ("test.csv", b'"1","\xff","b"', "is not utf-8 text"),
        ("train_subset_10000_noisyagnews.csv", "a,b,c,d\n", r"has the columns \['a', 'b', 'c', 'd'\]"),
    ],
    ids=["class", "fields", "cut", "encoding", "columns"],
)
def test_articles_that_are_none(small_news: Path, name: str, content: str | bytes, message: str) -> None:
    put(small_news / name, content)
    with pytest.raises(ValueError, match=message):
        datasets.ag_news(5, verify=False)


def test_wrong_arguments_for_articles(small_news: Path) -> None:
    for arguments, message in (
        ({"labels": "nosy"}, "did you mean 'noisy'"),
        ({"articles": "all"}, "known: full, subset"),
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(ValueError, match=message):
            datasets.ag_news(**{"verify": False, **arguments})
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.ag_news()


@pytest.mark.slow
@needs("ag_news")
def test_real_articles() -> None:
    data = datasets.ag_news(articles="subset")
    assert data.test is not None
    stats = data.statistics()
    assert (stats.clients, stats.examples, data.test.num_examples) == (100, 10_000, 7_600)
    assert stats.label_table is not None
    assert stats.label_table.sum(axis=0).tolist() == [2514, 2504, 2519, 2463]
    assert data.test.statistics().label_table.sum(axis=0).tolist() == [1900] * 4
    x = np.asarray(data.examples["x"])
    assert (x.min(), x.max()) == (0, 9_999)
    assert np.median((x > 0).sum(axis=1)) == 39
    noisy = datasets.ag_news(articles="subset", labels="noisy", encode=lambda texts: np.zeros((len(texts), 1)))
    assert int((np.asarray(noisy.examples["y"]) == np.asarray(data.examples["y"])).sum()) == 8_025


# Sentiment140.


@pytest.fixture
def small_tweets(folder: Path) -> Path:
    """Accounts u1 to u9 with as many tweets; one neutral tweet, one text that is not utf-8."""
    rows = [(4 * (j % 2), f"{i}{j}", "day", "NO_QUERY", f"u{i}", f"tweet caf\xe9 {i} number {j}") for i in range(1, 10)
            for j in range(i)]  # fmt: skip
    rows.insert(3, (2, "0", "day", "NO_QUERY", "u1", "neither"))
    content = "".join(quoted(*row) for row in rows).encode("latin-1")
    return put(folder / "sent140" / "training.1600000.processed.noemoticon.csv", content)


def test_accounts_are_clients(small_tweets: Path) -> None:
    data = datasets.sent140(None, min_tweets=6, vocabulary=20, length=5, test_fraction=0.3)
    assert data.test is not None
    assert datasets.client_names(data) == ("u6", "u7", "u8", "u9")
    np.testing.assert_array_equal(data.sizes, [4, 4, 5, 6])
    np.testing.assert_array_equal(data.test.sizes, [2, 3, 3, 3])
    table = data.statistics().label_table
    assert table is not None
    assert (table.sum(axis=0) + data.test.statistics().label_table.sum(axis=0)).tolist() == [16, 14]
    words = np.asarray(data.examples["x"])
    assert (words.shape, words.max() < 20) == ((19, 5), True)
    assert len(np.unique(words[:, 0])) == len(np.unique(words[:, 1])) == 1  # "tweet café" stands in all
    check_rebuilt(data)
    some = datasets.sent140(2, min_tweets=6, seed=1)
    assert set(datasets.client_names(some)) < {"u6", "u7", "u8", "u9"}
    assert datasets.sent140(1, 1, test_fraction=0.0).test is None
    with pytest.raises(ValueError, match=r"num_accounts=772\): 4 of 9 accounts in .* have 6"):
        datasets.sent140(min_tweets=6)
    with pytest.raises(ValueError, match="none of 9 accounts"):
        datasets.sent140(None, min_tweets=10)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (datasets.shakespeare_roles, "shakespeare"),
        (datasets.tinyshakespeare, "shakespeare"),
        (datasets.ag_news, "ag_news"),
        (datasets.sent140, "sent140"),
        (datasets.fedprox_synthetic, "fedprox_synthetic"),
        (datasets.parkinsons, "parkinsons_telemonitoring"),
        (datasets.mushrooms, "mushrooms"),
        (datasets.a9a, "libsvm"),
        (datasets.w8a, "libsvm"),
        (datasets.adult, "adult"),
        (datasets.hapt, "hapt_smartphone"),
        (datasets.wisdm, "wisdm_transformed"),
        (datasets.femnist_writers, "leaf_femnist_520"),
        (datasets.emnist_byclass, "emnist_byclass_half"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_missing_files(folder: Path, make: Callable[[], Any], where: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        make()
    for part in (str(folder / where), "FEDJAX_SIM_DATA", "http"):
        assert part in str(caught.value)
