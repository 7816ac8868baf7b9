"""What an evaluation of all training examples costs, against what it needs and against the plain way to write it.

    python -m benchmarks.speed.evaluation [--workloads W1 W2 W3 W4] [--repeats 9] [--out results/evaluation.json]

Models and data of benchmarks/speed/workloads.py, of W3 a tenth of the clients. Milliseconds a pass, medians; ratios are
medians of the ratios within repeats, in which all take turns. Values must agree before a time is printed.

  floor       the larger of the operations of the model's products over the rate of a large square product, and the
              bytes of the examples over the measured bandwidth (read and written: for reading alone it is too high)
  products    the same products at their own shapes, in a loop over factors that lie in a cache
  plain       blocks as long as ours; the cross-entropy by one-hot labels, row by row
  now         loss and accuracy of all examples: what a run records
  two, one    the same and every client's sums: in two passes, as before, and in the one that a run with
              ``evaluate=fjs.per_client(task)`` makes
  PyTorch     loss and accuracy in blocks of 32, without a gradient; where it is installed, of W3
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import statistics
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from benchmarks.speed import turns
from benchmarks.speed.limit import Subject
from benchmarks.speed.machine import bytes_per_second, gemm_flops, product_seconds, products
from benchmarks.speed.workloads import NAMES, Workload, make
from fedjax_sim.core.files import write_atomically
from fedjax_sim.models.passes import _rows_at_once, example_owners, passed

_BLOCK = 32  # of PyTorch: of 6, 16, 32, 64, 128 and 256 the fastest


def plain(subject: Subject, *, clients: bool) -> Callable[[Any, Any], Any]:
    """One pass as somebody would write it: means of loss and accuracy, or every client's sums."""
    data, task = subject.data, subject.task
    n, rows = data.num_examples, _rows_at_once(task, subject.params, data.examples, data.num_examples)

    def run(params: Any, data: Any) -> Any:
        columns = {**data.examples, "owner": example_owners(data)} if clients else data.examples

        def step(sums: Any, first: jax.Array) -> tuple[Any, None]:
            start = jnp.minimum(first, n - rows)
            block = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows), columns)
            new = start + jnp.arange(rows, dtype=jnp.int32) >= first
            logits, labels = task.outputs(params, block), block["y"]
            losses = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype))
            values = {"loss": losses, "accuracy": (jnp.argmax(logits, 1) == labels).astype(logits.dtype)}
            values = {name: jnp.where(new, value, jnp.float32(0)) for name, value in values.items()}
            if clients:
                return {name: sums[name].at[block["owner"]].add(value) for name, value in values.items()}, None
            return {name: sums[name] + jnp.sum(value) for name, value in values.items()}, None

        shape = (data.num_clients,) if clients else ()
        start = {"loss": jnp.zeros(shape), "accuracy": jnp.zeros(shape)}
        sums = lax.scan(step, start, jnp.arange(0, n, rows, dtype=jnp.int32))[0]
        return sums if clients else {name: total / n for name, total in sums.items()}

    return run


def variants(subject: Subject) -> dict[str, Callable[[], Any]]:
    """The programs, compiled."""
    means, sums = plain(subject, clients=False), plain(subject, clients=True)
    arguments = subject.params, subject.data

    def compiled(function: Callable[..., Any]) -> Callable[[], Any]:
        program = jax.jit(function).lower(*arguments).compile()
        return lambda: program(*arguments)

    return {
        "plain": compiled(means),
        "now": compiled(lambda params, data: passed(subject.task, params, data, clients=False).overall),
        "two": compiled(lambda params, data: (means(params, data), sums(params, data))),
        "one": compiled(lambda params, data: tuple(passed(subject.task, params, data, clients=True))),
    }


def in_torch(work: Workload) -> Callable[[], tuple[float, float]]:
    """The FEMNIST CNN in PyTorch, channels first."""
    import torch
    from torch.nn import functional

    weights = [
        (torch.tensor(np.ascontiguousarray(w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T)), torch.tensor(b))
        for w, b in work.start
    ]
    # Flax flattens rows, columns, channels; PyTorch channels first.
    side, channels = 12, work.start[1][0].shape[-1]
    first = weights[2][0].reshape(-1, side, side, channels).permute(0, 3, 1, 2).reshape(len(weights[2][0]), -1)
    weights[2] = first.contiguous(), weights[2][1]
    x, y = torch.tensor(work.x.transpose(0, 3, 1, 2).copy()), torch.tensor(work.y).long()

    @torch.inference_mode()
    def run() -> tuple[float, float]:
        loss = hits = 0.0
        for begin in range(0, len(y), _BLOCK):
            h, labels = x[begin : begin + _BLOCK], y[begin : begin + _BLOCK]
            for kernel, bias in weights[:2]:
                h = functional.relu(functional.conv2d(h, kernel, bias))
            h = functional.max_pool2d(h, 2).flatten(1)
            h = functional.linear(functional.relu(functional.linear(h, *weights[2])), *weights[3])
            loss += float(functional.cross_entropy(h, labels, reduction="sum"))
            hits += float((h.argmax(1) == labels).sum())
        return loss / len(y), hits / len(y)

    return run


def measure(name: str, repeats: int, fraction: float, peak: float, memory: float) -> dict[str, Any]:
    """All of one workload."""
    work = make(name, 1, fraction / 10 if name == "W3" else fraction)
    rng = np.random.default_rng(0)  # a model that says something: some start at zero
    work.start[-1][0][:] = rng.normal(size=work.start[-1][0].shape) / np.sqrt(len(work.start[-1][0]))
    subject = Subject(work)
    n, programs = subject.data.num_examples, variants(subject)
    found = {which: run() for which, run in programs.items()}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found["now"], found["plain"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found["one"], found["two"])
    if name == "W3" and importlib.util.find_spec("torch") is not None:
        programs["PyTorch"] = in_torch(work)
        loss, accuracy = programs["PyTorch"]()
        np.testing.assert_allclose([loss, accuracy], [found["now"][key] for key in ("loss", "accuracy")], rtol=1e-4)
    taken = turns.in_turns(programs, repeats)
    rows = _rows_at_once(subject.task, subject.params, subject.data.examples, n)
    block = jax.tree.map(lambda leaf: leaf[:rows], subject.data.examples)
    multiplied = products(subject.task.outputs, subject.params, block)
    alone = sum(count * product_seconds(product, repeats) for product, count in multiplied.items()) * n / rows
    flops = sum(count * product.flops() for product, count in multiplied.items()) * n / rows
    read = sum(leaf.nbytes for leaf in jax.tree.leaves(subject.data.examples))
    return {
        "examples": n,
        "rows_at_once": rows,
        "floor_flops_ms": 1e3 * flops / peak,
        "floor_bytes_ms": 1e3 * read / memory,
        "floor_ms": 1e3 * max(flops / peak, read / memory),
        "products_ms": 1e3 * alone,
        **{f"{which}_ms": statistics.median(times) for which, times in taken.items()},
        "now_over_plain": turns.ratio(taken["now"], taken["plain"]),
        "one_over_two": turns.ratio(taken["one"], taken["two"]),
        **({"now_over_PyTorch": turns.ratio(taken["now"], taken["PyTorch"])} if "PyTorch" in taken else {}),
    }


def report(name: str, row: dict[str, Any]) -> str:
    """The lines of one workload."""
    torch = ""
    if "PyTorch_ms" in row:
        torch = f"; PyTorch {row['PyTorch_ms']:.1f} (now / PyTorch {row['now_over_PyTorch']:.2f})"
    return (
        f"{name}: {row['examples']:,} examples, {row['rows_at_once']:,} at once\n"
        f"  floor {row['floor_ms']:.2f} ms (operations {row['floor_flops_ms']:.2f}, bytes {row['floor_bytes_ms']:.2f}),"
        f" products {row['products_ms']:.2f}\n"
        f"  plain {row['plain_ms']:.2f}, now {row['now_ms']:.2f} ms (ratio {row['now_over_plain']:.2f},"
        f" {row['now_ms'] / row['floor_ms']:.1f} floors){torch}\n"
        f"  with every client's sums: two passes {row['two_ms']:.2f}, one {row['one_ms']:.2f} ms"
        f" (ratio {row['one_over_two']:.2f})"
    )


def main(given: list[str] | None = None) -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients, to try it")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(given)
    peak, memory = gemm_flops(1024), bytes_per_second(256 << 20)
    result: dict[str, Any] = {
        "command": "python -m benchmarks.speed.evaluation",
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "gflops": peak / 1e9,
        "gigabytes_per_second": memory / 1e9,
    }
    print(f"large product {peak / 1e9:.1f} GFLOP/s, memory {memory / 1e9:.1f} GB/s read and written")
    for name in options.workloads:
        result[name] = measure(name, options.repeats, options.fraction, peak, memory)
        print(report(name, result[name]), flush=True)
    if options.out:
        write_atomically(options.out, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
