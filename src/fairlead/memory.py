"""Memory of a process that serves requests: freed memory stays, and the collector leaves the large tables alone.

Bodies of some 100 KB come and go with every request. By default glibc gives blocks over 128 KB back to the kernel and
faults each page in again for the next body, which costs more than parsing it: 535 us a request of 256 KB against 304,
as measured. The price: the peak stays resident.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MIB: Final = 1 << 20


def keep_freed_memory() -> None:
    """Tell glibc; any other C library is left as it is."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)  # the most that glibc takes
    mallopt(_M_TRIM_THRESHOLD, 256 * _MIB)
    mallopt(_M_TOP_PAD, 16 * _MIB)


def spare_from_collection() -> None:
    """What lives now is not looked at by the garbage collector any more: modules, and the tables that will grow.

    A table of a million sessions made every full collection stop all requests for 0.3 s, though its entries hold no
    cycle.
    """
    gc.collect()
    gc.freeze()
