"""`fairlead engine` as a user starts it: its line, its end, and its errors in one sentence."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS

pytestmark = pytest.mark.stack

COMMAND = [sys.executable, "-c", "from fairlead.cli import main; main()", "engine"]
KEY, VALUE = "6ab6ea3e-f288-4f33-bad6-7f42bb75b03f", "c0ffee00-1111-4222-8333-444455556666"
OTHER = "0badcafe-1111-4222-8333-444455556666"
QUESTION = f'"{KEY}": "{VALUE}", "{VALUE}": "{OTHER}" Key: {KEY}'


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the URL that its one line tells."""
    command = [*COMMAND, "--model", "m", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)


def accuracy_file(folder: Path, probability: float) -> Path:
    table = {language: [probability] * len(BUCKETS) for language in LANGUAGES}
    path = folder / "accuracy.json"
    path.write_text(json.dumps({"task": "kv-lookup", "buckets": BUCKETS, "models": {"m": table}}))
    return path


def test_a_request_has_a_fixed_cost_if_it_is_given_one() -> None:
    with started("--request-overhead-ms", "60000", "--time-scale", "10000") as (_, url):
        body = {"model": "m", "prompt": "x", "max_tokens": 1}
        httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()
        page = httpx.get(f"{url}/metrics", timeout=60).text
    (seconds,) = re.findall(r"^vllm:time_to_first_token_seconds_sum\{.*\} (\S+)$", page, re.MULTILINE)
    assert float(seconds) == pytest.approx(0.006, rel=0.01)  # of the engine's clock: the machine has no part in it


def test_with_a_bootstrap_port_it_has_a_kv_connector_and_tells_where() -> None:
    command = [*COMMAND, "--model", "m", "--listen", "127.0.0.1:0", "--bootstrap-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            output = process.stdout.readline().partition("its bootstrap server on ")[2]
            known = httpx.get(f"http://{output.split(',')[0]}/query").json()
        finally:
            process.kill()
    assert known["0"]["engine_id"]


def test_it_tells_its_address_serves_and_ends_with_0_on_sigterm() -> None:
    with started() as (process, url):
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "m"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_sigterm_ends_it_in_the_middle_of_a_stream() -> None:
    body = {"prompt": "go on", "max_tokens": 100_000, "stream": True}
    with started() as (process, url), httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        assert response.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize(("probability", "expected"), [(1.0, VALUE), (0.0, OTHER)])
def test_the_accuracy_file_decides_how_often_it_is_right(tmp_path: Path, probability: float, expected: str) -> None:
    with started("--accuracy", str(accuracy_file(tmp_path, probability)), "--time-scale", "50") as (_, url):
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == expected


def test_a_used_port_is_one_sentence_and_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("--model", "m", "--listen", address)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"fairlead: --listen {address}: cannot listen there")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ('{"task": "t", "buckets": [], "models": {}}', "buckets"),
    ],
)
def test_a_bad_accuracy_file_is_one_sentence_and_2(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "accuracy.json"
    if content is not None:
        path.write_text(content)
    ended = run("--model", "m", "--listen", "127.0.0.1:0", "--accuracy", str(path))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"fairlead: --accuracy {path}: ")
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_model_that_the_accuracy_file_does_not_know_is_named(tmp_path: Path) -> None:
    path = accuracy_file(tmp_path, 0.5)
    ended = run("--model", "other", "--listen", "127.0.0.1:0", "--accuracy", str(path))
    assert ended.returncode == 2
    assert 'no model "other"; the file has m' in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "8001"], "--listen"),
        (["--listen", "127.0.0.1:0", "--time-scale", "0"], "--time-scale"),
        (["--listen", "127.0.0.1:0", "--kv-tokens", "15"], "num_blocks"),
        (["--listen", "127.0.0.1:0", "--prefill-ms-per-token", "-1"], "prefill_ms_per_token"),
    ],
)
def test_impossible_options_are_one_sentence_and_2(arguments: list[str], says: str) -> None:
    ended = run("--model", "m", *arguments)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_help_shows_an_example() -> None:
    assert "Example: fairlead engine --listen" in run("--help").stdout


def test_it_runs_without_the_fitting_libraries() -> None:
    code = "import sys, fairlead.tools.simulate.server; print({'numpy', 'sklearn', 'polars'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
