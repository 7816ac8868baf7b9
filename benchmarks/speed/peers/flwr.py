"""Flower 1.41.0: a ClientApp and a ServerApp under its simulation engine (Ray)."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import Weights, Workload, load

PEER = Peer(
    title="Flower",
    requirements=("flwr[simulation]==1.41.0", "ray==2.55.1", "torch==2.13.0", "numpy==2.4.6"),
    configuration="run_simulation, strategy FedAvg without evaluation, an actor for each core, one thread an actor",
    versions=("flwr", "ray", "torch"),
)
_DIRECTORY = "FEDJAX_SIM_PEERS_WORKLOAD"  # where the actors find the arrays, which they map


@functools.cache
def _ready() -> tuple[Any, Any, Any]:
    """What an actor keeps between clients."""
    import torch

    from benchmarks.speed.peers.torch_models import Clients, build

    torch.set_num_threads(1)
    work = load(pathlib.Path(os.environ[_DIRECTORY]))
    return Clients(work), build(work.start), torch.nn.CrossEntropyLoss()


def _train(message: Any, context: Any) -> Any:
    """The client whose number the message carries, from the model that it carries."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    from benchmarks.speed.peers.torch_models import train

    clients, module, criterion = _ready()
    client = message.content["config"]["client"]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(module, clients.batches(client), criterion)
    reply = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": clients.sizes[client]}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """As many virtual nodes as a cohort has clients; each message says which client the node plays."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
    from flwr.simulation import run_simulation

    from benchmarks.speed.peers.torch_models import build, from_torch

    final: list[Any] = []
    sampled = work.cohorts.shape[1]

    class GivenCohorts(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            nodes, _ = sample_nodes(grid, sampled, sampled)  # waits until all are there, as the strategy itself does
            for node, client in zip(nodes, work.cohorts[server_round - 1].tolist(), strict=True):
                content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
                yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            failed = [reply.error.reason for reply in replies if reply.has_error()]
            if failed or len(replies) != sampled:
                raise RuntimeError(f"{len(replies)} replies of {sampled} clients; errors: {failed[:1]}")
            result = super().aggregate_train(server_round, replies)
            tick()
            return result

    server, client = ServerApp(), ClientApp()
    client.train()(_train)

    @server.main()
    def main(grid, context):
        strategy = GivenCohorts(fraction_evaluate=0.0)
        start = ArrayRecord(build(work.start).state_dict())
        final.append(strategy.start(grid=grid, initial_arrays=start, num_rounds=len(work.cohorts)).arrays)

    cores = os.cpu_count() or 1
    run_simulation(
        server, client, num_supernodes=sampled,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    if not final:
        raise RuntimeError("the simulation ended without a model")
    return from_torch(list(final[0].to_torch_state_dict().values()))
