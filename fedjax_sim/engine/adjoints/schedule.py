"""The most steps that the rounds of a known run take, in the place of a bound for all runs.

A derivative in reverse mode has a static size: for ``turns`` of its record, for ``lanes``, ``buckets`` and ``stacked``
of its loops (see :mod:`fedjax_sim.layout`). It must hold for every cohort and every draw of the work; where tau_i are
unequal it is far more than a round needs. A run whose key is known has known draws, so the true maximum over its rounds
can be computed first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.clients.scheme import one_of
from fedjax_sim.core.descriptions import factory, is_traced
from fedjax_sim.core.fields import count, leaf
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.adjoints.scans import Adjoint, PerRound, Ran, Run
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import init_state, take_part
from fedjax_sim.engine.solver import Solver


class Bounded(Adjoint):
    """An adjoint whose rounds are known to take no more than so many micro-steps: those of :func:`reverse_bound`.

    It lessens the memory of a round's inside and, where the derivative's loops are of static length, its time. A round
    that takes more (another key, other data) turns the model into NaN, in the run without a derivative too.

    Args:
      per_cohort: most micro-steps of a round's clients together.
      per_client: most micro-steps of one client in a round.
      base: the adjoint.
    """

    per_cohort: int = count()
    per_client: int = count()
    base: Adjoint = leaf(one_of(Adjoint, example="fedjax_sim.adjoints.per_round()"), default=PerRound())

    def check(self, plan: Plan, rounds: int) -> None:
        self.base.check(plan, rounds)

    def fitted(self, plan: Plan) -> Plan:
        plan = self.base.fitted(plan)
        return plan._replace(schedule=plan.schedule.replace(per_cohort=self.per_cohort, per_client=self.per_client))

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        return self.base.run(run, plan, state)


class ReverseBound(NamedTuple):
    """What a run's reverse schedule needs, and what it would run without this knowledge; micro-steps a round.

    Attributes:
      per_cohort: the most that a round's clients take together.
      per_client: the most that one client takes in a round.
      static_per_cohort: the bound that holds for every key.
      static_per_client: likewise.
      useful: what a round's clients take together, the mean over rounds and keys.
    """

    per_cohort: int
    per_client: int
    static_per_cohort: int
    static_per_client: int
    useful: float

    @property
    def static_ratio(self) -> float:
        """Iterations of the reverse schedule over useful ones, with the bound for every key (one lane)."""
        return self.static_per_cohort / self.useful

    @property
    def ratio(self) -> float:
        """The same with the bound of these keys."""
        return self.per_cohort / self.useful

    def adjoint(self, base: Adjoint | None = None) -> Bounded:
        """``base`` (None for ``per_round()``) with this bound, for runs with these keys."""
        return bounded(self.per_cohort, self.per_client, PerRound() if base is None else base)


def reverse_bound(algorithm: Method, dataset: FederatedDataset, keys: jax.Array, **run: Any) -> ReverseBound:
    """The steps that the rounds of runs with these keys take, drawn ahead: no gradient is computed.

    Args:
      algorithm: the method; its hyper-parameters do not matter.
      dataset: the data.
      keys: one concrete key, or an array of them.
      **run: the keyword arguments of :func:`fedjax_sim.make_train`.

    Raises:
      TypeError, ValueError: as ``make_train``; or something is traced, so that its draws are not known: call this
        outside of jit, grad and vmap.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data, key = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=60, seed=0), jax.random.key(0)
      >>> run = dict(task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=20, batch_size=10,
      ...            cohort=fjs.cohort.uniform(2), work=fjs.local.random_epochs(1, 5))
      >>> algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))
      >>> bound = fjs.adjoints.reverse_bound(algorithm, data, key, **run)
      >>> bound.useful <= bound.per_cohort <= bound.static_per_cohort
      True
      >>> train = fjs.make_train(**run, adjoint=bound.adjoint(fjs.adjoints.nested()))
    """
    if is_traced((algorithm, dataset, keys, run)):
        raise TypeError("reverse_bound was given traced values, whose draws are not known: call it outside of jit")
    asked, rounds = asked_of(run)
    if asked.asynchronous is not None:
        raise ValueError(
            "reverse_bound counts the steps of cohorts, and with asynchronous=... the clients of a round are those who "
            "report in time: use the adjoints without it"
        )
    several = jnp.reshape(keys, (-1,))
    plan = resolve(asked._replace(algorithm=algorithm, dataset=dataset, key=several[0]), rounds)
    totals, largest = _drawn_steps(plan._replace(key=several), jnp.arange(rounds, dtype=jnp.int32))
    limits = [plan.bounds(phase.method) for phase in plan.phases()]
    sums = np.asarray(totals)
    return ReverseBound(
        per_cohort=max(int(sums.max()), 1),
        per_client=max(int(np.asarray(largest).max()), 1),
        static_per_cohort=max(limit.per_cohort for limit in limits),
        static_per_client=max(limit.per_client for limit in limits),
        useful=float(sums.max(axis=-1).mean()),
    )


@jax.jit
def _drawn_steps(plan: Plan, ts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Micro-steps of the cohort together and of its busiest client, int32[keys, rounds, phases]."""

    def of_key(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        run = plan._replace(key=key)
        # Draws do not depend on the state; some methods' slopes do, and are dropped from the program with them.
        state, run = init_state(run), run.training

        def of_round(t: jax.Array) -> tuple[jax.Array, jax.Array]:
            steps = []
            for phase in run.phases():
                sent = phase.method.send(state.server)
                slots = take_part(run, phase, sent, state, t)[0].slots
                steps.append(Solver(phase.method, run.task, run.batches, run.dataset).micro_steps(slots))
            return jnp.stack([jnp.sum(one) for one in steps]), jnp.stack([jnp.max(one) for one in steps])

        return lax.map(of_round, ts)

    return lax.map(of_key, plan.key)


bounded = factory("adjoint.bounded", Bounded)
