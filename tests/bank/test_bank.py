"""The bank of questions: complete, well-formed, reproduced as it was recorded, and lawful in every answer."""

import re
from collections import Counter, defaultdict
from functools import cache
from itertools import chain, combinations, permutations

import laws
import pytest
import typer
from facts import facts, flat
from questions import BANK, VERBS, VOLATILE, ask, asking_folder, questions
from record import ANSWERS, LIMIT_BYTES, read

from equipoise.cli.app import app
from equipoise.errors import UsageError

RELATIVE = 1e-6
# Cheap ones of every verb and every way to end; none needs torch, own runs or this machine.
REPRODUCED = (
    "lora-h100",
    "lora-h200",
    "four-systems-deadline-budget",
    "no-model-no-results",
    "accelerator-unknown",
    "plan-bert-a100-1024",
    "plan-lora-h200",
    "predict-lora-h200",
    "allocate-32",
    "ask-tokens-budget",
)
# What a question must ask at least once.
OPTIONS = (
    *("--objective", "--terms", "--deadline", "--budget", "--tokens", "--samples", "--global-batch"),
    *("--collectives", "--trace", "--here", "--buy", "--ask", "--precision", "--price", "--region"),
    *("--electricity", "--pue", "--max-accelerators", "--stock", "--value-of-time", "--node-size"),
    *("--topology", "--fix", "--workloads", "--queue", "--runs"),
    *("--train", "--examples", "--epochs", "--sequence", "--config"),
)
# Fields of a question that only limit what may be taken: a larger value is more freedom.
LIMITS = ("deadline_s", "budget_usd", "max_accelerators")
# Fields that say what is best; they change no candidate's numbers.
WISHES = ("objective", "value_of_time_usd_per_hour")
# Chips of which the second is at least as good in every stated fact.
ORDERED = (
    ("h100-sxm5-80gb", "h200-sxm5-141gb"),
    ("h800-sxm5-80gb", "h100-sxm5-80gb"),
    ("h200-sxm5-141gb", "b200-sxm6-180gb"),
    ("h100-sxm5-80gb", "b200-sxm6-180gb"),
    ("b200-sxm6-180gb", "b300-sxm6-270gb"),
    ("a100-sxm4-40gb", "a100-sxm4-80gb"),
)
BY_NAME = {each.name: each for each in questions()}


@cache
def recorded():
    return read(ANSWERS)


@cache
def verbs():
    return typer.main.get_command(app()).commands


def decisions():
    """The recorded documents of `advise` and `plan`, by question; with null for what no record keeps."""
    return {
        name: dict.fromkeys(VOLATILE) | answer["document"]
        for name, answer in recorded()[1].items()
        if answer["exit_code"] == 0
        and answer["verb"] in {"advise", "plan"}
        and "candidates" in answer["document"]
    }


def test_at_least_sixty_questions_of_unique_name_are_asked_of_every_verb():
    assert len(questions()) >= 60
    repeated = [name for name, count in Counter(each.name for each in questions()).items() if count > 1]
    assert repeated == []
    assert {each.verb for each in questions()} == set(VERBS)
    assert [each.name for each in questions() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name)] == []


def test_every_option_and_objective_is_asked_about():
    words = set(chain.from_iterable(each.args for each in questions()))
    assert set(OPTIONS) - words == set()
    assert {"time", "cost", "energy", "balance", "value_of_time", "makespan"} - words == set()


def test_arguments_parse_as_those_of_their_verb():
    refused = {}
    for question in questions():
        try:
            verbs()[question.verb].make_context(question.verb, list(question.args))
        except UsageError as err:
            refused[question.name] = str(err)
    # What is refused as such was recorded so: a value that is none, or an option of another verb.
    assert {recorded()[1][name]["exit_code"] for name in refused} <= {2}, refused


def test_the_record_answers_the_questions_as_they_are_asked():
    header, answers = recorded()
    assert header["num_questions"] == len(answers) == len(questions())
    assert {name: tuple(each["args"]) for name, each in answers.items()} == {
        each.name: each.args for each in questions()
    }
    for answer in answers.values():
        assert answer["exit_code"] in {0, 2, 3}
        assert answer["exit_code"] == (BY_NAME[answer["name"]].exit_code or answer["exit_code"])
        assert (answer["exit_code"] == 2) == (answer["document"] is None)
        assert bool(answer["message"]) == (answer["exit_code"] != 0)
        found = facts(answer)
        assert found["exit_code"] == answer["exit_code"]
        is_answered = any(found[key] for key in ("recommended", "times_s", "jobs"))
        assert not is_answered or found["refusal"] in {None, "no_candidate"}, answer["name"]
        assert is_answered or found["refusal"] is not None, answer["name"]


def test_the_record_is_small_and_names_no_path_of_a_machine():
    assert ANSWERS.stat().st_size < LIMIT_BYTES
    _, answers = recorded()
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|Users)/", str(answers))


def test_files_that_questions_name_exist():
    words = chain.from_iterable(each.args for each in questions())
    named = {each for each in words if each.startswith(("tests/", "docs/")) and "no-such" not in each}
    assert named
    assert [each for each in named if not (BANK.parents[1] / each).exists()] == []


# The laws, of every recorded answer and of every two that they compare.


def test_every_recorded_answer_obeys_the_laws():
    found = {name: laws.breaches(document) for name, document in decisions().items()}
    assert len(found) >= 150
    assert {name: breaches for name, breaches in found.items() if breaches} == {}


def question_without(document, *names):
    """What a document was asked, without these fields, as text."""
    return repr({key: value for key, value in document["question"].items() if key not in names})


def alike(*without):
    """The recorded documents in lots that were asked the same but for some fields."""
    lots = defaultdict(dict)
    for name, document in decisions().items():
        lots[question_without(document, *without)][name] = document
    return [lot for lot in lots.values() if len(lot) > 1]


def freedom(before, after):
    """Breaches of law 3, but for a limit that is no usual size: itself, and others from the last usual size up
    to it, are candidates.

    Under a larger limit they are not, for no finite set of sizes holds every smaller limit.
    """
    most = before["question"]["max_accelerators"]
    kept = {each["num_accelerators"] for each in after["candidates"]}
    last = max((size for size in kept if most is not None and size <= most), default=0)
    sizes = range(last + 1, (most or last) + 1)
    missing = {
        f"law 3: {each['id']} is a candidate no more" for size in sizes for each in at_size(before, size)
    }
    return [each for each in laws.freedom(before, after) if each not in missing]


def at_size(document, number):
    return [each for each in document["candidates"] if each["num_accelerators"] == number]


def looser(one, other):
    """Whether every limit of a question is at least as loose in the other."""
    limits = [(one["question"][name], other["question"][name]) for name in LIMITS]
    # No stated limit is none on time and money, but the usual one on sizes.
    if limits[-1] != (None, None) and None in limits[-1]:
        return False
    return all(theirs is None or (mine is not None and theirs >= mine) for mine, theirs in limits)


def test_looser_limits_hurt_in_no_recorded_pair():
    found, number = {}, 0
    for lot in alike(*LIMITS):
        for (one, before), (other, after) in permutations(lot.items(), 2):
            if looser(before, after):
                number += 1
                found[one, other] = freedom(before, after)
    assert number >= 10
    assert {names: breaches for names, breaches in found.items() if breaches} == {}


def test_a_further_system_hurts_in_no_recorded_pair():
    found, number = {}, 0
    for lot in alike(*LIMITS, "systems"):
        for (one, before), (other, after) in permutations(lot.items(), 2):
            mine, theirs = (
                [repr(each) for each in asked["question"]["systems"]] for asked in (before, after)
            )
            if set(mine) < set(theirs) and looser(before, after):
                number += 1
                found[one, other] = freedom(before, after)
    assert number >= 10
    assert {names: breaches for names, breaches in found.items() if breaches} == {}


def test_one_candidate_has_the_same_numbers_in_all_recorded_answers():
    found, number = {}, 0
    asked_for = ("sizes", "num_nodes", "num_strategies", "buy", "ask")
    for lot in alike(*LIMITS, *WISHES, *asked_for, "systems", "terms"):
        for (one, first), (other, second) in combinations(lot.items(), 2):
            number += 1
            found[one, other] = _other_numbers(first, second)
    assert number >= 50
    assert {names: breaches for names, breaches in found.items() if breaches} == {}


def _other_numbers(first, second):
    rows = {each["id"]: each for each in second["candidates"]}
    return [
        f"{mine['id']}: {key} is {mine[key]!r} and {theirs[key]!r}"
        for mine in first["candidates"]
        if (theirs := rows.get(mine["id"])) is not None and mine["price"] == theirs["price"]
        if node_size(first, mine) == node_size(second, theirs)
        for key in ("work_s", "time_s", "usd", "energy_j", "strategy", "memory", "estimates", "published")
        if not laws.same(mine[key], theirs[key], rel=RELATIVE)
    ]


def node_size(document, candidate):
    return next(each["node_size"] for each in document["systems"] if each["name"] == candidate["accelerator"])


def test_better_chips_are_never_slower_in_a_recorded_answer():
    found, number = [], 0
    for name, document in decisions().items():
        present = {each["accelerator"] for each in document["candidates"]}
        for worse, better in ORDERED:
            if {worse, better} <= present:
                number += 1
                found += [(name, each) for each in laws.physics_orders(document, worse, better)]
    assert number >= 5
    assert found == []


def test_facts_are_the_same_from_every_verb():
    amount = {"low": 0.5, "value": 1.0, "high": 2.0}
    plain = {"accelerator": "chip", "num_accelerators": 8, "terms": "spot", "global_batch_samples": 16}
    taken = {**plain, "strategy": "dp=8 global_batch=16", "accelerator_hours": 3.0}
    taken |= {name: {**amount, "level": 0.9} for name in ("time_s", "usd", "energy_j")}
    point = {"kind": "floor", "num_accelerators": 8, "low": 4, "high": None, "limited_by": "question"}
    document = {"recommended": taken, "refusal": None, "candidates": [taken], "equilibria": [point]}
    found = facts({"exit_code": 0, "document": document})
    assert found["recommended"]["usd"] == amount
    assert found["times_s"] == {"chip": {"8": 1.0}}
    assert found["equilibria"]["floor"]["at_least"]
    predicted = facts({"exit_code": 0, "document": {"predictions": [taken]}})
    assert predicted["times_s"] == found["times_s"]


@pytest.fixture(scope="module")
def folder():
    with asking_folder() as made:
        yield made


@pytest.mark.parametrize("name", REPRODUCED)
def test_answers_are_as_recorded(name, folder):
    answer = ask(BY_NAME[name], folder)
    _, answers = recorded()
    found, expected = flat(facts(answer)), flat(facts(answers[name]))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=RELATIVE), key
        else:
            assert found[key] == value, key
