"""What a browser may ask: the declared fields of a question, less what would name a file of the server."""

import re

import pytest
from msgspec.structs import replace

from equipoise.decide.question.field import GROUPS
from equipoise.decide.question.query import FIELDS, fields_of, query
from equipoise.errors import InputError, SpecError, UsageError
from equipoise.spec.catalogue import shipped
from equipoise.web import (
    AT_FIRST,
    NOT_FROM_BROWSERS,
    Checks,
    DataSources,
    More,
    Select,
    Several,
    Text,
)
from equipoise.web.decision_screens import read_allocation
from equipoise.web.question import (
    FORM_FIELDS,
    IN_SIGHT,
    MOST,
    WrongFieldsError,
    form_fields,
    in_form,
    label_of,
    question,
    question_controls,
)

VERBS = ("advise", "plan")


def asking(verb="advise", **given):
    """The question of an address; a value may be a list."""
    held = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    return question(held, verb, shipped(), at_first=AT_FIRST)


def controls(verb="advise", runs=(), **given):
    """Every control of the form, those behind a label too, by name."""
    held = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    found = question_controls(held, verb, shipped(), at_first=AT_FIRST, runs=runs)
    flat = [each for one in found for each in (one.fields if isinstance(one, More) else (one,))]
    assert len(flat) == len({each.name for each in flat})
    return {each.name: each for each in flat}


@pytest.mark.parametrize("verb", VERBS)
def test_no_path_comes_from_a_browser(verb):
    paths = {name for name, each in fields_of(verb).items() if each.kind in {"path", "paths"}}
    assert paths
    assert paths - NOT_FROM_BROWSERS <= {"runs"}
    assert not form_fields(verb).keys() & NOT_FROM_BROWSERS
    assert set(FIELDS) >= NOT_FROM_BROWSERS


@pytest.mark.parametrize("verb", VERBS)
def test_every_other_field_has_a_control(verb):
    wanted = {each.key for each in form_fields(verb).values()}
    assert controls(verb, runs=("mine",)).keys() == wanted
    assert controls(verb).keys() == wanted - {"runs"}


def test_what_only_shows_fields_names_fields_that_are_there():
    assert {*MOST, *FORM_FIELDS} <= set(FIELDS)
    for verb in VERBS:
        assert len(IN_SIGHT[verb]) == 5
        assert set(IN_SIGHT[verb]) <= set(form_fields(verb))


def test_values_are_read_as_on_the_command_line():
    found = asking(
        workload="llama31_8b",
        accelerator=["h100", "dgx-b200"],
        tokens="1T",
        deadline="7d",
        price=["h100=2.1", "dgx-b200=4"],
        terms="h100=spot,on_demand",
        precision=["bf16", "fp8"],
        fix="tp=1..8 pp=1",
        buy="yes",
        budget="",
    )
    options = {
        "workload": "llama31_8b",
        "accelerator": ["h100", "dgx-b200"],
        "tokens": "1T",
        "deadline": "7d",
        "price": ["h100=2.1", "dgx-b200=4"],
        "terms": ["h100=spot,on_demand"],
        "precision": "bf16,fp8",
        "fix": ["tp=1..8", "pp=1"],
        "buy": True,
    }
    assert found.training == query(options)


def test_one_text_may_hold_several_systems_values():
    assert asking(price="h100=2.1 dgx-b200=4").training.price == (("h100", 2.1), ("dgx-b200", 4.0))


@pytest.mark.parametrize("currency", ["EUR=0.5", " EUR=0.5@2026-11-20"])
def test_amounts_may_name_the_currency_of_the_address(currency):
    found = asking(
        tokens="1T", budget="50k EUR", price="h100=2 EUR dgx-b200=€3", value_of_time="100", currency=currency
    ).training
    assert (found.budget_usd, found.value_of_time_usd_per_hour) == (100_000.0, 100.0)
    assert found.price == (("h100", 4.0), ("dgx-b200", 6.0))
    with pytest.raises(WrongFieldsError, match="GBP=RATE"):
        asking(tokens="1T", budget="50k GBP", currency=currency)


def test_equal_questions_have_one_key():
    assert asking(tokens="1T", deadline="7d").key == asking(deadline="168", tokens="1e12", budget=" ").key
    assert asking(tokens="1T").key != asking(tokens="2T").key
    assert asking(runs="a").key != asking(runs="b").key


def test_nothing_chosen_is_a_question():
    found = asking().training
    assert (found.workload, found.systems) == (AT_FIRST["workload"], (AT_FIRST["accelerator"],))


def test_every_wrong_field_has_a_sentence_in_the_words_of_the_form():
    with pytest.raises(WrongFieldsError) as raised:
        asking(deadline="-1", budget="x", data="/etc", tokens="1T")
    assert len(raised.value.reasons) == 3
    assert raised.value.reasons[0].startswith("“Deadline, hours” is -1; expected hours")
    assert raised.value.reasons[2].startswith("data='/etc' ")


@pytest.mark.parametrize("name", ["os:getcwd", "equipoise.cli:main", "nonsense"])
def test_a_workload_is_a_name_of_the_catalogue(name):
    with pytest.raises(SpecError, match=re.escape(repr(name))):
        asking(workload=name)


def test_two_budgets_of_work_are_refused():
    with pytest.raises(UsageError, match=r"--samples .*--tokens"):
        asking(tokens="1T", samples="10k")


@pytest.mark.parametrize("key", [each.key for name, each in form_fields("advise").items() if name in MOST])
def test_sizes_are_bounded_below_what_a_command_line_may_ask(key):
    with pytest.raises(WrongFieldsError, match="16,384"):
        asking(**{key: "1e6"})


def test_a_usual_guess_of_two_words_is_answered_with_the_key_of_the_address():
    with pytest.raises(WrongFieldsError) as raised:
        asking(batch_size="8")
    assert "global_batch" in raised.value.reasons[0]


def test_controls_follow_the_kind_of_the_field():
    found = controls("advise", runs=("mine",))
    assert isinstance(found["workload"], Text)
    assert {"llama31_8b", "bert"} <= {each.value for each in found["workload"].suggestions}
    assert isinstance(found["accelerator"], Several)
    assert isinstance(found["objective"], Select)
    assert isinstance(found["precision"], Checks)
    assert found["pue"].bounds == (1, 5)
    assert isinstance(found["tokens"], Text)
    assert found["tokens"].bounds is None
    assert found["max_accelerators"].slider is not None
    assert [each.value for each in found["buy"].choices] == ["no", "yes"]
    assert [each.value for each in found["runs"].choices] == ["", "mine"]
    assert "mine" not in str(controls("plan"))
    assert found["deadline"].meaning == FIELDS["deadline_s"].help


def test_a_group_is_open_where_the_address_fills_one_of_its_fields():
    folds = {
        each.label: each
        for each in question_controls({"price": ["2"]}, "advise", shipped(), at_first=AT_FIRST)
        if isinstance(each, More)
    }
    assert set(folds) <= set(GROUPS.values())
    assert [label for label, each in folds.items() if each.is_open] == [GROUPS["money"]]


def test_systems_keep_the_words_of_the_address_and_leave_room_for_one_more():
    texts = controls(accelerator=["h100", "3x rtx4090"])["accelerator"].texts
    assert [each.value for each in texts] == ["h100", "3x rtx4090", ""]
    assert [each.id for each in texts] == ["accelerator", "accelerator-2", "accelerator-3"]
    assert {"dgx-h100", "b200-sxm6-180gb"} <= {each.value for each in texts[0].suggestions}
    full = controls(accelerator=[f"s{place}" for place in range(6)])["accelerator"].texts
    assert len(full) == 6


def test_complaints_name_only_what_the_form_has():
    label = label_of("training_tokens")
    assert in_form("give --tokens 1T, or --workloads FILE") == f"give “{label}” 1T, or --workloads FILE"
    assert in_form("your times: --runs FILE.csv") == f"your times: “{label_of('runs')}”"


def jobs(pasted="", **given):
    """The trainings of an address on a pool of 64; `_1` in a name stands for `-1`."""
    held = {name.replace("_", "-"): [text] for name, text in given.items()}
    pool = {"accelerator": ["64x h100"], "pasted": [pasted]}
    return read_allocation({**pool, **held}, DataSources()).jobs.jobs


def test_jobs_of_rows_toml_and_csv_are_the_same_jobs():
    row = jobs(workload_1="bert", sizes_1="8, 16", deadline_1="2 h", weight_1="2", tokens_1="1G")
    toml = jobs('[[job]]\nworkload="bert"\nsizes=[8,16]\ndeadline="2 h"\nweight=2\ntokens=1e9')
    csv = jobs("workload,sizes,deadline,weight,tokens\nbert,8 16,2 h,2,1G\n")
    assert [each.sizes for each in row] == [(8, 16)]
    assert (row[0].deadline_s, row[0].weight, row[0].training) == (7200, 2.0, {"training_tokens": 1e9})
    for found in (toml, csv):
        assert [replace(each, where="") for each in found] == [replace(each, where="") for each in row]


def test_several_jobs_of_one_workload_are_numbered():
    found = jobs(
        workload_1="bert", workload_2="gpt2", train_2="lora", examples_2="5k", workload_3="bert", tokens_2=""
    )
    assert [each.name for each in found] == ["bert", "gpt2", "bert 2"]
    assert found[1].training == {"train": ("lora",), "training_examples": 5000}


def test_measured_times_may_be_pasted_as_csv():
    found = jobs("name;times\nours;8=30min 16=1000s\n")
    assert (found[0].name, found[0].times) == ("ours", {8: (1800.0,), 16: (1000.0,)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pasted": '[[job]]\nfile = "/etc/passwd"'}, "times"),
        ({"pasted": '[[job]]\nconfig = "/etc/passwd"\ntokens = "1G"'}, "workload"),
        ({"workload_1": "os:getcwd"}, "os:getcwd"),
        ({"pasted": '[[job]]\nworkload = "json:loads"'}, "json:loads"),
        ({"pasted": "[[job]"}, "not valid TOML"),
        ({"pasted": "[[job]]\nworkload='bert'\nsize=[8]"}, "sizes"),
        ({"workload_1": "bert", "sizes_1": "many"}, "accelerators"),
        ({"workload_1": "bert", "tokens_1": "lots"}, "'lots'"),
        ({"workload_1": "bert", "accelerator": "h100"}, "32x h100"),
        ({"workload_1": "bert", "accelerator": "99999x h100"}, "16,384"),
        ({"workload_1": "bert", "data": "/etc"}, "field"),
        ({"workload_1": "bert", "name_1": "x" * 200}, "longer than 160"),
        ({"deadline_1": ""}, "no job"),
        ({"pasted": "name,times\n" + "a,8=1h\n" * 51}, "at most 50"),
    ],
)
def test_jobs_that_cannot_be_are_refused_with_a_reason(given, words):
    with pytest.raises(InputError, match=re.escape(words)):
        jobs(**given)
