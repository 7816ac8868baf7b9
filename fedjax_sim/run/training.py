"""``make_train``: a whole federated run as one plain JAX function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.wrapper import keeps_personal
from fedjax_sim.core.descriptions import Described, check_again
from fedjax_sim.core.devices import check_not_summed
from fedjax_sim.core.loops import OnRound, silent, teller
from fedjax_sim.core.mistakes import explained, unchanged
from fedjax_sim.core.tabular import in_notebook, table
from fedjax_sim.core.trees import by_path
from fedjax_sim.core.values import is_concrete, is_float, shown
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts, whole
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.adjoints.scans import Adjoint, Run, per_round, varying
from fedjax_sim.engine.arguments import Evaluate, RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import resolve, unmet
from fedjax_sim.engine.client_states import OnDevice
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import init_state, run_round
from fedjax_sim.models.evaluation import all_metrics, check_recorded, reads_the_same
from fedjax_sim.models.passes import Clients
from fedjax_sim.models.predictions import Reading, read

_SHOWN = 6  # metrics in the repr of a result


class TrainResult(NamedTuple):
    """What a run returns.

    Attributes:
      params: the final global model.
      state: the final server and client states (``TrainState`` of ``engine/plan.py``): ``state.clients`` is what the
        method keeps for each client, leaves [N, ...] in the order of the client ids, and
        ``state.client(client_id, dataset)`` that of one.
      metrics: arrays by name, leading axis evaluations: ``"round"`` (0, then every ``eval_every``, then the last),
        ``"loss"`` (the objective F on the training data, penalty included), ``"data_loss"`` (without the penalty, of
        tasks that have one), the task's metrics, ``"test_..."`` where the data set has test examples, and what
        ``evaluate`` returns.
      rounds: arrays by name, leading axis rounds: ``"cohort_size"``, ``"useful_steps"``, ``"computed_steps"``,
        ``"nonfinite_clients"``, ``"nonfinite_ids"``, ``"diverged"``, with a system ``"duration"``, ``"bytes_down"``,
        ``"bytes_up"``, ``"reported"``, ``"dropped_late"`` and ``"failed"``, what the algorithm reports and the
        diagnostics measure; ``"refused_slots"`` where ids or steps that are given are traced.
    """

    params: Any
    state: TrainState
    metrics: dict[str, jax.Array]
    rounds: dict[str, jax.Array]

    def __repr__(self) -> str:
        """What metrics ended with; of several runs at once, or of traced ones, their shapes."""
        more = f", and {len(self.metrics) - _SHOWN} more" if len(self.metrics) > _SHOWN else ""
        said = ", ".join(f"{name} {_last(leaf)}" for name, leaf in list(self.metrics.items())[:_SHOWN])
        return f"TrainResult({said}{more}; {len(self.rounds)} records of every round)"

    def _repr_html_(self) -> str:
        names = list(self.metrics)
        columns = [("metric", names), ("at the end", [_last(self.metrics[name]) for name in names])]
        return in_notebook(self, table(columns, "html"))


def _last(leaf: Any) -> str:
    single = is_concrete(leaf) and np.ndim(leaf) == 1 and np.size(leaf)
    return f"{leaf[-1]:.4g}" if single else str(list(getattr(leaf, "shape", ())))


class Train(Protocol):
    """The function that :func:`make_train` returns."""

    def __call__(
        self,
        algorithm: Method,
        dataset: FederatedDataset,
        key: jax.Array,
        *,
        initial_params: Any = None,
        initial_state: TrainState | None = None,
    ) -> TrainResult:
        """Runs the algorithm on the data set with the key's randomness, from a model or the state of another run."""
        ...


@takes_run(
    algorithm="the returned function takes it, train(algorithm, dataset, key)",
    dataset="the returned function takes it, train(algorithm, dataset, key)",
    seeds="a seed is the key that the returned function takes, train(algorithm, dataset, jax.random.key(seed)); for "
    "several, jax.vmap(train, (None, None, 0)) and keys",
    seed="a seed is the key that the returned function takes, train(algorithm, dataset, jax.random.key(seed))",
    initial_state="the returned function takes it, train(algorithm, dataset, key, initial_state=...)",
    initial_params="the returned function takes it, train(algorithm, dataset, key, initial_params=...)",
)
def make_train(
    *, adjoint: Adjoint | None = None, on_round: OnRound | None = None, **run: Unpack[RunArguments]
) -> Train:
    """Makes ``train(algorithm, dataset, key)``, a pure function to jit, vmap and differentiate.

    ``jax.jit(train)`` is one XLA program for all rounds. ``jax.vmap(train, (None, None, 0))`` runs many seeds,
    ``(0, None, None)`` over stacked hyper-parameters many settings; ``jax.grad`` and ``jax.jacfwd`` of anything it
    returns with respect to the algorithm (the gradient has the algorithm's shape), the task, ``initial_params`` or the
    data set's example weights work in every layout. The ``adjoint`` says what a derivative stores, computes again or
    leaves out; it changes nothing of what the function returns. Traced: where a real number is one that its check would
    refuse, all real numbers of the result are NaN; ids and steps that cannot be meant leave their slots void, and
    ``"refused_slots"`` counts them.

    Args:
      task: what is learned.
      rounds: number of rounds R.
      cohort: who takes part: ``fjs.cohort.uniform(10)``.
      work: how many local steps: ``fjs.local.epochs(1)``.
      batch_size: B of a fresh permutation each epoch; give this or ``batches``.
      batches: which examples a step sees: ``fjs.local.full_batch()``.
      eval_every: rounds between evaluations; the start and the last round are always evaluated.
      evaluate_train: whether the training examples are evaluated too. False saves the pass over all of them where only
        the held-out parts and ``evaluate`` matter: there is no ``"loss"`` then.
      evaluate: more to record at every evaluation: ``evaluate(params, dataset) -> {name: array}``; with an argument
        ``clients`` it is told of them too (:class:`fedjax_sim.models.passes.Clients`).
      diagnostics: what to measure in every round, names or objects of ``fedjax_sim.diagnostics``.
      layout: how clients are run on the hardware; None or ``"auto"`` chooses by a rule. What is fastest can be
        measured before: ``fjs.layout.tune(algorithm, dataset, ...).layout``.
      skip_nonfinite: leaves a client out of the round, as one that drops out, if what it sends or keeps has a NaN or
        infinity. Otherwise it counts, and breaks the model. Both are recorded.
      system: the clients' devices in virtual time: ``fjs.systems.devices(...)``. Every round then records its
        ``"duration"`` and traffic, and clients that are late or fail are left out. None for no clock.
      asynchronous: a server that waits for messages, not for cohorts: ``fjs.asynchronous.fedbuff(buffer=10)``. Needs
        ``system``, whose clock orders the messages; the cohort scheme's slots are the clients in flight, and a round is
        one update of the server's model. None for synchronous rounds.
      adjoint: how rounds are differentiated: an object of ``fjs.adjoints``. None for ``per_round()``, which stores the
        state before each round and computes the round again on the way back.
      on_round: called on the host, while the program runs, as ``on_round(rounds_done, metrics)``: once at the start,
        with 0, and once after every round, in their order. ``metrics`` are numpy arrays by name where the round is
        evaluated, else ``{}``. Under ``vmap`` it is still one call a round, with the metrics' axes in front; where the
        run is differentiated there is none. ``progress_bar(rounds).update`` of ``fjs.reporting`` is such a function;
        ``jax.effects_barrier()`` waits for the last call.

    Returns:
      ``train(algorithm, dataset, key, *, initial_params=None, initial_state=None) -> TrainResult``. With
      ``initial_state=result.state`` a run starts where another one of the same method ended: its server and its client
      states. Its rounds are counted from 0 again, in learning rates over rounds too, and draw by their numbers and the
      key: give another key, or round t draws what it drew in the run before. Where nothing is drawn, R and then Q
      rounds are R + Q rounds.

    Raises:
      TypeError, ValueError: an argument is not what it must be; ``train`` itself raises them, before it compiles
        anything, for what does not fit the algorithm or the data set.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> train = fjs.make_train(
      ...     task=fjs.quadratic(start=1.0), rounds=3, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(),
      ...     work=fjs.local.steps(2), eval_every=3,
      ... )
      >>> algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))
      >>> result = jax.jit(train)(algorithm, data, jax.random.key(0))
      >>> result.metrics["round"].tolist()
      [0, 3]
      >>> def final_loss(algorithm):
      ...     return train(algorithm, data, jax.random.key(0)).metrics["loss"][-1]
      >>> bool(jax.jit(jax.grad(final_loss))(algorithm).client_optimizer.learning_rate < 0)
      True
    """
    asked = check_arguments(run)
    rounds, eval_every, evaluate = run["rounds"], run["eval_every"], run["evaluate"]
    chosen = per_round() if adjoint is None else adjoint
    if not isinstance(chosen, Adjoint):
        raise TypeError(
            f"adjoint is {shown(adjoint)}: it must be an Adjoint, for instance fedjax_sim.adjoints.nested(), or None"
        )
    check_again(chosen)
    if on_round is not None and not callable(on_round):
        raise TypeError(f"on_round is {shown(on_round)}: it must be a function of (rounds_done, metrics), or None")
    tell = silent if on_round is None else teller(_unless_evaluated(on_round, rounds, eval_every))

    @explained(asked)
    def train(
        algorithm: Method,
        dataset: FederatedDataset,
        key: jax.Array,
        *,
        initial_params: Any = None,
        initial_state: TrainState | None = None,
    ) -> TrainResult:
        plan = asked._replace(algorithm=algorithm, dataset=dataset, key=key)
        plan = resolve(plan, rounds, initial_params)
        initial_state = given_state(initial_state, plan, initial_params)
        wrong = unmet((algorithm, asked, chosen, evaluate), dataset)
        chosen.check(plan, rounds)
        plan = chosen.fitted(plan).placed()
        played = Run(run_round, functools.partial(measure, evaluate=evaluate), rounds, eval_every, tell)
        start = varying(init_state(plan, initial_params, initial_state), plan.algorithm)
        ran = chosen.run(played, plan, start)
        check_recorded(ran.metrics, ran.records)
        evaluated = evaluation_rounds(rounds, eval_every)
        metrics = {"round": jnp.asarray(evaluated, jnp.int32), **ran.metrics}
        clients = jax.tree.map(lambda leaf: leaf[: dataset.num_clients], ran.state.clients)
        state = ran.state._replace(clients=clients)
        result = TrainResult(plan.algorithm.evaluated(state.server), state, metrics, ran.records)
        return result if wrong is None else _spoilt(result, wrong)

    return train


def given_state(given: Any, plan: Plan, initial_params: Any = None, seeds: int | None = None) -> TrainState | None:
    """The state that a run starts in, if one is given, in the structure that it has there.

    Nodes of one from a file are dictionaries; with ``seeds``, for a plan of one key a seed, they lead all leaves.
    """
    if given is None:
        return None
    if not isinstance(given, TrainState):
        raise TypeError(
            f"initial_state is {shown(given)}: give result.state of make_train's function, or history.state of "
            "simulate(..., keep_state=True)"
        )
    check_not_summed("the run", given)
    if initial_params is not None:
        raise ValueError("initial_params and initial_state: a state has its model, give one of them")
    if plan.asynchronous is not None:
        raise ValueError("initial_state with asynchronous=...: who was in flight is no part of it; use initial_params")
    if plan.client_states.apart:
        raise ValueError(
            f"initial_state with client_states={shown(plan.client_states)}: only a run that keeps them on the device "
            "can start from given ones; leave client_states out"
        )
    one = plan._replace(client_states=OnDevice(), key=plan.key if seeds is None else plan.key[0])
    like = jax.eval_shape(init_state, one)
    num_clients = plan.dataset.num_clients

    def of_all(leaf: Any) -> Any:  # on several devices the rows are padded
        return jax.ShapeDtypeStruct((num_clients, *leaf.shape[1:]), leaf.dtype)

    like = like._replace(clients=jax.tree.map(of_all, like.clients))
    wanted, found = by_path(like), by_path(given._replace(flight=None))
    if wanted.keys() != found.keys():
        name = min(wanted.keys() ^ found.keys())
        has = f"has no {name!r}" if name in wanted else f"has {name!r}"
        raise ValueError(
            f"initial_state {has}: it is not of {type(plan.algorithm).__name__} on this task, whose state has "
            f"{', '.join(wanted)}"
        )
    front = () if seeds is None else (seeds,)
    leaves = []
    for name, leaf in wanted.items():
        array = found[name]
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.wrap_key_data(jnp.asarray(array))
        if array.shape != (*front, *leaf.shape) or array.dtype != leaf.dtype:
            same = f"give the state of a run of the same method, model, {num_clients} clients"
            if array.ndim and array.shape[1:] == leaf.shape and seeds is None:
                same = "history.state has one a seed: give one, jax.tree.map(lambda leaf: leaf[0], history.state)"
            raise ValueError(
                f"initial_state: {name!r} is {array.dtype}{list(array.shape)}, and in this run it is "
                f"{leaf.dtype}{[*front, *leaf.shape]}: {same}" + ("" if seeds is None else f" and {seeds} seeds")
            )
        leaves.append(jnp.array(array))  # a copy: the program is given its memory to write to
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _spoilt(result: TrainResult, wrong: jax.Array) -> TrainResult:
    """The result, all of whose real numbers are NaN where ``wrong``.

    A product, because a choice would make the derivative 0, which looks like a minimum.
    """

    def spoil(leaf: jax.Array) -> jax.Array:
        return leaf * jnp.where(wrong, jnp.nan, 1).astype(leaf.dtype) if is_float(leaf) else leaf

    return jax.tree.map(spoil, result)


def _unless_evaluated(on_round: OnRound, rounds: int, eval_every: int) -> OnRound:
    """``on_round`` without the calls after rounds whose evaluation makes the call."""

    def called(done: int, metrics: dict[str, np.ndarray]) -> None:
        if metrics or not (done % eval_every == 0 or done == rounds):
            on_round(done, metrics)

    return called


def evaluation_rounds(rounds: int, eval_every: int) -> list[int]:
    """Numbers of finished rounds at which a run is evaluated: 0, then every ``eval_every``, then the last."""
    return [*range(0, rounds, eval_every), rounds]


def measure(plan: Plan, state: TrainState, *, evaluate: Evaluate | None) -> dict[str, jax.Array]:
    """All that is recorded at an evaluation, but for the round."""
    params, data = plan.algorithm.evaluated(state.server), plan.dataset
    clients = reads_the_same(evaluate, plan.task)
    parts = {**({"": plan.training.dataset} if plan.measured.training else {}), **held_out_parts(data)}
    readings = {name: read(plan.task, params, part, clients=clients) for name, part in parts.items()}
    # The package's own evaluations know of placements; others must not see rows of padding.
    seen = data if isinstance(evaluate, Described) else whole(data)
    with explained(of=evaluate):
        if asks_for_clients(evaluate, plan.algorithm):
            state = with_everybody(plan, state)
        given = {} if evaluate is None else evaluated(evaluate, plan, state, params, seen, readings)
        return all_metrics({name: reading.overall for name, reading in readings.items()}, given)


def evaluated(
    evaluate: Evaluate,
    plan: Plan,
    state: TrainState,
    params: Any,
    dataset: FederatedDataset | HostDataset,
    readings: Mapping[str, Reading],
) -> Any:
    """What ``evaluate`` returns, which is told of the clients if it asks: of the state :func:`with_everybody`.

    The run's own ``readings`` of the parts are handed on to an evaluation that wants the same of them.
    """
    known = {"readings": readings} if reads_the_same(evaluate, plan.task) else {}
    if not asks_for_clients(evaluate, plan.algorithm):
        with unchanged("evaluate", params=params):
            return evaluate(params, dataset, **known)
    own = state.clients.own if plan.algorithm.keep_optimizer else state.clients
    clients = Clients(plan.algorithm, state.server, own, state.visited)
    with unchanged("evaluate", params=params, clients=clients):
        return evaluate(params, dataset, clients=clients, **known)  # type: ignore[call-arg]


def with_everybody(plan: Plan, state: TrainState) -> TrainState:
    """The state with what is kept for all clients as they use it, wherever and in which type the layout keeps it."""
    if not jax.tree.leaves(state.clients):
        return state
    everybody = jnp.arange(plan.dataset.num_clients, dtype=jnp.int32)
    return state._replace(clients=plan.layout.take(state.clients, everybody))


def asks_for_clients(evaluate: Evaluate | None, algorithm: Method) -> bool:
    """Whether an evaluation is given the clients: if it has an argument of that name.

    The package's own ones ask for them only where a client may have a model of its own.
    """
    if evaluate is None or (isinstance(evaluate, Described) and not keeps_personal(algorithm)):
        return False
    try:
        return "clients" in inspect.signature(evaluate).parameters
    except (TypeError, ValueError):  # a function that does not say what it takes
        return False
