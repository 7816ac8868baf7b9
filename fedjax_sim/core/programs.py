"""Compiled programs: kept on disk for the next process, in JAX's cache; traced without Python's collector; let go."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import glob
import hashlib
import importlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_sim.core import own
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.devices import THREADS, affinity, processor
from fedjax_sim.core.files import cache_directory, others_may_write, shrink
from fedjax_sim.core.sources import checksum

MOST = 2**30  # bytes
_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_CROWDED = 2 / 3  # share of them that may be there when a run begins
_OFTEN = 100  # programs written from one look at the folder's size to the next
_LEVELS = {"DEBUG": 0, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "FATAL": 3, "CRITICAL": 3}  # of JAX for XLA
_SILENT = 3
_config: Any = jax.config
_lock = threading.RLock()
_loading = 0  # programs, in all threads


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps Python's collector of circles out of what JAX traces and compiles, a tenth of whose time it would take.

    It goes through all objects whenever there are many new ones, and JAX has some hundred thousand that stay.
    """
    if not gc.isenabled():  # by the user's choice, or a caller's
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Around what traces and compiles a run's programs, outside of any other trace."""
    make_room()
    with uncollected():
        yield


def make_room() -> None:
    """Lets all compiled programs go before the process has as many memory maps as Linux allows, 65,530 as a rule.

    A program for a CPU takes ten or more, a large one a hundred, and a process that gets no more dies without a word.
    So a study of thousands of programs compiles some of them again, or reads them from the disk.
    """
    if not (_MAPS.exists() and _MOST_MAPS.exists()):  # where nothing bounds them
        return
    if _MAPS.read_bytes().count(b"\n") > _CROWDED * int(_MOST_MAPS.read_text("utf-8")):
        jax.clear_caches()
        gc.collect()


def renew(parts: Any) -> None:
    """Lets all compiled programs go where a part of one's own, or what its code reads, is no more what it was.

    JAX knows a function by its identity: once a constant of its module is another one, it would run the program of
    before, or in a new one pieces of it, and the record would say that the new constant was used.
    """
    for part in _own(parts):
        leaves, structure = jax.tree.flatten(part)
        alone = jax.tree_util.all_leaves([part])
        kept = [leaf if alone or callable(leaf) else 0 for leaf in leaves]  # numbers are arguments of a program
        with contextlib.suppress(own.Unknown, TypeError, ValueError):  # of what cannot be told, or is in no program
            now = checksum(own.known(jax.tree.unflatten(structure, kept)))
            was = _was(structure, *kept)
            if was not in ([], [now]):
                jax.clear_caches()
            was[:] = [now]


@functools.lru_cache(maxsize=1024)
def _was(*part: Any) -> list[str]:
    """The checksum of a part when it was last looked at, if it was."""
    return []


def _own(value: Any) -> Iterator[Any]:
    """What in a part no registered factory has made."""
    if isinstance(value, Described) and "_registered_name" in type(value).__dict__:
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            yield from _own(getattr(value, field.name))
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _own(item)
    elif isinstance(value, Described) or callable(value):
        yield value


def keep_programs() -> str:
    """Makes JAX keep its compiled programs under the user's cache directory; before a program of ours is compiled.

    The first call decides for the process. It sets JAX's own options, so that all programs that the process compiles
    from then on are kept, the user's too. Where JAX has a place for them already (``JAX_COMPILATION_CACHE_DIR``), keeps
    none (``JAX_ENABLE_COMPILATION_CACHE=0``), or ``FEDJAX_SIM_CACHE`` is ``off``, nothing is changed; one that the user
    gives JAX later is taken from the next program on. Programs for a CPU are machine code, so that each kind of
    processor has a directory. Whoever can write there can run code as the user: one that others can write is not used.

    Returns:
      Why nothing is kept, for a command to say; "" where programs are kept, or that was the user's own choice.
    """
    with _lock:
        return _kept()


@functools.cache
def _kept() -> str:
    if _config.jax_compilation_cache_dir or not _config.jax_enable_compilation_cache:
        return ""
    try:
        directory = cache_directory()
        if directory is None:
            return ""
        folder = directory / f"programs-{_machine()}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if others_may_write(folder):
            raise OSError(f"others may write to {folder}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(f"{folder} cannot be written")
        _Watched(folder).begin()
    except (OSError, RuntimeError, ImportError, AttributeError) as error:  # or JAX has its cache elsewhere
        return str(error)
    return ""


class _Watched:
    """JAX's cache in a folder of ours: without what JAX and XLA would say of it, and until the user gives another.

    JAX has no place for this in its interface, so two functions of it are replaced, one that looks for a program and
    one that writes it. Both are there in all versions that the package knows; without them nothing is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, itertools.count()
        self.cache: Any = importlib.import_module("jax._src.compilation_cache")
        self.read, self.write = self.cache.get_executable_and_time, self.cache.put_executable_and_time
        self.least = _config.jax_persistent_cache_min_compile_time_secs

    def begin(self) -> None:
        """Programs of any size are kept from here on, if the user has not said which."""
        self.cache.reset_cache()  # JAX reads its options once
        _config.update("jax_compilation_cache_dir", str(self.folder))
        if self.least == 1.0:  # JAX's default: most of ours take less
            _config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        self.cache.get_executable_and_time = self.found
        self.cache.put_executable_and_time = self.put

    def ours(self) -> bool:
        """Whether JAX's cache is still this one; if not, all is put back, and JAX reads its options again."""
        with _lock:
            if _config.jax_compilation_cache_dir == str(self.folder):
                return True
            if self.cache.get_executable_and_time != self.read:
                if _config.jax_persistent_cache_min_compile_time_secs == 0.0:
                    _config.update("jax_persistent_cache_min_compile_time_secs", self.least)
                self.cache.get_executable_and_time, self.cache.put_executable_and_time = self.read, self.write
                self.cache.reset_cache()
        return False

    def found(self, key: str, *rest: Any, **more: Any) -> Any:
        """A program and how long it took to compile, or two None.

        What cannot be read, as one that was being written when its process was killed, is deleted: JAX would leave it
        there, to warn and compile whenever it is needed.
        """
        if not self.ours():
            return self.read(key, *rest, **more)
        if not _config.jax_enable_compilation_cache:
            return None, None
        try:
            with _unlogged():
                return self.read(key, *rest, **more)
        except Exception:
            with contextlib.suppress(OSError):
                for item in self.folder.glob(f"{glob.escape(key)}-*"):
                    item.unlink(missing_ok=True)
            return None, None

    def put(self, *given: Any, **more: Any) -> None:
        """Writes a program, or does not where the disk is full or the folder gone."""
        if not self.ours():
            self.write(*given, **more)
        elif _config.jax_enable_compilation_cache:
            with contextlib.suppress(OSError, jax.errors.JaxRuntimeError):
                self.write(*given, **more)
                if next(self.written) % _OFTEN == 0:
                    shrink(self.folder, MOST)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Inside, XLA logs nothing, in any thread: what goes wrong is raised.

    Of each program that it loads it says in two lines of 2 kB that it may be unfit for this machine: it takes hints of
    the compiler (``prefer-no-gather``) for features of the processor.
    """
    global _loading
    set_level = getattr(importlib.import_module("jax._src.lib").utils, "absl_set_min_log_level", None)
    if set_level is None:  # of a version without these lines
        yield
        return
    with _lock:
        _loading += 1
        set_level(_SILENT)
    try:
        yield
    finally:
        with _lock:
            _loading -= 1
            if not _loading:
                set_level(_level())


def _level() -> int:
    """From where on XLA logs, which it does not tell: as JAX and XLA decide it when they start."""
    said = _LEVELS.get(str(_config.jax_logging_level))
    if said is not None:
        return said
    try:
        return int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"))
    except ValueError:
        return 1


def _machine() -> str:
    """What a program depends on that JAX's key of it does not have.

    The instructions that the processor knows, and the number of threads: into as many parts an operation is cut.
    """
    knows = processor("model name", "flags", "Features"), len(affinity()), os.environ.get(THREADS, "")
    return hashlib.sha256(repr(knows).encode()).hexdigest()[:12]
