"""The tables: every column with its type, unit and meaning, as docs/reference/tables.md has them.

A table is a Polars frame with exactly these columns, in this order. Unknown is null, never a sentinel.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["str", "int", "float"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSchema:
    """One column: its name (which ends in its unit), kind, and meaning in one sentence."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One table: its name, what a row is, its columns in order, and those that sort and identify a row."""

    name: str
    row: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)


_ENTRY_COLUMNS = (
    ColumnSchema(
        name="origin", kind="str", meaning="where the evidence comes from: `mlperf`, `measured` or `imported`"
    ),
    ColumnSchema(name="campaign", kind="str", meaning="the MLPerf round (`v4.1`) or the name of the sweep"),
    ColumnSchema(name="division", kind="str", meaning="`closed` or `open`, as MLCommons defines them"),
    ColumnSchema(
        name="availability",
        kind="str",
        meaning="`available_onprem`, `available_cloud`, `preview` or `research`",
    ),
    ColumnSchema(
        name="submitter", kind="str", meaning="who measured: the organisation's folder in the results"
    ),
    ColumnSchema(name="system", kind="str", meaning="the system's folder in the results"),
    ColumnSchema(name="workload", kind="str", meaning="slug of the workload, e.g. `llama2_70b_lora`"),
    ColumnSchema(
        name="accelerator",
        kind="str",
        meaning="slug of the accelerator, e.g. `h100-sxm5-80gb`; the raw name when unknown",
    ),
    ColumnSchema(
        name="num_accelerators",
        kind="int",
        meaning="accelerators in the whole system, as MLPerf counts them; CPU sockets where it has none; "
        "ranks of a measured run",
    ),
    ColumnSchema(name="num_nodes", kind="int", meaning="hosts in the whole system"),
    ColumnSchema(
        name="framework",
        kind="str",
        meaning="slug of the framework, e.g. `pytorch`; the raw text when unknown",
    ),
    ColumnSchema(name="precision", kind="str", meaning="numeric format of the compute, where it is stated"),
    ColumnSchema(
        name="strategy",
        kind="str",
        meaning="how the run was parallelised: the text form of a strategy or, of a measured run, the way to "
        "train as `bench` takes it",
    ),
    ColumnSchema(
        name="global_batch_samples",
        kind="int",
        meaning="samples an optimizer step consumes over all accelerators",
    ),
)

RUNS = TableSchema(
    name="runs",
    row="one execution",
    columns=(
        ColumnSchema(name="run_id", kind="str", meaning="unique name of the run: round, folders and file"),
        *_ENTRY_COLUMNS,
        ColumnSchema(
            name="status",
            kind="str",
            meaning="`success`, or why the run does not count: see docs/understand/scoring.md; of a "
            "measured run `failed: ` and the reason",
        ),
        ColumnSchema(
            name="time_to_train_s",
            kind="float",
            meaning="official clock: last `run_start` before the first `run_stop`, to it",
        ),
        ColumnSchema(
            name="samples_to_target",
            kind="float",
            meaning="training samples consumed until the target was reached",
        ),
        ColumnSchema(
            name="samples_per_s",
            kind="float",
            meaning="samples_to_target / time_to_train_s: evaluation included; of a measured run: while "
            "it was timed",
        ),
        ColumnSchema(
            name="eval_s",
            kind="float",
            meaning="time inside evaluation spans within the clock, union of overlaps",
        ),
        ColumnSchema(
            name="eval_outside_s",
            kind="float",
            meaning="the part of eval_s outside every training block; null when the log has no usable blocks",
        ),
        ColumnSchema(
            name="train_block_s",
            kind="float",
            meaning="time in training blocks (epochs where a log has none) within the clock; union of them",
        ),
        ColumnSchema(
            name="init_s", kind="float", meaning="`init_start` to `run_start`: outside the official clock"
        ),
        ColumnSchema(
            name="reported_throughput",
            kind="float",
            meaning="last throughput the log itself reports, in the log's own convention",
        ),
        ColumnSchema(
            name="energy_j",
            kind="float",
            meaning="energy of the run from its power logs, nodes and switches, unscaled; of a measured run: "
            "while it was timed",
        ),
        ColumnSchema(
            name="source_uri",
            kind="str",
            meaning="path of the log inside its round; of a measured run: the file of its trial",
        ),
        ColumnSchema(
            name="source_line",
            kind="int",
            meaning="1-based line of the `run_stop` (else the last line read) in that log",
        ),
    ),
    key=("run_id",),
)

SCORES = TableSchema(
    name="scores",
    row="one submitted entry: a system on a workload in a round",
    columns=(
        ColumnSchema(
            name="entry_id",
            kind="str",
            meaning="unique name of the entry: round, folder of the organisation, system, workload",
        ),
        *_ENTRY_COLUMNS,
        ColumnSchema(
            name="score_s",
            kind="float",
            meaning="official score: olympic mean times convergence scaling; null when unscored",
        ),
        ColumnSchema(name="reason", kind="str", meaning="why there is no score; null when there is one"),
        ColumnSchema(
            name="lenient_s",
            kind="float",
            meaning="score that forgives a short or excess count and drops failed runs; for comparison only",
        ),
        ColumnSchema(name="unscaled_s", kind="float", meaning="olympic mean before convergence scaling"),
        ColumnSchema(
            name="convergence_scaling",
            kind="float",
            meaning="factor of scaling.json (reference convergence points); 1.0 when absent",
        ),
        ColumnSchema(name="num_runs", kind="int", meaning="logs found"),
        ColumnSchema(name="num_failed", kind="int", meaning="logs that count as failed"),
        ColumnSchema(name="num_missing", kind="int", meaning="logs required by the rules and not found"),
        ColumnSchema(name="min_s", kind="float", meaning="fastest successful run, unscaled"),
        ColumnSchema(name="max_s", kind="float", meaning="slowest successful run, unscaled"),
        ColumnSchema(
            name="samples_to_target", kind="float", meaning="mean over the runs that make the score"
        ),
        ColumnSchema(
            name="samples_per_s",
            kind="float",
            meaning="samples_to_target / unscaled_s over the same runs: evaluation included",
        ),
        ColumnSchema(name="eval_s", kind="float", meaning="mean over the runs that make the score"),
        ColumnSchema(
            name="eval_outside_s",
            kind="float",
            meaning="mean over the runs that make the score; null unless every one has it",
        ),
        ColumnSchema(
            name="train_block_s",
            kind="float",
            meaning="mean over the runs that make the score; null unless every one has it",
        ),
        ColumnSchema(name="init_s", kind="float", meaning="mean over the runs that make the score"),
        ColumnSchema(
            name="energy_j",
            kind="float",
            meaning="official energy: olympic in time order, times convergence scaling; null if unmeasured",
        ),
        ColumnSchema(name="source_uri", kind="str", meaning="folder of the entry inside its round"),
        ColumnSchema(
            name="source_line",
            kind="int",
            meaning="line of the `run_stop` in the entry's first log; null when it has none",
        ),
    ),
    key=("entry_id",),
)

STEPS = TableSchema(
    name="steps",
    row="one phase of one timed repetition of a step",
    columns=(
        ColumnSchema(name="run_id", kind="str", meaning="the run in `runs` that the step was timed in"),
        ColumnSchema(
            name="repetition",
            kind="int",
            meaning="number of the timed step in its run, from 1; warm-up steps have no rows",
        ),
        ColumnSchema(
            name="phase",
            kind="str",
            meaning="`step`, its parts `input`, `forward`, `backward`, `communication_exposed`, `optimizer`, "
            "`rest`, or `communication_total`, `communication_overlapped`",
        ),
        ColumnSchema(
            name="seconds", kind="float", meaning="how long it took on the rank whose step took longest"
        ),
    ),
    key=("run_id", "repetition", "phase"),
)

TABLES = (RUNS, SCORES, STEPS)
