"""Methods around methods: a wrapper runs its base as it is, and sees what clients report and what the server gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import jax

from fedjax_sim.algorithms.contract import Client, Cohort, Message, Method, Requires
from fedjax_sim.core import trees
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import shown


class Wrapped(NamedTuple):
    """The base method's server state, and what the wrapper adds."""

    base: Any
    extra: Any = ()


class Remembering(NamedTuple):
    """What the base method keeps for a client, and what the wrapper does."""

    base: Any
    memory: Any


class Wrapper(Method, kw_only=False):
    """Runs ``base`` as it is; subclasses override what they add.

    A wrapper changes what a client reports in :meth:`encode`, between :meth:`Method.change` and
    :meth:`Method.finish`, the innermost wrapper first, while the model y stays what it is. One that keeps something for
    each client says so in :meth:`init_memory`; one that sends something more packs the base's broadcast in its own and
    unpacks it in :meth:`received`.

    Args:
      base: any method.
    """

    base: Method

    in_every_phase: ClassVar[bool] = False  # or in the last one alone
    of_one_model: ClassVar[bool] = False  # whether it reads the server's model, of which there must be one
    of_averages: ClassVar[bool] = False  # whether it puts something in the place of the cohort's average
    hands_on: ClassVar[bool] = True  # whether the ``personal`` of this class itself hands on the base's models
    only_once: ClassVar[str] = ""  # what it makes of a method, in a word: a second one around it would hide the first

    client_learning_rate = property(lambda self: self.base.client_learning_rate)
    client_optimizer = property(lambda self: self.base.client_optimizer)
    server_learning_rate = property(lambda self: self.base.server_learning_rate)
    server_optimizer = property(lambda self: self.base.server_optimizer)
    keep_optimizer = property(lambda self: self.base.keep_optimizer)

    def checked(self) -> Self:
        if not isinstance(self.base, Method):
            raise TypeError(
                f"{self.factory_name()}(base) is {shown(self.base)}: give a method, for instance fedjax_sim.fedavg(...)"
            )
        base, unfit = self.base.requires, ""
        if base.several and (self.of_one_model or self.remembers):
            unfit = "keeps several models on the server"
        elif base.partwise and self.of_averages:
            unfit = "averages each part of what it keeps over other clients"
        if unfit:
            name, inside = self.factory_name(), type(innermost(self)).__name__
            raise ValueError(
                f"{name}({inside.lower()}(...)): {inside} {unfit}, and {name} is for one model and one average of all: "
                "give a method that has them, for instance fedavg, fedprox or scaffold"
            )
        *earlier, last = self.base.phases()
        if encodes(self) and not last.requires.steps and any(phase.requires.steps for phase in earlier):
            name, inside = self.factory_name(), type(innermost(self)).__name__
            raise ValueError(
                f"{name}({inside.lower()}(...)): the clients of {inside} train, and then report what is no change of a "
                f"model, so that there is nothing for {name} to change: use {inside} without it"
            )
        for one in within(self.base):
            if self.only_once and getattr(one, "only_once", "") == self.only_once:
                what = f"{self.factory_name()}(base): the base is {self.only_once} already, by {type(one).__name__}"
                raise ValueError(f"{what}: give one of them")
        return super().checked()

    # What a wrapper adds

    @property
    def remembers(self) -> bool:
        """Whether :meth:`init_memory` makes anything."""
        return False

    def init_memory(self, params: Any) -> Any:
        """What the wrapper keeps for each client, before its first visit."""
        return ()

    def encode(self, delta: Any, memory: Any, sent: Any, client: Client) -> tuple[Any, Any, dict[str, Message]]:
        """What becomes of a client's change before it is reported: ``(delta, memory, {name: message besides})``."""
        return delta, memory, {}

    def received(self, sent: Any) -> Any:
        """The base method's part of what a client received."""
        return sent

    def uploaded(self, nbytes: int, delta: Any) -> int:
        """Bytes that a client sends, from those that it would send without the wrapper and the shapes of its change."""
        return nbytes

    def downloaded(self, nbytes: int, sent: Any) -> int:
        """Bytes that a client receives, from those of what is sent, which may hold things that it has already."""
        return nbytes

    def shared(self, params: Any) -> Any:
        """The part of the parameters that clients report changes of: delta has its structure."""
        return self.base.shared(params) if isinstance(self.base, Wrapper) else params

    def weighed(self, client: Client, cohort: Cohort) -> Client:
        """The cohort's clients, leaves [S], with the weights and shares that they have in this method."""
        return self.base.weighed(client, cohort) if isinstance(self.base, Wrapper) else client

    # What it passes on

    @property
    def requires(self) -> Requires:
        return self.base.requires

    def check(self, num_clients: int) -> None:
        self.base.check(num_clients)

    def fitted(self, task: Any, dataset: Any) -> Self:
        base = self.base.fitted(task, dataset)
        return self if base is self.base else self.replace(base=base)

    def phases(self) -> tuple[Method, ...]:
        if self.in_every_phase:
            return tuple(self.replace(base=phase) for phase in self.base.phases())
        *earlier, last = self.base.phases()
        return (*(_Passing(phase, self.remembers) for phase in earlier), self.replace(base=last))

    def init(self, params: Any, shares: jax.Array) -> Any:
        return Wrapped(self.base.init(params, shares))

    def open(self, server: Wrapped, objective: jax.Array) -> Any:
        return server._replace(base=self.base.open(server.base, objective))

    def send(self, server: Wrapped) -> Any:
        return self.base.send(server.base)

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        return server._replace(base=self.base.update(server.base, got, cohort))

    def model(self, server: Wrapped) -> Any:
        return self.base.model(server.base)

    def with_model(self, server: Wrapped, params: Any) -> Any:
        return server._replace(base=self.base.with_model(server.base, params))

    def evaluated(self, server: Wrapped) -> Any:
        return self.base.evaluated(server.base)

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return self.base.report(server.base)

    def init_client(self, params: Any) -> Any:
        kept = self.base.init_client(params)
        return Remembering(kept, self.init_memory(params)) if self.remembers else kept

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return self.base.survey(F, self.received(sent), self._kept(c_i), client)

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return self.base.begin(self.received(sent), self._kept(c_i), client)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        return self.base.objective(F, y, k, self.received(sent), self._kept(c_i), client)

    def turn(self, k: jax.Array, client: Client) -> dict[str, jax.Array] | None:
        return self.base.turn(k, client)

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        return self.base.step(g, y, state, k, self.received(sent), self._kept(c_i), client)

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return self.base.change(y, self.received(sent), self._kept(c_i), client)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, kept = self.base.finish(delta, y, self.received(sent), self._kept(c_i), client)
        return messages, self._with_kept(c_i, kept)

    def settle(self, server: Wrapped, c_i: Any, client: Client) -> Any:
        return self._with_kept(c_i, self.base.settle(server.base, self._kept(c_i), client))

    def personal(self, server: Wrapped, c_i: Any) -> Any:
        if not keeps_personal(self.base):
            return self.evaluated(server)  # the wrapper's, which may be an average
        inside = server.base
        if type(self).evaluated is not Wrapper.evaluated:  # a client's own part goes with the model that is evaluated
            inside = self.base.with_model(inside, self.evaluated(server))
        return self.base.personal(inside, self._kept(c_i))

    def _kept(self, c_i: Any) -> Any:
        return c_i.base if self.remembers else c_i

    def _with_kept(self, c_i: Any, kept: Any) -> Any:
        return c_i._replace(base=kept) if self.remembers else kept


class _Passing(Wrapper):
    """A wrapper in an exchange before the last one: it adds nothing, and what it remembers stays where it is."""

    remembering: bool = static(default=False)

    @property
    def remembers(self) -> bool:
        return self.remembering


# What the engine asks of a method with all its wrappers


def within(method: Method) -> Iterator[Method]:
    """The method, the one that it wraps, and so on to the innermost."""
    yield method
    if isinstance(method, Wrapper):
        yield from within(method.base)


def innermost(method: Method) -> Method:
    """The method inside all wrappers."""
    return list(within(method))[-1]


def keeps_personal(method: Method) -> bool:
    """Whether the method, or a wrapper, says which model a client would use itself."""
    definers = [next(cls for cls in type(one).__mro__ if "personal" in vars(cls)) for one in within(method)]
    return any(cls is not Method and not vars(cls).get("hands_on", False) for cls in definers)


def encodes(method: Method) -> bool:
    """Whether a wrapper changes what clients report."""
    return any(isinstance(one, Wrapper) and type(one).encode is not Wrapper.encode for one in within(method))


def encoded(
    method: Method,
    delta: Any,
    sent: Any,
    c_i: Any,
    client: Client,
    encode: Callable[..., Any] = lambda wrapper, *given: wrapper.encode(*given),
) -> tuple[Any, Any, dict[str, Message]]:
    """``(delta, c_i, notes)`` after the wrappers' :meth:`Wrapper.encode`, the innermost first; ``encode`` calls it."""
    if not isinstance(method, Wrapper):
        return delta, c_i, {}
    delta, kept, notes = encoded(method.base, delta, method.received(sent), method._kept(c_i), client, encode)
    c_i = method._with_kept(c_i, kept)
    delta, memory, more = encode(method, delta, c_i.memory if method.remembers else (), sent, client)
    return delta, c_i._replace(memory=memory) if method.remembers else c_i, notes | more


def uploaded(method: Method, messages: dict[str, Message], delta: Any) -> int:
    """Bytes of a client's messages, compressed as the wrappers do."""
    if isinstance(method, Wrapper):
        return method.uploaded(uploaded(method.base, messages, delta), delta)
    return sum(message.size for message in messages.values())


def downloaded(method: Method, sent: Any) -> int:
    """Bytes of a client's broadcast, less what wrappers say that it has."""
    nbytes = trees.size_in_bytes(sent)
    while isinstance(method, Wrapper):
        nbytes, sent, method = method.downloaded(nbytes, sent), method.received(sent), method.base
    return nbytes
