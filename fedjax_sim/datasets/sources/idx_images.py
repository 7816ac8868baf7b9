"""MNIST, Fashion-MNIST and EMNIST letters from their original idx files, with a partition of one's choice."""

from __future__ import annotations

import functools

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.sources.idx_files import EMNIST_LETTERS, FASHION_MNIST, MNIST, IdxSet
from fedjax_sim.datasets.sources.pixels import Normalisation, checked_normalisation, features
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, Test, partitioner, share_out


@recipe("dataset.mnist")
def mnist(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """MNIST from the four original files in ``<data>/mnist``, gzipped or not.

    Args:
      num_clients: number of clients, for a ``partition`` that is a name.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: how the 60,000 training images are shared out: "dirichlet", "iid" or "shards" (see
        :mod:`fedjax_sim.datasets.partition`), or a function from the labels int[n] to the rows of each client. A
        function describes itself as opaque: register the data set that uses it where a run must be rebuilt.
      seed: of the partition, of the deal of the test images and of the draw of held-out examples.
      shards_per_client: for ``partition="shards"``.
      test: "official" deals the 10,000 test images to the clients uniformly at random, so that the pooled test
        accuracy is the usual one; "local" holds out part of each client's own training images instead, which have
        the client's own labels (the official test images are then not used).
      test_fraction: share held out, for ``test="local"``.
      flat: whether the images are vectors [n, 784] or have the shape [n, 28, 28, 1].
      scaled: whether the pixels are float32 in [0, 1]; False keeps the bytes, uint8, in a quarter of the memory, for
        a model that scales them itself.
      normalise: whether to subtract a mean and divide by a standard deviation after that: True for 0.1307 and
        0.3081, those of the training images, or a pair ``((mean,), (std,))``.
      verify: whether to check the files against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing; the message says where it was looked for.
      ValueError: a file that is not the published one, or an unknown ``partition`` or ``test``.

    Source: LeCun, Cortes and Burges, the MNIST database of handwritten digits.
    """
    choose = partitioner("mnist", partition, num_clients, alpha, shards_per_client, seed)
    return idx_images(
        "mnist", MNIST, choose, test=test, test_fraction=test_fraction, seed=seed, flat=flat, scaled=scaled,
        normalise=normalise, verify=verify,
    )  # fmt: skip


@recipe("dataset.fashion_mnist")
def fashion_mnist(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """Fashion-MNIST from the four original files in ``<data>/fashion_mnist``; arguments as in :func:`mnist`.

    ``normalise=True`` uses the mean 0.2860 and the standard deviation 0.3530.

    Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747.
    """
    choose = partitioner("fashion_mnist", partition, num_clients, alpha, shards_per_client, seed)
    return idx_images(
        "fashion_mnist", FASHION_MNIST, choose, test=test, test_fraction=test_fraction, seed=seed, flat=flat,
        scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


@recipe("dataset.emnist_letters")
def emnist_letters(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """EMNIST's letters split from its four files in ``<data>/emnist_letters``; arguments as in :func:`mnist`.

    124,800 training and 20,800 test images of 26 letters, upper and lower case in one class. The files have each
    image's rows and columns swapped and number the letters from 1; here the images are upright and ``a`` is 0.
    ``normalise=True`` uses the mean 0.1722 and the standard deviation 0.3309.

    Source: Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373.
    """
    choose = partitioner("emnist_letters", partition, num_clients, alpha, shards_per_client, seed)
    return idx_images(
        "emnist_letters", EMNIST_LETTERS, choose, test=test, test_fraction=test_fraction, seed=seed, flat=flat,
        scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


def idx_images(
    what: str,
    files: IdxSet,
    choose: Partitioner,
    *,
    test: Test,
    test_fraction: float,
    seed: int,
    flat: bool,
    scaled: bool,
    normalise: bool | Normalisation,
    verify: bool,
) -> FederatedDataset:
    """An image set of idx files, partitioned by ``choose``.

    Args:
      what: the function that was called, for messages.
      files: the image set.
      choose: labels to the rows of each client.
      test: from here on as in :func:`mnist`.
      test_fraction: share held out.
      seed: of the deal and of the draw of held-out examples.
      flat: vectors or images.
      scaled: float32 or uint8.
      normalise: by mean and standard deviation.
      verify: check the published SHA-256.
    """
    normalisation = checked_normalisation(what, files.folder, scaled, normalise)
    return share_out(
        what,
        functools.partial(files.read, verify=verify),
        choose,
        functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation),
        num_classes=files.num_classes,
        test=test,
        test_fraction=test_fraction,
        seed=seed,
    )
