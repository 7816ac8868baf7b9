"""Optimisers of clients and servers as pytrees, and the probe that measures a client's."""

from typing import TYPE_CHECKING

from fedjax_sim.core.values import suggest
from fedjax_sim.optim.adaptive import fedadagrad, fedadam, fedams, fedyogi
from fedjax_sim.optim.described import (
    Optimizer,
    adam,
    as_optimizer,
    describe_name,
    from_optax,
    hoist,
    is_linear,
    move,
    sgd,
)
from fedjax_sim.optim.foreign import lenient, third_party

__all__ = [
    "Optimizer",
    "adam",
    "as_optimizer",
    "describe_name",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedyogi",
    "from_optax",
    "hoist",
    "is_linear",
    "lenient",
    "move",
    "sgd",
    "third_party",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name):
        raise AttributeError(f"module 'fedjax_sim.optim' has no attribute {name!r}: {suggest(name, __all__)}")
