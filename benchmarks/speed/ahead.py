"""Programs for an accelerator that is not there: compiled for it by its own compiler, on a machine with a CPU alone.

    pip install "jax[tpu]"       python benchmarks/speed/ahead.py tpu        # four cores of a TPU v5e
    pip install "jax[cuda13]"    python benchmarks/speed/ahead.py cuda       # an H100
        [--sections methods layouts models convolutions uses] [--only NAME ...] [--out results/ahead-tpu.json]

Nothing is run and no time but the compiler's is measured: this shows that programs are ones that the device can have,
and what memory they take.

  methods   two rounds of every method that has a case in its record: an MLP, 8 clients of 1 to 30 examples, two epochs
  layouts   the same of SCAFFOLD in every layout; `mesh` is for all devices, four of a TPU
  models    two rounds of FedAvg of every kind of model
  convolutions
            two rounds of FEMNIST's network by windows and products, and by jax.lax, 10 clients of two steps of 20
            images
  uses      derivatives forward and back, eight seeds side by side, eleven diagnostics, virtual time and an
            asynchronous server

Of a TPU's program also the cycles that its compiler expects of what it holds, each operation once: two programs of one
kind can be compared by them, clocks cannot. For CUDA no kernels are tried (there is no GPU to try them on), so products
are calls of cuBLAS.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import inspect
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the checkout, installed or not

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fedjax_sim as fjs
from benchmarks.speed.gpu import shown, versions
from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.records import RECORDS
from fedjax_sim.models.conv import Conv, matmul_conv, max_pool

Row = dict[str, Any]
Run = Callable[[jax.Array], Any]  # of a key
# What an H100 says of itself (its data sheet's figures, and CUDA's occupancy limits of capability 9.0).
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 } device_memory_size: 84929347584 memory_bandwidth: 3352320000000 core_count: 132
  clock_rate_ghz: 1.98 fpus_per_core: 128 l2_cache_size: 52428800 threads_per_warp: 32 threads_per_block_limit: 1024
  threads_per_core_limit: 2048 shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
}
platform_name: "CUDA" runtime_version { major: 13 } dnn_version_info { major: 9 minor: 12 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
SIZES = (3, 17, 6, 1, 9, 30, 4, 12)
SGD = fjs.optim.sgd(0.1)
SETTINGS = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # it asks the driver
    "TPU_SKIP_MDS_QUERY": "1",  # there is no machine to ask about
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nor one to reserve
    "FEDJAX_SIM_CACHE": "off",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",  # Triton's kernels want to be tried
}


def devices_of(kind: str) -> list[jax.Device]:
    """Those of the topology, which compile and hold nothing."""
    if kind == "tpu":
        return list(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices)
    return list(topologies.get_topology_desc("an H100", "cuda", target_config=H100, topology="1x1x1").devices)


def data(shape: tuple[int, ...] = (20,), tokens: bool = False, sizes: tuple[int, ...] = SIZES) -> Any:
    """Clients of three classes."""
    rng, count = np.random.default_rng(0), sum(sizes)
    x = rng.integers(0, 80, (count, *shape)) if tokens else rng.standard_normal((count, *shape), np.float32)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return fjs.datasets.from_ids((x, rng.integers(0, 3, count)), owners, num_classes=3)


def method(name: str) -> Any:
    """A method as its record's case has it."""
    case = {key: value for key, value in (_cases()[name] or {}).items() if key not in ("inert", "average")}
    make = getattr(fjs, name)
    if "base" not in inspect.signature(make).parameters:
        return make(**{"client_optimizer": SGD} | case)
    made = make(**case | {"base": method(case.get("base", "fedavg"))})
    fitted = {"clients": jnp.arange(2, dtype=jnp.int32), "logits": jnp.zeros(len(SIZES))}  # the case has other clients
    return made.replace(**{field: value for field, value in fitted.items() if hasattr(made, field)})


@functools.cache
def _cases() -> dict[str, Any]:
    assert fjs.algorithms  # importing it registers them
    found = {name.partition(".")[2]: record.case for name, record in RECORDS.items()}
    return {name: case for name, case in found.items() if case is not None}


def train(algorithm: Any, dataset: Any, model: Any, **run: Any) -> Run:
    """Two rounds."""
    batches = {"batches": fjs.local.full_batch()} if algorithm.requires.full_gradients else {"batch_size": 4}
    cohort = fjs.cohort.full() if algorithm.requires.everyone else fjs.cohort.uniform(5)
    asked = {"work": fjs.local.epochs(2), "cohort": cohort, "rounds": 2, **batches} | run
    made = fjs.make_train(task=fjs.classification(model), **asked)
    return lambda key: made(algorithm, dataset, key)


MLP = functools.partial(fjs.models.MLP, 3, (16,))


def methods() -> Iterator[tuple[str, Callable[[], Run]]]:
    """Every method."""
    for name in _cases():
        yield name, lambda name=name: train(method(name), data(), MLP())  # type: ignore[misc]


def layouts() -> Iterator[tuple[str, Callable[[], Run]]]:
    """Every layout."""
    of = fjs.layout
    for layout in (of.turns(), of.stacked(), of.buckets(), of.lanes(3), of.static_schedule(2), of.mesh(),
                   of.mesh(data="sharded")):  # fmt: skip
        name = str(layout)
        yield name, lambda layout=layout: train(fjs.scaffold(client_optimizer=SGD), data(), MLP(), layout=layout)  # type: ignore[misc]


def models() -> Iterator[tuple[str, Callable[[], Run]]]:
    """Every kind of model."""
    of = fjs.models
    images, small, text = (lambda: data((28, 28, 1))), (lambda: data((32, 32, 3))), (lambda: data((12,), tokens=True))
    decoder = of.GPTNeoX(vocabulary=80, width=64, layers=2, heads=4, feedforward=128)
    found = {
        "LogisticRegression": (of.LogisticRegression(3), data), "MLP": (MLP(), data), "LeNet": (of.LeNet(3), images),
        "FemnistCNN": (of.FemnistCNN(3), images), "CifarCNN": (of.CifarCNN(3), small),
        "ResNet18": (of.ResNet18(3, width=8, groups=4), small), "CharLSTM": (of.CharLSTM(80, hidden=16), text),
        "GPTNeoXClassifier": (of.GPTNeoXClassifier(3, decoder), text),
    }  # fmt: skip
    for name, (model, make) in found.items():
        yield name, lambda model=model, make=make: train(fjs.fedavg(client_optimizer=SGD), make(), model)  # type: ignore[misc]


class Convolutions(nn.Module):
    """FEMNIST's network with one way to convolve."""

    way: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        for width in (32, 64):
            x = nn.relu(Conv(width, (3, 3), padding="VALID", conv_general_dilated=self.way)(x))
        x = max_pool(x, (2, 2), (2, 2))
        return nn.Dense(3)(nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1))))


def convolutions() -> Iterator[tuple[str, Callable[[], Run]]]:
    """Both ways."""
    run = {"work": fjs.local.epochs(1), "batch_size": 20, "cohort": fjs.cohort.full()}
    for name, way in {"windows": matmul_conv, "jax.lax": jax.lax.conv_general_dilated}.items():
        images = functools.partial(data, (28, 28, 1), sizes=(40,) * 10)
        yield (
            name,
            lambda way=way, images=images: train(  # type: ignore[misc]
                fjs.fedavg(client_optimizer=SGD), images(), Convolutions(way), **run
            ),
        )


def uses() -> Iterator[tuple[str, Callable[[], Run]]]:
    """What else is done with a run."""

    def final(key: jax.Array, rate: Any) -> Any:
        algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(rate))
        return train(algorithm, data(), MLP())(key).metrics["loss"][-1]

    plain = functools.partial(train, fjs.fedavg(client_optimizer=SGD))
    measured = {
        "diagnostics": [
            "lud", "e_lud", "consensus", "coherence", "cosine_matrix", "drift", "dissimilarity", "gradient_variance",
            "hessian_dissimilarity", "inexactness", "client_losses",
        ]
    }  # fmt: skip
    clock = {"system": fjs.systems.devices(flops_per_second=1e9, upload=1e6)}
    late = clock | {"asynchronous": fjs.asynchronous.fedbuff(buffer=2)}
    yield "gradient", lambda: lambda key: jax.grad(functools.partial(final, key))(0.1)
    yield "forward derivative", lambda: lambda key: jax.jacfwd(functools.partial(final, key))(0.1)
    yield "8 seeds", lambda: lambda key: jax.vmap(plain(data(), MLP()))(jax.random.split(key, 8))
    yield "diagnostics", lambda: plain(data(), MLP(), **measured)
    yield "virtual time", lambda: plain(data(), MLP(), **clock)
    yield "asynchronous", lambda: plain(data(), MLP(), **late)


SECTIONS = {
    "methods": methods, "layouts": layouts, "models": models, "convolutions": convolutions, "uses": uses,
}  # fmt: skip


def compiled(make: Callable[[], Run], devices: list[jax.Device], kind: str) -> Row:
    """A program's seconds to trace and to compile, its memory, and of a TPU's the cycles that are expected."""
    started = time.perf_counter()
    key = jax.eval_shape(lambda: jax.random.key(0))
    everywhere = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    placed = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere)
    with jax.default_device(jax.devices("cpu")[0]):  # of what is computed on the way
        lowered = jax.jit(make()).trace(placed).lower(lowering_platforms=(kind,))
    traced = time.perf_counter()
    program = lowered.compile()
    row: Row = {"trace_s": traced - started, "compile_s": time.perf_counter() - traced}
    if expected := re.findall(r'"estimated_cycles":"(\d+)"', program.as_text()):
        row["cycles"] = sum(map(int, expected))
    memory = program.memory_analysis()
    return row | {"temp_kb": memory.temp_size_in_bytes / 1e3, "code_kb": memory.generated_code_size_in_bytes / 1e3}


def main(given: list[str] | None = None) -> None:
    """Compiles, prints and writes; exits with an error where something does not compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["tpu", "cuda"])
    parser.add_argument("--sections", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(given)
    os.environ |= SETTINGS
    devices = devices_of(options.kind)
    real = jax.devices
    jax.default_backend = lambda: {"cuda": "gpu"}.get(options.kind, options.kind)  # what the package asks
    jax.devices = lambda backend=None: real(backend) if backend else devices
    device = str(devices[0].device_kind)
    result: Row = {"date": datetime.date.today().isoformat(), "versions": versions(), "device": device}
    broken = []
    for section in options.sections:
        rows = result.setdefault("rows", {}).setdefault(section, {})
        for name, make in SECTIONS[section]():
            if options.only and name not in options.only:
                continue
            try:
                rows[name] = compiled(make, devices if "Mesh" in name else devices[:1], options.kind)
            except Exception as error:  # of whatever kind: the others are compiled all the same
                rows[name] = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
                broken.append(name)
            print(f"{section:12} {name:20} {shown(rows[name])}", flush=True)
            if options.out:
                write_atomically(options.out, json.dumps(result, indent=1).encode())
    if broken:
        raise SystemExit(f"did not compile: {', '.join(broken)}")


if __name__ == "__main__":
    main()
