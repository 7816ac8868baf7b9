"""The part of the comparison for methods whose clients end up with models of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim import algorithms, optim
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.clients import local
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf, real
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.models.base import of_kind
from fedjax_sim.models.passes import Clients, personal_values
from fedjax_sim.models.task import Task
from fedjax_sim.studies.benchmark.methods import PLAIN, RATE, Entry
from fedjax_sim.studies.benchmark.problems import PROBLEMS
from fedjax_sim.studies.personalise import personalise
from fedjax_sim.studies.sweeps.space import log_uniform, uniform

TUNED = "FedAvg, fine-tuned"
OWN = "own_"  # before the names of what clients' own models are worth
_INSIDE = f"base.{RATE}"


class FineTuned(Wrapper):
    """A method whose clients fine-tune the shared model before they use it, by steps of a rate of their own.

    Training is the base's. The rate is here, and not in the evaluation, so that it is drawn as all others are.
    """

    tuning_rate: Any = real(default=0.01, low=0.0)

    of_one_model: ClassVar[bool] = True

    def personal(self, server: Wrapped, c_i: Any) -> Any:
        return self.evaluated(server)  # before the steps, which need the client's examples: OwnModels takes them


class OwnModels(Described):
    """For ``evaluate=``: what the model of each client's own is worth on that client's own held-out examples.

    ``"<part>_own_<name>"`` is the mean over the examples of all clients, ``"<part>_own_clients_<name>"`` over the
    clients with examples, each counting the same, for the loss and the metrics of the task. Every client counts: who
    was never visited has what it began with. One model that is not finite makes all losses NaN.

    Models are what ``method.personal`` says; of :class:`FineTuned` the shared one after an epoch on the client's
    training examples, in batches of this size, which is counted in no budget.
    """

    task: Task = leaf(of_kind(Task, "the run's task"))
    batch: int = count()

    def __call__(self, params: Any, dataset: FederatedDataset, clients: Clients | None = None) -> dict[str, jax.Array]:
        if clients is None:
            raise ValueError("own_models(...): the method has one model for all: evaluate with by_clients(task)")
        parts = held_out_parts(dataset)
        if isinstance(clients.method, FineTuned):
            sgd = optim.sgd(clients.method.tuning_rate)
            tuned = personalise(self.task, sgd, local.epochs(1), local.shuffled(self.batch))
            values = tuned.tested(params, dataset)
        else:
            values = {name: personal_values(self.task, clients, part) for name, part in parts.items()}
        found = {}
        for part, held in parts.items():
            for name, of_clients in values[part].items():
                found[f"{part}_{OWN}{name}"] = _mean(of_clients, held.sizes)
                # not nanmean, which would leave out clients whose models diverged
                found[f"{part}_{OWN}clients_{name}"] = _mean(of_clients, held.sizes > 0)
        return found


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    weights = weights.astype(values.dtype)
    return jnp.sum(jnp.where(weights > 0, values, 0) * weights) / jnp.sum(weights)


fine_tuned = factory("benchmark.fine_tuned", FineTuned)
own_models = factory("benchmark.own_models", OwnModels)


def _around(wrap: Callable[[Method], Method], method: Callable[..., Method]) -> Callable[..., Method]:
    return lambda **given: wrap(method(**given))


_SERVER = {f"base.{name}": of for name, of in PLAIN.items()}
_PULL = {"lam": log_uniform(1e-3, 3.0)}
_HEAD, _MLP = ("Dense_1",), ("MNIST, Dir(0.1)",)  # of the problem with one hidden layer; others are linear, or deep

# fmt: off
PERSONAL: dict[str, Entry] = {
    TUNED: Entry(_around(fine_tuned, algorithms.fedavg), _SERVER, rates=(_INSIDE, "tuning_rate")),
    "alone": Entry(_around(lambda base: algorithms.keep(base, ("*",)), algorithms.fedavg), {}, rates=(_INSIDE,)),
    "Ditto": Entry(algorithms.ditto, PLAIN | _PULL),
    "APFL": Entry(algorithms.apfl, PLAIN | {"alpha": uniform(0.0, 1.0)}),
    "MR-MTL": Entry(algorithms.mr_mtl, _PULL),  # its server's model is the mean by definition
    "FedALA": Entry(algorithms.fedala, PLAIN | {"weight_learning_rate": log_uniform(0.1, 10.0)}),
    "pFedMe": Entry(algorithms.pfedme, PLAIN | {"lam": log_uniform(0.3, 30.0),
                                                "outer_learning_rate": log_uniform(0.003, 0.3)}),
    "Per-FedAvg, fine-tuned": Entry(_around(fine_tuned, algorithms.perfedavg), _SERVER,
                                    rates=(_INSIDE, "base.alpha", "tuning_rate")),
    "FedPer": Entry(_around(lambda base: algorithms.keep(base, _HEAD), algorithms.fedavg), _SERVER,
                    rates=(_INSIDE,), problems=_MLP),
    "FedRep": Entry(_around(lambda base: algorithms.fedrep(base, _HEAD), algorithms.fedavg), _SERVER,
                    rates=(_INSIDE,), problems=_MLP),
}
# fmt: on
"""The methods whose clients have models of their own, by name: :class:`Entry` each."""


def unfit(entry: Entry, problem: str) -> str:
    """Why a method cannot be judged on a problem; nothing where it can."""
    if entry.personal and PROBLEMS[problem].people:
        return (
            "its clients have models of their own, to be judged by their own held-out examples, and there whole people "
            "are held out, who train nothing"
        )
    if entry.problems is not None and problem not in entry.problems:
        return "it keeps a layer of the model that the problem's model does not have, or has elsewhere"
    return ""


def fitting(name: str, entry: Entry, given: tuple[str, ...] | None = None) -> list[str]:
    """The problems of these names; by default all, of models of clients' own all but the deep ones.

    Of what is asked for, those that are unfit are refused.
    """
    fit = [problem for problem in PROBLEMS if not unfit(entry, problem)]
    for problem in given or ():
        why = unfit(entry, problem)
        if why:
            raise ValueError(f"benchmark({name!r}, problems=[{problem!r}]): {why}; give some of {'; '.join(fit)}")
    return list(given or [problem for problem in fit if not (entry.personal and PROBLEMS[problem].deep)])
