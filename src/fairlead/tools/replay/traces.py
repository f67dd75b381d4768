"""From a trace file to a workload: the first record shows which reader it needs."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from fairlead.errors import UserError
from fairlead.tools.decisions import is_decision_log, read_decisions, trace_rows
from fairlead.tools.replay.claude_code import Sampling, read_claude_code
from fairlead.tools.replay.lines import Line, lines_of
from fairlead.tools.replay.mooncake import read_mooncake
from fairlead.tools.replay.table import read_azure, read_table
from fairlead.tools.replay.workload import Workload

_NO_SAMPLING: Final = Sampling()


def read_trace(path: Path, sampling: Sampling = _NO_SAMPLING, seed: int = 0) -> Workload:
    """The workload of `path` as `seed` draws it. Raises UserError, with the line, for what cannot be replayed."""
    if is_decision_log(path):
        return _decisions(path)
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path}: no request in it")
    name = path.name.split(".")[0]
    columns, rows = set(first.values), chain([first], lines)
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
    return workload


def _decisions(path: Path) -> Workload:
    trace, notes = trace_rows(read_decisions(path), path)
    lines = (Line(path, number, values) for number, values in enumerate(trace.iter_rows(named=True), start=1))
    return msgspec.structs.replace(read_table(path.name, lines), notes=notes)
