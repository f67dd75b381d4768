"""What changes in a JSON body before an engine sees it, as replacements of the values at its top level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fairlead.api.spans import Span, spliced


def with_values(body: bytes, spans: Mapping[str, Span], values: Mapping[str, bytes]) -> bytes:
    """`body`, a JSON object with its values at `spans`, with these JSON texts as values of its keys, old or new."""
    new = b",".join([b'"%b":%b' % (key.encode(), value) for key, value in values.items() if key not in spans])
    changes = [(*spans[key], value) for key, value in values.items() if key in spans]
    if new and (change := addition(new, body, len(body))) is not None:
        changes.append(change)
    return spliced(body, changes)


def addition(new: bytes, ending: bytes, size_bytes: int) -> tuple[int, int, bytes] | None:
    """The change that adds `new`, keys with their values, to a JSON object of `size_bytes` of which `ending` is the
    last; None where the object's own end cannot be told from them.
    """
    end = ending.rfind(b"}")
    before = ending[: max(end, 0)].rstrip()
    if not before:
        return None
    at = size_bytes - len(ending) + end
    return at, at, new if before.endswith(b"{") else b"," + new


def edits(
    spans: Mapping[str, Span],
    model: str | None,
    reserved: Iterable[str] = (),
    media_names: Sequence[Span] = (),
    cache_salt: bytes = b"",
    *,
    one_piece: bool = False,
) -> list[tuple[int, int, bytes]]:
    """The model's name, what only a gateway may set, the salt, and streaming: what of them stands in the body at
    `spans`; and the names of media.

    `one_piece` asks for the answer without a stream; engines refuse `stream_options` then.
    """
    values = dict.fromkeys(reserved, b"null")
    if model is not None:
        values["model"] = msgspec.json.encode(model)
    if cache_salt:
        values["cache_salt"] = cache_salt
    if one_piece:
        values |= {"stream": b"false", "stream_options": b"null"}
    found = [(*spans[key], value) for key, value in values.items() if key in spans]
    apart = [(at, to) for at, to in media_names if not any(start <= at < end for start, end, _ in found)]
    return [*found, *[(at, to, b"null") for at, to in apart]]
