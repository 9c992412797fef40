"""What can be listed is what can be written: every parameter and value of a strategy, every system as a cluster."""

import csv
import json
import re
import shlex

import orjson
import pytest
from command_line import in_process

from equipoise.calibration.validate import StepFilter, listed_steps
from equipoise.cli.app import _exit_code
from equipoise.cli.listing import LISTED
from equipoise.cli.output import page_text
from equipoise.errors import SpecError
from equipoise.perfmodel.load import workload_load
from equipoise.report.pages.orientation import LISTING, Listing
from equipoise.report.pages.published_steps import STEPS, StepListing
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


def test_every_listed_system_is_one(data) -> None:
    rows = LISTED["systems"](data, shipped())
    assert rows
    for row in rows:
        assert cluster(row["system"]).node_size == row["node_size"]


def test_accelerators_say_whether_their_achievable_share_was_measured(data) -> None:
    rows = {row["accelerator"]: row for row in LISTED["accelerators"](data, shipped())}
    assert rows["a100-sxm4-80gb"]["achievable_is_measured"]
    assert not rows["rtx-3080-pcie-10gb"]["achievable_is_measured"]
    tpus = {name for name, row in rows.items() if row["kind"] == "tpu" and row["achievable_is_measured"]}
    assert tpus == {"tpu-v5e", "tpu-v6e", "tpu-v7x"}  # docs/experiments/0042
    # Cards for desktops exceed the clock of their stated peak.
    shares = [row["achievable_fraction"] for row in rows.values()]
    assert 0.4 < min(shares) <= max(shares) < 1.2


def test_prices_have_provider_terms_date_and_source(data) -> None:
    rows = LISTED["prices"](data, shipped())
    assert {row["terms"] for row in rows} == {"on_demand", "reserved", "spot"}
    assert all(row["provider"] and row["date"] and row["source"].startswith("https://") for row in rows)
    # Google's list has TPU v5e at 0.84 USD with a commitment of one year.
    (one,) = (row for row in rows if row["accelerator"] == "tpu-v5e" and row["terms"] == "reserved")
    assert (one["usd_per_accelerator_hour"], one["minimum_months"]) == (0.84, 12)


def test_regions_have_the_carbon_of_their_source(data) -> None:
    found = {row["region"]: row["g_co2_per_kwh"] for row in LISTED["regions"](data, shipped())}
    # Our World in Data, 2023: 369.5, 237.6 and 485.4 g per kWh.
    expected = {"united_states": 369, "united_kingdom": 238, "japan": 485}
    assert {name: found[name] for name in expected} == pytest.approx(expected)


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


def steps_as_text(monkeypatch, **wanted: str) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    found = StepListing(rows=listed_steps(StepFilter(**wanted), shipped()).to_dicts(), filters="")
    return page_text(STEPS, found, full=False).splitlines()


@pytest.mark.parametrize("wanted", [{}, {"model": "GNMT"}, {"accelerator": "tpu-v5p"}, {"source": "arxiv"}])
def test_every_line_of_the_published_steps_fits_the_terminal(wanted, monkeypatch) -> None:
    lines = steps_as_text(monkeypatch, **wanted)
    assert len(lines) > 8
    assert max(map(len, lines)) <= 80


def test_a_name_that_is_cut_shows_that_it_is(monkeypatch) -> None:
    lines = steps_as_text(monkeypatch, accelerator="rtx-4090-pcie-24gb")
    names = {line.split()[1] for line in lines if line[:1].isdigit() and "rtx-4090" in line}
    assert names
    assert all(name == "rtx-4090-pcie-24gb" or name.endswith("…") for name in names)


def test_a_published_step_is_listed_with_its_figure(monkeypatch) -> None:
    """Korthikanti et al. 2022, table 5: 530B with full recomputation takes 49.05 s on 280 A100."""
    lines = steps_as_text(monkeypatch, model="turing-530B")
    assert any("49.05 s/iteration" in line and "280" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [
        ("accelerators", "a100", {"a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb"}),
        ("prices", "RTX 4090", {"rtx-4090-pcie-24gb"}),
        ("systems", "h100", {"h100-sxm5-80gb", "h100-sxm5-hbm2e-96gb"}),
    ],
)
def test_a_list_is_of_the_forms_of_a_chip(kind, name, wanted) -> None:
    found = json.loads(in_process("list", kind, "--accelerator", name, "--json").stdout)[kind]
    mine = [set(each.get("accelerators", [each.get("accelerator")])) for each in found]
    assert mine
    assert set().union(*mine) == wanted
    everything = json.loads(in_process("list", kind, "--json").stdout)[kind]
    assert found == [each for each in everything if each in found]


def test_published_steps_are_written_as_csv_and_json(tmp_path, capsysbinary) -> None:
    out = tmp_path / "steps.csv"
    assert _exit_code(["list", "steps", "--source", "torchtitan", "--out", str(out)]) == 0
    assert (
        _exit_code(["list", "steps", "--source", "torchtitan", "--json-out", str(tmp_path / "a.json")]) == 0
    )
    capsysbinary.readouterr()
    document = orjson.loads((tmp_path / "a.json").read_bytes())
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # As benchmarks/llama3_h100_202412_torchtitan.md has in tables 1 to 3, and in 4 to 6 with docs/performance.md;
    # mixtures of an issue and a pull request, of NousResearch's torchtitan and of a fork; Crusoe's README; AuroraGPT.
    assert len(rows) == len(document["steps"]) == 18 + 19 + 6 + 7 + 5 + 11 + 12
    assert {row["row_id"] for row in rows} == {row["row_id"] for row in document["steps"]}
    # Two of the fork's split experts among tensor ranks, which is not modelled.
    assert sum(not row["model_ratio"] for row in rows) == sum("etp=1" in row["reason"] for row in rows) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("list", "systems"),
        ("scores", "--round", "v4.1", "--workload", "bert"),
        ("predict", "bert", "--accelerator", "h100"),
        ("report", "--round", "v4.1", "--workload", "bert"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", ["1", "20"])
def test_a_terminal_too_narrow_for_a_table_gets_lines_that_run_over_its_edge(words, columns, tmp_path):
    ended = in_process(*words, cwd=tmp_path, env={"COLUMNS": columns})
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) > int(columns)
