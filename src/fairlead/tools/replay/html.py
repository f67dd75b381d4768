"""The report as one self-contained HTML file: our own Markdown, with the pictures embedded."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Final

_STYLE: Final = """\
body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid #e0e0e0;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}tbody tr:first-child{font-weight:600}
img{max-width:100%}code{background:#f3f3f3;padding:0 .25em}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}th,td{border-color:#3a3a3a}\
code{background:#2a2a2a}img{background:#fff}}"""
_PICTURE: Final = re.compile(r"^!\[(.*)\]\((.*)\)$")
_CODE: Final = re.compile(r"`([^`]*)`")


def page(markdown: str, pictures: Mapping[str, bytes]) -> str:
    """Reads what `tools.replay.replay_report` writes: headings, lists, tables, pictures and paragraphs."""
    texts = [text.strip() for text in markdown.split("\n\n")]
    body = "\n".join(block for text in texts if text for block in _block(text, pictures))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Fairlead replay</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _block(text: str, pictures: Mapping[str, bytes]) -> Iterator[str]:
    lines = text.split("\n")
    picture = _PICTURE.match(text)
    if picture:
        data = b64encode(pictures[picture.group(2)]).decode()
        yield f'<img alt="{html.escape(picture.group(1))}" src="data:image/png;base64,{data}">'
    elif text.startswith("#"):
        level = len(text) - len(text.lstrip("#"))
        yield f"<h{level}>{_inline(text.lstrip('# '))}</h{level}>"
    elif text.startswith("|"):
        yield _table(lines)
    elif text.startswith("- "):
        yield "<ul>" + "".join(f"<li>{_inline(line.removeprefix('- '))}</li>" for line in lines) + "</ul>"
    else:
        yield "".join(f"<p>{_inline(line)}</p>" for line in lines if line)


def _table(lines: list[str]) -> str:
    head, _, *rows = ([_inline(cell.strip()) for cell in line.strip("|").split("|")] for line in lines)
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))
