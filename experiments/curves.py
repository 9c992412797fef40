"""Curves of loss: means over seeds, first times below a loss, and a figure of two panels as SVG."""

from collections.abc import Mapping, Sequence
from math import inf, log10, nan
from pathlib import Path
from statistics import mean, stdev

Curve = Sequence[Mapping[str, float]]

_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 430, 300, 46, 150
_COLOURS = ("#222222", "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#e377c2")
_DASHES = ("", "6 3", "2 3")


def last_loss(curve: Curve) -> float:
    """Held-out loss after the last sample."""
    return curve[-1]["loss"]


def sample_rate(curve: Curve) -> float:
    """Samples a second after the first point, before which buffers are allotted."""
    first, last = (curve[1], curve[-1]) if len(curve) > 2 else (curve[0], curve[-1])  # noqa: PLR2004 - see above
    return (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"])


def with_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; of one value not a number."""
    return mean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else nan


def reached_s(curve: Curve, loss: float) -> float | None:
    """Seconds of training until the first point at or below a loss; None where there is none."""
    return next((point["seconds"] for point in curve if point["loss"] <= loss), None)


def samples_to(curve: Curve, loss: float) -> float:
    """Samples until the first point at or below a loss; infinitely many where there is none."""
    return next((point["samples"] for point in curve if point["loss"] <= loss), inf)


def mean_curve(curves: Sequence[Curve]) -> list[dict[str, float]]:
    """The mean over seeds of equally long curves, point by point."""
    return [
        {key: mean(point[key] for point in points) for key in ("samples", "seconds", "loss", "accuracy")}
        for points in zip(*curves, strict=True)
    ]


def figure(path: Path, curves: Mapping[str, Curve], axes: Sequence[tuple[str, str]]) -> None:
    """Writes a panel for each axis (key, words) beside each other: loss, logarithmic, against the key."""
    width = _WIDTH * len(axes) + _LEGEND
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
    ]
    for number, (key, words) in enumerate(axes):
        parts += _panel(curves, key, words, left=number * _WIDTH + _MARGIN)
    for number, name in enumerate(curves):
        y = 24 + 15 * number
        x = _WIDTH * len(axes)
        parts.append(f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" {_style(number)}/>')
        parts.append(f'<text x="{x + 30}" y="{y + 4}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _style(number: int) -> str:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS)]
    return f'stroke="{colour}" stroke-width="1.5" fill="none" stroke-dasharray="{dash}"'


def _panel(curves: Mapping[str, Curve], key: str, words: str, *, left: float) -> list[str]:
    points = [point for curve in curves.values() for point in curve]
    most = max(point[key] for point in points)
    low, high = (log10(edge(point["loss"] for point in points)) for edge in (min, max))
    width, height = _WIDTH - _MARGIN - 16, _HEIGHT - 2 * _MARGIN

    def x(value: float) -> float:
        return left + width * value / most

    def y(loss: float) -> float:
        return _MARGIN + height * (high - log10(loss)) / (high - low)

    parts = [f'<rect x="{left}" y="{_MARGIN}" width="{width}" height="{height}" fill="none" stroke="#999"/>']
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
        if low <= log10(tick) <= high:
            parts.append(
                f'<line x1="{left}" x2="{left + width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
            )
            parts.append(f'<text x="{left - 4}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    below = _MARGIN + height + 15
    parts += [
        f'<text x="{x(part * most):.1f}" y="{below}" text-anchor="middle">{part * most:.3g}</text>'
        for part in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts.append(
        f'<text x="{left + width / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"held-out loss against {words}</text>"
    )
    for number, curve in enumerate(curves.values()):
        line = " ".join(f"{x(point[key]):.1f},{y(point['loss']):.1f}" for point in curve)
        parts.append(f'<polyline points="{line}" {_style(number)}/>')
    return parts
