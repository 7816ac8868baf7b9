"""The rule behind ``layout=None``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout
from fedjax_sim.engine.layout.queue import lanes
from fedjax_sim.engine.layout.stacked import buckets, stacked
from fedjax_sim.engine.layout.turns import turns

_SMALL_MODEL = 100_000  # parameters
MOST_LANES = 32  # clients side by side that an accelerator has room for, whatever the model
_SIDE_BY_SIDE = 1 << 28  # numbers of the models that it has room for: a gigabyte in single precision
_ALIKE = 7 / 8  # of the longest client's steps that the mean client takes: no more than that is to be saved


def choose_layout(num_slots: int, num_parameters: int, bounds: Bounds, mean_steps: float | None = None) -> Layout:
    """The layout that is expected to be fastest; what it chose is in the run's record and can be overridden.

    On a CPU: *stacked* for one step of a small model (nothing to wait for, larger products), else *turns* (measured
    5 to 40 times faster than stacked for unequal steps). On GPU and TPU: *stacked* where the clients' steps are alike,
    else *buckets* (docs/devices.md has what was measured on a GPU); *lanes* where there is no room for all models side
    by side. Whether *turns* is then also *factored*, :func:`choose_width` says, and whether either is *pooled*,
    :func:`choose_pooled`.

    Args:
      num_slots: S.
      num_parameters: of one model.
      bounds: static sizes of a round.
      mean_steps: of all clients of the data set; None for what the bounds say.
    """
    if jax.default_backend() == "cpu":
        return stacked() if bounds.per_client == 1 and num_parameters <= _SMALL_MODEL else turns()
    room = max(MOST_LANES, _SIDE_BY_SIDE // max(num_parameters, 1))
    if num_slots > room:
        return lanes(room)
    mean = bounds.per_cohort / num_slots if mean_steps is None else mean_steps
    alike = mean >= _ALIKE * bounds.per_client and not bounds.varies
    return stacked() if alike else buckets()


_KERNEL = 1 << 12  # entries of a kernel from which on it is worth a thought


def choose_width(inputs: int, outputs: int, passes: float, dataset: FederatedDataset) -> int | None:
    """How large clients may be to train the first kernel in coordinates (:mod:`fedjax_sim.layout.factored`), if at all.

    On a CPU, w examples such that at most an eighth of all clients have more. In P passes over them a client's kernel
    costs about 4 P w d H operations, its coordinates 4 P w w H in the steps and w d (4 H + 2 w) once. So they are taken
    where P (1 - w / d) > 1 + w / 2 H, in several epochs, that is, over fewer examples than inputs. d are the
    ``inputs``, H the ``outputs``, and P the ``passes`` over the examples of a client in its local work.
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

    On a CPU, where a model for each client costs more than compiling both programs does, and more than its batch:
    ``flops`` are those of a gradient, for each example.
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
    where a round is small; on GPU and TPU one, because several were never measured. ``operations``, asked for where it
    matters, says those of a round's gradients, as far as they can be told.
    """
    if jax.process_count() > 1:
        return jax.device_count()
    several = min(jax.device_count(), num_slots) if jax.default_backend() == "cpu" else 1
    return several if several == 1 or operations() >= _SMALL_ROUND else 1
