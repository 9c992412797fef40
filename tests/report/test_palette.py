"""Eight colours a theme that can be told apart, by the colour-blind too, and seen on their paper."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b*, D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def theme(name):
    text = files("equipoise.report").joinpath("assets", name).read_text()
    return re.search(r"--paper: (#\w{6})", text)[1], re.findall(r"--series-\d: (#\w{6})", text)


@pytest.mark.parametrize("name", ["style.css", "dark.css"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_can_be_told_apart(name, vision):
    seen = [lab(VISION[vision] @ linear(colour)) for colour in theme(name)[1]]
    assert len(seen) == 8
    # 2.3 is just noticeable side by side (Mahy 1994); markers stand apart and are small.
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 12


@pytest.mark.parametrize("name", ["style.css", "dark.css"])
def test_colours_stand_out_from_their_paper(name):
    paper, colours = theme(name)
    assert len(colours) == 8
    for colour in colours:
        darker, lighter = sorted(LUMINANCE @ linear(each) for each in (paper, colour))
        assert (lighter + 0.05) / (darker + 0.05) >= 3  # WCAG 2.2, 1.4.11, graphics
