"""Money in the user's currency: every amount of every form, by the rate that was given."""

import re

import pytest

from equipoise.cli.output import page_text
from equipoise.decide.decision import answer
from equipoise.decide.query import query
from equipoise.report.json import answer_fields
from equipoise.report.pages.answer import ANSWER
from equipoise.runs.embedded import scores

ASKED = {
    "workload": "llama2_70b_lora",
    "accelerator": ["h100", "h200"],
    "max_accelerators": 64,
    "budget": 1000,
    "buy": True,
}
AMOUNT = re.compile(r"([0-9][0-9,.]*) (USD|XYZ)")


@pytest.fixture(scope="module")
def answers():
    known = scores()
    return {
        name: answer(query(ASKED | ({} if name is None else {"currency": name})), scores=known)
        for name in (None, "XYZ=4@2026-11-20")
    }


def amounts(found, **form):
    """Every amount of money of a page, in the order of the text."""
    return AMOUNT.findall(" ".join(page_text(ANSWER, found, **form).split()))


@pytest.mark.parametrize("full", [False, True])
def test_every_amount_is_in_the_users_currency(answers, full):
    plain, own = (amounts(found, full=full) for found in answers.values())
    assert len(plain) >= 3
    assert {unit for _, unit in plain} == {"USD"}
    in_dollars = [value for value, unit in own if unit == "USD"]
    # The line of money names both; sources of prices are quoted as they are.
    assert 1 <= len(in_dollars) <= (3 if full else 1)
    assert sum(unit == "XYZ" for _, unit in own) >= len(plain) - 2


def test_the_headline_is_the_dollars_times_the_rate(answers):
    plain, own = answers.values()
    usd = plain.recommended.usd.value
    assert own.recommended.usd.value == usd
    (value, unit), *_ = AMOUNT.findall(ANSWER.headline(own))
    assert unit == "XYZ"
    assert float(value.replace(",", "")) == pytest.approx(4 * usd, rel=0.01)
    assert "USD" in ANSWER.headline(plain)  # the currency of one page is not that of the next


def test_json_states_the_currency_and_stays_in_dollars(answers):
    plain, own = (answer_fields(found) for found in answers.values())
    assert plain["currency"] is None
    assert own["currency"] == {"name": "XYZ", "per_usd": 4.0, "date": "2026-11-20"}
    assert own["recommended"]["usd"] == plain["recommended"]["usd"]
