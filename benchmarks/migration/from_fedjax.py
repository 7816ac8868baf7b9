"""FedJAX 0.0.17: python from_fedjax.py PROBLEM.npz ENDS.npz."""

import sys

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

given = np.load(sys.argv[1])
names = range(int(given["clients"]))
data = fedjax.InMemoryFederatedData({c: {"x": given[f"x{c}"], "y": given[f"y{c}"]} for c in names})
held_out = [fedjax.ClientDataset({"x": given[f"test_x{c}"], "y": given[f"test_y{c}"]}) for c in names]
start = {"kernel": jnp.zeros((60, 10)), "bias": jnp.zeros(10)}


def logits(params, batch, rng=None):
    return batch["x"] @ params["kernel"] + params["bias"]


def loss(params, batch, rng):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch), batch["y"]).mean()


gradient = jax.jit(jax.grad(loss))
sgd = fedjax.optimizers.sgd(0.05)
batches = fedjax.ShuffleRepeatBatchHParams(batch_size=10, num_epochs=1, skip_shuffle=True)
fedavg = fedjax.algorithms.fed_avg.federated_averaging(gradient, sgd, fedjax.optimizers.sgd(1.0), batches)

cohort = [(c, examples, jax.random.PRNGKey(0)) for c, examples in data.clients()]  # everybody
state = fedavg.init(start)
for _ in range(5):
    state, _ = fedavg.apply(state, cohort)

# A method of one's own: the server moves by at most 0.1.
train = fedjax.algorithms.fed_avg.create_train_for_each_client(gradient, sgd)


def apply(params, clients):
    sizes = {c: len(examples) for c, examples, _ in clients}
    batched = [(c, examples.shuffle_repeat_batch(batches), key) for c, examples, key in clients]
    change = fedjax.tree_util.tree_mean((delta, sizes[c]) for c, delta in train(params, batched))
    factor = jnp.minimum(1.0, 0.1 / fedjax.tree_util.tree_l2_norm(change))
    return jax.tree.map(lambda leaf, step: leaf - factor * step, params, change), {}


short_steps = fedjax.FederatedAlgorithm(lambda params: params, apply)
short = short_steps.init(start)
for _ in range(5):
    short, _ = short_steps.apply(short, cohort)

model = fedjax.Model(
    init=lambda rng: start, apply_for_train=logits, apply_for_eval=logits, train_loss=None,
    eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
)  # fmt: skip
tests = fedjax.padded_batch_client_datasets(held_out, fedjax.PaddedBatchHParams(batch_size=10))
accuracy = fedjax.evaluate_model(model, state.params, tests)["accuracy"]

np.savez(
    sys.argv[2], kernel=state.params["kernel"], bias=state.params["bias"], accuracy=accuracy,
    short_kernel=short["kernel"], short_bias=short["bias"],
)  # fmt: skip
