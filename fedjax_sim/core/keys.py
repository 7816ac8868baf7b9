"""Named randomness: every draw is a pure function of (run key, round, client id or purpose[, step]).

No draw depends on an algorithm, a layout, a device or a client's slot in its cohort. Two algorithms run with one key
therefore see the same cohorts, local work, batches and initial model (common random numbers), and a run can be
restarted at any round.

The tree of keys, each branch one ``fold_in``: run key → round t → client id, and beside the clients, above the range
of ids, one key for each purpose. All small draws of a client in a round are words of one call of the generator: each
call is to be compiled.
"""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import jaxlib.version

# What decides which words a seed becomes, by JAX's and flax's own names, as both have it unless they are told otherwise
# (flax's setting is of models' first parameters).
GENERATOR: dict[str, Any] = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "flax_fix_rng_separator": False,
}
_WORK, _LOT, _ORDER = 0, 1, 2  # columns of ClientDraws.words: what each word is for, never reused
ORDER_WORDS = 16


def order_words(words: jax.Array) -> jax.Array:
    """uint32[16], the words for the order of the examples among those of one client, uint32[18]."""
    return words[_ORDER:]


class Purpose(enum.IntEnum):
    """What a key is for where it is not a client's; above all ids and rounds, part of the reproducibility contract."""

    INIT = 2**31
    COHORT = 2**31 + 1
    SERVER = 2**31 + 2
    BATCH = 2**31 + 3
    MODEL = 2**31 + 4
    ALGORITHM = 2**31 + 5
    DIAGNOSTICS = 2**31 + 6
    AVAILABILITY = 2**31 + 7
    SYSTEM = 2**31 + 8
    REDRAW = 2**31 + 9
    SEARCH = 2**31 + 10
    INSTANT = 2**31 + 11


class ClientDraws(NamedTuple):
    """All that one round's clients draw from, leading axis S.

    Attributes:
      keys: typed PRNG keys of (run, round, client id).
      words: uint32[S, 18], the words of one draw from each.
    """

    keys: jax.Array
    words: jax.Array

    @property
    def work(self) -> jax.Array:
        """uint32[S], for the number of local steps."""
        return self.words[:, _WORK]

    @property
    def lot(self) -> jax.Array:
        """uint32[S], for who straggles."""
        return self.words[:, _LOT]

    @property
    def at_one_instant(self) -> jax.Array:
        """uint32[S], for who is first of messages that arrive at one instant: not those with the least work."""
        return random_words(self.purpose(Purpose.INSTANT), 1)[:, 0]

    @property
    def order(self) -> jax.Array:
        """uint32[S, 16], for the order of the examples."""
        return self.words[:, _ORDER:]

    def purpose(self, purpose: Purpose) -> jax.Array:
        """One key a client for a purpose of its own, [S]."""
        return jax.vmap(lambda key: purpose_key(key, purpose))(self.keys)


def generator() -> dict[str, Any]:
    """The random generator in force: the names of ``GENERATOR`` with their values in this thread now.

    XLA's own generators may draw other words on another kind of device or in another version: these are part of them.
    """
    found = {name: getattr(_library(name).config, name, usual) for name, usual in GENERATOR.items()}
    if found["jax_default_prng_impl"] != GENERATOR["jax_default_prng_impl"]:
        found["drawn_by"] = f"jaxlib {jaxlib.version.__version__} on {jax.default_backend()}"
    return found


def use_generator(wanted: dict[str, Any]) -> None:
    """Makes the random generator what :func:`generator` gave elsewhere, for this process; other names are left alone.

    Raises:
      ValueError: there is no such generator.
    """
    now = generator()
    for name, usual in GENERATOR.items():
        value = wanted.get(name, usual)
        if type(value) is type(usual) and value != now[name]:
            _library(name).config.update(name, value)


def switch(name: str, value: Any) -> str:
    """What says a setting of JAX in the environment of a process: ``JAX_THREEFRY_PARTITIONABLE=0``."""
    return f"{name.upper()}={int(value) if isinstance(value, bool) else value}"


def _library(name: str) -> Any:
    return {"jax": jax, "flax": flax}[name.partition("_")[0]]


def purpose_key(key: jax.Array, purpose: Purpose) -> jax.Array:
    """The branch of ``key`` (a run's, a round's or a client's) for ``purpose``."""
    return fold_in(key, jnp.uint32(purpose))


def round_key(key: jax.Array, round_: jax.Array) -> jax.Array:
    """The key of round ``round_`` of the run with key ``key``."""
    return fold_in(key, round_)


def cohort_key(key: jax.Array, round_: jax.Array) -> jax.Array:
    """The key that draws the cohort of round ``round_`` in the run with key ``key``."""
    return purpose_key(round_key(key, round_), Purpose.COHORT)


def client_draws(key: jax.Array, round_: jax.Array, ids: jax.Array) -> ClientDraws:
    """What the clients ``ids``, int32[S], draw from in round ``round_`` of the run with key ``key``, or each in its."""
    keys = fold_in(round_key(key, round_), ids)
    return ClientDraws(keys, random_words(keys, _ORDER + ORDER_WORDS))


# The generator, with fewer kernels


def fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    """``jax.random.fold_in`` of typed keys and integers of any shapes that broadcast: the same keys."""
    data = jnp.asarray(data)
    if _is_threefry(key):
        words = jnp.stack(_threefry(*_halves(key), data.astype(jnp.uint32)), axis=-1)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
    shape = jnp.broadcast_shapes(key.shape, data.shape)
    folded = jax.random.fold_in
    for _ in shape:
        folded = jax.vmap(folded)
    return folded(jnp.broadcast_to(key, shape), jnp.broadcast_to(data, shape))


def random_words(key: jax.Array, number: int) -> jax.Array:
    """``jax.random.bits(key, (number,), jnp.uint32)`` of typed keys of any shape: uint32[..., number]."""
    if _is_threefry(key) and jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        high, low = (half[..., None] for half in _halves(key))
        first, second = _threefry(high, low, jnp.arange(number, dtype=jnp.uint32))
        return jnp.bitwise_xor(first, second)
    bits = functools.partial(jax.random.bits, shape=(number,), dtype=jnp.uint32)
    for _ in key.shape:
        bits = jax.vmap(bits)
    return bits(key)


def _is_threefry(key: jax.Array) -> bool:
    return bool(jax.random.key_impl(key) == GENERATOR["jax_default_prng_impl"])


def _halves(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    words = jax.random.key_data(key)
    return words[..., 0], words[..., 1]


@jax.jit
def _threefry(high: jax.Array, low: jax.Array, counter: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the blocks (0, counter), as jax.random has it.

    On a CPU JAX lowers it to a loop of nine kernels and sixteen copies; written out it is one or two, and what compiles
    costs by the kernel. Rotations multiply where they would shift left: of shifts by a number that XLA has put outside
    of a large kernel, with a case for 32 and more, LLVM takes five times as long.
    """
    high, low, counter = jnp.broadcast_arrays(high, low, counter)
    keys = (high, low, high ^ low ^ jnp.uint32(0x1BD11BDA))
    first, second = high, counter + low
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            first = first + second
            second = ((second * jnp.uint32(2**distance)) | (second >> (32 - distance))) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second
