"""Two servers that the tests of this folder share: a real SGLang and a real vLLM with the same model.

They start at the same time, which takes little longer than one of them. The files run in the order of their names, and
the last test of the last one kills the SGLang. Where the environments are not there yet they are built first, which
takes some minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from lab.engines import LabEngines
from lab.servers import NOTHING_MORE, Extra
from tests.lab.sglang import MODEL, MOST_QUEUED


def short_queue(number: int) -> Extra:
    """The SGLang has one, so that it can be full."""
    arguments = ("--max-running-requests", "2", "--max-queued-requests", str(MOST_QUEUED))
    return NOTHING_MORE if number else Extra(arguments, {})


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def servers() -> AsyncIterator[LabEngines]:
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:  # short: the path of a Unix socket is
        async with LabEngines((f"sglang:{MODEL}", MODEL), Path(name), short_queue, quiet=True) as engines:
            yield engines
