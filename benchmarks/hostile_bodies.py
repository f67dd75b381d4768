"""Bodies crafted to keep a router busy, and how each delays other requests: `python benchmarks/hostile_bodies.py`.

A client sends one hostile body after another through a real Envoy to a real sidecar, while a neighbour asks that
sidecar for a decision every 3 ms, over a separate gRPC connection, so that Envoy's time is not measured. Another asks a
second sidecar, which gets no hostile body: what it waits for is the machine, and the measuring process. The table shows
both's longest waits during each body, and without any. Writes benchmarks/results/hostile_bodies.md; some two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import time
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import grpc
import yaml

from fairlead.config import Config
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.server import SERVICE
from fairlead.gateway import EnvoyProcess, Mode, bootstrap
from fairlead.processes import free_ports
from fairlead.tools.bench.machine import machine_facts, this_machine
from fairlead.tools.bench.markdown import table
from fairlead.tools.bench.processes import addresses_of, child, resident_bytes

MODEL: Final = "small"
ROUTE: Final = "auto"
MAX_BODY_BYTES: Final = 32 << 20
SIZES: Final = {
    "100 KB": 100_000,
    "250 KB": 250_000,
    "1 MB": 1 << 20,
    "8 MB": 8 << 20,
    "32 MB": MAX_BODY_BYTES - 20_000,
}
CHAT: Final = "/v1/chat/completions"
LIMIT_MS: Final = 20.0
_INTERVAL_S: Final = 0.003
_REPEATS: Final = 5
_AFTER_MAKING_S: Final = 0.1  # making a body keeps this process, and whoever waited for an answer then
_PAUSE_S: Final = 9.0  # after which the sidecar has given memory back
_HEADING: Final = ("body", "size", "answer", "it took, ms", "waits, median ms", "most", "other one, median ms", "most")
_FOLDER: Final = Path(__file__).parent / "results"
_RESULTS: Final = {
    "buffered": _FOLDER / "hostile_bodies.md",
    "full_duplex": _FOLDER / "hostile_bodies_full_duplex.md",
}

Maker = Callable[[int], bytes]  # makes a body of about so many bytes


def _chat(content: bytes, more: bytes = b"", model: str = MODEL) -> bytes:
    return b'{"model":"%b"%b,"messages":[{"role":"user","content":%b}]}' % (model.encode(), more, content)


def _text(unit: bytes) -> Maker:
    return lambda size: _chat(b'"' + unit * (size // len(unit)) + b'"')


def _list(unit: bytes, key: str) -> Maker:
    return lambda size: _chat(b'"x"', b',"%b":[%b0]' % (key.encode(), unit * (size // len(unit))))


def _deep(levels: int) -> Maker:
    nest = b',"kv_transfer_params":{},"x":' + b"[" * levels + b"]" * levels
    return lambda size: _chat(b'"' + b"x" * (size - len(nest)) + b'"', nest)


def _nests(size: int) -> bytes:
    return _chat(b'[{"content":' * 450 + b'"' + b"x" * (size - 7000) + b'"' + b"}]" * 450)


def _keys(size: int) -> bytes:
    keys = b",".join([b'"k%d":0' % number for number in range(size // 12)])
    return b'{"model":"%b","kv_transfer_params":{},%b,"messages":[]}' % (MODEL.encode(), keys)


def _messages(unit: bytes) -> Maker:
    return lambda size: b'{"model":"%b","messages":[%b{}]}' % (MODEL.encode(), unit * (size // len(unit)))


def _parts(unit: bytes) -> Maker:
    return lambda size: _chat(b"[" + unit * (size // len(unit)) + b"{}]")


def _tool_answer(content: Callable[[int], str]) -> Maker:
    return lambda size: json.dumps(
        {"model": "docs", "messages": [{"role": "user", "content": content(size)}, {"role": "user", "content": "?"}]}
    ).encode()


FAMILIES: Final[dict[str, Maker]] = {
    "prose": _text(b"Every word of it is plain. "),
    "prose, for a route": lambda size: _chat(b'"' + b"x" * size + b'"', model=ROUTE),
    "prose, with kv_transfer_params": lambda size: _chat(b'"' + b"x" * size + b'"', b',"kv_transfer_params":{}'),
    "escaped text": _text(b"\\u0041"),
    "quotes in text": _text(b'\\"'),
    "braces in text": _text(b"{["),
    "token ids": _list(b"1,", "input"),
    "empty strings": _list(b'"",', "input"),
    "empty objects": _list(b"{},", "tools"),
    "empty messages": _messages(b"{},"),
    "messages of one image": _messages(b'{"role":"user","content":[{"image":0}]},'),
    "parts of one image": _parts(b'{"image":0},'),
    "parts of text": _parts(b'{"type":"text","text":"a"},'),
    "parts within parts, 450 deep": _nests,
    "lists 974 deep, with kv_transfer_params": _deep(974),
    "lists 900 deep, with kv_transfer_params": _deep(900),
    "keys": _keys,
    "attempted models": lambda size: _chat(
        b'"x"', b',"metadata":{"attempted_models":[%b"a"]}' % (b'"a",' * (size // 4))
    ),
    "stream options": lambda size: _chat(b'"x"', b',"stream":true,"stream_options":[%b{}]' % (b"{}," * (size // 3))),
    "results of a tool, with context reuse": _tool_answer(lambda size: '{"results":[' + "{}," * (size // 4) + "{}]}"),
    "documents, with context reuse": _tool_answer(lambda size: "<doc></doc>" * (size // 12)),
}


class Row(NamedTuple):
    family: str
    size: str
    status: str
    took_ms: float
    stalls_ms: list[float]  # each repeat's longest, in order
    elsewhere_ms: list[float]  # the same of a sidecar that got no such body


class Neighbour:
    """Asks for a decision every 3 ms, and records the longest wait since it was last read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.worst_s = 0.0
        self.asked = 0
        self.failed = 0

    async def run(self) -> None:
        headers = {":method": "POST", ":path": CHAT, "content-type": "application/json", "x-request-id": "neighbour"}
        head = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(
                headers=pb.HeaderMap(
                    headers=[pb.HeaderValue(key=k.encode(), raw_value=v.encode()) for k, v in headers.items()]
                )
            ),
            protocol_config=pb.ProtocolConfiguration(request_body_mode=pb.BUFFERED),
        )
        body = pb.ProcessingRequest(request_body=pb.HttpBody(body=_chat(b'"hello"'), end_of_stream=True))
        async with grpc.aio.insecure_channel(self._address) as channel:
            method: Any = channel.stream_stream(
                f"/{SERVICE}/Process",
                request_serializer=pb.ProcessingRequest.SerializeToString,
                response_deserializer=pb.ProcessingResponse.FromString,
            )
            while True:
                started_s = time.perf_counter()
                call = method()
                for message in (head, body):
                    await call.write(message)
                    reply = await call.read()
                self.failed += reply.WhichOneof("response") != "request_body"
                self.worst_s = max(self.worst_s, time.perf_counter() - started_s)
                self.asked += 1
                await call.done_writing()
                await call.read()
                await asyncio.sleep(_INTERVAL_S)

    def take_worst_ms(self) -> float:
        worst_ms, self.worst_s = self.worst_s * 1e3, 0.0
        return worst_ms


def _post(address: str, body: bytes) -> str:
    """The status, or the error. Sending does not hold Python's GIL, so the neighbour's clock keeps running."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


async def measure(families: dict[str, Maker], sizes: dict[str, int], mode: Mode) -> tuple[list[Row], dict[str, str]]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("fairlead.tools.bench.upstream", "4"))
        addresses = await addresses_of(upstream)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-hostile-")))
        grpc_port, admin_port, spare_grpc, spare_admin, listen_port, envoy_admin = free_ports(6)
        models = (MODEL, MODEL, "large", "docs")
        document = {
            "listen": {"grpc": f"127.0.0.1:{grpc_port}", "admin": f"127.0.0.1:{admin_port}"},
            "gateway": {"listen": f"127.0.0.1:{listen_port}", "max_body_bytes": MAX_BODY_BYTES},
            "pool": {"endpoints": [{"address": a, "model": m} for a, m in zip(addresses, models, strict=True)]},
            "routes": {ROUTE: [MODEL, "large"]},
            "reuse": {"docs": {"always": ["order", "dedup"]}},
        }
        path = folder / "fairlead.yaml"
        path.write_text(yaml.safe_dump(document))
        sidecar = await stack.enter_async_context(child("fairlead", "serve", "--config", str(path)))
        await sidecar.until_ready(f"http://127.0.0.1:{admin_port}/readyz")
        spare = {"grpc": f"127.0.0.1:{spare_grpc}", "admin": f"127.0.0.1:{spare_admin}"}
        path = folder / "spare.yaml"
        path.write_text(yaml.safe_dump(document | {"listen": spare}))
        second = await stack.enter_async_context(child("fairlead", "serve", "--config", str(path)))
        await second.until_ready(f"http://{spare['admin']}/readyz")
        at_start = resident_bytes(sidecar.pid)
        tree = bootstrap(Config.model_validate(document), admin_address=f"127.0.0.1:{envoy_admin}", mode=mode)
        await stack.enter_async_context(EnvoyProcess(tree, concurrency=1))
        neighbour, elsewhere = Neighbour(f"127.0.0.1:{grpc_port}"), Neighbour(spare["grpc"])
        asking = [asyncio.create_task(each.run()) for each in (neighbour, elsewhere)]
        address = f"127.0.0.1:{listen_port}"
        for _ in range(2):  # warm-up: the first long body touches new memory pages
            await asyncio.to_thread(_post, address, FAMILIES["prose"](MAX_BODY_BYTES - 1000))
        rows: list[Row] = []
        neighbour.take_worst_ms(), elsewhere.take_worst_ms()
        await asyncio.sleep(3)
        rows.append(Row("nothing, for 3 s", "", "", 3000, [neighbour.take_worst_ms()], [elsewhere.take_worst_ms()]))
        for family, make in families.items():
            for size_name, size in sizes.items():
                if size > sizes.get("250 KB", size) and "context reuse" in family:
                    continue
                body = make(size)
                await asyncio.sleep(_AFTER_MAKING_S)
                stalls, controls, took, status = [], [], [], ""
                for _ in range(_REPEATS):
                    neighbour.take_worst_ms(), elsewhere.take_worst_ms()
                    started_s = time.perf_counter()
                    status = await asyncio.to_thread(_post, address, body)
                    took.append(time.perf_counter() - started_s)
                    await asyncio.sleep(0.03)
                    stalls.append(neighbour.take_worst_ms())
                    controls.append(elsewhere.take_worst_ms())
                del body
                rows.append(Row(family, size_name, status, max(took) * 1e3, sorted(stalls), sorted(controls)))
                print(*rows[-1], flush=True)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.sleep(_PAUSE_S)
        status_page = json.load(urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/debug/endpoints"))  # noqa: ASYNC210
        at_end = resident_bytes(sidecar.pid)
        facts = {
            "neighbour's requests": f"{neighbour.asked}, {neighbour.failed} without a decision",
            "in flight afterwards": json.dumps(_inflight(status_page)),
            "sidecar's memory, ready, at most, and at the end": (
                f"{at_start >> 20} MiB, {_most_resident_bytes(sidecar.pid) >> 20} MiB, {at_end >> 20} MiB"
            ),
        }
        return rows, facts


def _shown(row: Row) -> tuple[str, ...]:
    waits_ms = [(waits[len(waits) // 2], waits[-1]) for waits in (row.stalls_ms, row.elsewhere_ms)]
    return (
        row.family,
        row.size,
        row.status,
        f"{row.took_ms:.0f}",
        *(f"{wait:.1f}" for each in waits_ms for wait in each),
    )


def _over(waits_ms: list[float]) -> int:
    return sum(wait > LIMIT_MS for wait in waits_ms)


def _most_resident_bytes(pid: int) -> int:
    """As the kernel has seen it."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def _inflight(page: Any) -> Any:
    """Every count of load on the page, by endpoint."""
    endpoints = page["endpoints"] if isinstance(page, dict) else page
    return [{key: value for key, value in one.items() if "inflight" in key} for one in endpoints]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="families whose name contains this")
    parser.add_argument("--mode", choices=("buffered", "full_duplex"), default="buffered", help="of Envoy's bodies")
    args = parser.parse_args()
    chosen, mode = args.only, args.mode
    families = {name: make for name, make in FAMILIES.items() if chosen is None or chosen in name}
    machine = this_machine()
    rows, facts = asyncio.run(measure(families, SIZES, mode))
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    every = [wait for row in rows[1:] for wait in row.stalls_ms]
    others = [wait for row in rows[1:] for wait in row.elsewhere_ms]
    text = "\n".join(
        (
            "# Hostile bodies, and the neighbour's longest wait",
            "",
            machine_facts(f"python benchmarks/hostile_bodies.py --mode {mode}", 0, machine, os.getloadavg()[0]),
            *lines,
            f"- bodies sent: {len(every)}; waits of more than {LIMIT_MS:.0f} ms alongside them: {_over(every)} of the "
            f"neighbour, {_over(others)} of the other one; the goal is none on a quiet machine",
            f"- longest wait: {max(every):.1f} ms of the neighbour, {max(others):.1f} ms of the other one",
            "",
            f"Each body is sent {_REPEATS} times, and the longest wait during each is noted: the median of these and",
            "the most. The other one asks a sidecar that gets no such body, so what it waits for is the machine.",
            "",
            table(_HEADING, [_shown(row) for row in rows]),
            "",
        )
    )
    print(text)
    if chosen is None:
        _RESULTS[mode].write_text(text)


if __name__ == "__main__":
    main()
