"""Half a minute of the fuzz. `make fuzz` is the same for an hour, with the bound that a leak must not hide under."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.attacks import FAMILIES
from tests.fuzz.fuzz import fuzz

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SEED = 15
MOST_GROWTH = 1.25  # the tables are not yet full after so short a warm-up


async def test_nothing_that_a_peer_or_a_client_sends_leaks_raises_or_costs_a_neighbour_its_advice() -> None:
    report = await fuzz(30, SEED, tuple(FAMILIES), sys.stdout, growth=MOST_GROWTH)
    assert not report.faults, "\n".join(report.faults)
    assert report.steps.keys() == FAMILIES.keys()
