"""``--over NAME=VALUES``: which hyper-parameters a sweep or a tuning varies, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.numbers import Call, call, key_and_text, numbers

if TYPE_CHECKING:
    from fedjax_sim.studies.hyper.transforms import Transform
    from fedjax_sim.studies.sweeps.space import Space

_OPTION = "--over"


def leaf(name: str) -> str:
    """A hyper-parameter's name in the library: ``algorithm.mu`` is ``mu`` there, ``task.weight_decay`` is itself."""
    return name.strip().removeprefix("algorithm.")


def space_of(over: Sequence[str], *, zipped: bool, random: int | None, seed: int) -> Space:
    """The points of a sweep.

    Args:
      over: ``["algorithm.mu=0,0.1", "algorithm.client_optimizer.learning_rate=geomspace(0.01, 1, 5)"]``, or with
        ``uniform(a, b)`` and ``log_uniform(a, b)`` where ``random``.
      zipped: the k-th value of each list, not all combinations.
      random: so many independent draws.
      seed: of the draws.

    Raises:
      ValueError: not such texts, a name twice, lists without ``random`` or draws with it.
    """
    from fedjax_sim.studies import sweeps

    draws: dict[str, Callable[..., Any]] = {"uniform": sweeps.uniform, "log_uniform": sweeps.log_uniform}
    ranges: dict[str, Callable[..., Any]] = {"linspace": _linspace, "geomspace": _geomspace}
    values: dict[str, Any] = {}
    for said in over:
        key, text = key_and_text(said, _OPTION, "algorithm.mu=0,0.01,0.1")
        name, where = leaf(key), f"{_OPTION} {said[:200]}"
        _check_new(name, values, where)
        asked = call(text, where)
        if random is None and asked is not None and asked.name in draws:
            raise ValueError(f"{where}: {asked.name} is for random points: add --random 20, or give geomspace(a, b, n)")
        if random is not None:
            if asked is None:
                raise ValueError(f"{where}: with --random values are drawn: write log_uniform(a, b) or uniform(a, b)")
            values[name] = _called(asked, draws, where)
        else:
            values[name] = numbers(text, where) if asked is None else _called(asked, ranges, where)
    if random is not None:
        return sweeps.random(values, random, seed)
    return sweeps.zipped(values) if zipped else sweeps.grid(values)


def check_real(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Checks that hyper-parameters are no structure, which no program can vary.

    Args:
      given: arguments of ``simulate``.
      names: the library's names of hyper-parameters of them.

    Raises:
      ValueError: one is; of another command.
    """
    from fedjax_sim.core.paths import real_leaves

    for name in names:
        part, _, rest = name.partition(".") if name.partition(".")[0] in given else ("algorithm", "", name)
        value = given[part]
        for step in rest.split("."):
            value = getattr(value, step, None)
        if value is not None and not any(f"{real}.".startswith(f"{rest}.") for real in real_leaves(given[part])):
            key = f"{part}.{rest}"
            raise ValueError(
                f"{_OPTION} {name}: it is {value!r}, which is fixed when a program is compiled, so that each value "
                f"needs a run of its own: fedjax-sim compare CONFIG.toml --variant {key}=... --variant {key}=..."
            )


def transforms_of(over: Sequence[str]) -> dict[str, Transform | None]:
    """What a tuning varies: ``["algorithm.mu", "algorithm.momentum=interval(0, 0.9)"]`` by the library's names.

    Raises:
      ValueError: an unknown transform, or a name twice.
    """
    from fedjax_sim.studies import hyper

    known: dict[str, Callable[..., Any]] = {
        "positive": hyper.positive, "softplus": hyper.softplus, "unit_interval": hyper.unit_interval,
        "interval": hyper.interval, "simplex": hyper.simplex, "identity": hyper.identity,
    }  # fmt: skip
    chosen: dict[str, Transform | None] = {}
    for said in over:
        key, equals, text = said.partition("=")
        name, where = leaf(key), f"{_OPTION} {said[:200]}"
        _check_new(name, chosen, where)
        asked = (call(text, where) or Call(text.strip(), [])) if equals else None
        chosen[name] = None if asked is None else _called(asked, known, where)
    return chosen


def _check_new(name: str, known: Mapping[str, Any], where: str) -> None:
    if name in known:
        raise ValueError(f"{where}: {name} is there twice: write all its values once, NAME=1,2,3")


def _called(asked: Call, known: Mapping[str, Callable[..., Any]], where: str) -> Any:
    from fedjax_sim.core.values import suggest

    if asked.name not in known:
        raise ValueError(f"{where}: unknown {asked.name!r}: {suggest(asked.name, list(known))}")
    try:
        return known[asked.name](*asked.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _linspace(low: float, high: float, num: int) -> list[float]:
    import numpy as np

    found: list[float] = np.linspace(low, high, num).tolist()
    return found


def _geomspace(low: float, high: float, num: int) -> list[float]:
    import numpy as np

    found: list[float] = np.geomspace(low, high, num).tolist()
    return found
