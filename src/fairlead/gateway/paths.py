"""The engine paths open to clients: the inference APIs, the list of models, and health. All others are a 404.

Engines have many more on the same port: they empty caches, load weights and adapters, put the engine to sleep, and show
metrics. `gateway.paths` adds to the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fairlead.api.paths import OPEN_PATHS, generation_path

# Paths that an engine, or a server in front of it, could read as another one: `..`, also with its characters escaped,
# an escaped `%`, a backslash. Only entries that end in `/*` could let one through.
TWO_READINGS: Final = r".*(\.\.|\\|%2[eE]|%25|%5[cC]).*"


def allowed(added: Iterable[str]) -> str:
    """A regular expression (RE2) of all open paths, each also with a trailing slash."""
    return _any_of((*OPEN_PATHS, *added))


def read_by_the_sidecar() -> str:
    """A regular expression of the paths whose bodies the sidecar reads."""
    return _any_of(path for path in OPEN_PATHS if not path.endswith("/*") and generation_path(path) is not None)


def _any_of(paths: Iterable[str]) -> str:
    whole = sorted({path.rstrip("/") for path in paths if not path.endswith("/*")})
    below = sorted({path.removesuffix("/*") for path in paths if path.endswith("/*")})
    either = [*map(re.escape, whole), *(f"{re.escape(path)}/.*" for path in below)]
    return f"({'|'.join(either)})/?"
