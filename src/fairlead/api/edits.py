"""What changes in a JSON body before an engine sees it, as replacements of the values at its top level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fairlead.api.spans import Span


def edits(
    spans: Mapping[str, Span], model: str | None, reserved: Iterable[str] = (), *, one_piece: bool = False
) -> list[tuple[int, int, bytes]]:
    """The model's name, what only a gateway may set, and streaming: what of them stands in the body at `spans`.

    `one_piece` asks for the answer without a stream; engines refuse `stream_options` then.
    """
    values = dict.fromkeys(reserved, b"null")
    if model is not None:
        values["model"] = msgspec.json.encode(model)
    if one_piece:
        values |= {"stream": b"false", "stream_options": b"null"}
    return [(*spans[key], value) for key, value in values.items() if key in spans]
