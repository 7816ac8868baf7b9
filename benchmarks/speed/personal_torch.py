"""FedAvg, Ditto and FedRep as loops in PyTorch over clients and batches, as libraries of personal methods write them.

A process of personal.py, in an environment with torch and numpy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.speed.peers.torch_models import from_torch, to_torch
from benchmarks.speed.personal import BATCH, LAM, RATE
from benchmarks.speed.workloads import Weights


def build(weights: Weights) -> torch.nn.Sequential:
    """The module: a pooling after each convolution, ReLU between the layers."""
    layers: list[torch.nn.Module] = []
    for kernel, _ in weights:
        if kernel.ndim == 4:
            layers += [torch.nn.Conv2d(kernel.shape[2], kernel.shape[3], kernel.shape[:2]), torch.nn.ReLU()]
            layers.append(torch.nn.MaxPool2d(2))
        else:
            if not any(isinstance(layer, torch.nn.Flatten) for layer in layers):
                layers.append(torch.nn.Flatten())
            layers += [torch.nn.Linear(*kernel.shape), torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers[:-1])
    assign(module, to_torch(weights))
    return module


def assign(module: torch.nn.Module, values: list[torch.Tensor]) -> None:
    """Copies values into the module's parameters."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value)


def run(method: str, arrays: dict[str, Any], start: Weights, rounds: int, tick: Callable[[], None]) -> list[Weights]:
    """Trains and returns the models that the clients would use."""
    images, labels = arrays["x"], arrays["y"].astype(np.int64)
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 1, 4, 2, 3)))  # [clients, examples, 1, 28, 28]
    y = torch.from_numpy(labels)
    module, clients, head = build(start), len(x), 2  # tensors of the last layer
    _choose_threads(module, x[0], y[0])
    shared = [tensor.clone() for tensor in to_torch(start)]
    own = [[tensor.clone() for tensor in shared] for _ in range(clients)] if method != "fedavg" else []
    parameters = list(module.parameters())

    def batches(client: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for k in range(0, x.shape[1], BATCH):
            yield x[client, k : k + BATCH], y[client, k : k + BATCH]

    def epoch(client: int, trained: list[torch.nn.Parameter], pull: list[torch.Tensor] | None = None) -> None:
        for parameter in parameters:  # what is fixed costs no gradient
            parameter.requires_grad_(any(parameter is one for one in trained))
        optimizer = torch.optim.SGD(trained, lr=RATE)
        for inputs, targets in batches(client):
            optimizer.zero_grad()
            cross_entropy(module(inputs), targets).backward()
            if pull is not None:
                with torch.no_grad():
                    for parameter, centre in zip(trained, pull, strict=True):
                        parameter.grad.add_(parameter - centre, alpha=LAM)  # type: ignore[union-attr]
            optimizer.step()

    for _ in range(rounds):
        total = [torch.zeros_like(tensor) for tensor in shared]
        for client in range(clients):
            if method == "ditto":
                assign(module, own[client])
                epoch(client, parameters, pull=shared)
                own[client] = [parameter.detach().clone() for parameter in parameters]
            if method == "fedrep":
                assign(module, [*shared[:-head], *own[client][-head:]])
                epoch(client, parameters[-head:])
                own[client] = [parameter.detach().clone() for parameter in parameters]
                epoch(client, parameters[:-head])
            else:
                assign(module, shared)
                epoch(client, parameters)
            with torch.no_grad():
                for sum_, parameter in zip(total, parameters, strict=True):
                    sum_ += parameter / clients
        shared = total
        tick()
    if method == "fedavg":
        return [from_torch(shared)]
    if method == "fedrep":
        return [from_torch([*shared[:-head], *one[-head:]]) for one in own]
    return [from_torch(one) for one in own]


def _choose_threads(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """The number of threads that is fastest for steps of this model."""

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(20):
                module.zero_grad()
                cross_entropy(module(x[:BATCH]), y[:BATCH]).backward()
            best = min(best, time.perf_counter() - started)
        return best

    torch.set_num_threads(min(range(1, (os.cpu_count() or 1) + 1), key=seconds))
