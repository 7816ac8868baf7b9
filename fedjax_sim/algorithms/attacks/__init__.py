"""What clients that do not keep to the rules send: what :func:`fedjax_sim.attacked` puts in the place of messages."""

from fedjax_sim.algorithms.attacks.base import Attack, Collusion, draw_attackers
from fedjax_sim.algorithms.attacks.collusions import InnerProduct, LittleIsEnough, inner_product, little_is_enough
from fedjax_sim.algorithms.attacks.single import Gaussian, Scaling, SignFlip, gaussian, scaling, sign_flip

__all__ = [
    "Attack",
    "Collusion",
    "Gaussian",
    "InnerProduct",
    "LittleIsEnough",
    "Scaling",
    "SignFlip",
    "draw_attackers",
    "gaussian",
    "inner_product",
    "little_is_enough",
    "scaling",
    "sign_flip",
]
