"""Quantities of a workload's scaling, on two views of its entries: over mixed hardware, and like for like.

Each quantity raises EvidenceError if the entries do not support it.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl
from msgspec import Struct

from equipoise.errors import EvidenceError
from equipoise.scaling.groups import families
from equipoise.scaling.metrics import FACTORS, MEASURED, curves, log_loss_shares
from equipoise.spec.hardware import accelerator_title
from equipoise.spec.workload import workload_title
from equipoise.units import format_count, format_duration, format_percent

Way: TypeAlias = Literal["study's method", "like for like"]
MIN_SIZES_OF_PEAK = 3


class View(Struct, frozen=True, kw_only=True):
    """The comparable entries of a workload, with one definition of efficiency.

    entries: all entries, with metrics and factors. points: comparable entries with entry_id, accelerator,
    num_accelerators, score_s, speedup, like_for_like_efficiency, efficiency, is_baseline, factors.
    """

    way: Way
    workload: str
    entries: pl.DataFrame
    points: pl.DataFrame

    @property
    def best(self) -> pl.DataFrame:
        """The most efficient entry at each size, smallest first."""
        return self.points.sort(
            "num_accelerators", "efficiency", "entry_id", descending=[False, True, False]
        ).unique("num_accelerators", keep="first", maintain_order=True)

    @property
    def about(self) -> str:
        """Description of the entries, as the start of a sentence."""
        if self.way == "study's method" or self.points.is_empty():
            return "All systems"
        return f"{accelerator_title(self.points['accelerator'][0])} only"


def study_view(workload: str, entries: pl.DataFrame) -> View:
    """The view of all entries with E', whatever their accelerator.

    entries: a frame with metrics and factors, of one round, workload and division.
    """
    points = _points(entries, "relative_efficiency", pl.col("is_reference"))
    return View(way="study's method", workload=workload, entries=entries, points=points)


def like_for_like_view(workload: str, entries: pl.DataFrame) -> View:
    """The view of the accelerator with the most sizes (ties: widest range), with like-for-like E."""
    comparable = entries.filter(pl.col("like_for_like_efficiency").is_not_null())
    is_baseline = pl.col("entry_id") == pl.col("like_for_like_baseline_id")
    points = _of_most_sizes(_points(comparable, "like_for_like_efficiency", is_baseline))
    return View(way="like for like", workload=workload, entries=entries, points=points)


def _points(entries: pl.DataFrame, efficiency: str, is_baseline: pl.Expr) -> pl.DataFrame:
    return entries.filter(MEASURED).select(
        "entry_id", "accelerator", "num_accelerators", "score_s", "speedup", "like_for_like_efficiency",
        pl.col(efficiency).alias("efficiency"), is_baseline.alias("is_baseline"), *FACTORS,
    )  # fmt: skip


def _of_most_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the accelerator with the most sizes (ties: widest range)."""
    size = pl.col("num_accelerators")
    chosen = (
        rows.group_by("accelerator")
        .agg(num_sizes=size.n_unique(), growth=size.max() / size.min())
        .sort("num_sizes", "growth", "accelerator", descending=[True, True, False])
        .head(1)
    )
    return rows.join(chosen, on="accelerator", how="semi")


class Figure(Struct, frozen=True, kw_only=True):
    """One number behind a verdict: name, value, unit ("" for a ratio), and the entries that it comes from."""

    name: str
    value: float
    unit: str
    entry_ids: tuple[str, ...]


class MeasuredQuantity(Struct, frozen=True, kw_only=True):
    """A quantity: the values to compare, the figures behind them, and a sentence on them."""

    values: tuple[float, ...]
    figures: tuple[Figure, ...]
    words: str


def _best_over_others(view: View, *, sizes: tuple[int, int]) -> MeasuredQuantity:
    """The best efficiency in a range of sizes (inclusive) over the best outside it."""
    is_inside = pl.col("num_accelerators").is_between(*sizes)
    inside, others = view.best.filter(is_inside), view.best.filter(~is_inside)
    if inside.is_empty() or others.is_empty():
        raise EvidenceError(f"needs a score at {sizes[0]} to {sizes[1]} accelerators and one at another size")
    peak, other = _top(inside), _top(others)
    return MeasuredQuantity(
        values=(peak["efficiency"] / other["efficiency"],),
        figures=(_efficiency(view, peak), _efficiency(view, other)),
        words=f"at best {peak['efficiency']:.3g} at {sizes[0]} to {sizes[1]} accelerators (at "
        f"{format_count(peak['num_accelerators'])}), {other['efficiency']:.3g} elsewhere (at "
        f"{format_count(other['num_accelerators'])})",
    )


def _median(view: View, *, sizes: tuple[int, int]) -> MeasuredQuantity:
    """The median efficiency in a range of sizes, without the baseline."""
    low, high = sizes
    own = view.points.filter(pl.col("num_accelerators").is_between(low, high) & ~pl.col("is_baseline"))
    if own.is_empty():
        raise EvidenceError(f"needs scores at {low} to {high} accelerators besides the baseline")
    median = float(np.median(own["efficiency"].to_numpy()))
    name = f"median {_symbol(view)} at {low} to {high}"
    return MeasuredQuantity(
        values=(median,),
        figures=(_ratio(name, median, own["entry_id"].sort()),),
        words=f"median {median:.3g} at {low} to {high} accelerators",
    )


def _largest(view: View) -> MeasuredQuantity:
    """The efficiency at the largest size."""
    row = _largest_row(view)
    return MeasuredQuantity(
        values=(row["efficiency"],),
        figures=(_efficiency(view, row),),
        words=f"{format_count(row['num_accelerators'])} accelerators reach {row['efficiency']:.3g} of the "
        f"efficiency of {view.best['num_accelerators'][0]}",
    )


def _time_of_largest(view: View) -> MeasuredQuantity:
    """The time at the largest size over the shortest time."""
    row = _largest_row(view)
    longer = row["score_s"] / view.points["score_s"].min()
    return MeasuredQuantity(
        values=(longer,),
        figures=(Figure(name="its time", value=row["score_s"], unit="s", entry_ids=(row["entry_id"],)),),
        words=f"they take {format_duration(row['score_s'])}, {'not ' if longer > 1 else ''}the shortest time",
    )


def _steps(view: View, *, starts: tuple[int, ...]) -> MeasuredQuantity:
    """The best efficiency in each range of sizes, delimited by `starts`, over that of the previous range."""
    size = pl.col("num_accelerators")
    ranges = [size < starts[0], *(size.is_between(a, b - 1) for a, b in pairwise(starts)), size >= starts[-1]]
    tops = [_top(own) for each in ranges if not (own := view.best.filter(each)).is_empty()]
    if len(tops) <= 1:
        raise EvidenceError("needs scores in two of the ranges")
    return MeasuredQuantity(
        values=tuple(after["efficiency"] / before["efficiency"] for before, after in pairwise(tops)),
        figures=tuple(_efficiency(view, top) for top in tops),
        words=", ".join(
            f"{top['efficiency']:.3g} at {format_count(top['num_accelerators'])}" for top in tops
        ),
    )


def _entries_on(view: View, *, accelerator: str) -> MeasuredQuantity:
    """The number of scored entries on an accelerator, in any form factor."""
    slug = pl.col("accelerator")
    found = view.points.filter((slug == accelerator) | slug.str.starts_with(f"{accelerator}-"))
    title = accelerator_title(accelerator)
    name = f"entries on {title}"
    return MeasuredQuantity(
        values=(found.height,),
        figures=(_ratio(name, found.height, found["entry_id"].sort()),),
        words=f"{found.height} scored entries ran on {title}",
    )


def _position_of_balance(view: View) -> MeasuredQuantity:
    """Position of the highest efficiency times speedup among the sizes: 0 is the smallest, 1 the largest."""
    best = view.best.with_columns(_product=pl.col("efficiency") * pl.col("speedup"))
    if best.height < MIN_SIZES_OF_PEAK:
        raise EvidenceError("needs three sizes")
    place = int(np.argmax(best["_product"].to_numpy()))  # ties: the smaller size
    size, ids = best["num_accelerators"][place], (best["entry_id"][place],)
    first, last = best["num_accelerators"][0], best["num_accelerators"][-1]
    where = "at its lower end" if place == 0 else "inside the range"
    if place == best.height - 1:
        where = "at its upper end: the balance may be beyond the data"
    return MeasuredQuantity(
        values=(place / (best.height - 1),),
        figures=(Figure(name="size with the highest E x S", value=size, unit="accelerators", entry_ids=ids),),
        words=f"highest at {format_count(size)} of {first} to {format_count(last)}, {where}",
    )


def _loss_in_throughput(view: View, *, efficiency_below: float) -> MeasuredQuantity:
    """The share of throughput, the only factor with communication, in the log loss at the largest size."""
    lossy = view.best.filter(pl.col("efficiency") < efficiency_below)
    shares = log_loss_shares(lossy).sort("num_accelerators")
    if shares.is_empty():
        raise EvidenceError("needs a lossy entry whose log states the samples it needed")
    row = shares.row(-1, named=True)
    names = {"throughput": "throughput", "statistical": "batch growth", "rules": "the rules"}
    throughput, statistical = row["throughput_fraction"], row["statistical_fraction"]
    return MeasuredQuantity(
        values=(throughput,),
        figures=tuple(
            _ratio(f"share of the log loss in {name}", row[f"{factor}_fraction"], (row["entry_id"],))
            for factor, name in names.items()
        ),
        words=f"at {format_count(row['num_accelerators'])} accelerators {format_percent(throughput)} of the "
        f"log loss is throughput, of which communication is a part; {format_percent(statistical)} is more "
        "samples for a larger batch",
    )


def _nearer_to_one(first: View, second: View) -> MeasuredQuantity:
    """How much nearer to 1 the first slope of log speedup against log accelerators is than the second.

    Source: Theil 1950, Sen 1968: the median of the slopes between all pairs.
    """
    slopes = [_theil_sen_slope(view) for view in (first, second)]
    titles = [workload_title(view.workload) for view in (first, second)]
    return MeasuredQuantity(
        values=(abs(1 - slopes[1]) - abs(1 - slopes[0]),),
        figures=tuple(
            _ratio(f"slope, {title}", slope, view.points["entry_id"].sort())
            for title, slope, view in zip(titles, slopes, (first, second), strict=True)
        ),
        words=f"{first.about}: slope {slopes[0]:.2f} for {titles[0]}, {slopes[1]:.2f} for {titles[1]}",
    )


def _theil_sen_slope(view: View) -> float:
    x = np.log(view.points["num_accelerators"].to_numpy().astype(float))
    y = np.log(view.points["speedup"].to_numpy())
    run, rise = x[:, None] - x[None, :], y[:, None] - y[None, :]
    apart = run > 0
    if not apart.any():
        raise EvidenceError(f"{workload_title(view.workload)}: needs two sizes")
    return float(np.median(rise[apart] / run[apart]))


def _over_common_sizes(first: View, second: View) -> MeasuredQuantity:
    """E of the first workload over E of the second: geometric mean over common sizes on one accelerator.

    The accelerator is the one with the most common sizes (ties: widest range). Both curves start from the
    smallest common size and use the best entry per size.
    """
    own, other = curves(first.entries), curves(second.entries)
    common = own.join(other, on=("accelerator", "num_accelerators"), suffix="_second")
    sizes = _of_most_sizes(common).sort("num_accelerators")
    if sizes.height <= 1:
        raise EvidenceError("needs two sizes of one accelerator that both workloads have")
    ratios = (sizes["like_for_like_efficiency"] / sizes["like_for_like_efficiency_second"]).to_numpy()
    ratio = float(np.exp(np.mean(np.log(ratios[1:] / ratios[0]))))
    start, *others = (format_count(size) for size in sizes["num_accelerators"])
    growth = f"{start} to {', '.join(others)} accelerators"
    one, two = workload_title(first.workload), workload_title(second.workload)
    common = families({view.workload: view.entries for view in (first, second)})
    return MeasuredQuantity(
        values=(ratio,),
        figures=(
            _ratio(f"E of {one} / {two}, {growth}", ratio, (*sizes["entry_id"], *sizes["entry_id_second"])),
            *map(_family_figure, common.iter_rows(named=True)),
        ),
        words=f"{accelerator_title(sizes['accelerator'][0])} only, {growth}: {one} keeps {ratio:.2f} of what "
        f"{two} keeps{_families_words(common, (first.workload, second.workload))}",
    )


def _family_figure(row: dict[str, Any]) -> Figure:
    name = (
        f"E of {row['submitter']} {accelerator_title(row['accelerator'])}, {row['from_accelerators']} to "
        f"{row['to_accelerators']}, {workload_title(row['workload'])}"
    )
    return _ratio(name, row["efficiency"], (row["from_id"], row["to_id"]))


def _families_words(common: pl.DataFrame, workloads: tuple[str, str]) -> str:
    """A sentence on each machine family, as a check that does not mix submitters."""
    words = []
    for family in common.partition_by("submitter", "accelerator", maintain_order=True):
        row = family.row(0, named=True)
        efficiency = dict(family.select("workload", "efficiency").iter_rows())
        values = " against ".join(f"{efficiency[workload]:.3f}" for workload in workloads)
        words.append(f"{row['submitter']}, {row['from_accelerators']} to {row['to_accelerators']}: {values}")
    return f". On one submitter's machines: {'; '.join(words)}" if words else ""


def _spread_of_balance(*views: View) -> MeasuredQuantity:
    """The largest size of balance over the smallest, of workloads with balance inside their sizes."""
    figures: list[Figure] = []
    for view in views:
        if view.best.height >= MIN_SIZES_OF_PEAK:
            found = _position_of_balance(view)
            if 0 < found.values[0] < 1:
                figures += found.figures
    if len(figures) <= 1:
        raise EvidenceError("needs two workloads whose balance lies inside their range")
    low, high = min(figure.value for figure in figures), max(figure.value for figure in figures)
    return MeasuredQuantity(
        values=(high / low,),
        figures=tuple(figures),
        words=f"between {low:,.0f} and {high:,.0f} accelerators over {len(figures)} workloads",
    )


def _largest_row(view: View) -> dict[str, Any]:
    if view.best.height <= 1:
        raise EvidenceError("needs two sizes")
    return view.best.row(-1, named=True)


def _top(rows: pl.DataFrame) -> dict[str, Any]:
    return rows.sort("efficiency", "num_accelerators", descending=[True, False]).row(0, named=True)


def _symbol(view: View) -> str:
    return "E'" if view.way == "study's method" else "E"


def _efficiency(view: View, row: dict[str, Any]) -> Figure:
    name = f"{_symbol(view)} at {format_count(row['num_accelerators'])}"
    return _ratio(name, row["efficiency"], (row["entry_id"],))


def _ratio(name: str, value: float, entry_ids: Iterable[str]) -> Figure:
    return Figure(name=name, value=value, unit="", entry_ids=tuple(entry_ids))


# By the names used in published.toml. Each takes one view, or one per workload, and its options.
QUANTITIES: Final[dict[str, Callable[..., MeasuredQuantity]]] = {
    "best_over_others": _best_over_others,
    "median": _median,
    "largest": _largest,
    "time_of_largest": _time_of_largest,
    "steps": _steps,
    "entries_on": _entries_on,
    "place_of_balance": _position_of_balance,
    "loss_in_throughput": _loss_in_throughput,
    "nearer_to_one": _nearer_to_one,
    "over_common_sizes": _over_common_sizes,
    "spread_of_balance": _spread_of_balance,
}
