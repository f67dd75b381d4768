"""A long request body, read in full: what routing needs of it, in a few KiB whatever its length.

Pure. The sidecar calls it in another process (`extproc.body_reader`), as neither JSON nor hashes let other threads run.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.api.body_limits import has_too_many_items
from fairlead.api.prompt import TOO_MANY, Malformed, Prompt, parse
from fairlead.api.spans import Span, object_spans
from fairlead.core.facts import Measured, measure

INLINE_BYTES: Final = 256 * 1024  # read between two other requests, if it is mostly text: some 5 ms at most
EDITED_KEYS: Final = frozenset({"model", "stream", "stream_options", "cache_salt"})

_MOST_JUDGED_VALUES: Final = 200_000  # some 15 ms to decode


class Read(msgspec.Struct, frozen=True):
    """What was read of a body. Of a long one `prompt` has no text any more, and `measured` is what it came to."""

    prompt: Prompt
    measured: Measured | None = None  # of a long body; None: the text is at hand
    spans: dict[str, Span] | None = None  # in a long body, of what may have to change; None where they cannot be found
    decodes_quickly: bool = True  # into Python values, as a judge wants it


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What is needed to read a body, apart from its bytes."""

    path: str
    content_type: bytes
    tenant: bytes


def read_whole(body: bytes, question: Question) -> Read | Malformed:
    """Linear in the bytes, and in memory a few times the body's."""
    if has_too_many_items(body):
        return TOO_MANY
    prompt = parse(body, question.path, question.content_type)
    if isinstance(prompt, Malformed):
        return prompt
    wanted = EDITED_KEYS.union(prompt.reserved)
    spans = None if prompt.model_span is not None else object_spans(body)
    return Read(
        msgspec.structs.replace(prompt, text=b"", user_text=b""),
        measure(prompt, question.tenant),
        None if spans is None else {key: span for key, span in spans.items() if key in wanted},
        sum(map(body.count, (b",", b"{", b"["))) <= _MOST_JUDGED_VALUES,
    )
