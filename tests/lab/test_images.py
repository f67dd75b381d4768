"""Images that clients send, name, and give the address of: what a real vLLM server does with them, and what behind
Fairlead.

Each image here has a seed of its own, and each test its own images: none finds in a cache what another left there.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from lab.engines import LabEngines
from lab.pool import known, running_front
from lab.servers import A_CONNECTION_EACH, BLOCK_TOKENS, Extra
from tests.lab.vision import IMAGE_TOKENS, data_url, png, write_vision_model

WITHIN_S = 120.0
NAME = "heron"  # which the model is served under: `lab.pool.known` has speeds and a capability for it
QUESTION = 'Key: "gasa'
ALIKE = 0.02  # log-probabilities of one token after the same prompt: what is cached was computed in other batches

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(840), pytest.mark.slow]

Part = dict[str, Any]  # of a message's content


class Answer(NamedTuple):
    """`log_probabilities` are of the tokens that it chose, and differ from image to image."""

    log_probabilities: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int

    def is_of_same_image(self, other: Answer) -> bool:
        return self.log_probabilities == pytest.approx(other.log_probabilities, abs=ALIKE)


@dataclass(frozen=True)
class Asked:
    """Whom requests go to."""

    client: httpx.AsyncClient

    async def post(self, image: Part, **more: Any) -> httpx.Response:
        message = {"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}
        body = {"model": NAME, "messages": [message], "max_tokens": 3, "temperature": 0, "logprobs": True}
        return await self.client.post("/v1/chat/completions", json=body | more)

    async def ask(self, image: Part, **more: Any) -> Answer:
        answer = (await self.post(image, **more)).raise_for_status().json()
        chosen = answer["choices"][0]["logprobs"]["content"]
        usage = answer["usage"]
        cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(tuple(token["logprob"] for token in chosen), usage["prompt_tokens"], cached_tokens)


@dataclass(frozen=True)
class Lab:
    engine: Asked  # with nothing before it
    fairlead: Asked  # before the same engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab() -> AsyncIterator[Lab]:
    gateway = {"processor_timeout_ms": 60_000, "allowed_media_domains": ["localhost"]}
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-") as name:  # short: the path of a Unix socket is
        folder = Path(name)
        model = write_vision_model(folder / "sees")
        # The tests' own site is on this machine, and no proxy can reach it.
        extra = Extra(("--model", str(model)), {"no_proxy": "127.0.0.1,localhost"})
        async with (
            LabEngines((NAME,), folder, lambda _: extra) as engines,
            running_front(engines, known(folder), "fairlead", folder, gateway=gateway) as front,
            _client(f"http://{engines.running[0].address}") as alone,
            _client(front.url) as gateway_client,
        ):
            yield Lab(Asked(alone), Asked(gateway_client))


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=WITHIN_S, limits=A_CONNECTION_EACH)


class Site:
    """A server that has one image, for whoever asks, and says what it was asked for."""

    def __init__(self, image: bytes) -> None:
        self.asked: list[str] = []
        self._image = image
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path == "/moved":
            raise web.HTTPFound("/secret")
        return web.Response(body=self._image, content_type="image/png")


def shown(seed: int, **more: Any) -> Part:
    """An image, in the request."""
    return linked(data_url(png(seed)), **more)


def linked(url: str, **more: Any) -> Part:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def named(name: str) -> Part:
    """No image: what somebody else may have sent under this name."""
    return {"type": "image_url", "image_url": None, "uuid": name}


async def test_an_image_in_a_request_is_answered(lab: Lab) -> None:
    answer = await lab.fairlead.ask(shown(1))
    assert answer.prompt_tokens > IMAGE_TOKENS


async def test_the_answer_depends_on_the_image(lab: Lab) -> None:
    assert not (await lab.fairlead.ask(shown(2))).is_of_same_image(await lab.fairlead.ask(shown(3)))


async def test_the_kv_of_an_image_is_found_again_by_its_bytes(lab: Lab) -> None:
    first, again = await lab.fairlead.ask(shown(4)), await lab.fairlead.ask(shown(4, uuid="another's"))
    assert (first.cached_tokens, again.cached_tokens) == (0, again.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS)


async def test_vllm_gives_an_image_to_a_client_that_knows_only_its_name_whatever_the_salt(lab: Lab) -> None:
    sent = await lab.engine.ask(shown(5, uuid="passport"), cache_salt="its owner's")
    had = await lab.engine.ask(named("passport"), cache_salt="another's")
    assert had.is_of_same_image(sent)
    assert had.cached_tokens == 0


@pytest.mark.parametrize(
    "without_image",
    [
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": ""},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": None}},
        {"image_url": None},
    ],
)
async def test_behind_fairlead_no_name_leads_to_an_image(lab: Lab, without_image: Part) -> None:
    sent = await lab.engine.ask(shown(6, uuid="invoice"))
    assert (await lab.engine.ask(without_image | {"uuid": "invoice"})).is_of_same_image(sent)
    assert (await lab.fairlead.post(without_image | {"uuid": "invoice"})).is_error


async def test_vllm_takes_another_image_under_a_known_name_for_the_first_and_behind_fairlead_for_itself(
    lab: Lab,
) -> None:
    first = await lab.engine.ask(shown(8, uuid="logo"))
    assert (await lab.engine.ask(shown(9, uuid="logo"))).is_of_same_image(first)

    behind = await lab.fairlead.ask(shown(9, uuid="logo"))
    assert not behind.is_of_same_image(first)
    assert behind.is_of_same_image(await lab.engine.ask(shown(9)))


async def test_vllm_fetches_an_image_from_an_address_that_only_it_may_reach_and_goes_where_that_sends_it(
    lab: Lab,
) -> None:
    site = Site(png(10))
    async with site.server:
        fetched = await lab.engine.ask(linked(site.url("/moved")))
    assert site.asked == ["/moved", "/secret"]
    assert fetched.is_of_same_image(await lab.engine.ask(shown(10)))


async def test_behind_fairlead_it_asks_no_address_that_the_operator_has_not_allowed(lab: Lab) -> None:
    site = Site(png(11))
    async with site.server:
        refused = await lab.fairlead.post(linked(site.url("/secret")))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "media_source_not_allowed")
        assert site.asked == []

        allowed = await lab.fairlead.ask(linked(site.url("/secret").replace("127.0.0.1", "localhost")))
    assert site.asked == ["/secret"]
    assert allowed.is_of_same_image(await lab.engine.ask(shown(11)))
