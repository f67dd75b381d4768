"""Faults of an API server that a real one cannot be made to have at will. The rest is tests/kubernetes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead.config.kubernetes import Kubernetes
from fairlead.discovery.kubernetes import source
from fairlead.discovery.kubernetes.access import Access, from_kubeconfig
from fairlead.discovery.kubernetes.api import Api
from fairlead.discovery.kubernetes.objects import Pod
from fairlead.discovery.kubernetes.reflector import Reflector
from fairlead.discovery.source import SourceStatus
from tests.waiting import until

WITHIN_S = 60.0
Json = dict[str, Any]


def pod(name: str, version: int = 1, **more: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": str(version), **more}}


def event(kind: str, document: Json) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


class FakeApiServer:
    """Lists `pods`, and lets each test say how the watches go. It remembers what it was asked."""

    def __init__(self) -> None:
        self.pods: list[Any] = []
        self.version = 1
        self.lists: list[str] = []  # the Authorization of each
        self.watched_from: list[str] = []
        self.list_status: Callable[[str], int] = lambda _: 200
        self.watch: Callable[[web.StreamResponse, int], Any] = self.stays_open

    @staticmethod
    async def stays_open(_: web.StreamResponse, __: int) -> None:
        await asyncio.Event().wait()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("authorization", "")
        if "watch" not in request.query:
            self.lists.append(token)
            status = self.list_status(token)
            if status != 200:
                return web.json_response({"kind": "Status", "code": status, "message": "because"}, status=status)
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": self.pods})
        assert request.query["allowWatchBookmarks"] == "true"
        self.watched_from.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        await self.watch(response, len(self.watched_from))
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[FakeApiServer, str]]:
    fake = FakeApiServer()
    app = web.Application()
    app.router.add_get("/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def following(url: str, *, access: Access | None = None, **more: Any) -> AsyncIterator[Reflector[Pod]]:
    async with Api(access or Access(url, **more)) as api:
        path = "/api/v1/namespaces/n/pods"
        reflector = Reflector(api, path, Pod, {}, changed=lambda: None, reported=lambda _: None, lasts_s=1)
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def names(reflector: Reflector[Pod]) -> set[str]:
    return {name for _, name in reflector.objects}


async def test_a_watch_goes_on_from_the_last_event_or_bookmark(server: tuple[FakeApiServer, str]) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, number: int) -> None:
        if number == 1:
            await response.write(event("ADDED", pod("b", 5)))
        elif number == 2:
            await response.write(event("BOOKMARK", pod("", 9)))
        else:
            await asyncio.Event().wait()

    fake.pods, fake.watch = [pod("a")], watch
    async with following(url) as reflector:
        await until(lambda: len(fake.watched_from) == 3)
        assert (fake.watched_from, names(reflector), len(fake.lists)) == (["1", "5", "9"], {"a", "b"}, 1)


@pytest.mark.parametrize("way", ["event", "status"])
async def test_410_gone_is_answered_by_a_list_and_is_no_trouble(server: tuple[FakeApiServer, str], way: str) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, number: int) -> None:
        if number == 1:
            fake.pods, fake.version = [pod("b")], 7
            await response.write(event("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))
        else:
            await asyncio.Event().wait()

    fake.pods, fake.watch = [pod("a")], watch
    if way == "status":
        plain = fake.answer

        async def gone(request: web.Request) -> web.StreamResponse:
            if "watch" in request.query and fake.version == 1:
                fake.pods, fake.version = [pod("b")], 7
                return web.json_response({"code": 410, "message": "too old"}, status=410)
            return await plain(request)

        fake.answer = gone  # type: ignore[method-assign]
    async with following(url) as reflector:
        await until(lambda: names(reflector) == {"b"})
        await until(lambda: fake.watched_from[-1:] == ["7"])
        assert reflector.trouble is None


async def test_objects_stay_while_the_api_server_fails(server: tuple[FakeApiServer, str]) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, _: int) -> None:
        fake.list_status = lambda _: 500
        await response.write(event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"}))

    fake.pods, fake.watch = [pod("a")], watch
    async with following(url) as reflector:
        await until(lambda: len(fake.lists) >= 3)
        assert reflector.trouble is not None
        assert (names(reflector), str(reflector.trouble)) == ({"a"}, "because")
        fake.list_status, fake.watch, fake.pods = lambda _: 200, fake.stays_open, []
        await until(lambda: reflector.trouble is None)
        assert names(reflector) == set()


async def test_a_token_is_read_again_when_it_has_expired(server: tuple[FakeApiServer, str], tmp_path: Path) -> None:
    fake, url = server
    token = tmp_path / "token"
    token.write_text("old\n")
    fake.list_status = lambda found: 200 if found == "Bearer new" else 401
    fake.pods = [pod("a")]
    async with following(url, token_file=token) as reflector:
        await until(lambda: reflector.trouble is not None and reflector.trouble.code == 401)
        token.write_text("new\n")
        await until(lambda: names(reflector) == {"a"})


async def test_a_kubeconfig_that_is_replaced_is_read_again(server: tuple[FakeApiServer, str], tmp_path: Path) -> None:
    fake, url = server
    path = tmp_path / "kubeconfig"

    def write(token: str) -> None:
        new = tmp_path / token
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        new.write_text(json.dumps(document))
        new.replace(path)

    write("old")
    fake.list_status = lambda found: 200 if found == "Bearer new" else 401
    fake.pods = [pod("a")]
    async with following(url, access=from_kubeconfig(path)) as reflector:
        await until(lambda: reflector.trouble is not None and reflector.trouble.code == 401)
        path.unlink()
        await until(lambda: "cannot be read" in str(reflector.trouble))
        write("new")
        await until(lambda: names(reflector) == {"a"})
        assert reflector.trouble is None


async def test_a_service_whose_port_is_not_named_keeps_its_last_set_and_says_what_to_write(
    server: tuple[FakeApiServer, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, url = server
    monkeypatch.setattr(source, "access_of", lambda *_: Access(url, "n"))
    slices: Json = {"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "http", "port": 8000}]}
    more = slices | {"ports": [*slices["ports"], {"name": "metrics", "port": 9100}]}
    changes: asyncio.Queue[Json] = asyncio.Queue()

    async def watch(response: web.StreamResponse, _: int) -> None:
        while change := await changes.get():
            await response.write(event("MODIFIED", change))

    fake.pods, fake.watch = [pod("s") | slices], watch
    status = SourceStatus("kubernetes", asyncio.get_running_loop().time)
    followed = source.KubernetesSource(Kubernetes(service="llm"), tmp_path)
    async with asyncio.timeout(WITHIN_S), aclosing(followed.sets(status)) as sets:  # type: ignore[type-var]
        assert [each.address for each in await anext(sets)] == ["10.0.0.1:8000"]
        coming = asyncio.ensure_future(anext(sets))
        changes.put_nowait(pod("s", 2) | more)
        await until(lambda: status.error)
        changes.put_nowait({})
        await until(lambda: len(fake.watched_from) == 2)
        assert "service llm: port is not written, and it has http (8000), metrics (9100)" in status.error
        assert not coming.done()
        changes.put_nowait(pod("s", 4) | slices | {"endpoints": [{"addresses": ["10.0.0.2"]}]})
        assert [each.address for each in await coming] == ["10.0.0.2:8000"]
        assert status.error == ""


async def test_events_are_read_however_they_are_cut_and_however_long_they_are(
    server: tuple[FakeApiServer, str],
) -> None:
    fake, url = server
    long = event("ADDED", pod("long", 3, annotations={"a": "x" * 1_000_000}))
    sent = long + event("ADDED", pod("b", 4)) + event("DELETED", pod("a", 5))

    async def watch(response: web.StreamResponse, _: int) -> None:
        for start in range(0, len(sent), 99_991):
            await response.write(sent[start : start + 99_991])
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    fake.pods, fake.watch = [pod("a")], watch
    async with following(url) as reflector:
        await until(lambda: names(reflector) == {"long", "b"})


async def test_an_object_of_another_form_does_not_hide_the_others(server: tuple[FakeApiServer, str]) -> None:
    fake, url = server
    fake.pods = [{"metadata": {"name": 7}}, {"metadata": {"name": "odd", "labels": ["x"]}}, pod("a")]
    async with following(url) as reflector:
        await until(lambda: names(reflector) == {"a"})


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
async def test_an_object_that_becomes_one_of_another_form_is_gone(server: tuple[FakeApiServer, str], kind: str) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, number: int) -> None:
        if number == 1:
            await response.write(event(kind, pod("odd", 5) | {"status": "none"}))
        await asyncio.Event().wait()

    fake.pods, fake.watch = [pod("odd"), pod("b")], watch
    async with following(url) as reflector:
        await until(lambda: names(reflector) == {"b"})
    assert len(fake.lists) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n", b'{"type": 1}\n', b'{"type": "ADDED"}\n', b"\xff\xfe\n",
        b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "b"}, "spec": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n",
    ],
)  # fmt: skip
async def test_garbage_in_a_watch_is_answered_by_a_list(server: tuple[FakeApiServer, str], garbage: bytes) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, number: int) -> None:
        if number == 1:
            await response.write(garbage)
        await asyncio.Event().wait()

    fake.pods, fake.watch = [pod("a")], watch
    async with following(url) as reflector:
        await until(lambda: len(fake.lists) == 2 and reflector.trouble is None)
        assert names(reflector) == {"a"}


async def test_a_server_that_ends_each_watch_at_once_is_not_flooded(server: tuple[FakeApiServer, str]) -> None:
    fake, url = server

    async def watch(_: web.StreamResponse, __: int) -> None:
        pass

    fake.watch = watch
    async with following(url):
        await until(lambda: len(fake.watched_from) >= 2)
        await asyncio.sleep(1.0)
    assert len(fake.watched_from) < 20


async def test_a_server_whose_every_watch_is_gone_is_not_flooded(server: tuple[FakeApiServer, str]) -> None:
    fake, url = server

    async def watch(response: web.StreamResponse, _: int) -> None:
        await response.write(event("ERROR", {"code": 410}))

    fake.watch = watch
    async with following(url):
        await until(lambda: len(fake.watched_from) >= 2)
        await asyncio.sleep(1.0)
    assert len(fake.lists) < 20


async def test_a_silent_connection_is_given_up(
    server: tuple[FakeApiServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = server
    monkeypatch.setattr("fairlead.discovery.kubernetes.api._SILENCE_S", 0.2)
    fake.pods = [pod("a")]
    async with following(url) as reflector:
        await until(lambda: len(fake.watched_from) >= 2)
        assert names(reflector) == {"a"}
