"""Training of learned optimisers over a distribution of federations, and the files that they are kept in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr

from fedjax_sim import optim
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.core.fields import leaf, real
from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.keys import generator
from fedjax_sim.core.opaque import check_known
from fedjax_sim.core.paths import real_leaves
from fedjax_sim.core.values import check_count, shown
from fedjax_sim.datasets.buckets import InBucket, in_one_bucket
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.datasets.fingerprints import fingerprint
from fedjax_sim.engine.arguments import RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.run.checkpoints.differences import check_same
from fedjax_sim.run.checkpoints.files import encoded, read
from fedjax_sim.run.checkpoints.store import Store
from fedjax_sim.run.training import measure
from fedjax_sim.studies.objectives import Mean, check_inputs, check_minimised, mean
from fedjax_sim.studies.outer.estimators import PES, pes
from fedjax_sim.studies.outer.problems import FederatedRun, federated
from fedjax_sim.studies.subject import Subject, judging
from fedjax_sim.studies.sweeps.program import of_most_slots, of_most_steps, placed
from fedjax_sim.studies.sweeps.space import LogUniform, Uniform


class Federations(FederatedRun):
    """What :func:`federations` makes: the outer problem of a rule, whose runs each draw a federation.

    Attributes:
      parameters: the weights of the learned rules by path.
      vary: distributions of what else is drawn, by path.
      cap: the largest log of a loss over that at the start.
    """

    vary: dict[str, LogUniform | Uniform] = leaf(default_factory=dict)
    cap: Any = real(default=1.0)

    def algorithm(self, parameters: Mapping[str, Any]) -> Method:
        """The method with these weights in its rules."""
        return self._subject.replace(self.values(parameters)).algorithm

    def begin(self, parameters: Any, key: jax.Array) -> Any:
        state = super().begin(parameters, key)
        plan = self._resolved(parameters, key)[0]
        return state, self.objective.of(measure(plan, state[1], evaluate=judging(self.evaluate, plan.task)))

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        """The segment's part of the mean of log(loss / loss at the start), which is at most the cap, NaN being that."""
        state, start = state
        state, loss = super().advance(parameters, state, segment)
        ratio = jnp.log(loss * self.segments) - jnp.log(start)  # NaN where either is below 0
        cap = trees.as_dtype(self.cap, ratio)
        return (state, start), jnp.where(ratio < cap, ratio, cap) / self.segments

    def description(self) -> dict[str, Any]:
        """The method, the run, what is drawn, and a checksum of the data, as JSON."""
        vary = {path: describe(of) for path, of in self.vary.items()}
        run = {"rounds": self.rounds, "eval_every": self.eval_every, "objective": describe(self.objective)}
        data = {"datasets": fingerprint(self.plan.dataset), "vary": vary, "cap": float(self.cap)}
        skipping = {"skip_nonfinite": True} if self.plan.guard.skip else {}  # older checkpoints say nothing of it
        return {**self._subject.description(), **run, **data, **skipping}

    def drawn(self, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array], jax.Array]:
        """What a run's key draws: which data set, the values by path, and the key of the run itself."""
        run, which, *keys = jax.random.split(key, 2 + len(self.vary))
        number = len(self.plan.dataset.num_examples)  # type: ignore[arg-type]
        values = {path: _value(of, one) for (path, of), one in zip(sorted(self.vary.items()), keys, strict=True)}
        return jax.random.randint(which, (), 0, number), values, run

    def _resolved(self, parameters: Any, key: jax.Array) -> tuple[Plan, Any]:
        which, values, run = self.drawn(key)
        dataset = jax.tree.map(lambda leaf: leaf[which], self.plan.dataset)
        asked = self.plan._replace(key=run, dataset=dataset)
        return placed(asked, {**self.values(parameters), **values}), None


def _value(of: LogUniform | Uniform, key: jax.Array) -> jax.Array:
    share = jax.random.uniform(key, (), jnp.result_type(float))
    low, high = (trees.as_dtype(end, share) for end in (of.low, of.high))
    return low * (high / low) ** share if isinstance(of, LogUniform) else low + (high - low) * share


@takes_run()
def federations(
    algorithm: Method,
    datasets: Iterable[FederatedDataset],
    *,
    vary: Mapping[str, LogUniform | Uniform] | None = None,
    objective: Mean | None = None,
    cap: float = 1.0,
    **run: Unpack[RunArguments],
) -> Federations:
    """A distribution of federations, as the outer problem of the learned rules of a method.

    Each run draws, by its key: one of the data sets; a value of everything in ``vary``; the model it starts from,
    cohorts and batches. One program serves all: data sets lie in arrays of the largest's rows; work and cohorts vary by
    real numbers, ``"work.mean"`` of ``gaussian_steps``, ``"cohort.availability.probability"`` of ``available``.

    A run's loss is the mean over its evaluations of log(loss / loss at the start), each at most ``cap``, so that no run
    that diverges is all that is seen. For ``es`` and ``pes``.

    Args:
      algorithm: the method; its server or client optimiser, or both, are ``fjs.optim.learned(...)``.
      datasets: one or more, with the same number of clients, features and held-out parts.
      vary: what else is drawn: ``fjs.sweeps.log_uniform(low, high)`` or ``uniform`` by path, as in sweeps.
      objective: ``fjs.hyper.mean(name)`` of a positive loss, by default the one on validation examples, else on test
        examples.
      cap: see above.
      **run: the arguments of :func:`fedjax_sim.make_train`.

    Raises:
      TypeError, ValueError: what does not fit, before anything is compiled.
    """
    given, found = list(datasets), dict(vary or {})
    if not given:
        raise ValueError("learned.federations(datasets=[]): give at least one data set")
    objective = check_inputs("learned.federations", algorithm, given[0], objective, mean)
    if not isinstance(objective, Mean):
        raise TypeError(f"learned.federations(objective=...) is {shown(objective)}: give fedjax_sim.hyper.mean(...)")
    check_minimised("learned.federations", objective)
    for path, of in found.items():
        if not isinstance(of, LogUniform | Uniform):
            raise TypeError(f"vary[{path!r}] is {shown(of)}: give fedjax_sim.sweeps.log_uniform(...) or uniform(...)")
    weights = _weights(algorithm)
    if not weights:
        raise ValueError(
            f"learned.federations: {shown(algorithm)} has nothing to learn: give it server_optimizer= or "
            "client_optimizer=fedjax_sim.optim.learned()"
        )
    one = federated(algorithm, given[0], over=weights, objective=objective, **run)
    asked = one.plan._replace(key=jax.random.key(0))
    plans = [resolve(asked._replace(dataset=dataset), one.rounds) for dataset in given]
    same_parts = len({tuple(held_out_parts(dataset)) for dataset in given}) == 1
    alike = in_one_bucket(given) if same_parts else []
    kinds = {
        (jax.tree.structure(dataset), *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(dataset)),
         fingerprint((plan.algorithm, plan.cohort))) for plan, dataset in zip(plans, alike, strict=False)
    }  # fmt: skip
    if len(kinds) != 1:
        raise ValueError(
            "learned.federations(datasets=...): they differ in more than sizes and values: give all the same number of "
            "clients and classes, features of one shape and type, and the same held-out parts"
        )
    if not isinstance(plans[0].placed().shared(one.evaluate).dataset, InBucket):
        raise ValueError(
            "learned.federations: of this run no program is for several data sets: leave out evaluate, diagnostics of "
            "the data and a mesh, and take a task without scores whose loss is a sum over examples"
        )
    made = Federations(
        plans[0], None, one.transforms, objective, one.rounds, one.eval_every, one.evaluate, found, cap
    ).checked()
    # Slots and steps for all that is drawn.
    subject = Subject.of(check_arguments(run)._replace(algorithm=algorithm), made._subject.run)
    ends = [subject.replace({path: getattr(of, end) for path, of in found.items()}) for end in ("low", "high")]
    cohorts = [end.run["cohort"].fitted(given[0]) for end in ends]
    cohort = of_most_slots(plans[0].cohort, cohorts, given[0].num_clients)
    work = of_most_steps(plans[0].work, (end.run["work"] for end in ends))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
    return made.replace(plan=plans[0]._replace(dataset=stacked, cohort=cohort, work=work))


def _weights(method: Method) -> list[str]:
    """The paths of the weights of all learned rules in a method."""
    found = jax.tree_util.tree_flatten_with_path(method, is_leaf=lambda node: isinstance(node, optim.Learned))[0]
    rules = {keystr(path, simple=True, separator="."): rule for path, rule in found if isinstance(rule, optim.Learned)}
    return [f"{path}.{inner}" for path, rule in rules.items() for inner in real_leaves(rule)]


class Trained(NamedTuple):
    """What :func:`train` found.

    Attributes:
      algorithm: the method with the trained rules in it.
      losses: float[episodes], the mean loss of the perturbed runs; of the rules themselves it is lower.
    """

    algorithm: Method
    losses: np.ndarray


def train(
    problem: Federations,
    *,
    episodes: int,
    key: jax.Array,
    estimator: PES | None = None,
    optimizer: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int = 20,
    progress: bool | None = None,
) -> Trained:
    """Trains learned rules: a step of the outer optimiser after every window of the estimator's pairs of runs.

    In an episode, one compiled program, all pairs begin anew, each in a federation of its own, and go through all
    windows. The result is a function of the problem, the arguments and the key.

    Args:
      problem: what :func:`federations` made.
      episodes: how many; each has as many steps as there are windows.
      key: names all that is drawn.
      estimator: ``fjs.outer.pes(...)``; by default sigma 0.1, 8 pairs and two windows, or one.
      optimizer: of the weights, of ``fjs.optim`` or optax; by default ``adam(0.01)``.
      checkpoint: a directory from which a training goes on, to the same result to the last bit, or to more episodes.
      save_every: episodes between checkpoints.
      progress: a progress bar; None shows one on a terminal only.

    Raises:
      TypeError, ValueError: what does not fit; a checkpoint of another problem, estimator, optimiser or key, or of
        another random generator or precision.
      FloatingPointError: all runs diverge at the start, or their losses are not positive.

    Reference: Vicol et al. 2021, "Unbiased gradient estimation in unrolled computation graphs with persistent evolution
    strategies".
    """
    if not isinstance(problem, Federations):
        raise TypeError(f"learned.train(problem) is {shown(problem)}: give what learned.federations(...) returns")
    if estimator is None:
        estimator = pes(sigma=0.1, window=problem.segments // (1 + (problem.segments % 2 == 0)))
    if not isinstance(estimator, PES):
        raise TypeError(f"learned.train(estimator=...) is {shown(estimator)}: give fedjax_sim.outer.pes(...)")
    check_count("learned.train(episodes=...)", episodes)
    check_count("learned.train(save_every=...)", save_every)
    estimator.check(problem)
    solver = optim.as_optimizer(optim.adam(0.01) if optimizer is None else optimizer, "learned.train(optimizer=...)")
    going, losses = (problem.parameters, solver.init(problem.parameters)), []
    about = {
        "problem": problem.description(), "estimator": describe(estimator), "optimizer": describe(solver),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
    }  # fmt: skip
    draws = {"float": str(jnp.result_type(float)), "generator": generator()}
    about |= draws
    if checkpoint is not None:
        check_known("a training with checkpoints", about)
    with contextlib.ExitStack() as stack:
        store = None if checkpoint is None else stack.enter_context(Store(checkpoint))
        if store is not None and (saved := store.newest()) is not None:
            check_same(saved.path, draws | saved.about, about, "training")  # older checkpoints do not say them
            losses = saved.arrays["losses"].tolist()
            if len(losses) > episodes:
                raise ValueError(
                    f"{saved.path} has finished {len(losses)} episodes, and episodes={episodes} asks for fewer: give "
                    "at least as many, or another directory"
                )
            leaves = [jnp.asarray(saved.arrays[name]) for name in trees.by_path(going)]
            going = jax.tree.unflatten(jax.tree.structure(going), leaves)
        bar = stack.enter_context(progress_bar(episodes, progress, "train"))
        for number in range(len(losses), episodes):
            going, loss = _episode(problem, estimator, solver, going, jax.random.fold_in(key, number))
            losses.append(float(loss))
            if number == 0 and not losses[0] < problem.cap:
                raise FloatingPointError("learned.train: all losses are above the cap at the start, or not positive")
            if bar.enabled:
                bar.update(number + 1, {"loss": losses[-1]})
            if store is not None and ((number + 1) % save_every == 0 or number + 1 == episodes):
                arrays = jax.tree.map(np.asarray, trees.by_path(going))
                store.save(number + 1, {"losses": np.asarray(losses), **arrays}, about)
    return Trained(problem.algorithm(going[0]), np.asarray(losses))


@jax.jit
def _episode(problem: Federations, estimator: PES, solver: optim.Optimizer, going: Any, key: jax.Array) -> Any:
    """The weights and the optimiser's state after all windows of pairs that begin with them, and the pairs' loss."""

    def step(reached: Any, _: None) -> tuple[Any, jax.Array]:
        particles, (parameters, state) = reached
        particles, found = estimator.step(problem, parameters, particles)
        updates, state = solver.update(found.gradient, state, parameters)
        return (particles, (trees.add(parameters, updates), state)), found.value

    particles = estimator.begin(problem, going[0], key)
    (_, going), values = lax.scan(step, (particles, going), length=problem.segments // estimator.window)
    return going, jnp.sum(values)


def save(rule: optim.Learned, path: str | os.PathLike[str]) -> None:
    """Writes a rule to a file: its weights to the last bit, its description, and a checksum (safetensors)."""
    if not isinstance(rule, optim.Learned):
        raise TypeError(f"learned.save(rule) is {shown(rule)}: give a fedjax_sim.optim.learned(...)")
    arrays = {name: np.asarray(array) for name, array in rule.weights.items()}
    pieces = encoded(0, arrays, {"rule": describe(rule.replace(weights=None))})
    write_atomically(path, lambda file: file.writelines(pieces))


def load(path: str | os.PathLike[str]) -> optim.Learned:
    """The rule that :func:`save` wrote; a ValueError where the file is damaged or holds something else."""
    found = read(path)
    rule = build(found.about["rule"]) if "rule" in found.about else None
    if not isinstance(rule, optim.Learned):
        raise ValueError(f"{found.path} holds no learned rule")
    return rule.replace(weights={name: jnp.asarray(array) for name, array in found.arrays.items()}).checked()
