"""The models of the workloads in PyTorch, and what every user of PyTorch here shares."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # the module's and the examples'


def build(weights: Weights) -> torch.nn.Sequential:
    """The module with these weights."""
    layers: list[torch.nn.Module] = []
    for i, (w, _) in enumerate(weights):
        if w.ndim == 4:
            layers += [torch.nn.Conv2d(w.shape[2], w.shape[3], w.shape[:2]), torch.nn.ReLU()]
            if weights[i + 1][0].ndim == 2:
                layers += [torch.nn.MaxPool2d(2), torch.nn.Flatten()]
        else:
            layers += [torch.nn.Linear(*w.shape), torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers[:-1]).to(DEVICE)
    module.load_state_dict(dict(zip((n for n, _ in module.named_parameters()), to_torch(weights), strict=True)))
    return module


def to_torch(weights: Weights) -> list[torch.Tensor]:
    """Kernels and biases in PyTorch's layout and order: [out, in, height, width] and [out, in]."""
    tensors = []
    for i, (w, b) in enumerate(weights):
        if w.ndim == 4:
            w = w.transpose(3, 2, 0, 1)
        else:
            if i > 0 and weights[i - 1][0].ndim == 4:  # flattened as channels, rows, columns here
                channels = weights[i - 1][0].shape[3]
                w = w.reshape(-1, channels, w.shape[1]).swapaxes(0, 1).reshape(w.shape)
            w = w.T
        tensors += [torch.from_numpy(np.array(w, order="C")), torch.from_numpy(np.array(b))]
    return [tensor.to(DEVICE) for tensor in tensors]


def from_torch(tensors: list[torch.Tensor]) -> Weights:
    """The inverse of :func:`to_torch`."""
    weights: Weights = []
    arrays = [t.detach().cpu().numpy() for t in tensors]
    for i, (w, b) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        if w.ndim == 4:
            w = w.transpose(2, 3, 1, 0)
        else:
            w = w.T
            if i > 0 and weights[-1][0].ndim == 4:
                channels = weights[-1][0].shape[3]
                w = w.reshape(channels, -1, w.shape[1]).swapaxes(0, 1).reshape(w.shape)
        weights.append((np.array(w, order="C"), np.array(b)))
    return weights


class Clients:
    """The examples of the workload as tensors: images with the channel first, labels as int64."""

    def __init__(self, work: Workload) -> None:
        images = work.x.ndim == 4
        x = torch.from_numpy(np.ascontiguousarray(work.x.transpose(0, 3, 1, 2)) if images else work.x)
        self.x, self.y = x.to(DEVICE), torch.from_numpy(work.y.astype(np.int64)).to(DEVICE)
        self._offsets, self.sizes = work.offsets.tolist(), work.sizes.tolist()

    def examples(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All examples of a client."""
        rows = slice(self._offsets[client], self._offsets[client] + self.sizes[client])
        return self.x[rows], self.y[rows]

    def batches(self, client: int) -> Batches:
        """A client's batches in stored order."""
        return Batches(*self.examples(client))


class Batches:
    """Slices of tensors that are there already: what a loader of small data can do best."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return -(-len(self._y) // BATCH)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for k in range(0, len(self._y), BATCH):
            yield self._x[k : k + BATCH], self._y[k : k + BATCH]


def choose_threads(work: Workload, clients: Clients) -> None:
    """Sets the number of threads that is fastest for steps of this model on a CPU: one, for small ones."""
    if DEVICE.type != "cpu":
        return
    module = build(work.start)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    x, y = clients.x[:BATCH], clients.y[:BATCH]
    steps = 5 if work.x.ndim == 4 else 50

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
            best = min(best, time.perf_counter() - started)
        return best

    torch.set_num_threads(min(range(1, (os.cpu_count() or 1) + 1), key=seconds))


def train(module: torch.nn.Module, batches: Batches, criterion: torch.nn.Module) -> None:
    """One epoch of SGD, as every introduction to PyTorch writes it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for x, y in batches:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
