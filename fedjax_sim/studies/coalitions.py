"""What clients are worth, exactly: a run retrained for every coalition of them, as one program."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Each, Method
from fedjax_sim.clients.cohort.availability import available, trace
from fedjax_sim.core.loops import over_leading_axis
from fedjax_sim.core.values import check_flag, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.engine.plan import Plan
from fedjax_sim.run.training import make_train
from fedjax_sim.studies.objectives import Objective, check_inputs, evaluated, final

_MOST = 16  # clients of whom all coalitions are tried, 65,536


class Coalitions(NamedTuple):
    """What :func:`coalitions` returns; C coalitions, N clients in storage order, S seeds.

    Attributes:
      members: bool[C, N], who was in.
      by_seed: float[C, S], the objective J.
      models: the models after training, leaves [C, S, ...], where they were kept; else None.
    """

    members: np.ndarray
    by_seed: np.ndarray
    models: Any = None

    @property
    def values(self) -> np.ndarray:
        """J of each coalition, float[C]: the mean over seeds."""
        return np.asarray(np.mean(self.by_seed, axis=1))

    def value(self, members: Any) -> float:
        """J of one coalition, bool[N].

        Raises:
          KeyError: it was not tried.
        """
        return float(self.values[self._row(members)])

    def model(self, members: Any) -> Any:
        """The models trained by one coalition, bool[N], one a seed: leaves [S, ...].

        Of everybody but client i it is the model that has unlearned i, by retraining.

        Raises:
          KeyError: it was not tried.
          ValueError: models were not kept.
        """
        if self.models is None:
            raise ValueError("model(members): models were not kept; ask for them, coalitions(..., keep_models=True)")
        row = self._row(members)
        return jax.tree.map(lambda leaf: leaf[row], self.models)

    def _row(self, members: Any) -> int:
        wanted = np.asarray(members)
        if wanted.dtype != bool or wanted.shape != self.members.shape[1:]:
            raise ValueError(f"members={shown(members)}: give True or False for each of the clients, bool[N]")
        (found,) = np.nonzero((self.members == wanted).all(axis=1))
        if not len(found):
            raise KeyError(f"the coalition {np.flatnonzero(wanted).tolist()} was not tried")
        return int(found[0])

    @property
    def leave_one_out(self) -> np.ndarray:
        """J(all) - J(all but i), float[N]: what client i adds to the objective; of a loss, negative is good."""
        number = self.members.shape[1]
        without = [self.value(all_but_one) for all_but_one in ~np.eye(number, dtype=bool)]
        return self.value(np.ones(number, bool)) - np.array(without)

    @property
    def shapley(self) -> np.ndarray:
        """phi_i = sum over S without i of |S|! (N - |S| - 1)! / N! (J(S and i) - J(S)), float[N].

        All coalitions are needed. They sum to J(all) - J(nobody).

        Reference: Shapley 1953, "A value for n-person games"; of data: Ghorbani and Zou 2019, "Data Shapley".
        """
        number = self.members.shape[1]
        if len(self.members) != 2**number:
            raise ValueError(f"Shapley values of {number} clients need all {2**number} coalitions: coalitions('all')")
        values = np.empty(2**number)
        values[self.members @ (1 << np.arange(number))] = self.values
        codes = np.arange(2**number)
        sizes = np.array([code.bit_count() for code in codes.tolist()])
        weights = np.array([1 / (number * math.comb(number - 1, size)) for size in range(number)])
        phi = []
        for i in range(number):
            without = codes[codes >> i & 1 == 0]
            phi.append(np.sum(weights[sizes[without]] * (values[without | 1 << i] - values[without])))
        return np.array(phi)


def coalitions(
    algorithm: Method,
    dataset: FederatedDataset,
    which: Any = "all",
    *,
    objective: Objective | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    keep_models: bool = False,
    **run: Any,
) -> Coalitions:
    """Trains without some of the clients, for every coalition of those who stay: one program, compiled once.

    The truth that :func:`fedjax_sim.hyper.influence` is a first-order answer to; also what it would take to unlearn a
    client. Who is not in a coalition never takes part, and the others' weights are as if there were no more clients.
    With a cohort that is drawn, the draw is of all clients; those who are not in are missing in it, as ones not
    available.

    Args:
      algorithm: a method whose clients keep nothing and whose server knows its cohort alone (FedAvg, FedProx, FedNova,
        server optimisers): of others a run without some clients is not what is left when they stay away.
      dataset: all clients' data; the held-out part, on which the default objective is, stays that of everybody.
      which: ``"all"``, for at most 16 clients; ``"leave_one_out"``, everybody and everybody but one; or bool[C, N],
        clients in storage order.
      objective: a function of a :class:`fedjax_sim.run.training.TrainResult` that returns one real number; by default,
        as of :func:`fedjax_sim.hyper.influence`, the loss on validation examples, else on test examples.
      seeds: one seed or several; the same for all coalitions.
      initial_params: where the runs start; None draws them from each seed.
      keep_models: whether the models after training are returned too, C times S of them in memory.
      **run: the arguments of :func:`fedjax_sim.make_train`.

    Returns:
      :class:`Coalitions`.

    Raises:
      TypeError, ValueError: before anything is compiled: a method or an average of which that is not true; more clients
        than have all coalitions tried.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, scale=1.0)
      >>> found = fjs.hyper.coalitions(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, objective=fjs.hyper.final("loss"), rounds=3,
      ...     task=fjs.quadratic(), batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> gain = found.value([True, True, True]) - found.value([False, False, False])
      >>> len(found.members), bool(abs(found.shapley.sum() - gain) < 1e-6)
      (8, True)
    """
    objective = check_inputs("coalitions", algorithm, dataset, objective, final)
    check_flag("coalitions(keep_models=...)", keep_models)
    members = _members(which, dataset.num_clients)
    _check_separable(algorithm, dataset, run)
    keys = jax.vmap(jax.random.key)(jnp.asarray(check_seeds(seeds), jnp.uint32))
    by_index = members[:, np.asarray(dataset.order)]

    @jax.jit
    def retrained(algorithm: Method, dataset: FederatedDataset, params: Any, there: jax.Array, keys: jax.Array) -> Any:
        def of(there: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
            train = make_train(**run | {"cohort": available(run["cohort"], trace(there[None]))})
            result = train(algorithm, dataset, key, initial_params=params)
            return evaluated(objective, result), result.params if keep_models else None

        return over_leading_axis(lambda there: over_leading_axis(lambda key: of(there, key), keys), there)

    found = retrained(algorithm, dataset, initial_params, jnp.asarray(by_index), keys)
    return Coalitions(members, *jax.tree.map(np.asarray, found))


def _members(which: Any, number: int) -> np.ndarray:
    if isinstance(which, str) and which == "all":
        if number > _MOST:
            raise ValueError(
                f"coalitions('all') of {number} clients are 2^{number} runs: take at most {_MOST} clients, or "
                "'leave_one_out', or bool[C, N]"
            )
        return (np.arange(2**number)[:, None] >> np.arange(number) & 1).astype(bool)
    if isinstance(which, str) and which == "leave_one_out":
        return np.concatenate([np.ones((1, number), bool), ~np.eye(number, dtype=bool)])
    members = np.asarray(which)
    if members.dtype != bool or members.ndim != 2 or members.shape[1] != number or not len(members):
        raise ValueError(
            f"coalitions({shown(which)}): give 'all', 'leave_one_out', or an array of True and False [C, {number}], a "
            "client a column"
        )
    return members


def _check_separable(algorithm: Method, dataset: FederatedDataset, run: dict[str, Any]) -> None:
    """Checks that a client who never takes part has no effect."""
    plan = asked_of(run)[0]._replace(algorithm=algorithm, dataset=dataset)
    for method in algorithm.phases():
        requires, average = method.requires, plan.average(method)
        why = None
        if plan.keeps_clients or requires.remembers_everyone:
            why = "keeps a state for each client, of whom the server counts all"
        elif _sends_each(plan, method):
            why = "sends each client something of its own, of which the server counts all"
        elif requires.objective:
            why = "tells the server F(x) over all clients"
        elif not plan.averaging(method).normalised:
            why = f"averages by {average!r}, in which a client that stays away leaves x"
        if why:
            raise ValueError(
                f"coalitions({type(algorithm).__name__}): it {why}, so that a run without some clients is not what is "
                "left when they stay away: retrain on the data of the others"
            )


def _sends_each(plan: Plan, method: Method) -> bool:
    """Whether the server keeps something for every client, as AFL their weights."""
    nothing = jnp.zeros((plan.dataset.num_clients,), jnp.result_type(float))
    sent = jax.eval_shape(lambda params: method.send(plan.algorithm.init(params, nothing)), plan.params)
    return any(isinstance(node, Each) for node in jax.tree.leaves(sent, is_leaf=lambda node: isinstance(node, Each)))
