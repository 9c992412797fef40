"""What is fuzzed: every reader of files that users bring, as a function of bytes, with seeds.

A reader may refuse a file with an error of its own (EquipoiseError); nothing else may come out of it.
"""

import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import polars as pl
from msgspec import Struct, to_builtins

from equipoise.bench.collectives.files import read_files
from equipoise.bench.topology import read as read_topology
from equipoise.bench.trace import read_traces
from equipoise.bench.trial import Store
from equipoise.bench.watching import RecordedStep, run_folder
from equipoise.bench.watching.rows import watched
from equipoise.calibration.published import read_rows
from equipoise.decide.allocation.jobs import read_jobs, read_prices
from equipoise.decide.ledger import read_ledger, running_of
from equipoise.decide.question.query import query
from equipoise.diagnose.watched_runs import watched_now
from equipoise.errors import EquipoiseError
from equipoise.report.html import fragment
from equipoise.report.pages.watch import WATCH
from equipoise.runs import Blob, SourceFacts
from equipoise.runs.ingest import ingest
from equipoise.runs.readers.measurements import read_measurements
from equipoise.runs.readers.mlperf import MLPERF
from equipoise.spec.catalogue import cluster_in_text, shipped
from equipoise.spec.cluster import load_systems
from equipoise.spec.hardware import Hardware, load_hardware
from equipoise.spec.hub_config import read_config
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import load_workloads
from equipoise.units import duration_s

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
DATA = ROOT / "src" / "equipoise"
_MOST_MEMBERS = 3
_MOST_CHARS = 2000
_SCRATCH = Path(tempfile.mkdtemp(prefix=f"equipoise-fuzz-{os.getpid()}-"))


class Target(Struct, frozen=True, kw_only=True):
    """One reader. read: lets it read bytes. seeds: contents to begin from. is_slow: takes a process each."""

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    is_slow: bool = False

    def survives(self, data: bytes) -> None:
        """Let the reader read; only its own refusals are no finding."""
        with suppress(EquipoiseError):
            self.read(data)


def _file(name: str, data: bytes) -> Path:
    path = _SCRATCH / name
    path.write_bytes(data)
    return path


def _mlperf(path: str) -> Callable[[bytes], object]:
    """Reads one file of a round, and makes rows of it."""

    def read(data: bytes) -> object:
        facts = {path: MLPERF.parse(Blob(path=path, data=data))}
        sources = [SourceFacts(context=("training_results_v4.1",), facts=facts)]
        return MLPERF.assemble(sources, shipped())

    return read


def _archive(data: bytes) -> object:
    return ingest(_file("round.tar", data), num_workers=1)


def _store(data: bytes) -> object:
    """A sweep whose plan and first trial are the two halves of the data."""
    plan, _, trial = data.partition(b"\0")
    folder = _SCRATCH / "sweep"
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_bytes(plan)
    store = Store(folder)
    for each in store.plan()[:1]:
        store.path(each).write_bytes(trial)
    try:
        return store.settings(), store.finished()
    finally:
        for left in (folder / "trials").iterdir():
            left.unlink()


def _loop(data: bytes) -> Path:
    """A folder of one watched run whose two ranks left the two halves of the data."""
    out = _SCRATCH / "loop"
    run = run_folder(out, "20250101T000000-abcdef")
    run.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(data.split(b"\0", 1)):
        (run / f"rank-{number}.jsonl").write_bytes(content)
    return out


def _watched_page(data: bytes) -> object:
    try:
        return fragment(WATCH, watched_now(_loop(data)))
    finally:
        shutil.rmtree(_SCRATCH / "loop")


def _watched_tables(data: bytes) -> object:
    try:
        return watched(_loop(data))
    finally:
        shutil.rmtree(_SCRATCH / "loop")


def _ledger(data: bytes) -> object:
    found = read_ledger(_file("ledger.jsonl", data))
    return running_of(found.entries)


def _question(data: bytes) -> object:
    """Lines of `field = text`, as options and forms give them."""
    lines = data.decode(errors="replace").splitlines()
    given = (line.partition("=") for line in lines)
    return query({name.strip(): text.strip() for name, _, text in given})


def _texts(data: bytes) -> object:
    text = data.decode(errors="replace")
    found: list[object] = [duration_s(text)]
    for read in (cluster_in_text, strategy):
        with suppress(EquipoiseError):
            found.append(read(text))
    return found


def _examples(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(EXAMPLES / name).read_bytes() for name in names]


@cache
def _known_hardware() -> Hardware:
    """The accelerators that ship, read once for all inputs."""
    return load_hardware()


def _shipped(name: str) -> Callable[[], list[bytes]]:
    """A file that ships, whole and its first lines."""

    def seeds() -> list[bytes]:
        whole = (DATA / name).read_bytes()
        return [whole[:4000].rpartition(b"\n[")[0]]

    return seeds


def _small_traces() -> list[bytes]:
    """Some traces of the examples, each with an event in so many of theirs."""
    found = []
    with tarfile.open(EXAMPLES / "dlrm-traces.tar.gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".json") else None
            if file is not None and len(found) < _MOST_MEMBERS:
                trace = json.load(file)
                events = trace["traceEvents"]
                trace["traceEvents"] = events[:: 1 + len(events) // 60]
                found.append(json.dumps(trace).encode())
    return found


def _sweep() -> list[bytes]:
    with tarfile.open(EXAMPLES / "small-cnn-sweep.tar.gz") as archive:
        named = {member.name: member for member in archive if member.isfile()}
        plan = json.loads(
            archive.extractfile(next(m for n, m in named.items() if n.endswith("sweep.json"))).read()
        )
        trial = json.loads(archive.extractfile(next(m for n, m in named.items() if "/trials/" in n)).read())
    plan["trials"] = [trial["trial"]]
    trial["result"] = {key: value for key, value in trial["result"].items() if len(str(value)) < _MOST_CHARS}
    return [json.dumps(plan).encode() + b"\0" + json.dumps(trial).encode()]


def _small_archive() -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (
            ("v4.1/Org/results/S/bert/result_0.txt", _log()[0]),
            ("v4.1/Org/systems/S.json", b'{"submitter": "Org", "number_of_nodes": "1"}'),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return [buffer.getvalue(), gzip.compress(buffer.getvalue(), mtime=0)]


def _log() -> list[bytes]:
    lines = [
        {"key": "submission_benchmark", "value": "bert"},
        {"key": "global_batch_size", "value": 512},
        {"key": "run_start", "value": None},
        {"key": "eval_accuracy", "value": 0.7, "metadata": {"epoch_num": 2}},
        {"key": "run_stop", "value": None, "metadata": {"status": "success", "samples_count": 3000}},
    ]
    log = [
        b":::MLLOG "
        + json.dumps({"namespace": "", "time_ms": 1000 * at, "event_type": "POINT_IN_TIME", **line}).encode()
        for at, line in enumerate(lines)
    ]
    return [b"\n".join(log) + b"\n"]


def _power() -> list[bytes]:
    lines = [
        {"time_ms": 1000 * at, "event_type": "POINT_IN_TIME", "key": "power_reading", "value": 900 + at}
        for at in range(4)
    ]
    return [b"".join(b":::MLLOG " + json.dumps(line).encode() + b"\n" for line in lines)]


def _watched() -> list[bytes]:
    """What two ranks leave, and one alone."""
    split = {"step": 0.1, "input": 0.05, "forward": 0.02, "backward": 0.02, "communication_exposed": 0.01}
    exchanged = {"communication_s": 0.1, "step_s": 0.4, "exposed_s": 0.1, "passes_s": 0.2}
    ranks = []
    for rank in range(2):
        first = {"schema": "equipoise.watched/1", "rank": rank, "num_ranks": 2, "workload": "net"}
        lines = [
            {
                **first,
                "batch_samples": None,
                "device": "cpu",
                "conditions": {"host": "a", "core_sets": [[0]]},
            },
            {"told": {"precision": "fp32", "strategy": "ddp"}},
            *(
                to_builtins(
                    RecordedStep(step=at, batches=1, samples=8, profiled=at in {9, 10}, seconds=split)
                )
                for at in range(1, 21)
            ),
            {"end": {"memory_bytes": 1000, "cpu_fraction": 0.5, "exchanged": exchanged, "reason": None}},
        ]
        ranks.append(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return [b"\0".join(ranks), ranks[0]]


def _parquet() -> list[bytes]:
    buffer = io.BytesIO()
    pl.DataFrame({"num_accelerators": [1, 2, 4], "step_s": [3.0, 2.0, 1.5]}).write_parquet(buffer)
    return [buffer.getvalue()]


_CONFIG = (
    b'{"model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,'
    b' "num_attention_heads": 32, "num_experts": 16, "num_experts_per_tok": 2, "attn_layer_period": 8,'
    b' "vocab_size": 65536, "text_config": null}'
)
_QUESTION = b"workload = bert\naccelerator = h100\nobjective = cost\nprice = 2.5\ntokens = 1T\ndeadline = 7d"
_SYSTEM = b'{"submitter": "Org", "accelerator_model_name": "NVIDIA H100", "accelerators_per_node": "8"}'
_EXTRA_P = (
    b'{"params": {"p": 8}, "callpath": "bert->h100", "metric": "time_to_train_s", "value": [1.5, 1.6]}\n'
)

TARGETS = (
    Target(name="mlperf_log", read=_mlperf("Org/results/S/bert/result_0.txt"), seeds=_log),
    Target(name="mlperf_system", read=_mlperf("Org/systems/S.json"), seeds=lambda: [_SYSTEM]),
    Target(
        name="mlperf_summary",
        read=_mlperf("summary.json"),
        seeds=lambda: [b'[{"submitter": "Org", "score": 1.5}]'],
    ),
    Target(
        name="mlperf_scaling",
        read=_mlperf("Org/results/S/bert/scaling.json"),
        seeds=lambda: [b'{"scaling_factor": 1.02}'],
    ),
    Target(name="mlperf_power", read=_mlperf("Org/results/S/bert/power/result_0/node_0.txt"), seeds=_power),
    Target(name="archive", read=_archive, seeds=_small_archive),
    Target(
        name="nccl_tests",
        read=lambda data: read_files([_file("nccl.txt", data)]),
        seeds=_examples("nccl-a100.txt"),
    ),
    Target(
        name="kineto",
        read=lambda data: read_traces([_file("trace.json", data)]),
        seeds=_small_traces,
    ),
    Target(
        name="topology",
        read=lambda data: read_topology(data, where="topology.txt"),
        seeds=_examples("topology.txt"),
    ),
    Target(
        name="measurements",
        read=lambda data: read_measurements(_file("mine.csv", data)),
        seeds=lambda: [
            b"num_accelerators,time_to_train_h,global_batch_samples\n8,1.5,256\n16,0.8,256\n",
            _EXTRA_P,
        ],
    ),
    Target(
        name="exports",
        read=lambda data: ingest([_file("runs.csv", data)]),
        seeds=lambda: [(EXAMPLES / "wandb-runs.csv").read_bytes(), _EXTRA_P],
    ),
    Target(
        name="columns",
        read=lambda data: read_measurements(
            _file("runs.csv", data), columns={"num_accelerators": "gpus", "time_to_train_s": "duration"}
        ),
        seeds=_examples("mlflow-runs.csv"),
    ),
    Target(
        name="parquet",
        read=lambda data: read_measurements(_file("mine.parquet", data)),
        seeds=_parquet,
        is_slow=True,
    ),
    Target(
        name="published_rows",
        read=lambda data: read_rows([_file("rows.csv", data)]),
        seeds=_examples("measured.csv"),
    ),
    Target(name="jobs", read=lambda data: read_jobs(_file("jobs.toml", data)), seeds=_examples("jobs.toml")),
    Target(
        name="prices",
        read=lambda data: read_prices(_file("prices.csv", data)),
        seeds=_examples("prices-by-hour.csv"),
    ),
    Target(name="question", read=_question, seeds=lambda: [_QUESTION]),
    Target(
        name="hardware",
        read=lambda data: load_hardware([_file("hardware.toml", data)]),
        seeds=_shipped("spec/hardware.toml"),
    ),
    Target(
        name="clusters",
        read=lambda data: load_systems([_file("hardware.toml", data)], _known_hardware()),
        seeds=_shipped("spec/clusters.toml"),
    ),
    Target(
        name="workloads",
        read=lambda data: load_workloads([_file("workloads.toml", data)]),
        seeds=_shipped("spec/workloads.toml"),
    ),
    Target(
        name="config",
        read=lambda data: read_config(_file("config.json", data)),
        seeds=lambda: [_CONFIG],
    ),
    Target(name="ledger", read=_ledger, seeds=_examples("own-ledger.jsonl")),
    Target(name="sweep", read=_store, seeds=_sweep),
    Target(name="watched", read=_watched_page, seeds=_watched),
    Target(name="watched_tables", read=_watched_tables, seeds=_watched),
    Target(
        name="texts",
        read=_texts,
        seeds=lambda: [b"dp=8 microbatch=1 global_batch=64 zero_stage=3", b"2x dgx-h100", b"3 h"],
    ),
)
