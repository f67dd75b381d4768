"""Requests with documents, and a reading of what the model would see of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.context.blocks import DEFAULT_FORMATS, Format
from fairlead.context.draft import Settings
from fairlead.context.reuse import ContextReuse

ALL = Settings(order=True, dedup=True, formats=DEFAULT_FORMATS)
ORDER = Settings(order=True, dedup=False, formats=DEFAULT_FORMATS)
DEDUP = Settings(order=False, dedup=True, formats=DEFAULT_FORMATS)

Message = dict[str, Any]


def still() -> float:
    return 0.0


def new_reuse(clock_s: Callable[[], float] = still) -> ContextReuse:
    return ContextReuse(clock_s=clock_s)


def settings(*formats: Format) -> Settings:
    return Settings(order=True, dedup=True, formats=formats)


def body_of(name: object) -> str:
    """A document's text, long enough to be worth a reference, in which nothing repeats."""
    return " ".join(f"{name}-{word}" for word in range(60))


def document(name: object) -> str:
    return f'<document id="{name}" lang="en">\n{body_of(name)}\n</document>'


def ask(names: Sequence[object], question: str = "Why?") -> Message:
    documents = "\n".join(map(document, names))
    return {"role": "user", "content": f"Use these.\n<documents>\n{documents}\n</documents>\n\nQuestion: {question}"}


def chat(*messages: Message, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **more}).encode()


def texts(body: bytes) -> list[str]:
    return [message["content"] for message in json.loads(body)["messages"]]


def order_of(text: str) -> list[str]:
    return re.findall(r'<document id="([^"]+)"', text)


ANSWER: Message = {"role": "assistant", "content": "Because."}
