"""The table of published steps: its figures against their sources, what is near, and who may be shown it."""

import subprocess
import sys
from pathlib import Path

import orjson
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from step_table import COLLECTED, date_of, steps_document, trust_of, url_of

import equipoise
from equipoise.calibration import validate as steps
from equipoise.calibration.published import (
    FILE_COLUMNS,
    published_steps,
    row_of_cells,
    rows_of_table,
)
from equipoise.calibration.published.executions import digest_of
from equipoise.calibration.validate import AUTO, basis_of, validate
from equipoise.decide.explanation import published_nearby as nearest
from equipoise.errors import UsageError
from equipoise.runs.readers.cells import TextRow
from equipoise.runs.store import PUBLISHED_STEPS
from equipoise.spec.catalogue import shipped

MOST_BYTES = 450_000
DATA = Path(steps.__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return published_steps()


def one(table: pl.DataFrame, **cells: str) -> dict[str, object]:
    found = table.filter(*(pl.col(name) == value for name, value in cells.items()))
    assert found.height == 1, found
    return found.row(0, named=True)


# github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md: tokens/s/GPU and MFU as the tables state them.
LLM_FOUNDRY = [
    ({"workload": "MPT 30b", "n_gpus": "32", "seq": "2048"}, 2308, 0.4392),
    ({"workload": "MPT 30b", "n_gpus": "8", "seq": "8192"}, 1384, 0.2992),
    ({"workload": "MPT 760m", "n_gpus": "8", "seq": "2048"}, 63147, 0.349),
    ({"workload": "MPT 1b", "n_gpus": "64", "seq": "2048"}, 44402, 0.4085),
]


@pytest.mark.truth
@pytest.mark.parametrize(("cells", "tokens_per_s", "mfu"), LLM_FOUNDRY)
def test_rows_of_llm_foundry_have_the_mfu_that_it_states(table, cells, tokens_per_s, mfu):
    row = one(table.filter(pl.col("precision") == "bf16 (amp_bf16)"), hardware="H100 SXM 80GB", **cells)
    assert row["tokens_per_s_per_accelerator"] == pytest.approx(tokens_per_s, rel=1e-9)
    assert row["mfu"] == pytest.approx(mfu, rel=0.02)
    assert (row["software"], row["accelerator"], row["dtype"]) == ("fsdp", "h100-sxm5-80gb", "bf16")
    assert row["trust"] == "stated"


@pytest.mark.truth
def test_a_row_of_korthikanti_states_its_time_and_paper(table):
    """Korthikanti et al. 2022, table 5: 22B with full recomputation, 1.42 s on eight A100."""
    row = one(table, workload="megatron-22B", recompute="full")
    assert (row["step_s"], row["num_accelerators"]) == (1.42, 8)
    assert (row["url"], row["date"], row["trust"]) == (
        "https://arxiv.org/abs/2205.05198",
        "2022-05",
        "second_hand",
    )


@pytest.mark.truth
def test_a_row_of_torchtitan_becomes_seconds(table):
    """benchmarks/llama3_h100_202412_torchtitan.md: 5,762 tokens/s per GPU, two samples of 8,192 tokens each."""
    row = one(table, repository="github:pytorch/torchtitan", measured="5762", n_gpus="8")
    assert row["step_s"] == pytest.approx(2 * 8192 / 5762, rel=1e-9)
    assert (row["date"], row["memory_bytes"]) == ("2024-12", 82.4 * 2**30)


def test_the_table_is_small_and_each_row_has_one_name(table):
    assert (DATA / "published_steps.parquet").stat().st_size < MOST_BYTES
    assert table["row_id"].is_unique().all()
    assert set(table["execution"]) <= set(table["row_id"])
    assert table["mfu"].max() <= 1.0


def test_what_the_model_cannot_predict_is_listed_with_the_reason(table):
    gnmt = table.filter(pl.col("workload").str.contains("GNMT"))
    assert gnmt.height
    assert gnmt["reason"].null_count() == 0
    assert gnmt["measured"].null_count() == 0


def test_every_row_of_the_files_is_in_the_table_or_counted(data_dir, tmp_path, table):
    document = steps_document(data_dir / "measured", tmp_path)
    files = [*(data_dir / "measured").glob("*.csv"), *COLLECTED]
    num_rows = sum(len(file.read_text().splitlines()) - 1 for file in files)
    assert document["num_rows"] + sum(document["rejected"].values()) == num_rows
    made = pl.read_parquet(tmp_path / "published_steps.parquet")
    assert_frame_equal(made, table)
    assert document == orjson.loads((DATA / "published_steps.json").read_bytes())


def test_rows_of_the_table_are_those_of_the_files(table):
    rows = rows_of_table(table)
    assert [digest_of(row) for row in rows] == table["row_id"].to_list()
    times = [row.seconds if row.kind == "step" else None for row in rows]
    assert_frame_equal(pl.DataFrame({"step_s": times}), table.select("step_s"))


def test_the_table_as_csv_is_a_file_that_validate_takes(table, tmp_path):
    some = table.filter(pl.col("repository") == "github:pytorch/torchtitan")
    some.write_csv(tmp_path / "steps.csv")
    found = validate([tmp_path / "steps.csv"], basis_of=basis_of(AUTO))
    assert found.num_executions == some.height
    assert found.in_sample
    assert found.verdicts
    again = steps.predictions(rows_of_table(some))
    for verdict, step in zip(found.verdicts, again, strict=True):
        assert verdict.row.conversion.seconds(verdict.predicted) == pytest.approx(step.step_s, rel=1e-12)


@pytest.mark.parametrize(
    ("source", "url", "trust"),
    [
        (
            "github:mosaicml/llm-foundry@8c8dd48f7:scripts/README.md#H100 80GB BF16 (Large Scale)",
            "https://github.com/mosaicml/llm-foundry/blob/8c8dd48f7/scripts/README.md",
            "stated",
        ),
        (
            "github:a/b@9e64edec2:x/gpt2.md#L71 Megatron; file says: +/-40 % by network load",
            "https://github.com/a/b/blob/9e64edec2/x/gpt2.md#L71",
            "noisy",
        ),
        (
            "github:VIA-Research/vTrain@f8dda84:data/x.csv",
            "https://github.com/VIA-Research/vTrain/blob/f8dda84/data/x.csv",
            "stated",
        ),
        (
            "arXiv:2407.21783 Table 4 (from memory of the paper)",
            "https://arxiv.org/abs/2407.21783",
            "recalled",
        ),
        (
            "https://github.com/uber/horovod/issues/288",
            "https://github.com/uber/horovod/issues/288",
            "stated",
        ),
        ("a colleague", None, "stated"),
    ],
)
def test_a_source_has_its_url_and_trust(source, url, trust):
    assert url_of(source) == url
    assert trust_of(source) == trust


@pytest.mark.parametrize(
    ("cells", "date"),
    [
        ({"source": "arXiv:2104.04473 Table 2"}, "2021-04"),
        ({"parallel_config": "VP=4;release=26.08 NeMo Container"}, "2026-08"),
        ({"parallel_config": "DDP; NGC pytorch 22.09"}, "2022-09"),
        ({"parallel_config": "Megatron-Core 2024, flash attention"}, "2024"),
        ({"parallel_config": "FSDP"}, None),
    ],
)
def test_a_date_is_what_the_row_states(cells, date):
    row = TextRow(place="row 1", cells=dict.fromkeys(FILE_COLUMNS, "") | cells)
    assert date_of(row_of_cells(row, "file", 1, shipped())) == date


def planned(row: dict[str, object], **changes: object) -> nearest.PlannedStep:
    names = set(nearest.PlannedStep.__struct_fields__)
    return nearest.PlannedStep(**{**{name: row[name] for name in names}, **changes})


@pytest.fixture(scope="module")
def llama(table) -> dict[str, object]:
    return one(table, repository="github:pytorch/torchtitan", measured="6667", n_gpus="8")


def distances(table, step) -> dict[str, float]:
    found = nearest.nearest_steps(table, step, shipped(), most=100)
    return dict(zip(found["row_id"], found["distance"], strict=True))


def test_the_nearest_step_to_a_step_is_itself(table, llama):
    found = nearest.nearest_steps(table, planned(llama), shipped(), most=5)
    assert 1 < found.height <= 5
    assert (found["row_id"][0], found["distance"][0]) == (llama["row_id"], 0.0)
    assert found["distance"].is_sorted()


@pytest.mark.parametrize(
    ("change", "weight"),
    [
        ({"active_params": 2}, nearest.PER_DOUBLING_OF_PARAMS),
        ({"sequence_tokens": 2}, nearest.PER_DOUBLING_OF_SEQUENCE),
        ({"num_accelerators": 2}, nearest.PER_DOUBLING_OF_ACCELERATORS),
        ({"model": "other"}, nearest.OTHER_MODEL),
        ({"dtype": "fp8"}, nearest.OTHER_PRECISION),
        ({"model_kind": "experts"}, nearest.OTHER_KIND),
        ({"software": "fsdp"}, nearest.OTHER_SOFTWARE),
        ({"software": "megatron_core"}, nearest.OTHER_FAMILY),
        ({"accelerator": "h100-sxm5-80gb"}, nearest.OTHER_FORM),
    ],
)
def test_each_difference_adds_its_documented_weight(table, llama, change, weight):
    alone = table.filter(pl.col("row_id") == llama["row_id"])
    changes = {name: llama[name] * by if isinstance(by, int) else by for name, by in change.items()}
    found = distances(alone, planned(llama, **changes))
    assert found[llama["row_id"]] == pytest.approx(weight, abs=1e-9)


def test_nothing_of_another_maker_or_far_away_or_untrusted_is_near(table, llama):
    elsewhere = distances(table, planned(llama, accelerator="mi300x-oam-192gb"))
    there = table.filter(pl.col("row_id").is_in([*elsewhere]))["accelerator"].drop_nulls().unique()
    assert {shipped().accelerator(slug).vendor for slug in there} <= {"AMD"}
    assert not distances(table, planned(llama, model_kind="other", model="a workload of nobody"))
    near = nearest.nearest_steps(table, planned(llama), shipped(), most=100)
    assert near["distance"].max() <= nearest.FARTHEST
    assert set(near["trust"]) <= {"stated", "second_hand"}
    recalled = one(table, workload="Llama 3 405B", unit="% MFU", n_gpus="8192")
    assert recalled["trust"] == "recalled"
    assert not set(near["repository"]) & {recalled["repository"]}


def test_filters_leave_the_rows_they_name():
    found = steps.listed_steps(
        steps.StepFilter(model="Llama", accelerator="h100", software="nemo"), shipped()
    )
    assert found.height
    assert found["accelerator"].str.starts_with("h100-").all()
    assert set(found["software"]) == {"megatron_core"}
    assert found["workload"].str.to_lowercase().str.contains("llama").all()
    assert found["predicted_step_s"].is_null().equals(found["step_s"].is_null())
    ratio = found["predicted_step_s"] / found["step_s"]
    assert (ratio - found["model_ratio"]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"model": "nothing of the kind"}, "model"),
        ({"software": "nothing of the kind"}, "software"),
        ({"source": "nothing of the kind"}, "source"),
        ({"model": "GNMT", "accelerator": "tpu-v5p"}, "accelerator"),
    ],
)
def test_a_filter_that_leaves_nothing_is_an_error_that_names_it(wanted, named):
    with pytest.raises(UsageError, match=rf"^--{named} '"):
        steps.listed_steps(steps.StepFilter(**wanted), shipped())


READS = """
import sys
import equipoise.cli.app as app
code = app._exit_code(sys.argv[1:])
module = sys.modules.get("equipoise.calibration.published")
print(code, 0 if module is None else module.published_steps.cache_info().currsize, file=sys.stderr)
"""


@pytest.mark.parametrize(("also", "expected"), [([], "0 0"), (["--full"], "0 1"), (["--json"], "0 1")])
def test_an_answer_reads_the_table_only_where_it_shows_it(also, expected):
    question = ["plan", "llama3_8b", "--accelerator", "8x h100", "--tokens", "1B", *also]
    ended = subprocess.run(
        [sys.executable, "-c", READS, *question], capture_output=True, text=True, check=True
    )
    assert ended.stderr.strip() == expected


def test_the_schema_names_every_column_of_the_files_once():
    assert [name for name in PUBLISHED_STEPS.names if name in FILE_COLUMNS] == [*FILE_COLUMNS]


def test_validate_without_files_takes_the_table_by_source(table):
    asked = equipoise.validate()
    found = asked.record
    assert len(found.verdicts) == asked.frame().height == table.height
    assert set(found.by_file) <= set(table["repository"])
    steps_ = table.filter(pl.col("reason").is_null() & (pl.col("row_id") == pl.col("execution")))
    assert found.num_executions >= steps_.filter(pl.col("figure") == "step").height > 2_000
