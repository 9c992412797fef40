"""The page of `--ask tokens` and `--ask model`: its figures are those of the record, and it fits a terminal."""

import re

import pytest
from parsed_page import printed

from equipoise.decide.question.query import query
from equipoise.decide.solve_for import solve_for
from equipoise.report.html import render as html
from equipoise.report.json import fields_of, reach_fields
from equipoise.report.pages.prediction import REACH
from equipoise.units import format_si_down

ASKED = {
    "tokens": {"ask": "tokens", "deadline": "1d", "accelerator": ["h100-sxm5-80gb", "a100-sxm4-80gb"]},
    "model": {"ask": "model", "budget": 4000, "accelerator": "h100-sxm5-80gb"},
}


@pytest.fixture(scope="module", params=list(ASKED))
def found(request):
    asked = query({"workload": "llama2_7b", "max_accelerators": 32} | ASKED[request.param])
    return solve_for(asked, scores=None)


def test_the_text_fits_and_has_the_figures(found):
    told = printed(REACH, found)
    assert max(map(len, told.splitlines())) <= 80
    assert format_si_down(found.best.size.value) in told
    assert "32" in told
    sizes = [each.amount for each in found.best.by_size] + [each.size for each in found.others]
    assert bool(sizes) == (found.best.ask == "tokens")
    assert [each for each in sizes if format_si_down(each.value) not in told] == []


def test_the_figures_shown_keep_the_limits_that_allow_them():
    asked = {"workload": "llama31_8b", "ask": "tokens", "budget": 5000, "accelerator": "h100"}
    found = solve_for(query(asked | {"max_accelerators": 256}), scores=None)
    told = printed(REACH, found)
    shown = re.findall(r"(?m)^ *([0-9]+) +([0-9.]+) B ", told)
    allowed = {each.candidate.num_accelerators: each.amount.value for each in found.best.by_size}
    # To three digits and down: at most a hundredth below.
    assert shown
    assert [pair for pair in shown if not 0.99 < 1e9 * float(pair[1]) / allowed[int(pair[0])] <= 1.0] == []
    headline = float(re.search(r"allows ([0-9.]+) B tokens", told)[1])
    assert 0.99 < 1e9 * headline / found.best.size.value <= 1.0


@pytest.mark.parametrize(("ends", "is_limit"), [({"deadline": "1d"}, True), ({"budget": 100}, False)])
def test_a_limit_of_accelerators_is_named_where_more_would_allow_more(ends, is_limit):
    # Twice as many do nearly twice as much until a deadline, and for a budget no more.
    asked = {"workload": "llama2_7b", "ask": "tokens", "accelerator": "h100", "max_accelerators": 32}
    told = printed(REACH, solve_for(query(asked | ends), scores=None))
    (line,) = [each for each in told.splitlines() if each.startswith("Limited by ")]
    assert ("32" in line) == is_limit


def test_terms_and_price_are_named():
    asked = {"workload": "llama2_7b", "ask": "tokens", "budget": 5000, "accelerator": "h100"}
    found = solve_for(query(asked | {"max_accelerators": 8, "terms": "spot"}), scores=None)
    price = found.best.recommended.price.usd_per_accelerator_hour
    told = printed(REACH, found)
    (take,) = [each for each in told.splitlines() if each.startswith("Take ")]
    assert "spot" in take
    shown = re.search(r"(?m)^Price +([0-9.]+) USD", told)[1]
    assert float(shown) == pytest.approx(price, rel=0.005)


def test_money_is_in_the_currency_of_the_question():
    # 5,000 USD at 0.92 EUR a dollar are 4,600 EUR.
    asked = {"workload": "llama2_7b", "ask": "tokens", "budget": 5000, "accelerator": "h100-sxm5-80gb"}
    found = solve_for(query(asked | {"max_accelerators": 8, "currency": "EUR=0.92"}), scores=None)
    told = printed(REACH, found)
    for text in (told, html(REACH, found)):
        assert "4,600" in text
        assert "EUR" in text
        assert "USD" not in text


def test_the_range_of_money_is_in_the_currency_of_its_value():
    asked = {"workload": "llama2_7b", "ask": "tokens", "budget": "1000 EUR", "currency": "EUR=0.5"}
    found = solve_for(query(asked | {"accelerator": "h100", "max_accelerators": 8}), scores=None)
    told = printed(REACH, found)
    assert reach_fields(found)["currency"] == {"name": "EUR", "per_usd": 0.5, "date": None}
    (line,) = [each for each in told.splitlines() if each.startswith("Money ")]
    value, low, high = (float(each.replace(",", "")) for each in re.findall(r"\d[\d,.]*", line))
    usd = found.best.recommended.usd
    assert (value, low, high) == pytest.approx((0.5 * usd.value, 0.5 * usd.low, 0.5 * usd.high), rel=0.005)


def test_a_mixture_states_the_width_of_its_experts_and_tokens_of_active_parameters():
    asked = query({"workload": "mixtral_8x7b", "ask": "model", "budget": 20_000, "accelerator": "h100"})
    found = solve_for(asked, scores=None)
    shape = found.best.shape
    told = printed(REACH, found)
    lines = told.splitlines()
    (start,) = [place for place, line in enumerate(lines) if line.startswith("Shape ")]
    (end,) = [place for place, line in enumerate(lines) if line.startswith("Trained on")]
    text = " ".join(line.strip() for line in lines[start:end])
    # SwiGLU experts of three matrices, queries and outputs, fewer keys and values, a router, and two tables.
    hidden, width = shape.hidden, int(text.split("experts of ")[1].replace(",", ""))
    heads = 2 * hidden * shape.heads * 128 + 2 * hidden * shape.kv_heads * 128
    tables = 2 * 32_000 * hidden
    layer = heads + 8 * hidden
    assert found.best.params.value == shape.layers * (layer + 8 * 3 * hidden * width) + tables
    # Two experts of eight serve a token.
    active = shape.layers * (layer + 2 * 3 * hidden * width) + tables
    assert found.best.training_budget.value == pytest.approx(20 * active, rel=1e-9)


def test_a_size_that_allows_a_little_more_stands_beside_the_faster_one_taken():
    asked = query(
        {"workload": "llama31_8b", "ask": "tokens", "budget": 50_000, "accelerator": "h100"}
        | {"max_accelerators": 256}
    )
    found = solve_for(asked, scores=None)
    most = max(found.best.by_size, key=lambda each: each.amount.value)
    assert most.candidate.num_accelerators != found.best.recommended.num_accelerators
    told = printed(REACH, found)
    (line,) = [line for line in told.splitlines() if line.startswith("Take ")]
    assert f"; {most.candidate.num_accelerators} allow {format_si_down(most.amount.value)} " in line


def test_the_page_has_every_size(found):
    page = html(REACH, found)
    assert format_si_down(found.best.size.value) in page
    amounts = [each.amount for each in found.best.by_size]
    assert bool(amounts) == (found.best.ask == "tokens")
    assert [each for each in amounts if format_si_down(each.value) not in page] == []


def test_the_document_has_the_whole_candidate(found):
    document = fields_of(found)
    taken = document["best"]["recommended"]
    assert taken["id"] == found.best.recommended.id
    assert taken["time_s"]["value"] == found.best.recommended.time_s.value
    assert document["best"]["training_budget"]["low"] < document["best"]["training_budget"]["high"]
    assert len(document["best"]["by_size"]) == len(found.best.by_size)


def test_systems_are_titled_in_the_order_of_the_question():
    chips = ["a100-sxm4-80gb", "h100-sxm5-80gb"]
    asked = query({"workload": "llama2_7b", "ask": "tokens", "deadline": "1d", "accelerator": chips})
    found = solve_for(asked, scores=None)
    assert found.best.system == chips[1]
    told = printed(REACH, found)
    title = told.split("allows")[0]
    assert title.index("A100") < title.index("H100")
