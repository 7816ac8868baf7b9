"""``fedjax-sim benchmark``: a method, one's own or a known one, beside tuned FedAvg by the comparison's protocol."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.options import FOLDERS, add_place, add_traceback, add_voice, count, voice
from fedjax_sim.cli.output import finite, refusing, settle
from fedjax_sim.cli.spaces import space_of

if TYPE_CHECKING:
    from fedjax_sim.studies.benchmark.result import Cost


def add_to(commands: Any) -> None:
    """Adds the command."""
    about = "a method beside tuned FedAvg, by the protocol of the fair comparison (docs/benchmark.md)"
    command = commands.add_parser("benchmark", help=about)
    add = command.add_argument
    add("method", metavar="METHOD", help="a method of the comparison, or what to call your own")
    add("--mine", metavar="MODULE:FACTORY", help="your own: a function of client_optimizer that makes it")
    add("--over", action="append", default=[], metavar="NAME=RANGE", help="what a parameter of your own is drawn "
        "from: --over mu=log_uniform(0.001, 1), or uniform(a, b); the rates have ranges already")  # fmt: skip
    add("--beside", nargs="+", default=[], metavar="METHOD", help="methods of the comparison that it is held against "
        "too, tuned in the same way")  # fmt: skip
    add("--problems", nargs="+", metavar="NAME", help="some of them (default: all)")
    add("--points", type=count, metavar="N", help="points drawn for every method (default: the protocol's)")
    add("--size", choices=("smoke", "cpu"), default="cpu", help="smoke: only to see that it runs")
    add("--dry-run", action="store_true", help="say what it costs, and end")
    add_place(command, "--out", FOLDERS, default="results/benchmark", of="DIR", help="results, and finished runs: the "
              "same command goes on with what is missing (default: results/benchmark)")  # fmt: skip
    add("--devices", type=count, metavar="N", help="on a CPU: virtual devices that share the runs")
    add_voice(command)
    add_traceback(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    with refusing():
        settle(options, devices=options.devices)
        from fedjax_sim.studies.benchmark.methods import BASE
        from fedjax_sim.studies.benchmark.result import Result, cost, named, problems_of
        from fedjax_sim.studies.benchmark.result import run as compare

        say, out = voice(options), Path(options.out)
        common: dict[str, Any] = {"size": options.size, "points": options.points, "folder": out / "runs"}
        method: Any = options.method
        own: dict[str, Any] = {}
        if options.mine is not None:
            from fedjax_sim.run.configuration.own_objects import own_factory

            method = own_factory(options.mine, "algorithm", given=True)
            drawn = space_of(options.over, zipped=False, random=1, seed=0) if options.over else None
            own = {"name": options.method, "space": dict(getattr(drawn, "distributions", ()))}
        elif options.over:
            raise ValueError("--over is for a method of your own, --mine module:factory: others have their spaces")
        asked = {options.method: (method, own)} | {of: (of, {}) for of in options.beside if of != options.method}
        fit = {
            name: problems_of(*named(of, how.get("space"), how.get("name")), options.problems)
            for name, (of, how) in asked.items()
        }
        for name, (_, how) in asked.items():  # others are run where there is something to hold against them
            how["problems"] = [problem for problem in fit[name] if problem in fit[options.method]]
            if not how["problems"]:
                raise ValueError(
                    f"--beside {name}: it can be judged on {', '.join(fit[name])} alone, {options.method} not"
                )
        costs = {name: cost(of, **common, **how) for name, (of, how) in asked.items()}
        for name, each in costs.items():
            say(f"{name}, with FedAvg's runs, which all share:\n" * (len(costs) > 1) + _in_words(each))
        found = Result([], [])
        if not options.dry_run:
            for of, how in asked.values():
                found = found.joined(compare(of, **common, **how, show=say))
    bases = [base for base in dict.fromkeys((BASE, *options.beside)) if base != options.method]
    if not options.dry_run:
        found.save(out)
        for base in bases:
            say(f"\n{found.table(base=base)}")
        say(f"\nwrote {out}")
    if options.json:
        costly = [
            {"method": name, **of._asdict(), "hours": list(of.hours)} for name, each in costs.items() for of in each
        ]
        told = [{"base": base, **of._asdict()} for base in bases for of in found.differences(base=base)]
        print(json.dumps(finite({"cost": costly, "differences": told if found.rows else None, "out": str(out)})))
    return 0


def _in_words(costs: list[Cost]) -> str:
    lines = [f"{of.problem}: {of.fewest:,} to {of.most:,} runs, {_hours(of.hours)}" for of in costs]
    low, high = (sum(of.hours[end] for of in costs) for end in (0, 1))
    return "\n".join([*lines, f"all: {_hours((low, high))}, by rounds that were measured here; compiling comes to it"])


def _hours(hours: tuple[float, float]) -> str:
    low, high = hours
    if high < 1 / 60:
        return "seconds" if high < 5 / 3600 else f"{3600 * low:.0f} to {3600 * high:.0f} seconds"
    return f"{60 * low:.0f} to {60 * high:.0f} minutes" if high < 1 else f"{low:.1f} to {high:.1f} hours"
