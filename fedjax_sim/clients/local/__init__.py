"""One client's round: how many steps, on which examples, and the steps themselves."""

from fedjax_sim.clients.local.batches import (
    Batches,
    Positions,
    fraction,
    full_batch,
    in_order,
    shuffled,
    with_replacement,
)
from fedjax_sim.clients.local.work import (
    Turn,
    Work,
    deadline,
    epochs,
    gaussian_steps,
    given_steps,
    random_epochs,
    steps,
    stragglers,
    window,
)

__all__ = [
    "Batches",
    "Positions",
    "Turn",
    "Work",
    "deadline",
    "epochs",
    "fraction",
    "full_batch",
    "gaussian_steps",
    "given_steps",
    "in_order",
    "random_epochs",
    "shuffled",
    "steps",
    "stragglers",
    "window",
    "with_replacement",
]
