"""The contract of a method: what the server sends, what a client minimises, what it reports, how the server moves.

A round, for each of the method's :meth:`Method.phases`::

    sent = send(server)
    for every client i of the cohort:                                   # by a layout, in any order
        client.survey = mean over its examples of survey(F, sent, c_i, client)      # where the method has one
        y = begin(sent, c_i, client)
        for k = 0 .. tau_i - 1:
            g = gradient in y of objective(F, y, k, sent, c_i, client)  # F: the client's loss on a batch
            y, state = step(g, y, state, k, sent, c_i, client)
        delta = change(y, sent, c_i, client)                            # wrappers clip and compress it here
        messages, c_i = finish(delta, y, sent, c_i, client)
    got[name] = the messages, summed as they say: Mean, Share, Sum or Stack
    server = update(server, got, cohort)
    c_i = settle(server, c_i, client)                                   # where clients hear of the new model

All are pure functions of pytrees; each sees ONE client. Sums are made while clients finish, so no layout holds all
messages, but for those in a ``Stack``. The gradient is that in ``y`` alone: to it everything else is a constant, while
derivatives of the whole run reach everything, so hooks do not use ``stop_gradient``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms import declarations
from fedjax_sim.algorithms.affine import affine as affine
from fedjax_sim.algorithms.messages import Mean as Mean
from fedjax_sim.algorithms.messages import Message as Message
from fedjax_sim.algorithms.messages import Share as Share
from fedjax_sim.algorithms.messages import Stack as Stack
from fedjax_sim.algorithms.messages import Sum as Sum
from fedjax_sim.core.descriptions import Described
from fedjax_sim.optim.parts import Parts as Parts


class Each(Described):
    """In a broadcast: an array [N, ...] of which client i gets row i, and no other.

    Attributes:
      rows: leaves [N, ...] by client index.
    """

    rows: Any

    def of(self, index: jax.Array) -> Any:
        """What the client ``index`` gets; N - 1 stands for a void slot."""
        return jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), self.rows)


def received(sent: Any, index: jax.Array) -> Any:
    """A broadcast as the client ``index`` gets it."""

    def is_each(node: Any) -> bool:
        return isinstance(node, Each)

    return jax.tree.map(lambda node: node.of(index) if is_each(node) else node, sent, is_leaf=is_each)


class Client(NamedTuple):
    """One client in one round; every field an array (or pytree of arrays) without a client axis.

    Attributes:
      index: int32, 0..N-1 in the order of the client ids; N in a void slot (dropped, masked or a duplicate).
      id: int32, the client's fixed id; it keys the random draws.
      size: int32, n_i.
      steps: int32, tau_i; 0 exactly in void slots.
      weight: weight of this client in the scheme's average; 0 in void slots.
      share: weight of F_i in the objective the scheme minimises: p_i = n_i / n (sample) or 1/N (plain).
      relative_size: N p_i, the client's size over the mean size.
      learning_rate: ``client_learning_rate`` for this client and round.
      key: PRNG key of (run, round, exchange, client) for the method's own draws.
      survey: what :meth:`Method.survey` found, averaged over the client's examples; None without one.
      held: y before this step, as a constant: in :meth:`Method.objective` alone, else None.
      slope: h_i, what the local solver moves by against a constant unit gradient in tau_i steps (eta tau_i for SGD),
        scalars in the structure of y; None unless the method requires it.
      step_size: eta, the slope of a single step, likewise.
      scale: what the averaging scheme multiplies F_i by (F arrives multiplied); None for nothing.
    """

    index: jax.Array  # type: ignore[assignment]
    id: jax.Array
    size: jax.Array
    steps: jax.Array
    weight: jax.Array
    share: jax.Array
    relative_size: jax.Array
    learning_rate: Any
    key: jax.Array
    survey: Any = None
    held: Any = None
    slope: Any = None
    step_size: Any = None
    scale: Any = None


def nobody() -> Client:
    """A client for shapes: what it computes means nothing."""
    one, real = jnp.int32(1), jnp.ones((), jnp.result_type(float))
    return Client(one, one, one, one, real, real, real, learning_rate=real, key=jax.random.key(0))


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
      shift: the average of the models is x + sum of weights * (y_i - x) + shift * x; None for none.
      expected: expected number of clients of a round, sum_i pi_i; None unless the method requires it.
    """

    indices: jax.Array
    valid: jax.Array
    weights: jax.Array
    size: jax.Array
    num_clients: int
    mass: jax.Array
    round: jax.Array
    key: jax.Array
    shift: Any = None
    expected: Any = None


WEIGHTED_MEANS = frozenset({"sample", "plain"})  # their weights sum to one, whoever came
ALL_AVERAGES = frozenset({"sample", "plain", "original", "scheme_ii", "transformed", "inverse"})


@dataclasses.dataclass(frozen=True)
class Requires:
    """What a method asks of the engine and of a run.

    Attributes:
      slope: ``client.slope``, with c_i = 0; only with local solvers that are linear in the gradients.
      step_size: ``client.step_size``.
      objective: F(x) over all data before every round, for :meth:`Method.open`.
      expected_size: ``cohort.expected``.
      survey: ``client.survey``, for which the method defines :meth:`Method.survey`.
      steps: whether clients take local steps; without, an exchange in which they survey their data at most.
      hold: how many gradient steps a client takes on each batch of its work: tau_i batches, tau_i hold steps.
      more_steps: gradient steps that a client takes besides those of its work, on batches of their own.
      per_step: how many gradients of F a step takes, and a batch of the survey: 2 where two models train, or where F's
        gradient is asked elsewhere too. For clocks and for what is recorded of a run's work, not for its steps.
      other_batch: ``F.other``, a second batch in every step.
      average: what the cohort's ``average=None`` means.
      averages: which of the cohort's averages have a meaning.
      averages_why: why the others have none, for the message that refuses them.
      duplicates: whether a client drawn twice has a meaning.
      everyone: whether every client must take part in every round.
      whole_model: whether it runs the model on the server or reads its layers, so that it cannot train a part of it.
      classes: whether the task must tell classes apart: outputs with a logit for each, and labels that are integers.
      full_gradients: whether local steps must be along full local gradients.
      whole_batches: whether the objective is no sum over examples, so that its gradient cannot be taken in pieces.
      nonlinear: whether a local solver that is not linear in the gradients may be probed all the same.
      hears: fields of the server's state that the clients of a round hear when it is over: then they
        :meth:`Method.settle`.
      acts_alone: whether the server also updates in a round in which nobody took part.
      apart: whether what a client does must depend on that client alone, never on who else was drawn.
      excludes_nonfinite: whether messages that are not finite do no harm, because the server leaves them out.
      remembers_everyone: whether the server keeps a vector of every client and reads all of them in a round.
      several: whether the server keeps several models, so that there is no one model to be averaged or projected.
      partwise: whether each part of what the server keeps is averaged over some of the cohort alone, so that no other
        rule may stand in for the average.
      own_cohort: of an exchange before the last one: whether it draws a cohort of its own.
      minimises: from what the cohort's average stands for, in words, to what the method minimises.
      elsewhere: whether the objective asks F for gradients elsewhere than at y (at x, a step ahead) and holds them
        constant: no part of a client's own can be trained beside y, for they would depend on it.
    """

    slope: bool = False
    step_size: bool = False
    objective: bool = False
    expected_size: bool = False
    survey: bool = False
    steps: bool = True
    hold: int = 1
    more_steps: int = 0
    per_step: int = 1
    other_batch: bool = False
    average: str = "sample"
    averages: frozenset[str] = ALL_AVERAGES
    averages_why: str = ""
    duplicates: bool = True
    everyone: bool = False
    whole_model: bool = False
    classes: bool = False
    full_gradients: bool = False
    whole_batches: bool = False
    nonlinear: bool = False
    hears: tuple[str, ...] = ()
    acts_alone: bool = False
    apart: bool = False
    excludes_nonfinite: bool = False
    remembers_everyone: bool = False
    several: bool = False
    partwise: bool = False
    own_cohort: bool = True
    minimises: Callable[[str], str] = str
    elsewhere: bool = False

    def but(self, **changes: Any) -> Requires:
        """The same, but for ``changes``."""
        return dataclasses.replace(self, **changes)

    def gradients(self, steps: Any) -> Any:
        """How many gradient steps a client takes whose work is ``steps`` > 0 local steps."""
        return steps * self.hold + self.more_steps


OWN_MODELS = Requires(
    duplicates=False,
    averages=ALL_AVERAGES - {"transformed"},
    averages_why="it multiplies the losses of clients by their sizes, also where they train models of their own",
)
"""What methods ask for whose clients train models of their own."""


class Method(Described, kw_only=True):
    """The contract: twenty-two names. Where a method has nothing to say, the answer is here."""

    # Declared here for the engine; Algorithm has them as fields, a wrapper reads its base's.
    client_optimizer: ClassVar[Any]
    client_learning_rate: ClassVar[Any]
    server_learning_rate: ClassVar[Any]
    server_optimizer: ClassVar[Any]
    keep_optimizer: ClassVar[bool]

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        declarations.check_no_init(cls)
        super().__init_subclass__(kw_only=kw_only, **kwargs)
        declarations.check_class(cls, Method)

    # What it asks for

    @property
    def requires(self) -> Requires:
        """What the method asks of the engine and of a run; static."""
        return Requires()

    def check(self, num_clients: int) -> None:
        """Raises ``ValueError`` where the method cannot serve a data set of so many clients; before compilation."""

    def fitted(self, task: Any, dataset: Any) -> Self:
        """The method that runs on a task and a data set, if it must know them; before compilation."""
        return self

    def phases(self) -> tuple[Method, ...]:
        """The method's exchanges with clients in one round, in order; each draws its cohort, the last is ``self``."""
        return (self,)

    # The server

    def init(self, params: Any, shares: jax.Array) -> Any:
        """The server's state before the first round, at the model ``params``.

        ``shares`` are [N] by client index, each client's share lambda_i of the objective.
        """
        fix = "init(params, shares), or subclass fedjax_sim.algorithms.FedAvg, which does"
        raise TypeError(f"{type(self).__name__} must define {fix}")

    def open(self, server: Any, objective: jax.Array) -> Any:
        """The server at the start of a round, told F(x); called only where the method requires the objective."""
        return server

    def send(self, server: Any) -> Any:
        """What every client of the round receives; an :class:`Each` inside is one row for each."""
        raise TypeError(f"{type(self).__name__} must define send(server)")

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        """The server's next state, from the sums (or stacks) of the messages."""
        raise TypeError(f"{type(self).__name__} must define update(server, got, cohort)")

    def model(self, server: Any) -> Any:
        """The iterate x, from which the next round starts."""
        return server.params

    def with_model(self, server: Any, params: Any) -> Any:
        """The server with another iterate."""
        return server._replace(params=params)

    def evaluated(self, server: Any) -> Any:
        """The global model that is evaluated: x, unless the method reports an average."""
        return self.model(server)

    def report(self, server: Any) -> dict[str, jax.Array]:
        """What the method adds to the record of the round that led to ``server``: numbers by name."""
        return {}

    # A client

    def init_client(self, params: Any) -> Any:
        """What the method keeps for each client, before its first visit; ``()`` for nothing."""
        return ()

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        """A statistic of the client's own data before its first step, averaged over its examples: ``client.survey``.

        For instance ``jax.grad(F)(sent.params)``, the full local gradient at x, or ``F(sent.params)``. It costs a pass
        over the client's data, and is made only where the method requires it.
        """
        raise TypeError(f"{type(self).__name__} has no survey")

    @affine
    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        """y before the first step: what the client trains, any pytree; :class:`Parts` for several models."""
        return sent.params

    @affine
    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        """What the client minimises, on the batch of its step k: a scalar."""
        return F(y)

    @affine
    def turn(self, k: jax.Array, client: Client) -> dict[str, jax.Array] | None:
        """Which of the :class:`Parts` step k moves, ``{name: whether}`` of all, one at a time; None: all do.

        No more than a saving: where clients run one after another on a CPU, the gradient is taken in that part alone,
        and arrives as zero in the others. The step leaves those where they are (``in_turn`` of the parts).
        """
        return None

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        """``(y, optimiser state)`` after a step along ``g``, the gradient of the objective."""
        raise TypeError(f"{type(self).__name__} must define step(g, y, state, k, sent, c_i, client)")

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        """delta, what the client's work has changed: always a difference, for it is what is clipped and compressed."""
        raise TypeError(f"{type(self).__name__} must define change(y, sent, c_i, client)")

    @affine
    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        """``({name: message}, new c_i)``; each message a ``Mean``, ``Share``, ``Sum`` or ``Stack``.

        ``delta`` is the change as the server will hear of it, ``y`` what the client really has. What is sent should
        depend on ``y`` through ``delta`` alone, or clipping does not bind it.
        """
        return {"delta": Mean(delta)}, c_i

    def settle(self, server: Any, c_i: Any, client: Client) -> Any:
        """What a client of the cohort keeps once it has heard of the new server state, where the method ``hears``."""
        return c_i

    def personal(self, server: Any, c_i: Any) -> Any:
        """The model that client i would use itself: the one that is evaluated, unless the client keeps its own."""
        return self.evaluated(server)
