"""In place of SGLang's compiled kernels, which are made for GPUs: SGLang imports their names at its start.

Without AMX it calls none of them on a CPU; if a version does, the error says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Never


def __getattr__(name: str) -> Callable[..., Never]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> Never:
        raise NotImplementedError(f"sgl_kernel.{name} is not there on a CPU")

    return absent
