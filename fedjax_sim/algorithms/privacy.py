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
from fedjax_sim.core.values import check_choice, check_count, check_real, is_concrete, shown

ADD_OR_REMOVE = "add or remove one client"
REPLACE = "replace one client"
_TOLERANCE = 1e-3  # of a noise multiplier found, relative
_MOST_DOUBLINGS = 40
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


class _Mechanism(NamedTuple):
    """One round: its event for a noise multiplier, and its neighbours."""

    event: Callable[[float], Any]
    neighbours: str


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
      accountant: ``"pld"`` (privacy loss distributions, the tighter) or ``"rdp"`` (Renyi divergences); None for the
        first that can account for the sampling.

    Raises:
      ValueError: a value out of its range, or a scheme or an accountant that has no answer.
      ImportError: the extra ``privacy`` is not installed.

    References: Koskela et al. 2020, "Computing tight differential privacy guarantees using FFT" (PLD); Mironov, Talwar
    and Zhang 2019, "Renyi differential privacy of the sampled Gaussian mechanism" (Poisson samples); Wang, Balle and
    Kasiviswanathan 2019, "Subsampled Renyi differential privacy and analytical moments accountant", Theorem 27
    (without replacement).
    """
    check_real("epsilon(noise_multiplier=...)", noise_multiplier, low=0.0, host=True)
    _check("epsilon", rounds, delta)
    mechanism = _mechanism(sampling, num_clients)
    name = _accountant(accountant, mechanism)
    return Guarantee(
        _epsilon(name, mechanism, float(noise_multiplier), rounds, delta), delta, mechanism.neighbours, name
    )


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
    check_real("noise_multiplier(epsilon=...)", epsilon, low=0.0, open_=True, host=True)
    _check("noise_multiplier", rounds, delta)
    mechanism = _mechanism(sampling, num_clients)
    name = _accountant(accountant, mechanism)

    def enough(z: float) -> bool:
        return _epsilon(name, mechanism, z, rounds, delta) <= epsilon

    # The search begins near the answer: with hardly any noise a privacy loss distribution fills the memory.
    high = 1.0
    for _ in range(_MOST_DOUBLINGS):
        if enough(high):
            break
        high *= 2
    else:
        raise ValueError(f"noise_multiplier(epsilon={epsilon}, delta={delta}): no noise up to {high:g} is enough")
    low = high / 2
    for _ in range(_MOST_DOUBLINGS):
        if not enough(low):
            break
        low, high = low / 2, low
    else:
        return high
    library = _library()
    with _quiet():
        found: float = library.calibrate_dp_mechanism(
            _makers(library, mechanism)[name],
            lambda z: library.SelfComposedDpEvent(mechanism.event(z), rounds),
            epsilon,
            delta,
            bracket_interval=library.ExplicitBracketInterval(low, high),
            tol=_TOLERANCE * low,
        )
    return found


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


def _check(name: str, rounds: Any, delta: Any) -> None:
    check_count(f"{name}(rounds=...)", rounds)
    check_real(f"{name}(delta=...)", delta, low=0.0, high=1.0, open_=True, host=True)


def _mechanism(sampling: Any, num_clients: int | None) -> _Mechanism:
    """One round of the Gaussian mechanism on what a scheme draws."""
    if isinstance(sampling, (int, float, np.number)) and not isinstance(sampling, bool):
        sampling = Independent(probability=float(sampling)).checked()
    if not isinstance(sampling, Participation):
        raise TypeError(f"sampling is {shown(sampling)}: give a scheme of fedjax_sim.cohort, or a probability")
    if type(sampling) is Full:
        return _Mechanism(lambda z: _library().GaussianDpEvent(z), ADD_OR_REMOVE)
    if type(sampling) is Independent:
        if not is_concrete(sampling.probability):
            raise TypeError("independent(probability) is traced: an accountant needs its value")
        # What a client can be told by depends on its own q_i, so the largest is the worst.
        largest = float(np.max(np.asarray(sampling.probability)))
        return _Mechanism(
            lambda z: _library().PoissonSampledDpEvent(largest, _library().GaussianDpEvent(z)), ADD_OR_REMOVE
        )
    if type(sampling) is not Uniform:
        raise ValueError(
            f"cohort.{sampling.factory_name()}(...) has no privacy accounting: it is known for cohort.independent(q), "
            "cohort.uniform(K) and cohort.full() alone"
        )
    drawn = sampling.num_sampled
    if num_clients is None:
        raise ValueError("uniform(K) needs num_clients: how well a client is hidden depends on K / N")
    check_count("num_clients", num_clients)
    if drawn > num_clients:
        raise ValueError(f"uniform({drawn}) draws more than num_clients={num_clients}: give at most that")
    # Theorem 27 counts noise per sensitivity: a client replaced by another moves the sum by up to 2 C.
    return _Mechanism(
        lambda z: _library().SampledWithoutReplacementDpEvent(num_clients, drawn, _library().GaussianDpEvent(z / 2)),
        REPLACE,
    )


def _accountant(asked: str | None, mechanism: _Mechanism) -> str:
    able = ("pld", "rdp") if mechanism.neighbours == ADD_OR_REMOVE else ("rdp",)
    if asked is None:
        return able[0]
    check_choice("accountant", asked, ("pld", "rdp"))
    if asked not in able:
        raise ValueError(f"accountant={asked!r} has no answer for samples without replacement: use 'rdp' or None")
    return asked


def _makers(library: Any, mechanism: _Mechanism) -> dict[str, Callable[[], Any]]:
    relation = library.NeighboringRelation
    neighbours = relation.ADD_OR_REMOVE_ONE if mechanism.neighbours == ADD_OR_REMOVE else relation.REPLACE_ONE
    return {
        "pld": lambda: library.pld.PLDAccountant(neighbours),
        "rdp": lambda: library.rdp.RdpAccountant(neighboring_relation=neighbours),
    }


def _epsilon(name: str, mechanism: _Mechanism, z: float, rounds: int, delta: float) -> float:
    if z == 0:
        return math.inf
    library = _library()
    account = _makers(library, mechanism)[name]()
    with _quiet():
        account.compose(mechanism.event(z), rounds)
    return float(account.get_epsilon(delta))


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
