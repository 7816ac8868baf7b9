"""Tables 3 and 4: rounds to a target accuracy of logistic regression on EMNIST."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.scaffold import images
from fedjax_sim.papers.scaffold.tuning import Tuned, at_most, every, less, rounds_figure, tuned

TARGET3, TARGET4 = 0.5, 0.45
EPOCHS = (1, 5, 10, 20)
SMOKE_EPOCHS = (1, 2)
LIMIT, CPU_LIMIT = 1000, 400
RATES = (1.0, 0.3, 0.1)
WINDOW = 10  # with sorted data the accuracy jumps with the cohort: rounds that are averaged in a second reading
SAMPLED = (20, 5, 1)  # per cent, Table 4
EPOCHS4 = 5
BOTH = ("SCAFFOLD", "FedAvg")

Row = list[str | float | int | None]
Key = tuple[str, int, float]  # method; epochs (Table 3) or clients sampled (Table 4); similarity
INF = math.inf

# Of claims that hold other methods against SGD.
_CHOSEN = "depends on the grid, which was chosen so that SGD's rounds are near the paper's"


def _by_key(table: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[Key, float]:
    """A table of the paper: a number for each similarity in every line."""
    return {
        (method, number, similarity): rounds
        for method, lines in table.items()
        for number, line in lines.items()
        for similarity, rounds in zip(images.SIMILARITIES, line, strict=False)
    }


# The paper's rounds; inf for "1k+". SGD does one step, whatever an epoch is.
PAPER3 = _by_key({
    "SGD": {1: (317, 365, 416)},
    "SCAFFOLD": {1: (77, 62, 60), 5: (152, 20, 10), 10: (286, 16, 7), 20: (266, 11, 4)},
    "FedAvg": {1: (258, 74, 83), 5: (428, 34, 10), 10: (711, 25, 6), 20: (INF, 18, 4)},
    "FedProx": {1: (INF, 979, 459), 5: (INF, 794, 351), 10: (INF, 894, 308), 20: (INF, 916, 351)},
})  # fmt: skip
PAPER4 = _by_key({
    "SCAFFOLD": {20: (143, 9), 5: (290, 13), 1: (790, 28)},
    "FedAvg": {20: (179, 12), 5: (334, 17), 1: (INF, 35)},
})  # fmt: skip


def perform_table3(bench: Bench) -> Outcome:
    """Methods, epochs and similarities."""
    grid = bench.choose(SMOKE_EPOCHS, EPOCHS)
    epochs = {
        "SGD": (1,), "SCAFFOLD": grid, "FedAvg": grid,
        "FedProx": bench.choose(smoke=(1,), cpu=(1, 5), paper=EPOCHS),
    }  # fmt: skip
    found, steady = _all_rounds(bench, "", epochs, images.SIMILARITIES)
    short = {method: numbers[:2] for method, numbers in epochs.items()}
    variant, _ = _all_rounds(bench, "pixels in (0, 1), ", short, images.SIMILARITIES[::2], norm=False)
    limit = _limit(bench)
    return Outcome(
        [*images.settings(bench), *_settings(bench, TARGET3),
         bench.setting("clients sampled", "20 %", smoke="half"),
         Setting("epochs", "1, 5, 10, 20", ", ".join(map(str, grid))
                 + (f"; FedProx {', '.join(map(str, epochs['FedProx']))}" if epochs["FedProx"] != grid else ""))],
        _claims3(found, steady, grid, epochs["FedProx"], limit),
        {"table3": rounds_figure(found, PAPER3, images.SIMILARITIES, grid, "local epochs", limit)},
        [_rounds_table("Table 3: rounds to the target accuracy", "epochs", found, PAPER3),
         _ratios_table("Table 3: speed-up over SGD", "epochs", found, PAPER3, _speed_up),
         _rates_table("epochs", found),
         _rounds_table(f"0 % similarity: rounds until the mean accuracy of {WINDOW} rounds is at the target", "epochs",
                       steady, PAPER3),
         _rounds_table("Variant, pixels in [0, 1]: rounds to the target accuracy", "epochs", variant, PAPER3),
         _ratios_table("Variant, pixels in [0, 1]: speed-up over SGD", "epochs", variant, PAPER3, _speed_up),
         _rates_table("epochs", variant)],
    )  # fmt: skip


def _all_rounds(
    bench: Bench, variant: str, epochs: Mapping[str, Sequence[int]], similarities: Sequence[float], *, norm: bool = True
) -> tuple[dict[Key, Tuned], dict[Key, Tuned]]:
    """Table 3, or a part of it: the first round at the target, and with sorted data the mean of several rounds."""
    found, steady = {}, {}
    for similarity in similarities:
        data = images.clients_of(bench, similarity, norm=norm)
        for method, number in ((name, number) for name, numbers in epochs.items() for number in numbers):
            label = f"{variant}similarity {similarity:g}, {method}, epochs={number}"
            over = WINDOW if norm and similarity == images.SIMILARITIES[0] else 1
            first, mean = _rounds(bench, label, method, data, TARGET3, number, images.SAMPLED, over)
            found[method, number, similarity] = first
            if over > 1:
                steady[method, number, similarity] = mean
    return found, steady


def perform_table4(bench: Bench) -> Outcome:
    """Methods, clients sampled and similarities."""
    similarities = images.SIMILARITIES[:2]
    shares = bench.choose((20, 1), SAMPLED)
    epochs, limit = bench.choose(1, EPOCHS4), _limit(bench)
    found: dict[Key, Tuned] = {}
    for similarity in similarities:
        data = images.clients_of(bench, similarity)
        for method, share in itertools.product(BOTH, shares):
            found[method, share, similarity], _ = _rounds(
                bench, f"similarity {similarity:g}, {method}, sampled={share}", method, data, TARGET4,
                epochs, share,
            )  # fmt: skip

    def slow_down(rounds: Mapping[Key, float], key: Key) -> float:
        method, _, similarity = key
        return rounds[key] / rounds[method, shares[0], similarity]

    return Outcome(
        [*images.settings(bench), *_settings(bench, TARGET4),
         Setting("clients sampled", "20, 5, 1", ", ".join(map(str, shares))),
         Setting("epochs", str(EPOCHS4), str(epochs))],
        _claims4(found, shares, similarities, limit),
        {"table4": rounds_figure(found, PAPER4, similarities, shares[::-1], "clients sampled", limit)},
        [_rounds_table("Table 4: rounds to the target accuracy", "sampled", found, PAPER4),
         _ratios_table(f"Table 4: slow-down over {shares[0]} % sampled", "sampled", found, PAPER4, slow_down),
         _rates_table("sampled", found)],
    )  # fmt: skip


def _limit(bench: Bench) -> int:
    return bench.choose(smoke=2, cpu=CPU_LIMIT, paper=LIMIT)


def _rounds(
    bench: Bench,
    label: str,
    method: str,
    data: fjs.FederatedDataset,
    target: float,
    epochs: int,
    share: int,
    over: int = 1,
) -> tuple[Tuned, Tuned]:
    grid = bench.choose(SMOKE_EPOCHS, EPOCHS)
    sampled = bench.choose(min(share, images.SMOKE_SAMPLED), share)
    return tuned(
        bench, label, images.METHODS[method], data, target=target, limit=_limit(bench),
        over=bench.choose(1, over), rates=bench.choose(RATES[:1], RATES),
        cohort=fjs.cohort.uniform(sampled),
        task=fjs.classification(fjs.models.LogisticRegression(data.num_classes or 0)),
        work=images.work(epochs, max(grid), _limit(bench), data), batches=fjs.local.fraction(images.BATCH),
    )  # fmt: skip


def _settings(bench: Bench, target: float) -> list[Setting]:
    grid = f"best of {', '.join(f'{rate:g}' for rate in RATES)} for each entry of the table"
    return [
        bench.setting("target test accuracy", f"{target:g}"),
        bench.setting("rounds at most", str(LIMIT), _limit(bench)),
        bench.setting("local step size", "tuned for each algorithm, grid not given", grid),
        bench.setting("scale of the images and grid", "not given", "chosen so that SGD's rounds are near the paper's"),
    ]


def _claims3(
    found: Mapping[Key, Tuned], steady: Mapping[Key, Tuned], grid: Sequence[int], prox: Sequence[int], limit: int
) -> list[Claim]:
    low, middle, high = images.SIMILARITIES
    means = {key: result.mean for key, result in found.items()}

    def row(method: str, similarity: float, epochs: Sequence[int] = grid) -> list[float]:
        return [means[method, number, similarity] for number in epochs]

    sgd = [means["SGD", 1, similarity] for similarity in images.SIMILARITIES]
    pairs = {f"{s:g} %": {method: row(method, s) for method in BOTH} for s in images.SIMILARITIES}
    ours = {"SGD": sgd, **pairs}
    proxes = {f"{s:g} %": row("FedProx", s, prox) for s in images.SIMILARITIES}
    return [
        Claim("SCAFFOLD needs no more rounds than FedAvg, in all entries",
              every(at_most(a, b, limit) for s in images.SIMILARITIES
                    for a, b in zip(row("SCAFFOLD", s), row("FedAvg", s), strict=True)), pairs),
        Claim("FedProx needs more rounds than SCAFFOLD and FedAvg, in all entries",
              every(less(means[method, number, s], means["FedProx", number, s], limit)
                    for s in images.SIMILARITIES for number in prox for method in BOTH),
              {f"FedProx, epochs {', '.join(map(str, prox))}": proxes, **pairs}),
        *_sorted_claims(found, grid, limit),
        *_sorted_claims(steady or found, grid, limit, f", by the mean of {WINDOW} rounds"),
        Claim("SGD's rounds stay about the same whatever the similarity (within a factor of 1.5)",
              at_most(max(sgd), min(sgd), limit, 1.5), {"SGD": sgd}),
        Claim("SCAFFOLD and FedAvg are faster with 100 % similarity than with 0 %, for all epochs",
              every(less(a, b, limit) for method in BOTH
                    for a, b in zip(row(method, high), row(method, low), strict=True)), pairs),
        Claim("with 10 and 100 % similarity more epochs never slow SCAFFOLD or FedAvg down",
              every(at_most(b, a, limit) for method in BOTH for s in (middle, high)
                    for a, b in itertools.pairwise(row(method, s))), pairs),
        Claim("with 10 and 100 % similarity SCAFFOLD and FedAvg are faster than SGD",
              every(less(value, of_sgd, limit) for method in BOTH
                    for s, of_sgd in zip((middle, high), sgd[1:], strict=True) for value in row(method, s)),
              ours, _CHOSEN),
    ]  # fmt: skip


def _sorted_claims(found: Mapping[Key, Tuned], grid: Sequence[int], limit: int, how: str = "") -> list[Claim]:
    """What the paper says of 0 % similarity; read in another way the answers are our own."""
    low = images.SIMILARITIES[0]
    sgd = found["SGD", 1, low].mean
    scaffold, fedavg = ([found[method, number, low].mean for number in grid] for method in BOTH)
    claims = [
        Claim(f"0 % similarity{how}: FedAvg gets slower with every increase of the epochs",
              every(less(a, b, limit) for a, b in itertools.pairwise(fedavg)), {"FedAvg": fedavg}),
        Claim(f"0 % similarity{how}: with more than 5 epochs FedAvg is slower than SGD",
              every(less(sgd, value, limit) for value, number in zip(fedavg, grid, strict=True) if number > 5),
              {"FedAvg": fedavg, "SGD": sgd}, _CHOSEN),
        Claim(f"0 % similarity{how}: SCAFFOLD is always at least as fast as SGD",
              every(at_most(value, sgd, limit) for value in scaffold), {"SCAFFOLD": scaffold, "SGD": sgd}, _CHOSEN),
        Claim(f"0 % similarity{how}: SCAFFOLD gets slower with more epochs and then flattens (the last doubling costs "
              "less than half as much again)",
              every([less(scaffold[0], scaffold[1], limit), less(scaffold[-1], scaffold[-2], limit, 1.5)]),
              {"SCAFFOLD": scaffold}),
    ]  # fmt: skip
    return [claim._replace(own=bool(how)) for claim in claims]


def _claims4(
    found: Mapping[Key, Tuned], shares: Sequence[int], similarities: Sequence[float], limit: int
) -> list[Claim]:
    means = {key: result.mean for key, result in found.items()}
    rows = {f"{s:g} %": {m: [means[m, share, s] for share in shares] for m in BOTH} for s in similarities}
    downs = {f"{s:g} %": {m: means[m, shares[-1], s] / means[m, shares[0], s] for m in BOTH} for s in similarities}
    fewer = shares[0] / shares[-1]
    known = all(math.isfinite(mean) for mean in means.values())
    high = similarities[-1]
    note = "" if known else "some runs did not reach the target within the rounds"
    slower = {
        m: [[means[m, share, s] / means[m, shares[0], s] for s in similarities] for share in shares[1:]] for m in BOTH
    }
    reached = [pair for of in slower.values() for pair in of if all(map(math.isfinite, pair))]

    def sub_linear(method: str, similarity: float) -> bool | None:
        return less(means[method, shares[-1], similarity], means[method, shares[0], similarity], limit, fewer)

    return [
        Claim("SCAFFOLD needs no more rounds than FedAvg, in all entries",
              every(at_most(a, b, limit) for of in rows.values()
                    for a, b in zip(of["SCAFFOLD"], of["FedAvg"], strict=True)), rows),
        Claim(f"SCAFFOLD's slow-down from {shares[0]} to {shares[-1]} % of the clients is sub-linear (below {fewer:g})",
              every(sub_linear("SCAFFOLD", s) for s in similarities), {"slow-down": downs}, note),
        Claim(f"with {high:g} % similarity FedAvg's slow-down from {shares[0]} to {shares[-1]} % is sub-linear too",
              sub_linear("FedAvg", high), {"slow-down": downs[f"{high:g} %"]["FedAvg"]}, note),
        Claim("slow-downs are smaller with 10 % similarity than with 0 %, where the target was reached",
              every(lower < higher for higher, lower in reached),
              {f"slow-down at {', '.join(f'{share} %' for share in shares[1:])} sampled": slower}, note),
    ]  # fmt: skip


def _table(
    title: str, what: str, found: Collection[Key], heads: Sequence[str], cells: Callable[[Key], Row], note: str = ""
) -> Table:
    """A row for each method and number; of each similarity the ``cells``, under ``heads`` that follow its name."""
    similarities = sorted({key[2] for key in found})
    first, *rest = heads
    columns = [name for s in similarities for name in (f"{s:g} %{first}", *rest)]
    rows: list[Row] = [
        [method, number, *(cell for s in similarities for cell in cells((method, number, s)))]
        for method, number in dict.fromkeys(key[:2] for key in found)
    ]
    return Table(title, ("method", what, *columns), rows, note)


_BESIDE = (": paper", "ours", "difference")


def _rounds_table(title: str, what: str, found: Mapping[Key, Tuned], paper: Mapping[Key, float]) -> Table:
    def cells(key: Key) -> Row:
        ours, theirs = found[key], paper.get(key)
        if theirs is None:
            return [None, ours.words, None]
        both = math.isfinite(theirs) and math.isfinite(ours.mean)
        printed = "1000+" if math.isinf(theirs) else f"{theirs:g}"
        return [printed, ours.words, ours.mean - theirs if both else None]

    note = "A number with a plus: not reached in so many rounds. Mean over the seeds."
    return _table(title, what, found, _BESIDE, cells, note)


def _ratios_table(
    title: str,
    what: str,
    found: Mapping[Key, Tuned],
    paper: Mapping[Key, float],
    ratio: Callable[[Mapping[Key, float], Key], float],
) -> Table:
    """What ``ratio`` makes of the rounds of an entry and of another one, the paper's beside ours."""
    rounds = ({key: paper.get(key, math.nan) for key in found}, {key: result.mean for key, result in found.items()})

    def cells(key: Key) -> Row:
        ratios = (ratio(of, key) for of in rounds)
        theirs, ours = (value if math.isfinite(value) and value > 0 else None for value in ratios)
        return [theirs, ours, None if theirs is None or ours is None else ours - theirs]

    return _table(title, what, found, _BESIDE, cells, "Empty where the target was not reached.")


def _speed_up(rounds: Mapping[Key, float], key: Key) -> float:
    return rounds["SGD", 1, key[2]] / rounds[key]


def _rates_table(what: str, found: Mapping[Key, Tuned]) -> Table:
    return _table("Step sizes found", what, found, ("",), lambda key: [found[key].rate])
