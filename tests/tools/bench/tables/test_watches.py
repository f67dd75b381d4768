"""What watching costs, measured on real engines of aiohttp, briefly."""

from __future__ import annotations

import socket

import pytest

from fairlead.core.reported import restarted
from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.bench.tables.vllm_page import page
from fairlead.tools.bench.tables.watches import ENDPOINTS, Watches, measure, watch


async def test_all_engines_are_watched_at_the_default_intervals_without_a_failure() -> None:
    steps = []

    watches = await measure(1.0, lambda: steps.append(1))

    assert [run.endpoints for run in watches.runs] == list(ENDPOINTS)
    assert (watches.failures(), len(steps)) == (0, 2)
    for run in watches.runs:
        assert 0 < run.cpu_s <= run.measured_s
        assert run.scrapes > run.endpoints


async def test_an_engine_that_is_not_there_is_a_failure_and_unread() -> None:
    with socket.socket() as bound:  # taken, but nobody listens
        bound.bind(("127.0.0.1", 0))
        watching = await watch(0.1, ["{}:{}".format(*bound.getsockname())])

    assert watching.failures > 0
    assert watching.unread == 1
    assert Watches(1, [watching]).failures() == watching.failures + 1


def test_a_page_tells_all_that_a_router_reads_among_hundreds_of_other_lines() -> None:
    text = page(0)
    report = read_metrics(text, 0.0)

    assert report is not None
    assert None not in (report.running_requests, report.waiting_requests, report.kv_usage, report.kv_capacity_tokens)
    assert None not in (report.prefix_queried_tokens, report.prefix_hit_tokens, report.prompt_tokens)
    assert len(text.splitlines()) > 500
    assert 30_000 < len(text) < 100_000


@pytest.mark.parametrize("other", [1, 7])
def test_pages_differ_in_their_numbers_and_are_of_one_life(other: int) -> None:
    first, second = read_metrics(page(0), 0.0), read_metrics(page(other), 0.0)

    assert first is not None
    assert second is not None
    assert first != second
    assert not restarted(first, second)
