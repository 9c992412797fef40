"""Laws of the real core: more freedom changes no other candidate, and a flip is where the answer changes."""

import math

import pytest
from asking import (
    A100,
    B200,
    H100,
    H200,
    KINDS,
    LORA,
    MI300X,
    PRETRAINING,
    RTX,
    SIBLING,
    SMALL,
    ask,
    by_size,
    paid_usd,
    published_scores,
)

from equipoise.decide.answer import Candidate
from equipoise.intervals import Interval
from equipoise.report.format import wins_when
from equipoise.report.json import answer_fields
from equipoise.spec.mlperf import Scores
from equipoise.units import HOUR_S

pytestmark = pytest.mark.law

BERT = {"workload": "bert", "accelerator": [A100]}
# Of samples that few numbers share out: 96 or 160 accelerators train faster than 128.
ELECTRA = {"workload": "electra", "tokens": "10G", "accelerator": ["rtx-pro-6000-pcie-96gb"]}
TORCHVISION = {"workload": "maskrcnn", "accelerator": ["v100-sxm3-32gb"]}
# Arrays of other lengths are summed in another order, no more.
EQUAL = 1e-9
AMOUNTS = (
    "work_s", "time_s", "step_s", "goodput", "usd", "energy_j", "carbon_kg", "speedup", "mfu",
    "tokens_per_s_per_accelerator", "num_samples", "num_steps", "power_w", "disagreement",
)  # fmt: skip
FACTS = (
    "strategy", "global_batch_samples", "price", "num_nodes", "published", "grade", "why_not", "memory",
    "mfu_precision", "order_bound",
)  # fmt: skip


def numbers(amount):
    if isinstance(amount, Interval):
        return [amount.value, amount.low, amount.high]
    return [amount]


def assert_same_candidates(one, other):
    """Whatever both answers hold is the same in both, but for the limits themselves."""
    known = {each.id: each for each in other.candidates}
    shared = [(each, known[each.id]) for each in one.candidates if each.id in known]
    assert shared
    for first, second in shared:
        for name in AMOUNTS:
            ours, theirs = (getattr(each, name) for each in (first, second))
            assert (ours is None) == (theirs is None), (first.id, name)
            if ours is not None:
                assert numbers(ours) == pytest.approx(numbers(theirs), rel=EQUAL), (first.id, name)
        for name in FACTS:
            assert getattr(first, name) == getattr(second, name), (first.id, name)


FREEDOMS = [
    (LORA, {"max_accelerators": 64}, {"max_accelerators": 512}),
    (LORA, {"max_accelerators": 64}, {"max_accelerators": 100}),
    (LORA, {"deadline": "5min"}, {"deadline": "7d"}),
    (LORA, {"accelerators": "16..64"}, {"accelerators": "16..256"}),
    (LORA, {}, {"accelerator": [H200, B200, H100]}),
    (BERT, {"max_accelerators": 24}, {"max_accelerators": 4096}),
    (PRETRAINING, {}, {"accelerator": [H100, H200, MI300X]}),
    (PRETRAINING, {"max_accelerators": 300}, {"max_accelerators": 1024}),
    (PRETRAINING, {"deadline": "1d", "budget": "60k"}, {"deadline": "30d", "budget": "600k"}),
    (PRETRAINING, {"terms": "spot"}, {"terms": "spot,on_demand"}),
    (SIBLING, {}, {"max_accelerators": 512}),
    (SIBLING, {}, {"accelerator": ["h200-nvl-141gb", H200]}),
    (SMALL, {"max_accelerators": 5}, {"max_accelerators": 16}),
    (ELECTRA, {"max_accelerators": 100}, {"max_accelerators": 200}),
    (ELECTRA, {"max_accelerators": 160}, {"max_accelerators": 500}),
    (ELECTRA, {"max_accelerators": 100, "deadline": "50min"}, {"max_accelerators": 200, "deadline": "50min"}),
    (ELECTRA, {"accelerators": "16..96"}, {"accelerators": "16..150"}),
    (TORCHVISION, {"max_accelerators": 200}, {"max_accelerators": 300}),
    (SMALL, {"objective": "cost"}, {"objective": "time"}),
]


@pytest.mark.parametrize(("question", "less", "more"), FREEDOMS, ids=str)
def test_more_freedom_changes_no_other_candidate(question, less, more):
    assert_same_candidates(ask(question, **less), ask(question, **more))


@pytest.mark.parametrize("objective", ["time", "cost", "energy"])
@pytest.mark.parametrize(("question", "less", "more"), FREEDOMS[:-1], ids=str)
def test_more_freedom_never_makes_the_objective_worse(question, less, more, objective):
    before, after = (ask({**question, "objective": objective}, **limits) for limits in (less, more))
    field = {"time": "time_s", "cost": "usd", "energy": "energy_j"}[objective]
    if before.recommended is None:
        return
    assert after.recommended is not None
    ours, theirs = (getattr(each.recommended, field) for each in (before, after))
    if ours is not None:
        assert theirs.value <= ours.value * (1 + EQUAL)


# Deadlines that no usual number of one of the systems keeps, though more of it would for less money.
BEYOND_USUAL = [
    ({"workload": "llama31_405b", "deadline": "22min"}, ["b200-sxm-180gb", H100]),
    ({"workload": "llama31_405b", "deadline": "30min"}, ["mi300x", "mi355x"]),
    ({"workload": "llama31_8b", "tokens": "1T", "deadline": "2d"}, ["b200-sxm-180gb", "mi300x"]),
]


@pytest.mark.parametrize(("question", "systems"), BEYOND_USUAL, ids=str)
def test_a_system_beside_others_is_tried_up_to_as_many_as_alone(question, systems):
    together = ask(question, accelerator=systems, objective="cost").recommended
    alone = [ask(question, accelerator=[each], objective="cost").recommended for each in systems]
    least_usd = min(each.usd.value for each in alone if each is not None)
    assert together.usd.value <= least_usd * (1 + 1e-9)


ADAPTERS = {"workload": "gpt_oss_20b", "train": "lora", "examples": "5k", "sequence": 1024}


@pytest.mark.parametrize(
    ("size", "stated"),
    [
        (5, {"global_batch": 60}),  # as 65, each of five takes 13 samples one by one
        (7, {"global_batch": 70}),
        (8, {"fix": "dp_replicate=2"}),
        (12, {"fix": "dp_replicate=3"}),  # groups of four in hosts of eight
    ],
    ids=str,
)
def test_what_is_chosen_is_no_slower_than_what_could_be_stated(size, stated):
    question = {**ADAPTERS, "accelerator": ["rtx5090"], "node_size": 8, "accelerators": str(size)}
    free, restricted = ask(question).recommended, ask(question, **stated).recommended
    assert free.time_s.value <= restricted.time_s.value * (1 + EQUAL)


def counted(found):
    """What the objective of a question counts of what is recommended: money with the time, else time."""
    usd_per_hour = found.question.value_of_time_usd_per_hour
    best = found.recommended
    return best.time_s.value if usd_per_hour is None else paid_usd(found, best, usd_per_hour)


@pytest.mark.parametrize("systems", [[H100], [H100, B200]], ids=str)
@pytest.mark.parametrize(
    "asked",
    [{"value_of_time": 5000.0}, {"objective": "time", "budget": "300k"}, {"objective": "time"}],
    ids=str,
)
def test_where_no_number_is_stated_none_that_could_be_is_better(systems, asked):
    """512 were taken, the largest tried, though an hour was worth far more than what a larger size costs."""
    question = {"workload": "llama31_8b", "tokens": "1T", "accelerator": systems, **asked}
    free = counted(ask(question))
    for most in (1024, 2560, 3072, 8192):
        assert free <= counted(ask(question, max_accelerators=most)) * (1 + EQUAL)


@pytest.mark.parametrize("limits", [{"deadline": "7d", "budget": "130k"}, {"deadline": "7d"}, {}], ids=str)
def test_nothing_that_is_shown_beats_the_choice_in_time_and_money(limits):
    """1,024 MI300X, more than are usually tried, were shown as faster and cheaper than what was recommended."""
    systems = ["mi300x", "b200-sxm-180gb", H200, H100]
    found = ask({"workload": "llama31_8b", "tokens": "1T", "accelerator": systems}, **limits)
    best = found.recommended
    kept = [
        each
        for each in found.candidates
        if each.time_s is not None and {one.name for one in each.broken} <= {"max_accelerators"}
    ]
    assert len(kept) > len(systems)
    better = [
        each.id for each in kept if each.time_s.value < best.time_s.value and each.usd.value < best.usd.value
    ]
    assert better == []


def test_without_a_limit_in_the_question_none_is_offered():
    # Of so many pods as anyone is taken to have none takes so little, nor would twice as many.
    found = ask({"workload": "gpt3", "deadline": "1min"}, accelerator=["tpu-v5p"], objective="cost")
    assert found.recommended is None
    assert {each.constraint for each in found.refusal.relaxations} == {"deadline_s"}


def test_far_beyond_all_results_a_size_on_which_nothing_runs_has_no_time():
    # BERT's 24 layers, 16 heads and hidden size of 1,024 share themselves out among no 100,000 = 2**5 * 5**5.
    found = ask({"workload": "bert", "accelerator": [H100]}, accelerators="100000")
    assert found.recommended is None


@pytest.mark.parametrize("restriction", [{"fix": "zero_stage=1"}, {"precision": "bf16"}], ids=str)
def test_what_would_be_chosen_anyway_takes_no_less_time_where_it_is_stated(restriction):
    question = {"workload": "flux1", "accelerator": ["b200-sxm-180gb"], "accelerators": "512"}
    free, stated = ask(question).recommended, ask(question, **restriction).recommended
    assert stated.time_s.value >= free.time_s.value * (1 - EQUAL)


def test_slow_results_are_named_where_no_other_system_is_compared():
    # One result, with software of its own: 112 minutes on 8; other systems took 2 to 5.
    found = ask({"workload": "bert", "accelerator": ["mi300x"]})
    assert len(found.notes_of("check")) == 1


@pytest.mark.parametrize("most", [6, 2])
def test_slow_results_of_one_of_two_cards_are_named_whatever_may_be_taken(most):
    # All results of this card are of one submitter with software of its own, on six: 122 minutes at best.
    found = ask({"workload": "resnet50", "accelerator": ["rtx3090", "rtx4090"]}, max_accelerators=most)
    assert any("4090" in each.words and "3090" in each.words for each in found.notes_of("check"))


@pytest.mark.parametrize(("most", "expected"), [(1, {2}), (2, {2, 4}), (3, {2, 3, 4}), (96, {96, 128})])
def test_beyond_a_limit_the_next_usual_size_is_shown(most, expected):
    asked = SMALL | {"global_batch": 96, "max_accelerators": most}
    assert expected <= {each.num_accelerators for each in ask(asked).candidates}
    assert max(each.num_accelerators for each in ask(asked).candidates) == max(expected)


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_a_refusal_for_time_names_the_fewest_accelerators_that_would_do(share):
    asked = SMALL | {"global_batch": 128, "accelerator": [H100]}
    slowest = ask(asked, objective="time").recommended
    refused = ask(asked, deadline=f"{share * slowest.time_s.value}s")
    assert refused.recommended is None
    (step,) = [each for each in refused.refusal.relaxations if each.constraint == "max_accelerators"]
    assert step.limit == asked["max_accelerators"]
    granted = ask(asked, deadline=f"{share * slowest.time_s.value}s", max_accelerators=int(step.needed))
    assert granted.recommended.num_accelerators == step.needed
    named = refused.candidate(step.candidate)
    assert numbers(named.time_s) == pytest.approx(numbers(granted.recommended.time_s), rel=EQUAL)
    fewer = ask(
        asked, deadline=f"{share * slowest.time_s.value}s", max_accelerators=math.ceil(step.needed / 2)
    )
    assert fewer.recommended is None


@pytest.mark.parametrize(("workload", "batch"), [("gpt3", 768), ("llama31_405b", 1000)])
def test_a_limit_below_all_results_carries_times_from_the_same(workload, batch):
    # The fewest H100 that trained GPT-3 were 256, at other batches: 64 are carried from there, whatever is tried.
    asked = {"workload": workload, "global_batch": batch, "accelerator": [H100]}
    few, many = (by_size(ask(asked, max_accelerators=most)) for most in (64, 2048))
    shared = sorted(few.keys() & many.keys())
    assert shared
    for size in shared:
        assert few[size].time_s.value == pytest.approx(many[size].time_s.value), size
        assert few[size].time_s.high == pytest.approx(many[size].time_s.high), size


@pytest.mark.parametrize(("most", "largest"), [(96, 96), (100, 96), (128, 128)])
def test_a_limit_whose_double_shares_out_no_batch_is_still_the_questions(most, largest):
    # 512 samples on 2 x 100 accelerators: 25 divides neither them nor the model.
    found = ask(
        {"workload": "llama31_8b", "tokens": "5B", "global_batch": 512, "accelerator": [MI300X]},
        max_accelerators=most,
    )
    assert found.recommended.num_accelerators == largest
    assert found.limited_by == "question"


@pytest.mark.parametrize("size", [2, 4])
def test_steps_beyond_a_single_size_are_judged_up_to_the_largest_shown(size):
    found = ask(SMALL, accelerators=str(size), max_accelerators=None, node_size=2)
    shown = [each.num_accelerators for each in found.candidates]
    assert shown == [size, 2 * size, 4 * size, 8 * size]
    ended = [each for each in found.equilibria if each.limited_by is not None]
    assert ended  # every step pays on so few
    assert {each.num_accelerators for each in ended} == {shown[-1]}


def test_a_speedup_is_known_whatever_the_limit():
    one, more = (
        {each.num_accelerators: each.speedup for each in ask(SMALL | {"max_accelerators": most}).candidates}
        for most in (1, 8)
    )
    assert one[2] is not None
    assert numbers(one[2]) == pytest.approx(numbers(more[2]), rel=EQUAL)


def test_mfu_is_over_the_peak_of_the_precision_that_was_run():
    # H100 SXM: 989.4 TFLOP/s dense in bf16, twice that in fp8; 6 x 8.03e9 FLOP per token and attention.
    found = {}
    for precision, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12)):
        best = ask(PRETRAINING, precision=precision, accelerators="64", max_accelerators=None).recommended
        assert best.mfu_precision == precision
        found[precision] = best.mfu * peak * 64 * best.step_s.value / best.global_batch_samples
    assert found["bf16"] == pytest.approx(found["fp8"], rel=1e-3)


def test_times_of_published_results_have_no_mfu():
    found = ask(LORA)
    assert found.candidates
    for each in found.candidates:
        assert (each.mfu is None) == (each.mfu_precision is None) == (each.grade in {"published", "carried"})


def test_what_a_system_has_does_not_depend_on_the_order_of_systems():
    names = [H100, RTX, H200]
    one, other = (ask(PRETRAINING, accelerator=order) for order in (names, names[::-1]))
    assert_same_candidates(one, other)
    assert one.recommended.id == other.recommended.id
    assert {each.id for each in one.candidates} == {each.id for each in other.candidates}


# What would change the answer.

FLIPPING = [
    {**LORA, "accelerator": [H200, B200], "objective": "cost", "deadline": "20min"},
    {**LORA, "accelerator": [H200, B200, H100], "value_of_time": 30},
    {**PRETRAINING, "accelerator": [H100, H200, B200, MI300X], "deadline": "7d"},
    {**PRETRAINING, "accelerator": [H100, B200], "objective": "time", "budget": "200k"},
    {**SMALL, "accelerator": [RTX, A100], "objective": "cost"},
    # 2,496 are tried because 2,304 are nearly best; where 1,280 are, they are not.
    {"workload": "mpt_30b", "tokens": "20B", "accelerator": ["l40s-pcie-48gb"], "value_of_time": 500},
]
SHORT_OF = 1e-3


def asked_with(question, flip, value, found):
    """The question with one input at another value, as a user would ask it."""
    if flip.quantity.startswith("price of "):
        known = {each.system: each.price.usd_per_accelerator_hour for each in found.candidates}
        moved = known | {flip.quantity.removeprefix("price of "): value}
        return {**question, "price": moved}
    name, unit = {
        "deadline": ("deadline", HOUR_S),
        "budget": ("budget", 1.0),
        "value of an hour": ("value_of_time", 1.0),
        "accelerators allowed": ("max_accelerators", 1.0),
    }[flip.quantity]
    if name == "max_accelerators":
        return {**question, name: math.floor(value)}
    return {**question, name: value / unit}


@pytest.mark.parametrize("question", FLIPPING, ids=str)
def test_a_flip_is_where_the_choice_changes_and_not_before(question):
    found = ask(question)
    best = found.recommended.id
    askable = [each for each in found.flips if not each.quantity.startswith(("MFU", "time on"))]
    assert askable
    for flip in askable:
        step = math.copysign(SHORT_OF, flip.flips_at - flip.value)
        beyond, short = flip.flips_at * (1 + step), flip.flips_at * (1 - step)
        # Between value and flip, not past the value itself.
        short = short if abs(flip.flips_at / flip.value - 1) > 2 * SHORT_OF else flip.value
        if flip.unit == "accelerators":  # of the sizes tried: up to a limit between them, others are
            short = flip.value
        assert ask(asked_with(question, flip, short, found)).recommended.id == best, flip
        changed = ask(asked_with(question, flip, beyond, found)).recommended
        assert changed is None or changed.id != best, flip
        assert flip.to in {each.id for each in found.candidates}


def test_every_price_that_is_said_to_win_does_where_it_is_asked_again():
    question = {**PRETRAINING, "accelerator": [H100, B200], "deadline": "7d"}
    found = ask(question)
    (said,) = [each.high for each in found.alternatives if each.case == "price"]
    (flip,) = [each for each in found.flips if each.quantity == f"price of {H100}"]
    assert said == pytest.approx(flip.flips_at, rel=0.005)
    best = found.recommended.id
    assert ask(question, price={H100: 0.99 * said}).recommended.id == flip.to
    assert ask(question, price={H100: 1.01 * said}).recommended.id == best


@pytest.mark.parametrize("usd_per_hour", [1.0, 2.4, 2.6, 2.7, 3.5])
def test_the_first_offer_is_the_one_recommended_and_the_next_what_is_taken_without_it(usd_per_hour):
    # Where a smaller size of a system beats another's in time and money, the cheaper of both is not taken.
    question = {**PRETRAINING, "deadline": "7d"}
    prices = {H100: {"price": {H100: usd_per_hour}}, B200: {}}
    found = ask({**question, **prices[H100], "accelerator": [H100, B200]})
    assert [each.candidate for each in found.offers][:1] == [found.recommended.id]
    (other,) = {H100, B200} - {found.recommended.system}
    assert (
        ask({**question, **prices[other], "accelerator": [other]}).recommended.id == found.offers[1].candidate
    )


def test_flips_come_nearest_first_and_lie_within_a_factor_of_ten():
    for question in FLIPPING:
        factors = [abs(math.log(each.flips_at / each.value)) for each in ask(question).flips]
        assert factors == pytest.approx(sorted(factors), abs=1e-6)  # to six digits, as they are ordered
        assert all(0.0 < each <= math.log(10.0) * (1 + EQUAL) for each in factors)


@pytest.mark.parametrize("name", ["max_accelerators", "accelerators"])
def test_a_limit_of_size_flips_at_the_fewest_accelerators_that_are_taken_instead(name):
    found = ask(PRETRAINING, accelerator=[H100], **{name: 64})
    (flip,) = [each for each in found.flips if each.unit == "accelerators"]
    assert (found.recommended.num_accelerators, flip.value) == (64, 64)
    taken = ask(PRETRAINING, accelerator=[H100], max_accelerators=int(flip.flips_at)).recommended
    assert taken.num_accelerators == flip.flips_at
    assert taken.id == flip.to
    short = ask(PRETRAINING, accelerator=[H100], max_accelerators=int(flip.flips_at) - 1).recommended
    assert short.num_accelerators < flip.flips_at
    assert {each.case for each in found.alternatives if each.candidate.id == flip.to} == {"size"}


def test_a_limit_of_size_that_binds_nothing_flips_nothing():
    found = ask(PRETRAINING, accelerator=[H100], objective="cost", max_accelerators=64)
    assert found.recommended.num_accelerators < 64
    assert "accelerators" not in {each.unit for each in found.flips}


def test_no_flip_is_at_more_flop_than_the_peak():
    # Ten times as fast, one card is enough: starting is then what takes longest. At 76 % MFU that is 750 %.
    cards = {"accelerator": ["4x rtx-3090-pcie-24gb"], "objective": "cost", "epochs": 90, "examples": 1.28e6}
    found = ask({"workload": "vit_large", **cards})
    assert found.recommended.mfu > 0.1
    assert max((each.flips_at for each in found.flips if each.quantity.startswith("MFU")), default=0.0) <= 1.0


def test_every_field_of_a_candidate_is_compared_or_derived():
    derived = {"system", "title", "accelerator", "num_accelerators", "terms", "constraints", "estimates", "model",
               "user_run", "interrupted", "electricity_usd", "charges", "is_between"}  # fmt: skip
    assert {*AMOUNTS, *FACTS, *derived} == set(Candidate.__struct_fields__)


@pytest.mark.parametrize("question", KINDS.values(), ids=KINDS)
def test_alternatives_win_where_they_are_said_to(question):
    found = ask(question)
    assert len(found.alternatives) <= 4
    for each in found.alternatives:
        assert each.candidate.id != found.recommended.id
        assert wins_when(each)


@pytest.mark.parametrize(
    "choice",
    [
        {"deadline": "3h", "budget": 900},
        {"objective": "cost", "price": ["2.5"], "region": "world"},
        {"terms": ["spot"], "on_reclaim": "shrink", "electricity": 0.3},
        {"max_accelerators": 16, "value_of_time": 400},
    ],
    ids=lambda choice: next(iter(choice)),
)
def test_an_answer_does_not_depend_on_what_was_asked_before_it(choice):
    """Results of their own share nothing that is kept of an earlier question."""
    ask(LORA)
    after, alone = ask(LORA, **choice), ask(LORA, scores=Scores(published_scores().entries), **choice)
    assert after.question.deadline_s == alone.question.deadline_s
    assert _told(after) == _told(alone)


def _told(found):
    """An answer as its file has it, but for how long the search took."""
    told = answer_fields(found)
    times = [each.pop("search_s", None) for each in (told, *told["systems"])]
    assert times
    return told


# Seen to break laws 2 and 3.


def test_fewer_tokens_never_take_longer_or_cost_more():
    asked = {"workload": "llama31_8b", "accelerator": "h100", "max_accelerators": 512, "objective": "time"}
    found = [ask(asked, tokens=tokens).recommended for tokens in (3e9, 10e9, 20e9, 27e9, 30e9, 50e9, 100e9)]
    times_s = [each.time_s.value for each in found]
    assert times_s == sorted(times_s)
    costs_usd = [
        ask(asked, tokens=tokens, objective="cost", deadline="20h").recommended.usd.value
        for tokens in (10e9, 27e9, 30e9, 100e9)
    ]
    assert costs_usd == sorted(costs_usd)


def test_the_least_money_is_no_more_where_more_accelerators_are_allowed():
    asked = {"workload": "bert", "accelerator": "b200", "objective": "cost"}
    least_usd = [ask(asked, max_accelerators=most).recommended.usd.value for most in (8, 16, 64, 512)]
    assert least_usd[0] >= least_usd[-1]
    assert least_usd == sorted(least_usd, reverse=True)
    # What only the fewest can pay is found among more, too.
    assert ask(asked, objective="balance", max_accelerators=16, budget=2.5).recommended is not None


@pytest.mark.parametrize(
    "asked",
    [
        {"workload": "vit_large", "samples": 5e7, "accelerator": ["h200", "tpu-v6e"], "max_accelerators": 64},
        {
            "workload": "qwen3_8b",
            "train": "lora",
            "examples": 2e4,
            "accelerator": ["h100", "rtx5090"],
            "max_accelerators": 8,
        },
    ],
    ids=["images", "adapters"],
)
def test_no_other_system_shown_is_both_faster_and_cheaper(asked):
    found = ask(asked)
    best, offers = found.recommended, [found.candidate(each.candidate) for each in found.offers]
    assert len(offers) == 2
    assert not [
        each.id
        for each in offers
        if each.time_s.value < best.time_s.value and each.usd.value < best.usd.value
    ]


def test_a_second_measured_size_leaves_no_less_to_choose_from(tmp_path):
    # Twice the accelerators, 1.98 times as fast: nothing that speaks against more of them.
    header = "workload,accelerator,num_accelerators,global_batch_samples,sequence_tokens,step_s,precision\n"
    rows = [f"llama31_8b,h100,{size},64,8192,{step_s},bf16\n" for size, step_s in ((8, 5.0), (16, 2.52))]
    found = []
    for count in (1, 2):
        (tmp_path / "runs.csv").write_text(header + "".join(rows[:count]))
        asked = {"workload": "llama31_8b", "tokens": 1e11, "accelerator": "h100", "max_accelerators": 128}
        found.append(ask(asked, runs=tmp_path / "runs.csv").recommended.num_accelerators)
    assert found == [128, 128]


@pytest.mark.parametrize(
    ("workload", "accelerator", "most"),
    [("qwen3_8b", "a100", 1), ("llama3_70b", "h100", 8), ("llama32_1b", "rtx4090", 1)],
)
def test_states_go_to_the_host_where_nothing_fits_without(workload, accelerator, most):
    """16 bytes a parameter are more than there is; 4, and 12 on the host, are less."""
    asked = {"workload": workload, "train": "full", "examples": 1e4, "accelerator": accelerator}
    best = ask(asked, max_accelerators=most).recommended
    assert (best.num_accelerators, best.strategy.offload) == (most, "optimizer")
    assert ask(asked, max_accelerators=most, fix={"offload": "none"}).recommended is None


# Efficiency falls below one half at a size that is only 1.5 times as fast as half of it; those between them
# cost the same as one of the two.
L40S_8B = {"workload": "llama31_8b", "tokens": "3B", "accelerator": ["l40s"]}
QWEN = {"workload": "qwen3_1_7b", "tokens": "40B", "accelerator": [H100]}


@pytest.mark.parametrize(
    ("question", "limits"),
    [(QWEN, (256, 296, 300, 320, 350, 384, 450)), (L40S_8B, (64, 72, 96)), (L40S_8B, (128, 160, 192))],
    ids=str,
)
def test_a_looser_limit_that_is_no_usual_size_leaves_nothing_slower(question, limits):
    times = [ask(question, max_accelerators=each).recommended.time_s.value for each in limits]
    assert times == sorted(times, reverse=True)


# 17 nodes of 24 share out a batch of 1,224, three samples each, and 18 one of 864 or 1,296; 22 nodes of 8, and 13 of
# 24, likewise more than the next that are doublings of three, five or seven nodes.
SHARED_OUT = {"workload": "qwen3_30b_a3b", "tokens": 1e11, "accelerator": [H100]}


@pytest.mark.parametrize(
    ("question", "node_size", "limits", "usd_per_hour"),
    [
        (SHARED_OUT, 24, (384, 408, 432), math.inf),
        (SHARED_OUT, 8, (160, 176, 184), 500.0),
        (PRETRAINING, 24, (288, 312, 336), 500.0),
    ],
    ids=["time", "an hour", "an hour, nodes of 24"],
)
def test_a_looser_limit_finds_what_the_end_of_a_lower_one_did(question, node_size, limits, usd_per_hour):
    goal = {"objective": "time"}
    if math.isfinite(usd_per_hour):
        goal = {"objective": "value_of_time", "value_of_time": usd_per_hour}
    found = [ask(question, **goal, node_size=node_size, max_accelerators=most).recommended for most in limits]
    hours = [each.time_s.value / HOUR_S for each in found]
    worth = (
        hours
        if usd_per_hour == math.inf
        else [each.usd.value + usd_per_hour * hour for each, hour in zip(found, hours, strict=True)]
    )
    assert worth == sorted(worth, reverse=True)


def test_the_least_energy_within_a_deadline_is_no_more_than_that_of_a_size_that_is_stated():
    # 400 nodes share out 800 samples on stages of five; of 384 and 448 no stages and batch go together as well.
    asked = {"workload": "llama3_70b", "tokens": 2e12, "accelerator": [H100], "deadline": "10d"}
    stated = ask(asked, objective="energy", accelerators=3200).recommended
    free = ask(asked, objective="energy", max_accelerators=4096).recommended
    assert free.energy_j.value <= stated.energy_j.value * (1 + EQUAL)


def test_beyond_a_limit_nodes_are_as_whole_as_within_it():
    # 5,120 would be 64 of the 72 in each of 80 nodes, as where a batch that 72 share out badly is stated.
    asked = {"workload": "llama3_70b", "tokens": 2e12, "accelerator": ["gb200"], "deadline": "3d"}
    refused = ask(asked, max_accelerators=1152)
    (step,) = [each for each in refused.refusal.relaxations if each.constraint == "max_accelerators"]
    assert step.needed % 72 == 0
    assert ask(asked, max_accelerators=int(step.needed)).recommended.num_accelerators == step.needed


@pytest.mark.parametrize("limit", [{"deadline": f"{hours}h"} for hours in (4, 5, 6, 7, 9)], ids=str)
def test_nothing_within_a_limit_is_faster_for_the_same_money(limit):
    found = ask(L40S_8B, **limit)
    best = found.recommended
    faster = [each for each in found.candidates if each.time_s.value < best.time_s.value and each.feasible]
    assert faster
    assert min(each.usd.value for each in faster) > 1.005 * best.usd.value


@pytest.mark.parametrize(("accelerator", "size"), [(H100, 2560), (MI300X, 5120)])
def test_no_deadline_finds_less_money_times_time_just_beyond_one_sample_a_rank(accelerator, size):
    # 4,096 have a sample of the usual 512 for each rank and stage; 2,560 and 5,120 have it of 640, within a
    # quarter of 512.
    asked = {**PRETRAINING, "max_accelerators": 10_000_000, "accelerator": [accelerator]}
    free = ask(asked).recommended
    limited = ask(asked, deadline=f"{0.97 * 1.25 * free.time_s.value}s").recommended
    assert free.usd.value * free.time_s.value <= limited.usd.value * limited.time_s.value * (1 + EQUAL)
    assert (free.num_accelerators, free.strategy.global_batch_samples) == (size, 640)
    assert free.strategy.dp * free.strategy.pp >= 640


# Trainings with published results of one size on a chip, whose batch is not what the model would choose.
ONE_SIZE = {
    "unet3d": ("a30-pcie-24gb", 8),
    "llama2_70b_lora": ("mi350x-oam-288gb", 8),
    "bert": ("l4-pcie-24gb", 6),
}


@pytest.mark.parametrize(("workload", "published"), ONE_SIZE.items(), ids=ONE_SIZE)
def test_sizes_about_a_result_take_as_much_longer_or_shorter_as_sizes_do(workload, published):
    # A result of M says of other sizes N what sizes change: fewer are slower, and more are faster by no more
    # than a little beyond N / M, as memory for longer micro-batches may bring.
    chip, size = published
    found = by_size(ask(workload=workload, accelerator=[chip]))
    result_s = min(each.score_s for each in published_scores().of(workload) if each.accelerator == chip)
    assert found[size].time_s.value == pytest.approx(result_s, rel=0.01)
    ratios = {each: found[each].time_s.value / result_s for each in found if size / 4 <= each <= 4 * size}
    fewer = [ratio for each, ratio in ratios.items() if each < size]
    more = [ratio for each, ratio in ratios.items() if each > size]
    assert min(fewer) > 1.0 > max(more)
    assert min(ratio * each / size for each, ratio in ratios.items()) > 0.8


def test_one_part_in_nine_fewer_of_a_rack_take_as_much_longer_as_published_ones_do():
    # Of GB200 in v5.0 64 took 111.5 s, a sample for each eight, and 72, of nine samples, 95.9 s; of GB300 72 took 73.4.
    found = by_size(ask(workload="llama2_70b_lora", accelerator=["gb300"], max_accelerators=128))
    assert found[72].time_s.value == pytest.approx(73.4, rel=0.01)
    assert 1.0 < found[64].time_s.value / found[72].time_s.value < 1.2 * 111.5 / 95.9


def test_one_host_of_cards_takes_one_time_however_it_is_asked_about():
    asked = {
        "number": {"accelerator": [RTX], "accelerators": "5"},
        "limit": {"accelerator": [RTX], "max_accelerators": 5},
        "host": {"accelerator": ["5x rtx-4090-pcie-24gb"]},
        "larger host": {"accelerator": ["7x rtx-4090-pcie-24gb"]},
    }
    times_s = {words: by_size(ask(workload="bert", **each))[5].time_s.value for words, each in asked.items()}
    assert times_s == pytest.approx(dict.fromkeys(asked, times_s["number"]), rel=EQUAL)
    # The submitted host of six keeps the batch of its result.
    six = by_size(ask(workload="bert", accelerator=["6x rtx-4090-pcie-24gb"]))[6]
    assert six.strategy.global_batch_samples == 96


@pytest.mark.parametrize("accelerator", [H100, B200])
def test_a_size_takes_as_long_alone_as_beside_others(accelerator):
    # Mask R-CNN's results on H100 are on 64 and, nearest to 272 but too many for the model's batches, on 384.
    asked = {"workload": "maskrcnn", "accelerator": [accelerator]}
    alone, beside = (by_size(ask(asked, accelerators=sizes))[272] for sizes in ("272", "64,256,272"))
    assert alone.time_s.value == pytest.approx(beside.time_s.value, rel=EQUAL)


def test_a_deadline_is_kept_by_a_size_between_usual_ones_where_larger_ones_miss_it():
    # 576 and 2,560 share out batches that give each rank more than one sample; 512, 1,024 and 2,048 miss both.
    asked = {"workload": "gpt2_xl", "tokens": 3e12, "accelerator": [B200], "deadline": "44h"}
    stated = ask(asked, accelerators="512,576,1024,2048")
    missing = {each.num_accelerators for each in stated.candidates if not each.feasible}
    assert {512, 1024, 2048} <= missing
    free = ask(asked).recommended
    assert free is not None
    assert free.num_accelerators <= stated.recommended.num_accelerators == 576


def test_a_deadline_of_its_own_time_leaves_the_least_time_as_it_is():
    # Law 3, where the fastest size lies far beyond the usual ones, none of which keeps the deadline.
    asked = {
        "workload": "nemotron_h_8b",
        "tokens": "100G",
        "accelerator": ["v100-sxm2-16gb"],
        "objective": "time",
    }
    fastest = ask(asked).recommended
    again = ask(asked, deadline=f"{1.0001 * fastest.time_s.value}s").recommended
    assert again is not None
    assert again.id == fastest.id
