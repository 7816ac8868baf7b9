"""What a diagnostic is: a pure function of what can be seen of one round, with a name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax

from fedjax_sim.algorithms.contract import Client, Cohort
from fedjax_sim.core.descriptions import Described, build, registered
from fedjax_sim.core.values import check_choice, shown, suggest
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.task import Task

_KIND = "diagnostic"
_OBSERVED = {"updates": "updates", "drift": "drift", "weights_of_steps": "accumulation"}  # fields of a view
_TAKEN = (
    "client_ids", "client_staleness", "cohort_size", "computed_steps", "diverged", "lowest_weight", "nonfinite_clients",
    "nonfinite_ids", "overflow", "refused_slots", "staleness", "staleness_max", "staleness_mean", "useful_steps",
)  # fmt: skip


class RoundView(NamedTuple):
    """What a diagnostic sees of one round; every array may be traced.

    Attributes:
      task: what is learned.
      dataset: the training part of the data.
      algorithm: the method.
      before: the model x at the start of the round.
      after: the model after it.
      client: the cohort's clients, leaves [S]; void slots have ``steps`` 0 and ``index`` N.
      cohort: the round as the server sees it.
      updates: y_i - x, leaves [S, ...], zero in void slots; of those that are computed where
        a diagnostic's ``observes`` has them, here "updates". It is a TypeError to read them else.
      drift: |y_i - x|, [S], 0 in void slots; for "drift".
      weights_of_steps: a_i, [S, most]: the local solver's accumulation weights over its steps, 0 beyond tau_i, for the
        first leaf of the parameters; for "accumulation".
      bytes_down: bytes sent to all clients of the round, in all phases; float scalar.
      bytes_up: bytes that they send; float scalar.
      useful_steps: gradients that the clients needed.
      computed_steps: gradients that the layout computed.
      key: PRNG key of (run, round) for the diagnostics' own draws.
    """

    task: Task
    dataset: FederatedDataset
    algorithm: Any
    before: Any
    after: Any
    client: Client
    cohort: Cohort
    updates: Any
    drift: Any
    weights_of_steps: Any
    bytes_down: jax.Array
    bytes_up: jax.Array
    useful_steps: jax.Array
    computed_steps: jax.Array
    key: jax.Array

    def __getattribute__(self, name: str) -> Any:
        value = tuple.__getattribute__(self, name)
        if name in _OBSERVED and isinstance(value, tuple) and value == ():  # a sum over its leaves would be 0
            observes = f"have observes = frozenset({{{_OBSERVED[name]!r}}}), with what it has already, in its class"
            raise TypeError(f"view.{name} is computed for diagnostics that observe it: {observes}")
        return value


class Diagnostic(Described):
    """Base of the diagnostics.

    A diagnostic of your own defines :meth:`measure`, and ``records`` where it does not record exactly one array under
    its registered name.

    Attributes:
      records: the names that :meth:`measure` may return; empty for the registered name.
      observes: which of ``"updates"``, ``"drift"`` and ``"accumulation"`` it reads; what nobody reads is not computed.
      reads: whether it reads the data set: then the program is compiled for the shapes and sizes of that one alone.
      everyone: whether it reads examples of clients outside the cohort; if so, it needs all data on the device.
    """

    records: ClassVar[tuple[str, ...]] = ()
    observes: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[bool] = True
    everyone: ClassVar[bool] = True

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        """What is recorded of the round: arrays by name."""
        raise TypeError(f"{type(self).__name__} must define measure(view) -> {{name: array}}")

    def names(self) -> tuple[str, ...]:
        """The names that :meth:`measure` may return; ``records``, where they do not depend on the fields."""
        return self.records or (getattr(type(self), "_registered_name", type(self).__name__).rpartition(".")[2],)

    def check(self, dataset: FederatedDataset, task: Task) -> None:
        """Raises ``ValueError`` where this data set or task cannot be measured."""


Requested: TypeAlias = str | Diagnostic | Sequence[str | Diagnostic]
"""What ``diagnostics=`` takes: a name, a diagnostic, or a sequence of both."""


def by_name(name: str) -> Diagnostic:
    """The diagnostic called ``"diagnostic.<name>"``, with its default arguments; an error lists what is known."""
    importlib.import_module("fedjax_sim.diagnostics")
    known = [full.partition(".")[2] for full in registered(_KIND)]
    if name not in known:
        raise ValueError(f"no diagnostic is called {name!r}: {suggest(name, known)}")
    return build({"name": f"{_KIND}.{name}", "arguments": {}})


def as_diagnostics(given: Requested) -> tuple[Diagnostic, ...]:
    """A name, a diagnostic or a sequence of both as a tuple of diagnostics.

    Raises:
      ValueError: an unknown name, or a name of a record that is taken.
      TypeError: something else was given.
    """
    items = (given,) if isinstance(given, (str, Diagnostic)) else given
    if not (isinstance(items, Sequence) and all(isinstance(item, (str, Diagnostic)) for item in items)):
        raise TypeError(
            f"diagnostics={shown(given)}: give names ('e_lud') or objects of fedjax_sim.diagnostics, or a list of them"
        )
    made = tuple(by_name(item) if isinstance(item, str) else item for item in items)
    owners = dict.fromkeys(_TAKEN, "the run itself")
    for one in made:
        for observed in one.observes:
            check_choice(f"{type(one).__name__}.observes", observed, tuple(_OBSERVED.values()))
        for name in one.names():
            if name in owners:
                who = f"{type(one).__name__} records {name!r}, which {owners[name]} records too"
                raise ValueError(f"diagnostics: {who}: ask for one of them")
            owners[name] = type(one).__name__
    return made
