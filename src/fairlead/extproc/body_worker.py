"""The process that reads long bodies: questions come on standard input, answers go to standard output.

A frame is two lengths of eight bytes and the two parts of those lengths; an answer has no second part. The process
ends when its input does, so it never outlives the sidecar, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from struct import Struct
from typing import Final

import msgspec

from fairlead.api.prompt import Malformed
from fairlead.extproc.reading import Question, Read, read_whole

LENGTHS: Final = Struct("<QQ")
_LONG_BYTES: Final = 1 << 20
_NICENESS: Final = 5  # on a machine without a free core the sidecar's own work comes first


class Answer(msgspec.Struct, frozen=True):
    """Exactly one of the two fields is set."""

    read: Read | None = None
    malformed: Malformed | None = None


def main() -> None:
    # A signal to the whole group is for the sidecar, which still has requests to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    trim = _trim()
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := questions.read(LENGTHS.size)) == LENGTHS.size:
        question_bytes, body_bytes = LENGTHS.unpack(head)
        question = msgspec.msgpack.decode(questions.read(question_bytes), type=Question)
        answer = msgspec.msgpack.encode(_answer(questions.read(body_bytes), question))
        answers.write(LENGTHS.pack(len(answer), 0) + answer)
        answers.flush()
        if body_bytes > _LONG_BYTES:
            trim(0)


def _trim() -> Callable[[int], object]:
    """glibc's `malloc_trim`: without it a process keeps some 80 MiB after the longest body that it has read."""
    trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    return trim


def _answer(body: bytes, question: Question) -> Answer:
    read = read_whole(body, question)
    return Answer(malformed=read) if isinstance(read, Malformed) else Answer(read)


if __name__ == "__main__":
    main()
