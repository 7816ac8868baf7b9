"""Optimisers of clients and servers as pytrees, and the probe that measures a client's."""

from fedjax_sim.optim.adaptive import fedadagrad, fedadam, fedams, fedyogi
from fedjax_sim.optim.described import (
    Optimizer,
    adam,
    as_optimizer,
    describe_name,
    from_optax,
    hoist,
    is_linear,
    lenient,
    move,
    sgd,
    third_party,
)
from fedjax_sim.optim.learned import Learned, learned

__all__ = [
    "Learned", "Optimizer", "adam", "as_optimizer", "describe_name", "fedadagrad", "fedadam", "fedams", "fedyogi",
    "from_optax", "hoist", "is_linear", "learned", "lenient", "move", "sgd", "third_party",
]  # fmt: skip
