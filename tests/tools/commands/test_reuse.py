"""`fairlead reuse` and `fairlead bench-reuse` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import fairlead
from tests.context.world import ask, chat

CONTEXTS = [
    {"id": "a", "blocks": ["d2", "d1", "d3"]},
    {"id": "b", "blocks": ["x"]},
    {"id": "c", "blocks": ["d2", "d6", "d1"]},
]


@pytest.fixture
def contexts(tmp_path: Path) -> Path:
    path = tmp_path / "contexts.jsonl"
    path.write_text("".join(json.dumps(context) + "\n" for context in CONTEXTS))
    return path


def test_a_built_index_tells_a_new_context_its_order(contexts: Path, tmp_path: Path) -> None:
    built = fairlead("reuse", "build", contexts, "--out", tmp_path / "index.json")
    assert (built.returncode, built.stderr) == (0, "")
    assert "3 contexts; 28.6% of all blocks are in a shared prefix, as received 14.3%" in built.stdout
    asked = fairlead("reuse", "query", tmp_path / "index.json", "d9", "d1", "d2")
    assert asked.stdout == "d2 d1 d9\n2 of 3 blocks are a prefix shared with the index\n"


def test_a_schedule_keeps_contexts_that_share_together(contexts: Path) -> None:
    ran = fairlead("reuse", "schedule", contexts)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["id"] for line in lines] == ["a", "c", "b"]
    assert lines[0]["blocks"][:2] == lines[1]["blocks"][:2]


def test_explain_tells_what_becomes_of_a_request_and_what_it_saves(tmp_path: Path) -> None:
    earlier, request = tmp_path / "earlier.jsonl", tmp_path / "request.json"
    earlier.write_bytes(chat(ask([2, 1])) + b"\n")
    request.write_bytes(chat(ask([1, 3, 2])))
    ran = fairlead("reuse", "explain", request, "--after", earlier, "--body")
    assert ran.stdout.startswith(
        "messages[0].content: 3 blocks (xml); sent in the order 3 1 2, with their priorities\nabout "
    )
    assert "Please read the context in the following priority order" in ran.stdout


def test_explain_says_so_when_nothing_changes(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_bytes(chat(ask([1, 3, 2])))
    assert fairlead("reuse", "explain", request).stdout == "nothing changes\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("build", "none.jsonl"), "cannot be read"),
        (("query", "none.json", "a"), "make it with fairlead reuse build"),
        (("explain", "none.json", "--do", "sort"), "write order, dedup, or order,dedup"),
        (("explain", "none.json", "--formats", "pdf"), "write some of xml,numbered,json,markdown,separator"),
    ],
)
def test_wrong_use_is_one_sentence_that_says_what_to_change(arguments: tuple[str, ...], said: str) -> None:
    ran = fairlead("reuse", *arguments)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "contexts.jsonl"
    path.write_text('["a"]\n\n{"blocks": 3}\n')
    ran = fairlead("reuse", "build", path)
    assert (ran.returncode, "contexts.jsonl:3: " in ran.stderr) == (2, True)


def test_without_numpy_a_sentence_says_what_to_install(contexts: Path) -> None:
    ran = fairlead("reuse", "build", contexts, lacks="numpy")
    assert (ran.returncode, ran.stderr) == (
        2,
        "fairlead: clustering needs numpy; in a checkout of Fairlead run: pip install '.[fit]'\n",
    )


@pytest.mark.slow
def test_the_benchmark_runs_on_its_data(tmp_path: Path) -> None:
    lists = Path(__file__).parents[3] / "benchmarks" / "data" / "mtrag_retrieval.json.gz"
    ran = fairlead("bench-reuse", "--quick", "--lists", lists, "--out", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "reuse.md").read_text() == ran.stdout.removesuffix("\n")
    shares = {
        (one["lists"], one["way"]): one["unlimited"]
        for one in json.loads((tmp_path / "reuse.json").read_bytes())["shares"]
    }
    for name in {name for name, _ in shares}:
        assert shares[name, "raw"] < shares[name, "Fairlead, online"] < shares[name, "Fairlead, offline"]
