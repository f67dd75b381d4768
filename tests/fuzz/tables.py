"""The sidecar's bounded tables, made so small that the warm-up fills them: what grows after it is a leak.

Those that the configuration bounds are small there (`tests.fuzz.world`). At their real sizes the rest take hours to
fill: half an hour of fuzz grew by 5 % of Python's blocks, all of it in slices of text, turns that were answered, what
context reuse remembers, and the replies made for addresses that engines were said to have.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from fairlead.context import index, reuse
from fairlead.core import answered, calibration, text_kinds
from fairlead.extproc import replies

_ENTRIES: Final = 64
_CACHES: Final[tuple[tuple[ModuleType, str], ...]] = (
    (text_kinds, "_sampled"),
    (replies, "_response_template"),
    (replies, "_routed_body_as_it_is"),
)


def shrink() -> None:
    """Before the sidecar is made."""
    for module, name in _CACHES:
        setattr(module, name, lru_cache(maxsize=_ENTRIES)(getattr(module, name).__wrapped__))
    _set(answered, "MOST", _ENTRIES)
    _set(calibration, "KEPT", _ENTRIES)
    _default(reuse.ContextReuse, "memory_bytes", 1 << 17)
    _default(index.ContextIndex, "max_prefixes", _ENTRIES)


def entries() -> dict[str, str]:
    """Of each cache, and the most that it may have."""
    found = {f"{module.__name__}.{name}": getattr(module, name).cache_info() for module, name in _CACHES}
    return {name: f"{info.currsize} of {info.maxsize}" for name, info in found.items()}


def _default(made: type[Any], parameter: str, value: Any) -> None:
    defaults: dict[str, Any] = made.__init__.__kwdefaults__
    assert parameter in defaults
    defaults[parameter] = value


def _set(module: ModuleType, name: str, value: Any) -> None:
    """Raises AttributeError where there is no such name to set."""
    getattr(module, name)
    setattr(module, name, value)
