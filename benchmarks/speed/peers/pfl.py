"""pfl 0.6.0 (Apple): FederatedAveraging on its SimulatedBackend with a PyTorch model."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="pfl",
    requirements=("pfl[pytorch]==0.6.0", "torch==2.13.0", "numpy==2.4.6"),
    configuration="SimulatedBackend, FederatedAveraging, WeightByDatapoints, PyTorchTensorDataset; one process",
    versions=("pfl", "torch"),
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """Its algorithm, fed with the given cohorts by a sampler that says the next client."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.speed.peers.torch_models import Clients, build, choose_threads, from_torch

    clients = Clients(work)
    choose_threads(work, clients)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.criterion = build(work.start), torch.nn.CrossEntropyLoss()

        def loss(self, x, y):
            return self.criterion(self.net(x), y)

        def metrics(self, x, y):
            return {}

    class Ticks(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            tick()
            return False, Metrics()

    module = Model()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    order = itertools.chain(work.cohorts.ravel().tolist(), itertools.repeat(0))  # it asks for more than it trains
    data = FederatedDataset(lambda client: PyTorchTensorDataset(clients.examples(client)), order.__next__)
    rounds, sampled = work.cohorts.shape
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds + 1, train_cohort_size=sampled, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Ticks()],
    )
    return from_torch(list(module.net.parameters()))
