"""Label skew: Dirichlet shares of a class or of a client, shards of the sorted rows, s % similarity."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, check_flag, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.dealing import (
    apportioned,
    check_clients,
    checked_client_sizes,
    checked_labels,
    dealt,
    even_sizes,
    hands,
    within_bounds,
)
from fedjax_sim.datasets.parts import Partition

_REDRAWS = 50  # after so many draws with a client below min_size, examples are moved instead
_HOPELESS = 12  # so many clients short: the chance that the next draw has none, about e^-12, is not worth the draw


def dirichlet(
    labels: Any,
    num_clients: int,
    alpha: float,
    seed: int,
    min_size: int = 1,
    *,
    max_size: int | None = None,
    balanced: bool = False,
) -> Partition:
    """Label skew: the examples of each class are shared out in proportions q_c ~ Dir(alpha 1_N), c = 1 .. C.

    Client i receives the rows floor(n_c sum_{j<i} q_cj) to floor(n_c sum_{j<=i} q_cj) of the shuffled class c; a
    small alpha gives each client few classes. The proportions are drawn again, up to 50 times, while 1 to 12
    clients have fewer than ``min_size`` examples. If that does not help, or more clients are short, examples of the
    largest clients are moved to them; so are those that a client has above ``max_size``, to the smallest.
    ``redraws`` and ``moved`` of the result tell.

    With ``balanced`` a client that already holds n/N examples or more gets none of the later classes, as in the code
    published with FedMA and FedNova, NIID-Bench's and FedLab's (the texts describe the plain rule).

    Source: Yurochkin et al. 2019, arXiv:1905.12022; Wang et al. 2020 (FedMA), arXiv:2002.06440; Wang et al. 2020
      (FedNova), arXiv:2007.07481, whose setting is Dir_16(0.1).

    Example:
      >>> labels = [0] * 50 + [1] * 50
      >>> dirichlet(labels, num_clients=5, alpha=0.1, seed=0)
      Partition(5 clients, 100 examples, redraws=9, moved=0)
    """
    check_real("dirichlet(alpha=...)", alpha, above=0.0, host=True)
    check_flag("dirichlet(balanced=...)", balanced)
    classes = checked_labels("dirichlet", labels)
    check_clients("dirichlet", classes.size, num_clients, min_size)
    if max_size is not None:
        check_count("dirichlet(max_size=...)", max_size, low=min_size)
        if max_size * num_clients < classes.size:
            raise ValueError(
                f"dirichlet(max_size={max_size}): {num_clients} clients with at most {max_size} each hold "
                f"{max_size * num_clients} of the {classes.size} examples: use more clients or a larger max_size"
            )
    draws = Draws("dirichlet", seed)
    of_class = np.bincount(classes)
    concentration = np.full((of_class.size, num_clients), float(alpha))
    share_out = _filled if balanced else apportioned
    for redraws in range(_REDRAWS + 1):  # noqa: B007, the last one is told
        counts = share_out(np.exp(draws.log_dirichlet(concentration)), of_class)
        if not 1 <= int((counts.sum(axis=0) < min_size).sum()) <= _HOPELESS:
            break
    return dealt(draws, classes, *within_bounds(draws, counts, min_size, max_size), redraws)


def dirichlet_per_client(
    labels: Any,
    num_clients: int,
    alpha: float,
    seed: int,
    *,
    sizes: Any = None,
    min_size: int = 1,
    prior_exponent: float = 0.0,
) -> Partition:
    """Label skew: each client draws its examples from a mixture of classes of its own, p_i ~ Dir(alpha pi^e).

    pi_c = n_c / n are the shares of the classes in the data, e is ``prior_exponent``: 0 gives Dir(alpha 1_C), as in
    FedDyn, FedLab and Flower; 1 gives Dir(alpha pi), as in Hsu et al., where the same alpha is about C times as
    skewed. Client sizes are ``sizes``, int[N], each at least ``min_size``, or equal (up to one); what they leave
    over belongs to nobody.

    The draws are without replacement, in rounds in which every client asks for as many examples as it still lacks, each
    of a class from p_i restricted to the classes that are left; where a class is asked for more often than it has
    examples, random ones of these requests are served. So the last examples follow what is left, not p_i, as in every
    scheme that uses up the data.

    Source: Hsu et al. 2019, arXiv:1909.06335, section 3; Acar et al. 2021 (FedDyn), ICLR, appendix.

    Example:
      >>> labels = np.arange(100) % 10
      >>> dirichlet_per_client(labels, num_clients=4, alpha=0.3, seed=0).sizes.tolist()
      [25, 25, 25, 25]
    """
    what = "dirichlet_per_client"
    check_real(f"{what}(alpha=...)", alpha, above=0.0, host=True)
    check_real(f"{what}(prior_exponent=...)", prior_exponent)
    classes = checked_labels(what, labels)
    check_clients(what, classes.size, num_clients, min_size)
    wanted = even_sizes(classes.size, num_clients)
    if sizes is not None:
        wanted = checked_client_sizes(what, sizes, classes.size, num_clients)
        for client in np.flatnonzero(wanted < min_size)[:1]:
            raise ValueError(f"{what}(sizes=...): client {client} has {wanted[client]}: min_size is {min_size}")
    draws = Draws(what, seed)
    of_class = np.bincount(classes)
    with np.errstate(over="ignore"):
        concentration = float(alpha) * (of_class / classes.size) ** float(prior_exponent)
    if not (np.isfinite(concentration) & (concentration > np.finfo(float).tiny)).all():
        raise ValueError(
            f"{what}(alpha={alpha}, prior_exponent={prior_exponent}): alpha pi^e is {concentration.min():.3g} to "
            f"{concentration.max():.3g}, which no gamma variate has: prior_exponent is 0 or 1 in publications"
        )
    logs = draws.log_dirichlet(np.tile(concentration, (num_clients, 1)))
    return dealt(draws, classes, _requested(draws, logs, wanted, of_class).T)


def shards(labels: Any, num_clients: int, shards_per_client: int, seed: int) -> Partition:
    """Label shards: rows sorted by label are cut into N s equal shards and each client is dealt s of them.

    Where the classes are equally large, a client sees s (``shards_per_client``) classes or few more.

    Source: McMahan et al. 2017, arXiv:1602.05629 (200 shards, two for each of 100 clients).

    Example:
      >>> labels = [0] * 4 + [1] * 4
      >>> sorted(rows.tolist() for rows in shards(labels, num_clients=2, shards_per_client=1, seed=0))
      [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    classes = checked_labels("shards", labels)
    check_count("shards(shards_per_client=...)", shards_per_client)
    check_clients("shards", classes.size, num_clients, shards_per_client)
    draws = Draws("shards", seed)
    deck = draws.shuffled_by(classes)
    count = num_clients * shards_per_client
    dealt_to = draws.shuffled(count) // shards_per_client
    return hands(deck, dealt_to[np.arange(classes.size) * count // classes.size], num_clients)


def similarity(labels: Any, num_clients: int, percent: float, seed: int) -> Partition:
    """s % similarity: s % of each client's examples are IID, the others come from the rows sorted by label.

    A random s % (``percent``) of all rows are dealt out evenly. The others, sorted by label, are cut into N consecutive
    blocks and client i gets block i. All clients have equally many examples, up to one; with s = 0 the data are sorted,
    with s = 100 IID.

    Source: Karimireddy et al. 2020 (SCAFFOLD), arXiv:1910.06378, section 7.1, which does not say which block a
      client gets nor how sizes are rounded.

    Example:
      >>> labels = [0] * 4 + [1] * 4
      >>> [rows.tolist() for rows in similarity(labels, num_clients=2, percent=0, seed=0)]
      [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    check_real("similarity(percent=...)", percent, low=0.0, high=100.0)
    classes = checked_labels("similarity", labels)
    check_clients("similarity", classes.size, num_clients, 1)
    draws = Draws("similarity", seed)
    # the larger ones come first in both, so that no client's IID part exceeds its size
    sizes = even_sizes(classes.size, num_clients)
    mixed = even_sizes(int(np.floor(classes.size * percent / 100.0 + 0.5)), num_clients)
    first, rest = np.split(draws.shuffled(classes.size), [int(mixed.sum())])
    rest = rest[draws.shuffled_by(classes[rest])]
    clients = np.arange(num_clients)
    owner = np.concatenate([np.repeat(clients, mixed), np.repeat(clients, sizes - mixed)])
    return hands(np.concatenate([first, rest]), owner, num_clients)


def _filled(shares: np.ndarray, of_class: np.ndarray) -> np.ndarray:
    """Like ``apportioned``, but class after class, passing over clients that hold n/N examples already."""
    counts = np.zeros(shares.shape, np.int64)
    held = np.zeros(shares.shape[1], np.int64)
    for label, size in enumerate(of_class):
        open_ = held < of_class.sum() / held.size
        left = np.where(open_, shares[label], 0.0)
        # with a small alpha all the mass may lie on clients that are full already
        weights = left if left.sum() > 0 else open_.astype(np.float64)
        counts[label] = apportioned(weights[None], np.array([size]))[0]
        held += counts[label]
    return counts


def _requested(draws: Draws, logs: np.ndarray, wanted: np.ndarray, supply: np.ndarray) -> np.ndarray:
    """Examples of each class for each client, int64[N, C], by rounds of requests; at most C rounds."""
    clients, classes = logs.shape
    counts = np.zeros((clients, classes), np.int64)
    left, lacking = supply.copy(), wanted.copy()
    while lacking.any():
        # a class that has run out gets no mass, and the others their relative mass, however little that was
        open_logs = np.where(left > 0, logs, -np.inf)
        shares = np.exp(open_logs - open_logs.max(axis=1, keepdims=True))
        edges = np.cumsum(shares, axis=1)
        edges /= edges[:, -1:]
        asking = np.repeat(np.arange(clients), lacking)
        # one search in one increasing array: client i's edges lie in (i, i + 1]
        points = asking + draws.uniform(asking.size)
        cells = np.searchsorted((edges + np.arange(clients)[:, None]).reshape(-1), points)
        cells = np.clip(cells, asking * classes, asking * classes + classes - 1)
        asked = np.bincount(cells, minlength=clients * classes).reshape(clients, classes)
        served = asked.copy()
        for label in np.flatnonzero(asked.sum(axis=0) > left):
            requests = np.repeat(np.arange(clients), asked[:, label])
            chosen = requests[draws.shuffled(requests.size)[: left[label]]]
            served[:, label] = np.bincount(chosen, minlength=clients)
        counts += served
        left -= served.sum(axis=0)
        lacking -= served.sum(axis=1)
    return counts
