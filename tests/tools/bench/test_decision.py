"""The decision part: what it covers, and that it measures what it says."""

from __future__ import annotations

from itertools import islice

from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.decision import ENDPOINTS, MODEL, POLICIES, ROUTE, SIZES_KIB, Cell, cells, measure, slopes


def test_every_policy_kind_pool_and_size_is_measured_and_routes_as_well() -> None:
    covered = set(cells())

    assert {c[2:] for c in covered if c[:2] == ("laar", MODEL)} == {
        (k, n, s) for k in KINDS for n in ENDPOINTS for s in SIZES_KIB
    }
    assert {c[0] for c in covered if c[1] == MODEL} == set(POLICIES)
    assert {c[3] for c in covered if c[1] == ROUTE} == {64}


def test_a_cell_holds_at_least_ten_repeats_and_at_most_those_asked_for() -> None:
    least, most = (next(measure(0, budget_s, 12)) for budget_s in (0.0, 10.0))

    assert (least.repeats, most.repeats) == (10, 12)
    assert 0 < least.median_us <= least.p99_us


def test_more_endpoints_take_longer() -> None:
    by_endpoints = {cell.endpoints: cell.median_us for cell in islice(measure(0, 0.05, 50), 9) if cell.size_kib == 1}

    assert by_endpoints[1024] > by_endpoints[8]


def test_slopes_are_those_of_the_cells() -> None:
    made = [
        Cell("laar", MODEL, "agent", n, kib * 1024, kib, 10, 5 + 2 * n + 3 * kib, 0.0)
        for n in ENDPOINTS
        for kib in SIZES_KIB
    ]

    by_endpoint, by_kib = slopes(made, "laar", "agent")

    assert (round(by_endpoint.slope, 6), round(by_kib.slope, 6)) == (2.0, 3.0)
