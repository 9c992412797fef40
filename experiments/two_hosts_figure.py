"""One figure as SVG: lines over a logarithmic axis of sizes, and the level 1."""

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10

from msgspec import Struct

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 170, 20, 50
# Okabe and Ito 2008: told apart by people who see colours differently.
_COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#999999")


class Line(Struct, frozen=True, kw_only=True):
    """Points (x, y) with a name."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


def svg(lines: Sequence[Line], *, x: str, y: str) -> str:
    """The figure as text of an SVG file. x, y: what the axes are called."""
    return "\n".join((*_drawn(lines, x, y), "</svg>", ""))


def _drawn(lines: Sequence[Line], x_name: str, y_name: str) -> Iterator[str]:
    sizes = [log10(size) for line in lines for size, _ in line.points]
    first, last = floor(min(sizes)), ceil(max(sizes))
    top = ceil(max(value for line in lines for _, value in line.points) * 2) / 2
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(size: float) -> float:
        return _LEFT + width * (log10(size) - first) / (last - first)

    def down(value: float) -> float:
        return _TOP + height * (1 - value / top)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    for step in range(round(top * 2) + 1):
        at, colour = down(step / 2), "#000" if step == 2 else "#ddd"  # noqa: PLR2004 - the level 1
        yield f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="{colour}"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{step / 2:g}</text>'
    for power in range(first, last + 1):
        at = across(10**power)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_TOP + height}" stroke="#ddd"/>'
        yield f'<text x="{at:.1f}" y="{_TOP + height + 16}" text-anchor="middle">{10**power:,}</text>'
    middle = _TOP + height / 2
    yield f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{x_name}</text>'
    turned = f'text-anchor="middle" transform="rotate(-90 16 {middle})"'
    yield f'<text x="16" y="{middle}" {turned}>{y_name}</text>'
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = f'stroke="{colour}" stroke-width="2"' + ' stroke-dasharray="5 4"' * line.is_dashed
        spots = [(across(size), down(value)) for size, value in line.points]
        path = " ".join(f"{left:.1f},{at:.1f}" for left, at in spots)
        yield f'<polyline points="{path}" fill="none" {drawn}/>'
        yield from (f'<circle cx="{left:.1f}" cy="{at:.1f}" r="3" fill="{colour}"/>' for left, at in spots)
        at = _TOP + 14 + 20 * number
        left = _LEFT + width + 12
        yield f'<line x1="{left}" x2="{left + 20}" y1="{at}" y2="{at}" {drawn}/>'
        yield f'<text x="{left + 26}" y="{at + 4}">{line.name}</text>'
