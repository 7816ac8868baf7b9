"""Text as arrays: :class:`Characters` for next-character prediction, :class:`Words` for classification."""

from fedjax_sim.datasets.text.characters import LEAF_CHARACTERS, Characters
from fedjax_sim.datasets.text.words import Words, words_of

__all__ = ["LEAF_CHARACTERS", "Characters", "Words", "words_of"]
