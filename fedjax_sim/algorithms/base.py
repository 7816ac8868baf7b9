"""The contract of an algorithm: what a method must say, and nothing about where or when its clients run.

A round of the driver, for each of the algorithm's :meth:`Algorithm.phases`::

    sent  = broadcast(server)
    for every client i of the cohort:                                # by a layout, in any order
        y, local = start(sent, c_i, client)
        for the client's tau_i steps:
            g = gradient of F_i on a batch at y
            g = direction(g, y, sent, local, client) + proximal(sent) * (y - sent.params)
            y = y + l * client_optimizer(g)
        messages, c_i = finish(y, sent, c_i, local, client)
    sums[name] = sum over the cohort of weigh(client)[name] * messages[name]
    server = aggregate(server, sums, cohort)

All are pure functions of pytrees; each sees ONE client. Messages are summed while clients finish, so no layout holds
all of them; a name in ``stacked`` is delivered as the [S, ...] stack instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim import optim, rates, trees
from fedjax_sim.descriptions import Described


class Client(NamedTuple):
    """One client in one round; every field an array (or pytree of arrays) without a client axis.

    Attributes:
      index: int32, 0..N-1 in the order of the client ids; N in a void slot (dropped, masked or a duplicate).
      id: int32, the client's fixed id; it keys the random draws.
      size: int32, n_i.
      steps: int32, tau_i; 0 exactly in void slots.
      weight: weight of this client in the scheme's average; 0 in void slots.
      share: weight of F_i in the objective the scheme minimises: p_i = n_i / n (sample) or 1/N (plain).
      learning_rate: ``client_learning_rate`` for this client and round.
      slope: h_i, what the local solver moves by against a constant unit gradient in tau_i steps (eta tau_i for SGD),
        scalars in the parameters' structure; ``()`` unless ``needs`` has ``"slope"``.
      anchor: the full local gradient at the start point, parameters' structure; ``()`` unless ``needs`` has
        ``"anchor"``.
      mean_loss: F_i at the start point; ``()`` unless ``needs`` has ``"anchor"``.
      key: PRNG key of (run, round, client) for the algorithm's own draws.
    """

    index: jax.Array  # type: ignore[assignment]
    id: jax.Array
    size: jax.Array
    steps: jax.Array
    weight: jax.Array
    share: jax.Array
    learning_rate: Any
    slope: Any
    anchor: Any
    mean_loss: Any
    key: jax.Array


class Cohort(NamedTuple):
    """Who took part in a round, as the server sees it.

    Attributes:
      indices: int32[S], clients' indices; N in void slots.
      valid: bool[S], false in void slots.
      weights: [S], weights of the average; 0 in void slots.
      size: int32, number of valid slots, |S|.
      num_clients: int, N.
      mass: sum of the weights (1 but for the schemes that do not normalise).
      round: int32, t.
      key: PRNG key of (run, round) for the server's own draws.
    """

    indices: jax.Array
    valid: jax.Array
    weights: jax.Array
    size: jax.Array
    num_clients: int
    mass: jax.Array
    round: jax.Array
    key: jax.Array


class Sent(NamedTuple):
    """What FedAvg and its kin broadcast: the model x, where clients start."""

    params: Any


class ServerState(NamedTuple):
    """What a server keeps from round to round.

    Attributes:
      params: the global model x.
      optimizer: state of the server optimiser.
      extra: what the method adds (SCAFFOLD's c), ``()`` for none.
    """

    params: Any
    optimizer: Any
    extra: Any = ()


class Algorithm(Described, kw_only=True):
    """Base of all methods: federated averaging with a server optimiser, to be overridden where a method differs.

    Attributes:
      client_optimizer: local solver; its state is fresh every round.
      client_learning_rate: l in y <- y + l u: number, pytree like the parameters, or a rate of ``fedjax_sim.rates``.
      server_learning_rate: eta_g in x <- x + eta_g u: number or rate over rounds.
      server_optimizer: acts on the negative pseudo-gradient; None means u = Delta.
    """

    client_optimizer: optim.Optimizer
    client_learning_rate: Any = 1.0
    server_learning_rate: Any = 1.0
    server_optimizer: optim.Optimizer | None = None

    default_average: ClassVar[str] = "sample"
    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})
    stacked: ClassVar[tuple[str, ...]] = ()
    takes_steps: ClassVar[bool] = True
    duplicates: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:
        """Which of ``"slope"``, ``"anchor"`` (also gives ``mean_loss``) and ``"objective"`` the method reads."""
        return frozenset()

    def checked(self) -> Self:
        name = type(self).__name__
        checked = self.replace(
            client_optimizer=optim.as_optimizer(self.client_optimizer, f"{name}(client_optimizer=...)"),
            client_learning_rate=rates.as_rate(self.client_learning_rate, f"{name}(client_learning_rate=...)"),
            server_learning_rate=rates.as_rate(self.server_learning_rate, f"{name}(server_learning_rate=...)"),
        )
        if self.server_optimizer is not None:
            server = optim.as_optimizer(self.server_optimizer, f"{name}(server_optimizer=...)")
            checked = checked.replace(server_optimizer=server)
        if "slope" in checked.needs and not optim.is_linear(checked.client_optimizer):
            raise ValueError(
                f"{name} normalises by the sum of the local solver's accumulation weights, which exists for linear "
                f"solvers only, and {optim.describe_name(checked.client_optimizer)} is not linear in the gradients: "
                "use sgd (with any momentum), or FedAvg with this solver"
            )
        return checked

    def phases(self) -> tuple[Algorithm, ...]:
        """The method's exchanges with clients in one round, in order; each draws its cohort, the last is ``self``."""
        return (self,)

    def init(self, params: Any, num_clients: int) -> Any:
        """The server's state before the first round."""
        state = () if self.server_optimizer is None else self.server_optimizer.init(params)
        return ServerState(params, state)

    def init_client(self, params: Any) -> Any:
        """What the method keeps for each client, before its first visit; ``()`` for nothing."""
        return ()

    def parameters(self, server: Any) -> Any:
        """The global model x, what is evaluated."""
        return server.params

    def broadcast(self, server: Any) -> Any:
        """What every client of the round receives; its ``params`` is the start point x."""
        return Sent(server.params)

    def start(self, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        """The client's first model and what it computes once for all its steps."""
        return sent.params, ()

    def proximal(self, sent: Any) -> Any:
        """mu of the proximal term mu/2 |y - x|^2, or None for no such term in the program."""
        return None

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        """The corrected gradient, from the raw gradient ``g`` of F_i at ``y``."""
        return g

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        """``({name: message}, new c_i)``; messages unweighted and finite."""
        return {"delta": trees.subtract(y, sent.params)}, c_i

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        """Weights of messages by name; names left out are weighted by ``client.weight``."""
        return {}

    def aggregate(self, server: Any, sums: dict[str, Any], cohort: Cohort) -> Any:
        """The server's next state from the weighted sums (or stacks) of the messages."""
        return self.server_step(server, sums["delta"], cohort)

    def before(self, server: Any, objective: jax.Array) -> Any:
        """Called once with F(x) at the start, where ``needs`` has ``"objective"``."""
        return server

    def after(self, server: Any, objective: jax.Array) -> Any:
        """Called with F(x) after the round where ``needs`` has ``"objective"``."""
        return server

    def server_step(self, server: Any, delta: Any, cohort: Cohort) -> Any:
        """x <- x + eta_g u, with u the server optimiser's update for the gradient -Delta (u = Delta without one)."""
        state = server.optimizer
        if self.server_optimizer is not None:
            negative = jax.tree.map(jnp.negative, delta)
            delta, state = self.server_optimizer.update(negative, state, server.params)
        rate = rates.rate_at(self.server_learning_rate, cohort.round, jnp.int32(0))
        return server._replace(params=trees.add_scaled(server.params, rate, delta), optimizer=state)
