"""Capability: Q(m,x), how likely a model answers rightly, as a table by language and length bucket (LAAR, section 5.2).

The table was computed by `fairlead fit` and is only looked up here: nothing is fitted, read from disk or learnt at run
time. `parse_capability_file` takes the bytes of such a file, and files written by hand in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS, FIRST_BUCKET_TOKENS, bounds_tokens, bucket_names, bucket_of

# The cost is L/Q: a Q of 0 would make it infinite, so that hopeless models could not be ranked by latency, and a table
# fitted on a few hundred attempts cannot tell 0 from 1 in 100 anyway. The upper end needs no bound: L/1 is L.
LEAST_SUCCESS_PROBABILITY: Final = 0.01


@dataclass(frozen=True, slots=True)
class Capability:
    """One model's probability of a right answer. `table` holds, by language, one probability for each bucket.

    The buckets are `lengths.BUCKETS`, or, with `bounds` of its own, those of the file's scale. `tasks` holds tables of
    its own for some tasks.
    """

    table: Mapping[str, tuple[float, ...]]
    bounds: tuple[int, ...] | None = None
    tasks: Mapping[str, Capability] = field(default_factory=dict)

    def success_probability(self, language: str, bucket: int, tokens: int = 0, task: str = "") -> float:
        """For a prompt of `tokens`, whose `lengths.bucket_of` is `bucket`; only a table of another scale needs tokens.

        Never below LEAST_SUCCESS_PROBABILITY. A language that the table does not know counts as `other`, and a task
        without a table as any.
        """
        if task and (own := self.tasks.get(task)) is not None:
            return own.success_probability(language, bucket, tokens)
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


_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Row = Annotated[list[_Probability], msgspec.Meta(min_length=len(BUCKETS), max_length=len(BUCKETS))]


class _Document(msgspec.Struct):
    """What is read of a file by `fairlead fit`. Rows are read one by one, so that errors can name them."""

    task: Annotated[str, msgspec.Meta(min_length=1)]
    buckets: list[str]
    models: Annotated[dict[str, dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]
    first_bucket_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = FIRST_BUCKET_TOKENS


_FORM: Final = '{"task": "...", "buckets": [...], "models": {"<model>": {"<language>": [a probability a bucket]}}}'


def parse_capability_file(data: bytes) -> CapabilityFile:
    """Raises ValueError that says which model, which language and what is wrong."""
    document = _decoded(data, _Document, f"write the file with `fairlead fit`, or as {_FORM}")
    first = document.first_bucket_tokens
    names = bucket_names(first)
    if tuple(document.buckets) != names:
        raise ValueError(f'"buckets" is {", ".join(document.buckets) or "empty"}; write {", ".join(names)}')
    bounds = None if first == FIRST_BUCKET_TOKENS else bounds_tokens(first)
    return CapabilityFile(
        document.task, {model: _capability(model, rows, bounds) for model, rows in document.models.items()}
    )


def _capability(model: str, rows: Mapping[str, msgspec.Raw], bounds: tuple[int, ...] | None) -> Capability:
    for language in rows:
        if language not in LANGUAGES:
            raise ValueError(f'model "{model}": "{language}" is not a language code; use {", ".join(LANGUAGES)}')
    if "other" not in rows:
        raise ValueError(f'model "{model}": language "other" is missing; it stands for every language not listed')
    table = {}
    for language, row in rows.items():
        where = f'model "{model}", language "{language}"'
        known = _decoded(row, _Row, f"write {len(BUCKETS)} probabilities from 0 to 1, one for each bucket", where)
        table[language] = tuple(max(LEAST_SUCCESS_PROBABILITY, probability) for probability in known)
    return Capability({language: table.get(language, table["other"]) for language in LANGUAGES}, bounds)


def _decoded(data: bytes | msgspec.Raw, kind: Any, instead: str, where: str = "") -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).replace("`", "").partition(" - at $")
        place = ", ".join(part for part in (where, at.removeprefix(".")) if part)
        raise ValueError(f"{place + ': ' if place else ''}{what[0].lower()}{what[1:]}; {instead}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where + ': ' if where else ''}not JSON ({error}); {instead}") from None
