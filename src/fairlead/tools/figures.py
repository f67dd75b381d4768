"""What the pictures of all studies share."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure


def tidy(axes: Any) -> None:
    """A pale grid behind what is shown, and no frame where no axis is."""
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def png_of(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
