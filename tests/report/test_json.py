"""The document of an answer: its keys, its identities, and the schema that ships."""

import importlib.util
from pathlib import Path
from typing import ClassVar

import jsonschema
import numpy as np
import orjson
import pytest
from made_answer import candidate, made_answer
from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import EvidenceError
from equipoise.intervals import Interval
from equipoise.report.json import answer_fields, document, encode, evidence_of, fields_of, missing_fields

_spec = importlib.util.spec_from_file_location("schemas", Path(__file__).parents[2] / "docs" / "schemas.py")
schemas = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(schemas)

CANDIDATE = {
    "id", "accelerator", "num_accelerators", "num_nodes", "terms", "strategy", "global_batch_samples", "step_s",
    "time_s", "work_s", "goodput", "usd", "energy_j", "carbon_kg", "accelerator_hours", "mfu",
    "tokens_per_s_per_accelerator", "memory", "feasible", "constraints", "estimates", "published", "grade",
}  # fmt: skip
ANSWER = {
    "schema", "equipoise", "dataset", "question", "recommended", "candidates", "refusal", "equilibria", "flips",
    "alternatives", "rejected", "evidence", "records", "num_considered", "search_s", "notes",
}  # fmt: skip

# Six digits: half a unit of the sixth, of a number that begins with a one, in each of two factors and the result.
ROUNDING = 1.5e-5


def whole(answer, verb="advise"):
    return orjson.loads(encode(document(verb, answer_fields(answer))))


@pytest.fixture(scope="module")
def told():
    return whole(made_answer())


def test_the_document_has_the_keys_that_scripts_rely_on(told):
    assert told.keys() >= ANSWER
    assert told["schema"] == "equipoise.advise/2"
    assert all(each.keys() >= CANDIDATE for each in told["candidates"])
    assert len(told["candidates"]) == 6


def test_recommended_and_alternatives_repeat_a_candidate_field_by_field(told):
    by_id = {each["id"]: each for each in told["candidates"]}
    assert len(by_id) == len(told["candidates"])
    assert told["recommended"] == by_id["h100-sxm5-80gb/32/on_demand"]
    assert told["alternatives"]
    for each in told["alternatives"]:
        assert {name: value for name, value in each.items() if name != "wins_when"} == by_id[each["id"]]
        assert each["wins_when"]


def test_the_identities_hold_to_the_digits_shown(told):
    assert told["candidates"]
    for each in told["candidates"]:
        time, size = each["time_s"]["value"], each["num_accelerators"]
        assert each["accelerator_hours"] == pytest.approx(size * time / 3600, rel=ROUNDING)
        price = each["price"]["usd_per_accelerator_hour"]
        assert each["usd"]["value"] == pytest.approx(each["accelerator_hours"] * price, rel=ROUNDING)
        assert each["energy_j"]["value"] == pytest.approx(each["power_w"] * size * time, rel=ROUNDING)
        assert each["step_s"]["value"] * each["num_steps"] == pytest.approx(time, rel=ROUNDING)


def test_the_question_states_every_field_and_its_systems(told):
    question = told["question"]
    assert question["deadline_s"] == 10_800.0
    assert question["objective"] == "balance"
    assert question["systems"] == [
        {"system": name, "terms": "on_demand", "price_usd_per_accelerator_hour": price, "stock": None}
        for name, price in (("h100-sxm5-80gb", 2.5), ("b200-sxm6-180gb", 5.0))
    ]


def test_weights_of_all_evidence_sum_to_one(told):
    assert {"kind", "ref", "weight"} <= told["evidence"][0].keys()
    # 0.75 shared as 0.5 to 0.25, and 0.25 of the model, which names no source.
    assert [each["weight"] for each in told["evidence"]] == pytest.approx([0.5, 0.25, 0.25])
    assert sum(each.weight for each in evidence_of(made_answer())) == pytest.approx(1.0)


def test_a_refusal_has_no_recommendation(told):
    refused = whole(made_answer(is_refused=True))
    assert refused["recommended"] is None
    assert told["refusal"] is None
    assert refused["refusal"]["fastest"]["num_accelerators"] == 64
    assert refused["refusal"]["relaxations"][0]["needed"] == 4200.0


def test_a_limit_that_would_do_is_rounded_up():
    refused = made_answer(is_refused=True)
    change = replace(refused.refusal.relaxations[0], needed=57_489.04)
    found = whole(replace(refused, refusal=replace(refused.refusal, relaxations=(change,))))
    assert found["refusal"]["relaxations"][0]["needed"] == 57_489.1


def shipped(name):
    return orjson.loads(schemas.path_of(name).read_bytes())


@pytest.mark.parametrize("verb", ["advise", "plan"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_documents_obey_the_schema(verb, is_refused):
    jsonschema.validate(whole(made_answer(is_refused=is_refused), verb), shipped(verb))


@pytest.mark.parametrize("name", sorted(schemas.VERSIONS))
def test_a_document_of_what_is_missing_obeys_the_schema(name):
    told = document(name, missing_fields(EvidenceError("no estimate", missing=["a measured step"])))
    jsonschema.validate(told, shipped(name))
    del told["missing"]
    with pytest.raises(jsonschema.ValidationError, match="missing"):
        jsonschema.validate(told, shipped(name))


@pytest.mark.parametrize("name", sorted(schemas.VERSIONS))
def test_the_schema_that_ships_is_that_of_the_records(name):
    assert shipped(name) == schemas.schema(name), "renew it: python docs/schemas.py --write"
    jsonschema.Draft202012Validator.check_schema(shipped(name))


def test_the_schema_refuses_a_candidate_without_its_time(told):
    broken = orjson.loads(orjson.dumps(told))
    del broken["candidates"][0]["time_s"]
    with pytest.raises(jsonschema.ValidationError, match="time_s"):
        jsonschema.validate(broken, shipped("advise"))


class Made(Struct, frozen=True, kw_only=True):
    JSON_PROPERTIES: ClassVar = ("twice",)
    NOT_IN_JSON: ClassVar = ("hidden",)

    number: float
    amount: Interval
    path: Path
    pairs: tuple
    by_name: dict
    function: object = len
    array: object = None
    hidden: int = 1

    @property
    def twice(self):
        return 2 * self.number


def test_records_become_plain_values():
    made = Made(
        number=1.5,
        amount=Interval(value=1.0, low=0.0, high=float("inf"), level=0.9),
        path=Path("a/b"),
        pairs=((1, None), (float("nan"), True)),
        by_name={1: candidate(8).strategy},
        array=np.zeros(3),
    )
    assert fields_of(made) == {
        "twice": 3.0,
        "number": 1.5,
        "amount": {"value": 1.0, "low": 0.0, "high": None, "level": 0.9},
        "path": "a/b",
        "pairs": [[1, None], [None, True]],
        "by_name": {"1": "dp=8 microbatch=1 global_batch=64"},
    }
