"""A builder of 24 training and 8 test examples with every kind of feature that a reader meets.

tensorflow-datasets stores them in an order of its own, so each holds its number.
"""

import numpy as np
import tensorflow_datasets as tfds
from examples import example


class TinyWriters(tfds.core.GeneratorBasedBuilder):
    """Two splits; natural clients by name (``writer``) and by number (``person``)."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Made-up examples with images, numbers, texts and sequences.",
            features=tfds.features.FeaturesDict(
                {
                    "number": tfds.features.Scalar(np.int64),
                    "image": tfds.features.Image(shape=(5, 4, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=["red", "green", "blue"]),
                    "score": tfds.features.Scalar(np.float32),
                    "vector": tfds.features.Tensor(shape=(2,), dtype=np.float32),
                    "writer": tfds.features.Text(),
                    "person": tfds.features.Scalar(np.int64),
                    "words": tfds.features.Sequence(tfds.features.Scalar(np.int64)),
                    "nested": {"flag": tfds.features.Scalar(np.bool_)},
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {"train": self._generate_examples(range(24)), "test": self._generate_examples(range(24, 32))}

    def _generate_examples(self, numbers: range):
        for number in numbers:
            yield number, example(number)
