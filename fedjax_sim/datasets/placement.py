"""Where a run's arrays lie on several devices: a mesh, what is sharded over it, what every device has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.datasets.flat import aligned_zeros

CLIENTS = "clients"  # axis over which a cohort, client states and rows of examples are dealt
MODEL = "model"  # axis over which a model may be sharded within each group of clients
EVERYWHERE = PartitionSpec()
SHARED_OUT = PartitionSpec(CLIENTS)


class Placement(NamedTuple):
    """How a data set lies on a mesh; static and hashable.

    Attributes:
      mesh: its first axis is ``CLIENTS``.
      sharded: whether each device along that axis has its share of the examples' rows; else each has all of them.
    """

    mesh: Mesh
    sharded: bool

    @property
    def parts(self) -> int:
        """D, the number of groups that clients are dealt to."""
        return int(self.mesh.shape[CLIENTS])

    def map(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """``shard_map`` over the clients' axis; the model's axis, if any, is left to the compiler."""
        # Loops whose carry starts alike on all devices and then differs fail JAX's check of what varies.
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names={CLIENTS}, check_vma=False
        )


def device_mesh(devices: int | None = None, model: int = 1) -> Mesh:
    """A mesh of the first ``devices`` devices (None for all, of all processes), in groups of ``model``."""
    present = jax.devices()
    count = len(present) if devices is None else devices
    if count > len(present):
        hint = "; fedjax_sim.use_cpu_devices(n), before anything else, makes several of a CPU"
        raise ValueError(
            f"a mesh of {count} devices: there are {len(present)}{hint if jax.default_backend() == 'cpu' else ''}"
        )
    if count % model:
        raise ValueError(f"a mesh of {count} devices, {model} for each model: they do not make whole groups")
    without = sorted({device.process_index for device in present} - {one.process_index for one in present[:count]})
    if without:
        raise ValueError(
            f"a mesh of {count} devices: process {without[0]} has none of them, and would have nothing to compute; "
            f"take all {len(present)}, or start fewer processes"
        )
    grid = np.asarray(present[:count])
    return Mesh(grid, (CLIENTS,)) if model == 1 else Mesh(grid.reshape(-1, model), (CLIENTS, MODEL))


def padded(count: int, parts: int) -> int:
    """The least multiple of ``parts`` that is not below ``count``."""
    return -(-count // parts) * parts


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The same arrays on every device of the mesh, or, if they are, sharded within each group by the model's axis."""
    whole = NamedSharding(mesh, EVERYWHERE)

    return jax.tree.map(lambda leaf: leaf if _is_of_model(leaf, mesh) else _put(leaf, whole), tree)


def _is_of_model(leaf: Any, mesh: Mesh) -> bool:
    """Whether a concrete array is sharded over the mesh's ``MODEL`` and nothing else."""
    if MODEL not in mesh.axis_names or isinstance(leaf, jax.core.Tracer):
        return False
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh or sharding.is_fully_replicated:
        return False
    return all(axes in (None, MODEL, (MODEL,)) for axes in sharding.spec)


def shared_out(tree: Any, mesh: Mesh, axis: int = 0) -> Any:
    """The same arrays with an axis sharded over the clients' axis; its length must be a multiple of the groups."""
    return _put(tree, NamedSharding(mesh, PartitionSpec(*[None] * axis, CLIENTS)))


def as_here(tree: Any) -> Any:
    """Arrays that are everywhere, as the first device of this process has them.

    On the devices of a CPU it waits until all of them are done. Their work shares one pool of threads, and XLA admits
    32 computations a device: those that nobody waits for pile up until a launch blocks the thread that would run
    them, and the others wait in an all-reduce for ever (jax 0.10.2). Hence nothing is computed from others' copies.
    """

    def here(leaf: jax.Array) -> jax.Array:
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        return leaf if leaf.is_fully_addressable else jnp.asarray(on_host(leaf))

    if all(len(leaf.sharding.device_set) == 1 and leaf.is_fully_addressable for leaf in jax.tree.leaves(tree)):
        return tree
    if jax.default_backend() == "cpu":
        jax.block_until_ready(tree)
    return jax.tree.map(here, tree)


def on_host(tree: Any) -> Any:
    """The arrays as numpy's, with the parts that other processes hold."""

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return np.asarray(leaf)
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0))
        everywhere_ = NamedSharding(leaf.sharding.mesh, EVERYWHERE)  # type: ignore[attr-defined]
        return np.asarray(jax.jit(lambda array: array, out_shardings=everywhere_)(leaf))

    return jax.tree.map(gathered, tree)


def lengthened_rows(tree: Any, extra: int) -> Any:
    """Arrays of rows, with ``extra`` zero rows behind."""

    def lengthened(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer):
            return jnp.concatenate([leaf, jnp.zeros((extra, *leaf.shape[1:]), leaf.dtype)])
        longer = aligned_zeros((len(leaf) + extra, *leaf.shape[1:]), leaf.dtype)
        longer[: len(leaf)] = leaf
        return longer

    return jax.tree.map(lengthened, tree) if extra else tree


def _put(tree: Any, sharding: NamedSharding) -> Any:
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda leaf: _of_own_parts(leaf, sharding), tree)
    return jax.lax.with_sharding_constraint(tree, sharding)


def _of_own_parts(leaf: Any, sharding: NamedSharding) -> Any:
    """A global array, of which every process sends the parts of its own devices."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf
    if getattr(leaf, "weak_type", not hasattr(leaf, "dtype")):
        return np.asarray(leaf).item() if np.ndim(leaf) == 0 else leaf  # a Python number is everywhere, and stays weak
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _of_own_parts(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])
