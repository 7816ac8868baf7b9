"""The problems of the comparison: data that a draw decides, a model, and how a round goes, the same for all methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import datasets, models
from fedjax_sim.clients import local
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import leaf
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.models.base import of_kind
from fedjax_sim.models.evaluation import evaluate
from fedjax_sim.models.task import Task, classification, regression

Examples = Mapping[str, np.ndarray]
PEOPLE = (0.6, 0.2, 0.2)  # of the clients: to train on, to choose by, to report
PARTS = (0.5, 0.15, 0.35)  # of every client's examples: likewise


class Problem(NamedTuple):
    """One of :data:`PROBLEMS`."""

    unlike: str  # what differs between clients and how a round goes, in words
    data: Callable[[int], FederatedDataset]  # of a draw, with a validation and a test part
    task: Task
    cohort: int | None  # clients a round; None for all
    work: Any
    batch: int
    rates: tuple[float, float]  # between which the clients' learning rate is drawn
    rounds: int
    deep: bool = False
    metric: str = "accuracy"  # or "mse": less is better
    people: bool = False  # whether whole clients are held out: then none has held-out examples of its own


class ByClients(Described):
    """For ``evaluate=``: means over the clients, each counting the same, of every held-out part.

    ``"<part>_clients_<name>"`` for the loss and the metrics of the task; clients without examples there are left out.
    The run itself records ``"<part>_<name>"``, the means over the examples.
    """

    task: Task = leaf(of_kind(Task, "the run's task"))

    @property
    def in_buckets(self) -> bool:
        """Whether draws of a problem share programs: where all is read by passes."""
        return not self.task.joint and not self.task.scores

    def __call__(self, params: Any, dataset: FederatedDataset) -> dict[str, jax.Array]:
        return {
            f"{part}_clients_{name}": jnp.nanmean(values)
            for part, held in held_out_parts(dataset).items()
            for name, values in evaluate(self.task, params, held).clients.items()
        }


by_clients = factory("benchmark.by_clients", ByClients)


def by_people(
    data: FederatedDataset, draw: int, standard: Sequence[str] = (), most: int | None = None
) -> FederatedDataset:
    """Whole clients are drawn to train on, to choose by and to report, ``most`` in all.

    Those held out have no clients of their own in a data set: each is stored as the held-out examples of one that
    trains, so that means over clients are means over them.
    """
    clients = _whole(data)
    order = Draws("benchmark people", draw).shuffled(len(clients))[:most]
    ends = np.cumsum(np.round(np.asarray(PEOPLE[:2]) * order.size).astype(int))
    parts = [[clients[at] for at in which] for which in np.split(order, ends)]
    return _made([[*part, *[None] * (len(parts[0]) - len(part))] for part in parts], standard, data.num_classes)


def by_parts(
    data: FederatedDataset, draw: int, standard: Sequence[str] = (), most: int | None = None
) -> FederatedDataset:
    """Examples of every client are drawn to train on, to choose by and to report, ``most`` in all.

    Clients with fewer than 4 are left out.
    """
    draws = Draws("benchmark parts", draw)
    parts: list[list[Any]] = [[], [], []]
    for client in _whole(data):
        rows = draws.shuffled(len(client["y"]))[:most]
        if rows.size >= 4:
            ends = np.maximum(1, np.floor(np.cumsum(PARTS[:2]) * rows.size).astype(int))
            ends[1] = max(ends[1], ends[0] + 1)
            for part, which in zip(parts, np.split(rows, ends), strict=True):
                part.append({name: values[which] for name, values in client.items()})
    return _made(parts, standard, data.num_classes)


def _made(parts: list[list[Any]], standard: Sequence[str], classes: int | None) -> FederatedDataset:
    """The data set; arrays that are named get mean 0 and deviation 1 over the examples that are trained on."""
    for name in standard:
        known = np.concatenate([client[name] for client in parts[0]]).astype(np.float64)
        mean, spread = known.mean(axis=0), known.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        parts = [[client and {**client, name: ((client[name] - mean) / spread).astype(np.float32)} for client in part]
                 for part in parts]  # fmt: skip
    train, validation, test = parts
    return datasets.from_clients(train, validation=validation, test=test, num_classes=classes)


def _whole(data: FederatedDataset) -> list[Examples]:
    """All examples of every client, the official test part's among them."""
    parts = [data, *held_out_parts(data).values()]
    return [
        {name: np.concatenate([of[name] for of in owned]) for name in owned[0]}
        for owned in ([part.client(at) for part in parts] for at in range(data.num_clients))
    ]


def _dirichlet(pool: FederatedDataset, count: int, clients: int, alpha: float, draw: int) -> FederatedDataset:
    """``count`` images of a set, drawn, then dealt to clients whose shares of a class are Dirichlet draws."""
    [everything] = _whole(pool)
    rows = Draws("benchmark pool", draw).shuffled(len(everything["y"]))[:count]
    some = {name: values[rows] for name, values in everything.items()}
    shared = datasets.partition.dirichlet(some["y"], clients, alpha, draw, 20)
    return by_parts(datasets.from_partition(some, shared, num_classes=pool.num_classes), draw)


_LINEAR = classification(models.LogisticRegression(10))

# fmt: off
PROBLEMS: dict[str, Problem] = {
    "synthetic(1, 1)": Problem(
        "30 clients: models, inputs and sizes differ; 10 a round, 1 to 5 epochs, drawn for each client and round",
        lambda draw: by_parts(datasets.synthetic(1.0, 1.0, 30, seed=draw, test_fraction=0.0, max_size=600), draw),
        _LINEAR, 10, local.random_epochs(1, 5), 20, (0.003, 0.6), 60),
    "income by occupation": Problem(
        "Adult, 15 occupations of 9 to 6,172 people, all in every round; one epoch",
        lambda draw: by_parts(datasets.adult("occupation"), draw),
        classification(models.LogisticRegression(2)), None, local.epochs(1), 64, (0.003, 0.6), 60),
    "Parkinsons by patient": Problem(
        "42 patients; 10 a round, two epochs; squared error in shares of the targets' variance",
        lambda draw: by_parts(datasets.parkinsons(standardise=False, test_fraction=0.0), draw, ("x", "y")),
        regression(models.LogisticRegression(1)), 10, local.epochs(2), 20, (0.0003, 0.06), 60, metric="mse"),
    "phones by person": Problem(
        "WISDM, 36 people of whom 22 train, labels very uneven; 7 a round, 10 steps each",
        lambda draw: by_people(datasets.wisdm(test_fraction=0.0, standardise=False), draw, ("x",)),
        classification(models.LogisticRegression(6)), 7, local.steps(10), 20, (0.001, 0.2), 60, people=True),
    "activity by person": Problem(
        "HAPT, raw windows of 30 people of whom 18 train; 6 a round, one epoch; one hidden layer",
        lambda draw: by_people(datasets.hapt(test_fraction=0.0, standardise=False, flat=True), draw, ("x",)),
        classification(models.MLP(6, (32,))), 6, local.epochs(1), 32, (0.003, 0.6), 60, people=True),
    "MNIST by writer": Problem(
        "200 of 539 writers, of whom 120 train; 20 a round, 5 steps each",
        lambda draw: by_people(datasets.mnist_writers("train", "local", test_fraction=0.0), draw, most=200),
        _LINEAR, 20, local.steps(5), 20, (0.01, 2.0), 60, people=True),
    "MNIST, two digits": Problem(
        "50 clients of two digits, sizes by a power law, 800 images at most; 10 a round, one epoch",
        lambda draw: by_parts(datasets.mnist_two_digits(50, draw, test_fraction=0.0), draw, most=800),
        _LINEAR, 10, local.epochs(1), 20, (0.003, 0.6), 60),
    "MNIST, Dir(0.1)": Problem(
        "10 clients, labels and sizes differ; all in every round, one epoch; one hidden layer",
        lambda draw: _dirichlet(datasets.mnist(1, partition="iid"), 9_000, 10, 0.1, draw),
        classification(models.MLP(10, (50,))), None, local.epochs(1), 32, (0.01, 2.0), 60),
    "Fashion-MNIST, CNN": Problem(
        "20 clients, Dir(0.3); 5 a round, 10 steps each; LeNet",
        lambda draw: _dirichlet(datasets.fashion_mnist(1, partition="iid", flat=False), 12_000, 20, 0.3, draw),
        classification(models.LeNet(10)), 5, local.steps(10), 32, (0.003, 0.6), 60, True),
    "EMNIST, CNN": Problem(
        "by class, 62 uneven ones; 40 clients, Dir(0.3); 8 a round, one epoch; LeNet",
        lambda draw: _dirichlet(datasets.emnist_byclass(1, partition="iid", flat=False), 16_000, 40, 0.3, draw),
        classification(models.LeNet(62)), 8, local.epochs(1), 32, (0.003, 0.6), 60, True),
    "CIFAR-10, CNN": Problem(
        "20 clients, Dir(0.3); 5 a round, 10 steps each; three convolutions",
        lambda draw: _dirichlet(datasets.cifar10(1, partition="iid"), 12_000, 20, 0.3, draw),
        classification(models.CifarCNN(10, (16, 32, 32))), 5, local.steps(10), 32, (0.003, 0.6), 60, True),
    "Shakespeare, LSTM": Problem(
        "60 speaking roles of whom 36 train; 8 a round, one epoch; the next character",
        lambda draw: by_people(datasets.shakespeare_roles(
            60, draw, min_chars=2_000, length=40, stride=8, max_windows=400, test_fraction=0.0), draw),
        classification(models.CharLSTM(hidden=64, layers=1)), 8, local.epochs(1), 16, (0.05, 10.0), 60, True,
        people=True),
}
# fmt: on
"""The problems by name: :class:`Problem` each."""
