"""What outer learning differentiates: a computation in segments, each of which adds to the loss.

Of a federated run, the rounds from one evaluation to the next are a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.clients.cohort.participation import storage
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import count, leaf, static
from fedjax_sim.core.keys import client_draws
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.arguments import RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import resolve, unmet
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import init_state, run_round, some_rounds
from fedjax_sim.run.training import measure
from fedjax_sim.studies.objectives import Final, Mean, check_inputs, mean
from fedjax_sim.studies.subject import Subject, Transform, judging, of_any_run, values_of

_DRAWN = ("cohort", "work")  # parts of a run whose draws have a distribution


class Unrolled(Described):
    """L(theta) = sum_s loss_s over segments s = 0 .. T-1; loss_s is a function of theta and of the state before it.

    A subclass is a pytree: what it holds in fields is an argument of a compiled program, not a constant in it.
    """

    @property
    def segments(self) -> int:
        """T, static."""
        raise TypeError(f"{type(self).__name__} must define segments")

    def begin(self, parameters: Any, key: jax.Array) -> Any:
        """The state before the first segment; all that is drawn on the way is named by the key."""
        raise TypeError(f"{type(self).__name__} must define begin(parameters, key)")

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        """The state after segment ``segment``, int32, and what it adds to the loss, a real number."""
        raise TypeError(f"{type(self).__name__} must define advance(parameters, state, segment)")

    def log_probability(self, parameters: Any, key: jax.Array) -> jax.Array:
        """log p(draws of this key; theta), up to what theta is no part of; for :func:`fedjax_sim.outer.score`."""
        raise TypeError(f"{type(self).__name__} must define log_probability(parameters, key): score() asks for it")

    def forwards(self) -> Self:
        """The same, for forward mode."""
        return self


class Function(Unrolled):
    """A loss in one segment, ``function(parameters, key)``; with a second value, log p of what it drew."""

    function: Callable[[Any, jax.Array], Any] = static()

    @property
    def segments(self) -> int:
        return 1

    def begin(self, parameters: Any, key: jax.Array) -> Any:
        return key

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        return state, self._called(parameters, state)[0]

    def log_probability(self, parameters: Any, key: jax.Array) -> jax.Array:
        log_probability: jax.Array | None = self._called(parameters, key)[1]
        if log_probability is None:
            raise TypeError("score(): the objective returns a loss alone; return (loss, log_probability) of its draws")
        return log_probability

    def _called(self, parameters: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        found = self.function(parameters, key)
        loss, log_probability = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise TypeError(f"the objective returns {shown(loss)}: it must return one real number")
        return loss, log_probability


def as_unrolled(objective: Any) -> Unrolled:
    """The objective of an estimate: itself, or a function as one segment."""
    if isinstance(objective, Unrolled):
        return objective
    if not callable(objective):
        raise TypeError(
            f"the objective is {shown(objective)}: give fedjax_sim.outer.federated(...), an Unrolled of your own, or a "
            "function of (parameters, key) that returns one real number"
        )
    return Function(objective)


class FederatedRun(Unrolled):
    """What :func:`federated` makes; a pytree, whose data are arguments of a compiled program.

    Attributes:
      parameters: theta where the method and the run have their values: coordinates u by path.
    """

    plan: Plan = leaf()
    initial_params: Any = leaf()
    transforms: dict[str, Transform] = leaf()
    objective: Final | Mean = leaf()
    rounds: int = count()
    eval_every: int = count()
    evaluate: Any = static()

    @property
    def parameters(self) -> dict[str, jax.Array]:
        return self._subject.coordinates(self.transforms)

    @property
    def segments(self) -> int:
        return self.rounds // self.eval_every

    def values(self, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The hyper-parameters f(u) by path."""
        return values_of(parameters, self.transforms)

    def begin(self, parameters: Any, key: jax.Array) -> tuple[jax.Array, TrainState]:
        return key, init_state(self._resolved(parameters, key)[0], self.initial_params)

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        key, state = state
        plan, wrong = self._resolved(parameters, key)
        step = run_round if self.eval_every == 1 else jax.checkpoint(run_round)
        rounds = segment * self.eval_every + jnp.arange(self.eval_every, dtype=jnp.int32)
        state, _ = some_rounds(plan, state, rounds, lax.scan, step)

        def measured(state: TrainState) -> jax.Array:
            return self.objective.of(measure(plan, state, evaluate=judging(self.evaluate, plan.task)))

        if isinstance(self.objective, Mean):
            loss = measured(state) / self.segments
        else:
            last = segment == self.segments - 1
            loss = lax.cond(last, measured, lambda state: jnp.zeros_like(measured(state)), state)
        if wrong is not None:
            loss = loss * jnp.where(wrong, jnp.nan, 1).astype(loss.dtype)
        return (key, state), loss

    def log_probability(self, parameters: Any, key: jax.Array) -> jax.Array:
        plan = self._resolved(parameters, key)[0].training
        parts = {path.partition(".")[0] for path in self.transforms} & {*_DRAWN}
        if not parts:
            raise ValueError(
                f"score(): none of {', '.join(self.transforms)} is a parameter of what is drawn: name one of the "
                "cohort or of the work, over=['cohort.probability']"
            )
        if plan.system is not None or plan.asynchronous is not None or len(plan.phases()) > 1:
            raise ValueError(
                "score() with system=..., asynchronous=... or a method of several exchanges a round: the probability "
                "of their draws is not written down"
            )

        def of_round(t: jax.Array) -> jax.Array:
            cohort = plan.cohort.log_probability(plan.dataset, plan.key, t) if "cohort" in parts else jnp.zeros(())
            return cohort + _of_work(plan, t) if "work" in parts else cohort

        return jnp.sum(lax.map(of_round, jnp.arange(self.rounds, dtype=jnp.int32)))

    def forwards(self) -> Self:
        return self.replace(plan=self.plan._replace(schedule=self.plan.schedule.replace(reverse=False)))

    @property
    def _subject(self) -> Subject:
        clock = ("system",) if self.plan.asynchronous is None else ("system", "asynchronous")
        return Subject.of(self.plan, ("task", *_DRAWN, "batches", *clock))

    def _resolved(self, parameters: Any, key: jax.Array) -> tuple[Plan, Any]:
        """The run at the parameters, and whether one of its values is such that its check would refuse it."""
        varied = self._subject.replace(self.values(parameters))
        asked = self.plan._replace(algorithm=varied.algorithm, key=key, **varied.run)
        wrong = unmet((asked.algorithm, asked, self.evaluate), asked.dataset)
        return resolve(asked, self.rounds, self.initial_params).placed(), wrong


def _of_work(plan: Plan, t: jax.Array) -> jax.Array:
    """log p of the numbers of local steps that round t draws."""
    data = plan.dataset
    selection = plan.cohort.select(data, plan.key, t)
    stored = storage(data, selection.indices)
    ids, sizes = data.client_ids[stored], data.sizes[stored]
    epoch = plan.batches.epoch(sizes, plan.batches.rows(data))
    turn = Turn(client_draws(plan.key, t, ids), t, selection.indices, ids, selection.present, epoch)
    return plan.work.log_probability(turn)


@takes_run()
def federated(
    algorithm: Method,
    dataset: FederatedDataset,
    *,
    over: Iterable[str] | Mapping[str, Transform | None],
    objective: Final | Mean | None = None,
    initial_params: Any = None,
    **run: Unpack[RunArguments],
) -> FederatedRun:
    """A federated run as the problem of an outer estimator, in coordinates of its hyper-parameters.

    With hyper-parameters f(u) a segment is ``eval_every`` rounds and the evaluation after them: L(u) is the mean of a
    metric over these evaluations, ``fjs.hyper.mean("test_loss")``, or its last value, ``fjs.hyper.final("test_loss")``.

    Args:
      algorithm: the method.
      dataset: the data; its validation part, or else its test part, is what the default objective validates on.
      over: the hyper-parameters by path, with or without transforms, as in :func:`fedjax_sim.tune`.
      objective: ``fjs.hyper.mean(name)``, by default of ``"validation_loss"``, without such a part of ``"test_loss"``;
        or ``fjs.hyper.final(name)``.
      initial_params: where runs start; None draws the model from each key.
      **run: the arguments of :func:`fedjax_sim.make_train`.

    Returns:
      A :class:`FederatedRun`. ``run.parameters`` are the coordinates u where the method is now, ``run.values(u)`` the
      hyper-parameters there.

    Raises:
      TypeError, ValueError: as :func:`fedjax_sim.tune`; rounds that are no multiple of ``eval_every``.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> run = fjs.outer.federated(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data, over=["client_optimizer.learning_rate"],
      ...     objective=fjs.hyper.final("loss"), task=fjs.quadratic(start=1.0), rounds=4, eval_every=2,
      ...     batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> found = jax.jit(fjs.outer.estimate)(fjs.outer.exact(), run, run.parameters, jax.random.key(0))
      >>> bool(found.gradient["client_optimizer.learning_rate"] < 0)
      True
    """
    objective = check_inputs("outer.federated", algorithm, dataset, objective, mean)
    if not isinstance(objective, Final | Mean):
        raise TypeError(
            f"outer.federated(objective=...) is {shown(objective)}: a segment adds what is recorded after it, so give "
            "fedjax_sim.hyper.mean('test_loss') or fedjax_sim.hyper.final('test_loss')"
        )
    rounds, eval_every = run["rounds"], run["eval_every"]
    plan = check_arguments(run)._replace(algorithm=algorithm, dataset=dataset)
    if rounds % eval_every:
        raise ValueError(
            f"outer.federated(rounds={rounds}, eval_every={eval_every}): a segment is eval_every rounds, so their "
            "number must be a multiple of it"
        )
    evaluate = of_any_run(run["evaluate"], plan.task)
    made = FederatedRun(plan, initial_params, {}, objective, rounds, eval_every, evaluate)
    made = made.replace(transforms=made._subject.transforms("outer.federated", over))
    if not any(path.startswith("cohort.") for path in made.transforms):  # what it is fitted by is traced from here on
        made = made.replace(plan=plan._replace(cohort=plan.cohort.fitted(dataset)))
    # What nothing records ends here.
    jax.eval_shape(
        lambda run, u, key: run.advance(u, run.begin(u, key), jnp.int32(0)), made, made.parameters, jax.random.key(0)
    )
    return made
