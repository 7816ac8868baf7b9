"""How well ``fedjax_sim.dp`` hides a client: (epsilon, delta) of whole runs, and the noise for a given one.

The accountants are those of Google's ``dp-accounting`` (the extra ``privacy``); here a participation scheme is matched
with what they can account for:

======================== ============================================== ======================== ===========
scheme                   each round is                                  neighbours               accountants
======================== ============================================== ======================== ===========
``cohort.full()``        a Gaussian mechanism                           add or remove one client PLD, RDP
``cohort.independent(q)``  one on a Poisson sample                        add or remove one client PLD, RDP
``cohort.uniform(K)``    one on K of N clients without replacement      replace one client       RDP
======================== ============================================== ======================== ===========

All other schemes are refused: nothing is known of them, or no more than that sampling does not help.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.algorithms.averaging import Ema, LastK
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.private import Dp
from fedjax_sim.algorithms.wrapper import within
from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.cohort.schemes import Full, Independent, Uniform
from fedjax_sim.core.descriptions import build
from fedjax_sim.core.values import check_choice, check_count, check_real, is_concrete, shown
from fedjax_sim.datasets.calls import answers

ADD_OR_REMOVE = "add or remove one client"
REPLACE = "replace one client"
_TOLERANCE = 1e-3  # of a noise multiplier found, relative
_MOST_DOUBLINGS = 40
_MUCH = 2.0**20  # a noise multiplier beyond which Renyi divergences are round-off
_AFTER = (Ema, LastK)  # wrappers that only process what is released


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy of all models of a run, for clients.

    Attributes:
      epsilon: an upper bound.
      delta: as asked for.
      neighbours: which populations are told apart no better than that: ``"add or remove one client"`` or ``"replace
        one client"``.
      accountant: ``"pld"`` or ``"rdp"``.
    """

    epsilon: float
    delta: float
    neighbours: str
    accountant: str


class _Accounting(NamedTuple):
    """Rounds of a mechanism: its event for a noise multiplier, its neighbours, and who accounts for it."""

    event: Callable[[float], Any]
    neighbours: str
    accountant: str
    rounds: int
    delta: float

    def fresh(self) -> Any:
        """The library's accountant, before the first round."""
        library = _library()
        relation = library.NeighboringRelation
        neighbours = relation.ADD_OR_REMOVE_ONE if self.neighbours == ADD_OR_REMOVE else relation.REPLACE_ONE
        maker = library.pld.PLDAccountant if self.accountant == "pld" else library.rdp.RdpAccountant
        return maker(neighboring_relation=neighbours)

    def epsilon(self, z: float) -> float:
        """What all rounds cost."""
        if z == 0:
            return math.inf
        account = self.fresh()
        with _quiet():
            account.compose(self.event(z), self.rounds)
            found = float(account.get_epsilon(self.delta))
        if self.accountant == "pld" or math.isinf(found):
            return found
        # Where the noise is huge, the library says 0: of divergences below delta^2 rightly, of what round-off has made
        # negative without a reason. The two look alike, so no less than what each order costs if its divergence is 0.
        orders = account.orders[np.isfinite(account.rdp)]
        return max(found, float(np.min(np.log1p(-1 / orders) - np.log(self.delta * orders) / (orders - 1))))


@answers({})
def epsilon(
    *,
    noise_multiplier: float,
    sampling: Participation | float,
    rounds: int,
    delta: float,
    num_clients: int | None = None,
    accountant: str | None = None,
) -> Guarantee:
    """What a run with this noise gives.

    Args:
      noise_multiplier: z: the noise on the sum of the clipped changes has standard deviation z C.
      sampling: ``fedjax_sim.cohort.independent(q)``, ``full()`` or ``uniform(K)``; a number q stands for the first.
      rounds: T.
      delta: below 1/N as a rule.
      num_clients: N; needed for ``uniform(K)``.
      accountant: ``"pld"`` (privacy loss distributions, the tighter) or ``"rdp"`` (Renyi divergences, of orders up to
        1024, so that epsilon stays above about log(1 / (1024 delta)) / 1023, whatever the noise); None for the first
        that can account for the sampling.

    Raises:
      ValueError: a value out of its range, or a scheme or an accountant that has no answer.
      ImportError: the extra ``privacy`` is not installed.

    References: Koskela et al. 2020, "Computing tight differential privacy guarantees using FFT" (PLD); Mironov, Talwar
    and Zhang 2019, "Renyi differential privacy of the sampled Gaussian mechanism" (Poisson samples); Wang, Balle and
    Kasiviswanathan 2019, "Subsampled Renyi differential privacy and analytical moments accountant", Theorem 27
    (without replacement).
    """
    check_real("epsilon(noise_multiplier=...)", noise_multiplier, low=0.0, host=True)
    of = _accounting("epsilon", sampling, num_clients, accountant, rounds, delta)
    return Guarantee(of.epsilon(float(noise_multiplier)), delta, of.neighbours, of.accountant)


@answers({})
def noise_multiplier(
    *,
    epsilon: float,
    sampling: Participation | float,
    rounds: int,
    delta: float,
    num_clients: int | None = None,
    accountant: str | None = None,
) -> float:
    """The least noise multiplier z of which a run is (epsilon, delta)-private, to 0.1 % of it, on the safe side.

    Args:
      epsilon: the target, > 0.
      sampling: see :func:`epsilon`, which raises the same.
      rounds: T.
      delta: below 1/N as a rule.
      num_clients: N.
      accountant: ``"pld"``, ``"rdp"`` or None.
    """
    check_real("noise_multiplier(epsilon=...)", epsilon, above=0.0, host=True)
    of = _accounting("noise_multiplier", sampling, num_clients, accountant, rounds, delta)
    if of.accountant == "rdp" and (least := of.epsilon(_MUCH)) > epsilon:
        raise ValueError(
            f"noise_multiplier(epsilon={epsilon}, delta={delta}): by Renyi divergences no epsilon below {least:.3g} is "
            "accounted for: give a larger epsilon or delta, or a scheme that 'pld' can account for"
        )

    def enough(z: float) -> bool:
        return of.epsilon(z) <= epsilon

    # The search begins near the answer: with hardly any noise a privacy loss distribution fills the memory.
    high = next((2.0**k for k in range(_MOST_DOUBLINGS) if enough(2.0**k)), None)
    if high is None:
        raise ValueError(
            f"noise_multiplier(epsilon={epsilon}, delta={delta}): no noise up to {2.0**_MOST_DOUBLINGS:g} is enough"
        )
    halves = [high / 2.0**k for k in range(1, _MOST_DOUBLINGS + 1)]
    low = next((z for z in halves if not enough(z)), None)
    if low is None:
        return halves[-1]
    library = _library()
    with _quiet():
        return library.calibrate_dp_mechanism(
            of.fresh,
            lambda z: library.SelfComposedDpEvent(of.event(z), rounds),
            epsilon,
            delta,
            bracket_interval=library.ExplicitBracketInterval(low, 2 * low),
            tol=_TOLERANCE * low,
        )


def spent(
    algorithm: Method,
    cohort: Participation,
    num_clients: int,
    rounds: int,
    delta: float,
    *,
    accountant: str | None = None,
) -> Guarantee:
    """What a run of ``algorithm`` with ``cohort`` gives.

    Args:
      algorithm: ``fedjax_sim.dp(...)``, possibly inside ``ema`` or ``last_k``, which only process what is released.
      cohort: the run's scheme.
      num_clients: N.
      rounds: T.
      delta: below 1/N as a rule.
      accountant: see :func:`epsilon`.

    Raises:
      TypeError: an algorithm that is not private, or whose noise is traced.
      ValueError: a scheme or an accountant that has no answer, or another average than ``"plain"``.
      ImportError: the extra ``privacy`` is not installed.
    """
    inside = next((one for one in within(algorithm) if not isinstance(one, _AFTER)), None)
    if not isinstance(inside, Dp):
        name = type(inside).__name__.lower()
        raise TypeError(
            f"spent(algorithm) is {shown(algorithm)}: {name}(...) releases more than fedjax_sim.dp(...) does; put "
            "dp(...) around everything but ema and last_k"
        )
    if not is_concrete(inside.noise_multiplier) or np.ndim(inside.noise_multiplier):
        raise TypeError("spent(algorithm): its noise_multiplier is traced or several: an accountant needs one number")
    if not isinstance(cohort, Participation):
        raise TypeError(f"spent(cohort) is {shown(cohort)}: give the run's scheme, fedjax_sim.cohort.independent(0.1)")
    if cohort.average not in (None, "plain"):
        raise ValueError(f"spent(cohort): dp cannot average by {cohort.average!r}; {inside.requires.averages_why}")
    check_count("spent(num_clients)", num_clients)
    return epsilon(
        noise_multiplier=float(inside.noise_multiplier), sampling=cohort, rounds=rounds, delta=delta,
        num_clients=num_clients, accountant=accountant,
    )  # fmt: skip


def of_run(run: Any, dataset: Any, delta: float, *, accountant: str | None = None) -> Guarantee:
    """What a finished run gave, by its own description: :func:`spent` over the rounds that it ran.

    Args:
      run: a :class:`fedjax_sim.History`. Each of its seeds gives as much by itself; all of them released together give
        less. Where seeds were stopped, it is that of the longest.
      dataset: its data, of which N is not part of a history.
      delta: below 1/N as a rule; it is not part of a run.
      accountant: see :func:`epsilon`.

    Raises:
      TypeError, ValueError, ImportError: as :func:`spent`; ``ValueError`` also for a run whose algorithm or scheme
        cannot be made from its description, as those of your own without a factory, and for one that went on from the
        state of another.
    """
    about = run.description
    if "initial_state" in about["run"]:
        raise ValueError(
            "of_run(run): it went on from the state of another run, whose rounds its model has cost too and which it "
            "does not know: give spent(algorithm, cohort, num_clients, rounds, delta) the rounds of both, if they had "
            "other seeds (with the same, noise is the same and hides nothing)"
        )
    algorithm, cohort = build(about["algorithm"]), build(about["run"]["cohort"])
    return spent(algorithm, cohort, dataset.num_clients, int(run.evaluated[-1]), delta, accountant=accountant)


def _accounting(
    name: str, sampling: Any, num_clients: int | None, accountant: str | None, rounds: Any, delta: Any
) -> _Accounting:
    """Rounds of the Gaussian mechanism on what a scheme draws."""
    check_count(f"{name}(rounds=...)", rounds)
    check_real(f"{name}(delta=...)", delta, above=0.0, below=1.0, host=True)
    event, neighbours = _event(sampling, num_clients)
    able = ("pld", "rdp") if neighbours == ADD_OR_REMOVE else ("rdp",)
    check_choice("accountant", able[0] if accountant is None else accountant, ("pld", "rdp"))
    if accountant not in (None, *able):
        raise ValueError(f"accountant={accountant!r} has no answer for samples without replacement: use 'rdp' or None")
    return _Accounting(event, neighbours, accountant or able[0], rounds, delta)


def _event(sampling: Any, num_clients: int | None) -> tuple[Callable[[float], Any], str]:
    """One round's event for a noise multiplier, and its neighbours."""
    if isinstance(sampling, (int, float, np.number)) and not isinstance(sampling, bool):
        sampling = Independent(probability=float(sampling)).checked()
    if not isinstance(sampling, Participation):
        raise TypeError(f"sampling is {shown(sampling)}: give a scheme of fedjax_sim.cohort, or a probability")
    if type(sampling) is Full:
        return lambda z: _library().GaussianDpEvent(z), ADD_OR_REMOVE
    if type(sampling) is Independent:
        if not is_concrete(sampling.probability):
            raise TypeError("independent(probability) is traced: an accountant needs its value")
        # What a client can be told by depends on its own q_i, so the largest is the worst.
        largest = float(np.max(np.asarray(sampling.probability)))
        return lambda z: _library().PoissonSampledDpEvent(largest, _library().GaussianDpEvent(z)), ADD_OR_REMOVE
    if type(sampling) is not Uniform:
        raise ValueError(
            f"cohort.{sampling.factory_name()}(...) has no privacy accounting: it is known for cohort.independent(q), "
            "cohort.uniform(K) and cohort.full() alone"
        )
    drawn = sampling.num_sampled
    if num_clients is None:
        raise ValueError("uniform(K) needs num_clients: how well a client is hidden depends on K / N")
    check_count(f"uniform({drawn}): num_clients", num_clients, low=drawn)
    # Theorem 27 counts noise per sensitivity: a client replaced by another moves the sum by up to 2 C.
    return (
        lambda z: _library().SampledWithoutReplacementDpEvent(num_clients, drawn, _library().GaussianDpEvent(z / 2)),
        REPLACE,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library from logging each order of a Renyi divergence that it leaves out: the bound holds without."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError("privacy accounting needs dp-accounting: pip install 'fedjax_sim[privacy]'") from error
    return dp_accounting
