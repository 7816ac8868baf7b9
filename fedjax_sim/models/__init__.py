"""Flax models."""

from fedjax_sim.models.mlp import MLP, LogisticRegression

__all__ = ["MLP", "LogisticRegression"]
