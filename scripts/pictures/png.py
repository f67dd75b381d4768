"""Small PNG files, so that a checkout stays light: exact where that is small enough, else of few colours."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

MOST_BYTES: Final = 150_000
_COLOURS: Final = (None, 256, 64, 24)
_CUT_HIGH: Final = 18  # pixels


def write_png(picture: Image.Image, path: Path) -> int:
    """How many bytes it took. Raises ValueError where no palette makes it small enough."""
    picture = picture.convert("RGB")
    for colours in _COLOURS:
        written = io.BytesIO()
        # By coverage, as small marks in red must stay red.
        fewer = picture if colours is None else picture.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=1)
        fewer.save(written, format="png", optimize=True)
        if written.tell() <= MOST_BYTES:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(written.getvalue())
            return written.tell()
    raise ValueError(f"{path}: {written.tell():,} bytes with {colours} colours; show less")


def stacked(*parts: Image.Image) -> Image.Image:
    """One below the other; a dashed line says that something was left out between them."""
    high = sum(part.height for part in parts) + _CUT_HIGH * (len(parts) - 1)
    whole = Image.new("RGB", (max(part.width for part in parts), high), "white")
    drawing, top = ImageDraw.Draw(whole), 0
    for number, part in enumerate(parts):
        if number:
            for left in range(0, whole.width, 12):
                drawing.line([(left, top + _CUT_HIGH // 2), (left + 5, top + _CUT_HIGH // 2)], fill="#999999")
            top += _CUT_HIGH
        whole.paste(part, (0, top))
        top += part.height
    return whole
