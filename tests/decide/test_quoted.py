"""Money as it is bought, in whole answers: quotes of a file, currency and carbon of one's own."""

import pytest
from asking import H100, MI300X, PRETRAINING, SMALL, ask, by_size

from equipoise.decide.select import figures_of
from equipoise.economics import price
from equipoise.errors import DataError, UsageError

QUOTES = """
[[quote]]
provider = "Long"
system = "h100"
terms = "reserved"
minimum = "1 year"
usd_per_hour = 1.5

[[quote]]
provider = "Short"
system = "h100"
terms = "reserved"
minimum = "7d"
usd_per_hour = 2.5

[[quote]]
provider = "Hourly"
system = "h100"
usd_per_hour = 3.0
egress_usd_per_gb = 0.1
egress_gb = 1000
"""


def _quoted(tmp_path, text=QUOTES, **changes):
    path = tmp_path / "quotes.toml"
    path.write_text(text)
    return ask(PRETRAINING, prices=path, **{"accelerator": H100, "max_accelerators": 64, **changes})


def test_the_quotes_of_a_file_are_the_terms_that_are_compared(tmp_path):
    found = _quoted(tmp_path)
    assert {each.terms for each in found.candidates} == {"reserved", "on_demand"}
    for each in found.candidates:
        hours = each.num_accelerators * each.time_s.value / 3600
        if each.terms == "on_demand":  # 1,000 GB are taken out at 0.1 USD
            assert each.usd.value == pytest.approx(3.0 * hours + 100)
            assert each.charges.egress_usd == pytest.approx(100)
        else:  # the quote that costs less: a year at 1.5 USD, or a week at 2.5 USD
            least = {
                usd: usd * max(hours, each.num_accelerators * days * 24)
                for usd, days in ((1.5, 365.25), (2.5, 7))
            }
            assert each.usd.value == pytest.approx(min(least.values()))
            assert least[each.price.usd_per_accelerator_hour] == min(least.values())
    assert {each.price.usd_per_accelerator_hour for each in found.candidates} == {1.5, 2.5, 3.0}


def test_a_job_shrinks_on_spot_capacity_that_is_stated_or_quoted(tmp_path):
    spot = 'terms = "spot"\nusd_per_hour = 3.0'
    _quoted(tmp_path, QUOTES.replace("usd_per_hour = 3.0", spot), on_reclaim="shrink")
    _quoted(tmp_path, on_reclaim="shrink", terms="spot")
    for stated in ({}, {"terms": "on_demand"}):
        with pytest.raises(UsageError, match=r"--on-reclaim shrink.*--terms spot"):
            _quoted(tmp_path, on_reclaim="shrink", **stated)


def test_a_price_on_the_command_line_comes_before_the_quotes(tmp_path):
    found = _quoted(tmp_path, price="2.2")
    assert {each.price.usd_per_accelerator_hour for each in found.candidates} == {2.2}
    assert all(each.charges is None for each in found.candidates)


def test_quotes_next_to_a_price_of_the_same_system_are_said_not_to_count(tmp_path):
    notes = [note for note in _quoted(tmp_path, price=[f"{H100}=2.6"]).notes if note.kind == "not_used"]
    assert [(str(tmp_path / "quotes.toml") in each.words, "--price" in each.words) for each in notes] == [
        (True, True)
    ]
    assert not [note for note in _quoted(tmp_path).notes if note.kind == "not_used"]


def test_a_quote_of_nothing_pays_for_electricity_as_a_price_of_nothing_does(tmp_path):
    free = '[[quote]]\nprovider = "Mine"\nsystem = "h100"\nusd_per_hour = 0\n'
    quoted, stated = (
        by_size(_quoted(tmp_path, free)),
        by_size(ask(PRETRAINING, max_accelerators=64, price="0")),
    )
    assert quoted.keys() == stated.keys()
    for size, each in quoted.items():
        assert each.electricity_usd.value > 0
        amounts = [each.electricity_usd.value, stated[size].usd.value]
        assert amounts == pytest.approx([each.usd.value] * 2, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "extra_usd"),
    [
        ('minimum = "1 year"', 0.0),
        ("egress_usd_per_gb = 0.1\negress_gb = 1000", 100.0),
        ('[[quote]]\nprovider = "Dear"\nsystem = "h100"\nusd_per_hour = 90', 0.0),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_own_machine_pays_for_electricity_and_what_its_quote_adds(tmp_path, more, extra_usd, is_first):
    # A minimum of hours that cost nothing adds nothing; a dearer quote of the same machine changes nothing.
    free = '[[quote]]\nprovider = "Mine"\nsystem = "h100"\nusd_per_hour = 0\n'
    text = f"{free}{more}\n" if is_first or "[[quote]]" not in more else f"{more}\n{free}"
    quoted, stated = _quoted(tmp_path, text), ask(PRETRAINING, max_accelerators=64, price="0")
    assert quoted.recommended.num_accelerators == stated.recommended.num_accelerators
    expected = by_size(stated)
    assert by_size(quoted).keys() == expected.keys()
    for size, each in by_size(quoted).items():
        for end in ("value", "low", "high"):
            total_usd = getattr(expected[size].usd, end) + extra_usd
            assert getattr(each.usd, end) == pytest.approx(total_usd, rel=1e-9)


def test_quotes_of_nothing_that_is_asked_about_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"quotes\.toml.*h100.*mi300x"):
        _quoted(tmp_path, accelerator=MI300X)
    with pytest.raises(DataError, match=r"quote 1: .*h999"):
        _quoted(tmp_path, QUOTES.replace("h100", "h999", 1))


def test_what_flips_a_quote_keeps_its_minimum(tmp_path):
    # At twice the time a week that was half used costs no more; at twice the price it costs twice.
    found = _quoted(tmp_path, terms="reserved", tokens="1e9")
    one = figures_of(by_size(found, H100)[64])
    assert one.charges.unused_usd > one.charges.used_usd
    assert one.moved(time=1.9).usd == pytest.approx(one.usd)
    assert one.moved(price=2.0).usd == pytest.approx(2 * one.usd)


@pytest.mark.parametrize(
    "text", ["EUR", "EUR=0", "=1", "EURO=1", "EUR=-1", "EUR=1e999", "EUR=0.92@today", "EUR=0.92@2026-13-45"]
)
def test_what_is_no_currency_is_refused(text):
    with pytest.raises(UsageError, match="--currency"):
        ask(SMALL, currency=text)


def test_ones_own_carbon_is_that_of_every_candidate():
    found = ask(SMALL, carbon=36)  # 36 g per kWh are 1e-5 g, 1e-8 kg per joule
    assert found.candidates
    for each in found.candidates:
        assert each.carbon_kg.value == pytest.approx(1e-8 * each.energy_j.value)


def test_buying_is_compared_with_the_quote_that_is_taken(tmp_path):
    found = _quoted(tmp_path, buy=True)
    rented = next(each for each in found.ownership.hourly if each.way == "rent")
    assert rented.usd.value == found.recommended.price.usd_per_accelerator_hour


def test_a_machine_that_is_owned_is_compared_with_renting_at_the_list_price():
    # Electricity alone is least, then a bought machine or a rented one, whatever they cost.
    found = ask(SMALL, accelerator=H100, price="0", buy=True)
    hours = {each.way: each.usd.value for each in found.ownership.hourly}
    assert hours["rent"] == price("h100-sxm5-80gb").usd_per_accelerator_hour
    assert hours["own"] < min(hours["rent"], hours["buy"])


def test_a_job_that_shrinks_is_no_slower_in_any_answer():
    waits, shrinks = (
        ask(PRETRAINING, accelerator=H100, max_accelerators=512, terms="spot", on_reclaim=each)
        for each in ("wait", "shrink")
    )
    assert waits.candidates
    for one, other in zip(waits.candidates, shrinks.candidates, strict=True):
        assert other.time_s.value <= one.time_s.value * (1 + 1e-12)
        assert other.work_s == one.work_s


def test_a_price_of_ones_own_leaves_one_kind_of_terms(tmp_path):
    assert {each.terms for each in _quoted(tmp_path, price="2.2").candidates} == {"on_demand"}


@pytest.mark.parametrize("objective", ["balance", "time", "cost"])
def test_a_commitment_that_costs_more_than_on_demand_is_said_to(objective):
    asked = {"workload": "llama31_8b", "tokens": "1T", "accelerator": "tpu-v5e", "objective": objective}
    found = ask(asked, terms="reserved")
    best, free = found.recommended, found.without_commitment
    # Google's list, read 2026-11-21: 0.84 USD for a year at least, 1.20 on demand.
    hours = best.num_accelerators * best.time_s.value / 3600
    assert best.usd.value == pytest.approx(0.84 * max(hours, best.num_accelerators * 12 * 730.5))
    if 1.20 * hours < best.usd.value:
        assert free.usd.value == pytest.approx(1.20 * hours)
    else:  # the commitment is used
        assert free is None
    assert ask(asked, terms="on_demand").without_commitment is None
    # Where both may be taken, nobody pays for hours that are not used.
    both = ask(asked, terms="reserved,on_demand").recommended
    assert both.charges is None or both.charges.unused_usd == 0.0
    # `balance` compares money times time.
    spent, least = both.usd.value, min(best.usd.value, 1.20 * hours)
    waited = both.time_s.value / best.time_s.value if objective == "balance" else 1.0
    assert spent * waited <= least


def test_where_the_cost_of_hosting_is_not_known_the_rest_is_still_answered():
    # Nobody states the power of TPU v5e.
    found = ask({"workload": "llama31_8b", "tokens": "10G"}, accelerator="tpu-v5e", buy=True, purchase=5000)
    assert found.recommended is not None
    assert found.ownership is None
    # What is asked for is enough: its hosting alone would not be.
    (note,) = [each.words for each in found.notes if each.kind == "not_bought"]
    assert "power_w" in note
    assert "--hosting" not in note


def test_a_size_that_pays_for_hours_of_a_commitment_that_nobody_uses_is_not_taken(tmp_path):
    found = _quoted(tmp_path, QUOTES[: QUOTES.index("[[quote]]", 20)], terms="reserved", max_accelerators=512)
    best, year_s = found.recommended, 365.25 * 86400
    # Twice as many would be paid for a year too, and used for less.
    beyond = found.steps.beyond
    assert beyond.after.time_s.value < year_s
    assert not beyond.pays
    assert beyond.usd_factor > 1.5
    # Of the sizes that are done within the year none is smaller.
    within = [each.num_accelerators for each in found.candidates if each.time_s.value < year_s]
    assert best.num_accelerators <= min(within)
