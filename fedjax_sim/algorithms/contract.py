"""The contract of a method: what it must say, and nothing about where or when its clients run.

A round of the driver, for each of the method's :meth:`Method.phases`::

    sent  = broadcast(server)
    for every client i of the cohort:                                # by a layout, in any order
        y, local = start(sent, c_i, client)
        for the client's tau_i steps:
            g = gradient of F_i on a batch at y
            g = direction(g, y, sent, local, client)
            y = local_step(g, y, ...)                                # y + l * client_optimizer(g + mu (y - x))
        y - x, c_i, notes = encode(y - x, sent, c_i, client)         # where ``encodes``
        messages, c_i = finish(y, sent, c_i, local, client)
    sums[name] = sum over the cohort of weigh(client)[name] * messages[name]
    server = aggregate(server, sums, cohort)
    c_i = settle(server, c_i)                                        # where ``settles``

All are pure functions of pytrees; each sees ONE client. Messages are summed while clients finish, so no layout holds
all of them; a name in ``stacked`` is delivered as the [S, ...] stack instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim import optim, trees
from fedjax_sim.algorithms import declarations, hooks
from fedjax_sim.descriptions import Described
from fedjax_sim.optim.probe import Probed, probe


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
      step_size: eta, the slope of a single step, likewise; ``()`` unless ``needs`` has ``"step_size"``.
      relative_size: N p_i, the client's size over the mean size.
      scale: what the averaging scheme multiplies F_i by (gradients, ``anchor`` and ``mean_loss`` arrive multiplied);
        ``()`` for nothing.
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
    step_size: Any = ()
    relative_size: Any = ()
    scale: Any = ()


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
      expected: expected number of clients of a round, sum_i pi_i; ``()`` unless ``needs`` has ``"expected_size"``.
      shift: the average of the models is x + sum of weights * (y_i - x) + shift * x; ``()`` for none.
    """

    indices: jax.Array
    valid: jax.Array
    weights: jax.Array
    size: jax.Array
    num_clients: int
    mass: jax.Array
    round: jax.Array
    key: jax.Array
    shift: Any = ()
    expected: Any = ()


ALL_AVERAGES = frozenset({"sample", "plain", "original", "scheme_ii", "transformed", "inverse"})


class Method(Described, kw_only=True):
    """The contract, with the answers of a method that adds nothing to federated averaging.

    Attributes:
      default_average: what the cohort's ``average=None`` means.
      averages: which of the cohort's averages have a meaning for the method.
      averages_why: why the others have none, for the message that refuses them.
      stacked: names of messages that arrive as [S, ...] stacks.
      takes_steps: false for an exchange in which clients report at x without moving.
      duplicates: whether a client drawn twice has a meaning.
      needs_everyone: whether every client must take part in every round.
      needs_full_gradients: whether local steps must be along full local gradients.
      settles: whether clients hear of the new model at the end of the round (:meth:`settle`).
      encodes: whether clients report another change than they made (:meth:`encode`).
      acts_alone: whether the server also aggregates in a round in which nobody took part.
      excludes_nonfinite: whether messages that are not finite do no harm, because the server leaves them out.
      clients_apart: whether what a client does must depend on that client alone, never on who else was drawn.
      own_cohort: of an exchange before the last one: whether it draws a cohort of its own.
    """

    default_average: ClassVar[str] = "sample"
    averages: ClassVar[frozenset[str]] = ALL_AVERAGES
    averages_why: ClassVar[str] = ""
    stacked: ClassVar[tuple[str, ...]] = ()
    takes_steps: ClassVar[bool] = True
    duplicates: ClassVar[bool] = True
    needs_everyone: ClassVar[bool] = False
    needs_full_gradients: ClassVar[bool] = False
    settles: ClassVar[bool] = False
    encodes: ClassVar[bool] = False
    acts_alone: ClassVar[bool] = False
    excludes_nonfinite: ClassVar[bool] = False
    clients_apart: ClassVar[bool] = False
    own_cohort: ClassVar[bool] = True

    # Declared here for the driver; Algorithm has them as fields, a wrapper reads its base's.
    client_optimizer: ClassVar[Any]
    client_learning_rate: ClassVar[Any]
    server_learning_rate: ClassVar[Any]
    server_optimizer: ClassVar[Any]

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        declarations.check_no_init(cls)
        super().__init_subclass__(kw_only=kw_only, **kwargs)
        declarations.check_class(cls, Method)
        hooks.watched(cls)

    @property
    def innermost(self) -> Method:
        """The method inside all wrappers; ``self`` where there is none."""
        return self

    @property
    def needs(self) -> frozenset[str]:
        """Of ``"slope"``, ``"step_size"``, ``"anchor"``, ``"objective"`` and ``"expected_size"`` those it reads."""
        return frozenset()

    @property
    def remembers_everyone(self) -> bool:
        """Whether the server keeps a vector of every client and reads all of them in a round."""
        return False

    def minimises(self, objective: str) -> str:
        """What the method minimises, in words; ``objective`` is what the cohort's average stands for."""
        return objective

    def check(self, num_clients: int) -> None:
        """Raises ``ValueError`` where the method cannot serve a data set of so many clients; before compilation."""

    def hoisted(self, params: Any) -> Self:
        """The method with the traced values inside bare optax objects made explicit."""
        return self

    def phases(self) -> tuple[Method, ...]:
        """The method's exchanges with clients in one round, in order; each draws its cohort, the last is ``self``."""
        return (self,)

    def init(self, params: Any, num_clients: int) -> Any:
        """The server's state before the first round."""
        raise TypeError(f"{type(self).__name__} must define init(params, num_clients)")

    def init_client(self, params: Any) -> Any:
        """What the method keeps for each client, before its first visit; ``()`` for nothing."""
        return ()

    def model(self, server: Any) -> Any:
        """The iterate x, from which the next round starts."""
        return server.params

    def with_model(self, server: Any, params: Any) -> Any:
        """The server with another iterate."""
        return server._replace(params=params)

    def parameters(self, server: Any) -> Any:
        """The global model that is evaluated: x, unless the method reports an average."""
        return self.model(server)

    def broadcast(self, server: Any) -> Any:
        """What every client of the round receives; its ``params`` is the start point x."""
        raise TypeError(f"{type(self).__name__} must define broadcast(server)")

    def start(self, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        """The client's first model and what it computes once for all its steps."""
        return sent.params, ()

    def proximal(self, sent: Any) -> Any:
        """mu of the proximal term mu/2 |y - x|^2, or None for no such term in the program."""
        return None

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        """The corrected gradient, from the raw gradient ``g`` of F_i at ``y``."""
        return g

    def local_step(self, g: Any, y: Any, state: Any, sent: Any, client: Client) -> tuple[Any, Any]:
        """``(y, optimiser state)`` after a step along ``g`` and the proximal gradient, both through the optimiser."""
        mu = self.proximal(sent)
        if mu is not None:
            g = trees.add_scaled(g, mu, trees.subtract(y, sent.params))
        updates, state = self.client_optimizer.update(g, state, y)
        return optim.move(y, client.learning_rate, updates), state

    def slopes(self, sent: Any, rates: Any, steps: jax.Array, bound: int) -> Probed:
        """What the local solver moves by against a unit gradient (see :mod:`fedjax_sim.optim.probe`)."""
        return probe(self.client_optimizer, self.proximal(sent), sent.params, rates, steps, bound)

    def encode(self, change: Any, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any, dict[str, Any]]:
        """What a client makes of its change y - x before it reports: ``(change, c_i, {name: message besides})``.

        Everything that :meth:`finish` computes, messages and new c_i, is then computed from the encoded change.
        """
        return change, c_i, {}

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        """``({name: message}, new c_i)``; messages unweighted and finite.

        It must read ``y`` and ``sent.params`` through their difference alone: where clients encode their changes it is
        called with the encoded change for ``y`` and zeros for ``sent.params``, because x + (a small change) - x is not
        that change in floating point.
        """
        return {"delta": trees.subtract(y, sent.params)}, c_i

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        """Weights of messages by name; names left out are weighted by ``client.weight``."""
        return {}

    def download_bytes(self, sent: Any) -> int:
        """Bytes that a client receives in this exchange, from the shapes of what is sent."""
        return trees.size_in_bytes(sent)

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        """Bytes that a client sends in this exchange, from the shapes of its messages and of what it received."""
        return trees.size_in_bytes(messages)

    def aggregate(self, server: Any, sums: dict[str, Any], cohort: Cohort) -> Any:
        """The server's next state from the weighted sums (or stacks) of the messages."""
        raise TypeError(f"{type(self).__name__} must define aggregate(server, sums, cohort)")

    def settle(self, server: Any, c_i: Any) -> Any:
        """What a client of the cohort keeps once it has heard of the new server state, where ``settles``."""
        return c_i

    def introduced(self, server: Any, shares: jax.Array) -> Any:
        """Called once at the start with every client's share lambda_i of the objective, [N] by client index."""
        return server

    def before(self, server: Any, objective: jax.Array) -> Any:
        """Called once with F(x) at the start, where ``needs`` has ``"objective"``."""
        return server

    def after(self, server: Any, objective: jax.Array) -> Any:
        """Called with F(x) after the round where ``needs`` has ``"objective"``."""
        return server

    def report(self, server: Any) -> dict[str, jax.Array]:
        """What the method adds to the record of the round that led to ``server``: numbers by name.

        Of a quantity that changes from round to round it is what that round used: what the next one will use is another
        field of the server's state. Where nobody took part the state stays, and so does what is reported of it.
        """
        return {}


def took_part(client: Client) -> jax.Array:
    """1 for a client that takes part, 0 in a void slot: the weight of messages that are simply added up."""
    return (client.steps > 0).astype(jnp.result_type(float))
