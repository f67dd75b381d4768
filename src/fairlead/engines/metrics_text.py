"""Read the few numbers that matter from the metrics page of an engine of any dialect.

Not a Prometheus parser: it looks at the lines that start with a wanted name and at no other. A value that is NaN,
infinite, negative or half written is left out, as if the engine did not report it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from fairlead.core.reported import AnswerSums, EngineReport
from fairlead.dialects import DIALECTS

MOST_BYTES: Final = 4 << 20  # one rank of vLLM writes some 80 KB, and an endpoint may have many

_Reading = tuple[Sequence[bytes], str]  # labels that a line must have, and what it then tells


def _readings() -> Mapping[bytes, Sequence[_Reading]]:
    by_name: dict[bytes, list[_Reading]] = {b"process_start_time_seconds": [((), "start")]}
    for dialect in DIALECTS.values():
        for series, reading in dialect.metrics.items():
            name, _, labels = series.encode().rstrip(b"}").partition(b"{")
            by_name.setdefault(name, []).append((labels.split(b",") if labels else (), reading))
    return by_name


_READINGS: Final = _readings()


def _any_of(names: Iterable[bytes]) -> bytes:
    """A pattern of these, with what they share before a colon written once: it is compared once in each line."""
    by_prefix: dict[bytes, list[bytes]] = {}
    for name in names:
        prefix, colon, rest = name.rpartition(b":")
        by_prefix.setdefault(re.escape(prefix + colon), []).append(re.escape(rest))
    return b"|".join(b"%b(?:%b)" % (prefix, b"|".join(rests)) for prefix, rests in by_prefix.items())


# One pass over the page at the speed of the regular expression: a line that is not wanted costs one failed match. The
# line must end, or it is half written.
_WANTED: Final = re.compile(rb"\n(%b)([{ \t][^\n]*)(?=\n)" % _any_of(_READINGS))
_MOST_LINES: Final = 4096  # wanted ones; an engine has some twenty for each of its ranks
_SUMS: Final = frozenset({"answers", "prefill_s", "computed", "decode_s", "steps", "answer_tokens"})
_COUNTERS: Final = frozenset({"queried", "queried_prompt", "hit", "prompt", "generated"}) | _SUMS
_TOO_MUCH: Final = 1e18  # of anything; keeps sums finite
_RANK: Final = re.compile(
    rb'[{,](?:%b)="([^"]*)"' % _any_of(sorted({d.rank_label.encode() for d in DIALECTS.values()}))
)
_BLOCK_SIZE: Final = re.compile(rb'[{,]block_size="([0-9]{1,9})"')
_DTYPE: Final = re.compile(rb'[{,]cache_dtype="([\w.]{1,32})"')
_NO_PREFIXES: Final = re.compile(rb'[{,]enable_prefix_caching="False"')
_BLOCKS: Final = re.compile(rb'[{,]num_gpu_blocks="([0-9]{1,12})"')

# vLLM keeps a series for each set of adapters that was ever in use. The one set last has the greatest value: its time.
_ADAPTERS: Final = re.compile(
    rb"\n(?:%b)(\{[^\n]*\})[ \t]([0-9][0-9.e+]*)(?=\n)"
    % _any_of(sorted(d.adapter_series.encode() for d in DIALECTS.values() if d.adapter_series))
)
_MOST_SETS: Final = 16_384
_MOST_ADAPTERS: Final = 256  # in use at a time
_SLOTS: Final = re.compile(rb'[{,]max_lora="([0-9]{1,6})"')
_RUNNING: Final = re.compile(rb'[{,]running_lora_adapters="([^"]*)"')
_WAITING: Final = re.compile(rb'[{,]waiting_lora_adapters="([^"]*)"')

_Ranks = dict[bytes, float]  # a value for each data-parallel rank


def read_metrics(text: bytes, now_s: float) -> EngineReport | None:
    """The report of a page read at `now_s`; None if it is of no engine that we know. Never raises."""
    found: dict[str, _Ranks] = {}
    dtype: re.Match[bytes] | None = None
    for line in islice(_WANTED.finditer(b"\n" + text), _MOST_LINES):
        for labels, field in _READINGS[line[1]]:
            if all(label in line[2] for label in labels):
                _add(field, line[2], found)
                if field == "cache_config" and dtype is None:
                    dtype = _DTYPE.search(line[2])
    if not found or found.keys() == {"start"}:
        return None
    slots, running, waiting = _adapters(text)
    block, start, both = found.get("block"), found.get("start"), found.get("queried_prompt")
    return EngineReport(
        running_requests=_total(found.get("running")),
        waiting_requests=_total(found.get("waiting")),
        kv_usage=_mean_share(found.get("kv_usage")),
        kv_capacity_tokens=_total(found.get("capacity")) or None,  # nothing serves with 0
        kv_block_tokens=(int(max(block.values())) if block else 0) or None,
        caches_prefixes=not found.get("uncached"),
        kv_dtype=dtype[1].decode() if dtype is not None else None,
        prefix_queried_tokens=_total(found.get("queried", both)),
        prefix_hit_tokens=_total(found.get("hit")),
        prompt_tokens=_total(found.get("prompt", both)),
        generated_tokens=_total(found.get("generated")),
        adapter_slots=slots or _least(found.get("adapter_slots")),
        running_adapters=running,
        waiting_adapters=waiting,
        sums=_sums(found),
        process_start_s=max(start.values()) if start else None,
        read_s=now_s,
        changed_s=now_s,
        stale=False,
    )


def _add(field: str, line: bytes, found: dict[str, _Ranks]) -> None:
    """`line` is what follows the name: labels in braces, if any, and a value."""
    labels, _, rest = line.rpartition(b"}")
    value = _value(rest)
    if value is None:
        return
    rank_found = _RANK.search(labels)
    rank = rank_found[1] if rank_found else b""
    if field == "cache_config":
        _add_cache_config(labels, rank, found)
        return
    ranks = found.setdefault(field, {})
    if field in _COUNTERS:
        ranks[rank] = ranks.get(rank, 0.0) + value  # SGLang splits one by the place that the tokens came from
    else:
        ranks[rank] = max(ranks.get(rank, 0.0), value)  # SGLang's tensor-parallel workers may each tell the same


def _add_cache_config(labels: bytes, rank: bytes, found: dict[str, _Ranks]) -> None:
    if _NO_PREFIXES.search(labels) is not None:
        found.setdefault("uncached", {})[rank] = 1.0
    size, blocks = _BLOCK_SIZE.search(labels), _BLOCKS.search(labels)
    if size is not None and int(size[1]) > 0:
        found.setdefault("block", {})[rank] = float(size[1])
        if blocks is not None and int(blocks[1]) > 0:
            found.setdefault("capacity", {})[rank] = float(int(size[1]) * int(blocks[1]))


def _adapters(text: bytes) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """Slots of a rank, and adapters of requests that run and that wait, on any rank."""
    newest: dict[bytes, tuple[float, bytes]] = {}
    for line in islice(_ADAPTERS.finditer(b"\n" + text), _MOST_SETS):
        labels, value = line[1], _value(line[2])
        rank_found = _RANK.search(labels)
        rank = rank_found[1] if rank_found else b""
        if value is not None and value >= newest.get(rank, (0.0, b""))[0]:
            newest[rank] = value, labels
    slots = [int(found[1]) for _, labels in newest.values() if (found := _SLOTS.search(labels)) is not None]
    named = [labels for _, labels in newest.values()]
    return min(slots, default=0) or None, _names(_RUNNING, named), _names(_WAITING, named)


def _names(pattern: re.Pattern[bytes], named: Iterable[bytes]) -> tuple[str, ...]:
    lists = [found[1] for labels in named if (found := pattern.search(labels)) is not None]
    names = dict.fromkeys(name for each in lists for name in each.split(b",") if name)
    return tuple(name.decode(errors="replace") for name in islice(names, _MOST_ADAPTERS))


def _least(ranks: _Ranks | None) -> int | None:
    return int(min(ranks.values())) or None if ranks else None


def _value(rest: bytes) -> float | None:
    """The number of a line, without the time that may follow it."""
    parts = rest.split(None, 1)
    try:
        value = float(parts[0])
    except (IndexError, ValueError):
        return None
    return value if 0 <= value < _TOO_MUCH else None


def _total(ranks: _Ranks | None) -> int | None:
    return int(sum(ranks.values())) if ranks else None


def _sums(found: dict[str, _Ranks]) -> AnswerSums | None:
    """None where the engine does not count answers."""
    of_answers = found.get("answers")
    if not of_answers:
        return None
    answers, tokens = int(sum(of_answers.values())), _total(found.get("answer_tokens"))
    prefill_s, decode_s = found.get("prefill_s"), found.get("decode_s")
    return AnswerSums(
        answers=answers,
        prefill_s=sum(prefill_s.values()) if prefill_s else None,
        computed_tokens=_total(found.get("computed")),
        decode_s=sum(decode_s.values()) if decode_s else None,
        steps=_total(found.get("steps")) if tokens is None else max(0, tokens - answers),
        ranks=len(of_answers),
    )


def _mean_share(ranks: _Ranks | None) -> float | None:
    return min(1.0, sum(ranks.values()) / len(ranks)) if ranks else None
