"""Parts of texts that were read before, and where texts are cut."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.context.dedup import LEAST_IN_PARTS_BYTES, Seen, chunks, without_repeated_parts
from fairlead.context.escaped import Piece

LINES = [" ".join(f"{number}{word}" for word in "abcdefghijklmnop") for number in range(30)]
TEXTS = st.lists(st.integers(0, len(LINES) - 1), min_size=1, max_size=120).map(
    lambda numbers: "\n".join(LINES[number] for number in numbers).encode()
)
ANOTHER_TEXT = 1 << 32


def never() -> bool:
    return False


def repeated(before: bytes, text: bytes) -> list[Piece]:
    """The pieces of `text`, read after `before`."""
    seen = Seen()
    without_repeated_parts(before, 0, len(before), seen, seen.parts, 0, never)
    seen.read(lambda: before, len(before))
    pieces = without_repeated_parts(text, 0, len(text), seen, {}, ANOTHER_TEXT, never)
    assert pieces is not None
    return pieces


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_each_dropped_part_stands_in_the_earlier_text_as_one(before: bytes, text: bytes) -> None:
    cursor = 0
    for piece in repeated(before, text):
        if isinstance(piece, bytes):
            assert piece.startswith(b"[Please refer to the passage from")
        else:
            assert text[cursor : piece[0]] in before
            cursor = piece[1]
    assert cursor == len(text)


@settings(deadline=None)
@given(TEXTS)
def test_chunks_are_the_whole_span_in_order(text: bytes) -> None:
    spans = list(chunks(text, 3, len(text)))
    assert [start for start, _ in spans] == [3, *[end for _, end in spans[:-1]]]
    assert spans[-1][1] == len(text)


def test_a_changed_line_moves_no_cut_far_from_it() -> None:
    rng = Random(0)
    lines = [" ".join(str(rng.random()) for _ in range(4)) for _ in range(200)]
    before = "\n".join(lines).encode()
    after = "\n".join([*lines[:100], "changed", *lines[100:]]).encode()
    dropped = len(after) - sum(piece[1] - piece[0] for piece in repeated(before, after) if isinstance(piece, tuple))
    assert dropped > 0.8 * len(before)


def test_in_a_short_text_no_parts_are_looked_for() -> None:
    text = ("a line of a text\n" * 1000).encode()[: LEAST_IN_PARTS_BYTES - 1]
    assert repeated(text, text) == [(0, len(text))]


def test_parts_of_two_places_are_two_references() -> None:
    """One reference names one passage, so it must not join what was apart."""
    rng = Random(1)
    first, second = ("\n".join(str(rng.random()) for _ in range(150)) + "\n" for _ in range(2))
    before, text = (first + "In between.\n" * 60 + second).encode(), (first + second).encode()
    references = [piece for piece in repeated(before, text) if isinstance(piece, bytes)]
    assert len(references) >= 2
