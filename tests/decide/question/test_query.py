"""The question as a whole: names, defaults, what excludes what; one field has one meaning everywhere."""

import math

import pytest
from msgspec.structs import replace

from equipoise.decide.answer import about_fixed
from equipoise.decide.question.query import ATTRIBUTES, FIELDS, default_of, fields_of, guessed, query, unknown
from equipoise.errors import DataError, UsageError
from equipoise.perfmodel.space import Fault

BERT = {"workload": "bert", "accelerator": ["h100"]}


def test_options_keys_and_arguments_are_one_question():
    options = query({"workload": "bert", "max-accelerators": "64", "deadline": "2", "accelerator": ["h100"]})
    keys = query({"workload": "bert", "max_accelerators": 64, "deadline": "120min", "accelerator": "h100"})
    assert options == keys
    assert options.deadline_s == 7200.0


def test_what_is_not_given_is_none_or_empty_and_changes_nothing():
    assert query({**BERT, "deadline": None, "price": (), "fix": []}) == query(BERT)
    asked = query(BERT)
    assert (asked.deadline_s, asked.price, asked.objective) == (None, (), "balance")
    assert (asked.within_s, asked.spend_usd) == (math.inf, math.inf)


@pytest.mark.parametrize("name", ["microbatch", "microbatch_samples"])
def test_a_fault_is_about_a_parameter_that_is_fixed_by_whichever_of_its_names(name):
    faults = [Fault("unequal", ("microbatch_samples", "dp")), Fault("heads", ("tp",))]
    assert about_fixed(faults, query({**BERT, "fix": f"{name}=7"})) == faults[:1]
    assert about_fixed(faults, query({**BERT, "fix": "pp=7"})) == faults  # of others nobody knows which


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"acelerator": "h100"},
            DataError,
            "'acelerator'.*accelerator",
        ),
        ({}, UsageError, "no workload"),
        ({"ask": "model", "accelerator": "h100"}, UsageError, "no workload.*--ask model"),
        ({**BERT, "tokens": 1e9, "samples": 1e6}, UsageError, "--samples and --tokens"),
        ({**BERT, "accelerators": 8, "nodes": 1}, UsageError, "--accelerators and --nodes"),
        ({**BERT, "accelerators": 8, "at": 16}, UsageError, "--at and --accelerators"),
        ({**BERT, "here": True}, UsageError, "--here and --accelerator"),
        ({**BERT, "queue": 3, "deadline": 2}, UsageError, "--queue.* 3 .*--deadline.* 2 "),
        ({**BERT, "objective": "value_of_time"}, UsageError, "--value-of-time USD"),
        ({**BERT, "objective": "cost", "value_of_time": 50}, UsageError, "--objective cost.*--value-of-time"),
        ({**BERT, "ask": "tokens"}, UsageError, "--ask tokens.*--budget.*--deadline"),
        ({**BERT, "ask": "model", "buy": True, "budget": 1}, UsageError, "keep one"),
        ({**BERT, "at": 8, "accelerators": 16}, UsageError, "--accelerators and --at"),
        # What counts only in a question that is not asked.
        ({**BERT, "tokens_per_param": 30}, UsageError, "--tokens-per-param.*--ask model"),
        ({**BERT, "tokens_per_param": 30, "ask": "tokens", "budget": 1}, UsageError, "--ask model"),
        ({**BERT, "queue": 3}, UsageError, "--queue.*--deadline"),
        ({**BERT, "submitter": "new", "tokens": 1e9}, UsageError, "--submitter new.*--tokens"),
        ({**BERT, "submitter": "new", "ask": "tokens", "budget": 1}, UsageError, "--submitter new.*--ask"),
        (
            {**BERT, "objective": "cost", "ask": "tokens", "budget": 1},
            UsageError,
            "--objective cost.*--ask tokens",
        ),
        (
            {**BERT, "value_of_time": 9, "ask": "model", "budget": 1},
            UsageError,
            "--value-of-time.*--ask model",
        ),
    ],
)
def test_what_asks_two_things_or_none_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        query(given)


def test_the_queue_counts_against_the_deadline():
    assert query({**BERT, "deadline": "10", "queue": "4"}).within_s == 6 * 3600.0


def test_a_value_of_time_makes_it_the_objective():
    assert query({**BERT, "value_of_time": 50}).objective == "value_of_time"


def test_an_amount_of_buying_is_a_wish_to_compare_it():
    assert query({**BERT, "purchase": "30k"}).is_buying
    assert not query(BERT).is_buying


def test_a_changed_question_is_checked_as_a_new_one():
    asked = query({**BERT, "tokens": "1T"})
    assert replace(asked, training_tokens=1e9).training_tokens == 1e9
    with pytest.raises(UsageError, match="keep one"):
        replace(asked, training_samples=5.0)


def test_names_of_options_are_unique_and_verbs_of_one_training_take_a_workload():
    keys = [key for each in FIELDS.values() for key in (each.key, *each.also_keys)]
    assert len(keys) == len(set(keys)) == len(ATTRIBUTES)
    for verb in ("advise", "plan", "predict", "allocate"):
        assert "price" in fields_of(verb)
        assert ("workload" in fields_of(verb)) == (verb != "allocate")  # its jobs have one each


def test_the_default_of_a_field_is_what_an_empty_question_has():
    asked = query(BERT)
    names = FIELDS.keys() - {"workload", "systems"}
    assert names
    for name in names:
        assert getattr(asked, name) == default_of(name), name


@pytest.mark.parametrize(
    ("option", "amount"),
    [
        *(("price", each) for each in ("-1", "nan", "1e9")),
        *(("electricity", each) for each in ("0", "nan", "99")),
        *(("pue", each) for each in ("0.9", "nan", "99")),
        *(("purchase", each) for each in ("-1", "1e9")),
        *(("hosting", each) for each in ("-1", "1e9")),
        *(("utilisation", each) for each in ("0", "1.5")),
        *(("horizon", each) for each in ("0", "inf", "1000")),
    ],
)
def test_amounts_of_money_and_power_that_are_none_are_refused(option, amount):
    with pytest.raises(UsageError, match=f"--{option} is .*expected"):
        query({**BERT, option: amount})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpu", "accelerator"),
        ("device", "accelerator"),
        ("batch_size", "global-batch"),
        ("time", "deadline"),
        ("time_limit", "deadline"),
        ("max-cost", "budget"),
        ("seq_len", "sequence"),
        ("context", "sequence"),
        ("model", "workload"),
        ("zero", "fix zero_stage=VALUE"),
        ("tensor_parallel", "fix tp=VALUE"),
        ("tp", "fix tp=VALUE"),
    ],
)
def test_a_usual_guess_is_answered_with_the_name(typed, meant):
    assert guessed(typed) == (meant,)
    with pytest.raises(DataError, match=meant.replace("-", "_")):
        query({**BERT, typed: "8"})
    assert meant.replace("-", "_") in unknown(typed, "advise")


def test_no_guess_is_a_name_of_a_field():
    guesses = {each for field in FIELDS.values() for each in field.guesses}
    assert guesses
    assert not guesses & set(ATTRIBUTES)


def test_named_values_are_pairs_or_a_table():
    stated = query({**BERT, "fix": ["tp=8", "zero_stage=2,3", "fused_loss=true"]})
    assert query({**BERT, "fix": {"tp": 8, "zero_stage": [2, 3], "fused_loss": True}}) == stated


def test_a_rate_and_an_amount_may_have_every_digit_of_a_computed_number():
    # 1.1 + 2.2 is 3.3000000000000003, and a third of a euro a dollar makes 9.9 of it.
    stated = {**BERT, "budget": f"{1.1 + 2.2} EUR", "currency": f"EUR={1 / 3}"}
    assert query(stated).budget_usd == pytest.approx(9.9)


@pytest.mark.parametrize(("written", "usd"), [("2k", 2000.0), ("1M", 1e6), ("0.5", 0.5), (300, 300.0)])
def test_what_an_hour_is_worth_is_written_as_a_budget_is(written, usd):
    asked = query({**BERT, "value_of_time": written, "budget": written})
    assert asked.value_of_time_usd_per_hour == asked.budget_usd == usd


@pytest.mark.parametrize("amount", ["100k EUR", "100k €", "€100k", "EUR 100k"])
def test_an_amount_in_another_currency_needs_its_rate(amount):
    with pytest.raises(UsageError, match=r"EUR with --currency EUR=RATE"):
        query({**BERT, "budget": amount})
    with pytest.raises(UsageError, match=r"h100.*GBP with --currency GBP=RATE"):
        query({**BERT, "price": "h100=2 GBP"})
    # a US dollar is half a euro
    assert query({**BERT, "budget": amount, "currency": "EUR=0.5"}).budget_usd == 200_000


@pytest.mark.parametrize("currency", ["USD=2", "usd=0.92", "USD=1.01@2026-11-20"])
def test_a_dollar_is_worth_a_dollar(currency):
    with pytest.raises(UsageError, match="--currency"):
        query({**BERT, "currency": currency})
    assert query({**BERT, "budget": 10, "currency": "USD=1"}).budget_usd == 10


@pytest.mark.parametrize(("name", "value"), [("price", "=2"), ("terms", "=spot"), ("stock", " =8")])
def test_a_value_for_a_system_without_a_name_is_refused(name, value):
    with pytest.raises(UsageError, match=f"--{name} is '{value}'"):
        query({**BERT, name: value})


@pytest.mark.parametrize("amount", ["much", "10 USD extra", "ten"])
def test_what_names_no_currency_is_refused_without_one(amount):
    with pytest.raises(UsageError, match="budget") as refused:
        query({**BERT, "budget": amount})
    assert "--currency" not in str(refused.value)
