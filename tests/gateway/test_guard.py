"""What Envoy alone does for a request that the sidecar has not read: levers blank, unreadable refused, model found."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import h2.config
import h2.connection
import h2.events
import pytest
import pytest_asyncio

from fairlead.api.cache_salt import salt_of
from fairlead.api.media_sources import first_refused
from fairlead.api.prompt import Malformed, parse
from fairlead.api.reserved import RESERVED_KEYS
from fairlead.config import Config
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import free_ports
from tests.api.media_bodies import BODIES, CONTENTS, FETCHED_BY_NOBODY, NOT_ALLOWED, URL
from tests.gateway.world import Engine, Received, body_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
ANYWHERE = {"kv_transfer_params", "ec_transfer_params", "mm_hashes"}
AT_THE_TOP = RESERVED_KEYS - ANYWHERE


@dataclass
class Blind:
    """Envoys without their sidecar, before two engines of `small` and one of `large`; `trusting` trusts its clients."""

    address: str
    trusting: str
    separating: str  # tenants' caches
    engines: list[Engine]
    client: aiohttp.ClientSession

    async def send(
        self, body: Any, *, path: str = CHAT, address: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, Received | None]:
        """Status and body of the answer, and what reached an engine."""
        for engine in self.engines:
            engine.received.clear()
        url = f"http://{address or self.address}{path}"
        async with self.client.post(url, data=body, headers=headers) as answer:
            text = await answer.read()
        reached = [request for engine in self.engines for request in engine.received]
        assert len(reached) <= 1
        return answer.status, text, reached[0] if reached else None


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def blind() -> AsyncIterator[Blind]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [Engine("small"), Engine("small"), Engine("large")]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        addresses = []
        for trusts, tenants in ((False, {}), (True, {}), (False, {"header": "X-Tenant", "vouched_by": "the test"})):
            listen, admin, nobody = (f"127.0.0.1:{port}" for port in free_ports(3))
            config = Config.model_validate(
                {
                    "listen": {"grpc": nobody},
                    "tenants": tenants,
                    "gateway": {
                        "listen": listen,
                        "endpoints": "static",
                        "trust_clients": trusts,
                        "allowed_media_domains": ["good.example"],
                        "paths": ["/v1/files", "/upload/*"],
                    },
                    "pool": {"endpoints": [{"address": each.address, "model": each.name} for each in engines]},
                    "routes": {"auto": ["large", "small"], "ünï/co de": ["small"]},
                }
            )
            await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
            addresses.append(listen)
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        address, trusting, separating = addresses
        yield Blind(address, trusting, separating, engines, client)


def levers_in(value: Any, *, top: bool = True) -> set[str]:
    """Parameters that would do something in `value`, as an engine's JSON parser reads it."""
    if isinstance(value, list):
        return {name for each in value for name in levers_in(each, top=False)}
    if not isinstance(value, dict):
        return set()
    names = ANYWHERE | AT_THE_TOP if top else ANYWHERE
    here = {name for name, inner in value.items() if name in names and inner is not None}
    return here.union(*(levers_in(inner, top=False) for inner in value.values()))


LEVER = '{"do_remote_prefill": true, "remote_host": "10.0.0.9", "x": ["}", "]", "\\"", {"y": [1]}]}'
_TEMPLATES = {
    "plain": '{"model": "small", "kv_transfer_params": LEVER}',
    "first": '{"kv_transfer_params": LEVER, "model": "small"}',
    "no spaces": '{"model":"small","kv_transfer_params":LEVER}',
    "other white space": '{"model"\n:\t"small",\r\n"kv_transfer_params" \n : \t LEVER\n}\n',
    "an escape": '{"model": "small", "kv_transfer\\u005fparams": LEVER}',
    "all escapes": '{"model": "small", "ESCAPED": LEVER}',
    "twice": '{"model": "small", "kv_transfer_params": null, "kv_transfer_params": LEVER}',
    "twice, escaped": '{"kv_transfer_params": 1, "model": "small", "kv\\u005Ftransfer_params": LEVER}',
    "vLLM's own arguments": '{"model": "small", "vllm_xargs": {"kv_transfer_params": LEVER}}',
    "deep": '{"model": "small", "sampling_params": {"extra_args": {"kv_transfer_params": LEVER}}}',
    "in itself": '{"model": "small", "kv_transfer_params": {"kv_transfer_params": LEVER}}',
    "a string": '{"model": "small", "kv_transfer_params": "\\"}, {[\\\\"}',
    "a number": '{"model": "small", "kv_transfer_params": -1.5e3, "x": 1}',
    "a number at the end": '{"model": "small", "kv_transfer_params": 1}',
    "encoder": '{"model": "small", "ec_transfer_params": LEVER}',
    "SGLang": '{"model": "small", "bootstrap_host": "10.0.0.9", "bootstrap_port": [1, 2], "bootstrap_room": 7}',
    "after a text with quotes": '{"model": "small", "x": "\\\\\\" \\\\", "kv_transfer_params": LEVER}',
    "after a text that looks like its end": '{"x": "\\\\", "model": "small", "kv_transfer_params": LEVER}',
    "after a deep value": '{"x": DEEP, "model": "small", "kv_transfer_params": LEVER}',
    "NaN": '{"model": "small", "x": NaN, "kv_transfer_params": LEVER}',
}
_ESCAPED = "".join(f"\\u{ord(character):04X}" for character in "kv_transfer_params")
HOSTILE = {
    name: text.replace("LEVER", LEVER).replace("ESCAPED", _ESCAPED).replace("DEEP", "[" * 400 + "]" * 400)
    for name, text in _TEMPLATES.items()
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_only_fairlead_may_set_does_not_reach_an_engine(blind: Blind, name: str) -> None:
    status, _, reached = await blind.send(HOSTILE[name].encode())

    assert status == 200
    assert reached is not None
    assert levers_in(json.loads(reached.body)) == set()
    assert json.loads(reached.body)["model"] == "small"


@pytest.mark.parametrize(
    "path", ["/generate", "/inference/v1/generate", "/invocations", "/v1/completions/", "/upload/x"]
)
async def test_this_holds_for_every_path(blind: Blind, path: str) -> None:
    status, _, reached = await blind.send(HOSTILE["plain"].encode(), path=path)

    assert (status, reached is not None and levers_in(json.loads(reached.body))) == (200, set())


async def test_this_holds_for_a_chunked_body(blind: Blind) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for byte in HOSTILE["an escape"].encode():
            yield bytes([byte])

    status, _, reached = await blind.send(chunks())

    assert (status, reached is not None and levers_in(json.loads(reached.body))) == (200, set())


async def test_this_holds_for_http2_with_a_trailer(blind: Blind) -> None:
    for engine in blind.engines:
        engine.received.clear()

    status = await _http2(blind.address, HOSTILE["plain"].encode(), trailers=[("x-trailer", "1")])

    (reached,) = (request for engine in blind.engines for request in engine.received)
    assert (status, levers_in(json.loads(reached.body))) == (b"200", set())


_DISPOSITION = b"Content-Disposition: form-data; "
ODD_PARTS = {
    "a lever after another name": b"Content-Type: x; name=y\r\n" + _DISPOSITION + b'name="bootstrap_room"',
    "a lever in parts": _DISPOSITION + b'name*0="kv_"; name*1="transfer_params"',
    "a lever in another encoding": _DISPOSITION + b"name=\"x\"; name*=utf-8''bootstrap%5Froom",
    "an escape in a name": _DISPOSITION + b'name="bootstrap\\_room"',
    "two names of a part": _DISPOSITION + b'name="x"; name="bootstrap_room"',
    "two dispositions": _DISPOSITION + b'name="x"\r\n' + _DISPOSITION + b'name="bootstrap_room"',
    "no disposition": b'Content-Type: x; name="bootstrap_room"',
    "an open quote": _DISPOSITION + b'name="bootstrap_room',
}
UNREADABLE = {
    "gzip": (gzip.compress(HOSTILE["plain"].encode()), {"content-encoding": "gzip"}),
    "gzip without saying so": (gzip.compress(HOSTILE["plain"].encode()), {}),
    "says gzip and is not": (HOSTILE["plain"].encode(), {"content-encoding": "gzip"}),
    "UTF-16, low byte first": (HOSTILE["plain"].encode("utf-16-le"), {}),
    "UTF-16, high byte first": (HOSTILE["plain"].encode("utf-16-be"), {}),
    "UTF-16 with a mark": (HOSTILE["plain"].encode("utf-16"), {}),
    "UTF-32": (HOSTILE["plain"].encode("utf-32-le"), {}),
    "UTF-8 with a mark": (HOSTILE["plain"].encode("utf-8-sig"), {}),
    "no end of a text": (b'{"model": "small", "x": "', {}),
    "a form of the web": (b"kv_transfer_params=1", {"content-type": "application/x-www-form-urlencoded"}),
    "a form with a lever": (
        b'--b\r\nContent-Disposition: form-data; name="kv_transfer_params"\r\n\r\n{}\r\n--b--\r\n',
        {"content-type": "multipart/form-data; boundary=b"},
    ),
    "a form without its end": (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall',
        {"content-type": "multipart/form-data; boundary=b"},
    ),
    **{
        f"a form with {what}": (
            b"--b\r\n%b\r\n\r\n{}\r\n--b--\r\n" % head,
            {"content-type": "multipart/form-data; boundary=b"},
        )
        for what, head in ODD_PARTS.items()
    },
    "65 levers": (b'{"model": "small"' + b', "kv_transfer_params": 1' * 65 + b"}", {}),
    "100,001 keys to look at": (b'{"model": "small"' + b', "k": 1' * 100_001 + b"}", {}),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_body_that_may_hide_them_is_refused_with_a_sentence(blind: Blind, name: str) -> None:
    body, headers = UNREADABLE[name]

    status, text, reached = await blind.send(body, headers=headers)

    error = json.loads(text)["error"]
    assert (status, error["type"], reached) == (400, "invalid_request_error", None)
    assert error["message"].startswith("The body ")


@pytest.mark.parametrize("name", ["UTF-32", "a form of the web", "65 levers"])
async def test_a_trusted_client_may_send_anything(blind: Blind, name: str) -> None:
    body, headers = UNREADABLE[name]

    status, _, reached = await blind.send(body, address=blind.trusting, headers=headers)

    assert (status, reached is not None and reached.body) == (200, body)


@pytest.mark.parametrize("key", [b"uuid", b"\\u0075u\\u0069d"])
@pytest.mark.parametrize("value", [b'"a\\"b"', b"12", b"null"])
async def test_no_client_names_an_image_that_an_engine_has_cached(blind: Blind, key: bytes, value: bytes) -> None:
    body = b'{"model": "small", "messages": [{"content": [{"image_url": 0, "%b" : %b}]}], "x": [{"uuid": {"x": 1}}]}'

    status, _, reached = await blind.send(body % (key, value))

    assert status == 200
    assert reached is not None
    assert json.loads(reached.body) == json.loads(body % (b"uuid", b"null"))


async def test_many_names_in_a_text_cost_one_look_at_it(blind: Blind) -> None:
    body = b'{"model": "small", "x": ["%b", %b0]}' % (b"x" * (16 << 20), b'{"uuid": "a"}, ' * 50_000)

    status, _, reached = await blind.send(body)

    assert (status, reached is not None and reached.body == body) == (200, True)


async def test_a_hundred_images_may_be_named(blind: Blind) -> None:
    part = {"type": "image_url", "image_url": None, "uuid": "a"}
    status, _, reached = await blind.send(json.dumps({"model": "small", "messages": [{"content": [part] * 100}]}))

    assert status == 200
    assert reached is not None
    assert json.loads(reached.body)["messages"][0]["content"] == [part | {"uuid": None}] * 100


@pytest.mark.parametrize(
    ("path", "body"), [*BODIES, *[(CHAT, {"messages": [{"role": "user", "content": each}]}) for each in CONTENTS]]
)
async def test_no_engine_fetches_an_image_from_where_a_client_says(
    blind: Blind, path: str, body: dict[str, Any]
) -> None:
    written = json.dumps({"model": "small", **body})
    status, text, reached = await blind.send(written, path=path)
    assert (status, reached) == (400, None)
    assert b"gateway.allowed_media_domains" in text

    assert (await blind.send(written, path=path, address=blind.trusting))[0] == 400


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_those_of_an_allowed_domain_pass(blind: Blind, path: str, body: dict[str, Any]) -> None:
    written = json.dumps({"model": "small", **body}).replace(URL, "https://Good.example:8443?x")

    status, _, reached = await blind.send(written, path=path)

    assert status == 200
    assert reached is not None
    assert json.loads(reached.body) == json.loads(written)


@pytest.mark.parametrize("text", NOT_ALLOWED)
async def test_a_place_that_is_no_plain_url_of_an_allowed_domain_is_refused(blind: Blind, text: str) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": [{"image_url": {"url": text}}]}]}

    assert (await blind.send(json.dumps(body)))[0] == 400
    assert (await blind.send(json.dumps(body).replace("/", "\\/").replace("h", "\\u0068")))[0] == 400


@pytest.mark.parametrize("text", ["data:image/png;base64,AAAA", "DATA:,", "iVBORw0KGgoAAAA", "/9j/4AAQ", "", "UklGR"])
async def test_images_in_the_body_pass(blind: Blind, text: str) -> None:
    part = {"type": "image_url", "image_url": {"url": text, "detail": "auto"}}
    body = {"model": "small", "image_data": [[text]], "messages": [{"role": "user", "content": ["x", part]}]}

    assert (await blind.send(json.dumps(body)))[0] == 200


async def test_more_images_than_can_be_looked_at_are_refused(blind: Blind) -> None:
    body = b'{"model": "small", "image_data": [%b"data:,"]}'

    assert (await blind.send(body % (b'"data:,", ' * 65_535)))[0] == 200
    assert (await blind.send(body % (b'"data:,", ' * 65_536)))[0] == 400


@pytest.mark.parametrize("body", FETCHED_BY_NOBODY)
async def test_urls_that_no_engine_fetches_pass(blind: Blind, body: dict[str, Any]) -> None:
    written = json.dumps({"model": "small", **body}).encode()
    status, _, reached = await blind.send(written)

    assert (status, reached is not None and reached.body) == (200, written)


async def test_what_the_sidecar_refuses_of_random_content_envoy_refuses_too(blind: Blind) -> None:
    rng = random.Random(29)
    refused = 0
    for _ in range(400):
        messages = [{"role": "user", "content": _content(rng)}, {"role": "user", "content": "x"}]
        body = _written({"model": "small", "messages": messages}, rng).encode()
        prompt = parse(body, CHAT)
        assert not isinstance(prompt, Malformed)
        status, _, reached = await blind.send(body)
        if first_refused(prompt.media_sources, ("good.example",)) is not None:
            refused += 1
            assert (status, reached) == (400, None), body
    assert 50 < refused < 350


def _content(rng: random.Random, levels: int = 2) -> Any:
    """Of a message: parts with images from here and there, among texts."""
    parts: list[Any] = []
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(["http://evil.example/x", "https://good.example/x", "data:,", "/x.png", "", "iVBORw0KGgo"])
        key = rng.choice(["image_url", "video_url", "audio_url", "image", "source", "text", "input", "x"])
        value = rng.choice([place, {"url": place}, {"x": place, "url": None}, [place], {"type": "url", "url": place}])
        part = rng.choice([{key: value}, {"type": key, key: value, "detail": "auto"}, "a text"])
        nested = levels and rng.random() < 0.3
        parts.append({"type": "tool_result", "content": _content(rng, levels - 1)} if nested else part)
    return parts


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("url", "http://evil.example/x", 400),
        ("image[]", "http://evil.example/x", 400),
        ("image", "file:///x", 400),
        ("url", "https://good.example/x", 200),
        ("url", "https://good.example\\u002f@evil.example/x", 400),
        ("image", "\x89PNG http://evil.example", 200),
        ("prompt", "http://evil.example/x", 200),
    ],
)
async def test_a_form_names_no_place_either(blind: Blind, name: str, value: str, status: int) -> None:
    form = f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}

    assert (await blind.send(form.encode(), path="/v1/images/edits", headers=headers))[0] == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "small", "messages": []}',
        b' {"model": "small", "messages": [{"content": "}"}]\n} ',
        b"{}",
        b" { } ",
        b'{"cache_salt": null, "model": "small"}',
        b'{"model": "small", "cache\\u005fsalt": ""}',
        b'{"model": "small", "cache_salt": null, "kv_transfer_params": {"x": "}"}, "x": {"cache_salt": "y"}}',
    ],
)
@pytest.mark.parametrize("tenant", [b"acme", b"ACME", b"x" * 48])
async def test_a_tenant_keeps_its_cache_for_itself(blind: Blind, body: bytes, tenant: bytes) -> None:
    headers = {"x-tenant": tenant.decode()}
    status, _, reached = await blind.send(body, address=blind.separating, headers=headers)

    assert status == 200
    assert reached is not None
    document = json.loads(body) | {"cache_salt": json.loads(salt_of(tenant, b""))}
    assert json.loads(reached.body) == document | dict.fromkeys(document.keys() & {"kv_transfer_params"})


@pytest.mark.parametrize("own", ["a", json.loads(salt_of(b"acme", b"")), ["a", "b"], 7, {"a": 1}])
async def test_a_clients_own_salt_joins_no_other_tenants(blind: Blind, own: Any) -> None:
    salts = set()
    for tenant in ("acme", "y" * 49, "y" * 50, ""):
        body = json.dumps({"model": "small", "cache_salt": own, "messages": []})
        headers = {"x-tenant": tenant} if tenant else {}
        _, _, reached = await blind.send(body, address=blind.separating, headers=headers)
        assert reached is not None
        salt = json.loads(reached.body)["cache_salt"]
        assert len(salt) <= 128
        salts.add(salt)
    assert len({*salts, json.loads(salt_of(b"acme", b""))}) == 5


async def test_a_tenant_of_a_long_name_shares_with_nobody(blind: Blind) -> None:
    salts = set()
    for _ in range(2):
        body = b'{"model": "small", "messages": []}'
        _, _, reached = await blind.send(body, address=blind.separating, headers={"x-tenant": "y" * 49})
        assert reached is not None
        salts.add(json.loads(reached.body)["cache_salt"])
    assert len(salts) == 2


async def test_bodies_of_other_paths_and_of_no_tenant_have_no_salt_but_none_of_another_tenants(blind: Blind) -> None:
    body = json.dumps({"model": "small", "prompt": "x", "cache_salt": b"acme".hex()}).encode()
    for path in ("/tokenize", "/v1/completions/"):
        _, _, reached = await blind.send(body, path=path, address=blind.separating, headers={"x-tenant": "other"})
        assert reached is not None
        assert json.loads(reached.body)["cache_salt"].startswith(b"other".hex())
    body = b'{"model": "small", "prompt": "x"}'
    for path, headers in (("/tokenize", {"x-tenant": "acme"}), ("/v1/completions", {})):
        _, _, reached = await blind.send(body, path=path, address=blind.separating, headers=headers)
        assert reached is not None
        assert reached.body == body


HARMLESS = [
    b'{"model": "small", "messages": [{"role": "user", "content": "kv_transfer_params \\" : {"}]}',
    '{"model": "small", "messages": [{"role": "user", "content": "größe ☃ \\ud83d\\ude00 \\u005f"}]}'.encode(),
    b'{"model": "small", "tools": [{"parameters": {"properties": {"bootstrap_port": {"type": "integer"}}}}]}',
    b'  {"model": "small", "stop": "kv_transfer_params", "x": ["kv_transfer_params", "model"]}  ',
    b'{"model": "small", "kv_transfer_param": 1, "Kv_transfer_params": 2, "kv_transfer_params2": 3}',
    b'{"model": "small", "query": "q", "documents": [{"uuid": "a", "text": "x"}]}',
    b"[]",
]


@pytest.mark.parametrize("body", HARMLESS)
async def test_any_other_body_passes_byte_for_byte(blind: Blind, body: bytes) -> None:
    status, _, reached = await blind.send(body)

    assert (status, reached is not None and reached.body) == (200, body)


async def test_random_documents_reach_the_engine_as_they_were_but_for_levers_and_model(blind: Blind) -> None:
    rng = random.Random(15)
    for _ in range(300):
        document = _document(rng)
        status, text, reached = await blind.send(_written(document, rng).encode())
        assert (status, text) == (200, b"large")
        assert reached is not None
        assert json.loads(reached.body) == _expected(document, top=True)
        assert int(reached.headers["content-length"]) == len(reached.body)


@pytest.mark.parametrize(("model", "engine"), [("small", b"small"), ("large", b"large"), ("sm\\u0061ll", b"small")])
async def test_a_model_goes_to_its_own_engines_at_the_first_attempt(blind: Blind, model: str, engine: bytes) -> None:
    for _ in range(10):
        status, text, reached = await blind.send(b'{"x": {"model": "y"}, "model": "%s"}' % model.encode())

        assert (status, text, reached is not None) == (200, engine, True)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model": "auto", "x": 1}', b'{"model": "large", "x": 1}'),
        (b'{"model":"\\u0061uto"}', b'{"model":"large"}'),
        (
            b'{"model": "x", "x": {"model": "auto"}, "model": "auto"}',
            b'{"model": "large", "x": {"model": "auto"}, "model": "large"}',
        ),
        (b'{"kv_transfer_params": {"x": 1}, "model": "auto"}', b'{"kv_transfer_params": null, "model": "large"}'),
        ('{"model": "ünï/co de"}'.encode(), b'{"model": "small"}'),
    ],
)  # fmt: skip
async def test_a_route_goes_to_its_first_model_which_the_body_then_names(
    blind: Blind, body: bytes, expected: bytes
) -> None:
    status, _, reached = await blind.send(body)

    assert (status, reached is not None and reached.body) == (200, expected)
    assert reached is not None
    assert reached.headers["content-length"] == str(len(expected))


async def test_a_route_in_a_slow_chunked_body_is_rewritten(blind: Blind) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for part in (b'{"model": "au', b'to", "x": "', b"y" * 100_000, b'"}'):
            yield part
            await asyncio.sleep(0.02)

    status, _, reached = await blind.send(chunks())

    assert (status, reached is not None and reached.body) == (
        200,
        b'{"model": "large", "x": "' + b"y" * 100_000 + b'"}',
    )
    assert reached is not None
    assert "transfer-encoding" not in reached.headers


async def test_a_route_in_a_form_is_rewritten(blind: Blind) -> None:
    form = aiohttp.FormData()
    form.add_field("file", b"\x00\x01RIFF\r\n--b\r\n\xff" * 1000, filename="model.wav")
    form.add_field("model", "auto")

    status, text, reached = await blind.send(form, path="/v1/audio/transcriptions")

    assert (status, text) == (200, b"large")
    assert reached is not None
    assert b'name="model"\r\n\r\nlarge\r\n--' in reached.body
    assert b"\x00\x01RIFF\r\n--b\r\n\xff" * 1000 in reached.body


async def test_a_large_body_of_a_route_is_rewritten(blind: Blind) -> None:
    large = body_of(20_000_000)[:-1] + b',"model":"auto"}'

    status, _, reached = await blind.send(large)

    assert (status, reached is not None and reached.body) == (200, large.replace(b'"auto"', b'"large"'))


@pytest.mark.parametrize(
    ("query", "expected"),
    [("model=small", "small"), ("a=b&model=auto&c=d", "large"), ("model=%C3%BCn%C3%AF%2Fco+de", "small")],
)
async def test_a_websocket_goes_to_the_model_that_its_query_names(blind: Blind, query: str, expected: str) -> None:
    for engine in blind.engines:
        engine.received.clear()
    async with blind.client.ws_connect(f"http://{blind.address}/v1/realtime?{query}") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == f"{expected}: hello"

    (reached,) = (request for engine in blind.engines for request in engine.received)
    assert f"model={expected}" in reached.path


@pytest.mark.parametrize("body", [b'{"model": "an adapter"}', b'{"model": null}', b'{"input": "x"}', None])
async def test_an_unknown_model_or_none_goes_to_any_engine(blind: Blind, body: bytes | None) -> None:
    status, _, reached = await blind.send(body)

    assert (status, reached is not None and reached.body) == (200, body or b"")


@pytest.mark.parametrize("name", ["x-fairlead-cluster", "x-fairlead-blind-model", "x-fairlead-model-spans"])
async def test_a_client_cannot_say_what_the_guard_says(blind: Blind, name: str) -> None:
    status, text, reached = await blind.send(
        b'{"model": "small"}', headers={name: "model:large" if name.endswith("cluster") else "0-5"}
    )

    assert (status, text) == (200, b"small")
    assert reached is not None
    assert (reached.body, name in reached.headers) == (b'{"model": "small"}', False)


@pytest.mark.parametrize("first", ["refuses connections", "resets", "fails its health check", "answers 500"])
async def test_a_route_whose_first_model_has_no_healthy_engine_goes_to_the_next_which_the_body_names(
    first: str,
) -> None:
    listen, admin, nobody, refuses = (f"127.0.0.1:{port}" for port in free_ports(4))
    sick = Engine("large", resets=first == "resets", healthy=first != "fails its health check")
    sick.status = 500 if first == "answers 500" else 200
    well = Engine("small")
    async with contextlib.AsyncExitStack() as stack:
        for engine in (sick, well):
            await engine.start()
            stack.push_async_callback(engine.stop)
        large = refuses if first == "refuses connections" else sick.address
        config = Config.model_validate(
            {
                "listen": {"grpc": nobody},
                "gateway": {"listen": listen, "endpoints": "static"},
                "pool": {
                    "endpoints": [{"address": large, "model": "large"}, {"address": well.address, "model": "small"}]
                },
                "routes": {"auto": ["large", "small"]},
            }
        )
        await stack.enter_async_context(EnvoyProcess(bootstrap(config, admin_address=admin)))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(5):
            async with client.post(f"http://{listen}{CHAT}", data=b'{"model": "auto"}') as answer:
                assert (answer.status, await answer.read()) == (200, b"small")

    assert {request.body for request in well.received} == {b'{"model": "small"}'}
    assert {request.body for request in sick.received} <= {b'{"model": "large"}'}


def _document(rng: random.Random) -> dict[str, Any]:
    document = {rng.choice(["a", "model ", "mode", "é\n", "b"]): _value(rng, 3) for _ in range(rng.randrange(4))}
    for name in rng.sample(sorted(ANYWHERE | AT_THE_TOP), rng.randrange(3)):
        document[name] = _value(rng, 2)
    document["model"] = "auto"
    items = list(document.items())
    rng.shuffle(items)
    return dict(items)


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice([0, -1, 1.5, 1e300])
    if kind < 4:
        return "".join(rng.choice('ab"\\{}[]:, é☃😀\n\t/model') for _ in range(rng.randrange(12)))
    if kind == 4:
        return rng.choice([None, True, False])
    if kind == 5:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    names = ["x", "model", "bootstrap_port", "kv_transfer_params", '"', "\\"]
    return {rng.choice(names): _value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _written(value: Any, rng: random.Random) -> str:
    """JSON with random white space, and with random letters of strings escaped."""
    if isinstance(value, str):
        plain = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        return plain if "\\" in plain else "".join(_letter(character, rng) for character in plain)
    if isinstance(value, list):
        return "[" + ",".join(_space(rng) + _written(each, rng) + _space(rng) for each in value) + "]"
    if isinstance(value, dict):
        members = (f"{_written(name, rng)}{_space(rng)}:{_space(rng)}{_written(v, rng)}" for name, v in value.items())
        return "{" + ",".join(_space(rng) + member + _space(rng) for member in members) + "}"
    return json.dumps(value)


def _letter(character: str, rng: random.Random) -> str:
    escaped = character.isascii() and character.isalpha() and rng.random() < 0.1
    return f"\\u{ord(character):04x}" if escaped else character


def _space(rng: random.Random) -> str:
    return rng.choice(["", "", " ", "\n", "\t "])


def _expected(value: Any, *, top: bool = False) -> Any:
    if isinstance(value, list):
        return [_expected(each) for each in value]
    if not isinstance(value, dict):
        return value
    blanked = ANYWHERE | AT_THE_TOP if top else ANYWHERE
    changed = {name: None if name in blanked else _expected(inner) for name, inner in value.items()}
    return changed | {"model": "large"} if top else changed


async def _http2(address: str, body: bytes, trailers: list[tuple[str, str]]) -> bytes:
    """The status of a POST over HTTP/2 that ends in trailers."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    head = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", CHAT)]
    connection.send_headers(1, [*head, ("content-type", "application/json")])
    connection.send_data(1, body)
    connection.send_headers(1, trailers, end_stream=True)
    writer.write(connection.data_to_send())
    try:
        async with asyncio.timeout(60):
            while True:
                for event in connection.receive_data(await reader.read(65536)):
                    if isinstance(event, h2.events.ResponseReceived):
                        return next(bytes(v) for k, v in event.headers if bytes(k) == b":status")
                writer.write(connection.data_to_send())
    finally:
        writer.close()
