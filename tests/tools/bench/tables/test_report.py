"""The section of the report, and which of its targets hold."""

from __future__ import annotations

import msgspec

from fairlead.tools.bench.bodies import KINDS
from fairlead.tools.bench.tables.many_endpoints import TURNS, ManyEndpointsCell
from fairlead.tools.bench.tables.memory import Weight
from fairlead.tools.bench.tables.prefixes import PrefixCell, cells
from fairlead.tools.bench.tables.report import sections
from fairlead.tools.bench.tables.run import Tables
from fairlead.tools.bench.tables.targets import tables_targets
from fairlead.tools.bench.tables.watches import Watches, Watching

MEDIANS_US = {"empty": 1000.0, "known": 1050.0, "new": 1020.0}


def some_tables(*, lookup_of_long_us: float = 8.0, sessions_bytes: int = 200_000_000, cpu_s: float = 1.0) -> Tables:
    return Tables(
        endpoints=1000,
        sessions=100_000,
        prefixes=[
            PrefixCell(state, n, blocks, 10, 3, lookup_of_long_us if blocks == 2048 else 7.0, 9.0, 40.0, 50.0)
            for n, state, blocks in cells()
        ],
        many_endpoints=[
            ManyEndpointsCell(kind, turn, 10, MEDIANS_US[turn], 2000.0) for kind in KINDS for turn in TURNS
        ],
        memory=[
            Weight("blocks, in prompts of 8", 500_000, 32 << 20, 40 << 20, 4.0),
            Weight("sessions", 1_000_000, sessions_bytes, None, 5.0),
        ],
        watches=Watches(47_000, [Watching(10, 10.0, 0.2, 400, 0, 0), Watching(100, 10.0, cpu_s, 4000, 0, 0)]),
    )


def held(tables: Tables) -> dict[str, tuple[str, bool]]:
    return {target.what: (target.measured, target.holds) for target in tables_targets(tables)}


def test_all_hold_where_all_is_well() -> None:
    targets = held(some_tables())

    assert len(targets) == 8
    assert all(holds for _, holds in targets.values())


def test_a_lookup_that_grows_with_the_prompt_is_a_missed_target() -> None:
    targets = held(some_tables(lookup_of_long_us=28.0))

    assert targets["Prefix lookup, 2,048 blocks against 512"] == ("4.00 times at most", False)


def test_what_full_tables_add_is_against_empty_ones_with_the_same_body() -> None:
    targets = held(some_tables())

    measured, holds = targets["Decision, 1,000 endpoints, 64 KB: added by 100,000 sessions"]
    assert (measured, holds) == ("5.0% (english, known session, the most)", True)


def test_weights_are_of_a_million_whatever_was_weighed() -> None:
    targets = held(some_tables(sessions_bytes=1_200_000_000))

    assert targets["Memory of a million blocks"] == ("64.0 MiB (blocks, in prompts of 8, the most)", True)
    assert targets["Memory of a million sessions"] == ("1.20 GB", False)


def test_idle_cpu_is_that_of_the_most_endpoints() -> None:
    assert held(some_tables(cpu_s=6.0))["Idle CPU of watching 100 endpoints"] == ("0.60 cores", False)


def test_the_section_shows_every_part() -> None:
    text = "\n".join(sections(some_tables()))

    assert "| shared | 1024 | 3, 3 | 7.0 / 9.0 | 8.0 / 9.0 | 40.0 / 50.0 | 40.0 / 50.0 |" in text
    assert "| agent | 1,000 / 2,000 | 1,050 / 2,000 | 1,020 / 2,000 | +5.0% | +2.0% |" in text
    assert "| blocks, in prompts of 8 | 500,000 | 32.0 | 64.0 | 40.0 | 4.0 |" in text
    assert "| 100 | 0.100 | 400 | 250 | 0 | 10 |" in text


def test_a_collection_that_takes_long_is_told_with_its_table() -> None:
    tables = some_tables()
    slow = msgspec.structs.replace(tables.memory[1], collection_ms=300.0)
    (told,) = (
        target
        for target in tables_targets(msgspec.structs.replace(tables, memory=[tables.memory[0], slow]))
        if target.what.startswith("Pause")
    )

    assert (told.measured, told.holds) == ("300.0 ms (sessions, the slowest)", False)
