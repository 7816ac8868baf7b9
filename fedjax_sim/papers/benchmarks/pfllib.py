"""PFLlib's table: personal methods on label skew, two classes a client and Dir(0.1)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Scale, Setting, Table, Why
from fedjax_sim.papers.benchmarks.images import DATA_SEED, FMNIST, MNIST, Score, best, dots, effects, halves
from fedjax_sim.papers.measuring import difference, reason

CLIENTS, CLASSES, ALPHA, HELD_OUT = 20, 2, 0.1, 0.25
BATCH, RATE, ROUNDS = 10, 0.005, 2000
NETWORK: dict[str, Any] = {"channels": (32, 64), "hidden": (512,)}
CPU_IMAGES, CPU_RATE, CPU_ROUNDS = 3_000, 0.02, 8
EVERY = {"smoke": 1, "cpu": 4, "paper": 10}  # rounds from one evaluation to the next
CPU_NETWORK: dict[str, Any] = {"channels": (8, 16), "hidden": (64,)}
SMALLEST = 8  # examples of a client, so that all have some to train and some to test on
HEAD = ("Dense_1",)

PATHOLOGICAL, PRACTICAL = "two classes a client", "Dir(0.1)"
FEDAVG, TUNED, PER_FEDAVG, FEDALA = "FedAvg", "FedAvg, fine-tuned", "Per-FedAvg", "FedALA"
SHARED = (FEDAVG, "FedProx", "MOON")  # whose clients use the shared model

# Fashion-MNIST, percent: http://pfllib.com/benchmark.html (docs/benchmark.html of TsingZ0/PFLlib), which says three
# trials nowhere but gives deviations. It has neither fine-tuned FedAvg nor MOON nor IFCA, and no MNIST.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    FMNIST: {
        PATHOLOGICAL: {
            FEDAVG: 80.41, "FedProx": 78.08, PER_FEDAVG: 99.18, "pFedMe": 99.35, "Ditto": 99.44, "APFL": 99.41,
            FEDALA: 99.57, "FedPer": 99.47, "FedRep": 99.56, "FedBABU": 99.41, "FedProto": 99.49,
        },
        PRACTICAL: {
            FEDAVG: 85.85, "FedProx": 85.63, PER_FEDAVG: 95.10, "pFedMe": 97.25, "Ditto": 97.47, "APFL": 97.25,
            FEDALA: 97.66, "FedPer": 97.44, "FedRep": 97.56, "FedBABU": 97.46, "FedProto": 97.40,
        },
    },
    MNIST: {PATHOLOGICAL: {}, PRACTICAL: {}},
}  # fmt: skip


class Entry(NamedTuple):
    """A method of the table."""

    make: Callable[[float, int], Method]  # of the local rate and of the steps of a client's epoch, on average
    metric: str = "personal_accuracy_by_examples"  # of the model that a client uses
    tune: Callable[[float, int], tuple[float, fjs.local.Work]] | None = None  # rate and work of what makes that model


def _sgd(rate: float) -> dict[str, Any]:
    return {"client_optimizer": fjs.optim.sgd(rate)}


_TUNED = "tuned_accuracy_by_examples"
# fmt: off
METHODS: dict[str, Entry] = {
    FEDAVG: Entry(lambda rate, steps: fjs.fedavg(**_sgd(rate)), "test_accuracy",  # the run of the next one
                  lambda rate, epochs: (rate, fjs.local.epochs(1))),
    TUNED: Entry(lambda rate, steps: fjs.fedavg(**_sgd(rate)), _TUNED,
                 lambda rate, epochs: (rate, fjs.local.epochs(1))),
    "FedProx": Entry(lambda rate, steps: fjs.fedprox(**_sgd(rate), mu=0.01), "test_accuracy"),
    "MOON": Entry(lambda rate, steps: fjs.moon(**_sgd(rate), mu=1.0, temperature=1.0), "test_accuracy"),
    PER_FEDAVG: Entry(lambda rate, steps: fjs.perfedavg(**_sgd(rate), alpha=rate, form="first_order"), _TUNED,
                      lambda rate, epochs: (rate, fjs.local.steps(1))),
    "pFedMe": Entry(lambda rate, steps: fjs.pfedme(**_sgd(2 * rate), lam=15.0, inner_steps=5,
                                                   outer_learning_rate=rate)),
    "Ditto": Entry(lambda rate, steps: fjs.ditto(**_sgd(rate), lam=0.1)),
    "APFL": Entry(lambda rate, steps: fjs.apfl(**_sgd(rate), alpha=0.5, adaptive=True)),
    "FedPer": Entry(lambda rate, steps: fjs.keep(fjs.fedavg(**_sgd(rate)), HEAD)),
    "FedRep": Entry(lambda rate, steps: fjs.fedrep(fjs.fedavg(**_sgd(rate)), HEAD, head_steps=steps)),
    "FedBABU": Entry(lambda rate, steps: fjs.freeze(fjs.fedavg(**_sgd(rate)), HEAD), _TUNED,
                     lambda rate, epochs: (rate, fjs.local.epochs(epochs))),
    "FedProto": Entry(lambda rate, steps: fjs.fedproto(**_sgd(rate), lam=1.0, form="code")),
    FEDALA: Entry(lambda rate, steps: fjs.fedala(**_sgd(rate), top=HEAD, weight_learning_rate=1.0, weight_steps=steps)),
    "IFCA": Entry(lambda rate, steps: fjs.ifca(**_sgd(rate), clusters=5, spread=0.01)),
}
# fmt: on
SMOKE = (FEDAVG, TUNED, "FedPer")

Scores = dict[str, dict[str, Score]]  # by partition and method


def pathological(labels: np.ndarray, clients: int, per_client: int, seed: int) -> list[np.ndarray]:
    """PFLlib's two classes a client: each class goes to the first ceil(N c / C) clients that still lack one.

    So clients come in groups that hold the same classes. Of the h holders of a class with n examples all but the last
    get a random number in [n/(10 h), n/h), and the last gets the rest.
    """
    draws = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    lacking = np.full(clients, per_client)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(num_classes):
        holders = np.flatnonzero(lacking > 0)[: math.ceil(clients * per_client / num_classes)]
        rows = draws.permutation(np.flatnonzero(labels == label))
        share = len(rows) / len(holders)
        counts = draws.integers(max(int(share / 10), 1), max(int(share), 2), len(holders) - 1)
        for holder, part in zip(holders, np.split(rows, np.cumsum(counts)), strict=True):
            parts[holder].append(part)
        lacking[holders] -= 1
    return [np.concatenate(of) for of in parts]


def clients_of(bench: Bench, name: str, partition: str) -> fjs.FederatedDataset:
    """Training and test images together, shared out, and a quarter of each client's held out."""
    train, test = halves(bench, name, normalise=((0.5,), (0.5,)))
    both = {key: np.concatenate([train[key], test[key]]) for key in train}
    both = {key: values[: bench.choose(None, CPU_IMAGES, None)] for key, values in both.items()}
    clients = bench.choose(5, CLIENTS)
    rows: Any
    if partition == PATHOLOGICAL:
        rows = pathological(both["y"], clients, CLASSES, DATA_SEED)
    else:
        rows = fjs.datasets.partition.dirichlet(both["y"], clients, ALPHA, DATA_SEED, SMALLEST, balanced=True)
    return fjs.datasets.from_partition(both, rows, test_fraction=HELD_OUT, seed=DATA_SEED, num_classes=10)


def _perform(bench: Bench, name: str) -> Outcome:
    sets = {partition: clients_of(bench, name, partition) for partition in (PATHOLOGICAL, PRACTICAL)}
    scores = {partition: _scores(bench, partition, data) for partition, data in sets.items()}
    published = PUBLISHED[name]
    figures = {"accuracy": dots(scores, published)}
    tables = [_table(partition, of, published[partition]) for partition, of in scores.items()]
    share = sets[PATHOLOGICAL].num_examples / (70_000 * (1 - HELD_OUT))
    scale = bench.choose(
        Scale(share, 2 / ROUNDS, "MLP"), Scale(share, CPU_ROUNDS / ROUNDS, "a network of 8, 16, 64"), Scale()
    )
    return Outcome(
        _settings(bench, sets), _claims(bench, name, scores), figures, tables,
        effects=effects(scores, published, FEDAVG), scale=scale,
    )  # fmt: skip


def _scores(bench: Bench, partition: str, data: fjs.FederatedDataset) -> dict[str, Score]:
    rate = bench.choose(CPU_RATE, CPU_RATE, RATE)
    task = fjs.classification(bench.model(fjs.models.LeNet(10, **bench.choose({}, CPU_NETWORK, NETWORK)), 10))
    steps = max(1, round(data.num_examples / data.num_clients / BATCH))
    found = {}
    for name in bench.choose(SMOKE, tuple(METHODS)):
        entry, tuned = METHODS[name], None
        if entry.tune is not None:
            own, work = entry.tune(rate, bench.choose(1, 1, 10))
            tuned = fjs.personalise(task, fjs.optim.sgd(own), work, fjs.local.shuffled(BATCH))
        [history] = bench.runs(
            f"{partition}, {name}", entry.make(rate, steps), data, task=task,
            rounds=bench.choose(2, CPU_ROUNDS, ROUNDS), eval_every=bench.choose(**EVERY), batch_size=BATCH,
            cohort=fjs.cohort.full(), work=fjs.local.epochs(1), evaluate=fjs.per_client(task, tuned=tuned),
        )  # fmt: skip
        found[name] = best(history, entry.metric)
    return found


def _table(partition: str, scores: Mapping[str, Score], published: Mapping[str, float]) -> Table:
    rows = [
        (name, f"{score.mean:.2f} ± {score.std:.2f}", f"{published[name]:.2f}" if name in published else None,
         score.mean - published[name] if name in published else None, score.mean - scores[FEDAVG].mean,
         published[name] - published[FEDAVG] if name in published else None)
        for name, score in scores.items()
    ]  # fmt: skip
    return Table(
        f"{partition}: best test accuracy over the rounds, over all clients' own test images, %",
        ("method", "here", "published", "difference", "here, above FedAvg", "published, above FedAvg"),
        rows,
        "±: standard deviation over seeds. Published: http://pfllib.com/benchmark.html, Fashion-MNIST; it has no cell "
        "for methods without a number.",
    )


def _claims(bench: Bench, name: str, scores: Scores) -> list[Claim]:
    own, claims = not PUBLISHED[name][PRACTICAL], []
    why: Why = "unexplained" if bench.size == "paper" else "too small"
    for partition, of in scores.items():
        means = {method: score.mean for method, score in of.items()}
        personal = {method: value for method, value in means.items() if method not in (*SHARED, TUNED)}
        leader = max(personal, key=lambda method: personal[method])
        close = {method: abs(value - means[FEDAVG]) for method, value in means.items() if method in SHARED[1:2]}
        gains = {method: difference(np.array(of[method].values), np.array(of[FEDAVG].values)) for method in personal}
        claims += [
            Claim(f"{partition}: every personal method is more accurate than FedAvg",
                  all(gain.above for gain in gains.values()),
                  {"FedAvg": means[FEDAVG], "points above it, half of the 95 % interval":
                   {method: gain.numbers for method, gain in gains.items()}}, own=own, central=not own,
                  ours="the 95 % interval of the seeds' differences is above 0", why=reason(why, *gains.values())),
            Claim(f"{partition}: FedALA is the most accurate of the methods here that the table has",
                  leader == FEDALA, {"best": leader, "accuracy": personal}, own=own),
            Claim(f"{partition}: Per-FedAvg is the least accurate of the personal methods",
                  min(personal, key=lambda method: personal[method]) == PER_FEDAVG, {"accuracy": personal}, own=own),
            Claim(f"{partition}: FedProx is within 3 points of FedAvg", all(gap <= 3 for gap in close.values()), close,
                  "published: 2.3 below it and 0.2 below it", own=own, ours="3 points"),
            Claim(f"{partition}: FedAvg, fine-tuned for one epoch, is within 1 point of the best personal method",
                  means[TUNED] >= personal[leader] - 1, {"fine-tuned": means[TUNED], leader: personal[leader]},
                  own=True),
        ]  # fmt: skip
    averages = {partition: of[FEDAVG].mean for partition, of in scores.items()}
    claims.append(Claim("FedAvg is more accurate with Dir(0.1) than with two classes a client",
                        averages[PRACTICAL] > averages[PATHOLOGICAL], averages, own=own))  # fmt: skip
    gaps = {f"{partition}, {method}": scores[partition][method].mean - value
            for partition, of in PUBLISHED[name].items() for method, value in of.items()
            if method in scores[partition]}  # fmt: skip
    if gaps:
        told = all(abs(gap) <= 1 for gap in gaps.values()) if bench.size == "paper" else None
        note = "" if bench.size == "paper" else "a number of the table's size of data, network and rounds"
        claims.append(Claim("every cell is within 1 point of the published one", told, gaps, note,
                            ours="1 point; the page has numbers and no words"))  # fmt: skip
    place = "benchmark page, label skew"
    return [claim._replace(place=place, why=claim.why if claim.why == "few seeds" else why) for claim in claims]


def _settings(bench: Bench, sets: Mapping[str, fjs.FederatedDataset]) -> list[Setting]:
    held = "; ".join(f"{partition}: {np.asarray(data.sizes).min()} to {np.asarray(data.sizes).max()} to train on"
                     for partition, data in sets.items())  # fmt: skip
    cut, row = "75 % of each client's to train on", bench.setting
    rate = bench.choose(CPU_RATE, CPU_RATE, RATE)
    return [
        row("images", f"all 70,000, training and test part together; {cut}", smoke=f"digits; {cut}",
            cpu=f"{CPU_IMAGES:,} of the 70,000; {cut}"),
        row("pixels", "(x - 0.5) / 0.5", smoke="digits'"),
        row("clients", "20, all in every round", smoke="5, all"),
        row("two classes a client", "groups of clients with the same two, sizes drawn", "the same rule"),
        row("Dir(0.1)", "who has n/20 gets no further class; at least 1 image each",
            f"the same rule; at least {SMALLEST} each; {held}"),
        row("network", "5x5 convolutions 32, 64, dense 512", smoke="MLP, 16 hidden",
            cpu="5x5 convolutions 8, 16, dense 64"),
        row("batch size, local epochs", "10, 1"),
        row("local learning rate", f"{RATE:g}", f"{rate:g}"),
        row("rounds", "2,000 by default", f"{ROUNDS:,}", smoke=2, cpu=CPU_ROUNDS),
        row("accuracy", "best over the rounds, each test image counts the same",
            f"the same; evaluated every {bench.choose(**EVERY)} rounds"),
        row("fine-tuning of FedBABU", "10 epochs, once at the end", f"{bench.choose(1, 1, 10)} at every evaluation"),
        row("Per-FedAvg", "first order; a version of the code tests after a step on test images and one on others",
            "first order; tested after one step on a batch of training images"),
        row("hyper-parameters", "not on the page",
            f"mu 0.01 (FedProx), 1 (MOON, temperature 1); lambda 15, K 5, rates {2 * rate:g} and {rate:g} (pFedMe), "
            "0.1 (Ditto), 1 (FedProto, the form of its code); alpha learned from 0.5 (APFL); FedRep's head and "
            "FedALA's weights of the head as many steps as an epoch has on average; IFCA 5 models"),
        row("trials", "not on the page; deviations are given", f"{len(bench.seeds)} seeds, one partition"),
    ]  # fmt: skip


# PFLlib's page has Fashion-MNIST; for MNIST no published value was found.
perform_fmnist = functools.partial(_perform, name=FMNIST)
perform_mnist = functools.partial(_perform, name=MNIST)
