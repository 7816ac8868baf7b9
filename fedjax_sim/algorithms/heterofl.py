"""Clients that train a narrower network: the first units of every layer of the shared one."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import flag, real
from fedjax_sim.core.trees import divide, multiply, path_names

_HAIR = 1e-3  # of a unit: a width of 0.6 in single precision times 5 is a little more than 3
_LAYER = re.compile(r"(Conv|Dense)_(\d+)")


class Widths(FedAvg):
    """Base of the methods whose clients have the first ceil(r d) of the d units of a hidden layer, and at least one.

    Which entries of the model those are is read from the shapes of its layers, a chain of flax's ``Conv_0, Conv_1, ...,
    Dense_0, Dense_1, ...`` with kernels and biases: inputs of the first and outputs of the last layer are whole, any
    other layer loses the outputs, and the one after it the inputs. All clients' networks are masks of one shape.
    """

    widths: Any = real(default=1.0, low=0.0, high=1.0, several=True)

    @property
    def requires(self) -> Requires:
        return Requires(
            average="plain", averages=WEIGHTED_MEANS, partwise=True, whole_model=True,
            averages_why="each entry's average is one of the clients that have it, whose weights must sum to one",
        )  # fmt: skip

    def check(self, num_clients: int) -> None:
        if np.shape(self.widths) not in ((), (num_clients,)):
            raise ValueError(
                f"{self.factory_name()}(widths=...) has the shape {np.shape(self.widths)}: give one width, or one for "
                f"each of the data set's {num_clients} clients in the order of their ids"
            )

    def init(self, params: Any, shares: jax.Array) -> Any:
        masks(params, 1.0)  # refuses models whose layers are no chain
        return super().init(params, shares)

    def init_client(self, params: Any) -> Any:
        return jnp.ones((), jnp.result_type(float))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        width = self._width(client).astype(c_i.dtype)
        held = masks(sent.params, width)
        # The server knows who has what.
        return {"delta": Mean(multiply(delta, held)), "held": Mean(held, nbytes=0)}, width

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return self.server_step(server, divide(got["delta"], got["held"]), cohort)

    def personal(self, server: Any, c_i: Any) -> Any:
        return multiply(server.params, masks(server.params, c_i))

    def _width(self, client: Client) -> jax.Array:
        """The client's own."""
        widths = jnp.asarray(self.widths)
        return widths.at[client.index].get(mode="clip") if widths.ndim else widths


class HeteroFl(Widths):
    """HeteroFL: client i trains the first ceil(r_i d) of d hidden units; each entry is averaged over those who have it.

    y_i <- y_i - eta grad F_i(m_i y_i), tau_i times from y_i = x
    x <- x + eta_g sum_S w_i m_i (y_i - x) / sum_S w_i m_i

    entry by entry, with m_i = 1 on the entries that client i has, else 0; what nobody of the cohort has stays (a server
    optimiser sees a change of 0). r = 1 everywhere is FedAvg with the plain mean. With ``scaler`` hidden layers'
    outputs, before the activation, are divided by r_i in training. The model is a chain of Dense and Conv layers
    without normalisation (see :func:`fedjax_sim.algorithms.heterofl.masks`). A client keeps its width, and would use
    its own part of the model itself (before its first visit the whole model). Bytes are counted as those of the whole
    model.

    Args:
      widths: r in [0, 1]: one number, or float[N] by client index.
      scaler: whether the layers' outputs are divided by r_i in training.

    Raises:
      ValueError: (before a run) widths that are not one a client, or a model that is no such chain.

    Reference: Diao, Ding and Tarokh 2021, "HeteroFL: Computation and communication efficient federated learning for
    heterogeneous clients", Algorithm 1; without its static batch normalisation and masked cross-entropy.
    """

    scaler: bool = flag(default=True)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        width = self._width(client)
        part = multiply(y, masks(y, width))
        if not self.scaler:
            return F(part)
        # Outputs of a layer divided by r are those of its parameters divided by r; the penalty is of what they are.
        divided = multiply(y, masks(y, width, 1 / jnp.maximum(width, _HAIR)))
        return F(divided) - F.penalty(divided) + F.penalty(part)


def masks(params: Any, width: Any, hidden: Any = 1.0) -> Any:
    """1 for the entries of ``params`` that a network of this width has, else 0; ``hidden`` for those of hidden layers.

    Raises:
      ValueError: ``params`` are no chain of Dense and Conv layers.
    """
    chain = _chain(params)
    found: dict[Any, dict[str, jax.Array]] = {}
    units = None  # of the layer before: where convolutions are flattened, an input is (place, unit)
    for number, name in enumerate(chain):
        layer, last = chain[name], number == len(chain) - 1
        *_, inputs, outputs = layer["kernel"].shape
        if units is not None and inputs % units:
            raise _unfit(f"{name} has {inputs} inputs after a layer of {units} outputs")
        has_input = jnp.ones((inputs,), bool) if units is None else _first(inputs, units, width)
        has_output = jnp.ones((outputs,), bool) if last else _first(outputs, outputs, width)
        whole = {"kernel": has_input[:, None] & has_output[None], "bias": has_output}
        scale = 1.0 if last else hidden
        found[name] = {kind: jnp.where(has, scale, 0.0) for kind, has in whole.items()}
        units = outputs

    def of(path: Any, leaf: jax.Array) -> jax.Array:
        *_, name, kind = path_names(path)
        mask = found[name][kind].astype(leaf.dtype)
        return jnp.broadcast_to(mask.reshape((1,) * (leaf.ndim - mask.ndim) + mask.shape), leaf.shape)

    return jax.tree_util.tree_map_with_path(of, params)


def _first(entries: int, units: int, width: Any) -> jax.Array:
    """Which entries belong to the first ceil(width * units) units, and at least to one, bool[entries]."""
    kept = jnp.maximum(jnp.ceil(jnp.asarray(width) * units - _HAIR), 1).astype(jnp.int32)
    return jnp.arange(entries, dtype=jnp.int32) % units < kept


def _chain(params: Any) -> dict[str, dict[str, jax.Array]]:
    """The layers by name in the order in which the model calls them."""
    layers: dict[str, dict[str, jax.Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = path_names(path)
        if len(names) < 2 or not _LAYER.fullmatch(names[-2]) or names[-1] not in ("kernel", "bias"):
            raise _unfit(f"it has a parameter {'/'.join(names) or 'without a name'}")
        if names[-1] in layers.setdefault(names[-2], {}):
            raise _unfit(f"it has several layers {names[-2]}")
        layers[names[-2]][names[-1]] = leaf

    def place(name: str) -> tuple[str, int]:
        kind, number = name.split("_")
        return kind, int(number)

    return {name: layers[name] for name in sorted(layers, key=place)}


def _unfit(why: str) -> ValueError:
    return ValueError(
        f"the model is no chain of flax's Conv_0, Conv_1, ..., Dense_0, Dense_1, ...: {why}. What a narrower network "
        "of the same kind is, is known of such chains alone: use for instance fedjax_sim.models.MLP(10, (200, 200))"
    )


heterofl = recorded(
    "algorithm.heterofl",
    HeteroFl,
    step="client i trains the first r_i of every hidden layer's units; each entry is averaged over those who have it",
    cite="""@inproceedings{diao2021heterofl,
  title = {{HeteroFL}: Computation and Communication Efficient Federated Learning for Heterogeneous Clients},
  author = {Diao, Enmao and Ding, Jie and Tarokh, Vahid},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021},
  eprint = {2010.01264},
  archiveprefix = {arXiv},
}""",
    kept="none + a number",
    case=None,
)
