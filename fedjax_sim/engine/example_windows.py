"""Examples off the device: a round has its cohort's, gathered and sent while the round before computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset


class Window(NamedTuple):
    """The examples of one round's cohort on the device.

    Attributes:
      examples: leaves [W, ...].
      weights: [W] example weights, or None.
      positions: int32[S], storage positions of the clients; N in void slots.
      starts: int32[S], where each begins in the window.
    """

    examples: Any
    weights: Any
    positions: Any
    starts: Any

    def on(self, frame: FederatedDataset) -> FederatedDataset:
        """The data set of the round: the frame, with the window as its examples."""
        return frame.replace(
            examples=self.examples,
            offsets=frame.offsets.at[self.positions].set(self.starts, mode="drop"),
            example_weights=self.weights,
        )


class ExampleWindows:
    """Makes the windows of a run.

    The largest cohort decides the window's length, which is part of the compiled program: rounded up to an eighth of a
    power of two, so that other seeds and rounds seldom compile it again.

    Args:
      dataset: the data.
      planned: int[..., S], distinct storage positions of each round's clients, in front; N elsewhere.
    """

    def __init__(self, dataset: HostDataset, planned: np.ndarray) -> None:
        self._dataset = dataset
        sizes = np.append(np.asarray(dataset.sizes), 0)
        most = int(sizes[planned].sum(axis=-1).max(initial=0))
        # A batch or a piece of a pass is read as a slice, never longer than the largest client.
        self._rows = rounded_up(max(most, dataset.max_size))

    def window(self, planned: np.ndarray) -> Window:
        """The window of one round's clients."""
        positions = planned[planned < self._dataset.num_clients]
        examples, weights, starts = self._dataset.window(positions, self._rows)
        places = np.full(planned.size, self._dataset.num_clients, np.int32)
        begins = np.zeros(planned.size, np.int32)
        places[: positions.size], begins[: positions.size] = positions, starts
        return jax.device_put(Window(examples, weights, places, begins))  # type: ignore[no-any-return]


def rounded_up(rows: int) -> int:
    """The next number with at most four significant bits."""
    unit = 1 << max(rows.bit_length() - 4, 0)
    return -(-rows // unit) * unit
