"""pfl-research (pfl 0.6.0) with PyTorch: python from_pfl.py PROBLEM.npz ENDS.npz."""

import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

given = {name: torch.from_numpy(array) for name, array in np.load(sys.argv[1]).items()}
number = int(given["clients"])
tests = PyTorchTensorDataset([torch.cat([given[f"test_{part}{c}"] for c in range(number)]) for part in "xy"])


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(60, 10)
        torch.nn.init.zeros_(self.linear.weight), torch.nn.init.zeros_(self.linear.bias)

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self.linear(x), y)

    def metrics(self, x, y):
        with torch.no_grad():
            right = (self.linear(x).argmax(1) == y).sum().item()
        return {"accuracy": Weighted(right, len(y))}


class ShortSteps(FederatedAveraging):
    """A method of one's own: the server moves by at most 0.1."""

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        statistics.average()
        norm = torch.sqrt(sum((leaf**2).sum() for _, leaf in statistics.items()))
        factor = torch.clamp(0.1 / norm, max=1.0)
        short = statistics.apply_elementwise(lambda leaf: factor * leaf)
        return model.apply_model_update(short)


found = {}
for name, algorithm in (("", FederatedAveraging()), ("short_", ShortSteps())):
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset([given[f"x{user}"], given[f"y{user}"]]),
        get_user_sampler("minimize_reuse", list(range(number))),  # a cohort of four is everybody
    )
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=5, evaluation_frequency=1, train_cohort_size=number, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.05, local_batch_size=10),
    )
    found[f"{name}kernel"], found[f"{name}bias"] = (leaf.detach() for leaf in module.parameters())
    found[f"{name}kernel"] = found[f"{name}kernel"].T
    found[f"{name}accuracy"] = model.evaluate(tests).to_simple_dict()["Accuracy"]
np.savez(sys.argv[2], **found)
