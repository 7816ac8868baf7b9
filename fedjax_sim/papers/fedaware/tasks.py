"""The three tasks of the paper, and what is left of CIFAR-10 where there is no GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.sources.image_files import CIFAR10
from fedjax_sim.datasets.sources.record import DataFile
from fedjax_sim.papers.bench import Bench, Setting
from fedjax_sim.run.history import History

CLIENTS, PER_ROUND, EPOCHS, BATCH, RATE = 100, 10, 3, 64, 0.01  # section 5
ALPHA = 0.1  # of the Dirichlet partition
DATA_SEED = 0

# The CPU's part of CIFAR-10: fewer and smaller images, narrower layers. The batch shrinks with the clients' data, so
# that a client still takes some twenty steps a round. Where FedAvg runs alone, a larger rate makes up for fewer rounds;
# where methods are compared it would not be fair to FedAWARE, whose steps do not grow with it.
CPU_IMAGES, CPU_TEST_IMAGES = 4000, 1000
CPU_CHANNELS, CPU_HIDDEN = (8, 16, 16), 32
CPU_BATCH, CPU_ROUNDS, CPU_EVERY, CPU_RATE_ALONE = 8, 200, 10, 0.05

DIAGNOSTICS = ("e_lud", "lud", "consensus", "coherence")

Deal = Callable[[np.ndarray], Sequence[np.ndarray]]  # labels to the rows of each client


class Problem(NamedTuple):
    """A task as the algorithms meet it."""

    name: str  # the paper's
    data: fjs.FederatedDataset  # shared out to the clients
    learning_rate: float  # eta_l
    run: Mapping[str, Any]  # keywords of a run, with the most runs at once

    @property
    def optimizer(self) -> Any:
        """The clients' solver."""
        return fjs.optim.sgd(self.learning_rate)


def problems(bench: Bench) -> list[Problem]:
    """All three at the paper's size, CIFAR-10 alone at the others."""
    return [cifar10(bench)] + ([cifar100(bench), ag_news(bench)] if bench.size == "paper" else [])


def cifar10(bench: Bench, deal: Deal | None = None, *, alone: bool = False) -> Problem:
    """CIFAR-10, by Dir(0.1) unless dealt in another way, and a CNN of five layers; ``alone`` for FedAvg alone."""
    deal = dirichlet(bench, ALPHA) if deal is None else deal
    what = bench.choose(smoke="CIFAR-10", cpu=f"CIFAR-10, {CPU_IMAGES:,} images", paper="CIFAR-10")
    data = bench.load(what, lambda: _real(bench, deal), lambda: _digits(deal), "scikit-learn's digits")
    large, small = fjs.models.CifarCNN(10), fjs.models.CifarCNN(10, CPU_CHANNELS, CPU_HIDDEN)
    cnn = bench.choose(smoke=small, cpu=small, paper=large)
    batch = bench.choose(smoke=BATCH, cpu=CPU_BATCH, paper=BATCH)
    rounds = bench.choose(smoke=2, cpu=CPU_ROUNDS, paper=500)
    rate = bench.choose(smoke=RATE, cpu=CPU_RATE_ALONE, paper=RATE) if alone else RATE
    return Problem("CIFAR-10", data, rate, _run(bench, bench.model(cnn, 10), rounds, batch, chunk=16))


def cifar100(bench: Bench) -> Problem:
    """CIFAR-100 and ResNet-18 with GroupNorm; for a GPU."""
    made = functools.partial(fjs.datasets.cifar100_dirichlet, ALPHA, CLIENTS, DATA_SEED)
    data = bench.load("CIFAR-100", made, made, "")
    return Problem("CIFAR-100", data, RATE, _run(bench, fjs.models.ResNet18(100), 600, BATCH, chunk=2))


def ag_news(bench: Bench) -> Problem:
    """AG News and a pretrained Pythia-70M, fine-tuned; for a GPU."""
    files = ("tokenizer.json", "config.json", "model.safetensors")  # looked for before the texts are read
    folder, *_ = [DataFile(CHECKPOINT, (name,), f"Get it from https://huggingface.co/EleutherAI/{CHECKPOINT}").path().parent
                  for name in files]  # fmt: skip
    encode = functools.partial(pythia_tokens, str(folder / "tokenizer.json"))
    made = functools.partial(fjs.datasets.ag_news, CLIENTS, ALPHA, seed=DATA_SEED, articles="full", encode=encode)
    data = bench.load("AG News", made, made, "")
    model, params = fjs.models.load_pythia(folder, num_classes=4, padding=PADDING)
    return Problem("AG News", data, 1e-4, _run(bench, model, 300, BATCH, chunk=1) | {"initial_params": params})


CHECKPOINT = "pythia-70m"
PADDING, TOKENS = 1, 64  # Pythia's <|padding|>; the paper does not say how long a text may be


def pythia_tokens(tokenizer: str, texts: Sequence[str]) -> np.ndarray:
    """Texts as the rows of one array, by the tokeniser that comes with the checkpoint."""
    from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]

    made = Tokenizer.from_file(tokenizer)
    made.enable_truncation(TOKENS)
    made.enable_padding(pad_id=PADDING, length=TOKENS)
    return np.array([encoding.ids for encoding in made.encode_batch(list(texts))], np.int32)


def fedavg_alone(bench: Bench, label: str, problem: Problem, **changes: Any) -> History:
    """FedAvg on a task, with other keywords of the run."""
    algorithm = fjs.fedavg(client_optimizer=problem.optimizer)
    [run] = bench.runs(label, algorithm, problem.data, **(dict(problem.run) | changes))
    return run


def dirichlet(bench: Bench, alpha: float) -> Deal:
    """Dir(alpha) over the clients, label by label."""
    clients = bench.choose(8, CLIENTS)
    least = bench.choose(2, 1)
    return lambda labels: partitions.dirichlet(labels, clients, alpha, DATA_SEED, least)


def settings(bench: Bench, problem: Problem, *others: Problem) -> list[Setting]:
    """The paper's setting on CIFAR-10 beside ours, and what is different on the other tasks."""
    run, taking_part = problem.run, getattr(problem.run["cohort"], "num_sampled", "all")
    pooled = f"{CPU_IMAGES:,} images pooled to 16x16, {CPU_TEST_IMAGES:,} for testing (or scikit-learn's digits)"
    narrow = f"the same CNN, channels {', '.join(map(str, CPU_CHANNELS))}, dense {CPU_HIDDEN}"
    row = bench.setting
    return [
        row("data", "CIFAR-10, 50,000 images of 32x32, 10,000 for testing", smoke="scikit-learn's digits", cpu=pooled),
        row("model", "CNN, channels 32, 64, 64, dense 64 (the authors' code)", smoke="MLP, 16 hidden", cpu=narrow),
        row("clients, a round", "100, 10", f"{problem.data.num_clients}, {taking_part}"),
        row("local epochs", "3", smoke="1"),
        row("batch size", "64", run["batch_size"]),
        row("local learning rate", f"{RATE:g}", f"{problem.learning_rate:g}"),
        row("weight decay", "not given; the authors' code: 5e-4 in local training", "none"),
        row("rounds", "500", run["rounds"]),
        row("who takes part", "10 at random; the authors' code: everybody once, then at random", "as the code does"),
        row("evaluated every", "not given", f"{run['eval_every']} rounds"),
        row("seeds", "3", len(bench.seeds)),
        *(more for other in others for more in _other(other)),
    ]


def _other(problem: Problem) -> list[Setting]:
    """Rows of a task that only the paper's size has."""
    text = problem.name == "AG News"
    rounds, rate, here = str(problem.run["rounds"]), f"{problem.learning_rate:g}", problem.run["batch_size"]
    rows = [
        Setting("model", *2 * ("Pythia-70M, pretrained" if text else "ResNet-18, group normalisation",)),
        Setting("rounds, local learning rate", "300, 0.0001" if text else f"600, {RATE:g}", f"{rounds}, {rate}"),
    ]
    if text:
        rows += [
            Setting("length of a text", "not given", f"{TOKENS} tokens, cut or padded"),
            Setting("batch size, local epochs", "64, 3; the authors' code: 32, 1", f"{here}, {EPOCHS}"),
        ]
    return [row._replace(what=f"{problem.name}: {row.what}") for row in rows]


def _run(bench: Bench, model: Any, rounds: int, batch: int, *, chunk: int) -> dict[str, Any]:
    """``chunk``: the most runs side by side on a GPU, where FedAWARE keeps a vector of every client for each."""
    return {
        "task": fjs.classification(model),
        "rounds": rounds,
        "cohort": fjs.cohort.shuffled(bench.choose(4, PER_ROUND), passes="uniform"),
        "work": fjs.local.epochs(bench.choose(1, EPOCHS)),
        "batch_size": batch,
        "eval_every": bench.choose(smoke=1, cpu=CPU_EVERY, paper=5),
        "diagnostics": list(DIAGNOSTICS),
        "chunk": bench.choose(smoke=None, cpu=None, paper=chunk),
    }


def _real(bench: Bench, deal: Deal) -> fjs.FederatedDataset:
    if bench.size == "paper":
        return fjs.datasets.cifar10(partition=deal, seed=DATA_SEED, normalise=True)
    x, y = _small_images("data_batch_1.bin", CPU_IMAGES)
    test_x, test_y = _small_images("test_batch.bin", CPU_TEST_IMAGES)
    rows = deal(y)
    ids = np.repeat(np.arange(len(rows)), [len(of) for of in rows])
    order = np.concatenate(list(rows))
    dealt = np.arange(len(test_y)) % len(rows)
    return fjs.datasets.from_ids((x[order], y[order]), ids, test=(test_x, test_y), test_ids=dealt, num_classes=10)


@functools.cache
def _small_images(file: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first images of a file, 16x16 with a frame of zeros that makes them as large as the CNN needs."""
    images, labels = CIFAR10.read_files([file], verify=True)
    pooled = images[:count].reshape(-1, 16, 2, 16, 2, 3).astype(np.float32).mean(axis=(2, 4)) / 255
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    return _framed((pooled - mean) / std), labels[:count].astype(np.int32)


def _digits(deal: Deal) -> fjs.FederatedDataset:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    larger = np.kron(x.reshape(-1, 8, 8, 1) / 16, np.ones((1, 2, 2, 1)))
    return fjs.datasets.from_partition((_framed(larger), y), deal(y), test_fraction=0.2, seed=DATA_SEED, num_classes=10)


def _framed(images: np.ndarray) -> np.ndarray:
    return np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float32)
