"""The rule behind ``layout=None``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout
from fedjax_sim.engine.layout.queue import lanes
from fedjax_sim.engine.layout.stacked import buckets, buckets_of, computed_in, stacked
from fedjax_sim.engine.layout.turns import turns

_SMALL_MODEL = 100_000  # parameters
MOST_LANES = 32  # clients side by side, where the rule chooses
_PAYS = 7 / 8  # share of the stacked steps up to which buckets are worth compiling


def choose_layout(num_slots: int, num_parameters: int, bounds: Bounds, *, everybody: bool = False) -> Layout:
    """The layout that is expected to be fastest; what it chose is in the run's record and can be overridden.

    On a CPU: *stacked* for one step of a small model (nothing to wait for, larger products), else *turns* (measured
    5 to 40 times faster than stacked for unequal steps). On GPU and TPU: *stacked* where masking wastes less than half,
    and in *buckets* where that computes an eighth fewer steps at least: no more of them follow one another, and each
    bucket is compiled. Else *lanes*, whose loop asks the host after each step, or *buckets* where they compute no more.
    Whether *turns* is then also *factored*, :func:`choose_width` says, and whether either is *pooled*,
    :func:`choose_pooled`.

    Args:
      num_slots: S.
      num_parameters: of one model.
      bounds: static sizes of a round.
      everybody: whether all clients take part, so that the longest of a round is the data set's.
    """
    if jax.default_backend() == "cpu":
        return stacked() if bounds.per_client == 1 and num_parameters <= _SMALL_MODEL else turns()
    together, side_by_side = num_slots * bounds.per_client, min(num_slots, MOST_LANES)
    narrower = buckets()
    computed = computed_in(buckets_of(num_slots, bounds, narrower.number))
    if together <= 2 * bounds.per_cohort:
        return narrower if computed <= _PAYS * together else stacked()
    # A lane for each client takes the longest one's steps in each.
    return narrower if everybody and computed <= side_by_side * bounds.per_client else lanes(side_by_side)


_KERNEL = 1 << 12  # entries of a kernel from which on it is worth a thought


def choose_width(inputs: int, outputs: int, passes: float, dataset: FederatedDataset) -> int | None:
    """How large clients may be to train the first kernel in coordinates (:mod:`fedjax_sim.layout.factored`), if at all.

    On a CPU, w examples such that at most an eighth of all clients have more. In P passes over them a client's kernel
    costs about 4 P w d H operations, its coordinates 4 P w w H in the steps and w d (4 H + 2 w) once. So they are taken
    where P (1 - w / d) > 1 + w / 2 H, in several epochs, that is, over fewer examples than inputs.

    Args:
      inputs: d.
      outputs: H.
      passes: P, over the examples of a client, in its local work.
      dataset: whose clients.
    """
    if jax.default_backend() != "cpu" or inputs * outputs < _KERNEL:
        return None
    eighth = max(dataset.num_clients // 8, 1)
    size = next(size for number, _, size in reversed(dataset.largest) if number <= eighth)
    width = min(-(-size // 16) * 16, dataset.max_size)
    pays = width < inputs - 1 and passes * (1 - width / inputs) > 1 + width / (2 * outputs)
    return width if pays else None


# Operations of a gradient for each parameter and example up to which a model's own size is what clients cost: 4 to 6
# where layers are dense, far more where a kernel is used at many places.
_DENSE = 10


def choose_pooled(num_slots: int, num_parameters: int, flops: float = 0.0) -> bool:
    """Whether the work of clients of one step is pooled (:mod:`fedjax_sim.layout.pooled`), if it can be.

    On a CPU, where a model for each client costs more than compiling both programs does, and more than its batch.

    Args:
      num_slots: S.
      num_parameters: of one model.
      flops: of a gradient, for each example.
    """
    large = num_slots > 1 and num_parameters >= _KERNEL
    return jax.default_backend() == "cpu" and large and flops <= _DENSE * num_parameters


_COPIES = 1 << 30  # bytes that the copies of the examples for the other devices of one CPU may take


def choose_sharding(example_bytes: int, devices: int) -> Literal["replicated", "sharded"]:
    """Whether each device has all examples, where nothing is said: of one CPU, every copy takes the same memory."""
    small = jax.default_backend() != "cpu" or example_bytes * (devices - 1) <= _COPIES
    return "replicated" if small else "sharded"


# Operations of a round below which dealing it costs more than a second device saves: about 0.08 ms, and 1 us a client.
_SMALL_ROUND = 1e7


def choose_devices(num_slots: int, operations: Callable[[], float]) -> int:
    """How many devices a cohort is dealt to where nothing is said.

    All of them where there are several processes, which must work on one program. Else on a CPU as many as there are
    clients for, since it has several devices only where somebody asked for them (fedjax_sim.use_cpu_devices), and one
    where a round is small; on GPU and TPU one, because several were never measured.

    Args:
      num_slots: S.
      operations: those of a round's gradients, as far as they can be told; asked for where it matters.
    """
    if jax.process_count() > 1:
        return jax.device_count()
    several = min(jax.device_count(), num_slots) if jax.default_backend() == "cpu" else 1
    return several if several == 1 or operations() >= _SMALL_ROUND else 1
