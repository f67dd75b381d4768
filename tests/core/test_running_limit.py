"""How many requests an engine runs at once is learned from what waits in it."""

from __future__ import annotations

from fairlead.core.reported import EngineReport
from fairlead.core.running_limit import REFUSAL_S, RunningLimit


def reported(limit: RunningLimit, at_s: float, *, waiting: int, inflight: int, pending_ms: float = 0.0) -> None:
    report = EngineReport(running_requests=inflight - waiting, waiting_requests=waiting, read_s=at_s, stale=False)
    limit.reported(report, inflight, pending_ms)


def test_an_engine_that_leaves_requests_waiting_is_full() -> None:
    limit = RunningLimit()
    for second in range(3):
        reported(limit, float(second), waiting=36, inflight=100)
    assert limit.requests == 64
    assert limit.is_reached(100, 1.0, 3.0)
    assert not limit.is_reached(60, 1.0, 3.0)
    assert limit.is_reached(60, 0.8, 3.0)


def test_requests_that_wait_for_prefills_only_say_nothing_of_the_batch() -> None:
    limit = RunningLimit()
    for tenth in range(20):
        reported(limit, tenth / 10, waiting=4, inflight=8, pending_ms=2000.0)
    assert limit.requests is None


def test_a_stale_report_teaches_nothing() -> None:
    limit = RunningLimit()
    for second in range(5):
        report = EngineReport(running_requests=4, waiting_requests=40, read_s=float(second), stale=True)
        limit.reported(report, 44, 0.0)
    assert limit.requests is None


def test_the_limit_grows_while_the_engine_runs_all_that_it_has() -> None:
    limit = RunningLimit()
    for second in range(3):
        reported(limit, float(second), waiting=90, inflight=100)
    assert limit.requests == 10
    for second in range(3, 30):
        assert limit.requests is not None
        reported(limit, float(second), waiting=0, inflight=limit.requests)
    assert limit.requests > 100


def test_a_refusal_closes_until_the_next_report_or_for_a_second() -> None:
    limit = RunningLimit()
    limit.refused(None, 10.0)
    assert limit.is_reached(0, 1.0, 10.5)
    assert not limit.is_reached(5, 1.0, 10.0 + REFUSAL_S)
    limit.refused(8, 20.0)
    reported(limit, 20.1, waiting=0, inflight=2)
    assert not limit.is_reached(2, 1.0, 20.2)
    assert limit.requests == 7
