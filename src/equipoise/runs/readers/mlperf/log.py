"""Reads the facts of one MLPerf log that scoring and the study need, including spans of interleaved ranks."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeAlias

from msgspec import Struct, field

from equipoise.files import is_utf16, printed_text
from equipoise.intervals import covered_s
from equipoise.runs.readers.mlperf.dialects import (
    Dialect,
    Event,
    chunks,
    decoded_lines,
    dialect_of,
    event_time_s,
    finite,
)
from equipoise.spec.strategy import precision_named

Span: TypeAlias = tuple[float, float]

# Real logs have below 10,000 spans; beyond this limit spans are dropped and no total is stated.
MAX_SPANS = 200_000
# Fields that match a stop to its start; the first one in an event is used.
_PAIR_KEYS = ("epoch_num", "first_epoch_num", "samples_count", "step_num", "step")


def _pair_key(event: Event) -> float | None:
    metadata = event.metadata
    if isinstance(metadata, dict):
        for key in _PAIR_KEYS:
            if key in metadata:
                value = metadata[key]
                return value if type(value) is int else finite(value)
    return None


class SpanTracker(Struct):
    """The spans found so far. A repeated start and a stop without a start are ignored."""

    spans: list[Span] = field(default_factory=list)
    overflow: bool = False
    _open_s: dict[float | None, float] = field(default_factory=dict)

    def start(self, event: Event) -> None:
        """Open the span of an event's epoch, samples or step."""
        time_s = event_time_s(event)
        if time_s is None:
            return
        if len(self._open_s) + len(self.spans) >= MAX_SPANS:
            self.overflow = True
            return
        self._open_s.setdefault(_pair_key(event), time_s)

    def stop(self, event: Event) -> None:
        """Close the span of the same key, or the oldest open span if the key is unknown."""
        time_s = event_time_s(event)
        if time_s is None or not self._open_s:
            return
        key = _pair_key(event)
        if key not in self._open_s:
            key = next(iter(self._open_s))
        start_s = self._open_s.pop(key)
        if time_s >= start_s:
            self.spans.append((start_s, time_s))


class ClockShares(Struct, frozen=True, kw_only=True):
    """Seconds within the official clock; None if the log has no such spans."""

    eval_s: float | None = None
    eval_outside_s: float | None = None
    train_block_s: float | None = None


def clock_shares(evals: SpanTracker, blocks: SpanTracker, clock: Span) -> ClockShares:
    """Return the time of evaluation, evaluation outside training blocks, and training blocks in the clock."""
    eval_s = covered_s(evals.spans, within=clock) if evals.spans and not evals.overflow else None
    block_s = covered_s(blocks.spans, within=clock) if blocks.spans and not blocks.overflow else None
    if eval_s is None or not block_s:
        return ClockShares(eval_s=eval_s, train_block_s=block_s)
    both_s = covered_s([*evals.spans, *blocks.spans], within=clock)
    return ClockShares(eval_s=eval_s, eval_outside_s=max(both_s - block_s, 0.0), train_block_s=block_s)


# A log's fingerprint is a hash of its size and of this many bytes at either end.
_FINGERPRINT_BYTES = 8192
# Limit of evaluations of metrics that are logged separately (FID and CLIP); real logs have below 200.
_MAX_METRICS = 10_000


# The progress of training at an evaluation: all numbers in the event, under the log's own keys.
TrainingProgress: TypeAlias = dict[str, float]


class Metric(Struct, frozen=True, kw_only=True):
    """One result of a metric that is logged separately (`FID`, `CLIP`), with the progress of training."""

    name: str
    value: float
    progress: TrainingProgress


class LogFacts(Struct, frozen=True, kw_only=True):
    """The facts in one log. Times in seconds; None if not stated.

    num_lines: of a log without `run_stop`; 0 otherwise.
    num_corrupt: unreadable marked lines, if they count against the run.
    submission: the first value of each `submission_*` key (`benchmark`, `division`, `org`, ...).
    progress: at the last evaluation result before `run_stop`. metrics: separately logged results, in order.
    first_train_epoch, last_train_epoch: of `train_epoch` lines (v0.5).
    eval_result_s: `timestamp` of the last `eval_result` (v0.6 Minigo: the official time).
    missed_target: whether the last result is below the stated target (v0.5; later logs have a status).
    precision: of matrix products. strategy: sizes of the axes and the micro-batch. Both are optional since
    v6.0 and required since v6.1.
    """

    dialect: str | None
    num_events: int
    num_corrupt: int
    first_corrupt_line: int | None
    num_lines: int
    fingerprint: bytes
    submission: dict[str, str]
    run_start_s: float | None
    run_stop_s: float | None
    run_stop_line: int | None
    status: str | None
    init_start_s: float | None
    init_stop_s: float | None
    global_batch: float | None
    precision: str | None
    strategy: str | None
    train_samples: float | None
    progress: TrainingProgress | None
    metrics: tuple[Metric, ...]
    missed_target: bool
    first_train_epoch: float | None
    last_train_epoch: float | None
    eval_result_s: float | None
    shares: ClockShares
    reported_throughput: float | None

    @property
    def time_to_train_s(self) -> float | None:
        """Official time from the last `run_start` to the first `run_stop`, including evaluation."""
        if self.run_start_s is None or self.run_stop_s is None:
            return None
        return self.run_stop_s - self.run_start_s


def _metadata(event: Event) -> dict[str, Any]:
    return event.metadata if isinstance(event.metadata, dict) else {}


# An evaluation result counts if it states at least one of these.
_PROGRESS_KEYS = frozenset(
    {"samples_count", "epoch_num", "step_num", "step", "epoch", "train_samples_since_beginning"}
)


def _progress(event: Event) -> TrainingProgress:
    metadata = _metadata(event)
    return {
        key: number
        for key, value in metadata.items()
        if key != "lineno" and isinstance(key, str) and (number := finite(value)) is not None
    }


# The keys of strategy sizes in logs: mlperf-logging 4.1.68, mllog/constants.py.
_AXIS_KEYS = {
    "tensor_parallelism": "tp",
    "pipeline_parallelism": "pp",
    "context_parallelism": "cp",
    "expert_parallelism": "ep",
    "micro_batch_size": "microbatch",
}


class _Fold(Struct):
    """The state while events are processed in file order; none after the first `run_stop` changes a time."""

    run_start_s: float | None = None
    run_stop_s: float | None = None
    status: str | None = None
    init_start_s: float | None = None
    init_stop_s: float | None = None
    submission: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    evaluation: Event | None = None
    metrics: list[Metric] = field(default_factory=list)
    reported: Event | None = None
    evals: SpanTracker = field(default_factory=SpanTracker)
    blocks: SpanTracker = field(default_factory=SpanTracker)
    epochs: SpanTracker = field(default_factory=SpanTracker)

    def run_start(self, event: Event) -> None:
        """Use the last one before the stop."""
        if self.run_stop_s is None:
            self.run_start_s = event_time_s(event)

    def run_stop(self, event: Event) -> None:
        """Use the first one, with its status."""
        if self.run_stop_s is None:
            self.run_stop_s = event_time_s(event)
            status = _metadata(event).get("status")
            self.status = status if isinstance(status, str) else None

    def init_start(self, event: Event) -> None:
        """Use the earliest one before the stop, because ranks start one by one."""
        time_s = event_time_s(event)
        if self.run_stop_s is None and time_s is not None:
            self.init_start_s = time_s if self.init_start_s is None else min(self.init_start_s, time_s)

    def init_stop(self, event: Event) -> None:
        """Use the last one before the stop."""
        if self.run_stop_s is None:
            self.init_stop_s = event_time_s(event)

    def number(self, event: Event) -> None:
        """Use the last number of a key, because ranks repeat it."""
        found = finite(event.value)
        if found is not None:
            self.numbers[event.key] = found

    def stated_precision(self, event: Event) -> None:
        """Store the lowest precision of matrix products, under our name if it is known."""
        value = event.value
        if isinstance(value, str) and value.strip():
            self.precision = precision_named(value) or value.strip()

    @property
    def strategy(self) -> str | None:
        """Strategy text of the axis sizes above 1 and the micro-batch; None if none is stated."""
        sizes = {short: self.numbers.get(key) for key, short in _AXIS_KEYS.items()}
        stated = {short: size for short, size in sizes.items() if size is not None and size >= 1}
        parts = [f"{short}={size:.0f}" for short, size in stated.items() if size > 1 or short == "microbatch"]
        return " ".join(parts) or None

    def train_epoch(self, event: Event) -> None:
        """Update the range of epochs from a starting epoch of v0.5, which is counted from 0 or 1."""
        found = finite(event.value)
        if found is not None and self.run_stop_s is None:
            self.numbers["first_train_epoch"] = min(found, self.numbers.get("first_train_epoch", found))
            self.numbers["last_train_epoch"] = max(found, self.numbers.get("last_train_epoch", found))

    def throughput(self, event: Event) -> None:
        """Use the last report, under the keys of any round."""
        value = event.value
        if not isinstance(value, dict) or "throughput" in value or "imgs_sec" in value:
            self.reported = event

    @property
    def reported_throughput(self) -> float | None:
        """Throughput in the last report."""
        value = None if self.reported is None else self.reported.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        return finite(value)

    def submission_fact(self, event: Event) -> None:
        """Store a statement of the submitter; the first text is used."""
        value = event.value
        if isinstance(value, str) and value.strip():
            self.submission.setdefault(event.key.removeprefix("submission_"), value.strip())

    def evaluated(self, event: Event) -> None:
        """Use the last result before the stop; all results of separately logged metrics are kept."""
        metadata = event.metadata
        if self.run_stop_s is not None or type(metadata) is not dict or _PROGRESS_KEYS.isdisjoint(metadata):
            return
        self.evaluation = event
        name = metadata.get("metric")
        if isinstance(name, str) and len(self.metrics) < _MAX_METRICS:
            value = finite(event.value)
            if value is not None:
                self.metrics.append(Metric(name=name, value=value, progress=_progress(event)))

    @property
    def missed_target(self) -> bool:
        """Return whether the last result is below its target, if both are stated and no status is."""
        value = None if self.evaluation is None else finite(self.evaluation.value)
        target = self.numbers.get("eval_target")
        return self.status is None and value is not None and target is not None and value < target

    def eval_result(self, event: Event) -> None:
        """Store the seconds of training until the model that reached the target (v0.6 Minigo)."""
        found = finite(_metadata(event).get("timestamp"))
        if found is not None:
            self.numbers["eval_result"] = found


_HANDLERS: dict[str, Callable[[_Fold, Event], None]] = {
    "run_start": _Fold.run_start,
    "run_stop": _Fold.run_stop,
    "init_start": _Fold.init_start,
    "init_stop": _Fold.init_stop,
    "global_batch_size": _Fold.number,
    "train_samples": _Fold.number,
    **dict.fromkeys(_AXIS_KEYS, _Fold.number),
    "lowest_numerical_precision_in_linear": _Fold.stated_precision,
    "lowest_numerical_precision_linear": _Fold.stated_precision,  # of AMD's logs of v6.0
    "eval_target": _Fold.number,
    "train_epoch": _Fold.train_epoch,
    "tracked_stats": _Fold.throughput,
    "throughput": _Fold.throughput,
    "eval_accuracy": _Fold.evaluated,
    "eval_error": _Fold.evaluated,
    "eval_result": _Fold.eval_result,
    "eval_start": lambda fold, event: fold.evals.start(event),
    "eval_stop": lambda fold, event: fold.evals.stop(event),
    "block_start": lambda fold, event: fold.blocks.start(event),
    "block_stop": lambda fold, event: fold.blocks.stop(event),
    "epoch_start": lambda fold, event: fold.epochs.start(event),
    "epoch_stop": lambda fold, event: fold.epochs.stop(event),
    "submission_benchmark": _Fold.submission_fact,
    "submission_org": _Fold.submission_fact,
    "submission_division": _Fold.submission_fact,
    "submission_status": _Fold.submission_fact,
    "submission_platform": _Fold.submission_fact,
}


class _Scan(Struct):
    """One pass over a log in chunks, so that memory does not grow with its length."""

    data: bytes
    dialect: Dialect | None
    fold: _Fold = field(default_factory=_Fold)
    num_events: int = 0
    num_corrupt: int = 0
    marks: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # a line's content and chunk start

    def chunk(self, start: int, end: int) -> None:
        """Process the marked lines of one chunk."""
        assert self.dialect is not None  # read_log scans only logs with a known dialect
        raws = self.dialect.pattern.findall(self.data, start, end)
        self.num_events += len(raws)
        for event, raw in zip(decoded_lines(self.dialect, raws), raws, strict=True):
            if event is None:
                self.num_corrupt += self.dialect.strict
                self.marks.setdefault("corrupt", (raw, start))
            elif (handler := _HANDLERS.get(event.key)) is not None:
                if event.key == "run_stop":
                    self.marks.setdefault("run_stop", (raw, start))
                handler(self.fold, event)

    def line_numbers(self) -> dict[str, int]:
        """Return the 1-based line number of each mark, counting lines in a single pass."""
        found = sorted((self.data.find(raw, start), name) for name, (raw, start) in self.marks.items())
        numbers: dict[str, int] = {}
        line, counted = 1, 0
        for at, name in found:
            line += self.data.count(b"\n", counted, at)
            counted = at
            numbers[name] = line
        return numbers


def _fingerprint(data: bytes) -> bytes:
    """Return a hash of the log's size and both ends, which distinguishes it from other logs."""
    digest = blake2b(len(data).to_bytes(8, "big"), digest_size=16)
    digest.update(data[:_FINGERPRINT_BYTES])
    digest.update(data[-_FINGERPRINT_BYTES:])
    return digest.digest()


def _clock_shares(fold: _Fold) -> ClockShares:
    if fold.run_start_s is None or fold.run_stop_s is None:
        return ClockShares()
    blocks = fold.blocks if fold.blocks.spans else fold.epochs  # some workloads log only epochs
    return clock_shares(fold.evals, blocks, (fold.run_start_s, fold.run_stop_s))


def read_log(data: bytes) -> LogFacts:
    """Return the facts of one log in any dialect; dialect None and no events if no line is marked."""
    if is_utf16(data):
        data = printed_text(data).encode()
    dialect = dialect_of(data)
    # Progress bars end lines with a carriage return; replacing it keeps offsets, so line numbers remain
    # correct.
    text = data.replace(b"\r", b"\n") if b"\r" in data else data
    scan = _Scan(data=text, dialect=dialect)
    for start, end in chunks(text) if dialect is not None else ():
        scan.chunk(start, end)
    fold = scan.fold
    scan.data = data
    lines = scan.line_numbers()
    return LogFacts(
        dialect=None if dialect is None else dialect.name,
        num_events=scan.num_events,
        num_corrupt=scan.num_corrupt,
        first_corrupt_line=lines.get("corrupt"),
        num_lines=0 if "run_stop" in lines else data.count(b"\n") + (not data.endswith(b"\n")),
        fingerprint=_fingerprint(data),
        submission=fold.submission,
        run_start_s=fold.run_start_s,
        run_stop_s=fold.run_stop_s,
        run_stop_line=lines.get("run_stop"),
        status=fold.status,
        init_start_s=fold.init_start_s,
        init_stop_s=fold.init_stop_s,
        global_batch=fold.numbers.get("global_batch_size"),
        precision=fold.precision,
        strategy=fold.strategy,
        train_samples=fold.numbers.get("train_samples"),
        progress=None if fold.evaluation is None else _progress(fold.evaluation),
        metrics=tuple(fold.metrics),
        missed_target=fold.missed_target,
        first_train_epoch=fold.numbers.get("first_train_epoch"),
        last_train_epoch=fold.numbers.get("last_train_epoch"),
        eval_result_s=fold.numbers.get("eval_result"),
        shares=_clock_shares(fold),
        reported_throughput=fold.reported_throughput,
    )
