"""Standard output that can be written to, whatever it is: in ASCII alone, closed, full, or read by nobody."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterator

# What is said in other letters than ASCII's, for a terminal or a file that has no others.
_PLAIN = {
    "±": "+-", "–": "-", "—": "-", "−": "-", "─": "-", "·": ".", "×": "x", "→": "->", "←": "<-", "↔": "<->", "≤": "<=",
    "≥": ">=", "∞": "inf", "√": "sqrt", "α": "alpha", "β": "beta", "μ": "mu", "σ": "sigma", "τ": "tau", "Σ": "sum",
}  # fmt: skip
_HANDLER = "fedjax_sim.plain"


@contextlib.contextmanager
def usable(own_process: bool) -> Iterator[None]:
    """Inside, everything can be printed: letters that the encoding lacks in words, and to a closed stream nothing.

    Args:
      own_process: whether nobody else uses the process, so that nothing need be put back, and its descriptors 0 to 2
        may be opened: a file that took the number of a closed one would get what libraries print.
    """
    codecs.register_error(_HANDLER, _in_plain_letters)
    if own_process:
        _open_standard_descriptors()
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, closed below or by the process's end
                setattr(sys, name, nowhere)
                if not own_process:
                    stack.callback(setattr, sys, name, None)
                    stack.callback(nowhere.close)
            elif isinstance(stream, io.TextIOWrapper):
                before = stream.errors
                stream.reconfigure(errors=_HANDLER)
                if not own_process:
                    stack.callback(stream.reconfigure, errors=before)
        yield


def discard() -> None:
    """Discards what could not be written to standard output: the interpreter would try, and fail, once more."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _open_standard_descriptors() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the first that is free: this one


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter) or _without_accents(letter) for letter in letters), error.end


def _without_accents(letter: str) -> str:
    return unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"
