"""A plain PyTorch loop: a module, an optimiser, a loop over clients and batches."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.speed.peers.contract import Peer, Rounds, step_through
from benchmarks.speed.workloads import Weights, Workload

PEER = Peer(
    title="PyTorch loop",
    requirements=("torch==2.13.0", "numpy==2.4.6"),
    configuration="one module, slices of tensors as batches, the number of threads that is fastest",
    framework=False,
    versions=("torch",),
)


def make(work: Workload) -> Rounds:
    """The loop."""
    import torch

    from benchmarks.speed.peers.torch_models import Clients, build, choose_threads, from_torch, to_torch, train

    clients, module, criterion = Clients(work), build(work.start), torch.nn.CrossEntropyLoss()
    names = [name for name, _ in module.named_parameters()]
    choose_threads(work, clients)

    def rounds(weights: Weights, first: int, last: int) -> Weights:
        current = dict(zip(names, to_torch(weights), strict=True))
        for cohort in work.cohorts[first:last].tolist():
            mass, total = sum(clients.sizes[c] for c in cohort), {n: torch.zeros_like(t) for n, t in current.items()}
            for c in cohort:
                module.load_state_dict(current)
                train(module, clients.batches(c), criterion)
                with torch.no_grad():
                    for name, parameter in module.named_parameters():
                        total[name] += parameter * (clients.sizes[c] / mass)
            current = total
        return from_torch(list(current.values()))

    return rounds


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """One round after another."""
    return step_through(make(work), work, tick)
