"""What gpu.py measures: sections that give rows, and end in time."""

from __future__ import annotations

import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fjs
from benchmarks.speed.machine import bytes_per_second, gemm_flops
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.layout_timing import label
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, some_rounds
from fedjax_sim.models import Dense
from fedjax_sim.models.conv import Conv, Windows, conv_general_dilated, matmul_conv, max_pool

BATCH, RATE, CLASSES = 20, 0.05, 10
SHAPES = {"logistic": (60,), "mlp": (784,), "cnn": (28, 28, 1)}
SCRIPT = pathlib.Path(__file__).with_name("gpu.py")
OUT_OF_TIME = "out of time"
TOLERANCE = 1e-3  # largest difference of a parameter from float64, relative to the largest parameter
_IN_HAND = 5.0  # seconds that a section keeps
_MOST_DATA = 8 << 30  # bytes of examples that the host is asked to make
Row = dict[str, Any]


def shifted_conv(x: jax.Array, kernel: jax.Array, strides: Any, padding: Any, *args: Any, **options: Any) -> jax.Array:
    """A convolution as one product for each tap, summed: no windows in memory."""
    windows = Windows.of(x.shape[1:-1], kernel.shape[:-2], strides, (1,) * (x.ndim - 2), padding)
    taps = windows.taps(windows.padded(x, np.zeros((), x.dtype)))
    products = (
        lax.dot_general(tap, one, (((x.ndim - 1,), (0,)), ((), ())))
        for tap, one in zip(taps, kernel.reshape(-1, *kernel.shape[-2:]), strict=True)
    )
    return functools.reduce(jnp.add, products)


CONVOLUTIONS: dict[str, Any] = {
    "own": conv_general_dilated, "im2col": matmul_conv, "library": lax.conv_general_dilated, "shifts": shifted_conv,
}  # fmt: skip


class Net(nn.Module):
    """The FEMNIST CNN (Reddi et al. 2021) with a choice of convolution."""

    convolution: str = "own"
    param_dtype: Any = jnp.float32
    classes: int = CLASSES
    widths: tuple[int, ...] = (32, 64)
    hidden: int = 128

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.param_dtype)
        for width in self.widths:
            conv = Conv(
                width, (3, 3), padding="VALID", param_dtype=self.param_dtype,
                conv_general_dilated=CONVOLUTIONS[self.convolution],
            )  # fmt: skip
            x = nn.relu(conv(x))
        x = max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
        x = nn.relu(Dense(self.hidden, param_dtype=self.param_dtype)(x))
        return Dense(self.classes, param_dtype=self.param_dtype)(x)


class Case:
    """Random clients, a model, and rounds of FedAvg of one local epoch with everybody.

    Args:
      model: a name of SHAPES.
      clients: how many there are.
      equal: whether all have the same number of examples; else it is log-normal, a few far larger than most.
      examples: of a client.
      dtype: of parameters and arithmetic.
      convolution: a name of CONVOLUTIONS.
    """

    def __init__(
        self, model: str, clients: int, *, equal: bool = True, examples: int = 100, dtype: str = "float32",
        convolution: str = "own",
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(0)
        sizes = np.full(clients, examples)
        if not equal:
            sizes = np.clip(rng.lognormal(np.log(examples / 2), 1.2, clients).astype(int), 1, 12 * examples)
        x = rng.standard_normal((int(sizes.sum()), *SHAPES[model]), np.float32)
        y = rng.integers(0, CLASSES, len(x), np.int32)
        wide = x.astype(np.float64) if dtype == "float64" else x
        self.data = fjs.datasets.from_ids((wide, y), np.repeat(np.arange(clients), sizes), num_classes=CLASSES)
        kind = jnp.dtype(dtype)
        network: Any = {
            "logistic": lambda: fjs.models.LogisticRegression(CLASSES, kind),
            "mlp": lambda: fjs.models.MLP(CLASSES, param_dtype=kind),
            "cnn": lambda: Net(convolution, kind),
        }[model]()
        self.task = fjs.classification(network)
        self.algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE))
        self.clients, self.steps = clients, int((-(-sizes // BATCH)).sum())

    def plan(self, layout: Any) -> Plan:
        """The rounds."""
        asked = Plan(
            self.task, fjs.cohort.full(), fjs.local.epochs(1), fjs.local.in_order(BATCH), layout,
            algorithm=self.algorithm, dataset=self.data, key=jax.random.key(0),
        )  # fmt: skip
        return resolve(asked, 1)

    def program(self, layout: Any, rounds: int) -> Callable[[], Any]:
        """A function of nothing that trains and returns the parameters; its first call compiles."""
        plan = self.plan(layout)
        state = init_state(plan, drawn_start(self.task, self.data))

        @jax.jit
        def train(plan: Plan, state: Any) -> Any:
            return some_rounds(plan, state, jnp.arange(rounds, dtype=jnp.int32))[0].server.params

        return lambda: train(plan, state)

    def rule(self) -> str:
        """The layout that the rule takes."""
        return named(self.plan(None).layout)


def drawn_start(task: Any, data: Any) -> Any:
    """The same start in every dtype and process: numpy's draws."""
    shapes = jax.eval_shape(lambda: task.init(jax.random.key(0), data))
    rng = np.random.default_rng(1)

    def drawn(leaf: Any) -> jax.Array:
        spread = np.sqrt(np.prod(leaf.shape[:-1])) if len(leaf.shape) > 1 else 100.0
        return jnp.asarray((rng.standard_normal(leaf.shape) / spread).astype(np.float32), leaf.dtype)

    return jax.tree.map(drawn, shapes)


class Clock:
    """The time that a section has."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.longest = 0.0

    def enough(self) -> bool:
        """Whether another measurement, twice as long as the longest one so far, would be done in time."""
        return self.end - time.monotonic() > _IN_HAND + 2 * self.longest

    def measured(self, what: Row, function: Callable[[], Row]) -> Row:
        """The row with what ``function`` says, or with why it says nothing: ``"ended"``."""
        if not self.enough():
            return what | {"ended": OUT_OF_TIME}
        started = time.monotonic()
        try:
            row = what | function()
        except Exception as error:  # a device out of memory is a result like another
            if not out_of_memory(error):
                raise
            row = what | {"ended": "out of memory"}
        self.longest = max(self.longest, time.monotonic() - started)
        return row


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "resource_exhausted" in text or "out of memory" in text


def timed(run: Callable[[], Any], rounds: int) -> Row:
    """Seconds to the first result, and the median milliseconds of a round after it."""

    def seconds() -> float:
        started = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - started

    first = seconds()
    return {"ms": milliseconds(seconds, rounds), "first_s": first}


def milliseconds(seconds: Callable[[], float], rounds: int, *, most: float = 10.0) -> float:
    """The median of a round, over calls of so many that say what they took, until ``most`` seconds at the latest."""
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < 0.5 and len(taken) < 15):
        taken.append(seconds())
        if sum(taken) > most:
            break
    return 1e3 * statistics.median(taken) / rounds


def peak_megabytes() -> float | None:
    """The most memory of the device that this process has used; None where it does not say."""
    statistics_ = jax.devices()[0].memory_stats() or {}
    peak = statistics_.get("peak_bytes_in_use")
    return None if peak is None else peak / 1e6


def layouts(clients: int, *, tiny: bool) -> dict[str, Any]:
    """What is compared, by name."""
    counts = [count for count in ((2,) if tiny else (8, 32)) if count <= clients]
    chosen = [fjs.layout.stacked(), fjs.layout.buckets(), *map(fjs.layout.lanes, counts), fjs.layout.turns()]
    return {named(layout): layout for layout in chosen}


def named(layout: Any) -> str:
    """A layout as a user writes it."""
    return label(layout).removesuffix("()")


def machine(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Rates of the device."""
    device, memory = jax.devices()[0], jax.devices()[0].memory_stats() or {}
    yield {"device": device.device_kind, "platform": device.platform, "memory_bytes": memory.get("bytes_limit")}
    size, megabytes = (128, 4) if tiny else (4096, 1024)

    def product(dtype: str) -> Row:
        return {"tflops": gemm_flops(size, dtype) / 1e12}

    for dtype in ("float32", "bfloat16"):
        yield clock.measured({"product": size, "dtype": dtype}, functools.partial(product, dtype))
    yield clock.measured({"megabytes": megabytes}, lambda: {"gb_s": bytes_per_second(megabytes << 20) / 1e9})


def agreement_cases(tiny: bool) -> list[Row]:
    """What is compared with float64."""
    clients = 3 if tiny else 12
    return [
        {"model": "logistic", "clients": clients, "equal": False},
        {"model": "mlp", "clients": clients, "equal": False},
        {"model": "cnn", "clients": 2 if tiny else 4, "equal": True, "examples": 20 if tiny else 60},
    ]


def agreement(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Every layout and convolution against float64 on the CPU."""
    exact = reference_of("agreement", tiny=tiny, clock=clock)
    with jax.default_matmul_precision("highest"):
        for given, reference in zip(agreement_cases(tiny), exact, strict=True):
            ways = ("im2col", "library") if given["model"] == "cnn" and not on_cpu() else ("own",)
            for way in ways:
                case = Case(**given, convolution=way)
                for name, layout in layouts(case.clients, tiny=tiny).items():
                    what = {"model": given["model"], "convolution": way, "layout": name}
                    yield clock.measured(what, functools.partial(_differ, case, layout, reference))


def reference_of(section: str, *, tiny: bool, clock: Clock) -> list[list[np.ndarray]]:
    """For each case of a section the model's leaves in float64, computed by a process of its own on the CPU."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "reference.npz"
        own = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
        command = [sys.executable, str(SCRIPT), "--reference", str(path), "--section", section]
        command += ["--tiny"] if tiny else []
        subprocess.run(command, env=os.environ | own, check=True, timeout=max(1.0, clock.end - time.monotonic()))
        with np.load(path) as arrays:
            of_cases: dict[str, list[np.ndarray]] = {}
            for name in arrays.files:  # in the order in which they were written
                of_cases.setdefault(name.partition("-")[0], []).append(arrays[name])
    return list(of_cases.values())


def save_reference(path: pathlib.Path, cases: list[Any]) -> None:
    """Writes models in float64, for :func:`reference_of`."""
    leaves = {f"{i}-{j}": leaf for i, model in enumerate(cases) for j, leaf in enumerate(jax.tree.leaves(model))}
    if any(leaf.dtype != jnp.float64 for leaf in leaves.values()):
        raise SystemExit("the reference is not in float64: set JAX_ENABLE_X64=1")
    np.savez(path, **jax.device_get(leaves))


def _differ(case: Case, layout: Any, reference: list[np.ndarray]) -> Row:
    return {"difference": difference(jax.tree.leaves(case.program(layout, 2)()), reference)}


def difference(found: list[Any], reference: list[np.ndarray]) -> float:
    """The largest difference of a parameter, relative to the largest parameter; infinite where one is not finite."""
    pairs = zip(found, reference, strict=True)
    worst = float(np.max([np.max(np.abs(np.asarray(a, np.float64) - b)) for a, b in pairs]))  # NaN if any is
    most = max(float(np.max(np.abs(leaf))) for leaf in reference)
    return worst / most if np.isfinite(worst) else float("inf")


def write_reference(path: pathlib.Path, *, tiny: bool) -> None:
    """The rounds of `agreement` in float64, one client after another."""
    cases = agreement_cases(tiny)
    save_reference(path, [Case(**given, dtype="float64").program(fjs.layout.turns(), 2)() for given in cases])


def on_cpu() -> bool:
    """Whether the device is a CPU, where the library's convolutions take seconds a step in a loop."""
    return jax.default_backend() == "cpu"


def layouts_section(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Milliseconds a round of every layout."""
    clients, rounds = (4, 1) if tiny else (128, 3)
    for model in SHAPES:
        for equal in (True, False):
            case = Case(model, clients, equal=equal, examples=20 if tiny else 100)
            for name, layout in layouts(clients, tiny=tiny).items():
                what = {"model": model, "steps": "equal" if equal else "unequal", "layout": name, "rule": case.rule()}
                row = clock.measured(what, functools.partial(_round, case, layout, rounds))
                yield row | ({"steps_per_s": case.steps / (row["ms"] / 1e3)} if "ms" in row else {})


def _round(case: Case, layout: Any, rounds: int) -> Row:
    return timed(case.program(layout, rounds), rounds)


def numbers(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Convolutions and dtypes, with a client axis and without."""
    clients, rounds = (2, 1) if tiny else (32, 2)
    ways = ("im2col",) if on_cpu() else ("im2col", "library")
    cases = [("mlp", "own", dtype) for dtype in ("float32", "bfloat16")]
    cases += [("cnn", way, dtype) for way in ways for dtype in ("float32", "bfloat16")]
    for model, way, dtype in cases:
        case = Case(model, clients, examples=20 if tiny else 100, dtype=dtype, convolution=way)
        for layout in (fjs.layout.stacked(), fjs.layout.turns()):
            what = {"model": model, "convolution": way, "dtype": dtype, "layout": named(layout)}
            yield clock.measured(what, functools.partial(_round, case, layout, rounds))


def scale(clock: Clock, *, tiny: bool, most: int) -> Iterator[Row]:
    """Clients a second, for cohorts that double, until something ends it."""
    ended: set[str] = set()
    clients = 2 if tiny else 64
    while clients <= most and len(ended) < len(SHAPES):
        for model in [model for model in SHAPES if model not in ended]:
            what = {"model": model, "clients": clients}
            if 4 * clients * 2 * BATCH * int(np.prod(SHAPES[model])) > _MOST_DATA:
                row = what | {"ended": f"examples of more than {_MOST_DATA >> 30} GB"}
            else:
                row = clock.measured(what, functools.partial(_clients_per_second, model, clients))
            if "ended" in row:
                ended.add(model)
            yield row
        clients *= 2


def _clients_per_second(model: str, clients: int) -> Row:
    case = Case(model, clients, examples=2 * BATCH)
    row = timed(case.program(None, 2), 2)
    rate = clients / (row["ms"] / 1e3)
    return row | {"layout": case.rule(), "clients_per_s": rate, "peak_mb": peak_megabytes()}


SECTIONS: dict[str, Callable[..., Iterator[Row]]] = {
    "machine": machine, "agreement": agreement, "layouts": layouts_section, "numbers": numbers, "scale": scale,
}  # fmt: skip
