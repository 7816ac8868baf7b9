"""What clients keep from round to round: where it is kept, in which type, and how a cohort's rows get to a round.

``simulate(..., client_states=...)`` takes :func:`on_device` (the default), :func:`on_host` or :func:`on_disk`.
"""

from fedjax_sim.engine.client_states.kinds import ClientStates, OnDevice, on_device, on_disk, on_host
from fedjax_sim.engine.client_states.rows import Rows, as_arrays, put, take

__all__ = ["ClientStates", "OnDevice", "Rows", "as_arrays", "on_device", "on_disk", "on_host", "put", "take"]
