"""What the speed benchmarks train: arrays, cohorts and a start point, made with numpy alone.

One local epoch of SGD in stored order with batches of 20 at rate 0.05, and the mean weighted by examples:

  W1  logistic regression 60 -> 10, 1,000 clients of min(int(LogNormal(4, 2)) + 50, 5000) examples, 100 a round
  W2  MLP 784-200-200-10, 1,000 clients of min(int(LogNormal(3, 1)) + 10, 1000) examples, 50 a round
  W3  the FEMNIST CNN of Reddi et al. 2021 (28x28x1, 62 classes), 200 clients of LogNormal(4.65, 0.4), 20 a round
  W4  logistic regression 60 -> 10, 100,000 clients of 20 examples, 1,000 a round: one step each

A model is its weights: pairs (kernel, bias) in the layout of flax (kernels [height, width, in, out] and [in, out]),
ReLU between the layers, a 2x2 max-pool after the last convolution. Programs in other layouts convert at their borders.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import NamedTuple

import numpy as np

BATCH, RATE = 20, 0.05
NAMES = ("W1", "W2", "W3", "W4")
Weights = list[tuple[np.ndarray, np.ndarray]]


class Tolerance(NamedTuple):
    """How far programs that train the same may be from each other in float32.

    Attributes:
      loss: difference of the final losses, over what training changed the loss by.
      distance: norm of the difference of the final weights, over the norm of what training changed them by.
    """

    loss: float
    distance: float


_CHUNK = 20_000  # examples of one pass of a dense model
_EVALUATED = 1_000  # examples that a convolutional model is evaluated on
# Round-off decides hundreds of thousands of ReLUs and max-pools the other way now and then, and each is another path:
# PyTorch in float32 ended 0.03 to 0.11 of the way from PyTorch in float64 after a few rounds of W3.
_SMOOTH, _MANY_KINKS = Tolerance(1e-3, 1e-3), Tolerance(0.02, 0.15)


@dataclasses.dataclass(frozen=True)
class Workload:
    """Arrays, cohorts and start point that all programs share.

    Attributes:
      name: one of NAMES.
      x: float32 [examples, ...], client after client.
      y: int32 [examples].
      sizes: int64 [clients], examples of each client.
      cohorts: int64 [rounds, cohort], the clients of each round, all different.
      start: the weights before the first round.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    cohorts: np.ndarray
    start: Weights

    @property
    def offsets(self) -> np.ndarray:
        """The first example of each client."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    def batches(self, clients: np.ndarray) -> np.ndarray:
        """Batches of each of these clients: the steps of its epoch."""
        return -(-self.sizes[clients] // BATCH)

    def steps(self) -> float:
        """Mean useful steps a round."""
        return float(np.mean(np.sum(self.batches(self.cohorts), axis=1)))

    def tolerance(self) -> Tolerance:
        """How far apart the results of two programs may be."""
        return _MANY_KINKS if self.start[0][0].ndim == 4 else _SMOOTH

    def loss(self, weights: Weights) -> float:
        """Mean cross-entropy in float64 numpy: of all examples; of 1,000 spread over them if there are convolutions."""
        convolutional = weights[0][0].ndim == 4
        rows = np.arange(len(self.y))
        if convolutional and len(rows) > _EVALUATED:
            rows = np.linspace(0, len(rows) - 1, _EVALUATED).astype(int)
        exact = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in weights]
        pieces = np.array_split(rows, max(1, -(-len(rows) // (100 if convolutional else _CHUNK))))
        return sum(float(np.sum(cross_entropy(exact, self.x[i], self.y[i]))) for i in pieces) / len(rows)

    def save(self, directory: pathlib.Path) -> None:
        """Writes one file an array, for processes of other environments to map."""
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("x", "y", "sizes", "cohorts"):
            np.save(directory / f"{name}.npy", getattr(self, name))
        save_weights(directory / "start.npz", self.start)
        (directory / "name").write_text(self.name, encoding="ascii")


def load(directory: pathlib.Path) -> Workload:
    """What :meth:`Workload.save` wrote; the examples are mapped, so that processes share them."""
    arrays = {name: np.load(directory / f"{name}.npy") for name in ("y", "sizes", "cohorts")}
    x = np.load(directory / "x.npy", mmap_mode="c")  # copy on write: writable for libraries that ask for it
    return Workload(
        name=(directory / "name").read_text(encoding="ascii"),
        x=x,
        start=load_weights(directory / "start.npz"),
        **arrays,
    )


def save_weights(path: pathlib.Path, weights: Weights) -> None:
    """Writes pairs of arrays in order."""
    np.savez(path, *itertools.chain.from_iterable(weights))


def load_weights(path: pathlib.Path) -> Weights:
    """Reads what :func:`save_weights` wrote."""
    with np.load(path) as arrays:
        flat = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
    return list(zip(flat[::2], flat[1::2], strict=True))


def make(name: str, rounds: int, fraction: float = 1.0) -> Workload:
    """Draws a workload; always the same one.

    Args:
      name: W1, W2, W3 or W4.
      rounds: how many cohorts are drawn.
      fraction: of the clients and of a cohort that are kept, at least two: small versions to try programs with.

    Raises:
      ValueError: another name, no rounds, a fraction outside (0, 1].
    """
    if name not in NAMES:
        raise ValueError(f"workload {name!r}: choose from {', '.join(NAMES)}")
    if rounds < 1 or not 0.0 < fraction <= 1.0:
        raise ValueError(f"rounds={rounds}, fraction={fraction}: at least one round, and a fraction in (0, 1]")
    return {"W1": _power_law, "W2": _power_law, "W3": _images, "W4": _many}[name](name, rounds, fraction)


def _power_law(name: str, rounds: int, fraction: float) -> Workload:
    """W1 and W2: sizes over three decades, random labels."""
    rng = np.random.default_rng(0)
    clients = _part(1000, fraction)
    if name == "W1":
        sizes = np.minimum(rng.lognormal(4, 2, clients).astype(int) + 50, 5000)
        features, widths, sampled = 60, (), _part(100, fraction)
    else:
        sizes = np.minimum(rng.lognormal(3, 1, clients).astype(int) + 10, 1000)
        features, widths, sampled = 784, (200, 200), _part(50, fraction)
    total = int(sizes.sum())
    x = rng.normal(size=(total, features)).astype(np.float32)
    y = rng.integers(0, 10, total).astype(np.int32)
    cohorts = _cohorts(rng, rounds, clients, sampled)
    scale = 0.0 if not widths else 1.0
    start = [
        (scale * rng.normal(size=(a, b)).astype(np.float32) * np.float32(np.sqrt(2 / a)), np.zeros(b, np.float32))
        for a, b in itertools.pairwise((features, *widths, 10))
    ]
    return Workload(name, x, y, sizes, cohorts, start)


def _images(name: str, rounds: int, fraction: float) -> Workload:
    """W3: a fixed pattern for each class under noise, so that there is something to learn."""
    rng = np.random.default_rng(3)
    clients = _part(200, fraction)
    sizes = np.clip(rng.lognormal(4.65, 0.4, clients).astype(int), 10, 500)
    total, classes = int(sizes.sum()), 62
    y = rng.integers(0, classes, total, np.int32)
    patterns = rng.random((classes, 28, 28, 1), np.float32)
    x = patterns[y] + rng.random((total, 28, 28, 1), np.float32) - np.float32(1)
    cohorts = _cohorts(rng, rounds, clients, _part(20, fraction))
    shapes = ((3, 3, 1, 32), (3, 3, 32, 64), (12 * 12 * 64, 128), (128, classes))
    start = []
    for shape in shapes:
        taps = int(np.prod(shape[:-2]))
        limit = np.sqrt(6 / (taps * (shape[-2] + shape[-1])))  # Glorot-uniform, as the paper's Keras models
        kernel = rng.uniform(-limit, limit, shape).astype(np.float32)
        start.append((kernel, np.zeros(shape[-1], np.float32)))
    return Workload(name, x, y, sizes, cohorts, start)


def _many(name: str, rounds: int, fraction: float) -> Workload:
    """W4: labels of a random linear teacher."""
    rng = np.random.default_rng(4)
    clients = _part(100_000, fraction)
    sizes = np.full(clients, BATCH)
    x = rng.standard_normal((clients * BATCH, 60), np.float32)
    y = np.argmax(x @ rng.standard_normal((60, 10), np.float32), axis=1).astype(np.int32)
    cohorts = _cohorts(rng, rounds, clients, _part(1000, fraction))
    return Workload(name, x, y, sizes, cohorts, [(np.zeros((60, 10), np.float32), np.zeros(10, np.float32))])


def _part(count: int, fraction: float) -> int:
    return max(2, round(count * fraction))


def _cohorts(rng: np.random.Generator, rounds: int, clients: int, sampled: int) -> np.ndarray:
    return np.stack([rng.choice(clients, sampled, replace=False) for _ in range(rounds)])


def cross_entropy(weights: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-log softmax(logits)_y of each example, in the dtype of the weights."""
    h = _forward(weights, x)
    h -= h.max(axis=1, keepdims=True)
    return np.log(np.exp(h).sum(axis=1)) - h[np.arange(len(h)), y]


def _forward(weights: Weights, x: np.ndarray) -> np.ndarray:
    h = x.astype(weights[0][0].dtype)
    last = len(weights) - 1
    for i, (w, b) in enumerate(weights):
        if w.ndim == 4:
            windows = np.lib.stride_tricks.sliding_window_view(h, w.shape[:2], axis=(1, 2))  # [n, h, w, in, *taps]
            h = np.tensordot(windows, w, axes=((4, 5, 3), (0, 1, 2))) + b
            if i == last or weights[i + 1][0].ndim == 2:
                h = h.reshape(len(h), h.shape[1] // 2, 2, h.shape[2] // 2, 2, -1).max(axis=(2, 4))
        else:
            h = h.reshape(len(h), -1) @ w + b
        if i < last:
            h = np.maximum(h, 0)
    return h
