"""Whether there is room for what is about to be made: said before anything is taken."""

from __future__ import annotations

from fedjax_sim.core.devices import free_memory

_REMEDY = (
    "give fewer or smaller examples, a narrower dtype (uint8, float16), or memory-mapped arrays to "
    "fjs.datasets.host.from_ids, which copies nothing"
)


def check_room(what: str, rows: int, row_bytes: int, remedy: str = _REMEDY, *, device: bool = False) -> None:
    """MemoryError, with all sizes, where ``rows`` of so many bytes do not fit in memory, or that of a ``device``."""
    places = {"the machine": free_memory(device=False)} | ({"the device": free_memory()} if device else {})
    where, free = min(places.items(), key=lambda place: place[1])
    needed = rows * row_bytes
    if needed > free:
        raise MemoryError(
            f"{what}: {rows:,} rows of {row_bytes:,} bytes are {needed / 1e9:,.2f} GB, and {where} has "
            f"{max(free, 0) / 1e9:,.2f} GB free: {remedy}"
        )
