"""AG News: four classes of short articles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count, shown, suggest
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.places import check_sha256, data_dir, find
from fedjax_sim.datasets.reading.rows import csv_rows
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, deal, partitioner
from fedjax_sim.datasets.text.words import Words
from fedjax_sim.datasets.validate import checked_partition

_GET = "Get it from https://github.com/mhjabreel/CharCnn_Keras, data/ag_news_csv"
_SUBSET = "train_subset_10000_noisyagnews.csv"
_SUBSET_GET = (
    "Get samples10000valMed.csv from https://github.com/hhf-hd/NoisyAG-News, dataset, under that name, or the whole "
    "train.csv from https://github.com/mhjabreel/CharCnn_Keras"
)
_SHA256 = {
    "test.csv": "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
    _SUBSET: "b8d073074344b16bcf53357ba236bc832abe125fe4ce9dea4e5a72371f6265f7",
}

Articles = tuple[list[str], np.ndarray]


@recipe("dataset.ag_news")
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
      partition: "dirichlet", "iid" or "shards" by the true classes, whatever ``labels`` is, or a function from these
        int[n] to the rows of each client (which describes itself as opaque).
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
      verify: whether to check the test file and the subset against their SHA-256.

    Returns:
      ``{"x": int32[n, length], "y": int32[n]}``, classes World, Sports, Business, Sci/Tech; in x 0 is padding (at
      the end) and 1 an unknown word.

    Raises:
      FileNotFoundError: a file is missing in ``<data>/ag_news``.
      ValueError: a file that is not the published one, an unknown argument, noisy labels asked of the full set.

    Source: Zhang, Zhao and LeCun 2015, arXiv:1509.01626; the subset: NoisyAG-News (Huang et al. 2024); the setting:
    Zeng et al. 2025 (FedAWARE).
    """
    for name, value, known in (("articles", articles, ["full", "subset"]), ("labels", labels, ["true", "noisy"])):
        if value is not None and value not in known:
            raise ValueError(f"ag_news({name}={value!r}): {suggest(str(value), known)}")
    check_count("ag_news(seed=...)", seed, low=0)
    choose = partitioner("ag_news", partition, num_clients, alpha, shards_per_client, seed)
    full = articles == "full" or (articles is None and (data_dir() / "ag_news" / "train.csv").exists())
    if full and labels == "noisy":
        raise ValueError("ag_news(labels='noisy'): only the subset has noisy labels: give articles='subset'")
    texts, classes, given = _full("train.csv", None) if full else _subset(verify)
    test_texts, test_classes, _ = _full("test.csv", _SHA256["test.csv"] if verify else None)
    rows, sizes = checked_partition(choose(classes), classes.size)
    to_numbers = Words.fit(texts, vocabulary, length).encode if encode is None else encode
    y = (given if labels == "noisy" else classes)[rows]
    return from_ids(
        (to_numbers([texts[row] for row in rows]), y), np.repeat(np.arange(sizes.size), sizes),
        test=(to_numbers(test_texts), test_classes), test_ids=deal(test_classes.size, sizes.size, seed), num_classes=4,
    )  # fmt: skip


def _full(name: str, published: str | None) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts and classes of a file in the original format: class 1 to 4, title, description."""
    path = find("ag_news", name, get=_GET)
    if published is not None:
        check_sha256(path, published)
    rows = list(csv_rows(path, 3))
    classes = _classes(path, [row[0] for row in rows], first=1)
    return [f"{title} . {description}" for _, title, description in rows], classes, classes


def _subset(verify: bool) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, true classes and noisy labels of NoisyAG-News."""
    path = find("ag_news", _SUBSET, get=_SUBSET_GET)
    if verify:
        check_sha256(path, _SHA256[_SUBSET])
    header, *rows = [*csv_rows(path, 4)] or [[]]
    if header != ["label", "gt", "text", "group"]:
        raise ValueError(
            f"{path} has the columns {shown(header)}, and label, gt, text, group are needed: is it the right file?"
        )
    noisy, true = (_classes(path, [row[column] for row in rows], first=0) for column in (0, 1))
    return [row[2] for row in rows], true, noisy


def _classes(path: Path, written: list[str], first: int) -> np.ndarray:
    if not written:
        raise ValueError(f"{path} has no articles: fetch it again")
    allowed = {str(number): number - first for number in range(first, first + 4)}
    for row, text in enumerate(written):
        if text not in allowed:
            raise ValueError(
                f"{path}: row {row} (counted from 0) has the class {shown(text)}, not {first} to {first + 3}"
            )
    return np.array([allowed[text] for text in written], np.int64)
