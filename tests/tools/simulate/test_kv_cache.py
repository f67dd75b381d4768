"""The block pool against a plain one that looks at every block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fairlead.tools.simulate.kv_cache import BlockPool

CAPACITY = 24


class PlainPool:
    """What `BlockPool` says it does, block by block."""

    def __init__(self) -> None:
        self.private = 0
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def match(self, hashes: Sequence[int], limit: int) -> int:
        known = 0
        while known < min(limit, len(hashes)) and (hashes[known] in self.users or hashes[known] in self.idle):
            known += 1
        return known

    def acquire(self, hashes: Sequence[int], matched: int, new: int) -> bool:
        revived = sum(name in self.idle for name in hashes[:matched])
        if revived + new > CAPACITY - len(self.users) - self.private:
            return False
        for name in hashes[:matched]:
            self.idle.pop(name, None)
            self.users[name] = self.users.get(name, 0) + 1
        self.private += new
        while len(self.users) + self.private + len(self.idle) > CAPACITY:
            self.idle.popitem(last=False)
        return True

    def store(self, hashes: Sequence[int], start: int, end: int) -> None:
        for name in hashes[start:end]:
            self.private -= 1
            self.idle.pop(name, None)
            self.users[name] = self.users.get(name, 0) + 1

    def release(self, hashes: Sequence[int], named: int, private: int) -> None:
        for name in reversed(hashes[:named]):
            self.users[name] -= 1
            if not self.users[name]:
                del self.users[name]
                self.idle[name] = None
        self.private -= private


def chain(family: int, fork: int, length: int) -> tuple[int, ...]:
    """Chains of one family share their blocks up to the fork."""
    return tuple(100 * family + n if n < fork else 10_000 * (family + 1) + 100 * fork + n for n in range(length))


chains = st.builds(chain, st.integers(0, 2), st.integers(0, 6), st.integers(1, 12))
# Each step: a request with a chain is admitted and names some of its blocks, or the request at a place leaves.
steps = st.lists(st.one_of(st.tuples(chains, st.integers(0, 12)), st.integers(0, 5)), max_size=40)


@given(steps)
def test_a_pool_that_bisects_does_as_one_that_looks_at_every_block(
    steps: list[tuple[tuple[int, ...], int] | int],
) -> None:
    pool, plain = BlockPool(CAPACITY), PlainPool()
    inside: list[tuple[tuple[int, ...], int]] = []  # chain and how many of its blocks are named
    for step in steps:
        if isinstance(step, int):
            if inside:
                hashes, named = inside.pop(step % len(inside))
                for each in (pool, plain):
                    each.release(hashes, named, len(hashes) - named)
        else:
            hashes, computed = step
            matched = pool.match(hashes, len(hashes))
            assert matched == plain.match(hashes, len(hashes))
            admitted = pool.acquire(hashes, matched, len(hashes) - matched)
            assert admitted == plain.acquire(hashes, matched, len(hashes) - matched)
            if admitted:
                named = max(matched, min(computed, len(hashes)))
                for each in (pool, plain):
                    each.store(hashes, matched, named)
                inside.append((hashes, named))
        assert pool.private == plain.private
        assert (pool.used, pool.cached) == (len(plain.users) + plain.private, len(plain.users) + len(plain.idle))
        for known in (chain(family, fork, 12) for family in range(3) for fork in range(7)):
            assert pool.match(known, 12) == plain.match(known, 12)
