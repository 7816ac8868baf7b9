"""``simulate``: the friendly driver around the same rounds as ``make_train``."""

from __future__ import annotations

import contextlib
import os
import time
import types
import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.wrapper import keeps_personal
from fedjax_sim.core.descriptions import check_again, describe, encode, is_traced
from fedjax_sim.core.devices import environment
from fedjax_sim.core.values import check_choice, check_flag, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import described, fingerprint
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import on_host
from fedjax_sim.engine.arguments import Evaluate, RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import check_initial, check_seeds, resolve_seeds
from fedjax_sim.engine.client_states import ClientStates, OnDevice, as_arrays
from fedjax_sim.engine.layout_tuning import Tuning, tuned
from fedjax_sim.engine.memory import room
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import EachSeed, Record
from fedjax_sim.reporting.divergence import FACTOR, DivergenceError
from fedjax_sim.reporting.progress import Progress, progress_bar
from fedjax_sim.run.best import Best, ended
from fedjax_sim.run.callbacks import Callback, Calls, Started
from fedjax_sim.run.drivers import Driver, StreamedDriver
from fedjax_sim.run.history import History
from fedjax_sim.run.recording import Recording
from fedjax_sim.run.resident import ResidentDriver
from fedjax_sim.run.resuming import Saving, configuration, saved_layout
from fedjax_sim.run.stopping import Stopping
from fedjax_sim.run.training import asks_for_clients, given_state


@takes_run(adjoint="derivatives of a run are make_train's: fedjax_sim.make_train(..., adjoint=...)")
def simulate(
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    *,
    client_states: ClientStates | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    initial_state: TrainState | None = None,
    stop: Stopping | None = None,
    on_divergence: Literal["record", "stop", "raise"] = "record",
    divergence_factor: float | None = FACTOR,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    keep: int = 2,
    keep_best: str | None = None,
    keep_state: bool = False,
    allow_opaque: bool = False,
    progress: bool | None = None,
    callbacks: Iterable[Callback] = (),
    **run: Unpack[RunArguments],
) -> History:
    """Runs an algorithm on a data set and returns what was recorded.

    All seeds run in ONE program, ``eval_every`` rounds a call; on a CPU it is that of one seed, called for as many at
    once as there are cores. Calling again with other values of real hyper-parameters, other rounds, other seeds (on a
    CPU any number) or another draw of data of the same kind compiles nothing (docs/performance.md). The result of seed
    s is that of ``make_train(...)(algorithm, dataset, jax.random.key(s))``.

    Args:
      algorithm: what to run: ``fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))``.
      dataset: whose data; a :class:`fedjax_sim.datasets.HostDataset` stays on the host (or on disk), from where each
        round's cohort is sent to the device while the round before computes, with the same results. It is refused
        where rounds read more than their cohort's examples, and its ``evaluate`` is called outside the program.
      task: see :func:`fedjax_sim.make_train`, as all arguments up to ``asynchronous``.
      rounds: number of rounds R.
      cohort: who takes part.
      work: how many local steps.
      batch_size: B of a fresh permutation each epoch; give this or ``batches``.
      batches: which examples a step sees.
      eval_every: rounds between evaluations, which are also the chunks in which the program is called.
      evaluate_train: whether the training examples are evaluated too, or only the held-out ones.
      evaluate: more to record at every evaluation: ``evaluate(params, dataset) -> {name: array}``; with an argument
        ``clients`` it is told of them too (:class:`fedjax_sim.models.passes.Clients`).
      diagnostics: what to measure in every round, names or objects of ``fedjax_sim.diagnostics``: they cost nothing
        where they are not asked for, and ``history["e_lud"]`` finds what they recorded.
      layout: how clients are run on the hardware; None or ``"auto"`` chooses by a rule (in several processes, and on a
        CPU with several devices but for small rounds, ``layout.mesh()``, which deals the cohort), ``"tune"`` measures
        which is fastest (:func:`fedjax_sim.layout.tune`) or takes what it has measured before; a run that is resumed
        goes on in the layout of its checkpoint.
      client_states: where client states are kept, and in which type: ``fjs.client_states.on_host()``,
        ``on_disk(directory)``, ``on_device(dtype="bfloat16")``. None for ``on_device()``.
      seeds: one seed, 5 for the run of seed 5, or several, ``range(5)``.
      skip_nonfinite: leaves clients out of a round whose messages or state are not finite.
      system: the clients' devices in virtual time; ``history.virtual_time`` is then the clock at the evaluations.
      asynchronous: a server that waits for messages, not for cohorts.
      initial_params: where all seeds start, or a list with one model for each seed, in their order (where the task's
        own parameters are such a list, they are one model); None draws them from each seed.
      initial_state: the state in which the seeds start: ``history.state`` of a run of the same method and as many
        seeds with ``keep_state=True``; without, it is None, which starts anew. Rounds, in rates over rounds too, are
        counted from 0 again and draw by their numbers and the seed: give other seeds, or round t draws what it drew in
        the run before. Refused of an asynchronous run, and with ``client_states`` off the device.
      stop: a rule of :mod:`fedjax_sim.stopping`, asked after every evaluation but that of the start; a seed that stops
        keeps its model.
      on_divergence: what becomes of a seed whose clients, model or loss are not finite any more, or whose loss
        explodes: ``"record"`` (and go on; ``history.divergences`` says where it began), ``"stop"`` that seed, or
        ``"raise"``.
      divergence_factor: a loss above so many times |F(x_0)| (where that is 0: above this number) has exploded, at least
        1; None for never.
      checkpoint: a directory for checkpoints of this run. Call again with the same arguments after an interruption, and
        the run goes on from the newest one, with the same result to the last bit; more ``rounds`` may be asked for.
      every: rounds between checkpoints (at an evaluation); None for as often as costs 5 % of the time.
      keep: how many checkpoints stay.
      keep_best: a metric: ``history.params`` (and ``history.state``) are then those of each seed's best evaluation by
        it, in the sense of ``history.at_best``, the start counted, and not of the last; ``"test_loss"``, say,
        with ``stop=fjs.stopping.patience("test_loss")``. One copy of the server's state a seed is kept on the
        host, and with ``keep_state`` one of the clients'. What is recorded stays that of all rounds.
      keep_state: whether the history has the final state, the server's and what is kept for every client:
        ``history.state``, ``history.client(client_id)``. For methods that keep a model a client these are N models a
        seed, in memory and in the history's file, wherever ``client_states`` has them in the run.
      allow_opaque: resume although parts of the run are bare functions or optax objects, known by their names alone.
      progress: a progress bar, which moves within long chunks too; None shows one on a terminal only.
      callbacks: what is told of every evaluation while the run goes on, objects of :mod:`fedjax_sim.trackers` or your
        own :class:`fedjax_sim.callbacks.Callback`; of several processes, in the first.

    Returns:
      A :class:`fedjax_sim.History`.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; also a checkpoint of another run, with what
        differs.
      fedjax_sim.divergence.DivergenceError: a seed diverged, with ``on_divergence="raise"``.
      fedjax_sim.checkpoints.Interrupted: SIGINT or SIGTERM arrived in a run with checkpoints; it is saved.
      OSError: a checkpoint could not be written; the one before is still there. Or client states have no room on disk.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=60, seed=0)
      >>> history = fjs.simulate(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data,
      ...     task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=4, eval_every=2, batch_size=10,
      ...     cohort=fjs.cohort.uniform(2), work=fjs.local.epochs(1), seeds=range(3),
      ... )
      >>> history["loss"].shape, history.evaluated.tolist()
      ((3, 3), [0, 2, 4])
    """
    rounds, eval_every, evaluate = run["rounds"], run["eval_every"], run["evaluate"]
    tune = isinstance(run["layout"], str) and run["layout"] == "tune"
    asked = check_arguments({**run, "layout": None} if tune else run)
    divergence_factor = _check_ends(stop, on_divergence, divergence_factor)
    calls = Calls(callbacks)
    if every is not None and checkpoint is None:
        raise ValueError(f"every={every} without checkpoint=...: give the directory where checkpoints are kept")
    seed_list = check_seeds(seeds)
    if is_traced((algorithm, dataset, asked)):
        raise TypeError("simulate was given traced values: inside jit, grad or vmap call make_train(...)'s function")
    asked = asked._replace(algorithm=algorithm)
    check_flag("keep_state", keep_state)
    best = None if keep_best is None else Best(keep_best, clients=keep_state)
    plan = resolve_seeds(asked, dataset, seed_list, rounds, None, client_states)
    start = _start(initial_params, plan)
    initial_state = given_state(initial_state, plan, initial_params, len(seed_list))
    _check_evaluation(evaluate, plan)
    host = dataset if isinstance(dataset, HostDataset) else None
    tuning = None
    if tune:
        layout = None if checkpoint is None else saved_layout(checkpoint)
        if layout is None:
            tuning = tuned(plan, host, rounds, start.of(0) if isinstance(start, EachSeed) else start, progress=progress)
            layout = tuning.layout
        plan = plan._replace(layout=layout)
    description = describe_run(
        plan, rounds, eval_every, evaluate=evaluate, initial_params=initial_params, host=host, stop=stop,
        on_divergence=on_divergence, divergence_factor=divergence_factor, tuning=tuning,
    )  # fmt: skip
    if initial_state is not None:
        description["run"]["initial_state"] = fingerprint(as_arrays(initial_state))
    description["run"] |= {} if keep_best is None else {"keep_best": keep_best}
    saving = None
    if checkpoint is not None:
        decisive = configuration(description, seed_list, dataset, initial_params, plan.client_states)
        if best is not None:  # whose checkpoints have the clients' states twice, or once
            decisive["run"]["keep_state"] = keep_state
        saving = Saving(
            checkpoint, decisive, rounds=rounds, eval_every=eval_every, every=every, keep=keep,
            allow_opaque=allow_opaque,
        )  # fmt: skip
    recording = Recording(
        type(algorithm).__name__, seed_list, recorded=() if stop is None else plan.recorded,
        skipped=plan.guard.skip or algorithm.requires.excludes_nonfinite, factor=divergence_factor,
    )  # fmt: skip

    with saving or contextlib.nullcontext(), contextlib.ExitStack() as opened:
        bar = opened.enter_context(progress_bar(rounds, progress, type(algorithm).__name__))
        opened.callback(calls.end, None)
        opened.enter_context(room(plan))
        started = time.perf_counter()
        bar.compiling()
        if not plan.keeps_clients:  # no place is made for what they do not keep
            plan = plan._replace(client_states=OnDevice())
        driver: Driver
        if host is not None or plan.client_states.apart:
            driver = StreamedDriver(plan, start, initial_state, host, rounds=rounds, evaluate=evaluate)
        else:
            may_stop = stop is not None or on_divergence == "stop"
            length = min(eval_every, rounds)
            driver = ResidentDriver(plan, start, initial_state, length=length, evaluate=evaluate, may_stop=may_stop)
        opened.callback(driver.close)
        underway = _Underway(driver, recording, saving, calls, bar, best, rounds, min(eval_every, rounds))
        before, compiled = underway.begin(description, seed_list, stop)
        underway.to_the_end(stop, on_divergence, before - compiled)
        kept = ended(driver, clients=keep_state) if best is None else best.states
        metrics, recorded = recording.metrics(), recording.public_rounds()
        finished = time.perf_counter()
        warn_of_negative_weights(recorded, algorithm)
        history = History(
            evaluated=recording.evaluated,
            metrics=metrics,
            rounds=recorded,
            params=on_host(jax.vmap(algorithm.evaluated)(kept.server)),
            seeds=seed_list,
            seconds=before + finished - compiled,
            compile_seconds=compiled - started,
            description=description,
            divergences=recording.divergences(),
            stops={seed_list[row]: stop for row, stop in sorted(recording.stops.items())},
            state=kept if keep_state else None,
            client_ids=np.sort(on_host(plan.dataset.client_ids)) if keep_state else None,
        )
        calls.finish(history)
    return history


class _Underway(NamedTuple):
    """A run as it goes: who computes its rounds, and who is told of them."""

    driver: Driver
    recording: Recording
    saving: Saving | None
    calls: Calls
    bar: Progress
    best: Best | None
    rounds: int
    length: int

    def begin(self, description: dict[str, Any], seeds: list[int], stop: Stopping | None) -> tuple[float, float]:
        """Goes back to the newest checkpoint, if there is one, and compiles: seconds before it, and when all was."""
        recording, before = self.recording, None
        if self.saving is not None:
            before = self.saving.restore(self.driver, recording, self.best)
            if self.saving.earlier:
                description["environment"]["earlier"] = self.saving.earlier
        compiled = time.perf_counter()
        if before is None or (recording.finished < self.rounds and recording.running.any()):
            first = jax.block_until_ready(self.driver.start())
            compiled = time.perf_counter()
            self.calls.start(Started(description, seeds, self.rounds, recording.finished))
            if before is None:
                recording.begin(first, stop)
                if self.best is not None:
                    self.best.follow(self.driver, recording)
                self.calls.report(0, first, {}, 0, recording.running)
            if self.bar.enabled:
                self.bar.update(recording.finished, first)
        return before or 0.0, compiled

    def to_the_end(self, stop: Stopping | None, on_divergence: str, clock: float) -> None:
        """All rounds that are left, an evaluation's at a time; ``clock`` is to be added to the time for its seconds."""
        recording, bar = self.recording, self.bar
        # Processes must call their programs alike; between evaluations there is no time that all agree on.
        tell = bar.update if bar.enabled and jax.process_count() == 1 else None
        clients = int(np.sum(recording.rounds().get("cohort_size", 0)))
        for start in range(recording.finished, self.rounds, self.length):
            if not recording.running.any():
                break
            count = min(self.length, self.rounds - start)
            record, measured = self.driver.advance(start, count, recording.running, tell)
            recording.add(record, measured, count)
            _check_overflow(record, start)
            if on_divergence == "raise" and (found := recording.divergences()):
                raise DivergenceError(found)
            if self.best is not None:
                self.best.follow(self.driver, recording)
            self.calls.report(start + count, measured, record, count, recording.running)
            recording.judge(stop, diverged=on_divergence == "stop")
            if bar.enabled:
                clients += int(np.sum(np.asarray(record["cohort_size"])))
                bar.update(start + count, measured, clients)
            if self.saving is not None:
                last = start + count == self.rounds or not recording.running.any()
                self.saving.after(self.driver, recording, self.best, clock + time.perf_counter(), last=last)


def _check_ends(stop: Any, on_divergence: Any, divergence_factor: Any) -> float | None:
    """Checks what ends a run; the factor as a float."""
    if stop is not None and not isinstance(stop, Stopping):
        raise TypeError(f"stop is {shown(stop)}: give a rule, fedjax_sim.stopping.converged(1e-4) for one, or None")
    check_again(stop)
    check_choice("on_divergence", on_divergence, ("record", "stop", "raise"))
    if not isinstance(divergence_factor, (int, float, np.number, types.NoneType)):
        raise TypeError(f"divergence_factor is {shown(divergence_factor)}: it must be a number of at least 1, or None")
    check_real("divergence_factor", divergence_factor, low=1.0, optional=True)
    return None if divergence_factor is None else float(divergence_factor)


def _start(initial_params: Any, plan: Plan) -> Any:
    """Where the seeds start, checked: one model for all, or :class:`EachSeed`."""
    if initial_params is None:
        return None
    found: Any = jax.tree.structure(initial_params)
    if found == jax.tree.structure(plan.params) or type(initial_params) not in (list, tuple):  # read again: a tuple
        check_initial("initial_params", initial_params, plan.params)
        return initial_params
    if len(initial_params) != len(plan.key):
        raise ValueError(
            f"initial_params has {len(initial_params)} entries, and there are {len(plan.key)} seeds: give a model "
            "for each, or one model for all"
        )
    for number, model in enumerate(initial_params):
        check_initial(f"initial_params[{number}]", model, plan.params)
    return EachSeed(jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *initial_params))


def _check_evaluation(evaluate: Evaluate | None, plan: Plan) -> None:
    """Checks that what an evaluation asks for is on the device."""
    if plan.client_states.apart and asks_for_clients(evaluate, plan.algorithm):
        raise ValueError(
            f"evaluate={shown(evaluate)} reads what all clients keep, and with "
            f"client_states={shown(plan.client_states)} only a cohort's is on the device: use "
            "client_states=fedjax_sim.client_states.on_device(), or an evaluation of the shared model"
        )


def _check_overflow(record: Record, start: int) -> None:
    """Ends a run whose cohort scheme drew more clients than it has slots: its results would be biased."""
    rounds = np.flatnonzero(np.asarray(record.get("overflow", [[]])).any(axis=0))
    if rounds.size:
        raise RuntimeError(
            f"round {start + rounds[0]} drew more clients than the cohort scheme has slots, so its model is NaN: give "
            "a larger cap, or leave cap=None where the probability is concrete"
        )


def warn_of_negative_weights(recorded: dict[str, np.ndarray], algorithm: Method) -> None:
    """Warns where a local solver counts gradients negatively, which normalised averaging does not allow for."""
    lowest = recorded.get("lowest_weight")
    if lowest is not None and lowest.min() < 0:
        warnings.warn(
            f"{type(algorithm).__name__}: a local solver counts some gradients with a negative weight (down to "
            f"{lowest.min():.3g}, history.rounds['lowest_weight']), so the sum it is normalised by is less than the "
            "norm of its weights: lower the momentum or eta mu",
            stacklevel=4,  # past known_names, to who called simulate or sweep
        )


def describe_run(
    plan: Plan,
    rounds: int,
    eval_every: int,
    *,
    evaluate: Evaluate | None,
    initial_params: Any,
    host: HostDataset | None = None,
    stop: Stopping | None = None,
    on_divergence: str = "record",
    divergence_factor: float | None = FACTOR,
    tuning: Tuning | None = None,
) -> dict[str, Any]:
    """The resolved configuration and where it ran, as JSON."""
    algorithm = plan.algorithm
    given = dict[str, Any](system=plan.system, asynchronous=plan.asynchronous, evaluate=evaluate, stop=stop)
    if plan.client_states != OnDevice():  # left out where it is the default: older checkpoints are of the same run
        given["client_states"] = plan.client_states
    return {
        "algorithm": describe(algorithm),
        "dataset": described(plan.dataset if host is None else host),
        "run": {
            **{name: describe(getattr(plan, name)) for name in ("task", "cohort", "work", "batches", "layout")},
            **{name: None if part is None else describe(part) for name, part in given.items()},
            "rounds": rounds,
            "eval_every": eval_every,
            **({} if plan.measured.training else {"evaluate_train": False}),
            "diagnostics": [describe(diagnostic) for diagnostic in plan.diagnostics],
            "skip_nonfinite": plan.guard.skip,
            "initial_params": None if initial_params is None else encode(initial_params),
            "on_divergence": on_divergence,
            "divergence_factor": divergence_factor,
            **({} if tuning is None else {"layout_tuning": tuning.to_json()}),
        },
        "average": plan.average(algorithm),
        "objective": algorithm.requires.minimises(plan.cohort.objective(plan.average(algorithm))),
        **({"personal": True} if keeps_personal(algorithm) else {}),
        "bounds": plan.bounds(algorithm)._asdict(),
        "environment": environment(),
    }
