"""The edge as gRPC's own client sees it, over TCP, a Unix socket and TLS."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairlead.edge.grpc import Call, Health, Method, Status, StatusError, server_streaming, unary
from fairlead.edge.server import Server
from fairlead.edge.tls import TlsFiles
from fairlead.errors import UserError
from tests.edge.certificates import Authority
from tests.edge.world import echo_method
from tests.waiting import until

LIMIT = 40 << 20
Channel = Any  # the stubs of grpc.aio do not know a method that is made by its name
Start = Callable[..., Awaitable[tuple[Server, str]]]


def refuse(message: bytes) -> bytes:
    raise StatusError(Status.NOT_FOUND, f"no {message.decode()}: 100 % sure")


def count(message: bytes, call: Call) -> Callable[[], None]:
    for n in range(int(message)):
        call.send(b"%d" % n)
    call.finish()
    return lambda: None


class Left:
    """Reports that a call has come and that it is over, and never answers."""

    def __init__(self) -> None:
        self.come = asyncio.Event()
        self.over = asyncio.Event()

    def method(self) -> Method:
        return Method(lambda _: self)

    def message(self, message: bytes) -> None:  # noqa: ARG002
        self.come.set()

    def half_closed(self) -> None:
        pass

    def closed(self) -> None:
        self.over.set()

    async def until_come(self) -> None:
        """Wait for a message of a call: what the client has written may not be read yet."""
        async with asyncio.timeout(60):
            await self.come.wait()

    async def until_over(self) -> None:
        async with asyncio.timeout(60):
            await self.over.wait()


@pytest.fixture
def left() -> Left:
    return Left()


@pytest.fixture
async def start(left: Left) -> AsyncIterator[Start]:
    servers: list[Server] = []

    async def begin(address: str = "127.0.0.1:0", tls: TlsFiles | None = None) -> tuple[Server, str]:
        health = Health(("", "up"))
        methods = {
            "/test/Echo": echo_method(),
            "/test/Upper": unary(bytes.upper),
            "/test/Refuse": unary(refuse),
            "/test/Count": server_streaming(count),
            "/test/Silent": left.method(),
            **health.methods(),
        }
        server = Server(methods, max_message_bytes=LIMIT, report_fault=pytest.fail, tls=tls)
        port = await server.start(address)
        health.set(("up",), serving=True)
        servers.append(server)
        return server, address if address.startswith("unix:") else f"127.0.0.1:{port}"

    yield begin
    for server in servers:
        await server.drain(0)


def channel(address: str) -> Channel:
    return grpc.aio.insecure_channel(
        address, options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    )


@pytest.mark.parametrize("socket", ["tcp", "unix"])
async def test_unary_calls(start: Start, tmp_path: Path, socket: str) -> None:
    _, address = await start("127.0.0.1:0" if socket == "tcp" else f"unix:{tmp_path}/edge.sock")
    async with channel(address) as client:
        upper: Any = client.unary_unary("/test/Upper")
        assert await asyncio.gather(*(upper(b"n%d" % n) for n in range(200))) == [b"N%d" % n for n in range(200)]


async def test_a_status_and_its_text_arrive(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/test/Refuse")(b"bread")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.NOT_FOUND, "no bread: 100 % sure")


async def test_a_method_that_there_is_not_is_unimplemented(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/test/Nothing")(b"x")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_many_replies_stream(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        replies = [int(reply) async for reply in client.unary_stream("/test/Count")(b"20000")]
    assert replies == list(range(20_000))


async def test_messages_go_both_ways_in_turns(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        call: Any = client.stream_stream("/test/Echo")()
        for n in range(300):
            await call.write(b"x" * n)
            assert await call.read() == b"x" * n
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 300_000, 20 << 20, LIMIT])
async def test_messages_of_any_size_come_back_whole(start: Start, size: int) -> None:
    _, address = await start()
    async with channel(address) as client:
        call: Any = client.stream_stream("/test/Echo")()
        await call.write(b"y" * size)
        assert await call.read() == b"y" * size
        call.cancel()


async def test_a_message_beyond_the_limit_is_refused(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/test/Upper")(b"x" * (LIMIT + 1))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_compression_is_refused_by_name(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/test/Upper")(b"x" * 1000, compression=grpc.Compression.Gzip)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_ends_the_call_on_both_sides(start: Start, left: Left) -> None:
    _, address = await start()
    async with channel(address) as client:
        await client.channel_ready()  # to connect takes its part of the deadline
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.unary_unary("/test/Silent")(b"x", timeout=1)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await left.until_over()


async def test_a_cancellation_reaches_the_method(start: Start, left: Left) -> None:
    _, address = await start()
    async with channel(address) as client:
        call: Any = client.stream_stream("/test/Silent")()
        await call.write(b"x")
        await left.until_come()
        call.cancel()
        await left.until_over()


async def test_a_client_that_vanishes_ends_its_calls(start: Start, left: Left) -> None:
    _, address = await start()
    client = channel(address)
    call: Any = client.stream_stream("/test/Silent")()
    await call.write(b"x")
    await left.until_come()
    await client.close()
    await left.until_over()


async def test_health_is_told_by_name(start: Start) -> None:
    _, address = await start()
    async with channel(address) as client:
        stub: Any = health_pb2_grpc.HealthStub(client)
        up = await stub.Check(health_pb2.HealthCheckRequest(service="up"))
        rest = await stub.Check(health_pb2.HealthCheckRequest())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"))
        unknown = (await watch.read()).status
        watch.cancel()
    answers = health_pb2.HealthCheckResponse
    assert (up.status, rest.status, unknown) == (answers.SERVING, answers.NOT_SERVING, answers.SERVICE_UNKNOWN)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_drain_under_load_loses_no_call_that_was_taken(start: Start) -> None:
    server, address = await start()
    taken, codes = asyncio.Semaphore(0), []

    async def ask(client: Channel) -> None:
        upper: Any = client.unary_unary("/test/Upper")
        while True:
            call = upper(b"x" * 50_000)
            code = await call.code()
            if code is not grpc.StatusCode.OK:
                codes.append((code, await call.details()))
                return
            assert await call == b"X" * 50_000
            taken.release()

    async with channel(address) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(30)]
        for _ in range(300):
            await taken.acquire()
        await server.drain(20)
        await asyncio.gather(*asking)
    assert {code for code, _ in codes} == {grpc.StatusCode.UNAVAILABLE}
    assert all("onnect" in details for _, details in codes), codes  # none was cut off: they found nobody


async def test_what_runs_longer_than_the_grace_is_cut_off(start: Start, left: Left) -> None:
    server, address = await start()
    async with channel(address) as client:
        call: Any = client.stream_stream("/test/Silent")()
        await call.write(b"x")
        await left.until_come()
        await asyncio.wait_for(server.drain(0.1), 60)
        await left.until_over()
        call.cancel()


# ---- TLS ------------------------------------------------------------------------------------------------------------


def secure(address: str, authority: Authority, client: tuple[bytes, bytes] | None = None) -> Channel:
    key, certificate = client or (None, None)
    credentials = grpc.ssl_channel_credentials(authority.pem, key, certificate)
    return grpc.aio.secure_channel(address, credentials, options=[("grpc.ssl_target_name_override", "fairlead")])


async def upper_of(client: Channel, text: bytes) -> bytes:
    upper: Any = client.unary_unary("/test/Upper")
    answer: bytes = await upper(text, timeout=60)
    return answer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_tls_with_files(start: Start, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    _, address = await start(tls=TlsFiles(certificate, key))
    async with secure(address, authority) as client:
        assert await upper_of(client, b"x" * 300_000) == b"X" * 300_000


async def test_a_certificate_of_another_authority_is_refused_by_the_client(start: Start, tmp_path: Path) -> None:
    ours, other = Authority(tmp_path), Authority(tmp_path / "other")
    _, address = await start(tls=TlsFiles(*ours.issue("server")))
    async with secure(address, other) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await upper_of(client, b"x")


async def test_a_client_must_show_a_certificate_of_the_named_authority(start: Start, authority: Authority) -> None:
    _, address = await start(tls=TlsFiles(*authority.issue("server"), client_ca=authority.path))
    certificate, key = authority.issue("client")
    async with secure(address, authority, (key.read_bytes(), certificate.read_bytes())) as client:
        assert await upper_of(client, b"x") == b"X"
    async with secure(address, authority) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await upper_of(client, b"x")


async def test_a_self_signed_certificate_is_made_at_start(start: Start) -> None:
    _, address = await start(tls=TlsFiles())
    host, port = address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.close()


async def test_new_certificates_are_served_without_a_restart_and_old_connections_go_on(
    start: Start, tmp_path: Path
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    certificate, key = old.issue("server")
    _, address = await start(tls=TlsFiles(certificate, key))
    async with secure(address, old) as before:
        assert await upper_of(before, b"a") == b"A"
        for path, fresh in zip((certificate, key), new.issue("server"), strict=True):
            path.write_bytes(fresh.read_bytes())
        async with asyncio.timeout(60):
            while True:
                async with secure(address, new) as after:
                    try:
                        assert await upper_of(after, b"b") == b"B"
                        break
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.1)
        assert await upper_of(before, b"c") == b"C"


async def test_files_that_are_no_certificates_stop_the_start_with_a_sentence(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("not PEM")
    with pytest.raises(UserError, match=r"listen\.tls: .*bad\.pem .* write the paths of a certificate in PEM"):
        await start(tls=TlsFiles(tmp_path / "bad.pem", tmp_path / "bad.pem"))
    with pytest.raises(UserError, match="No such file"):
        await start(tls=TlsFiles(tmp_path / "none.pem", tmp_path / "none.pem"))


async def test_broken_new_files_leave_the_old_certificate_in_force(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    files = TlsFiles(certificate, key)
    files.load()
    before = files.context
    certificate.write_text("half written")
    assert not files.have_changed()
    assert (files.context, files.reloads_refused) == (before, 1)
    assert "cannot be used" in files.last_refusal


async def test_new_files_that_could_not_be_read_are_read_once_their_permissions_are_right(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TlsFiles(*authority.issue("server"))
    files.load()
    before = files.context
    _, key = authority.issue("server")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as ours_to_read_no_more:  # a test that runs as root reads every file
        ours_to_read_no_more.setattr(ssl.SSLContext, "load_cert_chain", denied)
        assert not files.have_changed()
    assert "Permission denied" in files.last_refusal
    written_ns = key.stat().st_ctime_ns
    while key.stat().st_ctime_ns == written_ns:  # the kernel's clock for this goes in steps
        key.chmod(0o640)
    assert files.have_changed()
    assert files.context is not before


async def test_new_certificates_that_could_not_be_listened_with_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    certificate, key = old.issue("server")
    faults: list[str] = []
    methods, tls = {"/test/Upper": unary(bytes.upper)}, TlsFiles(certificate, key)
    server = Server(methods, max_message_bytes=LIMIT, report_fault=faults.append, tls=tls)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"

    def exhausted(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as out_of_descriptors:
        out_of_descriptors.setattr(socket.socket, "dup", exhausted)
        for path, fresh in zip((certificate, key), new.issue("server"), strict=True):
            path.write_bytes(fresh.read_bytes())
        await until(lambda: len(faults) > 1)
    assert "Too many open files" in faults[0]

    async def is_new() -> bool:
        async with secure(address, new) as client:
            try:
                return await upper_of(client, b"b") == b"B"
            except grpc.aio.AioRpcError:
                return False

    await until(is_new, "the new certificate is served")
    await server.drain(0)


async def test_these_tests_run_on_uvloop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
