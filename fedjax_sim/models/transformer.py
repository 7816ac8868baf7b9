"""The GPT-NeoX decoder, of which Pythia is the best known, and a classifier on top."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.fields import count, flag, real, static
from fedjax_sim.models.base import Model, as_tokens, of_kind, wide

_NORMAL = wide(nn.initializers.normal(0.02))


class GPTNeoX(Model):
    """Hidden states [B, T, width] of token ids [B, T], after the last layer norm.

    A layer adds attention(norm(h)) and mlp(norm'(h)) to h: side by side where ``parallel``, else one after the other.
    Attention is causal, with rotary positions on the first ``rotary`` part of every head; the MLP is
    dense, exact GELU, dense. Everything has biases but the embedding.

    The defaults are Pythia-70M's: 44,670,976 parameters, of which 18,915,328 are not the embedding. The published
    70,426,624 count the matrix 50,304 x 512 to next-token logits besides. Kernels and embedding start N(0, 0.02²) and
    biases at zero, as in Hugging Face's implementation.

    Attributes:
      vocabulary: number of tokens.
      width: of the hidden states.
      heads: attention heads; they divide the width.
      feedforward: width inside the MLP.
      rotary: share of a head's coordinates that is rotated, in [0, 1]; at least so that the number of them is even.
      rotary_base: coordinates j and j + r/2 of the r rotated ones turn by position · rotary_base^(-2j/r).
      parallel: whether attention and MLP read the same h.
      epsilon: of the layer norms.
      param_dtype: dtype of the parameters and the states. The attention's softmax is in float32 at least.

    Source: Black et al. 2022, "GPT-NeoX-20B", section 2; Su et al. 2021 for the rotary positions; Biderman et al. 2023,
    "Pythia", table 1.
    """

    vocabulary: int = count(default=50_304)
    width: int = count(default=512)
    layers: int = count(default=6)
    heads: int = count(default=8)
    feedforward: int = count(default=2048)
    rotary: float = real(default=0.25, low=0.0, high=1.0, structure=True)
    rotary_base: float = real(default=10_000.0, above=0.0, structure=True)
    parallel: bool = flag(default=True)
    epsilon: float = real(default=1e-5, above=0.0, structure=True)
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"GPTNeoX(heads={self.heads}): it must divide width={self.width}")
        if self._rotated % 2:
            raise ValueError(
                f"GPTNeoX(rotary={self.rotary}) rotates {self._rotated} of a head's {self.width // self.heads} "
                "coordinates: they are rotated in pairs, so give a share that makes an even number"
            )

    @property
    def _rotated(self) -> int:
        return int(self.width // self.heads * self.rotary)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = as_tokens("GPTNeoX", x)
        options: dict[str, Any] = {"param_dtype": self.param_dtype, "embedding_init": _NORMAL}
        h = nn.Embed(self.vocabulary, self.width, **options, name="embedding")(tokens)
        for layer in range(self.layers):
            name = f"layer{layer}"
            attended = self._attention(self._norm(h, f"{name}_attention_norm"), name)
            middle = h if self.parallel else h + attended
            fed = self._dense(self._norm(middle, f"{name}_mlp_norm"), self.feedforward, f"{name}_mlp_in")
            fed = self._dense(jax.nn.gelu(fed, approximate=False), self.width, f"{name}_mlp_out")
            h = h + attended + fed if self.parallel else middle + fed
        return self._norm(h, "final_norm")

    def _attention(self, h: jax.Array, name: str) -> jax.Array:
        batch, length, _ = h.shape
        size = self.width // self.heads
        # The fused kernel's columns are, head by head, that head's queries, keys and values.
        fused = self._dense(h, 3 * self.width, f"{name}_query_key_value").reshape(batch, length, self.heads, 3, size)
        turns = _rotations(length, self._rotated, self.rotary_base, h.dtype)
        q, k, v = _rotate(fused[..., 0, :], turns), _rotate(fused[..., 1, :], turns), fused[..., 2, :]
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
        scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32)) / math.sqrt(size)
        past = np.tril(np.ones((1, 1, length, length), bool))
        shares = jax.nn.softmax(jnp.where(past, scores, jnp.finfo(scores.dtype).min), axis=-1)
        mixed = jnp.einsum("bhts,bshd->bthd", shares.astype(v.dtype), v).reshape(batch, length, self.width)
        return self._dense(mixed, self.width, f"{name}_attention_out")

    def _dense(self, x: jax.Array, width: int, name: str) -> jax.Array:
        return nn.Dense(width, param_dtype=self.param_dtype, kernel_init=_NORMAL, name=name)(x)

    def _norm(self, x: jax.Array, name: str) -> jax.Array:
        # The fast variance, E[x²] - E[x]², loses digits on trained models, whose states have large means.
        norm = nn.LayerNorm(self.epsilon, param_dtype=self.param_dtype, use_fast_variance=False, name=name)
        return norm(x)


class GPTNeoXClassifier(Model):
    """The class of a sequence: a linear map of the state at its last token that is not padding.

    x int[B, T], padded at the end to a common length -> logits [B, num_classes]. Attention is causal, so padding after
    the last token changes nothing. A sequence of nothing but padding is read at position 0.

    With the defaults, Pythia-70M's shape and four classes (AG News): 44,673,024 parameters. The head has no bias
    and starts N(0, 0.02²), as ``GPTNeoXForSequenceClassification`` of Hugging Face does.

    Attributes:
      decoder: what makes the states.
      padding: the token that fills up short sequences; None where all are full, then the last position is read.
    """

    num_classes: int = count(default=4)
    decoder: GPTNeoX = static(of_kind(GPTNeoX, "fjs.models.GPTNeoX(...)"), default=GPTNeoX())
    padding: int | None = count(low=0, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.padding is not None and self.padding >= self.decoder.vocabulary:
            raise ValueError(
                f"GPTNeoXClassifier(padding={self.padding}): tokens are 0 to {self.decoder.vocabulary - 1}"
            )

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.decoder.vocabulary

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = as_tokens("GPTNeoXClassifier", x)
        h = self.decoder(tokens)
        if self.padding is None:
            last = h[:, -1]
        else:
            positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
            ends = jnp.max(jnp.where(tokens != self.padding, positions, 0), axis=1)
            # A product with one-hot rows: the backward pass of indexing would be a scatter.
            last = jnp.einsum("bt,btd->bd", jax.nn.one_hot(ends, tokens.shape[1], dtype=h.dtype), h)
        return nn.Dense(
            self.num_classes, use_bias=False, param_dtype=self.decoder.param_dtype, kernel_init=_NORMAL, name="head"
        )(last)


def _rotations(length: int, rotated: int, base: float, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [1, T, 1, r/2] of the angles of every position and pair."""
    frequencies = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / max(rotated, 1))
    angles = np.arange(length, dtype=np.float64)[:, None] * frequencies[None]
    return tuple(jnp.asarray(f(angles)[None, :, None, :], dtype) for f in (np.cos, np.sin))  # type: ignore[return-value]


def _rotate(x: jax.Array, turns: tuple[jax.Array, jax.Array]) -> jax.Array:
    """x [B, T, heads, d] with its first r coordinates rotated, pairs (j, j + r/2) of them."""
    cos, sin = turns
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


register("model.GPTNeoX", GPTNeoX)
register("model.GPTNeoXClassifier", GPTNeoXClassifier)
