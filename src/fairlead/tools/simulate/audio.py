"""Speech to text of a simulated engine, as vLLM answers `/v1/audio/transcriptions` and `/v1/audio/translations`.

Nothing is heard: the text is filler, its length goes with that of the file, and so does the time in the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from email import message_from_bytes
from typing import Any, Final
from uuid import uuid4

import msgspec
from aiohttp import web

from fairlead.tools.simulate.asks import AskError

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
_BYTES_A_SECOND: Final = 32_000  # 16 kHz, 16 bits, one channel: what such models hear
_TOKENS_A_SECOND: Final = 50  # of audio, as Whisper's encoder makes them
_WORDS_A_SECOND: Final = 2
_MOST_SECONDS: Final = 30 * 60
_FORMATS: Final = ("json", "text")  # of vLLM's, those without timestamps


@dataclass(frozen=True, slots=True)
class Speech:
    """What a form asks for."""

    model: str | None
    seconds: int
    response_format: str
    stream: bool

    @property
    def prompt(self) -> list[int]:
        """Ids that stand for the audio: the same file length gives the same ones."""
        return list(range(1, self.seconds * _TOKENS_A_SECOND + 1))

    @property
    def words(self) -> int:
        return self.seconds * _WORDS_A_SECOND


async def read_speech(request: web.Request) -> Speech:
    """Raises AskError."""
    if not request.content_type.startswith("multipart/"):
        raise AskError("The body must be a multipart form with the fields file and model")
    head = b"content-type: %b\r\n\r\n" % request.headers["content-type"].encode()
    form = message_from_bytes(head + await request.read())
    fields: dict[str, str] = {}
    size = 0
    for part in form.walk():
        name, data = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(data, bytes):
            continue
        if name == "file":
            size = len(data)
        else:
            fields[name] = data.decode(errors="replace")
    if not size:
        raise AskError("file: Field required", param="file")
    response_format = fields.get("response_format", "json")
    if response_format not in _FORMATS:
        raise AskError(f"response_format must be one of {', '.join(_FORMATS)} here", param="response_format")
    seconds = min(_MOST_SECONDS, max(1, -(-size // _BYTES_A_SECOND)))
    return Speech(fields.get("model"), seconds, response_format, fields.get("stream", "").lower() in ("true", "1"))


def whole(path: str, speech: Speech, text: str) -> web.Response:
    if speech.response_format == "text":
        return web.Response(text=text)
    answer: dict[str, Any] = {"text": text}
    if path == TRANSCRIPTIONS:
        answer["usage"] = {"type": "duration", "seconds": speech.seconds}
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def chunks(path: str, model: str, tokens: tuple[str, ...]) -> list[bytes]:
    """The events of a stream, a token each, and the mark at its end."""
    kind = "transcription" if path == TRANSCRIPTIONS else "translation"
    base: dict[str, Any] = {
        "id": f"{'trsc' if path == TRANSCRIPTIONS else 'trsl'}-{uuid4().hex}",
        "object": f"{kind}.chunk",
        "created": int(time.time()),
        "model": model,
    }
    events = []
    for number, token in enumerate(tokens, start=1):
        reason = "stop" if number == len(tokens) else None
        choice = {"delta": {"content": token}, "finish_reason": reason, "stop_reason": None}
        events.append(b"data: " + msgspec.json.encode(base | {"choices": [choice]}) + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]
