"""What a log line says of an internal error, as files and as terminals get it, and that no line can end a task."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import IO

FAULT = """
import structlog
from fairlead.serving.logs import set_up_logs

def copy_kv(password):
    raise RuntimeError("on purpose")

set_up_logs()
log = structlog.get_logger("fairlead")
try:
    copy_kv("hunter" + "2")
except RuntimeError:
    log.exception("a step failed", step="store")
print("went on")
"""


def output(code: str, stderr: int | IO[bytes]) -> str:
    """What `code` prints, in a process of its own: logs are set up once for a process."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


def test_an_internal_error_is_a_line_of_json_with_its_traceback() -> None:
    line = json.loads(output(FAULT, subprocess.STDOUT).splitlines()[0])

    assert (line["event"], line["step"], line["level"]) == ("a step failed", "store", "error")
    assert "in copy_kv" in line["exception"]
    assert "RuntimeError: on purpose" in line["exception"]


def test_on_a_terminal_it_shows_no_values_which_may_be_secrets_or_prompts() -> None:
    ours, terminal = pty.openpty()
    output(FAULT, terminal)
    os.close(terminal)
    shown = os.read(ours, 1 << 20).decode()
    os.close(ours)

    assert "in copy_kv" in shown
    assert "RuntimeError" in shown
    assert "hunter2" not in shown


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    command = [sys.executable, "-c", FAULT]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert done.stdout == b"went on\n"
