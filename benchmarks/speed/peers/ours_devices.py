"""fedjax_sim with the cohort dealt over two devices of the CPU."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.speed.peers import ours
from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import Weights, Workload

PEER = Peer(
    title="fedjax_sim, 2 devices",
    requirements=(),
    configuration="the same with fjs.layout.mesh() over two virtual devices of the CPU",
    framework=False,
    versions=("jax", "jaxlib"),
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """As in :mod:`.ours`; the number of devices has to be said before JAX looks for them."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)

    import fedjax_sim as fjs

    return ours.simulate(work, tick, fjs.layout.mesh())
