"""Pixels as a model wants them: bytes, the unit interval, or normalised by channel."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from fedjax_sim.core.values import check_flag

# Mean and standard deviation of each channel.
Normalisation: TypeAlias = tuple[Sequence[float], Sequence[float]]

# Of the training images' pixels in [0, 1], to four digits; what the field's code divides by.
USUAL: dict[str, Normalisation] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "emnist_letters": ((0.1722,), (0.3309,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def checked_normalisation(
    what: str, data_set: str, scaled: bool, normalise: bool | Normalisation
) -> Normalisation | None:
    """What ``normalise`` stands for: True is the data set's usual constants, False is None.

    Args:
      what: the function that was called, for messages.
      data_set: a key of :data:`USUAL`.
      scaled: whether the pixels become floats.
      normalise: True, False, or (mean, standard deviation), each with one number a channel.

    Raises:
      ValueError: normalised bytes, the wrong number of channels, a deviation that is not positive.
      TypeError: something else.
    """
    check_flag(f"{what}(scaled=...)", scaled)
    if normalise is False:
        return None
    if not scaled:
        raise ValueError(f"{what}(scaled=False, normalise={normalise}): bytes cannot be normalised; give scaled=True")
    usual = USUAL[data_set]
    if normalise is True:
        return usual
    pair = _channels(normalise) if isinstance(normalise, Sequence) and not isinstance(normalise, str) else []
    if len(pair) != 2:
        raise TypeError(f"{what}(normalise={normalise!r}): it must be True, False or a pair (mean, std), for {usual}")
    channels = len(usual[0])
    for numbers_ in pair:
        if len(numbers_) != channels or not np.all(np.isfinite(numbers_)):
            raise ValueError(f"{what}(normalise={normalise!r}): mean and std have {channels} finite number(s) each")
    if min(pair[1]) <= 0:
        raise ValueError(f"{what}(normalise={normalise!r}): standard deviations must be positive")
    return pair[0], pair[1]


def features(images: np.ndarray, *, flat: bool, scaled: bool, normalisation: Normalisation | None) -> np.ndarray:
    """x = pixels/255, then (x - mean)/std where a normalisation is given; or the bytes as they are.

    Args:
      images: uint8[n, height, width, channels].
      flat: whether an image becomes a vector.
      scaled: whether the pixels become float32.
      normalisation: mean and standard deviation of each channel, or None.

    Returns:
      float32 or uint8, [n, height, width, channels] or [n, height width channels].
    """
    x = images
    if scaled:
        x = images.astype(np.float32)
        x /= np.float32(255)  # in place: at a hundred thousand images each copy is hundreds of megabytes
    if normalisation is not None:
        mean, std = (np.asarray(values, np.float32).reshape(1, 1, 1, -1) for values in normalisation)
        x -= mean
        x /= std
    return x.reshape(x.shape[0], -1) if flat else x


def _channels(pair: Sequence[object]) -> list[list[float]]:
    return [
        [float(number) for number in values]
        if isinstance(values, (Sequence, np.ndarray)) and all(isinstance(number, numbers.Real) for number in values)
        else []
        for values in pair
    ]
