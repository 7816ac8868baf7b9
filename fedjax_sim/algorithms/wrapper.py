"""Methods around methods: a wrapper runs its base method unchanged and adds something on the server."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax

from fedjax_sim.algorithms.contract import Client, Cohort, Method
from fedjax_sim.optim.probe import Probed
from fedjax_sim.values import shown


class Wrapped(NamedTuple):
    """The base method's server state, and what the wrapper adds."""

    base: Any
    extra: Any = ()


def _of_base(name: str) -> Any:
    return property(lambda self: getattr(self.base, name))


class Wrapper(Method, kw_only=False):
    """Runs ``base`` as it is; subclasses override what they add.

    Args:
      base: any method.
    """

    base: Method

    acts_alone = _of_base("acts_alone")
    clients_apart = _of_base("clients_apart")
    excludes_nonfinite = _of_base("excludes_nonfinite")
    averages = _of_base("averages")
    averages_why = _of_base("averages_why")
    encodes = _of_base("encodes")
    innermost = _of_base("innermost")
    client_learning_rate = _of_base("client_learning_rate")
    client_optimizer = _of_base("client_optimizer")
    default_average = _of_base("default_average")
    duplicates = _of_base("duplicates")
    needs = _of_base("needs")
    needs_everyone = _of_base("needs_everyone")
    needs_full_gradients = _of_base("needs_full_gradients")
    own_cohort = _of_base("own_cohort")
    remembers_everyone = _of_base("remembers_everyone")
    server_learning_rate = _of_base("server_learning_rate")
    server_optimizer = _of_base("server_optimizer")
    settles = _of_base("settles")
    stacked = _of_base("stacked")
    takes_steps = _of_base("takes_steps")

    def checked(self) -> Self:
        if not isinstance(self.base, Method):
            name = getattr(type(self), "_registered_name", type(self).__name__.lower()).rpartition(".")[2]
            raise TypeError(f"{name}(base) is {shown(self.base)}: give a method, for instance fedjax_sim.fedavg(...)")
        return self

    def phases(self) -> tuple[Method, ...]:
        *earlier, last = self.base.phases()
        return (*(Wrapper(base=phase) for phase in earlier), self.replace(base=last))

    def minimises(self, objective: str) -> str:
        return self.base.minimises(objective)

    def check(self, num_clients: int) -> None:
        self.base.check(num_clients)

    def hoisted(self, params: Any) -> Self:
        return self.replace(base=self.base.hoisted(params))

    def init(self, params: Any, num_clients: int) -> Any:
        return Wrapped(self.base.init(params, num_clients))

    def init_client(self, params: Any) -> Any:
        return self.base.init_client(params)

    def model(self, server: Wrapped) -> Any:
        return self.base.model(server.base)

    def with_model(self, server: Wrapped, params: Any) -> Any:
        return server._replace(base=self.base.with_model(server.base, params))

    def parameters(self, server: Wrapped) -> Any:
        return self.base.parameters(server.base)

    def broadcast(self, server: Wrapped) -> Any:
        return self.base.broadcast(server.base)

    def received(self, sent: Any) -> Any:
        """The base method's part of what a client received; to be overridden where :meth:`broadcast` adds to it."""
        return sent

    def start(self, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        return self.base.start(self.received(sent), c_i, client)

    def proximal(self, sent: Any) -> Any:
        return self.base.proximal(self.received(sent))

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        return self.base.direction(g, y, self.received(sent), local, client)

    def local_step(self, g: Any, y: Any, state: Any, sent: Any, client: Client) -> tuple[Any, Any]:
        return self.base.local_step(g, y, state, self.received(sent), client)

    def slopes(self, sent: Any, rates: Any, steps: jax.Array, bound: int) -> Probed:
        return self.base.slopes(self.received(sent), rates, steps, bound)

    def encode(self, change: Any, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any, dict[str, Any]]:
        return self.base.encode(change, self.received(sent), c_i, client)

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        return self.base.finish(y, self.received(sent), c_i, local, client)

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return self.base.weigh(client)

    def download_bytes(self, sent: Any) -> int:
        return self.base.download_bytes(self.received(sent))

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        return self.base.upload_bytes(messages, self.received(sent))

    def aggregate(self, server: Wrapped, sums: dict[str, Any], cohort: Cohort) -> Any:
        return server._replace(base=self.base.aggregate(server.base, sums, cohort))

    def settle(self, server: Wrapped, c_i: Any) -> Any:
        return self.base.settle(server.base, c_i)

    def introduced(self, server: Wrapped, shares: jax.Array) -> Any:
        return server._replace(base=self.base.introduced(server.base, shares))

    def before(self, server: Wrapped, objective: jax.Array) -> Any:
        return server._replace(base=self.base.before(server.base, objective))

    def after(self, server: Wrapped, objective: jax.Array) -> Any:
        return server._replace(base=self.base.after(server.base, objective))

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return self.base.report(server.base)
