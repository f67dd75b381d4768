"""The decision log of a sidecar behind a real Envoy, and the commands that read it."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import polars as pl
import pytest

from fairlead.client import Retry, ask_async
from fairlead.tools.decisions import read_decisions
from fairlead.tools.fit.judged import judged
from fairlead.tools.replay.traces import read_trace
from tests.command import fairlead
from tests.decision_log.object_store import KEY, ObjectStore
from tests.decision_log.object_store import SECRET as STORE_SECRET
from tests.stack.conftest import Stack, Start, engine

TREASURE = "the treasure lies under the third palm "


async def ask(pool: Stack, number: int, **headers: str) -> None:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await pool.chat(
        f"{TREASURE * 200} {number}", headers=names, stream=True, stream_options={"include_usage": True}
    )
    assert answer.status == 200


@pytest.mark.slow
async def test_what_was_decided_is_on_disk_without_a_word_of_prompts_and_can_be_replayed_and_judged(
    stack: Start, tmp_path: Path
) -> None:
    pool = await stack(
        engine("small"),
        engine("large"),
        decisions={"path": "log"},
        observe={"answers_per_second": 10_000, "messages_per_second": 10_000, "interval_ms": 500},
    )
    for number in range(6):
        await ask(pool, number, x_session_id="alice@example.org")
    await ask(pool, 5, x_session_id="alice@example.org", x_fairlead_attempted_models="small")
    await ask(pool, 5, x_session_id="alice@example.org", x_fairlead_attempted_models="small, large")
    await pool.at_rest()
    assert pool.stop_sidecar() == 0

    folder = pool.config_path.parent / "log"
    for file in folder.iterdir():
        assert not {b"treasure", b"alice"} & set(file.read_bytes().split())
        assert b"treasure" not in file.read_bytes()
    rows = read_decisions(folder)
    assert rows.height == 8
    assert rows["session"].n_unique() == 1
    assert rows["attempted"].to_list()[-2:] == [["small"], ["small", "large"]]
    assert rows["first_token_ms"].null_count() == 0
    assert set(rows["output_tokens"]) == {4}
    assert rows["blocks"].list.len().min() >= 1  # type: ignore[operator]
    assert rows["total_ms"].min() > 0  # type: ignore[operator]

    assert judged(rows, checked=False).attempts.is_empty(), "these clients name no question"
    assert judged(rows, checked=True).attempts["correct"].to_list().count(False) >= 1
    workload = read_trace(folder)
    assert (workload.requests, workload.name) == (6, "log")
    (conversation,) = workload.conversations
    assert conversation.turns[0].blocks()[:2] == conversation.turns[1].blocks()[:2]
    (tmp_path / "world.yaml").write_text("pool: [{model: small}, {model: large}]\nroutes: {auto: [small, large]}\n")
    policies = "fairlead,least_request"
    replayed = fairlead(
        *("replay", folder, "--world", "world.yaml", "--seeds", "1", "--policies", policies, "--jobs", "1"),
        folder=tmp_path,
    )
    assert (replayed.returncode, "from a decision log" in replayed.stdout) == (0, True), replayed.stderr
    fitted = fairlead("fit", folder, "--no-plot", "--answers-are-checked", folder=tmp_path)
    assert (fitted.returncode, "attempts" in fitted.stdout) == (0, True), fitted.stderr


async def test_the_clients_own_questions_are_judged_as_they_went(stack: Start) -> None:
    pool = await stack(engine("small"), engine("large"), decisions={"path": "log"})
    truth, rng, unadvised = [], Random(0), list[tuple[float, float]]()
    for number in range(40):
        body = {"model": "auto", "messages": [{"role": "user", "content": f"question {number:04}"}], "max_tokens": 4}
        session = None if number % 2 else f"session {number // 4}"
        began_s = time.time()
        answer = await ask_async(
            pool.url, body, lambda _: rng.random() < 0.5, retry=Retry(max_attempts=3), session_id=session
        )
        if not all(each.decision for each in answer.attempts):  # a busy machine: Envoy took the sidecar for dead
            unadvised.append((began_s, time.time()))
            continue
        truth += [(a.model, a.correct) for place, a in enumerate(answer.attempts) if place < 2]
    await pool.at_rest()
    assert pool.stop_sidecar() == 0
    assert len(unadvised) < 20

    rows = read_decisions(pool.config_path.parent / "log")
    for began_s, ended_s in unadvised:
        rows = rows.filter(~pl.col("at_s").is_between(began_s, ended_s))
    found = judged(rows, checked=False)
    assert list(found.attempts.select("model", "correct").iter_rows()) == truth
    assert found.inferred == 0
    assert {model for model, _ in truth} == {"small", "large"}


async def test_while_an_object_store_is_away_requests_flow_and_rows_wait_for_it(
    stack: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    pool = await stack(engine("small"), decisions={"path": "s3://decisions/log", "spool": "spool"})
    spool = pool.config_path.parent / "spool"
    for number in range(3):
        assert (await pool.chat(str(number), model="small")).status == 200
    await pool.at_rest()
    assert await pool.metric("fairlead_decision_log_uploads_total", outcome="uploaded") == 0
    assert pool.stop_sidecar() == 0
    assert len(list(spool.iterdir())) == 1, "nobody took it"

    with store:
        await pool.start_sidecar()

        async def taken() -> bool:
            return await pool.metric("fairlead_decision_log_uploads_total", outcome="uploaded") == 1

        await pool.until(taken, "what was left is in the store")
        assert read_decisions("s3://decisions/log").height == 3
    assert pool.stop_sidecar() == 0
    assert list(spool.iterdir()) == []
    assert not [secret for secret in (KEY, STORE_SECRET) if secret in pool.log()]


async def test_its_rows_are_counted(stack: Start) -> None:
    pool = await stack(engine("small"), decisions={"path": "log", "sample": 1.0, "rotate_mb": 1})
    await pool.chat(model="small")
    await pool.at_rest()
    assert await pool.metric("fairlead_decision_log_rows_total", outcome="dropped") == 0
    assert pool.stop_sidecar() == 0
    assert read_decisions(pool.config_path.parent / "log").height == 1
