"""BlazeFL 2.0.3: its FedAvg server with its sequential trainer, or with its pool of threads."""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="BlazeFL",
    requirements=("blazefl==2.0.3", "torch==2.13.0", "tqdm==4.70.1", "numpy==2.4.6"),
    configuration="contrib.fedavg: server and sequential trainer",
    python="3.12",
    versions=("blazefl", "torch"),
)


def simulate(work: Workload, tick: Callable[..., None], threads: bool = False) -> Weights:
    """The loop of its quickstart, with given cohorts."""
    import torch
    from blazefl.contrib import fedavg

    from benchmarks.speed.peers.torch_models import Clients, build, choose_threads, from_torch

    clients = Clients(work)
    rounds, sampled = work.cohorts.shape

    class Models:
        def select_model(self, model_name):
            return build(work.start)

    class Data:
        def get_dataset(self, type_, cid):
            return clients.examples(cid)

        def get_dataloader(self, type_, cid, batch_size=None, generator=None):
            return clients.batches(cid)

    server = fedavg.FedAvgBaseServerHandler(
        Models(), "model", Data(), rounds, len(work.sizes), 0.0, "cpu", BATCH, seed=0
    )
    server.num_clients_per_round = sampled  # by a ratio it may come out one too small
    common = {
        "model_selector": Models(), "model_name": "model", "dataset": Data(), "device": "cpu",
        "num_clients": len(work.sizes), "epochs": 1, "batch_size": BATCH, "lr": RATE, "seed": 0,
    }  # fmt: skip
    if threads:
        torch.set_num_threads(1)
        trainer = fedavg.FedAvgThreadPoolClientTrainer(num_parallels=os.cpu_count() or 1, **common)
    else:
        choose_threads(work, clients)
        trainer = fedavg.FedAvgBaseClientTrainer(**common)
    for cohort in work.cohorts.tolist():
        trainer.local_process(server.downlink_package(), cohort)
        for package in trainer.uplink_package():
            server.load(package)
        tick()
    return from_torch(list(server.model.parameters()))
