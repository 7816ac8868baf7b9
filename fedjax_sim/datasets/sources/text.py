"""Short texts by name: AG News, and Sentiment140 with one client for each account."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.values import check_choice, check_count, shown
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset, named
from fedjax_sim.datasets.from_arrays import held_out
from fedjax_sim.datasets.reading.tables import csv_rows
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, by_rows, deal, drawn_names, partitioner
from fedjax_sim.datasets.text import Words

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
