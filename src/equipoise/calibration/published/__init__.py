"""Training measurements as published in papers and repositories: one row per figure, in any unit.

This module parses a row into what ran, on which hardware, with which strategy, and its seconds, or the reason
why there are none; no row is dropped. Rows come from files, or from the shipped table of training steps,
which `make profiles` writes. executions.py combines the rows of one execution.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.bench.collectives import bus_fraction
from equipoise.calibration.published.models import Model, model_of, stated_words
from equipoise.calibration.published.quantities import (
    MAX_ACCELERATORS,
    MemoryCounted,
    Quantity,
    count,
    memory_count,
    number,
    of_whole_accelerators,
    quantity,
    stated,
)
from equipoise.calibration.published.set_ups import (
    collective_of,
    denies_tf32,
    is_matrix_product,
    named_software,
    strategy_of,
)
from equipoise.errors import DataError, SpecError, UsageError
from equipoise.files import each_once
from equipoise.runs.readers.cells import (
    BATCH,
    MAX_TEXT,
    SEQUENCE,
    SIZE,
    STATUS,
    STRATEGY,
    TIMED,
    TextRow,
    amount,
    is_success,
    quoted,
    rates_of,
    stated_amount,
)
from equipoise.runs.readers.exports import MODEL, as_written, exported
from equipoise.runs.store import PUBLISHED_STEPS, read_bytes
from equipoise.spec.catalogue import Catalogue, cluster_in_text, shipped
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import (
    MOST_OF_PEAK,
    Recompute,
    Strategy,
    multiplied_in,
    peak_in,
    share_of_peak,
)
from equipoise.spec.transformer import Transformer
from equipoise.units import BF16_BYTES, GIB, format_si_apart

_BACKWARD_FACTOR = 2.0
_FOUR_BITS = 0.5  # bytes
_FLOP_PER_WEIGHT, _FLOP_PER_FROZEN_WEIGHT = 6, 4  # per token, forward and backward
_MOST_KEPT = 4096


class Conversion(Struct, frozen=True, kw_only=True):
    """Conversion between a figure and seconds: factor x figure, or factor / figure for a rate.

    >>> Conversion(factor=100.0, is_rate=True).seconds(50.0)
    2.0
    """

    factor: float
    is_rate: bool

    def seconds(self, figure: float) -> float:
        """The time in seconds that corresponds to a figure."""
        return self.factor / figure if self.is_rate else self.factor * figure

    def figure(self, seconds: float) -> float:
        """The figure that corresponds to a time in seconds."""
        return self.factor / seconds if self.is_rate else seconds / self.factor


def step_conversion(
    quantity: Quantity, strategy: Strategy, model: Model, *, peak_flop_per_s: float | None
) -> Conversion:
    """The conversion of a figure to seconds per step.

    peak_flop_per_s: of one accelerator in the precision of the row, for figures stated as a fraction of peak.
    Raises DataError if the row lacks what its unit needs.
    """
    num_accelerators, batch = strategy.num_accelerators, strategy.global_batch_samples
    spread = num_accelerators if quantity.per_accelerator else 1
    match quantity.kind:
        case "time":
            work = 1.0
        case "steps":
            work = 1.0 / spread
        case "samples":
            work = batch / spread
        case "tokens":
            work = batch * _sequence(model) / spread
        case "run_time":
            work = batch * _sequence(model) / quantity.tokens
        case "flop" | "utilisation":
            work = _step_flop(model, strategy, quantity) / _flop_sharers(quantity, num_accelerators)
            if quantity.kind == "utilisation":
                if peak_flop_per_s is None:
                    raise DataError("unit is a share of the peak, and no peak of this accelerator is known")
                work /= peak_flop_per_s
        case _:
            raise DataError(f"unit: {quantity.kind} is not a quantity of a training step")
    if quantity.is_rate:
        return Conversion(factor=work / quantity.si, is_rate=True)
    return Conversion(factor=work * quantity.si, is_rate=False)


def _sequence(model: Model) -> int:
    if model.sequence is None:
        raise DataError("column seq: empty; the unit counts tokens, so tokens per sample have to be known")
    return model.sequence


def _flop_sharers(quantity: Quantity, num_accelerators: int) -> int:
    if quantity.per_accelerator is None and num_accelerators > 1:
        raise DataError(
            "unit does not say whether FLOP/s are of one accelerator or of all: add /GPU or total"
        )
    return 1 if quantity.per_accelerator is False else num_accelerators


def _step_flop(model: Model, strategy: Strategy, quantity: Quantity) -> float:
    """FLOP of one step, as publications count them for FLOP/s.

    Assumes that model FLOP/s exclude masked attention scores, and that other figures count every query with
    every key; that logits are not recomputed where layers are; that recomputation counts unless model FLOP/s
    are mentioned.
    Source: Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh) with all layers computed again;
    PaLM (Chowdhery et al. 2022, appendix B) for shares of the peak; Megatron-Bridge, whose FLOP/s over its
    tokens/s are those of masked attention to 0.5 % on dense models.
    """
    counted = quantity.counted
    recompute: Recompute = strategy.recompute if counted == "executed" else "none"
    if model.transformer is None:
        whole = model.known.train_flop_per_sample if model.known else None
        if whole is None:
            raise DataError(
                "unit counts FLOP, and those of this workload are not known: add them to its catalogue entry"
            )
        again = 1 / (1 + _BACKWARD_FACTOR) if recompute == "full" else 0.0
        return strategy.global_batch_samples * whole * (1 + again)
    sequence = _sequence(model)
    is_masked = quantity.kind == "flop" and counted == "model" and model.transformer.causal
    sizes = replace(model.transformer, causal=is_masked)
    forward = sizes.forward_flop_per_token(sequence)
    logits = 2 * sizes.predicted_fraction * sizes.vocabulary * sizes.hidden
    again = {"none": 0.0, "selective": sizes.score_flop_per_token(sequence), "full": forward - logits}[
        recompute
    ]
    return strategy.global_batch_samples * sequence * ((1 + _BACKWARD_FACTOR) * forward + again)


def collective_conversion(
    quantity: Quantity, operation: str, payload_bytes: float, num_ranks: int
) -> Conversion:
    """The conversion of a figure to seconds of one collective of `payload_bytes`.

    Raises DataError for a unit that does not apply to collectives, or for one rank.
    Source: nccl-tests, doc/PERFORMANCE.md: algbw = bytes / time, busbw = algbw x 2(n-1)/n for all-reduce.
    """
    if num_ranks <= 1:
        raise DataError(f"n_gpus={num_ranks}: a collective needs two ranks")
    if quantity.kind == "time":
        return Conversion(factor=quantity.si, is_rate=False)
    if quantity.kind == "payload":
        return Conversion(factor=payload_bytes / quantity.si, is_rate=True)
    if quantity.kind == "bus":
        return Conversion(
            factor=payload_bytes * bus_fraction(operation, num_ranks) / quantity.si, is_rate=True
        )
    raise DataError(
        f"unit: {quantity.kind} is not a quantity of a collective; expected a time or busbw or algbw GB/s"
    )


Kind: TypeAlias = Literal["step", "throughput", "collective", "matmul", "efficiency"]

MAX_FILES = 1_000
_NEEDED = ("hardware", "n_gpus", "measured", "unit")
_USUAL = (
    *("workload", "hardware", "n_gpus", "tp", "pp", "dp", "precision"),
    *("global_batch", "micro_batch", "seq", "measured", "unit"),
)
# The known columns of files of measurements; files may have others.
FILE_COLUMNS = (
    *("workload", "params_b", "layers", "hidden", "heads", "hardware", "n_gpus", "parallel_config"),
    *("tp", "pp", "dp", "cp", "ep", "precision", "global_batch", "micro_batch", "seq", "recompute"),
    *("measured", "unit", "memory_gib", "other_tool_prediction", "other_tool", "source"),
)
_LARGEST = 1e30
_LARGEST_MESSAGE_BYTES = 2**50
_LEAST_GIB, _MOST_GIB = 1e-3, 1e6
# Plausible seconds, from ten nanoseconds to three years; values outside indicate a wrong unit.
_SHORTEST_S, _LONGEST_S = 1e-8, 1e8
# Message size for figures stated as a peak: every machine of the data reaches its peak at this size.
_PEAK_MESSAGE_BYTES = 16 * GIB
# nccl-tests prints multiples of 0.01 GB/s; with fewer of them, a figure is mostly rounding.
_FEWEST_HUNDREDTHS = 10
_PEAK = re.compile(r"\bpeak\b", re.IGNORECASE)


class PublishedRow(Struct, frozen=True, kw_only=True):
    """One row: its cells, and what is derived from them.

    file, row: location; row is the 1-based data row. cells: as written, for splits by any column.
    kind: what `seconds` measures: a training `step`; one sample or other counted unit (`throughput`); a
    `collective`; `matmul` and `efficiency` have no seconds. reason: why there are no seconds, or None.
    resolution: half of the last digit of the figure, as a fraction of it. notes: assumptions.
    memory_counted: how its source counts memory; None if it states no memory or does not say how.
    catalogue: for resolving names.
    execution, cluster: numbers shared by the rows of one execution, and by nearly equal executions; -1
    without seconds.
    """

    file: str
    row: int
    cells: dict[str, str]
    workload: str
    hardware: str
    unit: str
    num_accelerators: int = 0
    measured: float | None = None
    resolution: float = 0.0
    quantity: Quantity | None = None
    kind: Kind | None = None
    model: Model | None = None
    strategy: Strategy | None = None
    operation: str | None = None
    payload_bytes: float | None = None
    memory_bytes: float | None = None
    memory_counted: MemoryCounted | None = None
    conversion: Conversion | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None
    catalogue: Catalogue = field(default_factory=shipped)
    execution: int = -1
    cluster: int = -1

    @property
    def is_own(self) -> bool:
        """Whether it is a user's run, as `ingest` and `advise --runs` read it, not a row of a table."""
        return SIZE in self.cells

    @property
    def seconds(self) -> float | None:
        """The measured time; None if the row has none."""
        if self.conversion is None or self.measured is None:
            return None
        return self.conversion.seconds(self.measured)


def nodes_of(row: PublishedRow) -> Cluster | None:
    """The nodes that a row's hardware names; None if they are unknown."""
    return _nodes(row.hardware, row.num_accelerators, row.catalogue)


@lru_cache(maxsize=_MOST_KEPT)
def _nodes(hardware: str, num_accelerators: int, catalogue: Catalogue) -> Cluster | None:
    return cluster_in_text(hardware, num_accelerators=num_accelerators, catalogue=catalogue)


def read_rows(paths: Sequence[Path], catalogue: Catalogue | None = None) -> tuple[PublishedRow, ...]:
    """Every data row of the files, in order; rows that cannot be interpreted carry the reason.

    catalogue: for resolving names; the shipped one by default. Rows of one execution are combined in
    executions.py, not here.

    Raises DataError for a file that is not such a table, UsageError for a file given twice.
    """
    if len(paths) > MAX_FILES:
        raise UsageError(f"{len(paths):,} files; at most {MAX_FILES:,} are read at a time")
    each_once(paths)
    rows: list[PublishedRow] = []
    for path in paths:
        rows.extend(_rows_of_file(path, catalogue or shipped()))
    return tuple(rows)


def _rows_of_file(path: Path, catalogue: Catalogue) -> list[PublishedRow]:
    header, rows = _table_of_file(path)
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise DataError(
            f"{path.name}: no column {', '.join(missing)}; found {quoted(header)}; expected "
            f"{', '.join(_USUAL)}; or runs as `ingest` reads them: workload, accelerator, "
            "num_accelerators, global_batch_samples, step_s"
        )
    return [row_of_cells(row, path.name, index, catalogue) for index, row in rows]


# Columns of user runs, as `ingest` and `advise --runs` read them, by the column names used here.
_RUN_COLUMNS: Final = {
    "hardware": "accelerator",
    "n_gpus": SIZE,
    "global_batch": BATCH,
    "seq": SEQUENCE,
    "parallel_config": STRATEGY,
}
# Units of their time columns; that of a step comes first, as it needs no batch.
_TIME_UNITS: Final = {"step": "{unit}/step", "samples": "samples/{unit}", "tokens": "tokens/{unit}"}


def _table_of_file(path: Path) -> tuple[Sequence[str], Iterable[tuple[int, TextRow]]]:
    """The columns of a file, and its rows with their numbers; columns of user runs are renamed."""
    header, rows = as_written(path)
    if "measured" in header or "unit" in header:
        return header, enumerate(map(_with_software, rows), 1)
    runs = exported(path)
    units = {
        name: _TIME_UNITS[quantity].format(unit=found[2] or found[4])
        for quantity in _TIME_UNITS
        for name in runs.header
        if (found := TIMED.fullmatch(name)) and quantity in {found[1], found[3]}
    }
    if SIZE not in runs.header or not units:
        return header, enumerate(rows, 1)
    names = list(dict.fromkeys((*_RUN_COLUMNS, "measured", "unit", *runs.header)))
    kept = ((index, row) for index, row in enumerate(runs.rows, 1) if is_success(row.cells.get(STATUS, "")))
    return names, ((index, _with_table_columns(row, units)) for index, row in kept)


def _with_software(row: TextRow) -> TextRow:
    """The row with the software from its own column prepended to the strategy, as in user runs."""
    named = named_software(row) or row.cells.get("software", "").strip()
    config = row.cells.get("parallel_config", "")
    if not named or named.lower() in config.lower():
        return row
    joined = {"framework": named, "parallel_config": f"{named} {config}".strip()}
    return replace(row, cells={**row.cells, **joined})


def _with_table_columns(row: TextRow, units: Mapping[str, str]) -> TextRow:
    """A user run with the column names used here, and with the first of its stated times."""
    timed = next((name for name in units if row.cells[name].strip()), next(iter(units)))
    renamed = {ours: row.cells.get(theirs, "") for ours, theirs in _RUN_COLUMNS.items()}
    renamed["workload"] = row.cells.get("workload", "") or row.cells.get(MODEL, "")
    # Tables of papers name the software within the strategy; user runs have a separate column for it.
    renamed["parallel_config"] = f"{named_software(row)} {renamed['parallel_config']}".strip()
    written = {ours: row.written(theirs) for ours, theirs in {**_RUN_COLUMNS, "measured": timed}.items()}
    cells = {**row.cells, **renamed, "measured": row.cells[timed], "unit": units[timed]}
    return replace(row, cells=cells, theirs={**row.theirs, **written}, fault=_contradiction(row, units))


def _contradiction(row: TextRow, units: Mapping[str, str]) -> str | None:
    """Why the times of a run are not numbers or contradict each other; None if they are consistent."""
    filled = [name for name in units if row.cells[name].strip()]
    try:
        for name in filled:
            amount(row, name)
        if not filled[1:]:
            return None
        batch, tokens = (stated_amount(row, name) for name in (BATCH, SEQUENCE))
        rates_of(row, filled, batch_samples=batch, sequence_tokens=tokens)
    except DataError as err:
        return str(err)
    return None


_COLUMN = re.compile(r"(?<=\bcolumn )(\w+)|(?<=\bcolumns )(\w+) and (\w+)")


def _reason(err: Exception, row: TextRow) -> str:
    """The reason from an error, without its location and with the file's own column names."""
    return _COLUMN.sub(
        lambda found: " and ".join(row.written(name) for name in found.groups() if name),
        str(err).removeprefix(row.place).lstrip(",: "),
    )


def row_of_cells(row: TextRow, file: str, index: int, catalogue: Catalogue) -> PublishedRow:
    """Parse one row of cells; never raises for its contents. file, index: its location."""
    unread = PublishedRow(
        file=file,
        row=index,
        cells={name: text[:MAX_TEXT] for name, text in row.cells.items()},
        workload=stated(row, "workload")[:MAX_TEXT],
        hardware=stated(row, "hardware")[:MAX_TEXT],
        unit=stated(row, "unit")[:MAX_TEXT],
        catalogue=catalogue,
    )
    seen = unread
    try:
        seen = _figure_of(row, unread)
        whole = of_whole_accelerators(row)
        seen = seen if whole is row else _figure_of(whole, unread)
        found = _interpreted(whole, seen)
    except (DataError, SpecError) as err:
        return replace(seen, reason=_reason(err, row))
    return _without_impossible_time(found) if found.is_own else found


def _figure_of(row: TextRow, unread: PublishedRow) -> PublishedRow:
    """The row with its figure and accelerators. Raises DataError if it lacks something."""
    if row.fault:
        raise DataError(row.fault)
    measured = number(row, "measured", most=_LARGEST)
    num_accelerators = count(row, "n_gpus", most=MAX_ACCELERATORS)
    if measured is None or num_accelerators is None:
        empty = "measured" if measured is None else "n_gpus"
        raise DataError(f"column {empty}: empty; expected a number above 0")
    unit = quantity(stated(row, "unit"))
    if unit is not None and unit.kind == "utilisation" and measured * unit.si > 1.0:
        raise DataError(
            "column measured: more than all of the peak; expected at most 1, or per cent as % MFU"
        )
    memory_gib = number(row, "memory_gib", most=_MOST_GIB)
    if memory_gib is not None and memory_gib < _LEAST_GIB:
        raise row.refusal("memory_gib", f"{_LEAST_GIB:g} to {_MOST_GIB:g} GiB")
    counted = None if memory_gib is None else memory_count(stated(row, "source"))
    return replace(
        unread,
        measured=measured,
        resolution=_resolution(stated(row, "measured"), measured),
        num_accelerators=num_accelerators,
        quantity=unit,
        memory_bytes=None if memory_gib is None else memory_gib * GIB * (counted.gib if counted else 1.0),
        memory_counted=None if counted is None else counted.counted,
    )


def _interpreted(row: TextRow, seen: PublishedRow) -> PublishedRow:
    """The row with all that follows from its figure. Raises DataError or SpecError if it lacks something."""
    found = _interpreted_by_kind(row, seen)
    if found.seconds is not None and not _SHORTEST_S <= found.seconds <= _LONGEST_S:
        raise DataError(
            f"measured = {seen.measured:g} {seen.unit} is {found.seconds:g} s; "
            f"expected {_SHORTEST_S:g} to {_LONGEST_S:g} s"
        )
    return found


def _without_impossible_time(row: PublishedRow) -> PublishedRow:
    """The row, with its time removed if that implies more FLOP/s than the peak of its accelerators.

    Counts only the FLOP that every token needs in the layers, forward and backward, so that only impossible
    times are rejected.
    """
    nodes, strategy, model = nodes_of(row), row.strategy, row.model
    if nodes is None or strategy is None or row.seconds is None or model is None:
        return row
    if model.transformer is None or model.transformer.towers:
        return row
    among = multiplied_in(strategy.precision if row.cells.get("precision", "").strip() else None)
    in_layers = model.transformer.active_params - model.transformer.embedding_params
    of_each = _FLOP_PER_WEIGHT if strategy.trained == "full" else _FLOP_PER_FROZEN_WEIGHT
    flop = of_each * in_layers * strategy.global_batch_samples * (model.sequence or 1)
    of_each_s = flop / (row.seconds * strategy.num_accelerators)
    if share_of_peak(of_each_s, nodes.accelerator, among) <= MOST_OF_PEAK:
        return row
    why = (
        f"{row.unit}: above the peak of {nodes.accelerator.title}; check its unit, the number of "
        "accelerators, the batch, the length of samples and the precision"
    )
    return replace(row, conversion=None, reason=why)


def _resolution(text: str, value: float) -> float:
    """Half of the last written digit, as a fraction of the value."""
    mantissa = text.lower().partition("e")[0].replace(",", "")
    decimals = len(mantissa.partition(".")[2].rstrip("km "))
    written = float(mantissa.rstrip("km ").lstrip("+") or 0)
    return 0.5 * 10.0**-decimals / written if written else value


def _interpreted_by_kind(row: TextRow, seen: PublishedRow) -> PublishedRow:
    """The row, interpreted by the kind of its figure."""
    unit = seen.quantity
    if unit is None:
        raise DataError("column unit: empty")
    if is_matrix_product(seen.workload):
        return replace(
            seen, kind="matmul", reason="a rate of matrix products only, not of training or a collective"
        )
    if unit.kind in {"bus", "payload"} or collective_of(seen.workload):
        return _collective(row, seen, unit)
    if unit.kind == "efficiency":
        return replace(
            seen,
            kind="efficiency",
            reason="a share of perfect scaling: the reference time is not stated",
        )
    if unit.kind == "items":
        return _throughput(seen, unit, "the unit does not say what is counted")
    try:
        return _step(row, seen, unit)
    except (DataError, SpecError) as err:
        if unit.kind != "samples":
            raise
        return _throughput(seen, unit, _reason(err, row))


def _step(row: TextRow, seen: PublishedRow, unit: Quantity) -> PublishedRow:
    model, nodes = model_of(row, seen.catalogue), nodes_of(seen)
    strategy, assumed = strategy_of(row, num_accelerators=seen.num_accelerators, model=model, nodes=nodes)
    _check_experts(strategy, model)
    _check_weights(strategy, model, nodes)
    if not seen.is_own:
        _check_length(row, unit, strategy, model)
    if _convolves_in_tf32(strategy, model, nodes) and not denies_tf32(row):
        strategy = replace(strategy, precision="tf32")
        assumed = (*assumed, "convolutions in fp32: multiplied in tf32, as is usual on this chip")
    conversion = step_conversion(unit, strategy, model, peak_flop_per_s=_peak(nodes, unit, strategy))
    return replace(
        seen,
        kind="step",
        model=model,
        strategy=strategy,
        conversion=conversion,
        notes=(*model.notes, *assumed),
    )


_TUNED = re.compile(r"fine[- ]?tun|\bsft\b|\binstruct(?:ion)?\b|\bchat\b|alpaca|dolly", re.IGNORECASE)


def _check_length(row: TextRow, unit: Quantity, strategy: Strategy, model: Model) -> None:
    """Raise DataError for a fine-tuning step without a sequence length, which depends on its data."""
    transformer = model.transformer
    if unit.kind not in {"samples", "steps", "time"} or stated(row, "seq"):
        return
    is_tuned = strategy.trained != "full" or _TUNED.search(stated_words(row)) is not None
    if transformer is not None and transformer.causal and is_tuned:
        raise DataError("column seq: empty; samples of a fine-tuning are as long as its data")


def _check_experts(strategy: Strategy, model: Model) -> None:
    """Refuse a mixture that is read as a dense model: its row spreads experts that the model does not have.

    Raises DataError.
    """
    if strategy.ep > 1 and model.transformer is not None and model.transformer.num_expert_blocks == 0:
        raise DataError(
            f"column ep: ep={strategy.ep}, and the model as read has no experts; expected their number, "
            "width and top-k in workload"
        )


def _check_weights(strategy: Strategy, model: Model, nodes: Cluster | None) -> None:
    """Raise DataError if the weights alone, in the fewest bytes, exceed an accelerator's memory."""
    memory_bytes = None if nodes is None else nodes.accelerator.memory_bytes
    if model.transformer is None or memory_bytes is None or strategy.offload != "none":
        return
    shards = strategy.tp * strategy.pp * strategy.ep
    if strategy.shards_weights:
        shards = max(shards, strategy.tp * strategy.pp * strategy.num_shards)
    of_each = _FOUR_BITS if strategy.trained == "qlora" else BF16_BYTES
    weight_bytes = of_each * model.transformer.params / shards
    if weight_bytes > memory_bytes:
        needed, held = format_si_apart(weight_bytes, memory_bytes, "B")
        raise DataError(
            f"columns tp and pp: as read, weights take {needed} of an accelerator's {held}; expected the "
            "axes that it ran with"
        )


def _convolves_in_tf32(strategy: Strategy, model: Model, nodes: Cluster | None) -> bool:
    """Whether fp32 means tf32: a convolutional network on a chip that multiplies in tf32.

    Source: PyTorch, torch.backends.cudnn.allow_tf32, and TensorFlow, enable_tensor_float_32_execution: true
    by default; for matrix products PyTorch's is false since 1.12.
    """
    is_vision = model.transformer is None and model.known is not None and model.known.area == "vision"
    has_tf32 = nodes is not None and nodes.accelerator.peak_flop_per_s("tf32") is not None
    return strategy.precision == "fp32" and is_vision and has_tf32


def _peak(nodes: Cluster | None, unit: Quantity, strategy: Strategy) -> float | None:
    """The peak for a fraction of peak; None if the unit needs none or the accelerator is unknown."""
    if nodes is None or unit.kind != "utilisation":
        return None
    return peak_in(nodes.accelerator, strategy.precision)


def _throughput(seen: PublishedRow, unit: Quantity, why: str) -> PublishedRow:
    """The row as a rate without a known step: seconds per counted unit, over all accelerators.

    It can only be compared with the same rate at another number of accelerators.
    """
    spread = seen.num_accelerators if unit.per_accelerator else 1
    conversion = Conversion(factor=1.0 / (spread * unit.si), is_rate=True)
    return replace(seen, kind="throughput", conversion=conversion, notes=(f"no step time: {why}",))


def _collective(row: TextRow, seen: PublishedRow, unit: Quantity) -> PublishedRow:
    notes = []
    operation = collective_of(seen.workload)
    if operation is None:
        # Bus bandwidths are defined to be comparable across operations.
        notes.append("no collective named: all_reduce is assumed")
        operation = "all_reduce"
    payload = number(row, "global_batch", most=_LARGEST_MESSAGE_BYTES)
    if payload is None and _PEAK.search(seen.workload):
        notes.append(f"a peak without a size: taken at {_PEAK_MESSAGE_BYTES:,} bytes")
        payload = float(_PEAK_MESSAGE_BYTES)
    if payload is None:
        raise DataError("column global_batch: empty; expected the bytes of the message")
    if unit.kind in {"bus", "payload"} and (seen.measured or 0.0) < _FEWEST_HUNDREDTHS * 0.01:
        raise DataError(f"measured = {seen.cells['measured']} {seen.unit}: too few digits, mostly rounding")
    return replace(
        seen,
        kind="collective",
        operation=operation,
        payload_bytes=payload,
        conversion=collective_conversion(unit, operation, payload, seen.num_accelerators),
        notes=tuple(notes),
    )


# The first columns of the shipped table are parsed values, the last ones the row as published. Written as
# CSV, the table is a valid input of `validate`.
FILE_NAME: Final = "published_steps.parquet"

# Parsed columns that are also cells of a row, so that splits can use them.
_ALSO_CELLS: Final = ("repository", "trust", "software", "accelerator", "model_kind", "date")


@cache
def published_steps() -> pl.DataFrame:
    """The shipped table. Raises DataError if its file is missing or invalid."""
    path = Path(__file__).parents[2] / "data" / FILE_NAME
    try:
        data = path.read_bytes()
    except OSError as err:
        raise DataError(f"{path}: {err.strerror}; `make profiles` writes it") from err
    return read_bytes(data, PUBLISHED_STEPS, FILE_NAME)


def rows_of_table(frame: pl.DataFrame, catalogue: Catalogue | None = None) -> tuple[PublishedRow, ...]:
    """Rows of the table, as `read_rows` reads them from a file; `file` is their repository."""
    known = catalogue or shipped()
    names = (*FILE_COLUMNS, *_ALSO_CELLS)
    found = []
    for place, cells in enumerate(frame.select(names).iter_rows(named=True), start=1):
        written = {name: cells[name] or "" for name in names}
        row = TextRow(place=f"published steps: row {place}", cells=written)
        found.append(row_of_cells(row, written["repository"], place, known))
    return tuple(found)


def model_kind_of(transformer: Transformer | None) -> str:
    """The kind of model: `dense`, `experts`, or `other` if it is not a transformer."""
    if transformer is None:
        return "other"
    return "experts" if transformer.num_expert_blocks > 0 else "dense"
