"""The LSTM classifiers of the federated-learning papers."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_count
from fedjax_sim.models.dense import Dense
from fedjax_sim.models.frozen import FrozenTable
from fedjax_sim.models.inputs import as_tokens
from fedjax_sim.models.lstm import LSTM


class CharLSTM(nn.Module):
    """The next character after a window of text: embedding, LSTM layers, a dense layer on the last state.

    x int[B, T] -> logits [B, num_classes]. With the defaults (LEAF's and FedProx's Shakespeare model, T = 80) it has
    80·8 + 4·100·(8 + 100 + 1) + 4·100·(100 + 100 + 1) + 80·(100 + 1) = 132,720 parameters. The same formula gives the
    published 820,522 of Reddi et al. 2021 for 90 characters and 256 hidden units.

    The embedding and the dense kernel start Glorot-uniform, the default of TensorFlow's ``get_variable``, which the
    papers' code uses; for the cells see :class:`~fedjax_sim.models.lstm.LSTM`.

    Attributes:
      num_classes: size of the alphabet, of the embedding and of the output.
      embedding: width of the embedding.
      hidden: width of the LSTM states.
      layers: number of LSTM layers.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: features that are not [B, T], or a bad width.
      TypeError: features that are not integers.

    Source: Caldas et al. 2018 (LEAF); Li et al. 2020 (FedProx), appendix C.1.
    """

    num_classes: int = 80
    embedding: int = 8
    hidden: int = 100
    layers: int = 2
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        for name in ("num_classes", "embedding", "hidden", "layers"):
            check_count(f"CharLSTM({name}=...)", getattr(self, name))
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = as_tokens("CharLSTM", x)
        glorot = nn.initializers.glorot_uniform()
        table = nn.Embed(self.num_classes, self.embedding, param_dtype=self.param_dtype, embedding_init=glorot)
        last = _last_state(table(tokens.T), self.hidden, self.layers, self.param_dtype)
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=glorot)(last)


class SentimentLSTM(nn.Module):
    """The class of a short text whose words have fixed vectors: LSTM layers and dense layers on the last state.

    With ``table``, x int[B, T] holds word numbers; without, x float[B, T, E] holds the vectors themselves. The vectors
    are never trained and no parameters. FedProx's Sent140 model has T = 25 words, E = 300 (GloVe) and a linear layer of
    30 before the output; the paper's text leaves that layer out (``bottleneck=None``). With 300-wide vectors and two
    classes: 4·256·(300 + 256 + 1) + 4·256·(256 + 256 + 1) + 30·(256 + 1) + 2·(30 + 1) = 1,103,452 parameters, 1,096,194
    without the bottleneck. (The authors' code has one output and a logistic loss where two and a softmax stand here;
    the functions they can represent are the same.)

    Dense kernels start Glorot-uniform, as in the authors' code; for the cells see
    :class:`~fedjax_sim.models.lstm.LSTM`.

    Attributes:
      num_classes: number of outputs.
      table: the words' vectors, from :func:`~fedjax_sim.models.frozen.frozen_table` or
        :func:`~fedjax_sim.models.frozen.random_table`; None where the data hold vectors.
      hidden: width of the LSTM states.
      layers: number of LSTM layers.
      bottleneck: width of a linear layer before the output, None for none.
      param_dtype: dtype of the parameters, the vectors and the logits.

    Raises:
      ValueError: features of another rank, or a bad width.
      TypeError: features of the wrong kind, or a table that is not a :class:`~fedjax_sim.models.frozen.FrozenTable`.

    Source: Li et al. 2020 (FedProx), appendix C.1, and the authors' repository litian96/FedProx,
    ``flearn/models/sent140/stacked_lstm.py``.
    """

    num_classes: int = 2
    table: FrozenTable | None = None
    hidden: int = 256
    layers: int = 2
    bottleneck: int | None = 30
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        for name in ("num_classes", "hidden", "layers"):
            check_count(f"SentimentLSTM({name}=...)", getattr(self, name))
        if self.bottleneck is not None:
            check_count("SentimentLSTM(bottleneck=...)", self.bottleneck)
        if not isinstance(self.table, FrozenTable | None):
            raise TypeError(f"SentimentLSTM(table={type(self.table).__name__}): give fjs.models.frozen_table(vectors)")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = _last_state(jnp.swapaxes(self._vectors(x), 0, 1), self.hidden, self.layers, self.param_dtype)
        dense: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": nn.initializers.glorot_uniform()}
        if self.bottleneck is not None:
            last = Dense(self.bottleneck, **dense)(last)
        return Dense(self.num_classes, **dense)(last)

    def _vectors(self, x: jax.Array) -> jax.Array:
        if self.table is not None:
            return jnp.take(jnp.asarray(self.table.vectors, self.param_dtype), as_tokens("SentimentLSTM", x), axis=0)
        if x.ndim != 3 or x.shape[1] == 0:
            raise ValueError(
                f"SentimentLSTM got features of shape {list(x.shape[1:])}: it needs word vectors [T, width], or a "
                "table (fjs.models.frozen_table) and word numbers [T]"
            )
        return x.astype(self.param_dtype)


def _last_state(x: jax.Array, hidden: int, layers: int, param_dtype: Any) -> jax.Array:
    """h_T [B, H] of the last of ``layers`` LSTM layers over x [T, B, E]; called inside a compact module."""
    for _ in range(layers):
        x = LSTM(hidden, param_dtype=param_dtype)(x)
    return x[-1]


register("model.CharLSTM", CharLSTM)
register("model.SentimentLSTM", SentimentLSTM)
