"""The Python functions: the arguments of the question, and a result that shows itself."""

import ast
import importlib.util
import inspect
import json
import re
import traceback
import typing
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import equipoise as command

import equipoise
from equipoise.decide.answer import Answer
from equipoise.decide.question.query import FIELDS, fields_of, query
from equipoise.decide.solve_for import Reaches
from equipoise.errors import DataError, EvidenceError, SpecError, UsageError
from equipoise.library import arguments
from equipoise.library.decisions import CANDIDATE_COLUMNS, result_of
from equipoise.report.figures import charts, figure_json
from equipoise.report.format import duration
from equipoise.spec.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def advice():
    return equipoise.advise("llama2_70b_lora", accelerator="h200-sxm5-141gb", max_accelerators=32)


def _questions():
    spec = importlib.util.spec_from_file_location("questions", ROOT / "docs" / "questions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_at_most_fifteen_names_and_each_is_there():
    assert len(equipoise.__all__) <= 15
    assert set(equipoise._OWNERS) == set(equipoise.__all__) - {"__version__"}
    documented = set(equipoise.__all__) - {"LightningWatch", "TrainerWatch", "__version__"}
    assert documented
    for name in documented:
        assert inspect.getdoc(getattr(equipoise, name)), name
    with pytest.raises(AttributeError, match=r"no attribute .adviser."):
        _ = equipoise.adviser


@pytest.mark.parametrize("verb", ["advise", "plan", "predict", "allocate"])
def test_the_typed_arguments_are_the_fields_of_the_verb(verb):
    typed = getattr(arguments, f"{verb.capitalize()}Fields")
    fields = {name: each for name, each in fields_of(verb).items() if name not in {"workload", "ask"}}
    named = {name for each in fields.values() for name in (each.argument, *each.also_keys)}
    assert set(typing.get_type_hints(typed)) == named
    assert typed.__total__ is False


def test_what_is_derived_from_the_fields_is_up_to_date():
    made = _questions()
    assert made.PAGE.read_text() == made.page(), "make docs"
    assert made.ARGUMENTS.read_text() == made.arguments(), "make docs"
    assert FIELDS
    for field in FIELDS.values():
        assert f"| `--{field.option}`" in made.page()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acelerator", "accelerator"),
        ("law", "predict"),
        ("beauty", "'beauty'"),
    ],
)
def test_an_argument_that_is_no_field_is_a_type_error(name, words):
    with pytest.raises(TypeError, match=words):
        equipoise.advise("bert", **{name: "x"})


def test_what_is_missing_stands_below_an_error_that_nobody_catches():
    # Python prints the notes of an exception below it (PEP 678).
    with pytest.raises(EvidenceError) as caught:
        equipoise.advise("small_mlp", samples=1e6, accelerator="h100")
    assert any("global_batch" in each for each in caught.value.missing)
    assert "global_batch" in "".join(traceback.format_exception(caught.value))


def test_an_error_names_arguments_and_what_it_says_to_give_is_accepted():
    asked = {"accelerator": "h100", "accelerators": 8}
    with pytest.raises(UsageError) as refused:
        equipoise.plan("gpt2", **asked)
    ways = [way.split("=") for way in str(refused.value).partition(": give ")[2].split(", or ")]
    assert [name for name, _ in ways] == ["tokens", "samples"]
    for name, value in ways:
        found = equipoise.plan("gpt2", **asked, **{name: ast.literal_eval(value)})
        assert found.record.recommended.num_accelerators == 8


@pytest.mark.parametrize(
    ("function", "workload", "given"),
    [
        (equipoise.advise, "gpt2", {}),
        (equipoise.advise, "bert", {"ask": "tokens"}),
        (equipoise.advise, "llama31_8b", {"train": "grpo"}),
        (equipoise.advise, "bert", {"deadline": "soon"}),
        (equipoise.predict, "gnmt", {"accelerator": "h100"}),
        (equipoise.predict, "gpt2", {"accelerator": "h100"}),
        (equipoise.allocate, [{"workload": "gpt2"}], {"accelerator": "8x h100"}),
        (equipoise.allocate, [{"workload": "bert", "fix": "tp=3,pp=7"}], {"accelerator": "8x h100"}),
        (equipoise.allocate, [{"workload": "bert"}], {"accelerator": "8x h100", "begin": "17:00"}),
        (equipoise.validate, (), {"split": "leave-n_gpus"}),
    ],
)
def test_no_error_of_a_function_names_an_option_of_the_command_line(function, workload, given):
    with pytest.raises((UsageError, EvidenceError)) as refused:
        function(workload, **given)
    said = [str(refused.value), *getattr(refused.value, "missing", ())]
    assert not re.findall(r"--[a-z]\w*", re.sub("`.*?`", "", " ".join(said)))


def test_a_result_says_in_two_lines_what_to_take(advice):
    best = advice.record.recommended
    lines = repr(advice).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("advise: Llama 2 70B LoRA")
    assert f"Take {best.num_accelerators} " in lines[1]
    assert isinstance(advice.record, Answer)


def test_a_notebook_shows_the_answer_and_runs_nothing(advice):
    shown = advice._repr_html_()
    assert f"Take {advice.record.recommended.num_accelerators}" in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "<table" in shown
    assert "<script" not in shown
    assert "http" not in shown


def test_the_frame_has_a_row_per_candidate(advice):
    frame = advice.frame()
    assert isinstance(frame, pl.DataFrame)
    assert frame.schema.to_python() == CANDIDATE_COLUMNS
    assert frame["id"].to_list() == [each.id for each in advice.record.candidates]
    best = frame.filter("recommended").row(0, named=True)
    recommended = advice.record.recommended
    assert (best["time_s"], best["usd"]) == (recommended.time_s.value, recommended.usd.value)
    assert best["time_s_low"] <= best["time_s"] <= best["time_s_high"]


def test_the_document_is_that_of_the_command_line(advice):
    options = ("--accelerator", "h200-sxm5-141gb", "--max-accelerators", "32")
    printed = json.loads(command("advise", "llama2_70b_lora", *options, "--json").stdout)
    document = advice.to_dict()
    for found in (printed, document):
        found.pop("search_s")
        for system in found["systems"]:
            system.pop("search_s")
    assert document == printed
    assert advice.to_html().startswith("<!DOCTYPE html>")


def test_a_figure_has_its_own_colours(advice):
    found = charts(advice.presentation.page, advice.record)
    assert found
    for chart in found.values():
        figure = figure_json(chart)
        assert {"data", "layout"} == figure.keys()
        assert "var(" not in json.dumps(figure)
        assert figure["layout"]["title"]["text"] == chart.title


def test_a_figure_needs_the_extra_or_is_one_of_plotly(advice):
    if importlib.util.find_spec("plotly") is None:
        with pytest.raises(UsageError, match=r"equipoise\[notebook\]"):
            advice.figure()
    else:
        assert type(advice.figure()).__module__.startswith("plotly")
    with pytest.raises(UsageError, match="there are answer-money, answer-times"):
        advice.figure("no such figure")


def test_a_question_may_be_a_file(mine, advice):
    path = mine('workload = "llama2_70b_lora"\naccelerator = "h200-sxm5-141gb"\n', "job.toml")
    assert equipoise.advise(path, max_accelerators=32).record.recommended == advice.record.recommended


def test_sizes_prices_and_paths_are_taken_as_values(tmp_path):
    (tmp_path / "mine.csv").write_text(
        "num_accelerators,time_to_train_s\n" + "".join(f"{n},{10 + 1000 / n}\n" for n in (1, 2, 4, 8, 16, 32))
    )
    found = equipoise.predict(from_=tmp_path / "mine.csv", law="amdahl", at=[8, 64], price=2)
    assert [each.num_accelerators for each in found.record.candidates] == [8, 64]
    assert found.record.candidates[0].time_s.value == pytest.approx(135.0, rel=0.01)
    assert found.record.candidates[0].usd.value == pytest.approx(135.0 * 8 / 3600 * 2, rel=0.01)
    assert repr(found).startswith("predict: ")
    assert found.to_dict()["schema"] == "equipoise.predict/2"


@pytest.mark.parametrize(
    "given",
    [
        {"accelerators": np.array([8, 16])},
        {"accelerators": pl.Series([8, 16])},
        {"accelerators": range(8, 17, 8)},
        {"accelerators": {16, 8}},
        {"accelerators": [np.int64(8), 16], "price": {"h200": np.float64(4.0)}},
        {"accelerators": (8, 16), "deadline": timedelta(hours=2)},
    ],
)
def test_values_of_notebooks_are_values(given):
    found = equipoise.advise("llama2_70b_lora", accelerator="h200", **given)
    plain = {"deadline": 2.0} if "deadline" in given else {"price": {"h200": 4}} if "price" in given else {}
    asked = equipoise.advise("llama2_70b_lora", accelerator="h200", accelerators=[8, 16], **plain)
    assert found.record.recommended == asked.record.recommended
    assert found.record.question == asked.record.question


def test_what_a_budget_is_enough_for_is_another_record():
    found = equipoise.advise("llama2_7b", accelerator="h100", max_accelerators=8, ask="tokens", budget=20)
    assert isinstance(found.record, Reaches)
    document = found.to_dict()
    assert document["schema"] == "equipoise.advise-ask/1"
    assert document["best"]["training_budget"]["value"] == pytest.approx(
        found.record.best.training_budget.value, rel=1e-5
    )
    assert found.frame().height == 1


@pytest.mark.parametrize("verb", ["advise", "predict"])
def test_a_result_is_of_the_catalogue_that_is_given(verb, mine):
    path = mine("[accelerator.h100-sxm5-80gb]\naliases = ['ours']\n", "mine.toml")
    asked = query({"workload": "llama2_70b_lora", "accelerator": "ours", "accelerators": "8"})
    with pytest.raises(SpecError, match="ours"):
        result_of(verb, asked)
    found = result_of(verb, asked, known=catalogue([path])).record
    assert {each.accelerator for each in found.candidates} == {"h100-sxm5-80gb"}


def test_jobs_are_a_file_or_mappings(mine):
    path = mine('[[job]]\nname = "own"\ntimes = { 8 = "3 h", 16 = "1.6 h" }\n', "jobs.toml")
    listed = [{"name": "own", "times": {8: "3 h", 16: "1.6 h"}}]
    of_file, of_list = (equipoise.allocate(jobs, accelerator="16x h100") for jobs in (path, listed))
    assert of_list.frame().equals(of_file.frame())
    assert of_list.frame()["end_s"].to_list() == [1.6 * 3600]
    with pytest.raises(UsageError, match=r"objective.*'fun'.*time, makespan, cost, energy"):
        equipoise.allocate(listed, accelerator="16x h100", objective="fun")


@pytest.mark.parametrize(
    ("jobs", "found"), [({"workload": "bert"}, "dict"), (["bert"], "bert"), (7, "int"), ([None], "None")]
)
def test_jobs_that_are_no_list_of_mappings_are_refused(jobs, found):
    with pytest.raises(UsageError, match=rf"jobs .*{found}"):
        equipoise.allocate(jobs, accelerator="16x h100")


TABLE = pl.DataFrame({"a": [1, 2], "b": [3, 4]})  # which prints as several lines


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("advise", {"workload": TABLE, "accelerator": "h100"}),
        (
            "allocate",
            {"jobs": [{"times": {1: "1 h"}}], "accelerator": "4x h100", "electricity_by_hour": TABLE},
        ),
        ("validate", {"split": TABLE}),
        ("topology", {"accelerator": TABLE}),
        ("topology", {"file": TABLE}),
        ("topology", {"file": ROOT / "docs/examples/topology.txt", "batch": TABLE}),
    ],
)
def test_a_value_of_many_lines_is_refused_in_one(verb, given):
    with pytest.raises(UsageError) as refused:
        getattr(equipoise, verb)(**given)
    assert str(refused.value).splitlines() == [str(refused.value)]


def test_times_of_a_job_are_any_values_of_python_by_size():
    times = {8: timedelta(hours=3), 16: ("96 min", "96 min")}
    found = equipoise.allocate([{"name": "own", "times": times, "sizes": (8, 16)}], accelerator="16x h100")
    assert found.frame()["end_s"].to_list() == pytest.approx([1.6 * 3600])


@pytest.mark.parametrize(
    ("given", "words"), [({}, "no accelerator"), ({"accelerator": "h100,b200"}, "2 pools")]
)
def test_an_allocation_is_of_one_pool(given, words):
    with pytest.raises(UsageError, match=rf"{words}.*'64x h100'"):
        equipoise.allocate([{"name": "own", "times": {1: "1 h"}}], **given)


@pytest.mark.parametrize("times", ["8=3h", [(8, "3 h")], 3])
def test_times_that_are_no_mapping_are_refused(times):
    with pytest.raises(DataError, match=r"jobs: job 1: times = .*8 = "):
        equipoise.allocate([{"name": "own", "times": times}], accelerator="16x h100")


def test_a_field_of_a_job_that_is_no_text_is_refused():
    with pytest.raises(DataError, match=r"jobs: job 1: .*'8'.*times"):
        equipoise.allocate([{8: "3 h"}], accelerator="16x h100")


@pytest.mark.parametrize("name", ["split", "software"])
@pytest.mark.parametrize("given", [None, 5, ["none"], b"none"], ids=str)
def test_a_choice_that_is_no_text_is_refused_by_its_name(name, given):
    with pytest.raises(UsageError, match=rf"^{name}\b"):
        equipoise.validate(**{name: given})


@pytest.mark.parametrize("name", ["jobs", "electricity_by_hour"])
def test_a_file_of_an_allocation_has_a_name_that_a_file_can_have(name):
    jobs = [{"name": "own", "times": {16: "1 h"}}]
    for given in ("x" * 300, "a\0b"):
        with pytest.raises(UsageError, match=r"\bname\b"):
            equipoise.allocate(**{"jobs": jobs, name: given}, accelerator="16x h100")


def test_a_table_in_memory_is_refused_without_a_format_that_its_file_cannot_have():
    quotes = pl.DataFrame({"provider": ["a"], "system": ["h100"], "usd_per_hour": [2.0]})
    with pytest.raises(UsageError, match=r"^prices\b") as refused:
        equipoise.advise("bert", accelerator="h100", prices=quotes)
    assert "Parquet" not in str(refused.value)


def test_prices_by_the_hour_are_a_file_or_numbers(mine):
    path = mine(
        "hour,usd_per_kwh\n" + "".join(f"{hour},{0.1 + hour / 100}\n" for hour in range(24)), "prices.csv"
    )
    jobs = [{"name": "a", "times": {8: "3 h"}}]
    asked = {"accelerator": "8x h100-sxm5-80gb", "objective": "cost", "begin": "17:00", "price": 0}
    found = equipoise.allocate(jobs, electricity_by_hour=path, **asked)
    numbers = 0.1 + np.arange(24) / 100
    assert equipoise.allocate(jobs, electricity_by_hour=numbers, **asked) == found
    assert equipoise.allocate(jobs, electricity_by_hour=list(numbers), **asked) == found
    with pytest.raises(UsageError, match="24"):
        equipoise.allocate(jobs, electricity_by_hour=[0.1] * 23, **asked)
    with pytest.raises(DataError, match="begin"):
        equipoise.allocate(jobs, electricity_by_hour=path, **{**asked, "begin": 17})


def test_a_price_in_a_mapping_is_of_the_system_that_it_names():
    jobs = [{"name": "own", "times": {16: "1 h"}}]
    found = equipoise.allocate(jobs, accelerator="16x h100", price={"h100": 9})
    assert found.frame()["usd"].to_list() == pytest.approx([16 * 9])
    with pytest.raises(UsageError, match="b200"):
        equipoise.allocate(jobs, accelerator="16x h100", price={"b200": 2, "h100": 9})


def test_an_argument_that_is_a_word_of_python_is_offered_as_it_can_be_typed():
    with pytest.raises(TypeError, match=r", from_, "):
        equipoise.predict(times_from="mine.csv")


def test_exports_are_ingested_as_by_the_command(tmp_path, mine):
    path = mine("num_gpus,samples_per_s\n8,100\n16,190\n")
    assert equipoise.ingest(path).runs["samples_per_s"].to_list() == [100.0, 190.0]
    with pytest.raises(UsageError, match=r"mine\.csv"):
        equipoise.ingest([path, tmp_path])


def test_several_trainings_share_a_pool(mine):
    path = mine('[[job]]\nname = "a"\ntimes = { 8 = "2 h", 16 = "1 h" }\n', "jobs.toml")
    found = equipoise.allocate(path, accelerator="16x h100-sxm5-80gb")
    assert found.frame().select("job", "num_accelerators", "end_s").rows() == [("a", 16, 3600.0)]
    assert duration(3600.0) in repr(found)
    assert found.to_dict()["schema"] == "equipoise.allocate/2"


def test_plan_and_advise_give_the_same_number_to_the_same_question():
    asked = {"accelerator": "h200-sxm5-141gb", "accelerators": "8..32"}
    planned, advised = (verb("llama2_70b_lora", **asked) for verb in (equipoise.plan, equipoise.advise))
    assert planned.record.recommended == advised.record.recommended
    assert callable(result_of)
