"""The experiments by name. Importing this imports none of them: each is loaded when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.papers.bench import Experiment


class Entry(NamedTuple):
    """Where an experiment is."""

    module: str  # below ``fedjax_sim.papers``; its ``EXPERIMENTS`` has the experiment under its name
    title: str  # what it shows, in a line


CATALOGUE: dict[str, Entry] = {
    "fednova-fig2": Entry("fednova.quadratics", "30 quadratic clients with equal and with changing local steps"),
    "fednova-fig4": Entry("fednova.weights", "what a proximal term does to the weights and to the speed"),
    "fednova-fig5": Entry(
        "fednova.synthetic", "FedAvg, FedProx and FedNova on synthetic(1, 1), three regimes of local work"
    ),
    "fednova-table1": Entry(
        "fednova.cifar", "CIFAR-10 among 16 clients, Dir(0.1): local solvers with and without normalising"
    ),
    "liconv-fig1": Entry("liconv.figure1", "what local steps, cohort size and averaging scheme do to FedAvg"),
    "liconv-fig3": Entry("liconv.cohort_sizes", "clients a round, four data sets"),
    "liconv-fig4": Entry("liconv.schemes", "averaging schemes, two synthetic data sets"),
    "liconv-thm4": Entry("liconv.theorem4", "a constant step size does not reach the optimum"),
    "fedprox-fig1": Entry("fedprox.stragglers", "loss with 0, 50 and 90 % stragglers, five data sets"),
    "fedprox-fig2": Entry("fedprox.synthetics", "loss and dissimilarity on four synthetic data sets"),
    "fedprox-fig3": Entry("fedprox.synthetics", "an adaptive mu on synthetic IID and synthetic(1, 1)"),
    "fedprox-fig4": Entry("fedprox.variants", "FedDANE against FedProx on four synthetic data sets"),
    "fedprox-fig5": Entry("fedprox.variants", "FedAvg with stragglers on IID data"),
    "fedprox-fig6": Entry("fedprox.synthetics", "loss, test accuracy and dissimilarity on four synthetic data sets"),
    "fedprox-fig7": Entry("fedprox.stragglers", "test accuracy with 0, 50 and 90 % stragglers, five data sets"),
    "fedprox-fig8": Entry("fedprox.stragglers", "dissimilarity on five data sets"),
    "fedprox-fig9": Entry("fedprox.stragglers", "loss with stragglers where at most one epoch is done"),
    "fedprox-fig10": Entry("fedprox.stragglers", "test accuracy with stragglers where at most one epoch is done"),
    "fedprox-fig11": Entry("fedprox.synthetics", "an adaptive mu on all four synthetic data sets"),
    "fedprox-fig12": Entry("fedprox.variants", "two ways of drawing devices and averaging"),
    "scaffold-fig3": Entry("scaffold.quadratics", "two quadratic clients, gradient dissimilarity and local steps"),
    "scaffold-table3": Entry("scaffold.emnist", "rounds to a target accuracy against epochs and similarity"),
    "scaffold-table4": Entry("scaffold.emnist", "rounds to a target accuracy against the share of clients sampled"),
    "scaffold-table5": Entry("scaffold.network", "best accuracy of a two-layer network"),
    "fedaware-table2": Entry("fedaware.comparison", "accuracy and e-LUD of eight methods, raw and with AWARE"),
    "fedaware-fig1": Entry("fedaware.dissimilarity", "FedAvg's training on clients from alike to unlike"),
    "fedaware-fig2": Entry("fedaware.comparison", "training of eight methods"),
    "fedaware-fig3": Entry("fedaware.comparison", "training of the methods with the AWARE extension"),
    "fedaware-fig4": Entry("fedaware.ablation", "FedAWARE without adaptive weights, and by alpha"),
    "fedaware-fig7": Entry("fedaware.coherence", "client coherence, cosines and LUD of 20 clients"),
    "fedaware-fig8": Entry("fedaware.dissimilarity", "coherence and LUD on IID and other clients"),
    "all-methods": Entry("all_methods.page", "all methods on four problems with one budget and one grid"),
}


def load(name: str) -> Experiment:
    """The experiment of a name."""
    check_name(name)
    module = importlib.import_module(f"fedjax_sim.papers.{CATALOGUE[name].module}")
    experiment: Experiment = module.EXPERIMENTS[name]
    return experiment


def check_name(name: str) -> None:
    """Raises ``ValueError`` for a name that is not in the catalogue, with the nearest one."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
        raise ValueError(
            f"no experiment is called {name!r}{f': did you mean {near[0]!r}?' if near else ''}; "
            "`fedjax-sim reproduce --list` names all"
        )
