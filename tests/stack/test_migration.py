"""Hot sessions move through a real Envoy, and every fault of a move leaves users and bindings as they were."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import typer
from typer.testing import CliRunner

from fairlead.commands import migrate as command
from fairlead.errors import UserError
from fairlead.tools.simulate.kv_exchange import KvOptions
from fairlead.tools.simulate.server import EngineOptions
from tests.redis.server import RedisServer
from tests.stack.conftest import Answer, Stack, Start

MS_PER_TOKEN: Final = 1.0  # what the sidecar is told: far more than the engines take, so that a hot one stays so
TIME_SCALE: Final = 5.0
CONTEXT: Final = "The quick brown fox jumps over the lazy dog and runs into the woods. " * 220  # some 3,400 tokens
OTHER_CONTEXT: Final = "Pack my box with five dozen liquor jugs and carry it over the hill by noon. " * 220
LONG: Final = "Much more text than any engine of this pool has ever seen. " * 5000  # 65,000 tokens: 65 s of prefill
RULES: Final = {"hot_tokens": 4000, "hot_ratio": 1.0, "least_tokens": 1000, "export_s": 60, "import_s": 60}


def engine() -> EngineOptions:
    return EngineOptions(model="m", time_scale=TIME_SCALE, kv=KvOptions("mooncake", abort_timeout_s=600.0))


async def started(stack: Start, *, rules: Mapping[str, float] = RULES, **sections: Any) -> Stack:
    """Two engines under `ear`, whose sessions move."""
    models = {"m": {"prefill_ms_per_token": MS_PER_TOKEN, "kv_bytes_per_token": 1024}}
    unlearned = {"interval_ms": 100, "timeout_ms": 10_000, "answers_per_second": 0}
    common = {"policy": {"name": "ear"}, "migration": dict(rules), "models": models, "observe": unlearned}
    pool = await stack(engine(), engine(), **common, **sections)

    async def identified() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/endpoints") as response:
            found = (await response.json())["endpoints"]
        return all(e["version"] and e["reported"]["kv_capacity_tokens"] for e in found)

    await pool.until(identified, "the engines have told their version")
    return pool


async def turn(
    pool: Stack, session: str, number: int, context: str = CONTEXT, *, tenant: str = "", **body: Any
) -> Answer:
    messages: list[dict[str, str]] = [{"role": "system", "content": f"{session} {context}"}]
    for n in range(number + 1):
        messages += [{"role": "user", "content": f"Question {n}?"}, {"role": "assistant", "content": f"Answer {n}."}]
    headers = {"x-session-id": session} | ({"x-tenant": tenant} if tenant else {})
    answer = await pool.chat(model="m", messages=messages[:-1], headers=headers, **body)
    assert answer.status == 200, answer.body
    return answer


def home_of(answer: Answer) -> str:
    return answer.headers["x-fairlead-endpoint"]


@asynccontextmanager
async def heat(pool: Stack, home: str) -> AsyncIterator[None]:
    """The endpoint is hot: a session that lives there has sent a long prompt, and leaves when the block ends.

    It is so for the next decision. An engine seen at work on a later request has the long one behind it.
    """
    number = 0
    while home_of(await turn(pool, f"heater-{home}-{number}", 0, "short")) != home:
        number += 1
    await pool.fault(number_of(pool, home), kind="hang", count=1)
    long = asyncio.create_task(turn(pool, f"heater-{home}-{number}", 1, LONG))

    async def pending() -> float:
        return await pool.metric("fairlead_pending_prefill_tokens", endpoint=home)

    async def hot() -> bool:
        return await pending() > RULES["hot_tokens"]

    async def cool() -> bool:
        return not await hot()

    await pool.until(hot, "the host is hot")
    yield
    long.cancel()
    await pool.until(cool, "the host is hot no more")


async def ended(pool: Stack, moves: int = 1) -> None:
    async def none_under_way() -> bool:
        tried = await pool.metric("fairlead_session_migrations_total", way="copy", outcome="tried")
        return tried >= moves and await pool.metric("fairlead_session_migrations_under_way") == 0

    await pool.until(none_under_way, "the copy has ended")


async def outcome(pool: Stack, name: str) -> float:
    return await pool.metric("fairlead_session_migrations_total", way="copy", outcome=name)


def number_of(pool: Stack, address: str) -> int:
    return [e.address for e in pool.engines].index(address)


async def test_a_tenants_session_moves_with_its_own_cache(stack: Start) -> None:
    pool = await started(stack, tenants={"header": "x-tenant", "vouched_by": "the test"})
    home = home_of(await turn(pool, "s", 0, tenant="one"))
    async with heat(pool, home):
        await turn(pool, "s", 1, tenant="one")
        await ended(pool)
        after = await turn(pool, "s", 2, tenant="one")
    assert home_of(after) != home
    assert after.cached_share > 0.95
    assert await outcome(pool, "done") == 1
    assert (await turn(pool, "s", 2, tenant="two")).cached_share == 0


async def test_a_session_moves_off_a_hot_endpoint_and_its_context_with_it(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    async with heat(pool, home):
        during = await turn(pool, "s", 1)
        await ended(pool)
        after = await turn(pool, "s", 2)
    assert home_of(during) == home
    assert home_of(after) != home
    assert after.cached_share > 0.95
    assert after.headers["x-fairlead-decision"] == "affinity"
    assert [d["migration"] for d in await pool.decisions() if d["migration"]] == [f"copy to {home_of(after)}"]
    assert await outcome(pool, "done") == 1
    tokens = await pool.metric("fairlead_session_migrated_tokens_total")
    assert tokens > 3000
    assert await pool.metric("fairlead_session_migrated_bytes_total") == tokens * 1024
    assert await pool.metric("fairlead_session_migration_seconds_count", stage="import") == 1


async def test_an_agent_that_shares_the_id_of_a_moved_session_is_served_where_its_own_context_is(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    assert home_of(await turn(pool, "s", 0, OTHER_CONTEXT)) == home
    async with heat(pool, home):
        await turn(pool, "s", 1)
        await ended(pool)
    assert home_of(await turn(pool, "s", 2)) != home
    other = await turn(pool, "s", 1, OTHER_CONTEXT)
    assert (home_of(other), other.cached_share > 0.9) == (home, True)
    after = await turn(pool, "s", 3)
    assert (home_of(after) != home, after.cached_share > 0.9) == (True, True)


async def test_after_a_move_a_session_stays_though_its_new_endpoint_is_hot(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    async with heat(pool, home):
        await turn(pool, "s", 1)
        await ended(pool)
    target = home_of(await turn(pool, "s", 2))
    await pool.at_rest()
    async with heat(pool, target):
        assert home_of(await turn(pool, "s", 3)) == target
    assert (await pool.decisions())[0]["migration"] in ("stays: cooling", "")
    assert await pool.metric("fairlead_session_migrations_refused_total", reason="cooling") == 1
    assert home_of(await turn(pool, "s", 4)) == target


async def test_engines_over_one_store_redirect_the_request_itself(stack: Start) -> None:
    pool = await started(stack)
    shared = [e | {"kv_transfer": {"connector": "shared"}} for e in pool.document["pool"]["endpoints"]]
    pool.write(pool=pool.document["pool"] | {"endpoints": shared})
    await pool.until(pool.has_reloaded, "the sidecar has read that the engines share a store")
    home = home_of(await turn(pool, "s", 0))
    async with heat(pool, home):
        redirected = await turn(pool, "s", 1)
    assert home_of(redirected) != home
    assert redirected.headers["x-fairlead-decision"] == "migration"
    assert home_of(await turn(pool, "s", 2)) == home_of(redirected)


FAULTS: Final = [
    ("export", {"kind": "reset", "only": "export"}),
    ("export", {"kind": "hang", "only": "export"}),
    ("import", {"kind": "hang", "only": "import"}),
    ("import", {"kind": "miscount", "only": "import"}),
    ("discover", {"kind": "no_bootstrap"}),
]


@pytest.mark.parametrize(("stage", "fault"), FAULTS, ids=[f"{f['kind']}-{stage}" for stage, f in FAULTS])
async def test_a_move_that_fails_costs_the_user_nothing(stack: Start, stage: str, fault: dict[str, str]) -> None:
    rules = {**RULES, f"{stage}_s": 1.0} if fault["kind"] == "hang" else RULES
    pool = await started(stack, rules=rules)
    home = home_of(await turn(pool, "s", 0))
    source = number_of(pool, home)
    async with heat(pool, home):
        await pool.fault(1 - source if stage == "import" else source, **fault)
        during = await turn(pool, "s", 1)
        await ended(pool)
    after = await turn(pool, "s", 2)
    assert {home_of(during), home_of(after)} == {home}
    assert after.cached_share > 0.9
    assert await outcome(pool, "done") == 0
    assert await pool.metric("fairlead_session_migrations_failures_total", stage=stage) == 1
    exchange = pool.engines[1 - source].exchange
    assert exchange is not None
    assert exchange.wrong_kv == 0


@pytest.mark.parametrize("dies", ["host", "target"])
async def test_an_engine_that_dies_during_a_move_loses_no_request(stack: Start, dies: str) -> None:
    pool = await started(stack, rules={**RULES, "cool_down_s": 0})
    home = home_of(await turn(pool, "s", 0))
    source = number_of(pool, home)
    target = pool.engines[1 - source]
    exchange = pool.engines[source].exchange
    assert exchange is not None
    async with heat(pool, home):
        await pool.fault(1 - source, kind="slow", delay_ms=1e9, only="import")
        await turn(pool, "s", 1)

        async def exported() -> bool:
            if await pool.metric("fairlead_session_migrations_under_way") == 0:  # a busy machine let a deadline pass
                await turn(pool, "s", 1)
            return exchange.pinned_blocks > 0

        await pool.until(exported, "the host has exported")
    await pool.engines[source if dies == "host" else 1 - source].stop()
    target.faults.set(None)
    await ended(pool)
    after = await turn(pool, "s", 2)
    assert await outcome(pool, "done") == 0
    assert (home_of(after) == home) == (dies == "target")


async def test_a_turn_during_the_move_is_answered_by_the_bound_endpoint(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    target = pool.engines[1 - number_of(pool, home)]
    async with heat(pool, home):
        await pool.fault(number_of(pool, target.address), kind="slow", delay_ms=1e9, only="import")
        await turn(pool, "s", 1)
        assert home_of(await turn(pool, "s", 2)) == home
    target.faults.set(None)
    await ended(pool)
    after = await turn(pool, "s", 3)
    assert home_of(after) != home
    assert after.cached_share > 0.9


async def test_a_client_cannot_move_kv_itself(stack: Start) -> None:
    pool = await started(stack)
    answer = await pool.chat(
        model="m", kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "x"}
    )
    assert answer.status == 200
    assert [e.exchange.pinned_blocks for e in pool.engines if e.exchange is not None] == [0, 0]


async def migrate(pool: Stack, *words: str) -> tuple[int, str]:
    """The command's exit status and all that it says, as `fairlead` itself would end."""
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    asked = ["migrate", *words, "--admin", pool.document["listen"]["admin"], "--token-file", str(pool.token_path)]
    done = await asyncio.to_thread(CliRunner().invoke, app, asked)
    if isinstance(done.exception, UserError):
        return 2, f"{done.output}{done.exception}"
    return done.exit_code, done.output


async def test_an_operator_moves_one_session(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    other = pool.engines[1 - number_of(pool, home)].address
    code, output = await migrate(pool, "s", "--to", other, "--dry-run")
    assert (code, "its KV is copied" in output) == (0, True)
    moving = asyncio.create_task(migrate(pool, "s", "--to", other))

    async def ordered() -> bool:
        return await pool.metric("fairlead_session_migrations_ordered") == 1

    await pool.until(ordered, "the order is there")
    await turn(pool, "s", 1)
    code, output = await moving
    assert (code, f"it is bound to {other}" in output) == (0, True), output
    after = await turn(pool, "s", 2)
    assert (home_of(after), after.cached_share > 0.95) == (other, True)


async def test_a_session_that_sends_nothing_is_not_moved_and_the_order_is_taken_back(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    other = pool.engines[1 - number_of(pool, home)].address
    code, output = await migrate(pool, "s", "--to", other, "--wait-s", "0.1")
    assert (code, "no request within 0.1 s" in output) == (1, True), output
    assert home_of(await turn(pool, "s", 1)) == home


async def test_an_operator_drains_an_endpoint_until_it_can_be_stopped(stack: Start) -> None:
    pool = await started(stack)
    homes = {session: home_of(await turn(pool, session, 0)) for session in "stuv"}
    drained = homes["s"]
    staying = [session for session, home in homes.items() if home == drained]
    draining = asyncio.create_task(migrate(pool, "--drain", drained, "--wait-s", "200"))

    async def begun() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/endpoints") as response:
            return any(e["draining"] for e in (await response.json())["endpoints"])

    await pool.until(begun, "the endpoint drains")
    assert home_of(await turn(pool, "new", 0)) != drained
    for session in staying:  # one by one; where nothing can take it just then, its next request moves it

        async def moved(session: str = session) -> bool:
            return home_of(await turn(pool, session, 1)) != drained

        await pool.until(moved, "the session has moved")
    page = await (await pool.client.get(f"{pool.admin_url}/metrics")).text()
    counted = re.findall(r"^fairlead_session_migrations_.*", page, re.MULTILINE)
    assert await outcome(pool, "done") == len(staying), counted
    code, output = await draining
    assert (code, f"{drained} is drained and can be stopped" in output) == (0, True), output
    assert "sent no request" not in output, output
    await pool.engines[number_of(pool, drained)].stop()
    after = await turn(pool, "s", 2)
    assert (home_of(after) != drained, after.cached_share > 0.95) == (True, True)


@pytest.mark.parametrize(
    ("body", "fault", "why"),
    [
        ({"reasoning_effort": "low"}, None, {"outcome": "dropped"}),
        ({}, {"kind": "reset", "only": "export"}, {"outcome": "failed"}),
    ],
    ids=["not-by-tokens", "copy-fails"],
)
async def test_a_session_that_cannot_be_copied_leaves_a_draining_endpoint_all_the_same(
    stack: Start, body: dict[str, str], fault: dict[str, str] | None, why: dict[str, str]
) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0, **body))
    if fault is not None:
        await pool.fault(number_of(pool, home), **fault)
    draining = asyncio.create_task(migrate(pool, "--drain", home, "--wait-s", "200"))

    async def tried() -> bool:
        await turn(pool, "s", 1, **body)
        return await pool.metric("fairlead_session_migrations_total", way="copy", **why) == 1

    async def moved() -> bool:
        return home_of(await turn(pool, "s", 2, **body)) != home

    await pool.until(tried, "a copy was tried")
    await pool.until(moved, "the session has moved")
    code, output = await draining
    assert (code, "sent no request" in output) == (0, False), output
    assert await pool.metric("fairlead_session_migrations_total", way="recompute", outcome="done") == 1


async def test_a_drain_says_how_many_sessions_sent_nothing_while_it_waited(stack: Start) -> None:
    pool = await started(stack)
    homes = [home_of(await turn(pool, session, 0)) for session in "stuv"]
    code, output = await migrate(pool, "--drain", homes[0], "--wait-s", "0.1")
    assert (code, f"{homes.count(homes[0])} session" in output, "sent no request" in output) == (0, True, True), output


async def test_a_drain_that_is_interrupted_says_that_it_goes_on(stack: Start) -> None:
    pool = await started(stack)
    home = home_of(await turn(pool, "s", 0))
    asked = ["migrate", "--drain", home, "--admin", pool.document["listen"]["admin"], "--token-file", pool.token_path]
    interrupted = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", *asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert interrupted.stdout is not None
    assert b"1 sessions" in await interrupted.stdout.readline()  # the drain has begun
    interrupted.send_signal(signal.SIGINT)
    _, errors = await interrupted.communicate()
    assert f"{home} goes on draining; fairlead migrate --undrain {home} ends it" in errors.decode()
    assert interrupted.returncode != 0


async def test_wrong_arguments_of_migrate_are_reported_in_a_sentence(stack: Start) -> None:
    pool = await started(stack)
    for words, sentence in (
        (("s",), "write SESSION --to HOST:PORT"),
        (("nobody", "--to", pool.engines[0].address), "knows no such session"),
        (("--drain", "127.0.0.1:1"), "is not an endpoint of the pool"),
        (("--drain", "here"), "has no port"),
    ):
        code, output = await migrate(pool, *words)
        assert (code, sentence in output, "Traceback" in output) == (2, True, False), output


async def test_a_web_page_cannot_give_orders(stack: Start) -> None:
    pool = await started(stack)
    order = f'{{"endpoint":"{pool.engines[0].address}"}}'
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/json", "origin": "http://evil"}):
        headers |= {"authorization": f"Bearer {pool.token_path.read_text(encoding='utf-8')}"}
        async with pool.client.post(f"{pool.admin_url}/migrate/drain", data=order, headers=headers) as response:
            assert response.status == 403


async def test_who_has_no_token_moves_nothing_and_reads_what_to_add(stack: Start) -> None:
    pool = await started(stack)
    pool.token_path = pool.token_path.with_name("other.token")
    pool.token_path.write_text("o" * 48, encoding="utf-8")
    code, output = await migrate(pool, "--drain", pool.engines[0].address)
    assert (code, "--token-file" in output) == (2, True)


async def test_a_move_holds_though_redis_goes_in_its_middle(stack: Start, redis: RedisServer) -> None:
    pool = await started(stack, sessions={"store": redis.url})
    home = home_of(await turn(pool, "s", 0))
    target = pool.engines[1 - number_of(pool, home)]
    async with heat(pool, home):
        await pool.fault(number_of(pool, target.address), kind="slow", delay_ms=1e9, only="import")
        await turn(pool, "s", 1)
        redis.kill()
    target.faults.set(None)
    await ended(pool)
    after = await turn(pool, "s", 2)
    assert home_of(after) != home
    assert after.cached_share > 0.95
