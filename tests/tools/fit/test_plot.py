"""The picture: it is a PNG of a sensible size for few and for many models, whatever they are called."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import pytest

from fairlead.tools.fit import fit_model
from fairlead.tools.fit.plot import write_plot
from tests.tools.fit.world import draw, logistic_truth


def pixels(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize("names", [["a"], ["_hidden", "$x$y", *(f"model-{number}" for number in range(10))]])
def test_a_family_becomes_a_picture_without_a_warning(tmp_path: Path, names: list[str]) -> None:
    truth = logistic_truth({"en": 3.0, "ja": 2.0, "ru": 1.0, "other": 1.0}, slope=0.8)
    family = [fit_model(draw(truth, 3, seed, name), seed=0, folds=3) for seed, name in enumerate(names)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_plot(tmp_path / "kv.png", family)
    width, height = pixels(tmp_path / "kv.png")
    assert 1500 < width < 3000
    assert 700 < height < 2000


def test_a_single_attempt_can_be_drawn(tmp_path: Path) -> None:
    write_plot(tmp_path / "kv.png", [fit_model(draw({("en", "4K"): 1.0}, 1), seed=0, folds=3)])
    assert min(pixels(tmp_path / "kv.png")) > 500
