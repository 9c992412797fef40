"""What money and time reach, turned round: planning the answer has to use them up."""

import pytest

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.plan import plan
from equipoise.advice.plans.planned import Question
from equipoise.advice.reach import reach
from equipoise.cli.reached import fields, text
from equipoise.errors import EvidenceError, UsageError

DAY_S = 86_400.0
TERMS = Terms(usd_per_accelerator_hour=2.0)


def _question(**changes):
    stated = {"workload": "llama2_7b", "accelerator": "h100-sxm5-80gb", "fewest": 8, "most": 64}
    return Question(**(stated | changes))


@pytest.fixture(scope="module")
def largest():
    return reach(_question(most=32, budget_usd=4000.0), "model", terms=TERMS)


def test_the_tokens_of_a_budget_cost_the_budget():
    found = reach(_question(budget_usd=3000.0), "tokens", terms=TERMS)
    size = found.option.num_accelerators
    back = plan(
        _question(fewest=size, most=size, training_tokens=found.tokens.value, num_best=1), terms=TERMS
    )
    assert back.recommended.bill.usd == pytest.approx(3000.0, rel=1e-6)
    assert found.option.bill.usd == pytest.approx(3000.0, rel=1e-6)
    assert found.limit == "budget"
    assert found.tokens.low < found.tokens.value < found.tokens.high


def test_the_tokens_of_a_date_take_until_then_on_the_most_accelerators():
    found = reach(_question(deadline_s=DAY_S), "tokens")
    assert found.limit == "deadline"
    assert found.option.num_accelerators == 64
    assert found.option.time.value == pytest.approx(DAY_S)
    # Twice the time, twice the tokens.
    twice = reach(_question(deadline_s=2 * DAY_S), "tokens")
    assert twice.tokens.value == pytest.approx(2 * found.tokens.value)


def test_money_and_date_together_are_both_kept():
    found = reach(_question(budget_usd=3000.0, deadline_s=DAY_S), "tokens", terms=TERMS)
    for each in found.by_size:
        assert each.option.time.value <= DAY_S * 1.000001
        assert each.option.bill.usd <= 3000.0 * 1.000001
    assert {each.limit for each in found.by_size} == {"budget", "deadline"}


def test_of_sizes_that_do_as_much_the_fastest_is_taken():
    found = reach(_question(budget_usd=3000.0), "tokens", terms=TERMS)
    as_good = [
        each.option
        for each in found.by_size
        if each.amount.value >= 0.98 * max(one.amount.value for one in found.by_size)
    ]
    assert found.option.time.value == min(each.time.value for each in as_good)


def test_the_largest_model_uses_up_the_budget_on_twenty_tokens_a_parameter(largest):
    assert largest.limit == "budget"
    assert 0.85 * 4000 < largest.option.bill.usd <= 4000
    assert largest.tokens.value == pytest.approx(20 * largest.params.value)
    assert largest.params.value == largest.shape.params
    # 6 FLOP a parameter and token on 2,000 accelerator-hours of 989 TFLOP/s, a third to a half of them used:
    # N = sqrt(2000 x 3600 x 989e12 x (0.33 to 0.5) / 120) is 4.4 to 5.4 billion.
    assert 3.5e9 < largest.params.value < 6.5e9
    assert largest.params.low < largest.params.value < largest.params.high


def test_models_grow_as_the_root_of_the_money(largest):
    more = reach(_question(most=32, budget_usd=16_000.0), "model", terms=TERMS)
    assert more.params.value / largest.params.value == pytest.approx(2.0, rel=0.15)


def test_more_tokens_a_parameter_leave_a_smaller_model(largest):
    found = reach(_question(most=32, budget_usd=4000.0), "model", terms=TERMS, tokens_per_param=80.0)
    assert found.params.value == pytest.approx(largest.params.value / 2, rel=0.15)


def test_the_memory_ends_it_where_money_does_not():
    found = reach(_question(most=8, budget_usd=1e12), "model", terms=TERMS)
    assert found.limit == "memory"
    # 16 bytes of state a parameter in 8 x 80 GB, offload aside: 40 billion.
    assert 2e10 < found.params.value < 4.5e10


def test_texts_fit_and_documents_have_every_field(monkeypatch, largest):
    monkeypatch.setenv("COLUMNS", "80")
    for found in (largest, reach(_question(budget_usd=3000.0, deadline_s=DAY_S), "tokens", terms=TERMS)):
        assert max(map(len, text(found).splitlines())) <= 80
        document = fields(found)
        assert document["recommended"]["low_usd"] <= document["recommended"]["usd"]
        assert document["tokens"]["low"] < document["tokens"]["high"]
    assert "Largest model" in text(largest)


@pytest.mark.parametrize(
    ("changes", "asked", "error", "words"),
    [
        ({}, "tokens", UsageError, "needs --budget or --deadline"),
        ({"budget_usd": 1e-4}, "tokens", UsageError, "of one step"),
        ({"budget_usd": 1e-4}, "model", UsageError, "not enough for the smallest model"),
        ({"workload": "resnet50", "budget_usd": 9.0}, "model", EvidenceError, "no transformer"),
        ({"workload": "llama2_70b_lora", "budget_usd": 9.0}, "model", EvidenceError, "adapters"),
        ({"workload": "megatron_1t", "budget_usd": 9.0}, "tokens", EvidenceError, "fits on none"),
        ({"accelerator": "gaudi2-oam-96gb", "budget_usd": 9.0}, "tokens", UsageError, "give --price"),
    ],
)
def test_what_cannot_be_answered_says_why(changes, asked, error, words):
    with pytest.raises(error, match=words):
        reach(_question(**changes), asked)


def test_tokens_a_parameter_that_are_none_are_refused():
    with pytest.raises(UsageError, match="--tokens-per-param"):
        reach(_question(budget_usd=100.0), "model", tokens_per_param=float("nan"))
