"""``simulate``: the friendly driver around the same rounds as ``make_train``."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import flax
import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import optax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.asynchronous.schemes import Asynchronous
from fedjax_sim.callbacks import Callback, Calls, Started, check_callbacks
from fedjax_sim.checks import check_client_states, check_run, check_setting, check_streamed
from fedjax_sim.client_states import ClientStates, OnDevice
from fedjax_sim.cohort.participation import Participation
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.descriptions import describe, encode
from fedjax_sim.devices import processor
from fedjax_sim.diagnostics.base import Requested
from fedjax_sim.divergence import FACTOR, DivergenceError
from fedjax_sim.drivers.choose import make_driver
from fedjax_sim.fingerprints import dataset_fingerprint, fingerprint
from fedjax_sim.history import History
from fedjax_sim.keys import generator
from fedjax_sim.layout.base import Layout
from fedjax_sim.layout_tuning.choosing import tuned
from fedjax_sim.local.batches import Batches
from fedjax_sim.local.work import Work
from fedjax_sim.placement import on_host, whole
from fedjax_sim.processes import is_first
from fedjax_sim.recording import Recording
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.resuming import Saving, saved_layout
from fedjax_sim.rounds import Record, bounds, layout_of
from fedjax_sim.setting import Setting
from fedjax_sim.stopping import Stopping
from fedjax_sim.systems.base import System
from fedjax_sim.task import Task
from fedjax_sim.training import Evaluate
from fedjax_sim.values import check_real, known_names, shown


@known_names(adjoint="derivatives of a run are make_train's: fedjax_sim.make_train(..., adjoint=...)")
def simulate(
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    *,
    task: Task,
    rounds: int,
    cohort: Participation,
    work: Work,
    batch_size: int | None = None,
    batches: Batches | None = None,
    eval_every: int = 1,
    evaluate: Evaluate | None = None,
    diagnostics: Requested = (),
    layout: Layout | Literal["auto", "tune"] | None = None,
    skip_nonfinite: bool = False,
    system: System | None = None,
    asynchronous: Asynchronous | None = None,
    client_states: ClientStates | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    stop: Stopping | None = None,
    on_divergence: Literal["record", "stop", "raise"] = "record",
    divergence_factor: float | None = FACTOR,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    keep: int = 2,
    allow_opaque: bool = False,
    progress: bool | None = None,
    callbacks: Iterable[Callback] = (),
) -> History:
    """Runs an algorithm on a data set and returns what was recorded.

    All seeds run in ONE program (in turn on a CPU, side by side elsewhere), ``eval_every`` rounds a call, and the
    program is compiled once: calling again with other values of real hyper-parameters, seeds (as many) or data (of the
    same shapes) compiles nothing. The result of seed s is that of ``make_train(...)(algorithm, dataset,
    jax.random.key(s))``.

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
      evaluate: more to record at every evaluation: ``evaluate(params, dataset) -> {name: array}``.
      diagnostics: what to measure in every round, names or objects of ``fedjax_sim.diagnostics``: they cost nothing
        where they are not asked for, and ``history["e_lud"]`` finds what they recorded.
      layout: how clients are run on the hardware; None or ``"auto"`` chooses by a rule (on a CPU with several devices
        and in several processes ``layout.mesh()``, which deals the cohort to all), ``"tune"`` measures
        which is fastest (:func:`fedjax_sim.layout.tune`) or takes what it has measured before; a run that is resumed
        goes on in the layout of its checkpoint.
      client_states: where client states are kept, and in which type: ``fjs.client_states.on_host()``,
        ``on_disk(directory)``, ``on_device(dtype="bfloat16")``. None for ``on_device()``.
      seeds: one seed or several.
      skip_nonfinite: leaves clients out of a round whose messages or state are not finite.
      system: the clients' devices in virtual time; ``history.virtual_time`` is then the clock at the evaluations.
      asynchronous: a server that waits for messages, not for cohorts.
      initial_params: where all seeds start; None draws them from each seed.
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
    tune = isinstance(layout, str) and layout == "tune"
    setting = check_setting(
        task=task, rounds=rounds, cohort=cohort, work=work, batch_size=batch_size, batches=batches,
        eval_every=eval_every, layout=None if tune else layout, evaluate=evaluate, diagnostics=diagnostics,
        skip_nonfinite=skip_nonfinite, system=system, asynchronous=asynchronous,
    )  # fmt: skip
    divergence_factor = _check_ends(stop, on_divergence, divergence_factor)
    calls = Calls(check_callbacks(callbacks) if is_first() else [])
    if every is not None and checkpoint is None:
        raise ValueError(f"every={every} without checkpoint=...: give the directory where checkpoints are kept")
    seed_list = check_seeds(seeds)
    # Of data on the host, what every part of a run but the examples' readers needs to know.
    known = dataset.frame if isinstance(dataset, HostDataset) else dataset
    given_leaves = jax.tree.leaves((algorithm, known, task, cohort, work, system, asynchronous))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in given_leaves):
        raise TypeError("simulate was given traced values: inside jit, grad or vmap call make_train(...)'s function")
    keys = jax.vmap(jax.random.key)(jnp.asarray(seed_list, jnp.uint32))
    setting = check_run(setting, algorithm, known, keys[0], rounds, initial_params)
    if isinstance(dataset, HostDataset):
        check_streamed(setting, algorithm)
    where = check_client_states(client_states, setting, algorithm)
    tuning = None
    if tune:
        setting = setting._replace(layout=None if checkpoint is None else saved_layout(checkpoint))
        if setting.layout is None:
            kept = setting._replace(client_states=where)
            tuning = tuned(kept, algorithm, dataset, keys, rounds, initial_params, progress=progress)
            setting = setting._replace(layout=tuning.layout)
    setting = setting._replace(layout=layout_of(setting, algorithm, known, several=True), client_states=where)
    description = describe_run(
        setting, algorithm, dataset, known, rounds, eval_every, evaluate=evaluate,
        initial_params=initial_params, stop=stop, on_divergence=on_divergence, divergence_factor=divergence_factor,
    )  # fmt: skip
    if tuning is not None:
        description["run"]["layout_tuning"] = tuning.to_json()
    saving = None
    if checkpoint is not None:
        configuration = _configuration(description, seed_list, dataset, initial_params, where)
        saving = Saving(
            checkpoint, configuration, rounds=rounds, eval_every=eval_every, every=every, keep=keep,
            allow_opaque=allow_opaque,
        )  # fmt: skip
    recording = Recording(
        type(algorithm).__name__, seed_list,
        skipped=skip_nonfinite or algorithm.excludes_nonfinite, factor=divergence_factor,
    )  # fmt: skip
    length = min(eval_every, rounds)

    with saving or contextlib.nullcontext(), contextlib.ExitStack() as opened:
        bar = opened.enter_context(progress_bar(rounds, progress, type(algorithm).__name__))
        opened.callback(calls.end, None)
        started = time.perf_counter()
        bar.compiling()
        driver = make_driver(
            setting, algorithm, keys, initial_params, dataset, rounds=rounds, length=length, evaluate=evaluate,
            may_stop=stop is not None or on_divergence == "stop",
        )  # fmt: skip
        opened.callback(driver.close)
        before = None if saving is None else saving.restore(driver, recording)
        if saving is not None and saving.earlier:
            description["environment"]["earlier"] = saving.earlier
        compiled = time.perf_counter()
        if before is None or (recording.finished < rounds and recording.running.any()):
            first = jax.block_until_ready(driver.start())
            compiled = time.perf_counter()
            calls.start(Started(description, seed_list, rounds, recording.finished))
            if before is None:
                recording.add({}, first, 0)
                calls.report(0, first, {})
            if bar.enabled:
                bar.update(recording.finished, first)
        # Processes must call their programs alike; between evaluations there is no time that all agree on.
        tell = bar.update if bar.enabled and jax.process_count() == 1 else None
        clients = int(np.sum(recording.rounds().get("cohort_size", 0)))
        for start in range(recording.finished, rounds, length):
            if not recording.running.any():
                break
            count = min(length, rounds - start)
            record, measured = driver.advance(start, count, recording.running, tell)
            recording.add(record, measured, count)
            _check_overflow(record, start)
            if on_divergence == "raise" and (found := recording.divergences()):
                raise DivergenceError(found)
            calls.report(start + count, measured, record)
            recording.judge(stop, diverged=on_divergence == "stop")
            if bar.enabled:
                clients += int(np.sum(np.asarray(record["cohort_size"])))
                bar.update(start + count, measured, clients)
            if saving is not None:
                last = start + count == rounds or not recording.running.any()
                saving.after(driver, recording, (before or 0.0) + time.perf_counter() - compiled, last=last)
        states = driver.states()
        metrics = recording.metrics()
        jax.block_until_ready(states)
        finished = time.perf_counter()
        recorded = recording.public_rounds()
        warn_of_negative_weights(recorded, algorithm)
        history = History(
            evaluated=recording.evaluated,
            metrics=metrics,
            rounds=recorded,
            params=on_host(jax.vmap(algorithm.parameters)(states.server)),
            seeds=seed_list,
            seconds=(before or 0.0) + finished - compiled,
            compile_seconds=compiled - started,
            description=description,
            divergences=recording.divergences(),
            stops={seed_list[row]: stop for row, stop in sorted(recording.stops.items())},
        )
        calls.end(history)
    return history


def _check_ends(stop: Any, on_divergence: Any, divergence_factor: Any) -> float | None:
    """Checks what ends a run; the factor as a float."""
    if stop is not None and not isinstance(stop, Stopping):
        raise TypeError(
            f"stop is {shown(stop)}: give a rule, for instance fedjax_sim.stopping.converged(1e-4), or None"
        )
    allowed = ("record", "stop", "raise")
    if on_divergence not in allowed:
        raise ValueError(f"on_divergence is {shown(on_divergence)}: it must be one of {', '.join(map(repr, allowed))}")
    if divergence_factor is None:
        return None
    if not isinstance(divergence_factor, (int, float, np.number)):
        raise TypeError(f"divergence_factor is {shown(divergence_factor)}: it must be a number of at least 1, or None")
    check_real("divergence_factor", divergence_factor, low=1.0)
    return float(divergence_factor)


# Of a run's description: what may differ when it is resumed, or is compared by its checksum.
_APART = ("rounds", "initial_params", "layout", "layout_tuning", "client_states")


def _configuration(
    description: dict[str, Any],
    seeds: list[int],
    dataset: FederatedDataset | HostDataset,
    initial_params: Any,
    client_states: ClientStates,
) -> dict[str, Any]:
    """All that decides what a run records but the number of rounds, as JSON."""
    plain = whole(dataset) if isinstance(dataset, FederatedDataset) else dataset
    # The directory of a disk decides nothing.
    states = {} if client_states == OnDevice() else {"client_states": describe(client_states.in_program())}
    return {
        "algorithm": description["algorithm"],
        "dataset": {**description["dataset"], "checksum": dataset_fingerprint(plain)},
        "run": {key: value for key, value in description["run"].items() if key not in _APART} | states,
        "seeds": seeds,
        "initial_params": None if initial_params is None else fingerprint(initial_params),
        "float": description["environment"]["float"],
        "generator": description["environment"]["generator"],
        # Another layout changes results by round-off, as another machine does.
        "environment": {**description["environment"], "layout": description["run"]["layout"]},
    }


def _check_overflow(record: Record, start: int) -> None:
    """Ends a run whose cohort scheme drew more clients than it has slots: its results would be biased."""
    if "overflow" in record and np.asarray(record["overflow"]).any():
        first = start + int(np.asarray(record["overflow"]).any(axis=0).argmax())
        raise RuntimeError(
            f"round {first} drew more clients than the cohort scheme has slots, so its model is NaN: give a larger "
            "cap, or leave cap=None where the probability is concrete"
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


def check_seeds(seeds: Any) -> list[int]:
    """The seeds as a list of integers.

    Raises:
      TypeError: neither an integer nor several.
      ValueError: none, one outside [0, 2^32), or one twice.
    """
    if isinstance(seeds, jax.Array) and jnp.issubdtype(seeds.dtype, jnp.integer):
        seeds = np.asarray(seeds).reshape(-1)
    if isinstance(seeds, (str, jax.Array)) or not isinstance(seeds, (int, np.integer, np.ndarray, Iterable)):
        raise TypeError(f"seeds is {seeds!r}: give an integer or several, range(5)")
    values = [seeds] if isinstance(seeds, (int, np.integer)) else list(seeds)
    if not values:
        raise ValueError("seeds is empty: give at least one seed")
    for seed in values:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seeds has {seed!r}: seeds must be integers")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seeds has {seed}: seeds must be in [0, 2^32)")
    found = [int(seed) for seed in values]
    if len(set(found)) < len(found):
        twice = next(seed for number, seed in enumerate(found) if seed in found[:number])
        raise ValueError(f"seeds has {twice} twice: a seed is a run, and again it would be the same run: give it once")
    return found


def describe_run(
    setting: Setting,
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    known: FederatedDataset,
    rounds: int,
    eval_every: int,
    *,
    evaluate: Evaluate | None,
    initial_params: Any,
    stop: Stopping | None = None,
    on_divergence: str = "record",
    divergence_factor: float | None = FACTOR,
) -> dict[str, Any]:
    """The resolved configuration and where it ran, as JSON."""
    return {
        "algorithm": describe(algorithm),
        "dataset": describe(dataset),
        "run": {
            "task": describe(setting.task),
            "rounds": rounds,
            "cohort": describe(setting.cohort),
            "work": describe(setting.work),
            "batches": describe(setting.batches),
            "eval_every": eval_every,
            "layout": describe(setting.layout),
            "diagnostics": [describe(diagnostic) for diagnostic in setting.diagnostics],
            "skip_nonfinite": setting.guard.skip,
            "system": None if setting.system is None else describe(setting.system),
            "asynchronous": None if setting.asynchronous is None else describe(setting.asynchronous),
            "evaluate": None if evaluate is None else describe(evaluate),
            "initial_params": None if initial_params is None else encode(initial_params),
            "stop": None if stop is None else describe(stop),
            "on_divergence": on_divergence,
            "divergence_factor": divergence_factor,
            # Left out where it is the default, so that older checkpoints and sweeps are still of the same run.
            **({} if setting.client_states == OnDevice() else {"client_states": describe(setting.client_states)}),
        },
        "average": setting.average(algorithm),
        "objective": algorithm.minimises(setting.cohort.objective(setting.average(algorithm))),
        "bounds": bounds(setting, algorithm, known)._asdict(),
        "environment": _environment(),
    }


# JAX's settings that change how results are rounded and no draw, as they are unless it is told otherwise.
_ROUNDING = {
    "jax_allow_f16_reductions": True,
    "jax_compiler_enable_remat_pass": True,
    "jax_default_device": None,
    "jax_default_matmul_precision": None,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_optimization_level": "UNKNOWN",
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": True,
}
# Flags of XLA that change no result: how many CPU devices there are is said beside them; files to look at.
_NO_MATTER = re.compile(r"--xla_(force_host_platform_device_count|dump_)")


def _environment() -> dict[str, Any]:
    """Where a run computes: versions, device, and the settings in force that change draws or rounding."""
    import fedjax_sim

    settings = {name: getattr(jax.config, name, usual) for name, usual in _ROUNDING.items()}
    flags = os.environ.get("XLA_FLAGS", "").split()
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "fedjax_sim": fedjax_sim.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "python": platform.python_version(),
        "device": f"{jax.device_count()} x {device.device_kind}{_of_processes()}",
        **({"processor": list(processor())} if on_cpu else {"driver": device.client.platform_version}),
        "float": str(jnp.result_type(float)),
        "generator": generator(),
        "settings": {name: _as_json(value) for name, value in settings.items() if value != _ROUNDING[name]},
        "flags": sorted(flag for flag in flags if not _NO_MATTER.match(flag)),
    }


def _as_json(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _of_processes() -> str:
    return f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
