"""A user's own measurements: units by hand, choices, and whatever a file may hold."""

import io
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_FILE_BYTES, MAX_ROWS
from equipoise.runs.readers.measurements import read_measurements


@pytest.fixture
def read(tmp_path):
    """A function that reads a text or bytes as a file `mine.csv`."""

    def reader(content, **wanted):
        path = tmp_path / "mine.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_measurements(path, **wanted)

    return reader


@pytest.mark.parametrize(
    ("column", "cell", "seconds", "work"),
    [
        ("time_to_train_s", "90", 90.0, None),
        ("time_to_train_ms", "1500", 1.5, None),
        ("time_to_train_min", "2.5", 150.0, None),
        ("time_to_train_h", "0.5", 1800.0, None),
        ("time_to_train_d", "2", 172800.0, None),
        ("step_s", "0.25", 0.25, "one step"),
        # A million tokens at 80,000 a second take 12.5 s.
        ("tokens_per_s", "80000", 12.5, "1,000,000 tokens"),
        ("step_ms", "250", 0.25, "one step"),
        # A million samples at 500 a second take 2000 s; at 500 a minute, 60 times as long.
        ("samples_per_s", "500", 2000.0, "1,000,000 samples"),
        ("samples_per_min", "500", 120_000.0, "1,000,000 samples"),
        ("samples_per_h", "3.6e6", 1000.0, "1,000,000 samples"),
    ],
)
def test_the_name_of_the_column_states_the_unit(read, column, cell, seconds, work):
    found = read(f"num_accelerators,{column}\n8,{cell}\n")
    assert found.num_accelerators.tolist() == [8.0]
    assert found.time_s.tolist() == pytest.approx([seconds], rel=1e-12)
    assert found.is_time_to_train is (work is None)
    assert work is None or found.work == work


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        # A million tokens at 80,000 a second take 12.5 s. Where commas separate cells, those in a number group digits.
        ('num_accelerators,tokens_per_s\n8,"80,000"\n', 12.5),
        ('num_accelerators,tokens_per_s\n"8","80,000.0"\n', 12.5),
        ('num_accelerators,step_s,batch\n8,0.25,"1,024"\n', 0.25),
        # Thousands by their letter.
        ("num_accelerators,tokens_per_s\n8,80k\n", 12.5),
        ("num_accelerators,tokens_per_s\n8,0.08M\n", 12.5),
        # As spreadsheets in much of Europe write it: a comma with other than three digits behind it is decimal.
        ("num_accelerators;step_s;tokens_per_s\n8;12,5;80.000\n", 12.5),
        ("num_accelerators;tokens_per_s\n8;80.000,0\n", 12.5),
        ('num_accelerators\tstep_s\n8\t"12,5"\n', 12.5),
    ],
)
def test_numbers_are_read_as_people_shorten_and_group_them(read, text, seconds):
    assert read(text).time_s.tolist() == pytest.approx([seconds], rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        # It may be 80 with three decimals.
        "num_accelerators;tokens_per_s\n8;80,000\n",
        'num_accelerators,tokens_per_s\n8,"80,00"\n',
        'num_accelerators,tokens_per_s\n8,"8,0000"\n',
        # Thousandths or millions.
        "num_accelerators,tokens_per_s\n8,80m\n",
    ],
)
def test_numbers_that_may_mean_another_are_refused(read, text):
    with pytest.raises(DataError, match="tokens_per_s"):
        read(text)


def test_a_comma_is_not_decimal_next_to_decimal_points(read):
    found = read("num_accelerators;time_to_train_s\n8;1.5\n16;1,25\n")
    assert found.time_s.tolist() == [1.5]
    (note,) = [each.words for each in found.notes if each.kind == "not_used"]
    assert "'1,25'" in note


def test_steps_of_several_batches_become_times_for_the_same_samples(read):
    # 0.5 s for 100 samples, 0.8 s for 200: a million samples take 5000 s and 4000 s.
    found = read("num_accelerators,step_s,global_batch_samples\n1,0.5,100\n2,0.8,200\n")
    assert found.time_s.tolist() == pytest.approx([5000.0, 4000.0], rel=1e-12)
    assert found.work == "1,000,000 samples"
    assert found.notes == ()


def test_steps_of_one_batch_stay_steps(read):
    found = read("num_accelerators,step_s,global_batch_samples\n1,0.5,128\n2,0.3,128\n")
    assert found.time_s.tolist() == [0.5, 0.3]
    assert "128 samples" in found.work


def test_steps_without_a_batch_state_what_is_assumed(read):
    (note,) = read("num_accelerators,step_s\n1,0.5\n2,0.3\n").notes
    assert ("global_batch_samples" in note.words, note.kind) == (True, "remark")


def test_a_name_of_a_file_makes_no_note_of_rows_that_are_not_used(mine):
    path = mine(
        "num_accelerators,step_s,status\n1,0.5,success\n2,0.3,success\n4,0.2,failed\n",
        "rows that failed are excluded: 3.csv",
    )
    kinds = {note.kind: note.words for note in read_measurements(path).notes}
    assert sorted(kinds) == ["not_used", "remark"]
    assert ("status" in kinds["not_used"], "global_batch_samples" in kinds["remark"]) == (True, True)


def test_rows_without_a_time_are_excluded_and_counted(read):
    found = read("num_accelerators,time_to_train_s,status\n8,4,success\n16,,success\n32,1,\n64,,failed\n")
    assert found.num_accelerators.tolist() == [8, 32]
    words = [note.words for note in found.notes if note.kind == "not_used"]
    assert [each for each in words if "time_to_train_s" in each and "1" in each and "row 2" in each]


@pytest.mark.parametrize("row", ["16,failed", "16,NaN", "16,-", "16,0", "mean,3"])
def test_one_row_that_cannot_be_read_leaves_the_others(read, row):
    found = read(f"gpus,time_to_train_h\n8,4\n{row}\n32,1\n")
    assert found.num_accelerators.tolist() == [8, 32]
    (note,) = [each.words for each in found.notes if each.kind == "not_used"]
    column, cell = ("gpus", "mean") if row.startswith("mean") else ("time_to_train_h", row.partition(",")[2])
    assert re.search(rf"mine\.csv .*: 1, .*row 2, .*{column}.*{cell!r}", note)


def test_a_strategy_without_a_time_is_no_choice_to_make(read):
    found = read("num_accelerators,step_s,strategy\n8,4,ddp\n16,2,ddp\n16,,fsdp\n")
    assert found.num_accelerators.tolist() == [8, 16]


@pytest.mark.parametrize(
    ("more", "cells"),
    [
        ("config.global_batch_size,params.global_batch_size", "64,64"),
        ("train/samples_per_s", "7"),
        ("config.strategy", "zero"),
    ],
)
def test_columns_of_a_tracker_next_to_what_suffices_change_nothing(read, more, cells):
    plain = read("num_accelerators,step_s,global_batch_samples\n8,4,64\n16,2,64\n")
    also = read(f"num_accelerators,step_s,global_batch_samples,{more}\n8,4,64,{cells}\n16,2,64,{cells}\n")
    assert also.time_s.tolist() == plain.time_s.tolist()


def test_steps_with_a_batch_in_some_rows_only_are_refused(read):
    with pytest.raises(DataError, match=r"mine.csv: row 2, column global_batch_samples: empty"):
        read("num_accelerators,step_s,global_batch_samples\n1,0.5,100\n2,0.8,\n")


def test_repeated_sizes_are_repetitions_and_labels_are_kept(read):
    found = read("num_accelerators,time_to_train_s,entry\n8,10,a\n8,11,b\n8,12,b\n")
    assert found.time_s.tolist() == [10.0, 11.0, 12.0]
    assert found.entry == ("a", "b", "b")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write_is_read(read, delimiter, mark, end):
    lines = (("Num Accelerators", "time_to_train_min", "note"), ("8", " 1.5 ", '"a, b; c"'), ("", "", ""))
    found = read(mark + end.join(delimiter.join(line) for line in lines))
    assert (found.num_accelerators.tolist(), found.time_s.tolist()) == ([8.0], [90.0])


def test_runs_that_failed_are_left_out_and_counted(read):
    found = read("num_accelerators,time_to_train_s,status\n8,10,success\n8,,no_run_stop\n16,6,success\n")
    assert found.num_accelerators.tolist() == [8.0, 16.0]
    (note,) = map(str, found.notes)
    assert re.search(r"\bstatus\b.*`success`.*: 1\.$", note)


def test_whole_trainings_are_preferred_to_steps(read):
    found = read("num_accelerators,step_s,time_to_train_s\n8,0.1,100\n")
    assert found.time_s.tolist() == [100.0]
    (note,) = map(str, found.notes)
    assert note.split()[1] == "step_s"
    assert "time_to_train_s" in note


SERIES = "workload,accelerator,num_accelerators,time_to_train_s\nbert,h100-sxm5-80gb,8,10\nresnet50,h100-sxm5-80gb,8,20\n"


def test_of_several_workloads_one_must_be_chosen(read):
    with pytest.raises(DataError, match=r"column workload .*'bert' and 'resnet50'; .*--workload"):
        read(SERIES)
    assert read(SERIES, workload="resnet50").time_s.tolist() == [20.0]
    assert read(SERIES, workload="ResNet").time_s.tolist() == [20.0]  # an alias of the catalogue


def test_a_choice_that_no_row_has_is_refused(read):
    with pytest.raises(DataError, match=r"accelerator 'b200-sxm6-180gb'; .*'h100-sxm5-80gb'"):
        read(SERIES, workload="bert", accelerator="b200-sxm6-180gb")


def test_precisions_are_not_pooled(read):
    lines = "num_gpus,samples_per_s,precision\n1,400,bf16\n2,800,bf16\n1,100,FP32\n2,200,fp32\n"
    with pytest.raises(DataError, match="--precision"):
        read(lines)
    assert read(lines, precision="fp32").time_s.tolist() == [1e4, 5e3]
    assert read(lines, precision="bf16").time_s.tolist() == [2500.0, 1250.0]
    with pytest.raises(DataError, match="bf16"):
        read(lines, precision="fp8")
    # Where no row states it, or one alone does, there is nothing to choose.
    assert read("num_gpus,samples_per_s,precision\n1,400,bf16\n2,800,\n").time_s.tolist() == [2500.0, 1250.0]


def test_plain_data_parallelism_is_not_pooled_with_other_ways(read):
    content = "gpus,tp,samples_per_s\n1,1,80\n8,1,600\n16,1,1150\n8,8,500\n16,8,960\n"
    with pytest.raises(DataError, match=r"tp=1.*tp=8.*--strategy"):
        read(content)
    # A million samples by the rates of each way; one accelerator's belongs to both.
    found = {way: read(content, strategy=way).time_s.tolist() for way in ("tp=1", "tp=8")}
    assert found["tp=1"] == pytest.approx([1e6 / 80, 1e6 / 600, 1e6 / 1150])
    assert found["tp=8"] == pytest.approx([1e6 / 80, 1e6 / 500, 1e6 / 960])


@pytest.mark.parametrize("rest", ["", " zero_stage=3"])
def test_strategies_that_differ_in_their_data_ranks_alone_are_one(read, rest):
    rows = [f"{size},dp={size}{rest},{hours}" for size, hours in ((8, 10), (16, 5.5), (32, 3))]
    content = "\n".join(["gpus,strategy,time_h", *rows, ""])
    found = read(content)
    assert found.time_s.tolist() == [36_000.0, 19_800.0, 10_800.0]
    assert found.strategy == (rest.strip() or None)
    assert read(content, strategy=f"dp=8{rest}").time_s.tolist() == found.time_s.tolist()
    with pytest.raises(DataError, match=r"tp=2.*--strategy"):
        read(f"{content}32,dp=16 tp=2{rest},3.1\n")


def test_batches_at_one_size_are_not_pooled(read):
    lines = "num_gpus,samples_per_s,global_batch_size\n1,400,32\n1,500,64\n2,700,32\n2,1000,64\n4,2000,64\n"
    with pytest.raises(DataError, match=r"'32' and '64'.*--global-batch"):
        read(lines)
    assert read(lines, global_batch_samples=64).num_accelerators.tolist() == [1, 2, 4]
    with pytest.raises(DataError, match="128"):
        read(lines, global_batch_samples=128)


def test_a_batch_that_grows_with_the_size_is_one_curve(read):
    lines = "num_gpus,samples_per_s,global_batch_size\n1,400,32\n1,410,32\n2,700,64\n"
    assert read(lines).global_batch_samples.tolist() == [32, 32, 64]
    assert read(lines, global_batch_samples=32).num_accelerators.tolist() == [1, 1]


def excluded(found):
    """How many rows notes say are excluded, by column."""
    return {
        note.words.split()[2]: note.words.rstrip(".").split("excluded: ")[1]
        for note in found.notes
        if note.kind == "not_used"
    }


def test_rows_of_other_workloads_accelerators_and_ways_are_counted(read):
    lines = (
        "workload,accelerator,precision,gpus,time_h\nbert,h100,bf16,1,10\nbert,h100,fp8,2,5\nbert,a100,bf16,4,9\n"
        "bert,,bf16,4,3\nresnet50,h100,bf16,4,3\nresnet50,a100,bf16,4,3\n"
    )
    found = read(lines, workload="bert", accelerator="h100-sxm5-80gb", precision="bf16")
    assert found.time_s.tolist() == [36_000]
    held = excluded(found)
    assert list(held) == ["workload", "accelerator", "precision"]
    assert [re.findall(r"\d+", each) for each in held.values()] == [["2"], ["2", "1"], ["1"]]
    assert not excluded(read("workload,gpus,time_h\nbert,1,10\nbert,2,5\n", workload="bert"))


def test_rows_of_another_batch_than_the_one_asked_about_are_not_used(read):
    lines = "gpus,samples_per_s,global_batch_size\n1,400,32\n2,700,32\n4,1300,32\n4,1500,64\n8,2900,\n"
    found = read(lines, global_batch_samples=32)
    assert found.num_accelerators.tolist() == [1, 2, 4, 8]
    assert excluded(found) == {"global_batch_size": "1"}
    assert "32: 1" in found.notes[-1].words  # the row without one
    with pytest.raises(DataError, match=r"4,096.*'32'"):
        read("gpus,samples_per_s,global_batch_size\n1,400,32\n2,700,32\n", global_batch_samples=4096)


def test_a_size_is_a_number_however_it_is_written(read):
    with pytest.raises(DataError, match=r"'32' and '64'.*--global-batch"):
        read("gpus,samples_per_s,global_batch_size\n8,400,32\n8.0,500,64\n")


def test_columns_that_contradict_each_other_are_refused(read):
    # 32 samples in 0.999 s are 32 a second: 190 is six times as much.
    header = "gpus,samples_per_s,step_ms,global_batch_size\n"
    with pytest.raises(DataError, match=r"row 2.*190.*32\.03.*step_ms"):
        read(f"{header}1,33,999,32\n2,190,999,32\n")
    found = read(f"{header}1,33,999,32\n2,60,500,32\n")
    assert found.time_s.tolist() == pytest.approx([1e6 / 33, 1e6 / 60])
    (note,) = [each.words for each in found.notes[1:]]
    assert {"step_ms", "samples_per_s"} <= set(note.replace(":", "").split())


def test_a_row_without_the_preferred_column_counts_by_another_that_converts(read):
    # 64 samples in half a second are 128 a second, of 2,048 tokens each.
    found = read("gpus,samples_per_s,step_s,global_batch_size\n1,100,,64\n2,,0.5,64\n")
    assert found.time_s.tolist() == pytest.approx([1e4, 1e6 / 128])
    found = read("gpus,tokens_per_s,step_s,global_batch_size,seq_len\n1,1000,,64,2048\n2,,0.5,64,2048\n")
    assert found.time_s.tolist() == pytest.approx([1e3, 1e6 / (128 * 2048)])
    with pytest.raises(DataError, match=r"row 2.*samples_per_s.*step_s.*global_batch_samples"):
        read("gpus,samples_per_s,step_s\n1,100,\n2,,0.5\n")
    with pytest.raises(DataError, match=r"row 2.*time_h.*step_s"):
        read(
            "gpus,time_h,step_s,global_batch_size\n1,10,,64\n2,,0.5,64\n",
            columns={"time_to_train_h": "time_h"},
        )


@pytest.mark.parametrize("cell", ["-5", "9_0", "1_000", "0", "x"])
def test_a_rate_of_one_accelerator_is_refused_as_the_file_has_it(read, cell):
    with pytest.raises(DataError, match=f"tokens/s/gpu: found '{cell}'"):
        read(f"gpus,tokens/s/gpu\n4,{cell}\n")


def test_two_spellings_of_one_accelerator_are_one(read):
    text = "accelerator,num_accelerators,step_s\nNVIDIA H100-SXM5-80GB,8,1\nh100-sxm5-80gb,16,0.6\n"
    assert read(text, accelerator="h100-sxm5-80gb").time_s.tolist() == [1.0, 0.6]
    assert read(text).time_s.tolist() == [1.0, 0.6]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("num_accelerators,time_to_train_s\n", "no row"),
        ("chips,time_to_train_s\n8,1\n", "no column num_accelerators; found 'chips' and 'time_to_train_s'"),
        ("num_accelerators,speed\n8,1\n", "expected time_to_train_s, step_s or samples_per_s"),
        (
            "num_accelerators,time_to_train_s,time_to_train_min\n8,1,1\n",
            "time_to_train_min.*time_to_train_s|time_to_train_s.*time_to_train_min",
        ),
        ("num_accelerators,time_to_train_s,time_to_train_s\n8,1,1\n", "'time_to_train_s'"),
        ("num_accelerators,time_to_train_s\n8,1\n16\n", "row 2: 1 cells; expected 2"),
        ("num_accelerators,time_to_train_s\n8,1\n16,1,2\n", "row 2: 3 cells; expected 2"),
        ("num_accelerators,time_to_train_s\n8,abc\n", "row 1, column time_to_train_s: found 'abc'; expected"),
        ("num_accelerators,time_to_train_s\n8,nan\n", "found 'nan'"),
        ("num_accelerators,time_to_train_s\n8,inf\n", "found 'inf'"),
        ("num_accelerators,time_to_train_s\n8,1e999\n", "found '1e999'"),
        ("num_accelerators,time_to_train_s\n8,-3\n", "found '-3'"),
        ("num_accelerators,time_to_train_s\n8,0\n", "found '0'"),
        ("num_accelerators,time_to_train_s\n8,1_000\n", "found '1_000'"),
        ("num_accelerators;time_to_train_s\n8;1,500\n", "found '1,500'; expected .* decimal point"),
        ("num_accelerators,time_to_train_s\n8,=cmd|' /C calc'!A0\n", 'found "=cmd'),
        ("num_accelerators,time_to_train_s\n8,1e300\n", "a time between"),
        ("num_accelerators,time_to_train_h\n8,1e308\n", "a time between"),
        (
            "num_accelerators,time_to_train_s\n2.5,1\n",
            "column num_accelerators: found '2.5'; .*whole",
        ),
        ("num_accelerators,time_to_train_s\n0,1\n", "column num_accelerators: found '0'"),
        ("num_accelerators,time_to_train_s\n1e12,1\n", "'1e12'; .* 1 to 1,000,000,000"),
        ('num_accelerators,time_to_train_s\n8,"1\n', "row 1: .*end"),
        (b"num_accelerators,time_to_train_s\n8,\xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"num_accelerators,time_to_train_s\n8,1\0\n", "line 2: a NUL byte"),
        ("num_accelerators,time_to_train_s\n8,1\n".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04\x14\x00\x06\x00", "NUL byte|not UTF-8|no column"),
        (b"PAR1 is how Parquet begins", "Parquet table"),
        ("num_accelerators,time_to_train_s\n" + "8,1\n" * (MAX_ROWS + 1), f"more than {MAX_ROWS:,} rows"),
        (",".join(f"c{i}" for i in range(2000)), "2,000 columns"),
        (b"8" * (MAX_FILE_BYTES + 1), f"more than {MAX_FILE_BYTES:,} bytes"),
    ],
    ids=lambda value: str(value[:30]) if isinstance(value, str | bytes) else "",
)
def test_what_cannot_be_read_is_refused_with_its_place(read, content, words):
    with pytest.raises(DataError, match=words) as caught:
        read(content)
    assert "mine.csv" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.csv: "):
        read_measurements(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: ") + r".*regular file"):
        read_measurements(tmp_path)
    with pytest.raises(DataError, match=r"/dev/zero: .*regular file"):
        read_measurements(Path("/dev/zero"))


def parquet(**columns):
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


def test_parquet_reads_the_same_as_csv(read):
    sizes, times = [1, 2, 4], [0.1, 1 / 3, 2.5e-7]
    found = read(parquet(num_accelerators=sizes, step_s=times, extra=[[1], [2], []]))
    assert found.num_accelerators.tolist() == sizes
    assert found.time_s.tolist() == times


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"num_accelerators": [None], "step_s": [2.0]}, "row 1, column num_accelerators: found ''"),
        ({"num_accelerators": [2], "step_s": [float("nan")]}, "row 1, column step_s: found 'NaN'"),
        ({"num_accelerators": [[1], [2]], "step_s": [1.0, 2.0]}, "no column num_accelerators"),
        ({"other": [1]}, "column .*'other'"),
    ],
)
def test_parquet_cells_are_judged_as_csv_cells(read, columns, words):
    with pytest.raises(DataError, match=words):
        read(parquet(**columns))


def test_a_damaged_parquet_file_does_not_end_this_process(read):
    whole = bytearray(parquet(num_accelerators=list(range(1, 200)), step_s=[1.0] * 199))
    for at in range(4, len(whole) - 8, len(whole) // 5):
        damaged = whole.copy()
        damaged[at : at + 4] = b"\xff\xff\xff\x7f"
        try:
            found = read(bytes(damaged))
        except DataError:
            continue
        assert np.isfinite(found.time_s).all()


CELLS = st.one_of(
    st.floats(allow_nan=True).map(repr),
    st.integers().map(str),
    st.text(max_size=20),
    st.sampled_from(["", "NaN", "-1", "=1+1", '"', "'", "1e400", "\x1b[31m", "8", "0.5"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.lists(
        st.sampled_from(["num_accelerators", "step_s", "samples_per_h", "entry", "workload", "", "x"]),
        max_size=6,
    ),
    rows=st.lists(st.lists(CELLS, max_size=6), max_size=5),
)
def test_any_text_is_times_or_a_refusal(read, header, rows):
    text = "\n".join(",".join(cells) for cells in [header, *rows])
    assert_times_or_a_refusal(read, text.encode("utf-8", errors="surrogatepass"))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_any_bytes_are_times_or_a_refusal(read, data):
    assert_times_or_a_refusal(read, data)
    assert_times_or_a_refusal(read, b"num_accelerators,step_s\n8,1\n" + data)


def assert_times_or_a_refusal(read, content):
    try:
        found = read(content)
    except DataError as err:
        message = str(err)
    else:
        message = found.where
        assert len(found.time_s) == len(found.num_accelerators) >= 1
        assert (np.isfinite(found.time_s) & (found.time_s > 0)).all()
        assert (found.num_accelerators >= 1).all()
    assert "mine.csv" in message


@pytest.mark.parametrize("name", ["gpus", "Accelerators", "ngpus"])
def test_numbers_of_accelerators_go_by_the_names_that_people_give_them(read, name):
    assert read(f"{name},step_s\n1,100\n2,52\n").num_accelerators.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "cell", "seconds"),
    [("time_s", "90", 90), ("seconds", "90", 90), ("Minutes", "1.5", 90), ("hours", "2", 7200)],
)
def test_a_column_named_by_its_unit_is_the_time_of_the_training(read, name, cell, seconds):
    found = read(f"gpus,{name}\n1,{cell}\n2,{cell}\n")
    assert found.time_s.tolist() == [seconds, seconds]
    assert found.is_time_to_train
    assert any(name.lower() in each.words for each in found.notes)


@pytest.mark.parametrize(
    ("name", "cell", "seconds"),
    [
        ("Time (h)", "2", 7200),
        ("training time [hours]", "2", 7200),
        ("Time (min)", "1.5", 90),
        ("Step time (ms)", "250", 0.25),
        ("time per iteration [s]", "0.25", 0.25),
        # A million samples, or tokens, at 500 a second take 2000 s.
        ("Throughput (samples/s)", "500", 2000),
        ("tokens/s", "500", 2000),
    ],
)
def test_a_unit_in_brackets_is_the_column_s(read, name, cell, seconds):
    assert read(f"GPUs;{name}\n2;{cell}\n2;{cell}\n").time_s.tolist() == [seconds, seconds]


def test_steps_that_do_not_get_shorter_need_their_batch(read):
    # 16 a GPU: 0.81 s for 16 samples are 0.051 s a sample, 0.9 s for 64 are 0.014 s.
    steps = "gpus,step_s,batch_size\n1,0.81,16\n2,0.84,32\n4,0.9,64\n"
    with pytest.raises(DataError, match="global_batch_samples"):
        read(steps)
    found = read(steps.replace("batch_size", "global_batch")).time_s
    assert (found / found[0]).tolist() == pytest.approx([1, 0.84 / 2 / 0.81, 0.9 / 4 / 0.81])


def test_a_step_beside_a_time_is_the_step(read):
    # Seconds of a file that has steps may be how long they were watched.
    assert read("gpus,Step time (ms),Time (s)\n1,100,4\n2,50,3\n").time_s.tolist() == [0.1, 0.05]


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("time_h", "time_to_train_h"),
        ("Time (h)", "time_to_train_h"),
        ("took minutes", None),
        ("wall_min", "time_to_train_min"),
    ],
)
def test_hours_are_not_read_as_seconds_because_an_option_says_so(read, column, named):
    def asked(ours):
        return read(f"gpus,{column}\n1,10.5\n2,5.6\n", columns={ours: column})

    with pytest.raises(DataError, match=named or "time_to_train_min"):
        asked("time_to_train_s")
    unit_s = 3600 if named == "time_to_train_h" else 60
    assert asked(named or "time_to_train_min").time_s.tolist() == pytest.approx([10.5 * unit_s, 5.6 * unit_s])


def test_a_column_named_by_its_unit_is_not_used_beside_one_of_times(read):
    # Seconds may be how long the step was watched.
    assert read("gpus,step_ms,seconds\n1,100,4\n2,50,3\n").time_s.tolist() == [0.1, 0.05]
    found = read("gpus,samples_per_second,seconds\n1,1000,4\n2,2000,3\n")
    assert found.time_s.tolist() == [1000, 500]  # of a million samples


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("gpus,minutes,hours\n1,60,1\n", "minutes.*hours"),
        ("gpus,speed\n1,60\n", "'gpus'"),
        ("gpus,time_s\nx,60\n", "row 1.*gpus.*'x'"),
        ("gpus,time_s\n2,soon\n", "row 1.*time_s.*'soon'"),
        ("ranks,seconds\n1,60\n", "'ranks'.*'seconds'|'seconds'.*'ranks'"),
    ],
)
def test_a_refusal_names_columns_as_the_file_does(read, content, words):
    with pytest.raises(DataError, match=words) as caught:
        read(content)
    assert "num_accelerators'" not in str(caught.value)


def test_a_short_name_in_a_file_is_the_accelerator_of_that_name(read):
    text = "accelerator,num_accelerators,step_s\nrtx4090,8,1\nNVIDIA GeForce RTX 4090,16,0.6\n"
    assert read(text, accelerator="rtx-4090-pcie-24gb").time_s.tolist() == [1.0, 0.6]
    assert read(text, accelerator="4090").time_s.tolist() == [1.0, 0.6]


def test_a_name_in_a_file_that_may_mean_several_is_refused_with_them(read):
    text = "accelerator,num_accelerators,step_s\na100 pcie,8,1\n"
    with pytest.raises(DataError, match=r"column accelerator.*a100-pcie-40gb.*a100-pcie-80gb"):
        read(text, accelerator="h100")


@pytest.mark.parametrize("words", ["completed", "COMPLETED", "Finished", "done", "SUCCEEDED", "success"])
@pytest.mark.parametrize("column", ["status", "State"])
def test_rows_that_came_to_their_end_count_by_any_word_for_it(read, words, column):
    found = read(f"gpus,time_h,{column}\n8,10,{words}\n16,5.5,{words}\n16,1.4,FAILED\n32,1.0,TIMEOUT\n")
    assert found.num_accelerators.tolist() == [8.0, 16.0]
    assert found.time_s.tolist() == [36_000.0, 19_800.0]


def test_a_state_that_is_no_status_of_runs_is_a_column_of_its_own(read):
    assert read("gpus,time_h,state\n8,10,CA\n16,5.5,NY\n").num_accelerators.tolist() == [8.0, 16.0]


def test_rows_of_several_models_or_lengths_are_not_pooled(read):
    several = "model,gpus,time_h\nours-a,8,10\nours-a,16,5.5\nours-b,8,14\n"
    with pytest.raises(DataError, match=r"model.*ours-a.*ours-b"):
        read(several)
    assert read(several, workload="ours-a").time_s.tolist() == [36_000.0, 19_800.0]
    assert read("model,gpus,time_h\nours-a,8,10\nours-a,16,5.5\n").time_s.tolist() == [36_000.0, 19_800.0]
    with pytest.raises(DataError, match=r"seq_len.*2048.*4096"):
        read("gpus,samples_per_s,seq_len\n8,100,2048\n16,195,4096\n")
    assert read("gpus,samples_per_s,seq_len\n8,100,2048\n16,200,2048.0\n").time_s.tolist() == [1e4, 5e3]


def test_two_names_of_the_number_of_accelerators_are_one_where_they_agree(read):
    assert read("num_gpus,n_gpus,time_h\n8,8,10\n16,16,5\n").num_accelerators.tolist() == [8.0, 16.0]
    with pytest.raises(DataError, match=r"gpus.*world_size.*--column num_accelerators"):
        read("gpus,world_size,time_h\n8,1,10\n16,2,5\n")


@pytest.mark.parametrize("name", ["throughput (ktokens/s)", "Mtok/s", "million_samples_per_s"])
def test_a_rate_in_thousands_is_not_read_as_one_in_tokens(read, name):
    ours = "samples_per_s" if "samples" in name else "tokens_per_s"
    with pytest.raises(DataError, match="thousands"):
        read(f"gpus,{name}\n8,80\n16,150\n", columns={ours: name})


def test_a_table_that_is_there_twice_counts_once(read):
    rows = "1,80\n2,50\n4,30\n"
    once, twice = (read("gpus,step_s\n" + rows * copies) for copies in (1, 2))
    assert twice.num_accelerators.tolist() == once.num_accelerators.tolist()
    assert any("2 times" in note.words for note in twice.notes)


def test_one_size_measured_twice_to_few_digits_counts_twice(read):
    found = read("gpus,step_s\n1,80\n1,80\n2,50\n4,30\n")
    assert len(found.num_accelerators) == 4
    assert len(read("gpus,step_s\n1,80\n1,80\n").num_accelerators) == 2
