"""Links and headings of Markdown pages, read as GitHub and the site both read them. Reads no network.

Only what our pages use: inline links and pictures, ATX headings, fenced blocks and code spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE_SPAN: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A relative link of a page: its text, the file it leads to, and the heading there, if it names one."""

    page: Path
    text: str
    target: Path
    anchor: str


def links(page: Path) -> Iterator[Link]:
    """The links of a page that stay in this repository, in order. `target` may not exist."""
    prose = _CODE_SPAN.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for text in _LINK.findall(prose):
        if not _SCHEME.match(text):
            path, _, anchor = text.partition("#")
            yield Link(page, text, (page.parent / path).resolve() if path else page, anchor)


def anchors(page: Path) -> set[str]:
    """The names by which links address headings. Of one that repeats, only the first has the same name everywhere."""
    names = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        names.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return names


def faults(page: Path) -> list[str]:
    """What is wrong with a page's links, one sentence each."""
    found = []
    for link in links(page):
        if not link.target.is_file():
            found.append(f"{page}: ({link.text}) leads to no file")
        elif link.anchor and link.target.suffix == ".md" and link.anchor not in anchors(link.target):
            found.append(f"{page}: ({link.text}) names no heading of {link.target.name}")
    return found


def reachable(start: Path) -> list[Path]:
    """The files that links lead to from a page, over any number of pages, and the page itself; sorted."""
    found, left = {start.resolve()}, [start.resolve()]
    while left:
        page = left.pop()
        if page.suffix == ".md":
            new = {link.target for link in links(page) if link.target.is_file()} - found
            found |= new
            left += new
    return sorted(found)
