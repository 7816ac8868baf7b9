"""Ctrl-C ends a command, whatever its process is busy with."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn

STATUS = 128 + signal.SIGINT
_ANSWER = 3.0  # seconds for Python to end the command
_AT_ONCE = 0.3  # seconds after the second Ctrl-C
_FLUSH = 0.3  # seconds for what was printed to get to a pipe


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
        leave(STATUS)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _flush(stream: object) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.flush()  # type: ignore[attr-defined]
