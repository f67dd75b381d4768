"""Requests whose images and clips are not in their body, in every form that an engine takes."""

from __future__ import annotations

from typing import Any

URL = "http://evil.example/x"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}

# Of a message.
CONTENTS: list[Any] = [
    [IMAGE],
    [{"type": "image_url", "image_url": URL}],
    [{"image_url": URL}],
    [{"type": "input_image", "image_url": URL}],
    [{"type": "video_url", "video_url": {"url": URL}}],
    [{"type": "audio_url", "audio_url": {"url": URL}}],
    [{"type": "image", "source": {"type": "url", "url": URL}}],
    [{"type": "image", "image": URL}],
    [{"type": "video", "video": [URL, "data:,"]}],
    [{"type": "text", "text": "x"}, IMAGE],
    ["a text among parts", IMAGE],
    [{"type": "text", "text": "x"}, "a text among parts", IMAGE],
    ['a \\" text', "x", IMAGE, "y"],
    [None, IMAGE],
    [1, IMAGE],
    [[IMAGE]],
    [{"type": "tool_result", "content": [IMAGE]}],
    [{"type": "tool_result", "content": ["text", IMAGE]}],
    [{"type": "tool_result", "content": [{"type": "x", "content": [IMAGE]}]}],
]

# By path.
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"system": [IMAGE]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]}),
    ("/v1/responses", {"input": [{"type": "function_call_output", "output": [IMAGE]}]}),
    ("/v1/responses", {"input": [{"type": "computer_call_output", "output": {"image_url": URL}}]}),
    ("/v1/embeddings", {"input": [{"text": "x", "image": URL}]}),
    ("/v1/embeddings", {"input": [{"video": URL}]}),
    ("/generate", {"text": "x", "image_data": URL}),
    ("/generate", {"text": "x", "video_data": [[URL, "/9j/4"]]}),
    ("/generate", {"text": "x", "audio_data": [{"url": URL}]}),
    ("/encode", {"text": "x", "image_data": URL}),
    ("/inference/v1/generate", {"token_ids": [1], "content_parts": [IMAGE]}),
    ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": [IMAGE]}]]}),
    ("/tokenize", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("/pooling", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("/rerank", {"query": "x", "documents": [{"content": [IMAGE]}]}),
    ("/v1/rerank", {"query": [IMAGE], "documents": [[IMAGE]]}),
    ("/v1/score", {"data_1": {"content": [IMAGE]}, "data_2": "x"}),
    ("/invocations", {"query": {"content": [IMAGE]}, "documents": ["x"]}),
    ("/invocations", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("/v1/messages/count_tokens", {"system": [IMAGE], "messages": []}),
    ("/v1/score", {"items": [[IMAGE]], "query": "x"}),
    ("/upload/of/the/operator", {"media": {"image": [URL]}, "anything": "x"}),
    ("/v2/embed", {"images": [URL]}),
    ("/v2/embed", {"inputs": [{"content": [IMAGE]}]}),
    ("/v1/images/edits", {"image": URL, "prompt": "x"}),
]

_TOOL = {"properties": {"image_url": {"type": "string", "default": URL, "examples": [URL]}, "url": {"default": URL}}}
FETCHED_BY_NOBODY: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"{URL} is an image_url"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": URL}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": URL}, "image"]}]},
    {"messages": [], "tools": [{"type": "function", "function": {"name": "x", "parameters": _TOOL}}]},
    {"messages": [], "metadata": {"image": URL}},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"image_url":"http://h"}'}}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"image_url": URL}}]}]},
    {"messages": [{"role": "user", "content": ["x", {"type": "tool_use", "input": {"image_url": URL}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "search_result", "source": URL, "content": []}]}]},
    {"messages": [{"role": "user", "content": ["x", {"type": "search_result", "source": URL}]}]},
    {"messages": [{"role": "user", "content": [{"type": "output_text", "annotations": [{"url": URL}]}]}]},
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "JVBERi0"}}]}]},
    {"messages": [{"role": "user", "content": [{"source": {"type": "text", "data": URL}}]}]},
    {"messages": [{"role": "user", "content": [{"input_audio": {"data": "AAAA", "format": "wav"}}]}]},
    {"messages": [], "documents": [{"title": "an image", "text": URL, "url": URL}]},
]

# Where `good.example` is allowed.
NOT_ALLOWED = [
    "http://evil.example/", "http://sub.good.example/", "http://good.example.evil/", "http://good@evil.example/",
    "http://good.example@evil.example/", "http://good.example:80@evil.example/", "http://good.example\\@evil.example/",
    "http://good.example\t.evil.example/", "http://good.example%2eevil.example/", "http:///good.example/", "http://",
    "http://good.example:123456/", "http://good.example:x/", "http://127.0.0.1:30000/flush_cache", "http://[::1]/",
    "file:///good.example/x", "//good.example/x", "ftp://good.example/x", "dev/zero", "../x.png", "good.example",
]  # fmt: skip
