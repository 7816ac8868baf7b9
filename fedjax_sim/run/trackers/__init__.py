"""Where curves go while a run goes on: TensorBoard, Weights & Biases, MLflow.

Each is a callback for ``simulate(callbacks=[...])`` and needs its own package, imported when it is made.
"""

from fedjax_sim.run.trackers.scalars import configuration, scalars
from fedjax_sim.run.trackers.to_mlflow import mlflow
from fedjax_sim.run.trackers.to_tensorboard import tensorboard
from fedjax_sim.run.trackers.to_wandb import wandb

__all__ = ["configuration", "mlflow", "scalars", "tensorboard", "wandb"]
