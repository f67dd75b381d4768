"""A judge for the lab's questions, as a cascade of the sidecar uses it: `function: lab.exact:score`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab import words


def score(request: Mapping[str, Any], answer: str) -> bool:
    """Whether the answer is the value that the prompt gives the key it asks for."""
    prompt = str(request["messages"][-1]["content"])
    language = next(each for each in words.LANGUAGES if prompt.startswith(words.OPENING[each]))
    inside, _, asked = prompt.removeprefix(words.OPENING[language]).partition(words.CLOSE)
    values = dict(pair.split(words.MIDDLE) for pair in inside.split(words.NEXT))
    before, after = words.QUESTION[language]
    return bool(answer.strip() == values[asked.removeprefix(before).removesuffix(after)])
