"""Money in the user's currency: every amount of every form, by the rate that was given."""

import json
import re

import pytest

from equipoise import allocate, plan, predict
from equipoise.cli.output import page_text
from equipoise.decide.decision import answer
from equipoise.decide.question.query import query
from equipoise.errors import UsageError
from equipoise.report.json import answer_fields
from equipoise.report.pages.answer import ANSWER
from equipoise.report.pages.study import study_page
from equipoise.runs.embedded import scores
from equipoise.study.rounds import study

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
    # The line of money names both.
    assert len(in_dollars) == 1
    assert sum(unit == "XYZ" for _, unit in own) >= len(plain)


def test_offers_lie_around_the_price_that_is_taken(answers):
    text = " ".join(page_text(ANSWER, answers["XYZ=4@2026-11-20"], full=True).split())
    found = re.search(r"([\d.]+) XYZ per accelerator-hour \(offers from ([\d.]+) to ([\d.]+)\)", text)
    price = answers[None].recommended.price
    assert price.low < price.usd_per_accelerator_hour < price.high
    shown = [4 * price.usd_per_accelerator_hour, 4 * price.low, 4 * price.high]
    assert [float(each) for each in found.groups()] == pytest.approx(shown, abs=0.005)


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (predict, {"workload": "bert", "accelerator": "h100", "value_of_time": 100}),
        (plan, {"workload": "llama2_70b_lora", "accelerator": "h100", "accelerators": 8, "budget": 100}),
        (allocate, {"jobs": [{"name": "a", "workload": "bert"}], "accelerator": "16x h100"}),
    ],
)
def test_other_verbs_write_the_users_currency_too(ask, asked):
    plain, own = (ask(**asked, currency=name) for name in (None, "XYZ=4@2026-11-20"))
    pages = [
        " ".join(page_text(each.presentation.page, each.record, full=True).split()) for each in (plain, own)
    ]
    found = [AMOUNT.findall(page) for page in pages]
    assert len(found[0]) >= 1
    assert {unit for _, unit in found[0]} == {"USD"}
    others = [value for value, unit in found[1] if unit == "XYZ"]
    assert len(others) >= len(found[0])
    (first, _), *_ = found[0]
    assert float(others[0].replace(",", "")) == pytest.approx(4 * float(first.replace(",", "")), rel=0.01)
    assert " XYZ " in pages[1]  # the head of a column of amounts
    documents = [json.loads(each.to_json()) for each in (plain, own)]
    assert documents[0]["currency"] is None
    assert documents[1]["currency"] == {"name": "XYZ", "per_usd": 4.0, "date": "2026-11-20"}


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


# Of the laws of a decision, on the real candidates of one question.
BUDGET = {"workload": "llama31_8b", "tokens": "100B", "accelerator": "h100"}


def table_of(text):
    """The sums of a short answer by number of accelerators, with the status of each."""
    rows = re.findall(r"^ *(\d+) .*x +([\d,.]+)(?: +(\w[\w ]*))?$", text, re.MULTILINE)
    return {int(size): (float(usd.replace(",", "")), status) for size, usd, status in rows}


@pytest.mark.parametrize("rate", [1.0, 0.92, 0.8765])
def test_what_exceeds_the_budget_reads_as_more_than_it(rate):
    currency = f"XYZ={rate}"
    known = scores()
    plain = answer(query(BUDGET), scores=known)
    usd = sorted({each.usd.value for each in plain.candidates if each.num_accelerators in {16, 32, 64}})
    for budget in ((usd[0] + usd[1]) / 2, (usd[1] + usd[2]) / 2, usd[1] * 1.00001):
        asked = BUDGET | {"budget": round(budget, 1), "currency": currency}
        text = page_text(ANSWER, answer(query(asked), scores=known), full=False)
        (stated,) = re.findall(r"budget\s+([\d,.]+)\s+XYZ:", text)
        limit = float(stated.replace(",", ""))
        assert limit == pytest.approx(round(budget, 1) * rate, rel=1e-5)
        rows = table_of(text)
        assert len(rows) >= 2
        for shown, status in rows.values():
            assert (shown > limit) == (status == "over budget")


def test_a_budget_is_in_dollars_unless_it_names_the_currency():
    # 15.64 thousand at 0.92 a dollar are 17 thousand dollars.
    for text in ("15.64k EUR", "15,640 eur", "15640€", "EUR 15.64k", "€15.64 thousand"):
        found = query(BUDGET | {"currency": "EUR=0.92", "budget": text})
        assert found.budget_usd == pytest.approx(17_000)
    assert query(BUDGET | {"currency": "EUR=0.92", "budget": "17k"}).budget_usd == 17_000
    assert query(BUDGET | {"currency": "EUR=0.92", "budget": "17k USD"}).budget_usd == 17_000
    priced = query(BUDGET | {"currency": "EUR=0.5", "price": ["h100=1.5EUR"]})
    assert priced.price == (("h100", 3.0),)


@pytest.mark.parametrize("currency", [None, "GBP=0.8"])
def test_a_budget_in_a_currency_without_its_rate_is_refused(currency):
    with pytest.raises(UsageError, match=r"--budget.*17k EUR.*--currency"):
        query(BUDGET | {"budget": "17k EUR"} | ({} if currency is None else {"currency": currency}))


def test_hours_times_the_price_are_the_money_to_the_digits_shown():
    asked = {"workload": "llama31_8b", "tokens": "10B", "accelerator": "rtx4090", "at": "8"}
    text = " ".join(page_text(ANSWER, answer(query(asked), scores=scores()), full=False).split())
    found = re.search(r"Money ([\d,.]+) USD .*; ([\d,.]+) accelerator-hours at ([\d.]+) USD", text)
    usd, hours, price = (float(each.replace(",", "")) for each in found.groups())
    # Each of three digits: at most half of the last one off, of values from 100 up 0.5 %.
    assert hours * price == pytest.approx(usd, rel=0.01)
    assert price == 0.452  # the median of listed prices; 0.45 is 0.4 % less


def test_the_study_has_its_money_in_the_users_currency():
    findings = study("v4.1", ["bert"])
    points = [each for found in findings.workloads for each in found.balances.found]
    plain, own = (
        " ".join(page_text(study_page(own=rate), findings, full=True).split())
        for rate in (None, ("XYZ", 4.0))
    )
    priced = [each.rates.price for each in points if each.rates.price is not None]
    assert priced
    for price in priced:
        assert f"{price.usd_per_accelerator_hour:.2f} USD per accelerator-hour" in plain
        assert f"{4 * price.usd_per_accelerator_hour:.2f} XYZ per accelerator-hour" in own
    assert "USD" not in own
    rows = re.findall(r"\bUSD\b", plain)
    assert len(rows) == len(re.findall(r"\bXYZ\b", own)) > 1
