"""Capability: Q(m,x), how likely a model answers rightly, as a table by language and length bucket (LAAR, section 5.2).

The table was computed by `fairlead fit` and is only looked up here: nothing is fitted, read from disk or learnt at run
time. `parse_capability_file` takes the bytes of such a file, and files written by hand in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS, FIRST_BUCKET_TOKENS, bounds_tokens, bucket_names, bucket_of

# The cost is L/Q: a Q of 0 would make it infinite, so that hopeless models could not be ranked by latency, and a table
# fitted on a few hundred attempts cannot tell 0 from 1 in 100 anyway. The upper end needs no bound: L/1 is L.
LEAST_SUCCESS_PROBABILITY: Final = 0.01

_LONGEST_FIRST_BUCKET_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Capability:
    """One model's probability of a right answer. `table` holds, by language, one probability for each bucket.

    The buckets are `lengths.BUCKETS`, or, with `bounds` of its own, those of the file's scale.
    """

    table: Mapping[str, tuple[float, ...]]
    bounds: tuple[int, ...] | None = None

    def success_probability(self, language: str, bucket: int, tokens: int = 0) -> float:
        """For a prompt of `tokens`, whose `lengths.bucket_of` is `bucket`; only a table of another scale needs tokens.

        Never below LEAST_SUCCESS_PROBABILITY. A language that the table does not know counts as `other`.
        """
        if self.bounds is not None:
            bucket = bucket_of(tokens, self.bounds)
        try:
            return self.table[language][bucket]
        except KeyError:
            return self.table["other"][bucket]


NEUTRAL: Final = Capability({language: (1.0,) * len(BUCKETS) for language in LANGUAGES})
"""For a model without a file: the cost L/Q is its latency L alone."""


@dataclass(frozen=True, slots=True)
class CapabilityFile:
    """What one file says about a task family: the capability of each model."""

    task: str
    models: Mapping[str, Capability]

    def of_model(self, model: str) -> Capability:
        """Raises ValueError, with the models that the file has, when `model` is not one of them."""
        try:
            return self.models[model]
        except KeyError:
            raise ValueError(f'no model "{model}"; the file has {", ".join(self.models)}') from None


def parse_capability_file(data: bytes) -> CapabilityFile:
    """Raises ValueError that says which model, which language and what is wrong."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); write the file with `fairlead fit`") from None
    if not isinstance(document, dict):
        raise ValueError('not a JSON object; expected {"task": ..., "buckets": [...], "models": {...}}')
    task = document.get("task")
    if not isinstance(task, str) or not task:
        raise ValueError('"task" is missing; write the name of the task family, for example "kv-lookup"')
    first = _first_bucket_tokens(document.get("first_bucket_tokens", FIRST_BUCKET_TOKENS))
    _check_buckets(document.get("buckets"), bucket_names(first))
    bounds = None if first == FIRST_BUCKET_TOKENS else bounds_tokens(first)
    models = document.get("models")
    if not isinstance(models, dict) or not models:
        raise ValueError('"models" is missing or empty; write {"<model>": {"<language>": [a probability a bucket]}}')
    return CapabilityFile(task, {model: _capability(model, table, bounds) for model, table in models.items()})


def _first_bucket_tokens(said: Any) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 1 <= said <= _LONGEST_FIRST_BUCKET_TOKENS:
        raise ValueError(
            f'"first_bucket_tokens": {json.dumps(said)} is not a length from 1 to {_LONGEST_FIRST_BUCKET_TOKENS}; '
            f"leave it out for {FIRST_BUCKET_TOKENS}"
        )
    return said


def _check_buckets(buckets: Any, names: tuple[str, ...]) -> None:
    if not isinstance(buckets, list):
        raise ValueError(f'"buckets" is missing; write {json.dumps(names)}')
    for bucket in buckets:
        if bucket not in names:
            raise ValueError(f'"buckets": {json.dumps(bucket)} is not a length bucket; use {", ".join(names)}')
    if tuple(buckets) != names:
        raise ValueError(f'"buckets" must be all of {", ".join(names)} in this order')


def _capability(model: str, table: Any, bounds: tuple[int, ...] | None) -> Capability:
    if not isinstance(table, dict):
        raise ValueError(f'model "{model}": expected an object with a list of probabilities for each language')
    for language in table:
        if language not in LANGUAGES:
            raise ValueError(f'model "{model}": "{language}" is not a language code; use {", ".join(LANGUAGES)}')
    if "other" not in table:
        raise ValueError(f'model "{model}": language "other" is missing; it stands for every language not listed')
    rows = {language: _row(model, language, row) for language, row in table.items()}
    return Capability({language: rows.get(language, rows["other"]) for language in LANGUAGES}, bounds)


def _row(model: str, language: str, row: Any) -> tuple[float, ...]:
    where = f'model "{model}", language "{language}"'
    if not isinstance(row, list) or len(row) != len(BUCKETS):
        found = len(row) if isinstance(row, list) else "no list"
        raise ValueError(f"{where}: expected {len(BUCKETS)} probabilities, one a bucket, found {found}")
    for bucket, probability in zip(BUCKETS, row, strict=True):
        is_number = isinstance(probability, int | float) and not isinstance(probability, bool)
        if not (is_number and 0 <= probability <= 1):
            raise ValueError(f"{where}, bucket {bucket}: {json.dumps(probability)} is not a probability from 0 to 1")
    return tuple(max(LEAST_SUCCESS_PROBABILITY, float(probability)) for probability in row)
