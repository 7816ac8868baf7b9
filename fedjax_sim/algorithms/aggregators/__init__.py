"""Rules that make one vector of many, some of which may lie: what :func:`fedjax_sim.robust` aggregates by."""

from fedjax_sim.algorithms.aggregators.base import Aggregator, Combined, Present, present
from fedjax_sim.algorithms.aggregators.clipping import CenteredClipping, centered_clipping
from fedjax_sim.algorithms.aggregators.coordinates import Mean, Median, TrimmedMean, mean, median, trimmed_mean
from fedjax_sim.algorithms.aggregators.geometric import GeometricMedian, geometric_median
from fedjax_sim.algorithms.aggregators.krum import Krum, MultiKrum, krum, multi_krum

__all__ = [
    "Aggregator",
    "CenteredClipping",
    "Combined",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "Present",
    "TrimmedMean",
    "centered_clipping",
    "geometric_median",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "present",
    "trimmed_mean",
]
