"""Results are data: they go through pickle, to other processes and into caches, and come back the same."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import equipoise
from equipoise.report.figures import charts, figure_json

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RUNS = "num_accelerators,samples_per_s,global_batch_samples,precision\n1,3.0,8,bf16\n2,5.5,16,bf16\n4,9,32,bf16\n"
H100 = {"accelerator": "h100-sxm5-80gb", "max_accelerators": 32}

ASKED = {
    "advise": lambda _: equipoise.advise("llama2_70b_lora", **H100),
    "advise on tokens": lambda _: equipoise.advise("gpt2", tokens="1G", deadline="1d", **H100),
    "advise by own runs": lambda own: equipoise.advise(
        "gpt2", tokens="1G", accelerator="rtx4090", runs=own / "mine.csv"
    ),
    "advise --ask": lambda _: equipoise.advise("gpt2", ask="tokens", budget=100, **H100),
    "plan": lambda _: equipoise.plan("gpt2", tokens="1G", accelerator="h100", accelerators=8),
    "predict": lambda _: equipoise.predict("bert", accelerator="h100", accelerators=[8, 64]),
    "predict --from": lambda own: equipoise.predict(from_=own / "mine.csv", accelerators=[8]),
    "allocate": lambda own: equipoise.allocate(own / "jobs.toml", accelerator="16x h100"),
    "validate": lambda _: equipoise.validate(EXAMPLES / "measured.csv"),
    "topology": lambda _: equipoise.topology(EXAMPLES / "topology.txt"),
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.csv").write_text(RUNS)
    jobs = '[[job]]\nname = "one"\nworkload = "gpt2"\ntokens = "1G"\n'
    (folder / "jobs.toml").write_text(jobs)
    return folder


def _pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - written here


@pytest.mark.parametrize("name", ASKED)
def test_a_copy_of_a_result_shows_the_same(name, own):
    result = ASKED[name](own)
    for found in (_pickled(result), copy.deepcopy(result)):
        assert found.to_dict() == result.to_dict()
        assert found.frame().equals(result.frame())
        assert repr(found) == repr(result)
        assert found._repr_html_() == result._repr_html_()
        assert found.to_html() == result.to_html()
        shown = charts(result.presentation.page, result.record)
        copied = charts(found.presentation.page, found.record)
        assert copied.keys() == shown.keys()
        assert [*map(figure_json, copied.values())] == [*map(figure_json, shown.values())]
        assert found == result
        assert hash(found) == hash(result)


def test_results_of_different_questions_differ():
    one, other = (equipoise.predict("bert", accelerator="h100", accelerators=size) for size in (8, 64))
    assert one != other
    assert one != one.record


def test_a_result_is_read_by_another_process(tmp_path, own):
    result = ASKED["predict"](own)
    (tmp_path / "kept").write_bytes(pickle.dumps(result))
    code = "import pathlib, pickle, sys; print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()))"
    command = [sys.executable, "-c", code, str(tmp_path / "kept")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{result}\n"


def test_tables_and_ingested_runs_are_copied():
    for kept in (equipoise.tables(), equipoise.ingest(EXAMPLES / "h200-v5.0.tar.gz")):
        found = _pickled(kept)
        assert isinstance(found.runs, pl.DataFrame)
        assert found.runs.equals(kept.runs)
        assert copy.deepcopy(kept).scores.equals(kept.scores)
