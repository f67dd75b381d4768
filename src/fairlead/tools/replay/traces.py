"""From a trace file to a workload: the first record shows which reader it needs."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Final

import msgspec
import polars as pl

from fairlead.errors import UserError
from fairlead.tools.decisions import TRACE_COLUMNS, first_at_s, is_decision_log, read_decisions, trace_rows
from fairlead.tools.replay.claude_code import Sampling, read_claude_code
from fairlead.tools.replay.lines import Line, lines_of
from fairlead.tools.replay.mooncake import read_mooncake
from fairlead.tools.replay.table import read_azure, read_table
from fairlead.tools.replay.workload import Workload

MOST_REQUESTS: Final = 500_000  # read of a trace: some 0.5 GB as conversations, and minutes for each policy and seed
LOOK_BACK_S: Final = 3600.0  # before a part of a log: a conversation that began so early is not one that begins in it
ONLY_THE_FIRST: Final = f"only its first {MOST_REQUESTS:,} requests are read; for others cut the file"
_NO_SAMPLING: Final = Sampling()


def read_trace(
    source: Path | str,
    sampling: Sampling = _NO_SAMPLING,
    seed: int = 0,
    *,
    from_s: float = 0.0,
    to_s: float = float("inf"),
) -> Workload:
    """The workload of `source` as `seed` draws it. Raises UserError, with the line, for what cannot be replayed.

    A trace may be larger than memory: its first MOST_REQUESTS are read. Of a decision log, no more is read than
    conversations that start from `from_s` to `to_s` after its first decision need.
    """
    if is_decision_log(source):
        return _decisions(source, from_s, to_s)
    path = Path(source)
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path}: no request in it")
    name = path.name.split(".")[0]
    columns, rows = set(first.values), islice(chain([first], lines), MOST_REQUESTS)
    if {"timestamp", "hash_ids"} & columns == {"timestamp", "hash_ids"}:
        workload = read_mooncake(name, rows, seed)
    elif {"session", "t", "i"} <= columns:
        workload = read_claude_code(name, rows, sampling, seed)
    elif {"TIMESTAMP", "ContextTokens"} <= columns:
        workload = read_azure(name, rows)
    elif {"at_s", "think_s"} & columns:
        workload = read_table(name, rows)
    else:
        first.refuse(
            "columns are missing: a trace has at_s (or think_s), prompt_tokens and output_tokens; "
            f"found: {', '.join(sorted(map(str, columns)))}"
        )
    if not workload.conversations:
        raise UserError(f"{path}: no request is left; raise the cap on prompts")
    if next(lines, None) is None:
        return workload
    return msgspec.structs.replace(workload, notes=(*workload.notes, ONLY_THE_FIRST))


def _decisions(source: Path | str, from_s: float, to_s: float) -> Workload:
    part = None
    begun_s = 0.0
    if from_s > 0.0 or to_s != float("inf"):
        begun_s = first_at_s(source)
        part = pl.col("at_s").is_between(begun_s + from_s - LOOK_BACK_S, begun_s + to_s, closed="left")
    rows = read_decisions(source, TRACE_COLUMNS, of=part, most=MOST_REQUESTS)
    if rows.is_empty():
        raise UserError(f"{source}: nothing starts from {from_s:g} s to {to_s:g} s")
    trace, notes = trace_rows(rows, source)
    if rows.height >= MOST_REQUESTS:
        notes = (*notes, f"its first {rows.height:,} requests; for others give --from-s and --to-s")
    name = PurePath(source).name
    lines = (Line(Path(name), number, values) for number, values in enumerate(trace.iter_rows(named=True), start=1))
    workload = msgspec.structs.replace(read_table(name, lines), notes=notes)
    if part is None:
        return workload
    late_ms = (float(trace["at_s"][0]) - begun_s) * 1e3  # the first row of a part begins a conversation
    moved = [msgspec.structs.replace(each, start_ms=each.start_ms + late_ms) for each in workload.conversations]
    return msgspec.structs.replace(workload, conversations=tuple(moved))
