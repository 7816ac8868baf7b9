"""Networks of random width in every step: ordered dropout."""

from __future__ import annotations

import itertools
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client
from fedjax_sim.algorithms.heterofl import Widths, masks
from fedjax_sim.core.fields import static
from fedjax_sim.core.trees import multiply
from fedjax_sim.core.values import check_real, shown

_STEP = 0x464A  # branch of a client's key


class Fjord(Widths):
    """FjORD: every step trains the first ceil(p d) units of each hidden layer of d units, p drawn anew each time.

    p ~ uniform on the levels up to r_i;   y_i <- y_i - eta grad F_i(m_p y_i);   averages as :class:`HeteroFl`

    with m_p = 1 on the entries that a network of width p has. A client takes part with the entries of its widest level,
    the largest one up to r_i (the lowest level where none is). The model is a chain of Dense and Conv layers
    without normalisation, as in HeteroFL; what clients keep and would use themselves is as there. The distillation from
    the widest level to the others, which the paper adds as an option, is left out.

    Args:
      widths: r in [0, 1]: one number, or float[N] by client index.
      levels: the widths that are drawn, increasing, in (0, 1]; structure.

    Raises:
      ValueError: levels that do not increase or leave (0, 1]; before a run as :class:`HeteroFl`.

    Reference: Horvath, Laskaridis, Almeida, Leontiadis, Venieris and Lane 2021, "FjORD: Fair and accurate federated
    learning under heterogeneous targets with ordered dropout", Algorithm 1.
    """

    levels: tuple[float, ...] = static(default=(0.2, 0.4, 0.6, 0.8, 1.0))

    def checked(self) -> Self:
        checked = super().checked()
        levels = tuple(self.levels) if isinstance(self.levels, (tuple, list)) else ()
        if not levels:
            raise TypeError(f"fjord(levels={shown(self.levels)}): give widths, for instance (0.25, 0.5, 1.0)")
        for level in levels:
            check_real("fjord(levels=...)", level, low=0.0, high=1.0, host=True)
        if levels[0] <= 0 or any(one >= other for one, other in itertools.pairwise(levels)):
            raise ValueError(f"fjord(levels={shown(self.levels)}): they must increase, from above 0")
        return checked.replace(levels=tuple(map(float, levels)))

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        return F(multiply(y, masks(y, self._drawn(k, client))))

    def _drawn(self, k: jax.Array, client: Client) -> jax.Array:
        """p of the client's step k."""
        key = jax.random.fold_in(jax.random.fold_in(client.key, _STEP), k)
        return self._levels()[jax.random.randint(key, (), 0, self._most(client))]

    def _width(self, client: Client) -> jax.Array:
        return self._levels()[self._most(client) - 1]

    def _most(self, client: Client) -> jax.Array:
        """How many levels the client may draw."""
        # Single precision may have rounded either.
        up_to = self._levels() <= super()._width(client).astype(jnp.result_type(float)) + 1e-6
        return jnp.maximum(jnp.sum(up_to, dtype=jnp.int32), 1)

    def _levels(self) -> jax.Array:
        return jnp.asarray(self.levels, jnp.result_type(float))


fjord = recorded(
    "algorithm.fjord",
    Fjord,
    step="HeteroFL, of random width p ≤ r_i in every step",
    cite="""@inproceedings{horvath2021fjord,
  title = {{FjORD}: Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered Dropout},
  author = {Horv{\\'a}th, Samuel and Laskaridis, Stefanos and Almeida, Mario and others},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2021},
  eprint = {2102.13451},
  archiveprefix = {arXiv},
}""",
    kept="none + a number",
    case=None,
)
