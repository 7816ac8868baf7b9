"""What an asynchronous run can have wrong before it is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Mean, Stack, nobody
from fedjax_sim.algorithms.wrapper import encodes
from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local.work import Stragglers, Work
from fedjax_sim.clients.systems.base import WaitForAll
from fedjax_sim.core.values import shown
from fedjax_sim.engine.asynchronous.schemes import Asynchronous
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.solver import Slot, Solver

_CHANGE = "delta"  # the message that all methods of federated averaging have


def check_scheme(asynchronous: Any, system: Any, cohort: Participation, work: Work) -> None:
    """Checks what ``make_train`` is given beside ``asynchronous``.

    Raises:
      TypeError: of another kind.
      ValueError: no system, or one of the others has a meaning for cohorts only.
    """
    if not isinstance(asynchronous, Asynchronous):
        raise TypeError(
            f"asynchronous is {shown(asynchronous)}: it must be an Asynchronous, for instance "
            "fedjax_sim.asynchronous.fedbuff(buffer=10), or None"
        )
    if system is None:
        raise ValueError(
            "asynchronous=... without system=...: the order in which clients report depends on how fast they are, so "
            "give the run devices, for instance system=fedjax_sim.systems.devices(seconds_per_step=1.0)"
        )
    if not isinstance(system.policy, WaitForAll):
        raise ValueError(
            f"asynchronous=... with system=...(policy={shown(system.policy)}): a policy says when a synchronous round "
            "is closed, and here the server waits for no client: leave the policy out"
        )
    if not cohort.equal or cohort.replacement or cohort.may_be_empty or cohort.may_overflow:
        raise ValueError(
            f"asynchronous=... with cohort={shown(cohort)}: free slots are filled uniformly among the clients that are "
            "not in flight, so the scheme must draw a fixed number of clients, all equally likely and none twice: use "
            "cohort.uniform(M), cohort.shuffled(M) or cohort.full()"
        )
    if isinstance(work, Stragglers):
        raise ValueError(
            f"asynchronous=... with work={shown(work)}: a share of a cohort has no meaning where clients start one by "
            "one: use another work scheme, or give the system slow devices"
        )


def check_method(plan: Plan) -> None:
    """Checks that the method has a meaning for messages that began with different models.

    Raises:
      ValueError: it has none, by name.
    """
    algorithm = plan.algorithm
    name = type(algorithm).__name__
    alone = "asynchronous=... is for methods that average the clients' changes in one exchange, like fedavg, fedprox, "
    advice = f"{alone}fedadam and the other server optimisers"

    def refused(why: str) -> ValueError:
        return ValueError(f"{name} cannot be asynchronous: {why}; {advice}")

    if len(algorithm.phases()) > 1:
        raise refused("a round of it has several exchanges with its clients")
    requires = algorithm.requires
    if requires.everyone:
        raise refused("it needs everybody in every round")
    if requires.hears:
        raise refused("its clients hear of the new model at the end of a round")
    if plan.keeps_clients:
        raise refused("its clients keep state between their visits, which has no meaning for old models")
    if encodes(algorithm) and plan.asynchronous is not None and plan.asynchronous.mixes_models:
        raise ValueError(
            f"{name} cannot be asynchronous with fedasync: its clients clip or compress the change of the model that "
            "they began with, and fedasync takes the change of the server's present one; use fedbuff"
        )
    for what in ("slope", "step_size", "expected_size"):
        if getattr(requires, what):
            raise refused(f"it counts on the {what!r} of a cohort whose clients began with one model")
    sent_up = _messages(plan)
    single = [name for name, message in sent_up.items() if isinstance(message, Stack)]
    if single:
        raise refused(f"it reads single messages ({', '.join(single)}), which staleness cannot weigh")
    if not isinstance(sent_up.get(_CHANGE), Mean):
        raise refused(f"its clients' changes ({_CHANGE!r}) are not averaged as the cohort scheme says")
    average = plan.average(algorithm)
    if average not in ("sample", "plain"):
        raise ValueError(
            f"asynchronous=... averages by 'sample' or 'plain', not by {average!r}, which counts on who is drawn in a "
            "round: give the cohort scheme average='plain' (as in the papers) or 'sample'"
        )


def _messages(plan: Plan) -> dict[str, Any]:
    """Shapes of the messages of a client."""
    algorithm, data = plan.algorithm, plan.training.dataset

    def made() -> dict[str, Any]:
        key = jax.random.key(0)
        params, shares = plan.task.init(key, data), jnp.zeros((data.num_clients,))
        solver = Solver(algorithm, plan.task, plan.batches, data)
        sent = algorithm.send(algorithm.init(params, shares))
        return solver.messages(sent, (), Slot(nobody(), jnp.int32(0), None, key))

    shapes: dict[str, Any] = jax.eval_shape(made)
    return shapes
