"""Texts by name: AG News, Sentiment140 with one client for each account, Shakespeare's speaking roles."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.files import parsing, read_text
from fedjax_sim.core.values import check_choice, check_count, shown
from fedjax_sim.datasets.calls import arguments_of
from fedjax_sim.datasets.construct import from_clients, from_ids
from fedjax_sim.datasets.federated import FederatedDataset, named
from fedjax_sim.datasets.from_arrays import check_split, held_out
from fedjax_sim.datasets.reading.archives import read_bounded
from fedjax_sim.datasets.reading.tables import csv_rows
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, by_rows, deal, drawn_names, partitioner
from fedjax_sim.datasets.text import Characters, Words, windows

_GET = "Get it from https://github.com/mhjabreel/CharCnn_Keras, data/ag_news_csv"
_TEST = DataFile("ag_news", ("test.csv",), _GET, "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699")
_FULL = DataFile("ag_news", ("train.csv",), _GET)
_SUBSET = DataFile(
    "ag_news",
    ("train_subset_10000_noisyagnews.csv",),
    "Get samples10000valMed.csv from https://github.com/hhf-hd/NoisyAG-News, dataset, under that name, or the whole "
    "train.csv from https://github.com/mhjabreel/CharCnn_Keras",
    "b8d073074344b16bcf53357ba236bc832abe125fe4ce9dea4e5a72371f6265f7",
)


@data_set(
    "dataset.ag_news",
    source=Source(
        (_TEST, _SUBSET._replace(names=(*_FULL.names, *_SUBSET.names))),
        size="4.4 MB (full: 31 MB)",
        terms="the articles: research and other non-commercial use; the subset's labels: MIT",
    ),
)
def ag_news(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    articles: Literal["full", "subset"] | None = None,
    labels: Literal["true", "noisy"] = "true",
    vocabulary: int = 10_000,
    length: int = 64,
    encode: Callable[[Sequence[str]], Any] | None = None,
    verify: bool = True,
) -> FederatedDataset:
    """AG News articles (title and description) as word numbers, by default Dir(0.1) over 100 clients as in FedAWARE.

    The tokeniser is :class:`fedjax_sim.datasets.text.Words`: lower-case words, numbered by how often they are in the
    training articles. The official 7,600 test articles are dealt to the clients uniformly at random.

    Args:
      num_clients: number of clients, for a ``partition`` that is a name.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: "dirichlet", "iid" or "shards" by the true classes, whatever ``labels`` is, or a function of these.
      seed: of the partition and of the deal of the test articles.
      shards_per_client: for ``partition="shards"``.
      articles: "full" trains on the 120,000 articles of ``train.csv``, "subset" on the 10,000 of NoisyAG-News; None
        on all where that file is present.
      labels: "noisy" takes a crowd worker's label of each training article instead of the true one; they agree in
        8,025 of 10,000. Only for the subset. Test labels are the true ones.
      vocabulary: number of the embedding's rows: words kept + 2.
      length: words kept of an article (of the subset's, half have 39 or fewer and 95 % have 60 or fewer).
      encode: texts to an array with one row each, in the place of the words: a pretrained model's own tokeniser,
        padded to one length. It describes itself as opaque.
      verify: the SHA-256 of the test file and the subset.

    Returns:
      ``{"x": int32[n, length], "y": int32[n]}``, classes World, Sports, Business, Sci/Tech; in x 0 is padding (at
      the end) and 1 an unknown word.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file that is not the published one, noisy labels asked of the full set.

    Source: Zhang, Zhao and LeCun 2015, arXiv:1509.01626; the subset: NoisyAG-News (Huang et al. 2024); the setting:
    Zeng et al. 2025 (FedAWARE).
    """
    if articles is not None:
        check_choice("ag_news(articles=...)", articles, ("full", "subset"))
    check_choice("ag_news(labels=...)", labels, ("true", "noisy"))
    choose = partitioner("ag_news", partition, num_clients, alpha, shards_per_client, seed)
    full = articles == "full" or (articles is None and _FULL.found() is not None)
    if full and labels == "noisy":
        raise ValueError("ag_news(labels='noisy'): only the subset has noisy labels: give articles='subset'")
    texts, classes, given = _articles(_FULL.path()) if full else _subset(_SUBSET.path(verify=verify))
    test_texts, test_classes, _ = _articles(_TEST.path(verify=verify))
    rows = choose(classes)
    to_numbers = Words.fit(texts, vocabulary, length).encode if encode is None else encode
    train = (np.array(texts, object), given if labels == "noisy" else classes)
    test = (np.array(test_texts, object), test_classes)
    owner = deal(test_classes.size, len(rows), seed)
    return by_rows(rows, train, test, owner, 4, lambda part: (to_numbers(part[0].tolist()), part[1]))


def _articles(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts and classes (twice) of a file in the original format: class 1 to 4, title, description."""
    rows = list(csv_rows(path, 3))
    classes = _classes(path, [row[0] for row in rows], first=1)
    return [f"{title} . {description}" for _, title, description in rows], classes, classes


def _subset(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, true classes and noisy labels of NoisyAG-News."""
    rows = list(csv_rows(path, ("label", "gt", "text", "group")))
    noisy, true = (_classes(path, [row[column] for row in rows], first=0) for column in (0, 1))
    return [row[2] for row in rows], true, noisy


def _classes(path: Path, written: list[str], first: int) -> np.ndarray:
    if not written:
        raise ValueError(f"{path} has no articles: fetch it again")
    found = np.array(written)
    for row in np.flatnonzero(~np.isin(found, [str(number) for number in range(first, first + 4)]))[:1]:
        raise ValueError(
            f"{path}: row {row} (counted from 0) has the class {shown(written[row])}, not {first} to {first + 3}"
        )
    return found.astype(np.int64) - first


_TWEETS = DataFile(
    "sent140",
    ("training.1600000.processed.noemoticon.csv",),
    "Get trainingandtestdata.zip from http://help.sentiment140.com/for-students (it may be used for research only) and "
    "unpack that file",
)
_POLARITY, _USER, _TEXT = 0, 4, 5  # columns: polarity, id, date, query, user, text
_CLASS = {"0": 0, "4": 1}


@data_set("dataset.sent140", source=Source((_TWEETS,), size="239 MB", terms="research use"))
def sent140(
    num_accounts: int | None = 772,
    min_tweets: int = 30,
    seed: int = 0,
    *,
    vocabulary: int = 10_000,
    length: int = 25,
    test_fraction: float = 0.2,
    encode: Callable[[Sequence[str]], Any] | None = None,
) -> FederatedDataset:
    """Sentiment of tweets, one client for each account, from the user's own copy of Sentiment140.

    The file is read twice, once to count the tweets of each account; only the chosen accounts' tweets are kept.
    For LEAF's json of the same set use :func:`from_leaf`.

    Args:
      num_accounts: accounts to draw uniformly without replacement, 772 as in FedProx's Table 1; None takes all.
      min_tweets: accounts with fewer tweets are left out; 30 as in FedProx's data (preprocess.sh -k 30).
      seed: of the draws of the accounts and of the held-out tweets.
      vocabulary: number of the embedding's rows: words of the training tweets kept + 2, see
        :class:`fedjax_sim.datasets.text.Words`.
      length: words kept of a tweet; 25 tokens in FedProx.
      test_fraction: share of an account's tweets held out, drawn uniformly.
      encode: texts to an array with one row each in the place of the words (FedProx: the 300 numbers of GloVe for each
        word). It describes itself as opaque.

    Returns:
      ``{"x": int32[n, length], "y": int32[n]}``, 0 negative and 1 positive (neutral tweets are left out); in x 0 is
      padding and 1 an unknown word; :func:`client_names` gives the accounts.

    Source: Go, Bhayani and Huang 2009; Li et al. 2020 (FedProx), arXiv:1812.06127, Table 1.
    """
    check_count("sent140(min_tweets=...)", min_tweets)
    check_count("sent140(seed=...)", seed, low=0)
    path = _TWEETS.path()
    counts = collections.Counter(
        row[_USER] for row in csv_rows(path, 6, encoding="latin-1") if row[_POLARITY] in _CLASS
    )
    known = sorted(name for name, count in counts.items() if count >= min_tweets)
    which = f"of {len(counts)} accounts in {path} have {min_tweets} tweets or more: ask for fewer or lower min_tweets"
    accounts = drawn_names("sent140", "num_accounts", num_accounts, known, "sent140", seed, which)
    number = {name: place for place, name in enumerate(accounts)}
    rows = [
        (number[row[_USER]], _CLASS[row[_POLARITY]], row[_TEXT])
        for row in csv_rows(path, 6, encoding="latin-1")
        if row[_USER] in number and row[_POLARITY] in _CLASS
    ]
    owner, y = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    texts = [row[2] for row in rows]
    if encode is None:
        held = held_out(owner, test_fraction, seed)
        trained = [text for text, of_test in zip(texts, held, strict=True) if not of_test]
        encode = Words.fit(trained, vocabulary, length).encode
    data = from_ids((encode(texts), y), owner, test_fraction=test_fraction, seed=seed, num_classes=2)
    return named(data, accounts)


_MAX_BYTES = 2**28  # of the plays' text: theirs has 6 million
_MOBY = DataFile(
    "shakespeare",
    ("moby_speeches.jsonl.gz",),
    "Make it from the plays' marked-up text (https://github.com/TheMITTech/shakespeare): gzipped, one JSON object for "
    'each speech, {"play": ..., "speaker": ..., "lines": [...]}',
    "84ea4104dfd6373a98b26888a7d02fc01fee32dec15fac32accdfefdd5ff9a4a",
)
_TINY = DataFile(
    "shakespeare",
    ("tinyshakespeare_input.txt",),
    "Get input.txt from https://github.com/karpathy/char-rnn, data/tinyshakespeare, under that name",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)

Speech = tuple[str, str]  # who says what


@data_set("dataset.shakespeare_roles", source=Source((_MOBY,), size="2.1 MB", terms="public domain (Moby edition)"))
def shakespeare_roles(
    num_roles: int | None = 143,
    seed: int = 0,
    *,
    min_chars: int = 160,
    length: int = 80,
    stride: int = 1,
    max_windows: int | None = None,
    test_fraction: float = 0.2,
    verify: bool = True,
) -> FederatedDataset:
    """Next-character prediction, one client for each speaking role (play, speaker) of Shakespeare's 37 plays.

    A role's lines are joined by blanks in the order of the play. Each example is a window of 80 characters and the
    character after it; the first 80 % of a role's windows are for training, those after them that share no input
    character with them for testing. So LEAF and FedProx make theirs, from another edition of the text.

    Memory: ``length`` bytes an example. All roles at stride 1 are 4.2 million windows, 340 MB; the default's 143 roles
    about 45 MB. ``stride`` and ``max_windows`` make it less.

    Args:
      num_roles: roles to draw uniformly without replacement, 143 as in FedProx's Table 1; None takes all.
      seed: of that draw.
      min_chars: roles with fewer characters are left out: 160 leave 1,054 of the 1,347.
      length: characters of a window, L.
      stride: characters between the starts of two windows; 1 as in LEAF.
      max_windows: most windows of a role, the first of its text; they include those for testing. At stride 1 and
        with a fifth held out, fewer than 400 leave nothing to test on: 79 are dropped between the two parts.
      test_fraction: share of a role's windows not trained on.
      verify: the file's SHA-256.

    Returns:
      ``{"x": uint8[n, length], "y": int32[n]}``: characters as numbers of
      :data:`fedjax_sim.datasets.text.LEAF_CHARACTERS`, 80 classes; :func:`client_names` gives "play: SPEAKER".

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: another file, an argument out of its range, or more roles asked for than there are.

    Source: McMahan et al. 2017, arXiv:1602.05629; Caldas et al. 2018 (LEAF), arXiv:1812.01097; Li et al. 2020
    (FedProx), arXiv:1812.06127, Table 1. Text: the Moby edition, in the public domain.
    """
    return _roles("shakespeare_roles", _MOBY, _speeches, **locals())


@data_set("dataset.tinyshakespeare", source=Source((_TINY,), size="1.1 MB", terms="public domain"))
@arguments_of(shakespeare_roles, num_roles=None)
def tinyshakespeare(**given: Any) -> FederatedDataset:
    """The same task from the 1.1 MB of tinyshakespeare, one client for each of its 309 speakers.

    A speaker of one name ("First Citizen") is one client, whatever the play. Arguments and result as in
    :func:`shakespeare_roles`, with all speakers by default: 232 have 160 characters or more.

    Source: Karpathy 2015, char-rnn, data/tinyshakespeare.
    """
    return _roles("tinyshakespeare", _TINY, _paragraphs, **given)


def _roles(
    what: str,
    file: DataFile,
    read: Callable[[Path], Iterator[Speech]],
    *,
    num_roles: int | None,
    seed: int,
    min_chars: int,
    length: int,
    stride: int,
    max_windows: int | None,
    test_fraction: float,
    verify: bool,
) -> FederatedDataset:
    check_count(f"{what}(min_chars=...)", min_chars)
    check_count(f"{what}(length=...)", length)
    check_count(f"{what}(stride=...)", stride)
    check_count(f"{what}(max_windows=...)", 1 if max_windows is None else max_windows)
    check_split(None, test_fraction, seed)
    path = file.path(verify=verify)
    spoken, least = _spoken(read(path)), max(min_chars, length + 1)
    known = sorted(name for name, text in spoken.items() if len(text) >= least)
    which = f"of {len(spoken)} roles in {path} have {least} characters or more: ask for fewer roles or lower min_chars"
    names = drawn_names(what, "num_roles", num_roles, known, "roles", seed, which)
    letters = Characters()
    parts = [windows(letters.encode(spoken[name]), length, stride, test_fraction, max_windows) for name in names]
    data = from_clients([train for train, _ in parts], test=[test for _, test in parts], num_classes=len(letters))
    return named(data, names)


def _spoken(speeches: Iterator[Speech]) -> dict[str, str]:
    """All that each role says: lines joined by blanks, several blanks made one, as LEAF does it."""
    said = collections.defaultdict(list)
    for role, text in speeches:
        # the one slip of the Moby text: its only dollar sign, which no alphabet of this task has
        said[role].append(text.replace("sha$l", "shall"))
    return {role: " ".join(" ".join(texts).split()) for role, texts in said.items()}


def _speeches(path: Path) -> Iterator[Speech]:
    """Speeches of a gzipped file with one JSON object a line."""
    content = read_bounded(path, _MAX_BYTES)
    with parsing(path, "is a damaged file"):
        text = content.decode()
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            speech = json.loads(line)
            play, speaker, lines = (speech[key] for key in ("play", "speaker", "lines"))
            if not all(isinstance(part, str) for part in (play, speaker, *lines)) or not isinstance(lines, list):
                raise TypeError("they are not strings")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: no speech with 'play', 'speaker' and a list 'lines' ({shown(error)})"
            ) from error
        yield f"{play}: {speaker}", " ".join(lines)


def _paragraphs(path: Path) -> Iterator[Speech]:
    """Speeches of a text: paragraphs whose first line is the speaker's name and a colon."""
    for paragraph in re.split(r"\n{2,}", read_text(path).strip()):
        name, _, text = paragraph.partition("\n")
        if not name.endswith(":"):
            raise ValueError(
                f"{path}: the paragraph {paragraph[:60]!r} does not begin with a speaker's name and a colon"
            )
        yield name[:-1], text
