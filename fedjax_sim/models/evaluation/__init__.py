"""What a model is worth: to all examples together, to every client, and to those it serves worst."""

from fedjax_sim.models.evaluation.passes import client_sums, example_owners, mean_values
from fedjax_sim.models.evaluation.personal import Clients, personal_values, values_of_client
from fedjax_sim.models.evaluation.reports import (
    Evaluation,
    FineTuned,
    PerClient,
    client_values,
    evaluate,
    per_client,
    worst_mean,
)

__all__ = [
    "Clients",
    "Evaluation",
    "FineTuned",
    "PerClient",
    "client_sums",
    "client_values",
    "evaluate",
    "example_owners",
    "mean_values",
    "per_client",
    "personal_values",
    "values_of_client",
    "worst_mean",
]
