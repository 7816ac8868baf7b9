"""Methods around methods that see a part of the model: the rest stays with the clients, or is never trained.

The base method runs on the part that is left as if that were all: the other parameters are holes (None) in the trees
that it gets, and F asks the whole model. So whatever it does (proximal terms, control variates, momentum, clipping,
compression) it does to that part alone, and what it keeps and sends has no byte of the others.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections import namedtuple
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Message, Requires
from fedjax_sim.algorithms.wrapper import Remembering, Wrapped, Wrapper, innermost
from fedjax_sim.core import trees
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import close, shown, suggest
from fedjax_sim.models.contract import Mixture
from fedjax_sim.optim import parts, rates
from fedjax_sim.optim.parts import Parts

BASE, OWN = "shared", "own"  # names of the Parts that a client trains


PartSent = namedtuple("PartSent", ["base", "frozen"])  # the base's broadcast, and parameters that clients have already


def as_patterns(what: str, given: Any) -> tuple[str, ...]:
    """One pattern or several as a tuple; raises, with ``what`` in the message, where they are none."""
    patterns = (given,) if isinstance(given, str) else given
    listed = isinstance(patterns, (tuple, list)) and all(isinstance(one, str) and one for one in patterns)
    if not listed or not patterns:
        raise (ValueError if listed else TypeError)(
            f"{what} is {shown(given)}: give parts of the paths of parameters, 'Dense_1' or "
            "('Dense_1', 'params/Dense_0/bias')"
        )
    return tuple(patterns)


def split(params: Any, patterns: tuple[str, ...], who: str) -> tuple[Any, Any]:
    """``(the others, those whose path matches a pattern)``, each with None in the place of the other's arrays.

    A pattern is one or more whole parts of a path in a row; a ValueError ``who`` raises if it matches none.
    """
    paths = [trees.path_names(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in paths):
            raise ValueError(f"{who}: no parameter has {pattern!r} in its path: {_nearest(pattern, paths)}")

    def owned(path: Any) -> bool:
        return any(_matches(trees.path_names(path), pattern) for pattern in patterns)

    others = jax.tree_util.tree_map_with_path(lambda path, leaf: None if owned(path) else leaf, params)
    return others, jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if owned(path) else None, params)


def merged(one: Any, other: Any) -> Any:
    """The whole of two parts that :func:`split` made."""
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda node: node is None)


def _matches(path: list[str], pattern: str) -> bool:
    wanted = pattern.split("/")
    starts = range(len(path) - len(wanted) + 1)
    return any(all(map(fnmatch.fnmatchcase, path[start:], wanted)) for start in starts)


def _nearest(pattern: str, paths: list[list[str]]) -> str:
    if not any(paths):
        return "the parameters are a single array, which has no name"
    places = [(path, ends) for path in paths for ends in itertools.combinations(range(len(path) + 1), 2)]
    near = close(pattern, ["/".join(path[start:end]) for path, (start, end) in places])
    return "".join(f"did you mean {one!r}? " for one in near) + suggest("", ["/".join(path) for path in paths])


_OF_MODELS = ("losses", "outputs", "features", "penalty")


class _Whole:
    """F as the base method sees it: a function of its part."""

    def __init__(self, F: Any, whole: Callable[[Any], Any]) -> None:
        self._F, self._whole = F, whole

    def __call__(self, part: Any) -> jax.Array:
        return self._F(self._whole(part))

    def __getattr__(self, name: str) -> Any:
        of_F = getattr(self._F, name)
        if name == "other":
            return None if of_F is None else _Whole(of_F, self._whole)
        return (lambda part: of_F(self._whole(part))) if name in _OF_MODELS else of_F


class Partial(Wrapper):
    """Base of the methods whose base sees a part of the model; the server keeps the rest as it was at the start."""

    patterns: tuple[str, ...] = static()

    in_every_phase: ClassVar[bool] = True

    def checked(self) -> Self:
        checked = super().checked()
        name = self.factory_name()
        patterns = as_patterns(f"{name}(patterns=...)", self.patterns)
        for what in ("client_learning_rate", "server_learning_rate"):
            if not rates.of_all_parameters(getattr(self.base, what)):
                raise ValueError(
                    f"{name}(base): the base's {what} has a value for each array, and the base sees some of them "
                    "alone: give one number or a rate of fedjax_sim.rates"
                )
        if self.base.requires.whole_model:
            raise ValueError(
                f"{name}(base): {type(innermost(self.base)).__name__} needs the whole model, and would see a part of "
                f"it: use it without {name}"
            )
        if not self.base.requires.steps:
            raise ValueError(
                f"{name}(base): {type(self.base).__name__} takes no local steps, so that no client trains a model: "
                "use fedjax_sim.fedavg(...) for one"
            )
        return checked.replace(patterns=patterns)

    def shared(self, params: Any) -> Any:
        rest = self._split(params)[0]
        return self.base.shared(rest) if isinstance(self.base, Wrapper) else rest

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        rest, own = self._split(params)
        return Wrapped(self.base.init(rest, shares), own)

    def model(self, server: Wrapped) -> Any:
        return merged(self.base.model(server.base), server.extra)

    def with_model(self, server: Wrapped, params: Any) -> Any:
        rest, own = self._split(params)
        return Wrapped(self.base.with_model(server.base, rest), own)

    def evaluated(self, server: Wrapped) -> Any:
        return merged(self.base.evaluated(server.base), server.extra)

    def _split(self, params: Any) -> tuple[Any, Any]:
        return split(params, self.patterns, f"{self.factory_name()}(patterns=...)")


class Keep(Partial):
    """Any method of which clients keep a part of the model for themselves: it is neither averaged nor sent.

    y_i = (u_i, v_i): the base's steps from the server's u, the client's own v_i from where its last visit left it;
    u <- the base's, of the clients' changes of u alone

    With the head kept this is FedPer, with the body LG-FedAvg, with the layers of normalisation FedBN. Both parts are
    trained together, on what the base minimises. Its own terms are of u alone: a proximal term does not hold v_i, no
    control variate corrects it; clipping, compression and noise are of what is sent. v_i steps as the local optimiser
    says, by itself (as in :class:`fedjax_sim.algorithms.Parts`). A penalty of the task counts in both. Models that the
    base asks as they were sent or kept (FedNTD: x; MOON: the client's last u too) are constants, with the v_i that the
    client came with; those that it computes have the v_i that moves.

    The model that is evaluated has v as it was at the start: look at ``personal``, the shared model with a client's own
    part. Parameters are named by whole parts of their paths (``params/Dense_1/kernel``), in which ``*`` stands for
    anything: ``"Dense_1"``, ``"BatchNorm_*"``, ``"*/bias"``.

    Args:
      patterns: what is kept: one, or a tuple of them; structure.

    Raises:
      ValueError: a method without local steps, one that needs the whole model (FedDF, FedProto, HeteroFL) or keeps
        several (IFCA), one that asks the model elsewhere than where it trains (Mime, FedSAM, Per-FedAvg but for
        its exact form) or for the objective of the shared model (FedProx's adaptive mu), a rate for each array or,
        before a run, a scheme with replacement or a pattern that matches nothing.

    Reference: Arivazhagan et al. 2019, "Federated learning with personalization layers", Algorithms 1 and 2; Liang et
    al. 2020, "Think locally, act globally: Federated learning with local and global representations", Algorithm 1;
    Li et al. 2021, "FedBN: Federated learning on non-IID features via local batch normalization", Algorithm 1.
    """

    def checked(self) -> Self:
        checked, base, unfit = super().checked(), self.base.requires, ""
        if base.elsewhere:
            unfit = "asks for gradients elsewhere than where it trains, and the part that is kept would change them"
        elif base.objective:
            unfit = "follows the objective at the shared model, which no client has: each has a part of its own"
        if unfit:
            name, inside = self.factory_name(), type(innermost(self.base)).__name__
            raise ValueError(f"{name}(base): {inside} {unfit}: use fedjax_sim.fedavg(...) or fedprox(...) for one")
        return checked

    @property
    def requires(self) -> Requires:
        return self.base.requires.but(duplicates=False)

    @property
    def remembers(self) -> bool:
        return True

    def init_memory(self, params: Any) -> Any:
        return self._split(params)[1]

    def init_client(self, params: Any) -> Any:
        rest, own = self._split(params)
        return Remembering(self.base.init_client(rest), own)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return self.base.survey(_Whole(F, lambda u: merged(u, c_i.memory)), sent, c_i.base, _inside(client))

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts({BASE: self.base.begin(sent, c_i.base, _inside(client)), OWN: c_i.memory})

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        # What the base trains may be the very arrays that the client was sent where nothing is compiled.
        trained = jax.tree.leaves(y[BASE])
        given = {id(leaf) for leaf in jax.tree.leaves((sent, c_i.base))} - set(map(id, trained))

        def whole(u: Any) -> Any:
            # x and what the client has kept of u, as MOON asks of them, are constants with the part they came with.
            # Where the base trains nothing (freeze of all the rest) it is asked for y alone, of what it was sent.
            leaves = jax.tree.leaves(u)
            constant = bool(leaves and trained) and all(id(leaf) in given for leaf in leaves)
            return merged(u, c_i.memory if constant else y[OWN])

        return self.base.objective(_Whole(F, whole), y[BASE], k, sent, c_i.base, _inside(client))

    def turn(self, k: jax.Array, client: Client) -> dict[str, jax.Array] | None:
        return None  # the kept part is in every step, whatever parts the base has

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        u, of_u = self.base.step(g[BASE], y[BASE], state[BASE], k, sent, c_i.base, _inside(client))
        v, of_v = parts.descend(self.client_optimizer, g[OWN], y[OWN], state[OWN], client.learning_rate)
        return Parts({BASE: u, OWN: v}), Parts({BASE: of_u, OWN: of_v})

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return self.base.change(y[BASE], sent, c_i.base, _inside(client))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, kept = self.base.finish(delta, y[BASE], sent, c_i.base, _inside(client))
        return messages, Remembering(kept, y[OWN])

    def settle(self, server: Wrapped, c_i: Any, client: Client) -> Any:
        return c_i._replace(base=self.base.settle(server.base, c_i.base, _inside(client)))

    def personal(self, server: Wrapped, c_i: Any) -> Any:
        return merged(self.base.personal(server.base, c_i.base), c_i.memory)


class Freeze(Partial):
    """Any method that trains a part of the model: the other parameters stay what they were at the start, everywhere.

    F_i(u, v) is minimised in u by the base; v is a constant

    With the head frozen this is the training of FedBABU, with all but some small arrays that of adapters. Parameters
    are named as for :class:`Keep`. A penalty of the task counts v, which changes no gradient.
    Clients have v before the first round: it counts for no bytes.

    Args:
      patterns: what is frozen: one, or a tuple of them; structure.

    Raises:
      ValueError: a method without local steps or one that needs the whole model, a rate for each array or, before a
        run, a pattern that matches nothing.

    Reference: Oh, Kim and Yun 2022, "FedBABU: Toward enhanced representation for federated image classification",
    Algorithm 1.
    """

    hands_on: ClassVar[bool] = True

    def send(self, server: Wrapped) -> PartSent:
        return PartSent(self.base.send(server.base), server.extra)

    def received(self, sent: PartSent) -> Any:
        return sent.base

    def downloaded(self, nbytes: int, sent: PartSent) -> int:
        return nbytes - trees.size_in_bytes(sent.frozen)

    def init_client(self, params: Any) -> Any:
        return self.base.init_client(self._split(params)[0])

    def survey(self, F: Any, sent: PartSent, c_i: Any, client: Client) -> Any:
        return self.base.survey(_Whole(F, lambda u: merged(u, sent.frozen)), sent.base, c_i, client)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: PartSent, c_i: Any, client: Client) -> jax.Array:
        return self.base.objective(_Whole(F, lambda u: merged(u, sent.frozen)), y, k, sent.base, c_i, client)

    def personal(self, server: Wrapped, c_i: Any) -> Any:
        own, frozen = self.base.personal(server.base, c_i), server.extra
        if not isinstance(own, Mixture):
            return merged(own, frozen)
        number = len(own.weights)
        several = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (number, *leaf.shape)), frozen)
        return own._replace(models=merged(own.models, several))


def _inside(client: Client) -> Client:
    """The client as the base method sees it: what is like y is like its part of y."""

    def part(tree: Any) -> Any:
        return tree[BASE] if isinstance(tree, Parts) else tree

    return client._replace(slope=part(client.slope), step_size=part(client.step_size), held=part(client.held))


keep = recorded(
    "algorithm.keep",
    Keep,
    step="around a method: some parameters stay with each client (FedPer, LG-FedAvg, FedBN), the base trains the rest",
    cite=("arivazhagan2019federated", "liang2020think", "li2021fedbn"),
    paper="Arivazhagan et al. 2019, Liang et al. 2020, Li et al. 2021 (FedBN)",
    kept="the base's + what is kept",
    sent="the base's, of the others",
    case=None,
)
freeze = recorded(
    "algorithm.freeze",
    Freeze,
    step="around a method: some parameters are never trained (FedBABU)",
    cite="oh2022fedbabu",
    kept="the base's",
    sent="the base's, of the others",
    case=None,
)
