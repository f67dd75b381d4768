"""What context reuse costs: one request, step by step, and the offline index by its size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from fairlead.context.blocks import DEFAULT_FORMATS
from fairlead.context.census import Census
from fairlead.context.dedup import Seen
from fairlead.context.draft import Draft, Found, Settings, arranged, draft, found_in
from fairlead.context.index import ContextIndex
from fairlead.context.order import Permutation
from fairlead.statistics import quantile
from fairlead.tools.bench.reuse.contextpilot import Contextpilot
from fairlead.tools.bench.reuse.lists import Lists, synthetic
from fairlead.tools.reuse.clustering import cluster

REQUESTS: Final = 2000
BUILD_SIZES: Final = (512, 2000, 4000, 12_000, 100_000)
QUICK_SIZES: Final = (512, 2000)
PAPER_US: Final = {"search": 68.0, "order": 47.0, "dedup": 144.0}  # table 6

_ROOT: Final = 1
_DOCUMENT: Final = "It is the text of document {number}, sentence {sentence}, of which there are some more. "
_SENTENCES: Final = 12
_SETTINGS: Final = Settings(order=True, dedup=True, formats=DEFAULT_FORMATS)


class Step(msgspec.Struct, frozen=True):
    """Time of one step of a request, in microseconds; CPU time is without what other processes of the machine take."""

    name: str
    p50_us: float
    p99_us: float
    cpu_p50_us: float
    cpu_p99_us: float


class Build(msgspec.Struct, frozen=True):
    """The offline index of so many contexts."""

    contexts: int
    wall_s: float
    cpu_s: float
    rival_s: float | None  # of the same contexts


def _never() -> bool:
    return False


def steps(seed: int) -> list[Step]:
    """Search, order and dedup of 2,000 synthetic lists of 15 documents (about 1 KB each), one after another."""
    lists = synthetic(REQUESTS, seed)
    index, times = ContextIndex(), _Times()
    for context in lists.contexts:
        sizes = [lists.tokens[document] for document in context]
        times.start()
        matches = index.search(_ROOT, context, sizes)
        times.stop("search")
        path = matches[0].path if matches else ()
        order = (*path, *[place for place in range(len(context)) if place not in path])
        text = _prompt(context)
        settings_seen = Seen()
        found = found_in(text, _SETTINGS)
        census = _census(text, found)
        made = draft(found, "user", _SETTINGS, settings_seen, census, 0, _never)
        assert made is not None
        times.start()
        arranged(made, _ROOT, partial(_same, order), partial(_names, made, census))
        index.insert(_ROOT, [context[place] for place in order])
        times.stop("order")
        following = _prompt(context[7:] + tuple(range(8)))
        times.start()
        found = found_in(following, _SETTINGS)
        draft(found, "user", _SETTINGS, settings_seen, _census(text, found, following), 1 << 32, _never)
        times.stop("dedup")
    return times.steps()


def builds(seed: int, sizes: Sequence[int], rival: Contextpilot | None, contextpilot_most: int) -> Iterator[Build]:
    """The offline index by its size; the rival's up to `contextpilot_most` contexts, as it takes long."""
    for count in sizes:
        lists = many(count, seed)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        cluster(lists.contexts)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        rival_s = rival.build_s(lists.contexts) if rival is not None and count <= contextpilot_most else None
        yield Build(count, wall_s, cpu_s, rival_s)


def many(count: int, seed: int) -> Lists:
    """More contexts are about more documents."""
    return synthetic(count, seed, documents=max(600, count // 4), topics=max(60, count // 40))


class _Times:
    def __init__(self) -> None:
        self._wall_us: dict[str, list[float]] = {}
        self._cpu_us: dict[str, list[float]] = {}
        self.start()

    def start(self) -> None:
        self._cpu_ns, self._wall_ns = time.thread_time_ns(), time.perf_counter_ns()

    def stop(self, name: str) -> None:
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._wall_us.setdefault(name, []).append((wall_ns - self._wall_ns) / 1e3)
        self._cpu_us.setdefault(name, []).append((cpu_ns - self._cpu_ns) / 1e3)

    def steps(self) -> list[Step]:
        found = []
        for name, wall_us in self._wall_us.items():
            of = wall_us, self._cpu_us[name]
            found.append(Step(name, *[quantile(times, share) for times in of for share in (0.5, 0.99)]))
        return found


def _names(made: Draft, census: Census, group: int) -> Sequence[bytes]:
    return made.names(group, census) or ()


def _census(before: bytes, found: Found, *more: bytes) -> Census:
    census = Census()
    census.add(before, found_in(before, _SETTINGS).named)
    for text in more:
        census.add(text, found.named)
    return census


def _same(order: Permutation, _group: int, _root: int) -> Permutation:
    return order


def _prompt(context: Sequence[int]) -> bytes:
    texts = [
        "".join(_DOCUMENT.format(number=number, sentence=sentence) for sentence in range(_SENTENCES))
        for number in context
    ]
    documents = "\n".join(f"<document>\n{text}\n</document>" for text in texts)
    return f"<documents>\n{documents}\n</documents>\n\nWhy?".encode()
