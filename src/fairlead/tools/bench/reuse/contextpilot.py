"""The paper's own package, where the user has it: the same lists through it, in the same run.

It is no dependency, as it needs transformers, datasets and elasticsearch to install; its index needs numpy and scipy
only, so an unpacked wheel is enough.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import UserError

Context = tuple[int, ...]


class Contextpilot:
    """`contextpilot` of the folder `path`. Raises UserError if it cannot be imported from there."""

    def __init__(self, path: Path) -> None:
        sys.path.insert(0, str(path))
        try:
            self._module = importlib.import_module("contextpilot.server.live_index")
            self.version = str(importlib.import_module("contextpilot").__version__)
        except ImportError as error:
            raise UserError(f"--contextpilot {path}: {error}; unpack the wheel there") from None
        self.online_us: list[float] = []

    def online(self, contexts: Sequence[Context]) -> tuple[list[Context], int]:
        """Each list in its order, and its failures: lists that it raised on or lost documents of go on as they are."""
        index, failures, sent = self._new(), 0, []
        for context in contexts:
            started_s = time.perf_counter()
            try:
                ordered = self._quietly(index.reorder, [list(context)])[0][0]
            except Exception:  # whatever it raises: the request goes on
                ordered = context
                failures += 1
            self.online_us.append(1e6 * (time.perf_counter() - started_s))
            if sorted(ordered) != sorted(context):
                ordered = context
                failures += 1
            sent.append(tuple(ordered))
        return sent, failures

    def offline(self, contexts: Sequence[Context]) -> tuple[list[Context], int]:
        """All lists in its order of execution."""
        index = self._new()
        result = self._quietly(index.build_and_schedule, [list(context) for context in contexts])
        return [tuple(context) for context in result["reordered_contexts"]], 0

    def build_s(self, contexts: Sequence[Context]) -> float:
        started_s = time.perf_counter()
        self.offline(contexts)
        return time.perf_counter() - started_s

    def _new(self) -> Any:
        return self._quietly(self._module.ContextPilot, use_gpu=False)

    def _quietly(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                return call(*arguments, **more)
        finally:
            logging.disable(logging.NOTSET)
