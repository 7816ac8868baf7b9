"""How far a round is from what the machine allows, and where the rest goes.

    python -m benchmarks.speed.limit [--workloads W1 W2 W3 W4] [--rounds 5] [--repeats 7] [--out results/limit.json]

Workloads W1 to W4 are those of benchmarks/speed/workloads.py: FedAvg, one local epoch, batches of 20 in stored order.
In one run, on one machine:

  floor         what no program can beat: the larger of the FLOPs of a round's gradients over the rate of a large
                square product, and its bytes over the measured bandwidth (every batch read once from memory; the model
                read twice and written once a step, from whatever cache it fits in)
  products      the same products at their own shapes, each timed alone in a loop, one after another
  hand-written  the round without the package around it: a loop over clients and their exact steps, with the same model,
                products and reading; `loop` is ours over it
  ours          the compiled rounds, the same data and cohorts, shuffled too

`ours` and `hand-written` take turns inside every repeat; medians, and ratios within repeats. Their models must agree
before any time is printed. Then: kernels of one step, as the compiled loop has them (nothing to do with a clock);
useful and computed steps; what an evaluation of all training data costs, in rounds; seconds to trace, lower and
compile; and what a step costs of a model with one parameter, which is all overhead.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fjs
from benchmarks.speed import turns
from benchmarks.speed.machine import bytes_per_second, gemm_flops, product_seconds, products, seconds_of
from benchmarks.speed.workloads import BATCH, NAMES, RATE, Workload, make
from fedjax_sim.clients.systems.flops import gradient_flops
from fedjax_sim.core.files import write_atomically
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, run_round, some_rounds
from fedjax_sim.models.passes import mean_values
from fedjax_sim.models.task import Batch

# Relative, of models after the rounds. Round-off decides some of a CNN's ReLUs and max-pools the other way, and each of
# them is another path of training (seen: 7e-3 after the rounds measured here).
_TOLERANCE, _OF_CONVOLUTIONS = 1e-4, 5e-2


class Program(NamedTuple):
    """Rounds, compiled.

    Attributes:
      run: takes nothing, trains all rounds and returns the parameters.
      text: the optimised HLO.
      seconds: to trace, to lower and to compile.
      steps: useful and computed micro-steps of a round, or None.
    """

    run: Callable[[], Any]
    text: str
    seconds: dict[str, float]
    steps: tuple[float, float] | None


class Subject:
    """A workload as the package sees it."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        owners = np.repeat(np.arange(len(work.sizes)), work.sizes)
        classes = work.start[-1][1].size
        self.data = fjs.datasets.from_ids((work.x, work.y), owners, num_classes=classes)
        if work.start[0][0].ndim == 4:
            model: Any = fjs.models.FemnistCNN(classes)
        elif len(work.start) > 1:
            model = fjs.models.MLP(classes, tuple(int(b.size) for _, b in work.start[:-1]))
        else:
            model = fjs.models.LogisticRegression(classes)
        self.task = fjs.classification(model)
        template = jax.eval_shape(lambda: self.task.init(jax.random.key(0), self.data))
        layers = sorted(template["params"], key=lambda name: (name.startswith("Dense"), name))
        self.params = {
            "params": {
                name: {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
                for name, (kernel, bias) in zip(layers, work.start, strict=True)
            }
        }

    def batch(self) -> Batch:
        """One batch, as a step sees it."""
        examples = jax.tree.map(lambda leaf: leaf[:BATCH], self.data.examples)
        return Batch(examples, jnp.ones((BATCH,), jnp.float32), jnp.int32(BATCH))

    def gradient(self, params: Any, batch: Batch) -> Any:
        """What a step computes before it moves."""
        return jax.value_and_grad(self.task.batch_loss)(params, batch, jax.random.key(0))


def compiled(function: Callable[..., Any], *arguments: Any, donate: int | None = None) -> tuple[Any, dict[str, float]]:
    """The compiled function, and the seconds of the three stages."""
    jitted = jax.jit(function, donate_argnums=() if donate is None else donate)
    marks = [time.perf_counter()]
    traced = jitted.trace(*arguments)
    marks.append(time.perf_counter())
    lowered = traced.lower()
    marks.append(time.perf_counter())
    program = lowered.compile()
    marks.append(time.perf_counter())
    names = ("trace_s", "lower_s", "compile_s")
    return program, {name: b - a for name, a, b in zip(names, marks, marks[1:], strict=False)}


def ours(subject: Subject, *, shuffled: bool = False) -> Program:
    """The package's rounds as one program."""
    batches = fjs.local.shuffled(BATCH) if shuffled else fjs.local.in_order(BATCH)
    rounds = len(subject.work.cohorts)
    asked = Plan(
        subject.task, fjs.cohort.given(subject.work.cohorts), fjs.local.epochs(1), batches,
        algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)), dataset=subject.data, key=jax.random.key(0),
    )  # fmt: skip
    plan = resolve(asked, rounds)

    def train(plan: Plan, state: Any) -> Any:
        state, record = some_rounds(plan, state, jnp.arange(rounds, dtype=jnp.int32))
        return state, (record["useful_steps"], record["computed_steps"])

    state = init_state(plan, subject.params)
    program, seconds = compiled(train, plan, state)
    _, (useful, computed) = program(plan, state)
    steps = float(np.mean(useful)), float(np.mean(computed))
    return Program(lambda: program(plan, state)[0].server.params, program.as_text(), seconds, steps)


def hand_written(subject: Subject) -> Program:
    """The rounds as somebody would write them who knows the answer: every client its own number of exact steps."""
    work = subject.work
    sizes, offsets = jnp.asarray(work.sizes, jnp.int32), jnp.asarray(work.offsets, jnp.int32)

    def train(examples: Any, sizes: jax.Array, offsets: jax.Array, cohorts: jax.Array, params: Any) -> Any:
        held = len(examples["y"])

        def client(given: tuple[Any, Any, jax.Array], i: jax.Array) -> tuple[Any, None]:
            total, params, mass = given
            begin, size = offsets[i], sizes[i]

            def step(k: jax.Array, y: Any) -> Any:
                first = begin + k * BATCH
                start = jnp.minimum(first, held - BATCH)
                rows = start + jnp.arange(BATCH, dtype=jnp.int32)
                mask = (rows >= first) & (rows < begin + size)
                read = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, BATCH), examples)
                batch = Batch(read, mask.astype(jnp.float32), jnp.minimum(begin + size - first, BATCH))
                gradient = jax.grad(subject.task.batch_loss)(y, batch)
                return jax.tree.map(lambda leaf, g: leaf - RATE * g, y, gradient)

            y = lax.fori_loop(0, (size + BATCH - 1) // BATCH, step, params)
            share = size.astype(jnp.float32) / mass
            return (jax.tree.map(lambda t, a, b: t + share * (a - b), total, y, params), params, mass), None

        def one_round(params: Any, cohort: jax.Array) -> tuple[Any, None]:
            mass = jnp.sum(sizes[cohort], dtype=jnp.int32).astype(jnp.float32)
            start = jax.tree.map(jnp.zeros_like, params)
            (total, _, _), _ = lax.scan(client, (start, params, mass), cohort)
            return jax.tree.map(jnp.add, params, total), None

        return lax.scan(one_round, params, cohorts)[0]

    inputs = (subject.data.examples, sizes, offsets, jnp.asarray(work.cohorts, jnp.int32), subject.params)
    program, seconds = compiled(train, *inputs)
    return Program(lambda: program(*inputs), program.as_text(), seconds, None)


_NO_KERNEL = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all")


def kernels_of_a_step(text: str) -> dict[str, int] | None:
    """Instructions by kind of the loop over local steps in an optimised program; None where no loop has products.

    It is the innermost loop with products, of several the one with most instructions. (Where every client takes a
    single step there is no loop over steps: it is then the loop over rounds.) A loop inside it, as of a permutation,
    counts as one instruction.
    """
    bodies = {}
    for found in re.finditer(r"^(?:ENTRY )?%([\w.\-]+) \(.*?^}", text, re.MULTILINE | re.DOTALL):
        bodies[found.group(1)] = found.group(0)
    loops = {}
    for name in set(re.findall(r"body=%([\w.\-]+)", text)):
        body = bodies.get(name, "")
        called = re.findall(r"(?:calls|to_apply|_computation)=%([\w.\-]+)", body)
        if " dot(" in body or any(" dot(" in bodies.get(inner, "") for inner in called):
            loops[name] = body
    best: dict[str, int] = {}
    for body in loops.values():
        kinds = re.findall(r"^\s+(?:ROOT )?%[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", body, re.MULTILINE)
        counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind not in _NO_KERNEL}
        around = any(inner in loops for inner in re.findall(r"body=%([\w.\-]+)", body))
        if not around and sum(counts.values()) > sum(best.values()):
            best = counts
    return best or None


def floors(subject: Subject, steps: float, peak: float, memory: float, repeats: int) -> dict[str, float]:
    """Milliseconds a round: what it takes at least, and its products at their own shapes."""
    params, batch = subject.params, subject.batch()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    flops = gradient_flops(subject.task, params, subject.data, BATCH)
    counted = jax.jit(subject.gradient).lower(params, batch).compile().cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted  # a list in jax 0.6
    read = sum(leaf.nbytes for leaf in jax.tree.leaves(batch.examples))
    cached = max(memory, bytes_per_second(size, repeats))
    multiplied = products(subject.gradient, params, batch)
    alone = sum(count * product_seconds(product, repeats) for product, count in multiplied.items())
    by_flops, by_bytes = steps * flops / peak, steps * (read / memory + 3 * size / cached)
    return {
        "flops_per_step": flops,
        "xla_flops_per_step": float(counted["flops"]),
        "product_flops_per_step": sum(count * product.flops() for product, count in multiplied.items()),
        "bytes_per_step": read + 3 * size,
        "floor_flops_ms": 1e3 * by_flops,
        "floor_bytes_ms": 1e3 * by_bytes,
        "floor_ms": 1e3 * max(by_flops, by_bytes),
        "products_ms": 1e3 * steps * alone,
    }


def agree(a: Any, b: Any) -> float:
    """The largest difference of two models, relative to the largest entry of the first; NaN where one has NaN."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    most = float(np.max([np.max(np.abs(x)) for x, _ in pairs]))
    return float(np.max([np.max(np.abs(np.asarray(x) - np.asarray(y))) for x, y in pairs])) / max(most, 1e-30)


def check_agreement(models: dict[str, Any], tolerance: float = _TOLERANCE) -> None:
    """Raises ``SystemExit`` where programs that compute the same did not: there is nothing to time."""
    first, *others = models
    for name in others:
        difference = agree(models[first], models[name])
        if not difference <= tolerance:
            raise SystemExit(
                f"the models of {first!r} and {name!r} differ by {difference:.1e}, relative: nothing to time"
            )


def measure(name: str, rounds: int, repeats: int, fraction: float, peak: float, memory: float) -> dict[str, Any]:
    """All of one workload."""
    subject = Subject(make(name, rounds, fraction))
    programs = {"ours": ours(subject), "hand-written": hand_written(subject), "shuffled": ours(subject, shuffled=True)}
    trained = {which: program.run() for which, program in programs.items() if which != "shuffled"}
    check_agreement(trained, _OF_CONVOLUTIONS if subject.work.start[0][0].ndim == 4 else _TOLERANCE)
    programs["shuffled"].run()
    taken = turns.in_turns({which: program.run for which, program in programs.items()}, repeats, rounds)
    useful, computed = programs["ours"].steps or (0.0, 0.0)
    evaluation = 1e3 * seconds_of(lambda: mean_values(subject.task, subject.params, subject.data), min(repeats, 3))
    result = floors(subject, useful, peak, memory, repeats)
    measured = {f"{which} ms": statistics.median(times) for which, times in taken.items()}
    return {
        **result,
        **measured,
        "fraction_of_floor": result["floor_ms"] / measured["ours ms"],
        "fraction_of_products": result["products_ms"] / measured["ours ms"],
        "times_hand_written": turns.ratio(taken["ours"], taken["hand-written"]),
        "shuffled_over_stored": turns.ratio(taken["shuffled"], taken["ours"]),
        "useful_steps": useful,
        "computed_steps": computed,
        "evaluation_ms": evaluation,
        **{which: program.seconds for which, program in programs.items()},
        "kernels": {which: kernels_of_a_step(program.text) for which, program in programs.items()},
    }


def overhead_per_step(clients: int, repeats: int) -> float:
    """Milliseconds a step of a model with one parameter, in the difference of 150 and 50 steps a client."""
    data = fjs.datasets.from_clients([(np.ones((BATCH, 1), np.float32), np.ones(BATCH, np.float32))] * clients)
    task = fjs.task.functions(
        lambda key: jnp.zeros((), jnp.float32), lambda w, batch: jnp.square(batch["x"][:, 0] * w - batch["y"])
    )
    algorithm, key = fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)), jax.random.key(0)

    def program(steps: int) -> Callable[[], Any]:
        everyone = fjs.cohort.full()
        plan = Plan(
            task, everyone, fjs.local.steps(steps), fjs.local.in_order(BATCH), fjs.layout.turns(),
            algorithm=algorithm, dataset=data, key=key,
        )  # fmt: skip
        a_round = jax.jit(lambda state, data: run_round(plan._replace(dataset=data), state, jnp.int32(0)))
        return functools.partial(a_round, init_state(plan), data)

    more, less = program(150), program(50)
    differences = [seconds_of(more, 1) - seconds_of(less, 1) for _ in range(repeats + 1)][1:]
    return 1e3 * statistics.median(differences) / (100 * clients)


def report(name: str, row: dict[str, Any]) -> str:
    """The lines of one workload."""
    ms = row["ours ms"]

    def kernels(which: str) -> str:
        counts = row["kernels"][which]
        return "no loop" if counts is None else str(sum(counts.values()))

    stages = " + ".join(f"{seconds:.2f}" for seconds in row["ours"].values())
    return "\n".join((
        f"{name}: {row['useful_steps']:.0f} useful steps a round, {row['computed_steps']:.0f} computed",
        f"  ms a round: ours {ms:.3f}, hand-written {row['hand-written ms']:.3f}"
        f" (loop {row['times_hand_written']:.2f}),"
        f" shuffled {row['shuffled ms']:.3f} (x {row['shuffled_over_stored']:.2f})",
        f"  floor {row['floor_ms']:.3f} ms (FLOPs {row['floor_flops_ms']:.3f}, bytes {row['floor_bytes_ms']:.3f}):"
        f" {100 * row['fraction_of_floor']:.0f} % reached; products alone {row['products_ms']:.3f} ms:"
        f" {100 * row['fraction_of_products']:.0f} % of the round",
        f"  a step: {row['flops_per_step']:.3g} operations (XLA counts {row['xla_flops_per_step']:.3g}),"
        f" {row['bytes_per_step']:.3g} bytes, kernels: ours {kernels('ours')},"
        f" hand-written {kernels('hand-written')}, shuffled {kernels('shuffled')}",
        f"  evaluation of all training data {row['evaluation_ms']:.2f} ms ({row['evaluation_ms'] / ms:.2f} rounds);"
        f" trace + lower + compile {stages} s",
    ))  # fmt: skip


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients and of a cohort, to try it")
    parser.add_argument("--gemm", type=int, default=1024, help="rows of the large square product")
    parser.add_argument("--megabytes", type=int, default=256, help="of the array that memory's bandwidth is read from")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(given)
    peak = gemm_flops(options.gemm, repeats=options.repeats)
    memory = bytes_per_second(options.megabytes << 20, options.repeats)
    overhead = overhead_per_step(100 if options.fraction == 1 else 4, options.repeats)
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "versions": {"jax": jax.__version__, "flax": flax.__version__, "numpy": np.__version__},
        "gflops": peak / 1e9,
        "gigabytes_per_second": memory / 1e9,
        "overhead_per_step_us": 1e3 * overhead,
    }
    print(f"large product {peak / 1e9:.1f} GFLOP/s, memory {memory / 1e9:.1f} GB/s read and written")
    print(f"a step of a model with one parameter: {1e3 * overhead:.2f} us")
    for name in options.workloads:
        result[name] = measure(name, options.rounds, options.repeats, options.fraction, peak, memory)
        print(report(name, result[name]), flush=True)
    if options.out:
        write_atomically(options.out, json.dumps(result, indent=1).encode())
    return result


if __name__ == "__main__":
    main()
