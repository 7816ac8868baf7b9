"""Words as numbers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedjax_sim.core.values import check_count

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters, digits and underscores, in lower case.

    Example:
      >>> words_of("It's 5 o'clock.")
      ['it', 's', '5', 'o', 'clock']
    """
    return _WORD.findall(text.lower())


@dataclasses.dataclass(frozen=True)
class Words:
    """A vocabulary: 0 is padding, 1 any other word, ``words[i]`` is i + 2.

    Made by :meth:`fit` from training texts alone, so that nothing of the test texts is known to the model.

    Attributes:
      words: the known words, the commonest first.
      length: words kept of a text; a shorter one is padded at its end.

    Example:
      >>> vocabulary = Words.fit(["the cat", "the dog"], size=4, length=3)
      >>> vocabulary.encode(["The dog sleeps", "cat"])
      array([[2, 1, 1],
             [3, 0, 0]], dtype=int32)
    """

    words: tuple[str, ...]
    length: int

    def __post_init__(self) -> None:
        check_count("Words(length=...)", self.length)
        if len(set(self.words)) != len(self.words):
            twice = collections.Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"Words: the word {twice!r} is in the vocabulary more than once")

    @classmethod
    def fit(cls, texts: Iterable[str], size: int, length: int) -> Words:
        """The ``size - 2`` commonest words of ``texts``; words equally common in the order of the alphabet.

        Args:
          texts: the training texts.
          size: largest number of the vocabulary + 1, with the two for padding and other words.
          length: words kept of a text.

        Raises:
          ValueError: ``size`` below 3 or ``length`` below 1.
        """
        check_count("Words.fit(size=...)", size, low=3)
        counts = collections.Counter(word for text in texts for word in words_of(text))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(tuple(word for word, _ in ranked[: size - 2]), length)

    def __len__(self) -> int:
        return len(self.words) + 2

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words, 2)}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The numbers of the first ``length`` words of each text, int32[n, length]."""
        numbers = np.zeros((len(texts), self.length), np.int32)
        known = self._numbers
        for row, text in zip(numbers, texts, strict=True):
            found = [known.get(word, 1) for word in words_of(text)[: self.length]]
            row[: len(found)] = found
        return numbers
