"""What budget and deadline allow, the other way round: asking for the amount found has to use them up."""

import math

import pytest

from equipoise.decide.decision import answer
from equipoise.decide.question.query import query
from equipoise.decide.solve_for import solve_for
from equipoise.decide.solve_for.most_tokens import most_within
from equipoise.errors import EvidenceError, UsageError

DAY_S = 86_400.0
_LARGE = {"workload": "llama3_70b", "max_accelerators": 2048}


def _asked(**changes):
    stated = {"workload": "llama2_7b", "accelerator": "h100-sxm5-80gb", "max_accelerators": 64, "price": 2.0}
    return query(stated | changes)


def _solved(**changes):
    return solve_for(_asked(**{"ask": "tokens"} | changes), scores=None).best


@pytest.fixture(scope="module")
def largest():
    return _solved(ask="model", max_accelerators=32, budget=4000)


@pytest.mark.parametrize(
    ("limits", "used"),
    [
        ({"budget": 3000}, lambda each: each.usd.value / 3000),
        ({"deadline": "1d"}, lambda each: each.time_s.value / DAY_S),
        ({"deadline": "30h", "queue": 6}, lambda each: each.time_s.value / DAY_S),
        ({"deadline": "3d", "terms": "spot"}, lambda each: each.time_s.value / (3 * DAY_S)),
        ({"budget": 500, "electricity": 0.2, "price": 0}, lambda each: each.usd.value / 500),
        # Usual batches that grow with the tokens: 4 Mi of 1 T, 17 Mi of 18 T
        (_LARGE | {"budget": 1e6}, lambda each: each.usd.value / 1e6),
        (_LARGE | {"budget": 20e6}, lambda each: each.usd.value / 20e6),
    ],
)
def test_asking_for_the_tokens_found_gives_budget_or_deadline_back(limits, used):
    found = _solved(**limits)
    back = answer(_asked(**limits, tokens=found.training_budget.value), scores=None)
    same = back.candidate(found.recommended.id)
    assert used(same) == pytest.approx(1.0, rel=1e-5)
    assert used(same) <= 1.0
    assert same.feasible
    assert (same.time_s.value, same.num_samples) == pytest.approx(
        (found.recommended.time_s.value, found.recommended.num_samples)
    )
    assert found.training_budget.low < found.training_budget.value < found.training_budget.high


@pytest.mark.parametrize(("limits", "every"), [({"deadline": "1d"}, 1), (_LARGE | {"deadline": "60d"}, 4)])
def test_a_size_is_what_advise_says_of_its_tokens(limits, every):
    found = _solved(**limits, terms="spot")
    some = found.by_size[::every]
    assert len(some) > 3
    for each in some:
        size = each.candidate.num_accelerators
        stated = {**limits, "deadline": None, "accelerators": size}
        asked = _asked(**stated, tokens=each.amount.value, terms="spot")
        same = answer(asked, scores=None).candidate(each.candidate.id)
        assert each.candidate.time_s.value == pytest.approx(same.time_s.value, rel=1e-9)
        assert each.candidate.usd.high == pytest.approx(same.usd.high, rel=1e-9)
        assert each.candidate.model.num_samples == pytest.approx(same.model.num_samples, rel=1e-9)


def test_the_tokens_of_a_deadline_take_the_most_accelerators():
    found = _solved(deadline="4d")
    assert found.limit == "deadline"
    assert found.recommended.num_accelerators == 64
    # Twice the time, twice the tokens, but for what interruptions take more of a longer training.
    twice = _solved(deadline="8d")
    assert twice.training_budget.value == pytest.approx(2 * found.training_budget.value, rel=0.01)


def test_budget_and_deadline_together_are_both_kept():
    found = _solved(budget=3000, deadline="1d")
    for each in found.by_size:
        assert each.candidate.time_s.value <= DAY_S
        assert each.candidate.usd.value <= 3000
        assert each.candidate.feasible
    assert {each.limit for each in found.by_size} == {"budget", "deadline"}


def test_of_sizes_that_do_as_much_the_fastest_is_taken():
    found = _solved(budget=3000)
    as_good = [
        each.candidate
        for each in found.by_size
        if each.amount.value >= 0.98 * max(one.amount.value for one in found.by_size)
    ]
    assert found.recommended.time_s.value == min(each.time_s.value for each in as_good)


def test_a_size_that_ran_is_taken_over_slower_ones_that_would_do_a_little_more(mine):
    path = mine("num_accelerators,global_batch_samples,step_s,precision\n128,128,0.97,bf16\n")
    stated = {"workload": "llama31_8b", "global_batch": 128, "max_accelerators": 256, "runs": path}
    found = _solved(**stated, budget=2000)
    amounts = {each.candidate.num_accelerators: each.amount.value for each in found.by_size}
    # Sizes that nobody ran were off by 9 % in the median (docs/experiments/0024).
    assert 0.91 * max(amounts.values()) <= amounts[128] < 0.98 * max(amounts.values())
    assert found.recommended.num_accelerators == 128


def test_systems_are_ordered_by_how_far_they_get():
    asked = {"accelerator": ["a100-sxm4-80gb", "h100-sxm5-80gb"], "price": None, "deadline": "1d"}
    found = solve_for(_asked(**asked, ask="tokens"), scores=None)
    assert (found.best.system, [each.system for each in found.others]) == (
        "h100-sxm5-80gb",
        ["a100-sxm4-80gb"],
    )
    assert found.best.training_budget.value > found.others[0].training_budget.value
    alone = _solved(**asked | {"accelerator": "a100-sxm4-80gb"})
    assert alone.training_budget == found.others[0].training_budget


def test_the_largest_model_uses_the_budget_on_twenty_tokens_per_parameter(largest):
    assert largest.limit == "budget"
    assert 0.85 * 4000 < largest.recommended.usd.value <= 4000
    assert largest.training_budget.value == pytest.approx(20 * largest.params.value)
    assert largest.params.value == largest.shape.params
    # 6 FLOP per parameter and token on 2,000 accelerator-hours of 989 TFLOP/s, a third to a half of them used:
    # N = sqrt(2000 x 3600 x 989e12 x (0.33 to 0.5) / 120) is 4.4 to 5.4 billion.
    assert 3.5e9 < largest.params.value < 6.5e9
    assert largest.params.low < largest.params.value < largest.params.high


def test_fewer_accelerators_never_train_a_larger_model_by_a_deadline():
    asked = {
        "workload": "llama31_8b",
        "accelerator": "h100",
        "price": None,
        "budget": 60_000,
        "deadline": "7d",
    }
    few, many = (_solved(**asked, ask="model", max_accelerators=each) for each in (128, 512))
    assert few.params.value <= many.params.value


def test_what_both_limits_allow_lies_between_usual_sizes_too():
    """448 train a larger model than 512 in the time, and 80 on more tokens than 64 or 128 for the money."""
    asked = {"workload": "llama31_8b", "accelerator": "h100", "price": None, "max_accelerators": 512}
    model = _solved(**asked, ask="model", budget=1_000_000, deadline="30d")
    fewer = _solved(**(asked | {"max_accelerators": 448}), ask="model", budget=1_000_000, deadline="30d")
    assert fewer.params.value <= model.params.value
    tokens = _solved(**asked, ask="tokens", budget=100_000, deadline="14d")
    assert tokens.training_budget.value == max(each.amount.value for each in tokens.by_size)


def test_models_grow_as_the_root_of_the_money(largest):
    more = _solved(ask="model", max_accelerators=32, budget=16_000)
    assert more.params.value / largest.params.value == pytest.approx(2.0, rel=0.15)


def test_more_tokens_per_parameter_leave_a_smaller_model(largest):
    found = _solved(ask="model", max_accelerators=32, budget=4000, tokens_per_param=80)
    assert found.params.value == pytest.approx(largest.params.value / 2, rel=0.15)


@pytest.mark.parametrize(
    "asked", [{"budget": 59_550, "deadline": "7d"}, {"budget": 8_500, "max_accelerators": 16}]
)
def test_the_larger_model_named_breaks_the_limit_that_is_named(asked):
    question = {"price": None, "deadline": None, "max_accelerators": 256, "accelerator": "h100"} | asked
    found = _solved(**question, workload="llama31_8b", ask="model")
    assert found.limit == "budget"
    assert found.recommended.usd.value < 0.97 * asked["budget"] < found.larger.usd
    # Work grows as the square of the parameters: what was left of the budget is less than the step between both.
    grown = (found.larger.params / found.params.value) ** 2
    assert found.larger.usd / found.recommended.usd.value == pytest.approx(grown, rel=0.1)


def test_the_memory_is_the_limit_where_money_is_not():
    found = _solved(ask="model", max_accelerators=8, budget=1e12, fix={"offload": "none"})
    assert found.limit == "memory"
    # 16 bytes of state per parameter in 8 x 80 GB: 40 billion.
    assert 2e10 < found.params.value < 4.5e10


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({}, UsageError, "--budget or --deadline"),
        ({"ask": None}, UsageError, "--ask tokens or --ask model"),
        ({"budget": 9, "tokens": "1T"}, UsageError, "leave --tokens out"),
        ({"budget": 9, "samples": "1k"}, UsageError, "leave --samples out"),
        ({"budget": 9, "tokens": "1T", "ask": "model"}, UsageError, "--tokens-per-param.*--tokens"),
        ({"budget": 1e-4}, UsageError, "--budget.*one step"),
        ({"budget": 1e-4, "ask": "model"}, UsageError, "smallest model"),
        (
            {"budget": 9, "workload": "resnet50", "ask": "model", "global_batch": 256},
            EvidenceError,
            "transformer",
        ),
        (
            {"budget": 9, "workload": "llama2_70b_lora", "ask": "model", "global_batch": 8},
            EvidenceError,
            "adapters",
        ),
        ({"budget": 9, "workload": "megatron_1t"}, EvidenceError, "GPT 1008"),
        ({"budget": 9, "price": None, "accelerator": "gaudi2-oam-96gb"}, UsageError, "give --price"),
        ({"budget": 9, "price": 0, "accelerator": "tpu-v5e"}, EvidenceError, "power"),
        # Google's list, read 2026-11-21: 2.94 USD for a year (12 x 730.5 h) at least.
        (
            {"budget": 9e3, "price": None, "terms": "reserved", "accelerator": "tpu-v5p"},
            EvidenceError,
            "103,088 USD.*--budget 9,000",
        ),
        ({"budget": 100, "tokens_per_param": "nan", "ask": "model"}, UsageError, "--tokens-per-param"),
    ],
)
def test_what_cannot_be_answered_says_why(changes, error, words):
    with pytest.raises(error, match=words):
        _solved(**changes)


@pytest.mark.parametrize("power", [1.0, 1.3, 0.8])
def test_the_solver_finds_where_a_power_law_meets_its_limit(power):
    # amount = 3 factor ** power is 100 at factor = (100 / 3) ** (1 / power).
    found = most_within(100.0, lambda factor: 3.0 * factor**power, 1.0)
    assert found == pytest.approx((100 / 3) ** (1 / power), rel=1e-5)
    assert 3.0 * found**power <= 100.0


def test_the_solver_stops_below_a_jump_and_below_what_is_unknown():
    assert most_within(100.0, lambda factor: factor if factor < 50 else factor + 60, 1.0) == pytest.approx(50)
    assert most_within(100.0, lambda factor: factor if factor < 50 else math.inf, 80.0) == pytest.approx(50)
    assert most_within(100.0, lambda _: math.inf, 1.0) == 0.0


def test_a_deadline_that_is_kept_only_by_luck_ends_at_the_smallest_model():
    # 128,256 words of 512 numbers, in and out, are 131 M parameters: no model of its kind has fewer.
    asked = {
        "ask": "model",
        "workload": "llama31_8b",
        "accelerator": "b200-sxm6-180gb",
        "max_accelerators": 8,
    }
    found = _solved(**asked, deadline="10min")
    assert 1.31e8 < found.params.low <= found.params.value <= found.params.high
    with pytest.raises(UsageError, match=r"13\d M parameters"):
        _solved(**asked, deadline="2min")


@pytest.mark.parametrize("stated", [{}, {"sequence": 131_072, "global_batch": 64}, {"accelerator": "gb200"}])
def test_how_many_are_tried_does_not_depend_on_the_length_of_a_sample(stated):
    asked = {"ask": "tokens", "workload": "llama31_8b", "accelerator": "h100-sxm5-80gb", "deadline": "7d"}
    found = solve_for(query(asked | stated), scores=None).best
    most = 576 if "accelerator" in stated else 512  # of racks of 72, 8
    assert found.recommended.num_accelerators == most


def test_up_to_how_many_were_tried_is_named_unless_the_question_says_so():
    asked = {"workload": "llama31_8b", "accelerator": "h100-sxm5-80gb", "deadline": "7d", "ask": "tokens"}
    free, stated, stock = (
        solve_for(query({**asked, **each}), scores=None).chosen_for_you
        for each in ({}, {"max_accelerators": 64}, {"accelerator": "64xh100"})
    )
    assert any("512" in words and "--max-accelerators" in words for words in free)
    assert not any("--max-accelerators" in words for words in (*stated, *stock))


def test_a_model_is_not_larger_for_accelerators_that_nobody_has():
    asked = {"ask": "model", "workload": "llama31_8b", "accelerator": "h100-sxm5-80gb", "deadline": "60d"}
    found = solve_for(query(asked), scores=None)
    assert found.best.recommended.num_accelerators == 512
    assert any("512" in words and "--max-accelerators" in words for words in found.chosen_for_you)
    # 512 x 60 days x 989e12 FLOP/s at the MFU of whole pretrainings, a third: 120 n**2 FLOP
    assert found.best.params.value == pytest.approx((512 * 60 * 86_400 * 989e12 / 3 / 120) ** 0.5, rel=0.3)


@pytest.mark.parametrize("ask", ["tokens", "model"])
def test_as_many_are_tried_as_the_budget_pays_for_through_the_whole_deadline(ask):
    # 1 M USD at 2 USD per hour pay for 1,041 accelerators through 20 days: of 1,024 the deadline ends it, and
    # of more the budget, so that a limit beyond them finds no more than none does.
    asked = {
        "ask": ask,
        "workload": "llama31_8b",
        "max_accelerators": None,
        "budget": "1M",
        "deadline": "20d",
    }
    free, limited = (
        solve_for(_asked(**asked | most), scores=None) for most in ({}, {"max_accelerators": 4096})
    )
    assert free.best.size.value >= 0.98 * limited.best.size.value
    assert 1024 <= free.best.recommended.num_accelerators <= 2048
    assert not any("--max-accelerators" in words for words in free.chosen_for_you)
    alone = solve_for(_asked(**asked | {"deadline": None}), scores=None).best
    assert alone.recommended.num_accelerators <= 512


def test_a_lower_limit_of_size_allows_no_larger_model():
    # Layers of these widths are 3.5 % of such a model: the next smaller one is not as good.
    asked = {
        "ask": "model",
        "workload": "llama31_8b",
        "accelerator": "h100",
        "budget": "10k",
        "deadline": "7d",
    }
    free, limited = (
        solve_for(query(asked | most), scores=None).best for most in ({}, {"max_accelerators": 64})
    )
    assert free.size.value >= 0.98 * limited.size.value


def test_images_are_what_a_budget_allows_of_vision():
    # 224 x 224 pixels in patches of 16, and a class token: 197 tokens that nobody counts
    found = _solved(workload="vit_large", budget=100)
    assert (found.unit, found.workload.samples) == ("samples", "images")
    size = found.recommended.num_accelerators
    back = answer(_asked(workload="vit_large", samples=found.size.value, accelerators=size), scores=None)
    same = next(each for each in back.candidates if each.id == found.recommended.id)
    assert same.usd.value == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    "asked",
    [
        {
            "workload": "llama31_8b",
            "accelerator": "gb200",
            "train": "lora",
            "sequence": 1024,
            "deadline": "2d",
        },
        {"workload": "llama3_70b", "accelerator": "l40s", "budget": 30_000},
    ],
    ids=lambda asked: asked["workload"],
)
def test_no_size_that_is_stated_trains_on_more(asked):
    # 216 of GB200, and 112 and 216 of L40S, share out batches that usual sizes beside them do not.
    free, stated = (
        solve_for(query({"ask": "tokens"} | asked | sizes), scores=None).best
        for sizes in ({}, {"accelerators": "112,216,504"})
    )
    assert free.size.value >= 0.98 * stated.size.value  # up to so much less counts as alike


def test_no_size_is_named_that_shares_out_no_batch_of_its_tokens():
    # 648 of GB200 are 81 times eight: of 160 samples, usual for 400 G tokens, they take 162, of 128 for 250 G none.
    limits = {"workload": "llama32_1b", "accelerator": "gb200", "deadline": "5h", "max_accelerators": 1000}
    found = solve_for(query({"ask": "tokens"} | limits), scores=None).best
    back = answer(query(limits | {"tokens": found.size.value}), scores=None)
    assert back.recommended is not None
    assert back.recommended.num_accelerators == found.recommended.num_accelerators
