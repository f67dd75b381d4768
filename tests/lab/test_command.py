"""How the lab's commands end: known before a server is started, where it can be, and with a sentence."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from fairlead.errors import UserError
from fairlead.processes import ChildError
from lab import command

MEASUREMENTS = ("lab.calibration.__main__", "lab.learned", "lab.moves", "lab.reuse", "lab.ttca.__main__")


def ended(module: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit status of `python -m MODULE ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as end:
        import_module(module).main()
    return end.value.code


@pytest.mark.parametrize("module", MEASUREMENTS)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_started(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert ended(module, "--out", str(file / "folder"), monkeypatch=monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: --out {file / 'folder'}: cannot be written (")
    assert said.err.endswith("); name another folder\n")


@pytest.mark.parametrize("module", ["lab.__main__", *MEASUREMENTS])
def test_help_has_an_example(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(module, "--help", monkeypatch=monkeypatch) == 0
    name = module.removesuffix(".__main__")
    said = " ".join(capsys.readouterr().out.split())
    assert f"usage: python -m {name} " in said
    assert f"Example: python -m {name} " in said


@pytest.mark.parametrize("number", ["0", "-1", "some"])
def test_a_count_is_at_least_one(
    number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("lab.reuse", f"--requests={number}", monkeypatch=monkeypatch) == 2
    assert f"argument --requests: {number} is not a number of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "said"),
    [(("nobody",), "vllm:nobody is not a model of the lab"), (("wren", "sglang:wren"), "each model on one server")],
)
def test_time_to_correct_answer_needs_models_of_the_lab_and_each_once(
    models: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("lab.ttca.__main__", *models, monkeypatch=monkeypatch) == 2
    assert said in capsys.readouterr().err


def test_what_the_user_can_mend_ends_with_2_and_a_server_that_failed_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as mistake, command.ending():
        raise UserError("start fewer")
    assert (mistake.value.code, capsys.readouterr().err) == (2, "error: start fewer\n")
    with pytest.raises(SystemExit) as failure, command.ending():
        raise ChildError("vLLM ended")
    assert failure.value.code == "error: vLLM ended"  # which Python prints, and ends with 1


def test_an_interrupted_command_ends_quietly() -> None:
    with command.ending():
        raise KeyboardInterrupt


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), command.ending():
        raise ZeroDivisionError


def test_a_report_that_cannot_be_kept_has_been_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)"):
        command.show("# What came out\n", tmp_path / "gone" / "report.md")
    assert "# What came out" in capsys.readouterr().out
