"""Replace one top-level value of a JSON object in its bytes: nothing else of the body changes.

Re-serialising would alter key order, spacing, big integers and escapes of a body that is the client's.
"""

from __future__ import annotations

from fairlead.core.spans import replace_at


def replace_top_level(body: bytes, key: str, value: bytes) -> bytes | None:
    """`body`, a valid JSON object that has `key`, with that key's value replaced by the JSON text `value`.

    None if a top-level key is written twice: which of them an engine would believe is not ours to guess.
    """
    return replace_at(body, {(key,): value})
