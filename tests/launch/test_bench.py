"""The command that times a strategy: `equipoise bench` takes it and trains what the plan assumed."""

import shlex

import polars as pl
import pytest
import typer
from command_line import equipoise

from equipoise.bench.training import method
from equipoise.cli.app import app
from equipoise.decide.ledger import RecordedPrediction, measured_value
from equipoise.launch import bench_command, bench_method
from equipoise.spec.strategy import strategy


def parsed(code):
    """What the real command line makes of a printed command, without running it."""
    program, verb, *words = shlex.split(code)
    assert program == "equipoise"
    command = typer.main.get_command(app()).get_command(None, verb)
    return command.make_context(verb, words).params


def test_accumulation_and_precision_are_not_lost():
    found = parsed(bench_command(strategy("dp=2 microbatch=4 global_batch=4096"), "mine:gpt300").code)
    assert found["workloads"] == ["mine:gpt300"]
    assert found["sizes"] == "2"
    assert found["precision"] == "bf16"
    # 512 passes of 2 x 4 samples are the 4,096 of the plan.
    name, count = method(found["strategy"])
    assert name.name == "accumulate"
    assert int(found["batch"]) * count == 4096


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp=8 microbatch=4 global_batch=32 precision=tf32", ("32", "ddp", "tf32")),
        ("dp=8 microbatch=4 global_batch=32 zero_stage=3", ("32", "fsdp", "bf16")),
        (
            "dp=8 microbatch=4 global_batch=32 compression=powersgd compression_rank=2",
            ("32", "powersgd:2", "bf16"),
        ),
        (
            "dp=8 microbatch=4 global_batch=32 compression=topk compression_rank=100",
            ("32", "topk:0.01", "bf16"),
        ),
        ("dp=8 microbatch=4 global_batch=32 sync_period=8", ("32", "localsgd:8", "bf16")),
        ("microbatch=4 global_batch=4", ("4", "single", "bf16")),
    ],
)
def test_ways_to_train_have_their_method(text, expected):
    found = parsed(bench_command(strategy(text), "mlp").code)
    method(found["strategy"])  # raises for what bench does not know
    assert (found["batch"], found["strategy"], found["precision"]) == expected


def test_fewer_accelerators_have_as_much_work_each():
    found = parsed(
        bench_command(
            strategy("dp=64 microbatch=4 global_batch=1024"), "mlp", num_accelerators=8, out="a b"
        ).code
    )
    assert (found["sizes"], found["batch"], found["strategy"]) == ("8", "32", "accumulate:4")
    assert str(found["out"]) == "a b"


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "ep"])
def test_a_model_that_is_cut_has_no_command(axis):
    found = bench_command(strategy(f"dp=2 {axis}=2 microbatch=1 global_batch=2"), "mlp")
    assert found.code == ""
    assert axis in found.unsupported[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precision=fp8", "bf16 is printed"),
        ("zero_stage=1", "ZeRO stage 1"),
        ("implementation=compiled", "compilation"),
        ("recompute=full", "recomputation"),
        ("zero_stage=3 microbatch=1", "accumulation"),
        ("offload=optimizer", "offloading"),
        ("trained=lora", "adapters"),
    ],
)
def test_what_bench_cannot_do_is_reported(text, words):
    base = "dp=2 global_batch=8" if "microbatch" in text else "dp=2 microbatch=4 global_batch=8"
    assert words in " / ".join(bench_command(strategy(f"{base} {text}"), "mlp").unsupported)


@pytest.mark.usefixtures("prepared_ranks")
def test_the_command_trains_the_batch_of_the_plan(tmp_path):
    pytest.importorskip("torch")
    wanted = strategy("dp=2 microbatch=4 global_batch=32")
    words = shlex.split(bench_command(wanted, "mlp", out=str(tmp_path / "runs")).code)[1:]
    short = ["--repeat", "1", "--steps", "8", "--device", "cpu"]
    ran = equipoise(*words, *short, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = pl.read_parquet(tmp_path / "runs" / "runs.parquet")
    assert rows["status"].to_list() == ["success"]
    assert rows["global_batch_samples"].to_list() == [32]
    assert rows["precision"].to_list() == ["bf16"]
    (row,) = rows.to_dicts()
    assert row["strategy"] == bench_method(wanted)
    # It counts for the prediction of the same strategy, and of no other.
    same = measured_value(row, predicted(row, wanted))
    assert same == pytest.approx(row["samples_per_s"])
    for other in (
        "dp=2 microbatch=4 global_batch=32 precision=fp32",
        "dp=2 microbatch=4 global_batch=64",
        "dp=2 microbatch=4 global_batch=32 zero_stage=3",
    ):
        assert measured_value(row, predicted(row, strategy(other))) is None


def predicted(row, plan):
    return RecordedPrediction(
        verb="advise",
        workload=row["workload"],
        accelerator=row["accelerator"],
        num_accelerators=2,
        strategy=plan.text(),
        global_batch_samples=plan.global_batch_samples,
        quantity="samples_per_s",
        value=1.0,
        low=0.5,
        high=2.0,
        level=0.9,
        kind="model",
        ref="",
    )
