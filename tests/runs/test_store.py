"""Tables on disk: whole or not at all, the same bytes each time, and nothing accepted that breaks the schema."""

import io
import math
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError
from equipoise.runs import store
from equipoise.runs.store import RUNS, SCORES, TableSchema


def frame(table: TableSchema, *rows: dict) -> pl.DataFrame:
    return pl.DataFrame(
        [{name: row.get(name) for name in table.names} for row in rows], schema=store.polars_schema(table)
    )


def run(number: int, **facts) -> dict:
    return {
        "run_id": f"v9.0/acme/x8/bert/result_{number}",
        "campaign": "v9.0",
        "submitter": "acme",
        "system": "x8",
        "workload": "bert",
        "time_to_train_s": 10.0 + number,
    } | facts


def score(**facts) -> dict:
    entry = {
        "entry_id": "v9.0/acme/x8/bert",
        "campaign": "v9.0",
        "submitter": "acme",
        "system": "x8",
        "workload": "bert",
    }
    return entry | {"score_s": 60.0} | facts


def tables(runs: list[dict], scores: list[dict]) -> store.Tables:
    return store.Tables(runs=frame(RUNS, *runs), scores=frame(SCORES, *scores))


def test_tables_come_back_as_written(tmp_path):
    written = tables([run(1), run(2, status="ü = 1")], [score()])
    store.write_tables(written, tmp_path / "deep" / "folder")
    back = store.read_tables(tmp_path / "deep" / "folder")
    assert back.runs.equals(written.runs)
    assert back.scores.equals(written.scores)
    assert sorted(path.name for path in (tmp_path / "deep/folder").iterdir()) == [
        "runs.parquet",
        "scores.parquet",
    ]


def test_rows_in_any_order_give_equal_bytes(tmp_path):
    rows = [run(number) for number in range(50)]
    for name, order in (("a", rows), ("b", rows[::-1]), ("c", rows[20:] + rows[:20])):
        store.write_table(
            pl.concat([frame(RUNS, *order[:7]), frame(RUNS, *order[7:])]), tmp_path / name, RUNS
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_a_failed_write_leaves_the_old_table_and_nothing_else(tmp_path):
    path = tmp_path / "runs.parquet"
    store.write_table(frame(RUNS, run(1)), path, RUNS)
    before = path.read_bytes()
    with pytest.raises(DataError, match="NaN or infinity"):
        store.write_table(frame(RUNS, run(1, time_to_train_s=math.nan)), path, RUNS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_when_the_second_table_is_bad_neither_is_replaced(tmp_path):
    store.write_tables(tables([run(1)], [score()]), tmp_path)
    with pytest.raises(DataError, match=r"entry_id.* null"):
        store.write_tables(tables([run(2)], [score(entry_id=None)]), tmp_path)
    assert store.read_tables(tmp_path).runs["run_id"].to_list() == [run(1)["run_id"]]
    assert len(list(tmp_path.iterdir())) == 2


def test_tables_of_writers_at_once_are_never_mixed(tmp_path):
    by_round = {name: tables([run(1, campaign=name)], [score(campaign=name)]) for name in ("v1.0", "v2.0")}
    found = []
    with ThreadPoolExecutor(4) as writers:
        for _ in range(20):
            list(writers.map(lambda each: store.write_tables(each, tmp_path), [*by_round.values()] * 2))
            runs, scores = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("runs", "scores"))
            found.append((runs["campaign"][0], scores["campaign"][0]))
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_a_data_error_and_leaves_the_old_table(tmp_path):
    path = tmp_path / "runs.parquet"
    store.write_table(frame(RUNS, run(1)), path, RUNS)
    before = path.read_bytes()
    before_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before_limit[1]))
    try:
        with pytest.raises(DataError, match=r"runs\.parquet: .*written"):
            store.write_table(frame(RUNS, *(run(number) for number in range(5000))), path, RUNS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before_limit)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_a_data_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"/file: .*written"):
        store.write_tables(tables([run(1)], [score()]), tmp_path / "file")


def test_the_new_file_obeys_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        store.write_table(frame(RUNS), tmp_path / "runs.parquet", RUNS)
    finally:
        os.umask(before)
    assert (tmp_path / "runs.parquet").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda rows: rows.drop("energy_j"), r"missing columns \['energy_j'\], unknown columns \[\]"),
        (lambda rows: rows.with_columns(extra=1), r"unknown columns \['extra'\].*equipoise ingest"),
        (
            lambda rows: rows.with_columns(pl.col("num_nodes").cast(pl.Int32)),
            "column num_nodes has type Int32; expected Int64",
        ),
        (
            lambda rows: rows.with_columns(energy_j=pl.lit(math.inf)),
            "column energy_j .*NaN .*infinity",
        ),
        (lambda rows: pl.concat([rows, rows]), r"2 rows .* 'v9.0/acme/x8/bert/result_1'"),
        (
            lambda rows: rows.with_columns(run_id=pl.lit(None, pl.String)),
            "column run_id.* null",
        ),
    ],
)
def test_what_breaks_the_schema_is_refused_both_ways(tmp_path, broken, words):
    path = tmp_path / "runs.parquet"
    rows = broken(frame(RUNS, run(1)))
    with pytest.raises(DataError, match=words):
        store.write_table(rows, path, RUNS)
    rows.write_parquet(path)
    with pytest.raises(DataError, match=f"runs.parquet.*{words}"):
        store.read_table(path, RUNS)


@pytest.mark.parametrize("facts", [{"system": {"": {}}}, {"num_accelerators": "x"}, {"energy_j": [1.0]}])
def test_values_of_another_kind_than_their_column_are_data_errors(facts):
    with pytest.raises(DataError, match="table runs"):
        store.frame_of([run(1, **facts)], RUNS)


def test_columns_in_another_order_are_put_in_order(tmp_path):
    path = tmp_path / "runs.parquet"
    frame(RUNS, run(1)).select(reversed(RUNS.names)).write_parquet(path)
    assert store.read_table(path, RUNS).columns == list(RUNS.names)


def test_files_that_are_no_tables_are_data_errors(tmp_path):
    path = tmp_path / "runs.parquet"
    with pytest.raises(DataError, match=r"runs\.parquet: .*`equipoise ingest PATH\.\.\. --into DIR`"):
        store.read_tables(tmp_path)
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"runs\.parquet: .*regular file"):
        store.read_table(path, RUNS)
    path.unlink()
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"runs\.parquet: .*Parquet table"):
        store.read_table(path, RUNS)
    with path.open("wb") as file:
        file.truncate(store.MAX_TABLE_BYTES + 1)
    with pytest.raises(DataError, match=r"more than 268,435,456 bytes"):
        store.read_table(path, RUNS)


def test_a_name_is_never_taken_for_a_pattern(tmp_path):
    store.write_table(frame(RUNS, run(1)), tmp_path / "a.parquet", RUNS)
    with pytest.raises(DataError, match=r"\*\.parquet: "):
        store.read_table(tmp_path / "*.parquet", RUNS)


def test_too_many_rows_are_refused(tmp_path):
    path = tmp_path / "runs.parquet"
    rows = pl.select(pl.int_range(store.MAX_TABLE_ROWS + 1).cast(pl.String).alias("run_id"))
    empty = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in store.polars_schema(RUNS).items()
        if name != "run_id"
    ]
    rows.with_columns(empty).select(RUNS.names).write_parquet(path)
    with pytest.raises(DataError, match="more than 1,000,000 rows"):
        store.read_table(path, RUNS)


def parquet_bytes() -> bytes:
    file = io.BytesIO()
    frame(RUNS, *(run(number) for number in range(30))).write_parquet(file)
    return file.getvalue()


def refused_or_sound(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        rows = store.read_table(path, RUNS)
    except DataError:
        return
    assert rows.schema == store.polars_schema(RUNS)


@pytest.mark.parametrize("number", range(3))
def test_a_page_that_promises_absurd_counts_does_not_end_the_process(tmp_path, number):
    data = bytearray(parquet_bytes())
    # In the header of a data page, field 5 (a struct) begins with the number of values, 30: zigzag 0x3c. 0x7f is -64.
    header = b"\x2c\x15\x3c"
    assert data.count(header) > number
    position = -1
    for _ in range(number + 1):
        position = data.index(header, position + 1)
    data[position + 2] = 0x7F
    refused_or_sound(tmp_path / "runs.parquet", bytes(data))


@pytest.mark.law
@given(random=st.randoms(use_true_random=False), keep=st.sampled_from([1.0, 1.0, 1.0, 0.7]))
@settings(deadline=None, max_examples=8)
def test_a_damaged_table_is_refused_or_keeps_the_schema(tmp_path_factory, random, keep):
    data = bytearray(parquet_bytes())
    for _ in range(4):
        data[random.randrange(len(data))] = random.randrange(256)
    refused_or_sound(tmp_path_factory.getbasetemp() / "damaged.parquet", bytes(data[: int(keep * len(data))]))


def test_the_entry_that_is_added_replaces_the_same_entry_whole():
    base = tables(
        [run(1), run(2), run(1, run_id="v9.0/acme/x16/bert/result_1", system="x16")],
        [score(), score(entry_id="v9.0/acme/x16/bert", system="x16")],
    )
    also = tables([run(2, time_to_train_s=99.0)], [score(score_s=99.0)])
    both = store.merged(base, also)
    assert both.scores.select("entry_id", "score_s").rows() == [
        ("v9.0/acme/x16/bert", 60.0),
        ("v9.0/acme/x8/bert", 99.0),
    ]
    assert both.runs.select("run_id", "time_to_train_s").rows() == [
        ("v9.0/acme/x16/bert/result_1", 11.0),
        ("v9.0/acme/x8/bert/result_2", 99.0),
    ]


def test_the_same_entry_under_another_name_is_replaced_too():
    base = tables([run(1)], [score()])
    also = tables([run(1, run_id="mine/1")], [score(entry_id="mine")])
    both = store.merged(base, also)
    assert (both.scores["entry_id"].to_list(), both.runs["run_id"].to_list()) == (["mine"], ["mine/1"])


def test_other_entries_are_kept(tmp_path):
    base = tables([run(1)], [score()])
    also = tables([run(1, run_id="v9.1/r", campaign="v9.1")], [score(entry_id="v9.1/e", campaign="v9.1")])
    both = store.merged(base, also)
    assert (len(both.runs), len(both.scores)) == (2, 2)
    store.write_tables(both, tmp_path)
    assert store.merged(both, both).runs.equals(both.runs)


def imported(number: int, name: str = "entry_id", **facts) -> dict:
    names = {"run_id": f"runs/{number}", "entry_id": f"runs/entry {number}"}
    return {name: names[name], "campaign": "runs", "workload": "bert", "num_accelerators": 8} | facts


def of_imports(*facts: dict) -> store.Tables:
    return tables(
        [imported(number, "run_id", **each) for number, each in enumerate(facts, 1)],
        [imported(number, **each) for number, each in enumerate(facts, 1)],
    )


def test_imports_of_files_of_one_name_keep_their_entries_apart(tmp_path):
    base = of_imports({}, {"num_accelerators": 16}, {"sequence_tokens": 512.0})
    also = of_imports({"workload": "llama31_8b"}, {"samples_per_s": 7.0}, {"sequence_tokens": 128.0})
    both = store.merged(base, also)
    store.write_tables(both, tmp_path)
    kinds = ["workload", "num_accelerators", "sequence_tokens", "samples_per_s"]
    expected = {
        ("bert", 16, None, None),
        ("bert", 8, 512.0, None),
        ("llama31_8b", 8, None, None),
        ("bert", 8, None, 7.0),
        ("bert", 8, 128.0, None),
    }
    assert len(both.scores) == len(both.runs) == len(expected)
    assert {*both.scores.select(kinds).rows()} == {*both.runs.select(kinds).rows()} == expected


def test_the_schema_of_a_frame_is_that_of_the_documentation():
    assert list(store.polars_schema(SCORES)) == list(SCORES.names)
    assert store.polars_schema(RUNS)["time_to_train_s"] == pl.Float64
