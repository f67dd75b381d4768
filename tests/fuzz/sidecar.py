"""`fairlead serve`, which on SIGUSR2 gives freed memory back to the kernel and tells what it still uses.

`serving.memory` keeps up to 256 MiB of freed memory, so the resident size says how long the longest bodies were, not
whether something leaks. `python -m tests.fuzz.sidecar FILE serve ...` writes to FILE; FUZZ_TRACE=1 adds where Python's
memory was allocated (`tracemalloc`), which costs speed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

from fairlead.cli import main
from tests.fuzz.tables import entries, shrink

_MOST_LINES = 25


def _trim_and_tell(path: Path) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    where: list[str] = []
    if tracemalloc.is_tracing():
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
        where += [str(each) for each in found.statistics("lineno")[:_MOST_LINES]]
        kinds = Counter(type(each).__qualname__ for each in gc.get_objects())
        where += [f"{kind}: {count}" for kind, count in kinds.most_common(_MOST_LINES)]
    fresh = path.with_suffix(".new")
    fresh.write_text(
        json.dumps({"blocks": sys.getallocatedblocks(), "entries": entries(), "where": where}), encoding="utf-8"
    )
    fresh.replace(path)


if __name__ == "__main__":
    told_at = Path(sys.argv.pop(1))
    if os.environ.get("FUZZ_TRACE"):
        tracemalloc.start(1)
    shrink()
    signal.signal(signal.SIGUSR2, lambda *_: _trim_and_tell(told_at))
    main()
