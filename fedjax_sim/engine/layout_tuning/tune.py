"""``fjs.layout.tune``: the fastest layout of a run, to pass on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.values import check_count, check_flag, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import RunArguments, takes_run
from fedjax_sim.engine.checks import check_arguments, is_traced
from fedjax_sim.engine.client_states import ClientStates
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout_tuning.choosing import tuned
from fedjax_sim.engine.layout_tuning.report import Tuning
from fedjax_sim.engine.resolving import check_seeds, resolve_seeds


@takes_run("layout", layout="it measures layouts: give those to choose from, candidates=[fedjax_sim.layout.turns()]")
def tune(
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    *,
    client_states: ClientStates | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    candidates: Sequence[Layout] | None = None,
    limit: float = 2.0,
    repeats: int = 5,
    refresh: bool = False,
    progress: bool | None = None,
    **run: Unpack[RunArguments],
) -> Tuning:
    """Measures which layout runs this run's rounds fastest on this machine.

    Each candidate's program is compiled, computes a round to warm up and then some rounds of the run's own cohorts,
    all candidates in turn; hopeless ones are given up early. The run itself is not touched: draws are functions of key
    and round, and the states are copies. What is measured goes forward; a derivative has a schedule of its own
    (docs/derivatives.md).

    The times are kept in ``layouts.json`` under ``$FEDJAX_SIM_CACHE``, else the user's cache directory, by device,
    versions, the program's structure and shapes and what decides the clients' steps. Other values of the algorithm's
    hyper-parameters, other seeds and other examples of the same sizes need no new measurement.

    Args:
      algorithm: what is run.
      dataset: whose data; of a :class:`fedjax_sim.datasets.HostDataset`, or of client states that are not on the
        device, what the first four rounds need is sent there.
      task: see :func:`fedjax_sim.make_train`, as all arguments up to ``asynchronous``.
      rounds: number of rounds R.
      cohort: who takes part.
      work: how many local steps.
      batch_size: B of a fresh permutation each epoch; give this or ``batches``.
      batches: which examples a step sees.
      eval_every: taken so that a run's arguments can be passed as they are; evaluations are not measured.
      evaluate: likewise.
      diagnostics: what to measure in every round.
      skip_nonfinite: leaves clients out of a round whose messages or state are not finite.
      system: the clients' devices in virtual time.
      asynchronous: a server that waits for messages, not for cohorts.
      client_states: where client states are kept, and in which type; see :func:`fedjax_sim.simulate`.
      seeds: one seed or several; a CPU runs them in turn, so there the first is measured.
      initial_params: where all seeds start; None draws them from each seed.
      candidates: layouts to choose from, the most promising first; None for the rule's choice, turns, lanes of 4, 8, 16
        and 32 up to the cohort's size, and stacked. The first is chosen if it is within 3 % of the fastest.
      limit: seconds of one candidate's rounds after which it is timed no more.
      repeats: timed calls of a candidate, at most.
      refresh: measure again although the times are known.
      progress: a progress bar; None shows one on a terminal only.

    Returns:
      A :class:`fedjax_sim.layout.Tuning`: ``print`` shows the times, ``tuning.layout`` is the choice.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; also in a run of several processes.
      RuntimeError: no candidate could be measured.

    Example:
      >>> import fedjax_sim as fjs
      >>> run = dict(
      ...     task=fjs.quadratic(), rounds=4, cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ...     batches=fjs.local.full_batch(),
      ... )
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
      >>> tuning = fjs.layout.tune(algorithm, data, **run, candidates=[fjs.layout.turns()])
      >>> train = fjs.make_train(**run, layout=tuning.layout)
    """
    asked, rounds = check_arguments(run), run["rounds"]
    seed_list = check_seeds(seeds)
    check_real("tune(limit=...)", limit, low=0.0, open_=True, host=True)
    check_count("tune(repeats=...)", repeats)
    check_flag("tune(refresh=...)", refresh)
    if candidates is not None:
        candidates = _checked(candidates)
    if is_traced((algorithm, dataset, asked, initial_params)):
        raise TypeError("layout.tune was given traced values: measure outside jit, grad and vmap")
    asked = asked._replace(algorithm=algorithm)
    return tuned(
        resolve_seeds(asked, dataset, seed_list, rounds, initial_params, client_states),
        dataset if isinstance(dataset, HostDataset) else None,
        rounds, initial_params, candidates=candidates, limit=float(limit), repeats=repeats, refresh=refresh,
        progress=progress,
    )  # fmt: skip


def _checked(candidates: Any) -> tuple[Layout, ...]:
    given = tuple(candidates) if isinstance(candidates, Sequence) and not isinstance(candidates, str) else ()
    if not given or not all(isinstance(one, Layout) for one in given):
        raise TypeError(
            f"tune(candidates=...) is {shown(candidates)}: it must be layouts, for instance [fedjax_sim.layout.turns(),"
            " fedjax_sim.layout.lanes(8)]"
        )
    return tuple(dict.fromkeys(given))
