"""docs/pictures/ and the script that takes them: what a panel shows, what is at fault, and that the files are small."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from scripts.dashboards import FOLDER
from scripts.pictures.grafana import note
from scripts.pictures.panels import Drawn, Line, dashboard_figure, legend, shown
from scripts.pictures.png import MOST_BYTES, stacked, write_png
from tests.tools.pictures import overlaps

PICTURES = Path(__file__).parents[2] / "docs/pictures"


def test_each_dashboard_has_its_picture_and_no_picture_is_large() -> None:
    drawn = {path.stem for path in (PICTURES / "dashboards").glob("*.png")}
    assert drawn == {path.stem for path in FOLDER.glob("*.json")}
    assert {path.name for path in PICTURES.rglob("*.png") if path.stat().st_size > MOST_BYTES} == set()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (2.5e-5, "s", "25 µs"),
        (0.25, "s", "250 ms"),
        (90.0, "s", "1.5 min"),
        (3 * 1024**2, "bytes", "3 MiB"),
        (12_500, "short", "12.5 K"),
        (0.4, "short", "0.4"),
        (0.42, "percentunit", "42%"),
        (3.0, "reqps", "3 req/s"),
        (1.0, "bool", "True"),
    ],
)
def test_a_value_is_written_as_grafana_writes_its_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_label_that_a_series_lacks_is_nothing_in_its_legend() -> None:
    assert legend("p95 {{model}} {{ part }}", {"model": "m"}) == "p95 m"
    assert legend("{{model}}", {}) == ""


def test_a_panel_without_anything_to_see_is_a_fault_unless_it_should_be_so() -> None:
    zero, some = Line("a", [-1.0, 0.0], [0.0, 0.0]), Line("a", [-1.0, 0.0], [0.0, 2.0])
    assert note("Requests a second", [some]) == ""
    assert note("Requests a second", [zero]) is None
    assert note("Requests a second", []) is None
    assert note("KV events a second", [zero]) == "0: simulated engines publish none"


def test_panels_with_many_long_legends_can_be_read() -> None:
    lines = [Line(f"p95 10.244.113.{n}:8000 granite-3.1-2b", [-300.0, 0.0], [n / 20, n / 19]) for n in range(20)]
    panels = [Drawn(f"Panel {n}", unit, lines) for n, unit in enumerate(("s", "short", "reqps", "bytes", "bool"))]
    assert overlaps(dashboard_figure("Title", "what ran", panels)) == []


def test_what_was_left_out_between_parts_is_marked_and_the_file_is_small(tmp_path: Path) -> None:
    part = Image.effect_noise((600, 200), 60.0).convert("RGB")
    whole = stacked(part, part)
    assert whole.height > 2 * part.height
    assert write_png(whole, tmp_path / "noise.png") == (tmp_path / "noise.png").stat().st_size <= MOST_BYTES
