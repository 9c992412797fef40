"""What can be listed is what can be written: every parameter and value of a strategy, every system as a cluster."""

import json
import re
import shlex

import pytest
from command_line import in_process

from equipoise.cli.listing import LISTED
from equipoise.cli.output import page_text
from equipoise.errors import SpecError
from equipoise.perfmodel.load import workload_load
from equipoise.report.pages.orientation import LISTING, Listing
from equipoise.runs.embedded import tables
from equipoise.runs.store import Tables
from equipoise.spec.catalogue import shipped
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy, strategy


@pytest.fixture(scope="module")
def data() -> Tables:
    return tables()


def test_every_listed_parameter_and_value_is_read_back(data) -> None:
    rows = LISTED["strategies"](data, shipped())
    assert len(rows) == len(Strategy.__struct_fields__)
    for row in rows:
        for value in row["values"] or [1]:
            given = {"global_batch": 8, row["parameter"]: str(value).lower()}
            text = " ".join(f"{parameter}={written}" for parameter, written in given.items())
            assert f"{row['parameter']}=" in strategy(text).text() or value in {1, row["default"]}


def test_listed_defaults_are_those_of_a_strategy(data) -> None:
    defaults = {row["parameter"]: row["default"] for row in LISTED["strategies"](data, shipped())}
    assert defaults.pop("global_batch") is None
    text = " ".join(f"{parameter}={str(value).lower()}" for parameter, value in defaults.items())
    assert strategy(f"global_batch=8 {text}") == Strategy(global_batch_samples=8)


def test_every_listed_cluster_is_one(data) -> None:
    rows = LISTED["clusters"](data, shipped())
    assert rows
    for row in rows:
        assert cluster(row["cluster"]).node_size == row["node_size"]


def test_accelerators_say_whether_their_achievable_share_was_measured(data) -> None:
    rows = {row["accelerator"]: row for row in LISTED["accelerators"](data, shipped())}
    assert rows["a100-sxm4-80gb"]["achievable_is_measured"]
    assert not rows["l40s-pcie-48gb"]["achievable_is_measured"]
    assert all(0.4 < row["achievable_fraction"] < 1 for row in rows.values())


@pytest.mark.parametrize("kind", LISTED)
def test_every_line_of_a_list_fits_the_terminal(kind, data, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = Listing(kind=kind, rows=LISTED[kind](data, shipped()), sources="a dataset")
    lines = page_text(LISTING, found, full=False).splitlines()
    assert len(lines) > len(found.rows) > 0
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("kind", "option"), [("accelerators", "hardware"), ("workloads", "workloads")])
def test_the_example_of_a_list_is_read_and_its_questions_answered(kind, option, tmp_path) -> None:
    printed = in_process("list", kind, "--example").stdout
    commands = re.findall(r"^# +equipoise (.*)$", printed, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(command)
        (tmp_path / words[words.index(f"--{option}") + 1]).write_text(printed)
        answered = in_process(*words, "--json", cwd=tmp_path)
        assert answered.returncode == 0
        assert json.loads(answered.stdout)["recommended"]


def test_a_listed_workload_can_be_planned_or_says_what_it_lacks(data) -> None:
    rows = {row["workload"]: row["lacks"] for row in LISTED["workloads"](data, shipped())}
    assert rows["dlrm"]
    assert not rows["flux1_dev"]
    listed = shipped().workloads()
    assert listed
    for one in listed:
        if rows[one.slug]:
            with pytest.raises(SpecError, match=re.escape(rows[one.slug][0])):
                workload_load(one)
        else:
            assert float(workload_load(one).params) > 0
