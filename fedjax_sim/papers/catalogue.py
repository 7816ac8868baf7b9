"""The experiments by name. Importing this imports none of them: each is loaded when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.papers.bench import Bench, Outcome, Size

SOURCES = {
    "fednova": "Wang et al. 2020 (FedNova), ",
    "liconv": "Li et al. 2020 (convergence of FedAvg), ",
    "fedprox": "Li et al. 2020 (FedProx), ",
    "scaffold": "Karimireddy et al. 2020 (SCAFFOLD), ",
    "fedaware": "Zeng et al. 2025 (FedAWARE), ",
    "pfllib": "Zhang et al. 2025 (PFLlib), ",
    "niid": "Li et al. 2022 (NIID-Bench), ",
}


class Entry(NamedTuple):
    """Where an experiment is, and what it shows."""

    module: str  # below ``fedjax_sim.papers``; of ``fednova-fig2`` it has ``perform_fig2``, or only ``perform``
    cpu: int  # seeds at this size
    paper: int  # as many as the paper has
    title: str  # what it shows, in a line
    number: str = ""  # of the paper's figure or table, where the experiment's name does not say it
    # At the size cpu with so many seeds, as the stored results took (those of fedprox-fig1 and -fig7 have ten, and took
    # five times as long; those of scaffold-table3, -table5, fedaware-fig1, -fig8, pfllib-fmnist and niid have ten):
    # most on one core, so less on two that are idle.
    minutes: float = 0.0
    hours: float | None = None  # at the paper's size on two cores; None where that was not measured, or wants a GPU
    of: str = ""  # the experiment that has its runs, where it draws them only

    def seeds(self, size: Size) -> int:
        """Their number at a size."""
        return {"smoke": 1, "cpu": self.cpu, "paper": self.paper}[size]


# fmt: off
CATALOGUE: dict[str, Entry] = {
    "fednova-fig2": Entry("fednova.quadratics", 10, 10, "30 quadratic clients with equal and with changing local steps",
        minutes=4, hours=0.03),
    "fednova-fig4": Entry("fednova.weights", 10, 10, "what a proximal term does to the weights and to the speed",
        minutes=0.1, hours=0.002),
    "fednova-fig5": Entry("fednova.synthetic", 10, 10,
        "FedAvg, FedProx and FedNova on synthetic(1, 1), three regimes of local work", minutes=10, hours=0.1),
    "fednova-table1": Entry("fednova.cifar", 5, 3,
        "CIFAR-10 among 16 clients, Dir(0.1): local solvers with and without normalising", "Table I", minutes=87),
    "liconv-fig1": Entry("liconv.figure1", 5, 5, "what local steps, cohort size and averaging scheme do to FedAvg",
        minutes=64, hours=16),
    "liconv-fig3": Entry("liconv.cohort_sizes", 5, 5, "clients a round, four data sets", minutes=6, hours=0.1),
    "liconv-fig4": Entry("liconv.schemes", 5, 5, "averaging schemes, two synthetic data sets", minutes=1.3, hours=0.1),
    "liconv-thm4": Entry("liconv.theorem4", 1, 1, "a constant step size does not reach the optimum",
        "Theorem 4 and Figure 2", minutes=0.3, hours=0.2),
    "fedprox-fig1": Entry("fedprox.stragglers", 5, 10, "loss with 0, 50 and 90 % stragglers, five data sets",
        minutes=23),
    "fedprox-fig2": Entry("fedprox.synthetics", 5, 10, "loss and dissimilarity on four synthetic data sets", minutes=9,
        of="fedprox-fig6", hours=0.3),
    "fedprox-fig3": Entry("fedprox.synthetics", 5, 10, "an adaptive mu on synthetic IID and synthetic(1, 1)", minutes=5,
        of="fedprox-fig11", hours=0.3),
    "fedprox-fig4": Entry("fedprox.variants", 5, 10, "FedDANE against FedProx on four synthetic data sets", minutes=28,
        hours=1.0),
    "fedprox-fig5": Entry("fedprox.variants", 5, 10, "FedAvg with stragglers on IID data", minutes=2.1, hours=0.1),
    "fedprox-fig6": Entry("fedprox.synthetics", 5, 10,
        "loss, test accuracy and dissimilarity on four synthetic data sets", minutes=9, hours=0.3),
    "fedprox-fig7": Entry("fedprox.stragglers", 5, 10, "test accuracy with 0, 50 and 90 % stragglers, five data sets",
        minutes=22, of="fedprox-fig1"),
    "fedprox-fig8": Entry("fedprox.stragglers", 5, 10, "dissimilarity on five data sets", minutes=28),
    "fedprox-fig9": Entry("fedprox.stragglers", 5, 10, "loss with stragglers where at most one epoch is done",
        minutes=10),
    "fedprox-fig10": Entry("fedprox.stragglers", 5, 10, "test accuracy with stragglers where at most one epoch is done",
        minutes=9, of="fedprox-fig9"),
    "fedprox-fig11": Entry("fedprox.synthetics", 5, 10, "an adaptive mu on all four synthetic data sets", minutes=11,
        hours=0.5),
    "fedprox-fig12": Entry("fedprox.variants", 5, 10, "two ways of drawing devices and averaging", minutes=55,
        hours=0.9),
    "scaffold-fig3": Entry("scaffold.quadratics", 1, 1, "two quadratic clients, gradient dissimilarity and local steps",
        minutes=0.2, hours=0.01),
    "scaffold-table3": Entry("scaffold.emnist", 5, 1, "rounds to a target accuracy against epochs and similarity",
        minutes=35, hours=4.5),
    "scaffold-table4": Entry("scaffold.emnist", 10, 1,
        "rounds to a target accuracy against the share of clients sampled", minutes=12, hours=0.5),
    "scaffold-table5": Entry("scaffold.network", 5, 1, "best accuracy of a two-layer network", minutes=62, hours=17.0),
    "fedaware-table2": Entry("fedaware.comparison", 5, 3, "accuracy and e-LUD of eight methods, raw and with AWARE",
        minutes=91),
    "fedaware-fig1": Entry("fedaware.dissimilarity", 5, 3, "FedAvg's training on clients from alike to unlike",
        minutes=48, hours=16),
    "fedaware-fig2": Entry("fedaware.comparison", 5, 3, "training of eight methods", minutes=85, of="fedaware-table2"),
    "fedaware-fig3": Entry("fedaware.comparison", 5, 3, "training of the methods with the AWARE extension",
        "Figures 3 and 6", minutes=85, of="fedaware-table2"),
    "fedaware-fig4": Entry("fedaware.ablation", 5, 3, "FedAWARE without adaptive weights, and by alpha", minutes=46),
    "fedaware-fig7": Entry("fedaware.coherence", 5, 3, "client coherence, cosines and LUD of 20 clients", minutes=24,
        hours=9),
    "fedaware-fig8": Entry("fedaware.dissimilarity", 5, 3, "coherence and LUD on IID and other clients", minutes=48,
        of="fedaware-fig1", hours=16),
    "pfllib-fmnist": Entry("benchmarks.pfllib", 5, 3, "personal methods on Fashion-MNIST, label skew", "benchmark page",
        minutes=20),
    "pfllib-mnist": Entry("benchmarks.pfllib", 5, 3, "personal methods on MNIST, label skew",
        "benchmark page's setting", minutes=27),
    "niid-fmnist": Entry("benchmarks.niid", 5, 3, "four methods on six partitions of Fashion-MNIST", "Table III",
        minutes=13),
    "niid-mnist": Entry("benchmarks.niid", 5, 3, "four methods on six partitions of MNIST", "Table III", minutes=14),
}
# fmt: on


def load(name: str) -> Callable[[Bench], Outcome]:
    """What runs and draws the experiment of a name."""
    check_name(name)
    entry, (_, _, part) = CATALOGUE[name], name.partition("-")
    module = importlib.import_module(f"fedjax_sim.papers.{entry.module}")
    return getattr(module, f"perform_{part}", None) or module.perform


def source(name: str) -> str:
    """Paper and number: "Wang et al. 2020 (FedNova), Figure 2"."""
    paper, _, part = name.partition("-")
    return SOURCES[paper] + (CATALOGUE[name].number or part.replace("fig", "Figure ").replace("table", "Table "))


def check_name(name: str) -> None:
    """Raises ``ValueError`` for a name that is not in the catalogue, with the nearest one."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
        raise ValueError(
            f"no experiment is called {name!r}{f': did you mean {near[0]!r}?' if near else ''}; "
            "`fedjax-sim reproduce --list` names all"
        )
