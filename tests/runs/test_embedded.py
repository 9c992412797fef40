"""The shipped dataset: whole, small, versioned by its content, and what `make dataset` makes again."""

import importlib.util
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

from equipoise.errors import DataError
from equipoise.runs import embedded, store
from equipoise.spec.mlperf import read_scores
from equipoise.units import MIB

DATA = Path(str(files("equipoise"))) / "data"
_spec = importlib.util.spec_from_file_location("dataset", Path(__file__).parents[2] / "docs" / "dataset.py")
dataset = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dataset)


def test_the_tables_obey_their_schema_and_hang_together():
    tables = embedded.load()
    assert tables.runs.schema == store.polars_schema(store.RUNS)
    assert tables.scores.schema == store.polars_schema(store.SCORES)
    entry = ["campaign", "submitter", "system", "workload"]
    assert tables.runs.join(tables.scores, on=entry, how="anti", nulls_equal=True).is_empty()
    counted = tables.runs.group_by(entry).len("found")
    both = tables.scores.join(counted, on=entry, how="left", nulls_equal=True)
    assert both.filter(pl.col("num_runs") != pl.col("found").fill_null(0)).is_empty()


def test_all_thirteen_rounds_are_inside_and_counted():
    rounds = embedded.rounds()
    names = "v0.5 v0.6 v0.7 v1.0 v1.1 v2.0 v2.1 v3.0 v3.1 v4.0 v4.1 v5.0 v5.1"
    assert [each.name for each in rounds] == names.split()
    tables = embedded.load()
    assert sum(each.num_entries for each in rounds) == len(tables.scores)
    assert sum(each.num_scored for each in rounds) == tables.scores["score_s"].count()
    assert sum(each.num_runs for each in rounds) == len(tables.runs)


def test_every_entry_has_a_score_or_a_reason():
    scores = embedded.load().scores
    assert scores.filter(pl.col("score_s").is_null() == pl.col("reason").is_null()).is_empty()


def test_the_dataset_is_small():
    assert sum((DATA / name).stat().st_size for name in ("runs.parquet", "scores.parquet")) < 4 * MIB


def test_the_version_names_rounds_and_content():
    first_to_last, _, digest = embedded.version().partition("+")
    assert first_to_last == "v0.5-v5.1"
    assert len(digest) == 12
    assert int(digest, 16) >= 0


def test_version_and_rounds_need_no_polars():
    code = "import sys; from equipoise.runs import embedded; embedded.version(); embedded.rounds(); print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_results_are_the_comparable_rows_of_the_table_and_need_no_polars():
    assert embedded.scores().entries == store.scores_of(embedded.load().scores).entries
    code = "import sys; from equipoise.runs import embedded; print(len(embedded.scores().entries), 'polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{len(embedded.scores().entries)} False\n"


def test_a_damaged_dataset_is_reported(tmp_path, monkeypatch):
    for path in filter(Path.is_file, DATA.iterdir()):
        (tmp_path / path.name).write_bytes(path.read_bytes() + b"\n" * (path.suffix == ".parquet"))
    monkeypatch.setattr(embedded, "_DATA", tmp_path)
    embedded._shipped_table.cache_clear()
    try:
        with pytest.raises(DataError, match=r"runs\.parquet .*dataset\.toml"):
            embedded.load()
    finally:
        embedded._shipped_table.cache_clear()


def test_making_it_again_gives_the_same_bytes_and_the_shipped_rows(tmp_path, data_dir):
    archive = data_dir / "mlperf/training_results_v0.7.tar.zst"
    versions = [dataset.build([archive], tmp_path / name) for name in ("a", "b")]
    assert versions[0] == versions[1]
    for name in ("runs.parquet", "scores.parquet", "results.json", "dataset.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert tomllib.loads((tmp_path / "a/dataset.toml").read_text())["archives"][0]["name"] == archive.name
    made, shipped = store.read_tables(tmp_path / "a"), embedded.load()
    assert made.runs.equals(shipped.runs.filter(campaign="v0.7"))
    assert made.scores.equals(shipped.scores.filter(campaign="v0.7"))
    rows = read_scores((tmp_path / "a/results.json").read_bytes())
    assert rows.entries == tuple(each for each in embedded.scores().entries if each.campaign == "v0.7")


def test_archives_without_any_round_make_no_dataset(tmp_path):
    (tmp_path / "round.tar").write_bytes(bytes(1024))
    with pytest.raises(DataError, match=r"round\.tar: "):
        dataset.build([tmp_path / "round.tar"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_making_it_without_archives_states_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no training_results_v.*set EQUIPOISE_DATA"):
        dataset.main()
