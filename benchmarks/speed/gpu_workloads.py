"""W1 to W4 on an accelerator: the layouts, an evaluation of all examples, and a plain PyTorch loop on the same device.

Ours is the program of peers/ours.py, several rounds in one call; PyTorch's is that of peers/torch_loop.py, its tensors
on the device before the clock starts. Both in the precision that they come with: products in TF32 where the device has
it, PyTorch's dense ones too (``distance`` says how far a model is from the first one's, over how far training took it).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.gpu_sections import Clock, Row, milliseconds, named, on_cpu, timed
from benchmarks.speed.peers.compare import flat
from benchmarks.speed.peers.ours import Program
from benchmarks.speed.workloads import NAMES, Weights, Workload, make

ROUNDS = 6
_LONG = 2.0  # seconds of calls after which no other is timed
LAYOUTS = {
    "W1": (None, fjs.layout.stacked(), fjs.layout.lanes(32)),
    "W2": (None, fjs.layout.stacked(), fjs.layout.lanes(16)),
    "W3": (None, fjs.layout.lanes(10), fjs.layout.stacked()),
    "W4": (None, fjs.layout.pooled()),
}


def workloads(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Milliseconds a round of every program."""
    works = {name: make(name, ROUNDS, 0.01 if tiny else 1.0) for name in NAMES}
    trained: dict[str, Weights] = {}  # by the first program of each
    for place in range(max(map(len, LAYOUTS.values()))):  # what the rule takes first
        for name, layouts in LAYOUTS.items():
            if place < len(layouts):
                what = {"workload": name, "program": "ours", "rule": place == 0}
                run = functools.partial(_ours, works[name], layouts[place], trained)
                yield clock.measured(what, run)
        if place == 0:
            for name, work in works.items():
                what = {"workload": name, "program": "PyTorch"}
                yield clock.measured(what, functools.partial(_torch, work, trained))
                yield clock.measured(what | {"program": "evaluation"}, functools.partial(_evaluation, work))


def _ours(work: Workload, layout: Any, trained: dict[str, Weights]) -> Row:
    program = Program(work, layout=layout)

    def seconds() -> tuple[float, Any]:
        state = jax.block_until_ready(program.begin(work.start))
        started = time.perf_counter()
        state = program.advance(state, 0, ROUNDS)
        return time.perf_counter() - started, state

    first, state = seconds()
    row = {"layout": named(program.plan.layout), "first_s": first}
    row |= {"distance": _distance(work, program.weights(state), trained)}
    return row | {"ms": milliseconds(lambda: seconds()[0], ROUNDS, most=_LONG)}


def _torch(work: Workload, trained: dict[str, Weights]) -> Row:
    try:
        import torch
    except ImportError:
        return {"ended": "PyTorch is not installed"}
    from benchmarks.speed.peers import torch_loop

    if not (torch.cuda.is_available() or on_cpu()):
        return {"ended": "PyTorch sees no device"}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rounds = torch_loop.make(work)

    def seconds() -> tuple[float, Weights]:
        started = time.perf_counter()
        weights = rounds(work.start, 0, ROUNDS)  # ends with the model on the host
        return time.perf_counter() - started, weights

    weights = seconds()[1]
    row = {"version": torch.__version__, "distance": _distance(work, weights, trained)}
    return row | {"ms": milliseconds(lambda: seconds()[0], ROUNDS, most=_LONG)}


def _distance(work: Workload, weights: Weights, trained: dict[str, Weights]) -> float:
    """How far two models are apart, over how far training took the first."""
    first = flat(trained.setdefault(work.name, weights))
    return float(np.linalg.norm(flat(weights) - first) / np.linalg.norm(first - flat(work.start)))


def _evaluation(work: Workload) -> Row:
    """Loss and accuracy of all examples and of every client, in one pass."""
    program = Program(work)
    task, data = program.plan.task, program.plan.dataset
    params = program.begin(work.start).server.params
    evaluate = jax.jit(lambda params, data: fjs.evaluate(task, params, data))
    return timed(lambda: evaluate(params, data), 1) | {"examples": len(work.y)}


SECTIONS: dict[str, Callable[..., Iterator[Row]]] = {"workloads": workloads}
