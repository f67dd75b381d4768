"""Tasks that stand and fall together."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

from fairlead.tasks import all_of, while_running


async def test_work_ends_with_the_error_of_what_it_depends_on() -> None:
    cleaned_up = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    async def ends() -> Never:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await while_running(work(), ends())
    assert cleaned_up.is_set()


async def test_work_that_is_done_ends_the_watch() -> None:
    async def work() -> int:
        return 7

    async def ends() -> Never:
        await asyncio.Event().wait()
        raise AssertionError

    assert await while_running(work(), ends()) == 7


async def test_the_first_error_of_many_works_is_raised_as_it_is() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="mine"):
        await all_of(waits(), fails())
