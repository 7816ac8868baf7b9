"""Runs on disk: checkpoint files, the directory that holds them, signals, and what differs between two runs."""

from fedjax_sim.run.checkpoints.differences import differences, environment_changes
from fedjax_sim.run.checkpoints.files import Checkpoint, Damaged, read
from fedjax_sim.run.checkpoints.store import Caught, Interrupted, Store, interruptions

__all__ = [
    "Caught",
    "Checkpoint",
    "Damaged",
    "Interrupted",
    "Store",
    "differences",
    "environment_changes",
    "interruptions",
    "read",
]
