"""The laws themselves: documents made by hand that obey all of them, and one that breaks each."""

import copy
import json

import laws
import pytest

LEVEL = 0.9
PRICE = {"red": 2.0, "blue": 3.0}
# Seconds of the whole work by size; red pays up to 32, and blue, faster everywhere, likewise.
WORK_S = {"red": {8: 72_000.0, 16: 38_000.0, 32: 21_000.0}, "blue": {8: 40_000.0, 16: 21_000.0, 32: 12_000.0}}
SAMPLES, TOKENS, BATCH = 64_000, 64_000_000, 64
GOODPUT, POWER_W, PUE, KG_PER_J = 0.95, 700.0, 1.2, 1.3e-7


def interval(value, factor=1.3):
    return {"value": value, "low": value / factor, "high": value * factor, "level": LEVEL}


def candidate(accelerator, number, *, limits=(), **changes):
    """One thing to do whose numbers follow from WORK_S and PRICE; limits: of deadline and budget."""
    work_s = WORK_S[accelerator][number]
    time_s = work_s / GOODPUT
    hours = time_s * number / 3600
    energy_j = POWER_W * PUE * time_s * number
    values = {"deadline": time_s, "budget": hours * PRICE[accelerator]}
    constraints = [
        {
            "name": name,
            "limit": limit,
            "value": values[name],
            "probability": 0.7 if values[name] <= limit else 0.2,
        }
        for name, limit in limits
    ]
    made = {
        "id": f"{accelerator}/{number}/on_demand",
        "accelerator": accelerator,
        "num_accelerators": number,
        "num_nodes": number // 8,
        "terms": "on_demand",
        "strategy": f"dp={number} microbatch=1 global_batch={BATCH} precision=fp8",
        "global_batch_samples": BATCH,
        "step_s": interval(work_s * BATCH / SAMPLES),
        "time_s": interval(time_s),
        "work_s": interval(work_s),
        "goodput": interval(GOODPUT, 1.02),
        "usd": interval(hours * PRICE[accelerator]),
        "energy_j": interval(energy_j),
        "carbon_kg": interval(energy_j * KG_PER_J),
        "power_w": POWER_W,
        "accelerator_hours": hours,
        "mfu": 0.4,
        "tokens_per_s_per_accelerator": TOKENS / work_s / number,
        "memory": {"needed_bytes": 6e10, "available_bytes": 8e10},
        "feasible": all(values[name] <= limit for name, limit in limits),
        "constraints": constraints,
        "estimates": [{"estimator": "model", "time_s": interval(time_s), "weight": 1.0, "why": "185 plans"}],
        "published": [],
        "grade": "modelled",
    }
    return made | changes


def equilibrium(kind, number, **changes):
    return {
        "kind": kind,
        "num_accelerators": number,
        "low": 16,
        "high": 40,
        "limited_by": None,
        "time_s": 20_000.0,
        "efficiency": 0.6,
        "next_step": None,
    } | changes


def document(*, objective="time", deadline_s=None, budget_usd=None, systems=("red",), **changes):
    """An answer that obeys every law."""
    limits = [(name, limit) for name, limit in (("deadline", deadline_s), ("budget", budget_usd)) if limit]
    candidates = [candidate(system, size, limits=limits) for system in systems for size in WORK_S[system]]
    question = {
        "workload": "some",
        "systems": [
            {
                "system": name,
                "terms": "on_demand",
                "price_usd_per_accelerator_hour": PRICE[name],
                "stock": None,
            }
            for name in systems
        ],
        "objective": objective,
        "deadline_s": deadline_s,
        "budget_usd": budget_usd,
        "max_accelerators": 32,
        "training_tokens": TOKENS,
        "training_samples": SAMPLES,
        "global_batch_samples": BATCH,
        "value_of_time_usd_per_hour": 10.0,
        "pue": PUE,
        "precision": "fp8",
        "node_size": 8,
    }
    wanted = {"balance": lambda each: -each["num_accelerators"]}.get(
        objective, lambda each: laws.objective_value(each, question)
    )
    feasible = [each for each in candidates if each["feasible"]]
    made = {
        "schema": "equipoise.advise/2",
        "equipoise": "2.0",
        "dataset": "some",
        "question": question,
        "recommended": min(feasible, key=wanted, default=None),
        "candidates": candidates,
        "refusal": None if feasible else refusal(candidates),
        "equilibria": [equilibrium("balance", 32, high=None, limited_by="question")],
        "flips": [],
        "alternatives": [each | {"wins_when": "an hour is worth more"} for each in feasible[:1]],
        "rejected": [],
        "evidence": [],
        "records": [],
        "num_considered": 3,
        "search_s": 0.1,
        "notes": [],
    }
    return json.loads(json.dumps(made | changes))  # no two places share an object


def refusal(candidates):
    """By hand: red on 8 costs 336.84 USD at least; 32 take 22,105 s and 393 USD."""
    needed = {name: laws.least_needed(candidates, name) for name in ("deadline", "budget")}
    limits = {limit["name"]: limit["limit"] for limit in candidates[0]["constraints"]}
    return {
        "cheapest": min(candidates, key=lambda each: each["usd"]["value"]),
        "fastest": min(candidates, key=lambda each: each["time_s"]["value"]),
        "relaxations": [
            {"constraint": name, "limit": limits[name], "needed": value}
            for name, value in needed.items()
            if value is not None
        ],
    }


def refused(**changes):
    return document(deadline_s=30_000.0, budget_usd=340.0, **changes)


def row(made, number=16, accelerator="red"):
    return next(
        each
        for each in made["candidates"]
        if (each["accelerator"], each["num_accelerators"]) == (accelerator, number)
    )


@pytest.mark.parametrize(
    "made",
    [
        *[document(objective=name) for name in ("time", "cost", "energy", "value_of_time", "balance")],
        document(deadline_s=50_000.0, objective="cost"),
        document(systems=("red", "blue")),
        refused(),
        refused(systems=("red", "blue")) | {},
        document(recommended=None, candidates=[], alternatives=[], equilibria=[]) | {"refusal": {
            "cheapest": None, "fastest": None, "relaxations": []}},
    ],
)  # fmt: skip
def test_documents_that_obey_have_no_breach(made):
    assert laws.breaches(made) == []


def test_the_least_relaxations_are_those_found_by_hand():
    made = refused()
    # Within 340 USD only 8 work, in 72,000 / 0.95 s; within 30,000 s only 32, for 21,000 / 0.95 x 32 / 3600 x 2.
    assert laws.least_needed(made["candidates"], "deadline") == pytest.approx(75_789.47)
    assert laws.least_needed(made["candidates"], "budget") == pytest.approx(392.98, abs=0.01)


def test_a_system_without_a_price_takes_as_long_to_start_as_any():
    made = document(objective="time")
    priced = made["candidates"][0]
    unpriced = priced | {"usd": None}
    assert laws.objective_value(unpriced, made["question"]) == laws.objective_value(priced, made["question"])


def test_marginal_takes_each_step_that_pays():
    assert laws.marginal([(1, 1.95), (2, 1.0)]) == 2
    assert laws.marginal([(1, 1.49), (2, 1.0)]) == 1
    assert laws.marginal([(1, 3.0), (2, 2.0), (4, 1.5)]) == 2
    # From 2 to 4 does not pay; from 1 to 4 does, by 2.98 against 2.5.
    assert laws.marginal([(1, 2.98), (2, 1.49), (4, 1.0)]) == 4
    # 3 gain nothing over 2, and 4 are 1.5 times as fast as 2.
    assert laws.marginal([(1, 3.0), (2, 1.8), (3, 1.8), (4, 1.2)]) == 4


def broken(changed, law, **asked):
    return pytest.param(changed, law, asked, id=f"{law}: {changed.__name__}")


def drop_a_key(made):
    del made["flips"]


def drop_a_key_of_a_candidate(made):
    del row(made)["goodput"]


def keep_the_old_schema(made):
    made["schema"] = "equipoise.advise/1"


def repeat_an_id(made):
    made["candidates"].append(copy.deepcopy(row(made)))


def name_another_size(made):
    row(made)["id"] = "red/17/on_demand"


def recommend_other_numbers(made):
    made["recommended"]["time_s"]["value"] *= 0.17


def recommend_what_is_no_candidate(made):
    made["recommended"]["id"] = "red/64/on_demand"


def change_an_alternative(made):
    made["alternatives"][0]["usd"]["value"] += 1


def shorten_the_cheapest(made):
    made["refusal"]["cheapest"] |= {"num_nodes": 7}


def bill_other_hours(made):
    row(made)["accelerator_hours"] *= 1.01


def bill_another_price(made):
    row(made)["usd"] = interval(row(made)["accelerator_hours"] * 2.5)


def lose_time_twice(made):
    row(made)["work_s"] = interval(row(made)["work_s"]["value"] * 0.9966)


def burn_more(made):
    row(made)["energy_j"] = interval(row(made)["energy_j"]["value"] * 1.1)


def emit_more(made):
    row(made)["carbon_kg"] = interval(row(made)["carbon_kg"]["value"] * 1.1)


def take_other_steps(made):
    row(made)["step_s"] = interval(row(made)["step_s"]["value"] * 1.1)


def count_other_tokens(made):
    row(made)["tokens_per_s_per_accelerator"] *= 2


def gain_by_another_curve(made):
    made["equilibria"][0]["next_step"] = {
        "num_accelerators": 64,
        "gain_s": 5_000.0,
        "gain_fraction": 0.25,
        "accelerator_hours_factor": 0.87,
    }


def gain_another_share(made):
    made["equilibria"][0]["next_step"] = {"gain_s": 5_000.0, "gain_fraction": 0.56}


def gain_other_than_the_rows(made):
    made["equilibria"][0] |= {"num_accelerators": 16, "high": 20, "limited_by": None, "time_s": 40_000.0}
    made["equilibria"][0]["next_step"] = {
        "num_accelerators": 32,
        "gain_s": 20_800.0,
        "gain_fraction": 0.52,
        "accelerator_hours_factor": 0.96,
    }


def call_feasible_what_is_not(made):
    late = next(each for each in made["candidates"] if not each["feasible"])
    late["feasible"] = True


def forget_a_limit(made):
    row(made)["constraints"] = []


def judge_by_another_limit(made):
    row(made)["constraints"][0]["limit"] = 90_000.0


def judge_by_other_values(made):
    made["candidates"][2]["constraints"][0]["value"] *= 0.9


def be_too_sure(made):
    made["candidates"][2]["constraints"][0]["probability"] = 1.4


def be_sure_of_what_is_out_of_reach(made):
    made["candidates"][0]["constraints"][0]["probability"] = 0.99


def go_beyond_the_question(made):
    made["question"]["max_accelerators"] = 16


def recommend_the_second_best(made):
    made["recommended"] = copy.deepcopy(row(made))


def recommend_what_is_late(made):
    made["recommended"] = copy.deepcopy(row(made, 8))


def recommend_nothing(made):
    made["recommended"] = None


def recommend_and_refuse(made):
    made["refusal"] = {"cheapest": row(made), "fastest": row(made), "relaxations": []}


def take_what_another_system_beats(made):
    row(made, 8, "blue")["time_s"] = interval(row(made, 32)["time_s"]["value"] * 0.9)
    row(made, 8, "blue")["usd"] = interval(row(made, 32)["usd"]["value"] * 0.9)


def stop_before_a_step_that_pays(made):
    made["recommended"] = copy.deepcopy(row(made, 8))


def go_on_where_steps_do_not_pay(made):
    row(made, 32).update(candidate("red", 32, time_s=interval(36_000.0)))
    made["recommended"] = copy.deepcopy(row(made, 32))


def name_another_cheapest(made):
    made["refusal"]["cheapest"] = copy.deepcopy(row(made, 32))


def name_another_fastest(made):
    made["refusal"]["fastest"] = copy.deepcopy(row(made, 8))


def relax_too_little(made):
    made["refusal"]["relaxations"][1]["needed"] *= 0.99


def relax_too_much(made):
    made["refusal"]["relaxations"][0]["needed"] *= 1.01


def relax_one_alone(made):
    del made["refusal"]["relaxations"][0]


def relax_from_another_limit(made):
    made["refusal"]["relaxations"][0]["limit"] = 1.0


def call_published_what_was_not(made):
    row(made)["published"] = [{"entry_id": "v9.9/some/eight/some", "score_s": 30_000.0}]


def limit_by_nobody(made):
    made["equilibria"][0]["limited_by"] = None


def limit_by_something_else(made):
    made["equilibria"][0]["limited_by"] = "weather"


def blame_the_data(made):
    made["equilibria"][0]["limited_by"] = "data"


def blame_a_question_without_limit(made):
    made["question"]["max_accelerators"] = None


def show_a_wide_interval(made):
    made["recommended"] = None
    for each in made["candidates"]:
        each["usd"] = interval(each["usd"]["value"], 5)


def cross_an_interval(made):
    row(made)["energy_j"]["low"] = row(made)["energy_j"]["high"] * 2


def leave_a_hole(made):
    row(made)["carbon_kg"]["high"] = None


def cross_an_equilibrium(made):
    made["equilibria"][0]["low"] = 33


def replace_the_batch(made):
    row(made).update(global_batch_samples=4096, strategy="dp=16 microbatch=1 global_batch=4096 precision=fp8")


def write_another_batch(made):
    row(made)["strategy"] = "dp=16 microbatch=1 global_batch=128 precision=fp8"


def replace_the_precision(made):
    row(made)["strategy"] = "dp=16 microbatch=1 global_batch=64"


def replace_the_node_size(made):
    row(made)["num_nodes"] = 1


def replace_a_fixed_parameter(made):
    made["question"]["fix"] = {"dp": "8"}


def replace_what_an_option_fixed(made):
    made["question"]["fix"] = ["microbatch=2"]


def lay_out_another_size(made):
    row(made)["strategy"] = "dp=8 microbatch=1 global_batch=64 precision=fp8"


LATE = {"deadline_s": 50_000.0, "objective": "cost"}
REFUSED = {"deadline_s": 30_000.0, "budget_usd": 340.0}
BALANCE = {"objective": "balance"}


@pytest.mark.parametrize(
    ("change", "law", "asked"),
    [
        broken(drop_a_key, "contract"),
        broken(drop_a_key_of_a_candidate, "contract"),
        broken(keep_the_old_schema, "contract"),
        broken(repeat_an_id, "ids"),
        broken(name_another_size, "ids"),
        broken(recommend_other_numbers, "law 1"),
        broken(recommend_what_is_no_candidate, "law 1"),
        broken(change_an_alternative, "law 1"),
        broken(shorten_the_cheapest, "law 1", **REFUSED),
        broken(bill_other_hours, "law 1"),
        broken(bill_another_price, "law 1"),
        broken(lose_time_twice, "law 1"),
        broken(burn_more, "law 1"),
        broken(emit_more, "law 1"),
        broken(take_other_steps, "law 1"),
        broken(count_other_tokens, "law 1"),
        broken(gain_by_another_curve, "law 1"),
        broken(gain_another_share, "law 1"),
        broken(gain_other_than_the_rows, "law 1"),
        broken(call_feasible_what_is_not, "law 2", **LATE),
        broken(forget_a_limit, "law 2", **LATE),
        broken(judge_by_another_limit, "law 2", **LATE),
        broken(judge_by_other_values, "law 2", **LATE),
        broken(be_too_sure, "law 2", **LATE),
        broken(be_sure_of_what_is_out_of_reach, "law 2", **LATE),
        broken(go_beyond_the_question, "law 2"),
        broken(recommend_the_second_best, "law 2"),
        broken(recommend_what_is_late, "law 2", **LATE),
        broken(recommend_nothing, "law 2"),
        broken(recommend_and_refuse, "law 2"),
        broken(take_what_another_system_beats, "law 2", **BALANCE, systems=("red", "blue")),
        broken(stop_before_a_step_that_pays, "definition", **BALANCE),
        broken(go_on_where_steps_do_not_pay, "definition", **BALANCE),
        broken(name_another_cheapest, "law 2", **REFUSED),
        broken(name_another_fastest, "law 2", **REFUSED),
        broken(relax_too_little, "law 2", **REFUSED),
        broken(relax_too_much, "law 2", **REFUSED),
        broken(relax_one_alone, "law 2", **REFUSED),
        broken(relax_from_another_limit, "law 2", **REFUSED),
        broken(call_published_what_was_not, "law 4"),
        broken(limit_by_nobody, "law 7"),
        broken(limit_by_something_else, "law 7"),
        broken(blame_the_data, "law 7"),
        broken(blame_a_question_without_limit, "law 7"),
        broken(show_a_wide_interval, "law 8"),
        broken(cross_an_interval, "law 8"),
        broken(leave_a_hole, "law 8"),
        broken(cross_an_equilibrium, "law 8"),
        broken(replace_the_batch, "law 9"),
        broken(write_another_batch, "law 9"),
        broken(replace_the_precision, "law 9"),
        broken(replace_the_node_size, "law 9"),
        broken(replace_a_fixed_parameter, "law 9"),
        broken(replace_what_an_option_fixed, "law 9"),
        broken(lay_out_another_size, "law 9"),
    ],
)
def test_a_breach_is_found(change, law, asked):
    made = document(**asked)
    assert laws.breaches(made) == []
    change(made)
    assert law in {breach.partition(":")[0] for breach in laws.breaches(made)}


def test_more_freedom_that_changes_nothing_else_obeys():
    strict, loose = (
        document(deadline_s=50_000.0, objective="cost"),
        document(deadline_s=90_000.0, objective="cost"),
    )
    assert laws.freedom(strict, loose) == []
    assert laws.freedom(document(), document(systems=("red", "blue"))) == []
    assert laws.freedom(refused(), document(deadline_s=30_000.0, budget_usd=400.0)) == []


def test_more_freedom_that_hurts_is_found():
    strict, loose = (
        document(deadline_s=50_000.0, objective="cost"),
        document(deadline_s=90_000.0, objective="cost"),
    )
    # The looser deadline allows 8, which are cheaper: asked the other way round, it hurts.
    assert laws.freedom(loose, strict)
    dearer = copy.deepcopy(loose)
    dearer["recommended"] = copy.deepcopy(row(loose, 32))
    assert laws.freedom(strict, dearer)
    nothing = loose | {"recommended": None}
    assert laws.freedom(strict, nothing)


def test_a_candidate_that_changes_or_goes_is_found():
    one, both = document(), document(systems=("red", "blue"))
    row(both, 8)["usd"]["value"] *= 1.01
    assert laws.freedom(one, both)
    gone = document(systems=("red", "blue"))
    gone["candidates"] = [each for each in gone["candidates"] if each["num_accelerators"] != 8]
    assert laws.freedom(one, gone)


def test_more_strategies_may_make_a_candidate_faster_and_never_slower():
    before, after = document(), document()
    after["candidates"][0] |= {"time_s": interval(60_000.0), "strategy": "dp=8 global_batch=64 precision=fp8"}
    assert laws.freedom(before, after)
    assert laws.freedom(before, after, by="strategy") == []
    assert laws.freedom(after, before, by="strategy")


ENTRY = {
    "round": "v4.1",
    "submitter": "some",
    "system": "sixteen",
    "workload": "some",
    "division": "closed",
    "accelerator": "red",
    "num_accelerators": 16,
    "score_s": 40_000.0,
}


@pytest.mark.parametrize(
    ("changes", "obeys"),
    [
        ({}, True),
        ({"division": "open"}, False),
        ({"num_accelerators": 8}, False),
        ({"accelerator": "blue"}, False),
        ({"score_s": 39_000.0}, False),
        ({"round": "v4.0"}, False),
    ],
)
def test_published_is_a_closed_result_of_that_size(changes, obeys):
    made = document()
    row(made)["published"] = [{"entry_id": "v4.1/some/sixteen/some", "score_s": 40_000.0}]
    assert (laws.published_is_published(made, [ENTRY | changes]) == []) == obeys


@pytest.mark.parametrize("named", ["red/16/on_demand", "v4.1/some/sixteen/some"])
def test_what_is_far_from_its_results_says_why(named):
    made = document()
    # 38,000 / 0.95 s are estimated: 1.15 times as long as the best.
    row(made)["published"] = [
        {"entry_id": "v4.1/some/sixteen/some", "score_s": 34_700.0},
        {"entry_id": "v4.1/others/sixteen/some", "score_s": 40_000.0},
    ]
    assert laws.published_is_published(made)
    made["notes"] = [f"{named} ran with a batch of its own"]
    assert laws.published_is_published(made) == []


def test_a_better_chip_that_is_slower_is_found():
    made = document(systems=("red", "blue"))
    assert laws.physics_orders(made, "red", "blue") == []
    assert len(laws.physics_orders(made, "blue", "red")) == 3
    row(made, 16, "red")["estimates"][0]["estimator"] = "published"  # other software: not compared
    assert len(laws.physics_orders(made, "blue", "red")) == 2


def test_answers_that_differ_are_found():
    advice, plan = document(objective="balance"), document(objective="balance", schema="equipoise.plan/2")
    assert laws.one_number(plan, advice) == []
    other = copy.deepcopy(plan)
    other["recommended"] = copy.deepcopy(row(plan, 16))
    assert laws.one_number(other, advice)
    row(plan)["step_s"] = interval(1.0)
    assert laws.one_number(plan, advice)
    assert laws.one_number(document(candidates=[]), advice)


@pytest.mark.parametrize(
    "strategy", ["dp=8 tp=2 precision=fp8", {"dp": 8, "tp": 2, "precision": "fp8"}], ids=["text", "record"]
)
def test_a_strategy_is_read_from_text_and_record(strategy):
    assert laws.strategy_of({"strategy": strategy}) == {"dp": "8", "tp": "2", "precision": "fp8"}


def test_a_price_is_that_of_the_system_and_its_terms():
    question = {
        "systems": [
            {"system": "red", "terms": "spot", "price_usd_per_accelerator_hour": 1.0},
            {"system": "red", "terms": "on_demand", "price_usd_per_accelerator_hour": 2.0},
            {"system": "blue", "terms": None, "price_usd_per_accelerator_hour": 3.0},
        ]
    }
    prices = [
        laws.price_of({"accelerator": name, "terms": terms}, question)
        for name, terms in (("red", "spot"), ("red", "on_demand"), ("blue", "spot"), ("green", "spot"))
    ]
    assert prices == [1.0, 2.0, 3.0, None]
