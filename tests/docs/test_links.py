"""Every page: its links lead somewhere, and README.md leads to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.links import anchors, faults, reachable

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
PAGES = sorted(LISTED.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    assert faults(ROOT / page) == []


def test_readme_leads_to_every_page_for_people() -> None:
    for_people = {
        ROOT / page for page in PAGES if page.startswith(("docs/", "deploy/", "benchmarks/")) or "/" not in page
    }
    assert for_people - set(reachable(ROOT / "README.md")) == set()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# What `it` is\n\n```\n# no heading\n```\n")
    page.write_text(
        "[a](other.md#what-it-is) [b](none.md) ![c](other.md#no-heading) `[d](code.md)` [e](https://x.org) [f](#no)\n"
    )
    assert anchors(other) == {"what-it-is"}
    assert [fault.removeprefix(f"{page}: ") for fault in faults(page)] == [
        "(none.md) leads to no file",
        "(other.md#no-heading) names no heading of other.md",
        "(#no) names no heading of page.md",
    ]


def test_a_ring_of_pages_is_walked_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first.md", tmp_path / "second.md"
    first.write_text("[second](second.md)")
    second.write_text("[first](first.md)")
    assert reachable(first) == [first, second]
