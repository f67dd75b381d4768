"""Memory that long bodies took goes back to the kernel once no request comes."""

from __future__ import annotations

import weakref

import pytest

from fairlead.serving import memory
from fairlead.serving.memory import MemoryReturn


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def resident_mib(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What this process has from now on; the last value holds."""
    seen = [100]
    monkeypatch.setattr(memory, "resident_bytes", lambda: seen[-1] << 20)
    return seen


def trims_of(returns: MemoryReturn, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    trims: list[int] = []
    monkeypatch.setattr(returns, "_trim", trims.append)
    return trims


def test_what_is_worth_it_is_given_back_once_in_a_pause(
    resident_mib: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = MemoryReturn()
    trims = trims_of(returns, monkeypatch)
    resident_mib.append(400)
    for _ in range(20):
        returns.look(decided=7)
    assert trims == [0]


def test_what_only_cycles_hold_is_freed_before_memory_is_given_back(
    resident_mib: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = MemoryReturn()
    held = [Cycle()]
    is_left = weakref.ref(held[0])
    found: list[object] = []
    monkeypatch.setattr(returns, "_trim", lambda _: found.append(is_left()))
    resident_mib.append(400)
    held.clear()
    for _ in range(20):
        returns.look(decided=7)
    assert found == [None]


def test_nothing_is_given_back_while_requests_come(resident_mib: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    returns = MemoryReturn()
    trims = trims_of(returns, monkeypatch)
    resident_mib.append(400)
    for decided in range(100):
        returns.look(decided // 4)
    assert trims == []


def test_little_is_left_where_it_is(resident_mib: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    returns = MemoryReturn()
    trims = trims_of(returns, monkeypatch)
    resident_mib.append(110)
    for _ in range(20):
        returns.look(decided=7)
    assert trims == []


def test_what_a_process_has_is_known_here() -> None:
    assert memory.resident_bytes() > 1 << 20
