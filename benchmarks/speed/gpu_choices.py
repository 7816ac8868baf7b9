"""The choices that a layout makes for an accelerator, one after another, and rounds that others have published.

W3 is that of workloads.py with a fresh order of every client's examples in each round (``shuffled``), since half of the
choices are about draws. Every form is first compared with the same rounds in float64 on a CPU, in float32 products;
only then is it timed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.gpu_sections import (
    BATCH,
    RATE,
    TOLERANCE,
    Clock,
    Net,
    Row,
    difference,
    drawn_start,
    named,
    peak_megabytes,
    reference_of,
    save_reference,
    timed,
)
from benchmarks.speed.limit import compiled
from benchmarks.speed.workloads import make
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.layout import base
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, some_rounds

COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer=+WHILE"  # loops as parts of CUDA graphs; of the whole process
ROUNDS = 2  # of W3 in one program
FLOAT32, TF32 = "float32", "tensorfloat32"  # jax_default_matmul_precision


class Setting(NamedTuple):
    """What is trained: all but the layout; one local epoch."""

    task: Any
    data: fjs.FederatedDataset
    cohort: Any
    batch_size: int
    algorithm: Any

    def plan(self, layout: Any, rounds: int) -> Plan:
        """The rounds; ``layout`` None is the rule's."""
        asked = Plan(
            self.task, self.cohort, fjs.local.epochs(1), fjs.local.shuffled(self.batch_size), layout,
            algorithm=self.algorithm, dataset=self.data, key=jax.random.key(0),
        )  # fmt: skip
        return resolve(asked, rounds)


class Form(NamedTuple):
    """One way to run the same rounds."""

    layout: Any
    ahead: bool = True  # whether keys and batches are drawn ahead of the loop of steps
    convolution: str = "own"  # a name of CONVOLUTIONS; "own" is the package's choice
    precision: str = FLOAT32

    def row(self) -> Row:
        """In words."""
        drawn = "ahead" if self.ahead else "step by step"
        return {
            "layout": named(self.layout), "drawn": drawn, "convolution": self.convolution, "precision": self.precision,
        }  # fmt: skip


def w3(convolution: str, *, tiny: bool, dtype: str = "float32") -> Setting:
    """W3, or a small thing of its kind."""
    kind = jnp.dtype(dtype)
    if tiny:
        rng = np.random.default_rng(0)
        sizes = np.array([4, 9, 3, 5])
        x, y = rng.random((21, 8, 8, 1), np.float32), rng.integers(0, 3, 21, np.int32)
        cohorts, batch, model = np.array([[0, 1, 2], [3, 1, 0]]), 2, Net(convolution, kind, 3, (2, 3), 4)
    else:
        work = make("W3", ROUNDS)
        sizes, x, y, cohorts, batch = work.sizes, work.x, work.y, work.cohorts, BATCH
        model = Net(convolution, kind, 62)
    data = fjs.datasets.from_ids(
        (x.astype(kind), y), np.repeat(np.arange(len(sizes)), sizes), num_classes=model.classes
    )
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE))
    return Setting(fjs.classification(model), data, fjs.cohort.given(cohorts), batch, algorithm)


def run(setting: Setting, form: Form, rounds: int, reference: list[np.ndarray] | None = None) -> Row:
    """What a form costs; where it differs from the reference it is not timed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision(form.precision))
        if not form.ahead:
            stack.enter_context(mock.patch.object(base, "_MOST_AHEAD", -1))
        plan = setting.plan(form.layout, rounds)
        state = init_state(plan, drawn_start(setting.task, setting.data))

        def train(plan: Plan, state: Any, ts: jax.Array) -> Any:
            state, record = some_rounds(plan, state, ts)
            return state.server.params, record["computed_steps"], record["useful_steps"]

        ts = jnp.arange(rounds, dtype=jnp.int32)
        program, seconds = compiled(train, plan, state, ts)
        params, computed, useful = program(plan, state, ts)
        row: Row = {}
        if reference is not None:
            row["difference"] = difference(jax.tree.leaves(params), reference)
            if form.precision == FLOAT32 and not row["difference"] <= TOLERANCE:
                return row
        memory = program.memory_analysis()
        row |= timed(lambda: program(plan, state, ts)[0], rounds)
    del row["first_s"]
    held = None if memory is None else memory.temp_size_in_bytes / 1e6
    steps = {"computed": float(np.mean(computed)), "useful": float(np.mean(useful))}
    return row | {"compile_s": sum(seconds.values()), "working_mb": held, **steps}


def write_reference(path: pathlib.Path, *, tiny: bool) -> None:
    """The rounds of W3 in float64, one client after another."""
    setting = w3("own", tiny=tiny, dtype="float64")
    plan = setting.plan(fjs.layout.turns(), ROUNDS)
    state, ts = init_state(plan, drawn_start(setting.task, setting.data)), jnp.arange(ROUNDS, dtype=jnp.int32)
    save_reference(path, [jax.jit(some_rounds)(plan, state, ts)[0].server.params])


class Ladder:
    """Forms of W3 in order, each beside the one before it."""

    def __init__(self, clock: Clock, form: Form, *, tiny: bool) -> None:
        self.clock, self.tiny = clock, tiny
        (self.exact,) = reference_of("choices", tiny=tiny, clock=clock)
        self.form, self.ms = form, float("nan")

    def measured(self, choice: str, form: Form) -> Row:
        """The row of a form."""
        setting = w3(form.convolution, tiny=self.tiny)
        what = {"choice": choice, **form.row()}
        row = self.clock.measured(what, functools.partial(run, setting, form, ROUNDS, self.exact))
        return row | ({"to_the_one_before": row["ms"] / self.ms} if "ms" in row and self.ms > 0 else {})

    def climb(self, choice: str, *forms: Form, back: bool = True) -> Iterator[Row]:
        """The rows of some forms; the ladder goes on from the fastest of them, or (``back``) from where it was."""
        found = [(self.ms, self.form)] if back and self.ms > 0 else []
        for form in forms:
            row = self.measured(choice, form)
            yield row
            found.append((row.get("ms", float("inf")), form))
        self.ms, self.form = min(found, key=lambda one: one[0])


def choices(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """The choices but the last, in their order; then what the package does, in both precisions."""
    start = Form(fjs.layout.lanes(8), ahead=False, convolution="library")
    ladder = Ladder(clock, start, tiny=tiny)
    yield from ladder.climb("0 dynamic loop", start)
    others = (start._replace(layout=layout) for layout in (fjs.layout.stacked(), fjs.layout.buckets()))
    yield from ladder.climb("1 one static loop, three narrower ones", *others, back=False)
    yield from ladder.climb("2 drawn ahead", ladder.form._replace(ahead=True))
    yield from ladder.climb("3 products", *(ladder.form._replace(convolution=way) for way in ("im2col", "shifts")))
    yield from as_it_is(ladder)


def as_it_is(ladder: Ladder, choice: str = "as it is") -> Iterator[Row]:
    """The package's own layouts as they are."""
    ladder.ms = float("nan")  # no rungs
    for layout in (fjs.layout.buckets(), fjs.layout.lanes(8), fjs.layout.stacked()):
        yield ladder.measured(choice, Form(layout, precision=TF32))
    # JAX's own choice: one of the two, as its time and its difference say.
    for precision in ("default", FLOAT32):
        yield ladder.measured(choice, Form(fjs.layout.buckets(), precision=precision))


def graphs(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """The last choice: gpu.py starts this process with the flag; beside the rows `as it is` of `choices`."""
    for row in as_it_is(Ladder(clock, Form(fjs.layout.lanes(8)), tiny=tiny), "4 command buffers"):
        yield row | {"flags": os.environ.get("XLA_FLAGS", "")}


def femnist_sizes(clients: int = 3400, mean: float = 226, spread: float = 88) -> np.ndarray:
    """Images of writers as LEAF's FEMNIST has them, about."""
    drawn = np.random.default_rng(0).normal(mean, spread, clients)
    return np.clip(drawn, mean / 10, 2.2 * mean).astype(int)


def pfllib_sizes(clients: int, total: int) -> np.ndarray:
    """Clients that share ``total`` examples very unequally."""
    drawn = np.random.default_rng(0).dirichlet(np.full(clients, 0.5))
    sizes = np.maximum((drawn * total).astype(int), 1)
    sizes[np.argmax(sizes)] += total - sizes.sum()
    return sizes


def femnist(tiny: bool) -> tuple[Setting, int]:
    """FLUTE's row: 3,400 writers, about 226 images each, 10 a round, batch 20."""
    if tiny:
        model: Any = Net("own", classes=62, widths=(2, 3), hidden=4)
        return _images(model, femnist_sizes(12, 20.0, 8.0), (8, 8), 62, fjs.cohort.uniform(3), 20), 1500
    return _images(fjs.models.FemnistCNN(62), femnist_sizes(), (28, 28), 62, fjs.cohort.uniform(10), 20), 1500


def pfllib(tiny: bool) -> tuple[Setting, int]:
    """PFLlib's quick start: MNIST over 20 clients, all of them, batch 10: about 5,250 steps a round."""
    if tiny:
        model: Any = fjs.models.LeNet(10, channels=(2, 3), hidden=(4,))
        return _images(model, pfllib_sizes(4, 60), (16, 16), 10, fjs.cohort.full(), 10), 1
    model = fjs.models.LeNet(10, channels=(32, 64), hidden=(512,))
    return _images(model, pfllib_sizes(20, 52_500), (28, 28), 10, fjs.cohort.full(), 10), 1


def _images(model: Any, sizes: np.ndarray, shape: tuple[int, int], classes: int, cohort: Any, batch: int) -> Setting:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 255, (int(sizes.sum()), *shape, 1), np.uint8)
    y = rng.integers(0, classes, len(x), np.int32)
    data = fjs.datasets.from_ids((x, y), np.repeat(np.arange(len(sizes)), sizes), num_classes=classes)
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(1e-4))  # of bytes that nobody has scaled
    return Setting(fjs.classification(model), data, cohort, batch, algorithm)


@functools.cache
def many_clients(clients: int) -> fjs.FederatedDataset:
    """Clients of 20 examples with 60 features each."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, (clients * 20, 60), np.int8)
    y = rng.integers(0, 10, len(x), np.int32)
    return fjs.datasets.from_ids((x, y), np.repeat(np.arange(clients), 20), num_classes=10)


def many(algorithm: Callable[..., Any], tiny: bool) -> tuple[Setting, int]:
    """A million clients, 1,000 a round, logistic regression."""
    clients, cohort = (40, 10) if tiny else (1_000_000, 1000)
    task = fjs.classification(fjs.models.LogisticRegression(10))
    method = algorithm(client_optimizer=fjs.optim.sgd(RATE))
    return Setting(task, many_clients(clients), fjs.cohort.uniform(cohort), 20, method), 1


# What others have published of the first two, on machines of their own: figures to know, and no ratio to take.
AIMS: dict[str, tuple[Callable[[bool], tuple[Setting, int]], str]] = {
    "FEMNIST, 10 of 3,400 clients": (femnist, "FLUTE's README: 1,500 rounds in 502 s"),
    "MNIST, 20 clients, 5,250 steps": (pfllib, "PFLlib #253: 17 to 18 s a round, RTX 5090"),
    "a million clients, FedAvg": (functools.partial(many, fjs.fedavg), "nobody's"),
    "a million clients, SCAFFOLD": (functools.partial(many, fjs.scaffold), "nobody's"),
}


def aims(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Rounds of published sizes, random data, no evaluation; the rule's layout and one other."""
    for name, (made, published) in AIMS.items():
        setting, count = made(tiny)
        rule = setting.plan(None, 1).layout
        others = (fjs.layout.lanes(8),) if name.startswith(("FEMNIST", "MNIST")) else ()
        for layout in dict.fromkeys((rule, *others)):
            what = {"aim": name, "published": published, **Form(layout, precision=TF32).row()}
            row = clock.measured(what, functools.partial(run, setting, Form(layout, precision=TF32), 1 if tiny else 3))
            if "ms" in row:
                row |= {"rounds": count, "seconds": count * row["ms"] / 1e3, "rounds_per_s": 1e3 / row["ms"]}
            yield row | {"peak_mb": peak_megabytes()}


SECTIONS: dict[str, Callable[..., Iterator[Row]]] = {"choices": choices, "aims": aims, "graphs": graphs}
