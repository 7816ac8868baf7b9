"""FedLab 1.3.0: its serial trainer and server handler in one process."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="FedLab",
    # === leaves out builds with a local label: torchvision comes from the index and must fit.
    requirements=("fedlab==1.3.0", "torch===2.13.0", "torchvision===0.28.0", "numpy==2.4.6"),
    configuration="StandalonePipeline, SGDSerialClientTrainer, SyncServerHandler with fedavg_aggregate by examples",
    versions=("fedlab", "torch"),
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """Its standalone pipeline with given cohorts and a weighted mean."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils import SerializationTool
    from fedlab.utils.aggregator import Aggregators

    from benchmarks.speed.peers.torch_models import Clients, build, choose_threads, from_torch

    clients = Clients(work)
    choose_threads(work, clients)
    rounds, sampled = work.cohorts.shape

    class Data(FedDataset):
        def __init__(self):  # the files that the base class would make are not needed
            pass

        def get_dataloader(self, id, batch_size):
            return clients.batches(id)

    class Server(SyncServerHandler):
        def sample_clients(self):
            return work.cohorts[self.round].tolist()

        @property
        def num_clients_per_round(self):
            return sampled

        def global_update(self, buffer):
            sizes = [float(clients.sizes[c]) for c in work.cohorts[self.round].tolist()]
            mean = Aggregators.fedavg_aggregate([package[0] for package in buffer], sizes)
            SerializationTool.deserialize_model(self._model, mean)

    class Pipeline(StandalonePipeline):
        def evaluate(self):
            tick()

    server = Server(build(work.start), rounds, sampled / len(work.sizes))
    trainer = SGDSerialClientTrainer(build(work.start), len(work.sizes))
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, BATCH, RATE)
    Pipeline(server, trainer).main()
    return from_torch(list(server.model.parameters()))
