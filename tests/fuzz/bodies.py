"""Hostile request bodies: the benchmark's families at any size, spoiled JSON, forms, and bytes."""

from __future__ import annotations

import json
from random import Random

from benchmarks.hostile_bodies import FAMILIES
from tests.fuzz.wire import mutated

LONGEST_BYTES = (32 << 20) - 20_000
_SIZES = (10, 300, 3000, 3000, 3000, 30_000, 30_000, 100_000, 250_000, 270_000, 1 << 20)
_LONG_ONE_IN = 150
_SEEDS = tuple(
    json.dumps(each).encode()
    for each in (
        {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "stream": True},
        {"model": "small", "prompt": ["a", "b"], "metadata": {"attempted_models": ["small"], "question_id": "q"}},
        {"model": "docs", "messages": [{"role": "user", "content": "<doc>one</doc><doc>two</doc>"}] * 3},
        {"model": "answer", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "n": 2},
        {"model": "small", "input": [[1, 2, 3]], "kv_transfer_params": {"do_remote_prefill": True}},
        {"model": "small", "messages": [{"role": "user", "content": ["hello", {"image_url": {"url": "http://h/x"}}]}]},
        {"model": "auto", "messages": [{"content": [{"image_url": "data:,", "uuid": "x"}]}], "cache_salt": "hello"},
        {"model": "small", "input": [{"output": [{"image_url": "file:///x"}, "hello"]}], "image_data": [["/9j/", "x"]]},
        {"model": "nobody", "query": "q", "documents": ["d"] * 20, "bootstrap_host": "x", "bootstrap_room": 1},
        {"text": "x", "input_ids": [1, 2], "sampling_params": {"max_new_tokens": 5}, "rid": "x", "lora_path": None},
    )
)  # fmt: skip


def hostile(random: Random) -> tuple[str, bytes]:
    """What it is, and the body."""
    kind = random.random()
    if kind < 0.35:
        return "a request", unique(random, random.choice(_SEEDS))
    if kind < 0.6:
        return "spoiled JSON", mutated(random, unique(random, random.choice(_SEEDS)))
    if kind < 0.63:
        return "bytes", random.randbytes(random.choice((0, 1, 100, 5000)))
    if kind < 0.66:
        return "an open form", b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n' + b"--b\r\n" * 300
    name = random.choice(tuple(FAMILIES))
    return of_family(random, name, random.choice(_SIZES))


def of_family(random: Random, name: str, size: int) -> tuple[str, bytes]:
    if "450 deep" in name:
        size = max(size, 8000)
    if "deep" in name:
        size = max(size, 3000)
    body = FAMILIES[name](size)
    what = f"{name}, {len(body)} bytes"
    return (what + ", spoiled", mutated(random, body)) if random.random() < 0.2 else (what, body)


def unique(random: Random, body: bytes) -> bytes:
    """With a prompt that no other has, so that tables of prompts fill."""
    return body.replace(b"hello", b"%x " % random.getrandbits(64) * random.choice((1, 30, 3000)))


def long_one(random: Random) -> tuple[str, bytes] | None:
    """Now and then one of up to the limit."""
    if random.randrange(_LONG_ONE_IN):
        return None
    return of_family(random, random.choice(tuple(FAMILIES)), random.choice((4 << 20, 16 << 20, LONGEST_BYTES)))
