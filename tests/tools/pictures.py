"""Whether a picture can be read: labels that overlap, and legends over what is drawn."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def overlaps(figure: Figure) -> list[str]:
    """What lies over what, in words; empty: nothing does."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    found = []
    for axes in figure.get_axes():
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [label for label in axis.get_ticklabels(which="both") if label.get_text() and label.get_visible()]
            boxes = sorted(
                ((_box(label), label.get_text()) for label in ticks), key=lambda each: (each[0].x0, each[0].y0)
            )
            found += [f"tick {one} over {other}" for (a, one), (b, other) in combinations(boxes, 2) if a.overlaps(b)]
        texts = [(_box(text), text.get_text()) for text in axes.texts]
        found += [f"{one} over {other}" for (a, one), (b, other) in combinations(texts, 2) if a.overlaps(b)]
        inside = axes.get_window_extent()
        legends = [legend for legend in (axes.get_legend(), *figure.legends) if legend is not None]
        found += ["legend over the axes" for legend in legends if _box(legend).overlaps(inside)]
        found += [f"{text} over the axes" for box, text in texts if box.overlaps(inside)]
    return found


def _box(artist: Any) -> Any:
    return artist.get_window_extent()
