"""Memory of a process that serves requests: freed memory is kept, and the garbage collector skips the large tables.

Bodies of some 100 KB come and go with every request. By default glibc gives blocks over 128 KB back to the kernel and
faults each page in again for the next body, which costs more than parsing it: 535 us a request of 256 KB against 304,
as measured. The price: the peak stays resident while requests come. Once they pause it is given back.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MIB: Final = 1 << 20
_PAUSE: Final = 5  # seconds without a request
_WORTH_BYTES: Final = 32 * _MIB  # less is not worth it


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory; any other C library is left as it is."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)  # the largest value that glibc accepts
    mallopt(_M_TRIM_THRESHOLD, 256 * _MIB)
    mallopt(_M_TOP_PAD, 16 * _MIB)


class MemoryReturn:
    """Gives freed memory back to the kernel in a pause: to do so keeps the event loop for up to some 40 ms.

    Garbage is collected first: what a cycle holds is not free, and in a pause no allocation starts the collector.
    """

    def __init__(self) -> None:
        self._decided = 0
        self._idle = 0  # calls of `look` in a row without a decision
        self._returned_to = resident_bytes()
        self._trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)

    def look(self, decided: int) -> None:
        """To be called once a second, with the number of decisions so far."""
        self._idle = 0 if decided != self._decided else self._idle + 1
        self._decided = decided
        if self._idle == _PAUSE and resident_bytes() > self._returned_to + _WORTH_BYTES:
            gc.collect(1)  # not the oldest: their tables would keep the loop for 0.3 s
            self._trim(0)
            self._returned_to = resident_bytes()


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def spare_from_collection() -> None:
    """Exclude all present objects from garbage collection: modules, and the tables that will grow.

    A table of a million sessions made every full collection stop all requests for 0.3 s, though its entries hold no
    cycle.
    """
    gc.collect()
    gc.freeze()
