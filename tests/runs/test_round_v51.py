"""Scores of v5.1 in the embedded data against official ones, and against the logs read by another program.

truth/scores_v51.toml holds official times to train with their sources. truth/scores_v51.csv holds every entry: the
mean of its runs without the fastest and the slowest, times the factor of scaling.json, by a script of forty lines
that shares nothing with the package (MLPerf Training rules 5.1).
"""

import tomllib
from pathlib import Path

import polars as pl
import pytest

from equipoise.runs import embedded
from equipoise.spec.catalogue import shipped

pytestmark = pytest.mark.truth

TRUTH = Path(__file__).resolve().parents[1] / "truth"
SOURCES = tomllib.loads((TRUTH / "scores_v51.toml").read_text())["source"]


@pytest.fixture(scope="module")
def scores() -> pl.DataFrame:
    return embedded.load().scores.filter(campaign="v5.1")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source["url"].split("/")[2])
def test_official_times_are_the_scores(scores, source):
    assert source["scores"]
    for stated in source["scores"]:
        key = {name: value for name, value in stated.items() if name != "minutes"}
        fastest_s = scores.filter(division="closed", **key)["score_s"].min()
        assert fastest_s == pytest.approx(60 * stated["minutes"], rel=source["tolerance"]), key


def test_all_184_scores_are_those_of_the_logs(scores):
    theirs = pl.read_csv(TRUTH / "scores_v51.csv")
    both = scores.join(theirs, on=["submitter", "system", "workload"], suffix="_theirs")
    assert (len(scores), len(theirs), len(both)) == (184, 184, 184)
    assert both["num_runs"].to_list() == both["num_runs_theirs"].to_list()
    assert (both["score_s"] / (60 * both["minutes"]) - 1.0).abs().max() < 1e-5


def test_every_entry_joins_the_catalogue(scores):
    known = shipped()
    assert set(scores["accelerator"]) <= {each.slug for each in known.accelerators()}
    assert set(scores["workload"]) <= {each.slug for each in known.workloads()}
    assert scores["framework"].str.contains(r"^[a-z_+]+$").all()
