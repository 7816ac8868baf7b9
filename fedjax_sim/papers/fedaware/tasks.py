"""The three tasks of the paper, and what is left of CIFAR-10 where there is no GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.sources.image_files import CIFAR10, CIFAR100, CifarSet
from fedjax_sim.datasets.sources.record import DataFile
from fedjax_sim.datasets.sources.sharing import by_rows
from fedjax_sim.papers.bench import Bench, Scale, Setting
from fedjax_sim.run.history import History

CLIENTS, PER_ROUND, EPOCHS, BATCH, RATE = 100, 10, 3, 64, 0.01  # section 5
ALPHA = 0.1  # of the Dirichlet partition
DATA_SEED = 0

# The CPU's part of CIFAR-10: fewer and smaller images, narrower layers, the paper's rounds and rates: FedAWARE's steps
# are of one length, and fewer rounds would not be fair to it. The batch shrinks with the clients' data, so that a
# client still takes some 24 steps a round. Where FedAvg is alone there are fewer runs, and more images.
IMAGES, CPU_IMAGES, CPU_IMAGES_ALONE, CPU_TEST_IMAGES = 50_000, 3_000, 10_000, 2_000
CPU_CHANNELS, CPU_HIDDEN = (8, 16, 16), 32
CPU_BATCH, CPU_BATCH_ALONE, CPU_EVERY = 4, 13, 10
CPU_MODEL = "the CNN at a quarter of its width, images of 16x16"

# FedLab's partition, which the authors' code takes: nobody has fewer than 10 images, and who has a client's mean share
# gets no more of the classes to come.
FEWEST = 10
PAD = 4  # black pixels around an image, of which a place is cut out
# The authors' code normalises by these on CIFAR-10; on CIFAR-100 training images by 0.5 and test images as CIFAR-10's,
# which no reading of the paper supports: there the set's own.
NORMALISATION = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))

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
    pooled = bench.size != "paper"
    count, test_count = (cpu_images(alone), CPU_TEST_IMAGES) if pooled else (IMAGES, None)
    what = bench.choose(smoke="CIFAR-10", cpu=f"CIFAR-10, {count:,} images", paper="CIFAR-10")
    files = [f"data_batch_{number}.bin" for number in range(1, 1 + -(-count // 10_000))]

    def real() -> fjs.FederatedDataset:
        images, labels = _first(CIFAR10, files, count)
        test, test_labels = _first(CIFAR10, ["test_batch.bin"], test_count)
        x, test_x = (_features(half, NORMALISATION, pooled) for half in (cropped_once(images), test))
        return _dealt((x, labels), (test_x, test_labels), deal, 10)

    data = bench.load(what, real, lambda: _digits(deal), "scikit-learn's digits")
    large, small = fjs.models.CifarCNN(10), fjs.models.CifarCNN(10, CPU_CHANNELS, CPU_HIDDEN)
    cnn = bench.choose(smoke=small, cpu=small, paper=large)
    batch = bench.choose(smoke=BATCH, cpu=CPU_BATCH_ALONE if alone else CPU_BATCH, paper=BATCH)
    rounds = bench.choose(smoke=2, cpu=500)
    return Problem("CIFAR-10", data, RATE, _run(bench, bench.model(cnn, 10), rounds, batch, chunk=16))


def cpu_images(alone: bool) -> int:
    """How many of the training images the size ``cpu`` has."""
    return CPU_IMAGES_ALONE if alone else CPU_IMAGES


def scale(bench: Bench, *, alone: bool = False) -> Scale:
    """How much of the paper's size this is."""
    smoke, cpu = Scale(1_797 / IMAGES, 2 / 500, "an MLP"), Scale(cpu_images(alone) / IMAGES, 1.0, CPU_MODEL)
    return bench.choose(smoke, cpu, Scale())


def cifar100(bench: Bench) -> Problem:
    """CIFAR-100 and ResNet-18 with GroupNorm; for a GPU."""

    def made() -> fjs.FederatedDataset:
        (images, labels), (test, test_labels) = (_first(CIFAR100, CIFAR100.halves[half]) for half in ("train", "test"))
        x, test_x = (_features(half, CIFAR100.usual, False) for half in (images, test))
        return _dealt((x, labels), (test_x, test_labels), dirichlet(bench, ALPHA, fewest=100), 100)

    data = bench.load("CIFAR-100", made, made, "")
    return Problem("CIFAR-100", data, RATE, _run(bench, fjs.models.ResNet18(100), 600, BATCH, chunk=2))


def ag_news(bench: Bench) -> Problem:
    """AG News and a pretrained Pythia-70M, fine-tuned; for a GPU."""
    files = ("tokenizer.json", "config.json", "model.safetensors")  # looked for before the texts are read
    folder, *_ = [DataFile(CHECKPOINT, (name,), f"Get it from https://huggingface.co/EleutherAI/{CHECKPOINT}").path().parent
                  for name in files]  # fmt: skip
    encode = functools.partial(pythia_tokens, str(folder / "tokenizer.json"))
    deal = dirichlet(bench, ALPHA, fewest=4)
    made = functools.partial(fjs.datasets.ag_news, partition=deal, seed=DATA_SEED, articles="full", encode=encode)
    data = bench.load("AG News", made, made, "")
    model, params = fjs.models.load_pythia(folder, num_classes=4, padding=PADDING)
    return Problem("AG News", data, 1e-4, _run(bench, model, 300, BATCH, chunk=1) | {"initial_params": params})


CHECKPOINT = "pythia-70m"
PADDING, TOKENS = 1, 100  # Pythia's <|padding|>; how long a text may be in the authors' code


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


def dirichlet(bench: Bench, alpha: float, fewest: int = FEWEST) -> Deal:
    """Dir(alpha) over the clients, label by label, by FedLab's rule, of which ``fewest`` is the number of classes."""
    clients = bench.choose(8, CLIENTS)
    least = bench.choose(2, fewest)
    return lambda labels: partitions.dirichlet(labels, clients, alpha, DATA_SEED, least, balanced=True)


def settings(bench: Bench, problem: Problem, *others: Problem, alone: bool = False) -> list[Setting]:
    """The paper's setting on CIFAR-10 beside ours, and what is different on the other tasks."""
    run, taking_part = problem.run, getattr(problem.run["cohort"], "num_sampled", "all")
    held = f"{cpu_images(alone):,} images pooled to 16x16, {CPU_TEST_IMAGES:,} for testing (or scikit-learn's digits)"
    narrow = f"the same CNN, channels {', '.join(map(str, CPU_CHANNELS))}, dense {CPU_HIDDEN}"
    row = bench.setting
    return [
        row("data", "CIFAR-10, 50,000 images of 32x32, 10,000 for testing", smoke="scikit-learn's digits", cpu=held),
        row("crops and flips", "not given; the authors' code: once for each image", "the code's", smoke="none"),
        row("model", "CNN, channels 32, 64, 64, dense 64 (the authors' code)", smoke="MLP, 16 hidden", cpu=narrow),
        row("clients, a round", "100, 10", f"{problem.data.num_clients}, {taking_part}"),
        row("partition", "Dir(0.1); the authors' code: FedLab's rule, at least 10 images each", "the code's"),
        row("local epochs", "3", smoke="1"),
        row("batch size", "64", run["batch_size"]),
        row("local learning rate", f"{RATE:g}", f"{problem.learning_rate:g}"),
        row("weight decay", "not given; the authors' code: in one version 5e-4, of FedAWARE alone", "none"),
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
            Setting("length of a text", f"not given; the authors' code: {TOKENS} tokens", f"{TOKENS}, cut or padded"),
            Setting("batch size, local epochs", "64, 3; the authors' code: one batch of 32", f"{here}, {EPOCHS}"),
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


def cropped_once(images: np.ndarray) -> np.ndarray:
    """Each image, uint8[n, 32, 32, 3], once cut out of a black frame at random and flipped with probability 1/2.

    The authors' loader is FedLab's, which draws crop and flip when it writes the clients' files, once for all rounds.
    """
    count, height, width, _ = images.shape
    draws = Draws("fedaware.cropped_once", DATA_SEED)
    top, left = ((draws.uniform(count) * (2 * PAD + 1)).astype(int) for _ in range(2))
    framed = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    columns = np.where((draws.uniform(count) < 0.5)[:, None], columns[:, ::-1], columns)
    return framed[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _first(of: CifarSet, files: Sequence[str], count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    images, labels = of.read_files(files, verify=True)
    return images[:count], labels[:count].astype(np.int32)


def _features(images: np.ndarray, normalisation: Any, pooled: bool) -> np.ndarray:
    """Normalised floats; or 16x16 of them with a frame of zeros that makes them as large as the CNN needs."""
    mean, std = np.asarray(normalisation, np.float32)
    if not pooled:
        return (images.astype(np.float32) / 255 - mean) / std
    means = images.reshape(-1, 16, 2, 16, 2, 3).astype(np.float32).mean(axis=(2, 4))
    return _framed((means / 255 - mean) / std)


def _dealt(train: Any, test: Any, deal: Deal, classes: int) -> fjs.FederatedDataset:
    rows = deal(train[1])
    owner = np.arange(len(test[1])) % len(rows)  # the test is of all images together
    return by_rows(rows, train, test, owner, classes)


def _digits(deal: Deal) -> fjs.FederatedDataset:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    larger = np.kron(x.reshape(-1, 8, 8, 1) / 16, np.ones((1, 2, 2, 1)))
    return fjs.datasets.from_partition((_framed(larger), y), deal(y), test_fraction=0.2, seed=DATA_SEED, num_classes=10)


def _framed(images: np.ndarray) -> np.ndarray:
    return np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float32)
