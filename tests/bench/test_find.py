"""`bench --find` as its users meet it: real runs on two ranks, kept and told again."""

import json
import os
import re

import pytest
from command_line import document, equipoise

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores of their own"
)

MODEL = """
import torch

def model():
    return torch.nn.Linear(64, 64), torch.ones(32, 64), lambda output: output.square().mean()
"""
ASKED = ("train:model", "--find", "--sizes", "1,2", "--batch", "16", "--strategy", "ddp,localsgd:4")


def quick(trials):
    return (
        "--steps",
        "4",
        "--trials",
        str(trials),
        "--repeat",
        "1",
        "--launcher",
        "inprocess",
        "--out",
        "found",
    )


QUICK = quick(trials=2)


def bench(*arguments, cwd):
    return equipoise("bench", *arguments, cwd=cwd, env={"COLUMNS": "100"}, timeout=300)


@pytest.mark.usefixtures("prepared_ranks")
def test_a_search_runs_keeps_and_tells_what_it_tried(tmp_path):
    (tmp_path / "train.py").write_text(MODEL)
    ended = bench(*ASKED, *QUICK, "--json", cwd=tmp_path)
    search = document(ended)["find"]
    assert search["num_candidates"] == 3
    assert 1 <= search["num_trials"] <= 2
    tried = [each for each in search["candidates"] if each["samples_per_s"]]
    assert {"single", "ddp"} <= {each["strategy"] for each in tried}
    assert search["best"]["samples_per_s"] == max(each["samples_per_s"] for each in tried)
    assert len(search["candidates"]) == 3
    assert all(each["predicted"]["samples_per_s"] > 0 for each in search["candidates"])
    # Again from what is on disk: nothing runs, and the same is printed.
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("found/runs/*/trials/*.json")}
    again = bench(*ASKED, *QUICK, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    # Two roundings of one number: JSON keeps six digits.
    printed = re.search(r"Fastest: .*?([0-9][0-9.,]*) samples/s", again.stdout)[1]
    assert float(printed.replace(",", "")) == pytest.approx(search["best"]["samples_per_s"], rel=1e-3)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.glob("found/runs/*/trials/*.json")}
    # Other verbs read what was measured.
    told = equipoise("export", "runs", "--data", "found", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert {each["strategy"] for each in json.loads(told.stdout)["rows"]} >= {None, "ddp"}
    # Other options are another search.
    other = bench(*ASKED, *quick(trials=3), "--resume", cwd=tmp_path)
    assert other.returncode == 2
    assert "other options" in " ".join(other.stderr.split())


def test_what_no_search_is_for_is_refused(tmp_path):
    for more, said in (
        (("mlp", "--exact"), "--exact goes with --find"),
        (("mlp", "--trials", "3"), "--trials goes with --find"),
        (("mlp", "--find", "--exact", "--strategy", "localsgd:4"), "localsgd:4"),
        (("mlp", "wide_mlp", "--find"), "one workload"),
        (("mlp", "--find", "--sizes", "1"), "--sizes"),
    ):
        ended = bench(*more, "--launcher", "inprocess", cwd=tmp_path)
        assert ended.returncode == 2, ended.stderr
        assert said in " ".join(ended.stderr.split())
