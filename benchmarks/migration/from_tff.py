"""TensorFlow Federated 0.87.0 with Keras: python from_tff.py PROBLEM.npz ENDS.npz."""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

given = np.load(sys.argv[1])


def batches(part, c):
    return tf.data.Dataset.from_tensor_slices((given[f"{part}x{c}"], given[f"{part}y{c}"])).batch(10)


everybody = [batches("", c) for c in range(given["clients"])]
tests = [batches("test_", c) for c in range(given["clients"])]


def network():
    dense = tf.keras.layers.Dense(10, kernel_initializer="zeros")
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([tf.keras.layers.InputLayer(60), dense]),
        input_spec=everybody[0].element_spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )


class ShortSteps(tff.learning.optimizers.Optimizer):
    """A method of one's own: the server, whose gradient is minus the mean change, moves by at most 0.1."""

    def initialize(self, specs):
        return ()

    def next(self, state, weights, gradients):
        factor = tf.minimum(1.0, 0.1 / tf.linalg.global_norm(tf.nest.flatten(gradients)))
        return state, tf.nest.map_structure(lambda leaf, g: leaf - factor * g, weights, gradients)


sgd, plain = tff.learning.optimizers.build_sgdm(0.05), tff.learning.optimizers.build_sgdm(1.0)
found = {}
for name, server in (("", plain), ("short_", ShortSteps())):
    process = tff.learning.algorithms.build_weighted_fed_avg(
        network, client_optimizer_fn=sgd, server_optimizer_fn=server
    )
    state = process.initialize()
    for _ in range(5):
        state = process.next(state, everybody).state
    weights = process.get_model_weights(state)
    found[f"{name}kernel"], found[f"{name}bias"] = weights.trainable

    evaluation = tff.learning.algorithms.build_fed_eval(network)
    begun = evaluation.set_model_weights(evaluation.initialize(), weights)
    metrics = evaluation.next(begun, tests).metrics["client_work"]["eval"]["current_round_metrics"]
    found[f"{name}accuracy"] = metrics["accuracy"]
np.savez(sys.argv[2], **found)
