"""Request bodies to measure with: real prose in the forms that clients send, of a wanted size, from a seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from random import Random
from typing import Any, Final, Literal

Kind = Literal["english", "japanese", "japanese-escaped", "agent"]
KINDS: Final[tuple[Kind, ...]] = ("english", "japanese", "japanese-escaped", "agent")

_MESSAGE_CHARACTERS: Final = 2000
_AGENT_MESSAGE_CHARACTERS: Final = 300  # agents send many short messages and tool results
_TOOLS_SHARE: Final = 3  # a third of an agent's body describes its tools
_SYSTEM: Final = {"role": "system", "content": "Answer in one paragraph."}


def chat_body(kind: Kind, size_bytes: int, model: str, seed: int) -> bytes:
    """A body for /v1/chat/completions of at most `size_bytes`, and of nearly that."""
    rng = Random(f"{kind} {size_bytes} {seed}")
    escaped = kind == "japanese-escaped"
    document: dict[str, Any] = {"model": model, "max_tokens": 64, "temperature": 0.7, "stream": False}
    if kind == "agent":
        document["tools"] = _filled(_tools(rng), size_bytes // _TOOLS_SHARE, escaped)
    document["messages"] = []
    text = _text("ja" if kind.startswith("japanese") else "en", rng)
    room = size_bytes - len(_encoded(document, escaped))
    messages = _agent_messages(text) if kind == "agent" else _turns(text, min(_MESSAGE_CHARACTERS, size_bytes // 24))
    document["messages"] = _filled(messages, room, escaped)
    return _encoded(document, escaped)


def _encoded(value: Any, escaped: bool) -> bytes:
    return json.dumps(value, ensure_ascii=escaped, separators=(", ", ": ")).encode()


def _filled(parts: Iterator[Any], room_bytes: int, escaped: bool) -> list[Any]:
    taken: list[Any] = []
    for part in parts:
        room_bytes -= len(_encoded(part, escaped)) + 2
        if room_bytes < 0:
            return taken
        taken.append(part)
    return taken


@cache
def _prose(language: str) -> str:
    lines = (
        (resources.files("fairlead.tools.demo") / "texts" / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    )
    return " ".join(line for line in lines if line)


def _text(language: str, rng: Random) -> Iterator[str]:
    """Prose from a random place on, over and over, character by character."""
    prose = _prose(language)
    start = rng.randrange(len(prose))
    return itertools.cycle(prose[start:] + prose[:start])


def _turns(text: Iterator[str], characters: int) -> Iterator[dict[str, Any]]:
    yield _SYSTEM
    for role in itertools.cycle(("user", "assistant")):
        yield {"role": role, "content": "".join(itertools.islice(text, characters))}


def _agent_messages(text: Iterator[str]) -> Iterator[dict[str, Any]]:
    yield _SYSTEM
    for turn in itertools.count():
        words = "".join(itertools.islice(text, _AGENT_MESSAGE_CHARACTERS))
        call = {"name": f"tool_{turn % 7}", "arguments": json.dumps({"query": words[:80], "limit": 10})}
        yield {"role": "user", "content": [{"type": "text", "text": words}]}
        yield {"role": "assistant", "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}]}
        yield {"role": "tool", "tool_call_id": f"call_{turn}", "content": words[::-1]}


def _tools(rng: Random) -> Iterator[dict[str, Any]]:
    text = _text("en", rng)
    for number in itertools.count():
        properties = {
            name: {"type": "string", "description": "".join(itertools.islice(text, 80))}
            for name in ("query", "path", "limit", "reason")
        }
        schema = {"type": "object", "properties": properties, "required": ["query"]}
        about = "".join(itertools.islice(text, 200))
        yield {"type": "function", "function": {"name": f"tool_{number}", "description": about, "parameters": schema}}
