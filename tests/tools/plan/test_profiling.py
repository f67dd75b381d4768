"""A sample through every model: resumable, and honest about what it could not ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from fairlead.cascade.judge import FunctionJudge
from fairlead.cascade.rows import read_rows
from fairlead.errors import UserError
from fairlead.tools.plan.profiling import Asking, ProfilingCounts, SampleRequest, done_already, profile, read_requests
from fairlead.tools.plan.sample import make_profile
from tests.cascade.conftest import Endpoint


def exact(request: Mapping[str, Any], answer: str) -> bool:
    return bool(answer == request["expected"])


def requests(path: Path, count: int = 30) -> list[SampleRequest]:
    each = [
        {"id": f"q{i}", "messages": [{"role": "user", "content": str(i)}], "expected": f"a{i}"} for i in range(count)
    ]
    path.write_bytes(b"\n".join(msgspec.json.encode(one) for one in each))
    return read_requests(path)


async def answer(body: dict[str, Any]) -> str | web.Response:
    """`large` is right, `small` is right on even numbers, and nothing else is served."""
    if body["model"] not in ("small", "large"):
        return web.json_response({"error": {"message": "no such model"}}, status=404)
    number = int(body["messages"][0]["content"])
    assert "expected" not in body, "what the judge needs is not for the models"
    return f"a{number}" if body["model"] == "large" or number % 2 == 0 else "wrong"


async def run(
    url: str, sample: Sequence[SampleRequest], out: Path, models: Sequence[str] = ("small", "large")
) -> ProfilingCounts:
    asking = Asking(url, models, concurrency=4, timeout_s=5.0)
    async with aiohttp.ClientSession() as session:
        return await profile(sample, asking, FunctionJudge(exact), out, done_already(out), session, lambda: None)


async def test_every_model_answers_every_request_and_is_judged(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "profile.jsonl"
    counts = await run(await endpoint(answer), requests(tmp_path / "requests.jsonl"), out)
    assert (counts.done, counts.failed) == (60, 0)
    sample = make_profile(read_rows(out), ["small", "large"], "profile")
    assert (sample.score.mean(axis=0) == [50, 100]).all()


async def test_a_second_run_asks_only_what_is_missing(endpoint: Endpoint, tmp_path: Path) -> None:
    url, out = await endpoint(answer), tmp_path / "profile.jsonl"
    sample = requests(tmp_path / "requests.jsonl")
    await run(url, sample[:10], out)
    with out.open("ab") as file:
        file.write(b'{"request":"q10","mod')  # as a crash would leave it
    assert (await run(url, sample, out)).done == 40
    assert len(read_rows(out)) == 60
    assert (await run(url, sample, out)).done == 0


async def test_a_model_that_is_not_served_ends_it_with_its_name(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not serve huge"):
        await run(await endpoint(answer), requests(tmp_path / "r.jsonl"), tmp_path / "out.jsonl", ["small", "huge"])


async def test_answers_that_fail_are_counted_and_left_for_another_run(endpoint: Endpoint, tmp_path: Path) -> None:
    async def sometimes(body: dict[str, Any]) -> str | web.Response:
        return web.Response(status=500) if body["messages"][0]["content"] == "3" else await answer(body)

    out = tmp_path / "profile.jsonl"
    counts = await run(await endpoint(sometimes), requests(tmp_path / "r.jsonl"), out)
    assert (counts.done, counts.failed, "500" in counts.last_cause) == (58, 2, True)
    assert (await run(await endpoint(answer), requests(tmp_path / "r.jsonl"), out)).done == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "a"}', "neither"),
        (b"{", "truncated"),
        (b'{"id": "q0", "prompt": "again"}\n{"id": "q0", "prompt": "again"}', "twice"),
        (b"", "no request"),
    ],
)
def test_a_request_file_with_a_fault_names_its_line(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(line)
    with pytest.raises(UserError, match=said):
        read_requests(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"request":"a","model":"m","prompt_tokens":0,"output_tokens":1,"latency_ms":1,"score":1}', ":1: .* prompt"),
        (b'{"request":"a","model":"m","prompt_tokens":1,"output_tokens":1,"latency_ms":1,"score":200}', "0 to 100"),
        (b'{"request":"a","model":"m","prompt_tokens":1}', "output_tokens"),
        (b"nonsense", "malformed"),
    ],
)
def test_a_table_with_a_fault_names_its_line(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(UserError, match=said):
        read_rows(path)


async def test_a_profile_without_a_model_of_the_cascade_is_reported(endpoint: Endpoint, tmp_path: Path) -> None:
    out = tmp_path / "profile.jsonl"
    await run(await endpoint(answer), requests(tmp_path / "r.jsonl"), out)
    with pytest.raises(UserError, match=r"no row of the model medium.*there are: large, small"):
        make_profile(read_rows(out), ["small", "medium", "large"], "profile.jsonl")
    with pytest.raises(UserError, match="10 of 10 requests"):
        make_profile(read_rows(out)[:20], ["small", "large"], "profile.jsonl")


@pytest.mark.parametrize("read", [read_requests, read_rows])
def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes('\n{"request": "café", "messages": []}\n'.encode("latin-1"))
    with pytest.raises(UserError, match=f"{path}:2: is not UTF-8 text; save the file as UTF-8"):
        read(path)
