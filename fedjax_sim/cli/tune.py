"""``fedjax-sim tune``: hyper-parameters by the gradient of whole runs, and what they are worth on other seeds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.options import add_configuration, add_running, count
from fedjax_sim.cli.output import Results, begin, configured, hardware, in_short, refusing, summary, taken_by
from fedjax_sim.cli.spaces import check_over, transforms_of

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History
    from fedjax_sim.studies.hyper.tuned import Tuned

_RESUMING = ("checkpoint", "every", "keep")  # of the configuration's own run


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("tune", help="follow the gradient of a run with respect to its hyper-parameters")
    add_configuration(command)
    add = command.add_argument
    add("--over", action="append", required=True, metavar="NAME", help="a real hyper-parameter, from its value in the "
        "configuration on: --over algorithm.mu; may be given several times, and with the values it may take: "
        "NAME=interval(0, 2), positive(), unit_interval()")  # fmt: skip
    add("--minimise", metavar="METRIC", help="what is made small at the end of the run (default: validation_loss, "
        "without validation examples test_loss, without these loss)")  # fmt: skip
    add("--steps", type=count, default=30, metavar="N", help="steps of the optimiser (default: 30)")
    add("--rate", type=float, default=0.1, metavar="X", help="learning rate of Adam on the logarithms (default: 0.1, "
        "about 10 %% a step)")  # fmt: skip
    add("--restarts", type=count, default=1, metavar="N", help="descents, all but the first from perturbed values "
        "(default: 1)")  # fmt: skip
    add("--other-seeds", type=count, default=3, metavar="N", help="seeds that the tuning has not seen, with which "
        "start and result are compared (default: 3)")  # fmt: skip
    add_running(command, "tuning.json, tuning.png, tuned.toml and the two histories", "results/NAME-tune")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    with configured(options, "-tune") as (tables, results):
        with refusing(tables):
            devices = begin(options, tables, devices=1)  # a derivative takes one run after the other
            from fedjax_sim.core.values import check_real
            from fedjax_sim.run.configuration.building import arguments

            check_real("--rate", options.rate, above=0.0)
            over = transforms_of(options.over)
            given = {key: value for key, value in arguments(tables).items() if key not in _RESUMING}
            check_over(given, list(over))
            runs = [f"{name}.{kind}" for name in ("start", "tuned") for kind in ("npz", "toml")]
            results.hold("tuning.json", "tuning.png", *runs)
            about = f"{in_short(given)}; {options.steps} steps over {', '.join(over)}"
            results.begun(options.configuration, about, hardware(devices, None))
            tuned = _tuned(given, over, options, results)
        _write(tuned, given, tables, options, results)
    return 0


def _tuned(given: dict[str, Any], over: dict[str, Any], options: argparse.Namespace, results: Results) -> Tuned:
    from fedjax_sim import optim
    from fedjax_sim.datasets.federated import held_out_parts
    from fedjax_sim.run.training import make_train
    from fedjax_sim.studies.hyper.tuning import tune
    from fedjax_sim.studies.objectives import final

    own = ("algorithm", "dataset", "seeds", "initial_params")
    setting, left_out = taken_by(make_train, {key: value for key, value in given.items() if key not in own})
    if left_out:
        results.say(f"note: a derivative is of all rounds of a run on the device: without {', '.join(left_out)}")
    by_default = next((f"{part}_loss" for part in held_out_parts(given["dataset"])), "loss")
    options.minimise = options.minimise or by_default
    return tune(
        given["algorithm"], given["dataset"], over=over, objective=final(options.minimise),
        optimizer=optim.adam(options.rate), steps=options.steps, restarts=options.restarts, seeds=given.get("seeds", 0),
        initial_params=given.get("initial_params"), progress=results.progress, **setting,
    )  # fmt: skip


def _write(tuned: Tuned, given: dict[str, Any], tables: Tables, options: argparse.Namespace, results: Results) -> None:
    from fedjax_sim.reporting.plots import save_figure
    from fedjax_sim.reporting.recorded import part_of
    from fedjax_sim.reporting.table import results_table
    from fedjax_sim.run.simulation import simulate

    tuned.save(results.place("tuning", "tuning.json"))
    results.draw(lambda path: save_figure(tuned.plot(), path), "tuning.png")
    results.say(f"\n{tuned.table()}")
    seeds = [max(tuned.seeds) + 1 + number for number in range(options.other_seeds)]
    runs = {"start": given, "tuned": {**given, "algorithm": tuned.algorithm, **tuned.run}}
    # Other runs than the configuration's, which must not go on from its checkpoints
    run = {key: value for key, value in tables.content.get("run", {}).items() if key not in _RESUMING}
    fresh = tables._replace(content={**tables.content, "run": run})
    told: dict[str, Any] = {}
    histories: dict[str, History] = {}
    for name, arguments in runs.items():
        histories[name] = simulate(**{**arguments, "seeds": seeds}, progress=False)
        own = results.write_run(histories[name], fresh, name)
        told[name] = summary(histories[name], own)
        results.files |= {f"{name} {what}": path for what, path in own.items()}
    found = {key: value for key, value in tuned.as_json().items() if key in ("best", "rejected", "runs", "seconds")}
    if results.tell({**found, "other_seeds": told}):
        return
    results.say(f"\nwith the seeds {', '.join(map(str, seeds))}, which the tuning has not seen:\n")
    results.say(results_table(dict(histories)))
    if part_of(options.minimise) == "test":
        results.say("the test examples were what it was tuned for: report the result on others")
    results.end()
