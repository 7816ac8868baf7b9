"""What a study varies: an algorithm and the arguments of its run, with their hyper-parameters by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core import paths
from fedjax_sim.core.descriptions import Described, describe
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.studies.hyper.transforms import Transform, identity, positive, unit_interval

_ALGORITHM = ""  # whose hyper-parameters need no prefix


class Subject(NamedTuple):
    """An algorithm and its run.

    A path is the algorithm's own, ``"client_optimizer.learning_rate"``, or begins with the name of an argument of the
    run: ``"task.weight_decay"``.

    Attributes:
      algorithm: the method.
      run: keyword arguments of ``make_train``.
    """

    algorithm: Method
    run: dict[str, Any]

    def get(self, path: str) -> jax.Array:
        """The value at ``path`` as an array: of its own dtype where it is an array, else of the default float."""
        part, rest = self._split(path)
        leaf = paths.get(self._part(part), rest)
        return jnp.asarray(leaf) if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(float))

    def replace(self, values: Mapping[str, Any]) -> Subject:
        """With other values at the paths given; concrete ones are checked."""
        by_part: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            part, rest = self._split(path)
            by_part.setdefault(part, {})[rest] = value
        new = {part: paths.replace(self._part(part), changes) for part, changes in by_part.items()}
        algorithm = new.pop(_ALGORITHM, self.algorithm)
        return Subject(algorithm, {**self.run, **new})

    def natural(self, path: str) -> Transform:
        """The transform that keeps the value at ``path`` inside what its owner accepts.

        The owner is asked: where it takes -1 there are no bounds, where it takes 2 the value must be positive, and
        where it takes neither it lies between 0 and 1.
        """
        shape = jnp.shape(self.get(path))

        def accepts(value: float) -> bool:
            try:
                self.replace({path: np.full(shape, value)})
            except ValueError:
                return False
            return True

        if accepts(-1.0):
            return identity()
        return positive() if accepts(2.0) else unit_interval()

    def description(self) -> dict[str, Any]:
        """The algorithm and the run as JSON."""
        return {
            "algorithm": describe(self.algorithm),
            "run": {name: _plain(value) for name, value in self.run.items()},
        }

    def _split(self, path: str) -> tuple[str, str]:
        if isinstance(path, str):
            part, _, rest = path.partition(".")
            if rest and isinstance(self.run.get(part), Described):
                return part, rest
        return _ALGORITHM, path

    def _part(self, part: str) -> Any:
        return self.algorithm if part == _ALGORITHM else self.run[part]


def check_inputs(who: str, algorithm: Any, dataset: Any) -> None:
    """Checks what a study is of, before its program is traced.

    Raises:
      TypeError: no method, no data set on the device, or traced values.
    """
    if not isinstance(algorithm, Method):
        raise TypeError(f"{who}(algorithm) is {shown(algorithm)}: give a method, for instance fedjax_sim.fedavg(...)")
    if not isinstance(dataset, FederatedDataset):
        raise TypeError(
            f"{who}(dataset) is {shown(dataset)}: it must be a FederatedDataset; data that stay on the host have no "
            "derivative, use dataset.on_device() if the device has room for them"
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((algorithm, dataset))):
        raise TypeError(f"{who} was given traced values: it is a driver, call it outside jit, grad and vmap")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return describe(value)
