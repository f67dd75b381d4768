"""The state file: read at the start, written at the end, and never a reason not to serve."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead.core.answer_times import Work
from fairlead.core.learned_state import VERSION, EngineState
from fairlead.core.running import WINDOW
from fairlead.discovery.file import _MOST_ENDPOINTS
from fairlead.redis.drains import ENDED_PREFIX, KEY_PREFIX
from fairlead.serving.learned_file import MOST_BYTES, LearnedFile
from fairlead.serving.sidecar import Sidecar
from tests.core.test_learning import seen
from tests.redis.server import RedisServer
from tests.serving.world import ConfigFile
from tests.waiting import until


async def learned_ms(file: ConfigFile, *, answers: int = 0) -> float:
    """Prefill in force in a sidecar that starts, observes so many answers, and ends."""
    async with Sidecar(file.write(observe={"state": "kept/learned.json"})) as sidecar:
        services = sidecar.services
        for _ in range(answers):
            observed = seen(address="127.0.0.1:1", model="small")
            services.learner.observe(observed, services.router.pool)
            services.recorder.observed(observed)
        return services.router.pool.endpoints[0].speed.prefill_ms_per_token


async def test_what_was_learned_survives_a_restart(file: ConfigFile) -> None:
    assert await learned_ms(file, answers=20) == 0.1
    assert await learned_ms(file) == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff", b'{"version": 3}', b"[" * 100_000,
        b'{"version":2,"saved_at":0,"clock_s":0,"models":{},"engines":[],"tokens":{"m":[[[[1000,1.0]],5]]}}',
        b'{"version":2,"saved_at":0,"clock_s":0,"models":{"small":{"works":[],"line":[0,1e400,1,0],"knows_prefill":true,'
        b'"knows_decode":true,"answer_tokens":[]}},"engines":[],"tokens":{}}',
        b'{"version":2,"saved_at":0,"clock_s":0,"models":{"small":{"works":[],"line":[0,1,1,0],"knows_prefill":true,'
        b'"knows_decode":true,"answer_tokens":[],"prefill_growth":1e-300}},"engines":[],"tokens":{}}',
    ],
)  # fmt: skip
async def test_a_file_that_cannot_be_read_is_left_out_with_a_line_in_the_log(file: ConfigFile, content: bytes) -> None:
    (file.folder / "kept").mkdir()
    (file.folder / "kept" / "learned.json").write_bytes(content)
    with capture_logs() as logs:
        assert await learned_ms(file) == 0.1
    (warned,) = [line for line in logs if line["event"].startswith("what was learned before is not used")]
    assert warned["file"] == str(file.folder / "kept" / "learned.json")


async def test_a_file_that_cannot_be_written_is_a_line_in_the_log(file: ConfigFile) -> None:
    (file.folder / "kept").write_text("in the way")
    with capture_logs() as logs:
        assert await learned_ms(file, answers=20) == 0.1
    assert any(line["event"] == "what was learned cannot be saved" for line in logs)


async def test_a_file_that_cannot_even_be_looked_at_does_not_keep_the_sidecar_from_serving(file: ConfigFile) -> None:
    with capture_logs() as logs:  # as one in a folder that this user may not enter
        async with Sidecar(file.write(observe={"state": "x" * 300})) as sidecar:
            assert sidecar.services.is_ready
    assert any(line["event"].startswith("what was learned before is not used") for line in logs)


async def test_without_news_the_file_stays_as_it_is(file: ConfigFile) -> None:
    await learned_ms(file, answers=20)
    path = file.folder / "kept" / "learned.json"
    written = path.stat().st_mtime_ns
    await learned_ms(file)
    assert path.stat().st_mtime_ns == written
    assert msgspec.json.decode(path.read_bytes())["version"] == VERSION


def test_of_the_most_engines_that_are_followed_all_samples_fit_into_the_file() -> None:
    work = Work(*[123456.12345678901] * 11)
    address, model = "[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535", "meta-llama/Llama-3.1-8B-Instruct"
    engine = EngineState(address, model, [work] * 32, [work] * 32, [123456.12345678901] * WINDOW)
    assert _MOST_ENDPOINTS * len(msgspec.json.encode(engine)) < MOST_BYTES


async def test_requests_are_served_while_the_file_of_many_engines_is_made(file: ConfigFile) -> None:
    async with Sidecar(file.write(observe={"state": "kept/learned.json"})) as sidecar:
        learner, recorder = sidecar.services.learner, sidecar.services.recorder
        learner.observe(seen(address="127.0.0.1:1", model="small"), sidecar.services.router.pool)
        (known,) = learner.engines.values()
        known.prefill.samples.extend(64 * [Work(*[123456.12345678901] * 11)])
        learner.engines |= {(f"10.0.{number}.1:1", "small"): known for number in range(300)}
        recorder.observations += 1
        learned = LearnedFile(sidecar.services, file.folder)
        saving, turns = asyncio.ensure_future(learned.save()), 0
        while not saving.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        assert len(msgspec.json.decode((file.folder / "kept" / "learned.json").read_bytes())["engines"]) == 301

        recorder.observations += 1
        saving = asyncio.ensure_future(learned.save(pause_s=60.0))
        await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait([saving])
        assert learned._saved_answers < recorder.observations, "what was interrupted is not saved"


async def test_a_restarted_sidecar_still_drains(file: ConfigFile) -> None:
    path = file.write(observe={"state": "kept/learned.json"})
    async with Sidecar(path) as sidecar:
        (endpoint,) = sidecar.services.router.pool.endpoints[:1]
        sidecar.services.router.planner.draining.add(endpoint.address)
    async with Sidecar(path) as sidecar:
        assert sidecar.services.router.planner.draining == {endpoint.address}
        sidecar.services.router.planner.draining.clear()
    async with Sidecar(path) as sidecar:
        assert not sidecar.services.router.planner.draining


async def test_a_drain_of_the_file_that_was_ended_since_at_another_sidecar_does_not_go_on(
    file: ConfigFile, redis: RedisServer
) -> None:
    address = "127.0.0.1:1"
    state = {"version": VERSION, "saved_at": 0, "clock_s": 0, "models": {}, "engines": [], "tokens": {}}
    (file.folder / "learned.json").write_bytes(msgspec.json.encode(state | {"draining": [address]}))
    redis.ask("SET", ENDED_PREFIX + address, "1")
    async with Sidecar(file.write(observe={"state": "learned.json"}, sessions={"store": redis.url})) as sidecar:
        draining = sidecar.services.router.planner.draining
        assert draining == {address}
        await until(lambda: not draining)
    assert redis.ask("EXISTS", KEY_PREFIX + address) == ":0\r\n"
