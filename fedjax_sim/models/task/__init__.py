"""What is learned: initial parameters, a loss per example, metrics per example and a penalty."""

from fedjax_sim.models.task.base import Batch, Task
from fedjax_sim.models.task.plain import Functions, Quadratic, functions, quadratic
from fedjax_sim.models.task.supervised import Classification, Regression, Supervised, classification, regression

__all__ = [
    "Batch",
    "Classification",
    "Functions",
    "Quadratic",
    "Regression",
    "Supervised",
    "Task",
    "classification",
    "functions",
    "quadratic",
    "regression",
]
