"""Sentiment140: tweets with a smiley's sentiment, one client for each account."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.names import named
from fedjax_sim.datasets.reading.places import find
from fedjax_sim.datasets.reading.rows import csv_rows
from fedjax_sim.datasets.split import held_out
from fedjax_sim.datasets.text.words import Words

_FILE = "training.1600000.processed.noemoticon.csv"
_GET = (
    "Get trainingandtestdata.zip from http://help.sentiment140.com/for-students (it may be used for research only) and "
    "unpack that file"
)
_POLARITY, _USER, _TEXT = 0, 4, 5  # columns: polarity, id, date, query, user, text
_CLASS = {"0": 0, "4": 1}


@recipe("dataset.sent140")
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
      encode: texts to an array with one row each in the place of the words, for embeddings of one's own (FedProx: the
        300 numbers of GloVe for each word). It describes itself as opaque.

    Returns:
      ``{"x": int32[n, length], "y": int32[n]}``, 0 negative and 1 positive (neutral tweets are left out); in x 0 is
      padding and 1 an unknown word; :func:`client_names` gives the accounts.

    Raises:
      FileNotFoundError: the file is missing in ``<data>/sent140``.
      ValueError: another file, or more accounts asked for than there are.

    Source: Go, Bhayani and Huang 2009; Li et al. 2020 (FedProx), arXiv:1812.06127, Table 1.
    """
    check_count("sent140(min_tweets=...)", min_tweets)
    check_count("sent140(seed=...)", seed, low=0)
    path = find("sent140", _FILE, get=_GET)
    counts = collections.Counter(
        row[_USER] for row in csv_rows(path, 6, encoding="latin-1") if row[_POLARITY] in _CLASS
    )
    accounts = sorted(name for name, count in counts.items() if count >= min_tweets)
    if num_accounts is not None:
        check_count("sent140(num_accounts=...)", num_accounts)
        if num_accounts > len(accounts):
            raise ValueError(
                f"sent140(num_accounts={num_accounts}): {len(accounts)} of {len(counts)} accounts have {min_tweets} "
                "tweets or more: ask for fewer accounts or lower min_tweets"
            )
        drawn = Draws("sent140", seed).shuffled(len(accounts))[:num_accounts]
        accounts = [accounts[number] for number in np.sort(drawn)]
    if not accounts:
        raise ValueError(f"sent140(min_tweets={min_tweets}): none of {len(counts)} accounts in {path} has so many")
    number = {name: place for place, name in enumerate(accounts)}
    rows = [
        (number[row[_USER]], _CLASS[row[_POLARITY]], row[_TEXT])
        for row in csv_rows(path, 6, encoding="latin-1")
        if row[_USER] in number and row[_POLARITY] in _CLASS
    ]
    owner, y = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    mask = held_out(owner, test_fraction, seed)
    train = [row[2] for row, held in zip(rows, mask, strict=True) if not held]
    test = [row[2] for row, held in zip(rows, mask, strict=True) if held]
    to_numbers = Words.fit(train, vocabulary, length).encode if encode is None else encode
    parts = {"test": (to_numbers(test), y[mask]), "test_ids": owner[mask]} if test else {}
    data = from_ids((to_numbers(train), y[~mask]), owner[~mask], **parts, num_classes=2)
    return named(data, accounts)
