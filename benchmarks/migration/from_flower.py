"""Flower 1.41.0, the message API: python from_flower.py PROBLEM.npz ENDS.npz."""

import sys

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

given = {name: torch.from_numpy(array) for name, array in np.load(sys.argv[1]).items()}
number = int(given["clients"])


def network():
    linear = torch.nn.Linear(60, 10)
    torch.nn.init.zeros_(linear.weight), torch.nn.init.zeros_(linear.bias)
    return linear


client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    me = context.node_config["partition-id"]
    x, y, module = given[f"x{me}"], given[f"y{me}"], network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(module.parameters(), lr=0.05)
    for first in range(0, len(x), 10):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(module(x[first : first + 10]), y[first : first + 10]).backward()
        sgd.step()
    reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(reply), reply_to=message)


class ShortSteps(FedAvg):
    """A method of one's own: the server moves by at most 0.1."""

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays.to_torch_state_dict()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        change = {name: leaf - self.sent[name] for name, leaf in arrays.to_torch_state_dict().items()}
        norm = torch.sqrt(sum((leaf**2).sum() for leaf in change.values()))
        factor = torch.clamp(0.1 / norm, max=1.0)
        return ArrayRecord({name: self.sent[name] + factor * leaf for name, leaf in change.items()}), metrics


def evaluate(server_round, arrays):
    module = network()
    module.load_state_dict(arrays.to_torch_state_dict())
    x, y = (torch.cat([given[f"test_{part}{c}"] for c in range(number)]) for part in "xy")
    return MetricRecord({"accuracy": (module(x).argmax(1) == y).float().mean().item()})


found = {}


@server.main()
def main(grid, context):
    for name, strategy in (("", FedAvg), ("short_", ShortSteps)):
        everybody = strategy(fraction_train=1.0, min_train_nodes=number, fraction_evaluate=0.0)
        start = ArrayRecord(network().state_dict())
        result = everybody.start(grid=grid, initial_arrays=start, num_rounds=5, evaluate_fn=evaluate)
        end = result.arrays.to_torch_state_dict()
        found[f"{name}kernel"], found[f"{name}bias"] = end["weight"].T, end["bias"]
        found[f"{name}accuracy"] = result.evaluate_metrics_serverapp[5]["accuracy"]


run_simulation(server, client, num_supernodes=number)
np.savez(sys.argv[2], **found)
