"""What an engine says of one token is read as it is, and an absurd count makes it foreign."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.usage import MOST_TOKENS
from fairlead.engines.one_token_answer import OneTokenAnswer


def answer(**usage: object) -> bytes:
    return msgspec.json.encode({"choices": [{"finish_reason": "length"}], "usage": usage})


def test_its_counts_are_read() -> None:
    said = msgspec.json.decode(answer(prompt_tokens=9, prompt_tokens_details={"cached_tokens": 4}), type=OneTokenAnswer)
    assert (said.is_of_one_token, said.usage.prompt_tokens, said.cached_tokens) == (True, 9, 4)


@pytest.mark.parametrize("count", [-1, MOST_TOKENS + 1, 10**400])
def test_an_absurd_count_is_foreign(count: int) -> None:
    for usage in ({"prompt_tokens": count}, {"prompt_tokens_details": {"cached_tokens": count}}):
        body = b'{"choices":[{"finish_reason":"length"}],"usage":' + repr(usage).replace("'", '"').encode() + b"}"
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=OneTokenAnswer)
