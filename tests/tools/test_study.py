"""Processes of a study end with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fairlead.tools import study
from fairlead.tools.replay.policy_spec import read_policy_spec
from fairlead.tools.replay.run import ReplayPlan, Traffic, run
from fairlead.tools.replay.world import alike
from fairlead.tools.study import progress_bar, worker_processes


def test_ctrl_c_ends_a_replay_and_the_runs_that_have_begun(tmp_path: Path) -> None:
    """Otherwise each process would finish its run and the one that is queued for it: minutes, of a long trace."""
    trace = tmp_path / "trace.jsonl"  # a pool that is watched for most of a year, and takes hours to simulate
    rows = ({"at_s": at_s, "prompt_tokens": 9, "output_tokens": 9} for at_s in (0, 2e7))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = ReplayPlan((Traffic(str(trace)),), (read_policy_spec("round_robin"),), seeds=(0, 1, 2), world=alike(2))

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, jobs=2, progress=interrupted)
    assert multiprocessing.active_children() == []


def test_a_mistake_that_one_process_finds_ends_the_others() -> None:
    began_s = time.monotonic()
    endless: list[Future[Any]] = []
    with pytest.raises(ZeroDivisionError), worker_processes(2) as pool:  # noqa: PT012 - it is the pool that is tested
        endless.append(pool.submit(time.sleep, 600))
        pool.submit(divmod, 1, 0).result()
    assert multiprocessing.active_children() == []
    assert endless[0].done()
    assert time.monotonic() - began_s < 60


def test_processes_of_others_go_on() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    other.start()
    try:
        with pytest.raises(ZeroDivisionError), worker_processes(1) as pool:
            pool.submit(divmod, 1, 0).result()
        assert multiprocessing.active_children() == [other]
    finally:
        os.kill(other.pid or 0, signal.SIGKILL)
        other.join()


def test_where_nothing_can_be_redrawn_a_line_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(study, "monotonic", lambda: now_s)
    with progress_bar("runs") as progress:
        task = progress.add_task("Replaying", total=1_000)
        for _ in range(10):
            progress.advance(task, 10)
            now_s += study.LINE_EVERY_S / 4
        lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert [line.split(" runs")[0] for line in lines] == [f"Replaying {done}/1,000" for done in (10, 50, 90)]
