"""Local training of the Shakespeare LSTM: our program against a plain PyTorch loop.

    python -m benchmarks.speed.recurrent [--steps 20] [--repeats 7] [--batches 10 50] [--out results/recurrent.json]

The model is LEAF's and FedProx's: 80 characters, embedding 8, two LSTM layers of 100, next character from a window of
80. A round: four clients of 5 steps each (--steps in all), batches in stored order, SGD 0.8 (FedProx's rate), FedAvg.

Variants:
  ours        a round of fedjax_sim, one program: clients in turns, ``fjs.models.CharLSTM``
  plain scan  the same with a ``lax.scan`` over the whole cell, which JAX differentiates by itself
  torch loop  a plain PyTorch loop (the `bench` extra): ``torch.nn.LSTM``, an optimiser, a loop over clients and
              batches, with the number of threads that is fastest for it

All start from the same weights (PyTorch's second bias starts and stays at zero in effect: it would get the gradient of
the first, so it is frozen) and see the same batches; final models must agree before any time is printed. Variants take
turns inside every repeat; what is reported are medians over repeats and the medians of the ratios within repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fjs
from benchmarks.speed import turns
from fedjax_sim.core.files import write_atomically
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, run_round
from fedjax_sim.optim import third_party

ALPHABET, WINDOW, EMBEDDING, HIDDEN, LAYERS = 80, 80, 8, 100, 2
CLIENTS, RATE = 4, 0.8
Params = dict[str, Any]
Run = Callable[[], Params]


class PlainCharLSTM(nn.Module):
    """``fjs.models.CharLSTM`` as one would write it first; the same parameters under the same names."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.Embed(ALPHABET, EMBEDDING)(x.T)
        for layer in range(LAYERS):
            h = _PlainLSTM(name=f"LSTM_{layer}")(h)
        return nn.Dense(ALPHABET)(h[-1])


class _PlainLSTM(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (x.shape[-1] + HIDDEN, 4 * HIDDEN))
        bias = self.param("bias", nn.initializers.zeros_init(), (4 * HIDDEN,))

        def step(carry: tuple[jax.Array, jax.Array], x_t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = carry
            i, f, g, o = jnp.split(jnp.concatenate([x_t, h], axis=1) @ kernel + bias, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], HIDDEN))
        return lax.scan(step, (zero, zero), x)[1]


class Workload:
    """Text windows and start point that all variants share."""

    def __init__(self, batch: int, steps: int) -> None:
        rng = np.random.default_rng(0)
        self.batch, self.size = batch, batch * (steps // CLIENTS)
        self.x = rng.integers(0, ALPHABET, (CLIENTS * self.size, WINDOW)).astype(np.int32)
        self.y = rng.integers(0, ALPHABET, CLIENTS * self.size).astype(np.int32)
        with third_party():
            made = fjs.models.CharLSTM(ALPHABET, EMBEDDING, HIDDEN, LAYERS).init(jax.random.key(0), self.x[:1])
        self.start: Params = jax.tree.map(np.asarray, made)


def ours(work: Workload, model: nn.Module) -> Run:
    """One round of FedAvg as one call."""
    data = fjs.datasets.from_ids((work.x, work.y), np.repeat(np.arange(CLIENTS), work.size), num_classes=ALPHABET)
    asked = Plan(
        fjs.classification(model), fjs.cohort.full(), fjs.local.epochs(1), fjs.local.in_order(work.batch),
        fjs.layout.turns(), algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)), dataset=data,
        key=jax.random.key(0),
    )  # fmt: skip
    plan = resolve(asked, 1)

    @jax.jit
    def program(plan: Plan, state: Any) -> Any:
        return run_round(plan, state, jnp.int32(0))[0]

    def run() -> Params:
        state = init_state(plan, jax.tree.map(jnp.asarray, work.start))
        final = program(plan, state).server.params
        return jax.tree.map(np.asarray, final)

    return run


def torch_loop(work: Workload) -> Run:
    """A plain PyTorch loop."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(ALPHABET, EMBEDDING)
            self.lstm = torch.nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
            self.head = torch.nn.Linear(HIDDEN, ALPHABET)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embedding(x))[0][:, -1])

    model = Net()
    x, y = torch.from_numpy(work.x.astype(np.int64)), torch.from_numpy(work.y.astype(np.int64))
    criterion = torch.nn.CrossEntropyLoss()
    start = {name: torch.from_numpy(np.array(value)) for name, value in to_torch(work.start["params"]).items()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias_hh" not in name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run() -> Params:
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(CLIENTS):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(trained, lr=RATE)
            first = client * work.size
            for k in range(first, first + work.size, work.batch):
                optimizer.zero_grad()
                criterion(model(x[k : k + work.batch]), y[k : k + work.batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for name, value in model.state_dict().items():
                    total[name] += value / CLIENTS
        return {"params": from_torch({name: value.numpy() for name, value in total.items()})}

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        run()
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    torch.set_num_threads(min(range(1, (os.cpu_count() or 1) + 1), key=seconds))
    return run


def to_torch(params: Params) -> dict[str, np.ndarray]:
    """Our parameters under PyTorch's names: gates are in the same order there, matrices transposed."""
    named = {"embedding.weight": params["Embed_0"]["embedding"]}
    width = EMBEDDING
    for layer in range(LAYERS):
        kernel, bias = params[f"LSTM_{layer}"]["kernel"], params[f"LSTM_{layer}"]["bias"]
        named[f"lstm.weight_ih_l{layer}"], named[f"lstm.weight_hh_l{layer}"] = kernel[:width].T, kernel[width:].T
        named[f"lstm.bias_ih_l{layer}"], named[f"lstm.bias_hh_l{layer}"] = bias, np.zeros_like(bias)
        width = HIDDEN
    return named | {"head.weight": params["Dense_0"]["kernel"].T, "head.bias": params["Dense_0"]["bias"]}


def from_torch(named: dict[str, np.ndarray]) -> Params:
    """The inverse of :func:`to_torch`."""
    params: Params = {"Embed_0": {"embedding": named["embedding.weight"]}}
    for layer in range(LAYERS):
        params[f"LSTM_{layer}"] = {
            "kernel": np.concatenate([named[f"lstm.weight_ih_l{layer}"].T, named[f"lstm.weight_hh_l{layer}"].T]),
            "bias": named[f"lstm.bias_ih_l{layer}"] + named[f"lstm.bias_hh_l{layer}"],
        }
    return params | {"Dense_0": {"kernel": named["head.weight"].T, "bias": named["head.bias"]}}


def main() -> None:
    """Runs all batch sizes and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="local steps a round, all clients together")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", nargs="*", type=int, default=[10, 50])
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.steps % CLIENTS:
        parser.error(f"--steps must be a multiple of the {CLIENTS} clients")
    report: dict[str, Any] = turns.machine()
    for batch in arguments.batches:
        report[f"batch {batch}"] = measure(Workload(batch, arguments.steps), arguments)
    if arguments.out:
        write_atomically(arguments.out, json.dumps(report, indent=1).encode())


def measure(work: Workload, arguments: argparse.Namespace) -> dict[str, turns.Row]:
    """One batch size, all variants in turn."""
    runs = {
        "ours": ours(work, fjs.models.CharLSTM(ALPHABET, EMBEDDING, HIDDEN, LAYERS)),
        "plain scan": ours(work, PlainCharLSTM()),
        "torch loop": torch_loop(work),
    }
    finals, first = turns.first_calls(runs)
    for variant, final in finals.items():
        apart = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), finals["ours"], final)
        if max(jax.tree.leaves(apart)) > 1e-4:
            raise SystemExit(f"the models of ours and {variant} differ, nothing to compare: {apart}")
    rows = turns.beside_ours(turns.in_turns(runs, arguments.repeats, arguments.steps))
    for variant, row in rows.items():
        row["first_call_s"] = first[variant]
    turns.show(f"batch {work.batch}, {arguments.steps} steps a round", "step", rows, {"first call s": "first_call_s"})
    return rows


if __name__ == "__main__":
    main()
