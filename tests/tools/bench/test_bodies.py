"""Bodies of the benchmark: of the wanted size, real in kind, the same for the same seed."""

from __future__ import annotations

import json

import pytest

from fairlead.api.prompt import Prompt, parse
from fairlead.core.facts import make_facts
from fairlead.tools.bench.bodies import KINDS, Kind, chat_body

LANGUAGE_OF = {"english": "en", "japanese": "ja", "japanese-escaped": "ja", "agent": "en"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_kib", [1, 64, 256])
def test_a_body_is_nearly_as_large_as_asked_and_never_larger(kind: Kind, size_kib: int) -> None:
    body = chat_body(kind, size_kib * 1024, "m", seed=0)

    assert 0.7 * size_kib * 1024 <= len(body) <= size_kib * 1024


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_is_read_as_its_kind_says(kind: Kind) -> None:
    prompt = parse(chat_body(kind, 64 * 1024, "m", seed=0), "/v1/chat/completions")

    assert isinstance(prompt, Prompt)
    facts = make_facts(prompt, "m")
    assert (facts.model, facts.language) == ("m", LANGUAGE_OF[kind])


def test_only_the_escaped_kind_is_ascii_and_says_the_same_kind_of_text() -> None:
    escaped, plain = (chat_body(kind, 8192, "m", seed=0) for kind in ("japanese-escaped", "japanese"))

    assert escaped.isascii()
    assert b"\\u" in escaped
    assert not plain.isascii()


def test_an_agent_body_has_tools_calls_and_results() -> None:
    document = json.loads(chat_body("agent", 64 * 1024, "m", seed=0))

    assert len(document["tools"]) > 10
    assert {message["role"] for message in document["messages"]} == {"system", "user", "assistant", "tool"}


def test_the_seed_decides_the_text() -> None:
    first, again, other = (chat_body("english", 4096, "m", seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other
