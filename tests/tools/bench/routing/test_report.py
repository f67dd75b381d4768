from __future__ import annotations

import json
from pathlib import Path

from fairlead.tools.bench.routing.plot import write_plot
from fairlead.tools.bench.routing.report import markdown, write
from tests.tools.bench.routing.world import results

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_rival_that_is_better_is_told_as_better() -> None:
    text = markdown(results({"fairlead": [200.0, 210.0, 205.0], "lmetric": [100.0, 104.0, 102.0]}))

    assert "p95 TTFT of `fairlead`: ABOVE that of `lmetric`." in text


def test_a_rival_that_is_worse_and_one_that_may_be_either_are_told_apart() -> None:
    text = markdown(
        results({"fairlead": [100.0, 104.0, 102.0], "lmetric": [200.0, 210.0, 205.0], "llm_d": [90.0, 150.0, 95.0]})
    )

    assert "below that of `lmetric`; not told apart from that of `llm_d`." in text


def test_the_report_says_how_when_and_where_it_was_made() -> None:
    text = markdown(results({"fairlead": [100.0, 104.0], "lmetric": [200.0, 210.0]}))

    for fact in (
        "`fairlead bench-routing`",
        "Seed: 7",
        "Commit: abc",
        "a CPU, 2 cores",
        "before and after: 0.50, 0.75",
    ):
        assert fact in text
    assert "8 clients at a time, 20 sessions, 100 to 101 requests a run" in text
    assert "| fairlead | 80.5 ± " in text


def test_the_json_holds_every_run(tmp_path: Path) -> None:
    found = results({"fairlead": [100.0, 104.0], "lmetric": [200.0, 210.0]})

    write(found, tmp_path / "new")

    document = json.loads((tmp_path / "new" / "routing.json").read_text())
    assert [run["ttft_p95_ms"] for run in document["outcomes"]] == [100.0, 104.0, 200.0, 210.0]
    assert document["machine"]["commit"] == "abc"
    assert (tmp_path / "new" / "routing.md").read_text() == markdown(found)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    write_plot(tmp_path / "routing.png", results({"fairlead": [100.0, 104.0], "lmetric": [200.0, 210.0]}))

    assert (tmp_path / "routing.png").read_bytes().startswith(PNG)
