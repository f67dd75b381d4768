"""A route of type cascade in the configuration."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from fairlead.cascade.load_judges import load_judges
from fairlead.config import ConfigError, parse
from fairlead.errors import UserError

POOL = "pool: {endpoints: [{address: 'a:1', model: small}, {address: 'a:2', model: large}]}\nroutes:\n"
JUDGE = "judge: {url: 'http://j:1', model: grader}"


def test_a_cascade_is_read_alongside_plain_routes() -> None:
    config = parse(POOL + f"  auto: [small, large]\n  answer: {{cascade: [small, large], thresholds: [70], {JUDGE}}}\n")
    assert config.models_of_routes() == {"auto": ("small", "large"), "answer": ("small", "large")}
    route = config.cascades()["answer"].route("answer")
    assert (route.models, route.thresholds, route.buffer_streams) == (("small", "large"), (70.0,), True)


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (f"{{cascade: [small, large], thresholds: [70, 80], {JUDGE}}}",
         "f.yaml:3: routes.answer: 2 models need 1 thresholds, there are 2"),
        (f"{{cascade: [small, large], thresholds: [170], {JUDGE}}}", "answer.thresholds[0]: must be 100 or less"),
        (f"{{cascade: [small, huge], thresholds: [70], {JUDGE}}}",
         'f.yaml:3: routes.answer.cascade[1]: no endpoint serves "huge"'),
        (f"{{cascade: [small, small], thresholds: [70], {JUDGE}}}", "a model is in the cascade twice"),
        (f"{{cascade: [small], thresholds: [], {JUDGE}}}", "routes.answer.cascade: "),
        ("{cascade: [small, large], thresholds: [70]}", "routes.answer.judge: is required"),
        ("{cascade: [small, large], thresholds: [70], judge: {}}", "write either url and model, or function"),
        ("{cascade: [small, large], thresholds: [70], judge: {url: 'http://j:1'}}", "url needs a model"),
        (f"{{cascade: [small, large], thresholds: [70], {JUDGE}, treshold: 1}}", "routes.answer.treshold: unknown key"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_cascade_is_reported_with_its_path(route: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(POOL + f"  answer: {route}\n", "f.yaml")
    assert said in str(caught.value)


async def test_a_judge_may_be_a_function_next_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "my_judges.py").write_text("def exact(request, answer):\n    return answer == 'yes'\n")
    config = parse(POOL + "  a: {cascade: [small, large], thresholds: [1], judge: {function: 'my_judges:exact'}}\n")
    async with aiohttp.ClientSession() as session:
        judges = load_judges(config.cascades(), tmp_path, session)
        assert await judges["a"].score({}, "yes") == 100
        config = parse(POOL + "  a: {cascade: [small, large], thresholds: [1], judge: {function: 'my_judges:none'}}\n")
        with pytest.raises(UserError, match=r"routes\.a\.judge\.function: the judge .* cannot be loaded"):
            load_judges(config.cascades(), tmp_path, session)
