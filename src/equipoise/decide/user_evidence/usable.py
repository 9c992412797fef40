"""Decides which rows of a user's runs can be used, and why others cannot, before runs are pooled."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from equipoise.errors import hint
from equipoise.notes import Note
from equipoise.runs.readers.cells import is_success
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import (
    MOST_OF_PEAK,
    PRECISIONS,
    Precision,
    multiplied_in,
    precision_named,
    share_of_peak,
)
from equipoise.spec.workload import Workload
from equipoise.stats import by_key
from equipoise.units import YEAR_S, format_count, format_percent, plural

_MAX_TEXT: Final = 40
_LONGEST_S: Final = 1000 * YEAR_S  # of a step or a training; longer times have a wrong unit
_RANKS: Final = re.compile(r"(?<!\w)(dp|tp|pp|cp)=(\d{1,9})(?!\w)")
_COLUMN: Final = re.compile(r"\bcolumn (\S+?):")


class Unused(Struct, frozen=True, kw_only=True):
    """Why a row is not used. kind: of the reason, by which rows are counted. words: reason for this row."""

    kind: str
    words: str


class Asked(Struct, frozen=True, kw_only=True):
    """What rows have to match. workload: its name in the rows. accelerators: slugs; empty for any.

    is_to_target: whether whole trainings in rows apply to the question. known: workload for FLOP per sample;
    None to skip the check against peaks.
    """

    workload: str
    accelerators: tuple[str, ...] = ()
    sequence_tokens: int | None = None
    is_to_target: bool = True
    known: Workload | None = None
    catalogue: Catalogue

    def counts(self, accelerator: str) -> bool:
        """Whether runs on an accelerator are used: one of the question's or, except for trainings to a
        target, any in the catalogue, because the model can convert its steps.
        """
        is_known = not self.is_to_target and self.catalogue.accelerator_slug(accelerator) is not None
        return not self.accelerators or accelerator in self.accelerators or is_known


def unreadable(err: Exception) -> Unused:
    """The reason for a row that its reader rejected."""
    column = _COLUMN.search(str(err))
    return Unused(kind=column[1] if column else str(err).partition(": no ")[2], words=str(err))


def why_not(row: Mapping[str, Any], asked: Asked) -> Unused | None:
    """Why a row of `runs` is not used for the question; None if it is used."""
    found = (*_other_subject(row, asked), *_unusable(row, asked))
    return next(iter(found), None) or _above_peak(row, asked)


def _other_subject(row: Mapping[str, Any], asked: Asked) -> Iterator[Unused]:
    """Yield reasons for rows of something else than the question, starting with another workload."""
    chip, length = row["accelerator"], asked.sequence_tokens
    name = f"of {row['workload'] or 'no workload'} on {chip or 'an accelerator that is not stated'}"
    if row["workload"] != asked.workload:
        yield Unused(kind="workload", words=f"{name}, not of {asked.workload}")
    if chip is not None and not asked.counts(chip):
        meant = _suggestion(chip, asked.catalogue)
        yield Unused(kind="accelerator", words=f"{name}{meant}, not on {' or '.join(asked.accelerators)}")
    sequence_tokens = row["sequence_tokens"]
    if length is not None and sequence_tokens is not None and sequence_tokens != length:
        stated = format_count(int(sequence_tokens))
        yield Unused(
            kind="sequence",
            words=f"of samples of {stated} tokens; the question's have {format_count(length)} (--sequence)",
        )


def _suggestion(chip: str, catalogue: Catalogue) -> str:
    """A suggestion for an unknown accelerator, in brackets; empty for a known one."""
    near = () if catalogue.accelerator_slug(chip) else catalogue.near("accelerator", chip)
    return f" (not known; {hint(near, '')})" if near else ""


def _unusable(row: Mapping[str, Any], asked: Asked) -> Iterator[Unused]:
    """Yield reasons for rows of failed runs, and for rows without a time per sample."""
    name, precision, rate = row["run_id"], row["precision"], row["samples_per_s"]
    if not is_success(row["status"] or ""):
        yield Unused(kind="failed", words=f"{name}: status {str(row['status'])[:_MAX_TEXT]}")
    if precision is not None and precision_named(precision) is None:
        yield Unused(
            kind="precision",
            words=f"{name}: precision {precision[:_MAX_TEXT]!r}; expected one of {', '.join(PRECISIONS)}",
        )
    ranks = dict(_RANKS.findall(row["strategy"] or ""))
    taken = math.prod(map(int, ranks.values()))
    size = row["num_accelerators"]
    if size is not None and (taken != size if "dp" in ranks else size % max(1, taken)):
        axes = " x ".join(ranks)
        yield Unused(
            kind="strategy",
            words=f"{name}: {axes} = {format_count(taken)} on {format_count(size)} accelerators",
        )
    is_timed = row["global_batch_samples"] is not None and rate is not None and rate > 0
    if row["time_to_train_s"] is not None and not is_timed and not asked.is_to_target:
        yield Unused(
            kind="whole training",
            words="of a whole training, whose amount is not stated; expected step_s or samples_per_s with "
            "global_batch_samples",
        )
    if row["time_to_train_s"] is None and rate is not None and row["global_batch_samples"] is None:
        yield Unused(
            kind="batch",
            words="of unknown batch; expected a column global_batch_samples (batch may be per "
            "accelerator), or --global-batch",
        )
    elif row["time_to_train_s"] is None and not is_timed:
        yield Unused(
            kind="rate", words="of unknown rate; expected step_s or samples_per_s with global_batch_samples"
        )
    step_s = row["global_batch_samples"] / rate if is_timed else 0.0
    if max(step_s, row["time_to_train_s"] or 0.0) > _LONGEST_S:
        yield Unused(
            kind="too long",
            words=f"{name}: takes over 1,000 years; check the unit of its time or rate, and its batch",
        )


def _above_peak(row: Mapping[str, Any], asked: Asked) -> Unused | None:
    """The reason for a row that needs more FLOP per second than its accelerators' peak; None if possible."""
    precision = None if row["precision"] is None else precision_named(row["precision"])
    mfu, chip = _share_of_peak(row, asked, multiplied_in(precision))
    if chip is None or mfu <= MOST_OF_PEAK:
        return None
    return Unused(
        kind="above the peak",
        words=f"{row['run_id']}: {format_percent(mfu)} MFU, above the peak of {chip.title}; check the unit "
        "of its time, its batch, num_accelerators, precision and workload",
    )


def in_tf32(rows: Iterable[Mapping[str, Any]], asked: Asked) -> frozenset[str | None]:
    """Accelerators, as named in rows, with a run above fp32's peak; all their fp32 runs count as tf32."""
    # 1 instead of MOST_OF_PEAK: a run at the peak is more likely in tf32 than at a higher clock.
    named = (row for row in rows if precision_named(row["precision"] or "") == "fp32")
    return frozenset(row["accelerator"] for row in named if _share_of_peak(row, asked, ("fp32",))[0] > 1)


def _share_of_peak(
    row: Mapping[str, Any], asked: Asked, among: Sequence[Precision]
) -> tuple[float, Accelerator | None]:
    """A row's FLOP per second over the highest peak of some precisions, and its accelerator; 0, None if
    unknown.

    For a row without accelerator, the fastest one in the question is used.
    """
    flop = None if asked.known is None else asked.known.train_flop_per_sample
    if flop is None or row["samples_per_s"] is None:
        return 0.0, None
    names = asked.accelerators if row["accelerator"] is None else (row["accelerator"],)
    chips = [asked.catalogue.accelerator(each) for each in names if asked.catalogue.accelerator_slug(each)]
    flop_per_s = flop * row["samples_per_s"] / row["num_accelerators"]
    shares = [(share_of_peak(flop_per_s, each, among), each) for each in chips]
    return min(shares, key=lambda each: each[0], default=(0.0, None))


def not_used_notes(unused: Iterable[Unused], num_rows: int, where: str) -> Iterator[Note]:
    """Yield a note with the number of unused rows and the most frequent reason, and one per other reason."""
    kinds = by_key((each.kind, each) for each in unused)
    if not kinds:
        return
    num_unused = sum(map(len, kinds.values()))
    most, *others = sorted(kinds.values(), key=lambda each: -len(each))
    more = ""
    if others:
        reasons = "another reason" if len(others) == 1 else f"{len(others)} other reasons"
        more = f"; {format_count(num_unused - len(most))} for {reasons}"
    total = f"{format_count(num_unused)} of {format_count(num_rows)} rows of {where}"
    yield Note(_in_file(f"{total}: {_kind_text(most, is_counted=bool(others))}{more}.", where), "not_used")
    for kind in others:
        yield Note(
            _in_file(f"Rows of {where} that are not used: {_kind_text(kind, is_counted=True)}.", where)
        )


def _in_file(words: str, where: str) -> str:
    """Text that names a file only once, although reasons for rows repeat it."""
    return words.replace(f" {where}: row", " row")


def _kind_text(kind: Sequence[Unused], *, is_counted: bool) -> str:
    """Text on the rows of one kind: their number, and the common reason or that of the first."""
    words = kind[0].words
    if len({each.words for each in kind}) > 1:
        words = f"the first: {words}"
    if not is_counted:
        return words
    return f"{format_count(len(kind))}{' ' if words.startswith('of ') else ', '}{words}"


# Runs of one set-up are reported if they differ by the first factor, and contradict each other by the second.
UNLIKE: Final = 1.25
_FAR_UNLIKE: Final = 3.0


def unlike(size: int, batch: int | None, num_runs: int, *, ratio: float, columns: str = "") -> Iterator[Note]:
    """Yield a note if runs of one set-up differ much. columns: columns of a file that distinguish them."""
    if ratio > UNLIKE:
        at_batch = "" if batch is None else f" at batch {format_count(batch)}"
        and_in = f" and in {columns}" if columns else ""
        so = "keep those of one kind" if columns else "find out what was different"
        yield Note(
            f"Your {num_runs} runs on {plural(size, 'accelerator')}{at_batch} differ by a factor of "
            f"{ratio:.1f}{and_in}, and count equally: {so}.",
            "check" if columns or ratio > _FAR_UNLIKE else "remark",
        )
