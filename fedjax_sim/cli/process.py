"""How a command's process ends, by errors, signals and Ctrl-C, and standard output that can be written to."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import NoReturn

USAGE = 2  # the exit status of what cannot be done as it was asked for
STOPPED = 128 + signal.SIGINT
_ANSWER = 3.0  # seconds for Python to end the command
_AT_ONCE = 0.3  # seconds after the second Ctrl-C
_FLUSH = 0.3  # seconds for what was printed to get to a pipe
# What is said in other letters than ASCII's, for a terminal or a file that has no others.
_PLAIN = {
    "±": "+-", "–": "-", "—": "-", "−": "-", "─": "-", "·": ".", "×": "x", "→": "->", "←": "<-", "↔": "<->", "≤": "<=",
    "≥": ">=", "∞": "inf", "√": "sqrt", "α": "alpha", "β": "beta", "μ": "mu", "σ": "sigma", "τ": "tau", "Σ": "sum",
}  # fmt: skip


class Refused(ValueError):
    """A command line or a configuration that cannot be run as it is."""


def status_of(options: argparse.Namespace) -> int:
    """Runs a command; what stops it is said in a line, unless ``--traceback`` asks for more."""
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if getattr(options, "traceback", False):
            raise
        lines = [f"fedjax-sim {options.command}: {error}"]
        if hasattr(error, "__notes__"):  # else nothing has imported JAX yet, perhaps
            from fedjax_sim.core.mistakes import notes

            lines += notes(error)
        print("\n".join(lines), file=sys.stderr)
        return USAGE if isinstance(error, Refused) else 1
    except KeyboardInterrupt as error:
        number = getattr(error, "signal", signal.SIGINT)  # an Interrupted says which, and where the run is saved
        print(f"fedjax-sim {options.command}: {str(error) or 'stopped'}", file=sys.stderr)
        return 128 + int(number)


def watch() -> None:
    """From now on SIGINT ends this process within seconds, and a second one at once.

    Python itself raises KeyboardInterrupt in the main thread, which ends a command as a rule. But it does so between
    two of its own instructions: a program that is compiled may take minutes, and a library may lose the exception. So
    a thread, which the signal wakes, ends the process where that is not done in time. A first signal that something
    else answers is left to it: a run with checkpoints saves one, several processes are told of it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # the terminal's Ctrl-C would count twice
    threading.Thread(target=_answer, args=(reading,), daemon=True).start()


def leave(status: int) -> NoReturn:
    """Ends this process now: at its usual end JAX would wait for what its devices have begun.

    What was printed is written before. Everything that has to stay is in files by now, which are whole or not there.
    """
    for stream in (sys.stdout, sys.stderr):
        flushing = threading.Thread(target=_flush, args=(stream,), daemon=True)
        flushing.start()
        flushing.join(_FLUSH)  # nobody may read the pipe
    os._exit(status)


def _answer(reading: int) -> None:
    asked = 0
    while True:
        if os.read(reading, 1)[0] != signal.SIGINT:
            continue
        asked += 1
        if asked > 1:
            _end_after(_AT_ONCE)
        elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _end_after(_ANSWER)


def _end_after(seconds: float) -> None:
    def end() -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, b"fedjax-sim: stopped\n")  # past the streams: a thread may hold them
        leave(STOPPED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _flush(stream: object) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.flush()  # type: ignore[attr-defined]


@contextlib.contextmanager
def usable_streams(own_process: bool) -> Iterator[None]:
    """Inside, everything can be printed: letters that the encoding lacks in words, and to a closed stream nothing.

    In a process of its own closed descriptors 0 to 2 are opened: a file that took the number of one would get what
    libraries print.
    """
    codecs.register_error("fedjax_sim.plain", _in_plain_letters)
    if own_process:
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the first that is free: this one
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, closed by the stack
                setattr(sys, name, nowhere)
                stack.callback(nowhere.close)
                stack.callback(setattr, sys, name, None)
            elif isinstance(stream, io.TextIOWrapper):
                if not own_process:
                    stack.callback(stream.reconfigure, errors=stream.errors)
                stream.reconfigure(errors="fedjax_sim.plain")
        yield


def discard_output() -> None:
    """Discards what could not be written to standard output: the interpreter would try, and fail, once more."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    bare = {letter: unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() for letter in letters}
    return "".join(_PLAIN.get(letter) or bare[letter] or "?" for letter in letters), error.end
