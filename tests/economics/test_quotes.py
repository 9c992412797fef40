"""Quotes of a file: what they charge, by hand; what a file may not hold."""

import pytest

from equipoise.economics import price
from equipoise.economics.quotes import charges, least_charged, read_quotes
from equipoise.errors import DataError
from equipoise.intervals import Interval, exact

DAY_S = 86_400.0
TOML = """
[[quote]]
provider = "Example Cloud"
system = "h100"
terms = "reserved"
minimum = "1 year"
usd_per_hour = 2.0
storage_usd_per_gb_month = 0.02
egress_usd_per_gb = 0.09
"""
CSV = """\
provider, system, terms, minimum, usd_per_hour, storage_usd_per_gb_month, egress_usd_per_gb
Example Cloud, h100, reserved, 1 year, 2.0, 0.02, 0.09
"""


def _file(tmp_path, text, name="quotes.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def _quote(tmp_path):
    return read_quotes(_file(tmp_path, TOML))[0].price


def test_a_year_is_charged_for_three_weeks_of_training(tmp_path):
    # 64 x 21 x 24 h x 2 USD = 64,512 USD used of 64 x 8,766 h x 2 USD = 1,122,048 USD.
    # 112 GB for 21 of 30.4375 days at 0.02 USD, and once at 0.09 USD.
    found = charges(_quote(tmp_path), 64, 21 * DAY_S, checkpoint_bytes=112e9)
    assert found.used_usd == pytest.approx(64_512)
    assert found.minimum_usd == pytest.approx(1_122_048)
    assert found.unused_usd == pytest.approx(1_122_048 - 64_512)
    assert found.storage_usd == pytest.approx(112 * 0.02 * 21 / 30.4375)
    assert found.egress_usd == pytest.approx(112 * 0.09)
    assert found.usd == pytest.approx(1_122_048 + found.storage_usd + found.egress_usd)


def test_beyond_the_minimum_every_hour_is_paid(tmp_path):
    # Two years: 2 x 8,766 h x 2 USD on one accelerator.
    found = charges(_quote(tmp_path), 1, 2 * 365.25 * DAY_S, checkpoint_bytes=None)
    assert (found.used_usd, found.unused_usd) == (pytest.approx(35_064), 0.0)
    assert found.extra_usd == 0.0


def test_the_range_of_the_money_begins_at_the_minimum(tmp_path):
    # One accelerator for half a year to two years, a year in the middle.
    year_s = 365.25 * DAY_S
    time = Interval(value=year_s, low=year_s / 2, high=2 * year_s, level=0.9)
    _, found, _ = least_charged([_quote(tmp_path)], 1, time, checkpoint_bytes=None)
    assert (found.low, found.value, found.high) == pytest.approx((17_532, 17_532, 35_064))


def test_a_price_by_the_hour_has_no_other_charge():
    usual = price("h100-sxm5-80gb")
    assert usual.is_hourly
    found = charges(usual, 8, 3600.0, checkpoint_bytes=1e12)
    assert found.usd == found.used_usd == pytest.approx(8 * usual.usd_per_accelerator_hour)


def test_the_commitment_of_a_listed_price_is_that_of_its_source():
    # Google's list: TPU v5e at 0.84 USD with a commitment of one year.
    found = price("tpu-v5e", terms="reserved")
    assert (found.usd_per_accelerator_hour, found.minimum_s) == (0.84, pytest.approx(365.25 * DAY_S))
    assert price("tpu-v5e").is_hourly


@pytest.mark.parametrize(
    "text",
    [CSV, CSV.replace(",", ";"), CSV.replace(", ", "\t"), CSV.replace("provider, s", "Provider, S")],
    ids=["commas", "semicolons", "tabs", "capitals"],
)
def test_toml_and_csv_hold_the_same(tmp_path, text):
    (one,) = read_quotes(_file(tmp_path, TOML))
    (other,) = read_quotes(_file(tmp_path, text, "quotes.csv"))
    assert (one.system, one.price) == (other.system, other.price)
    assert one.price.interval == exact(2.0)


def test_stated_amounts_of_data_come_before_the_checkpoint(tmp_path):
    path = _file(tmp_path, TOML + "storage_gb = 5000\negress_gb = 0\n")
    found = charges(read_quotes(path)[0].price, 64, 21 * DAY_S, checkpoint_bytes=112e9)
    assert found.storage_usd == pytest.approx(5000 * 0.02 * 21 / 30.4375)
    assert found.egress_usd == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no quote"),
        ("x = 1", "has x"),
        ("[[quote]", "expected TOML"),
        ("[[quote]]\nsystem = 'h100'\nusd_per_hour = 1", "quote 1: provider=None"),
        (TOML.replace("2.0", "'dear'"), "usd_per_hour='dear'"),
        (TOML.replace("2.0", "-1"), "usd_per_hour=-1"),
        (TOML.replace("usd_per_hour", "usd_per_day"), "usd_per_day"),
        (TOML.replace("reserved", "leased"), "terms='leased'"),
        (TOML.replace("1 year", "soon"), "minimum='soon'"),
        (TOML.replace("1 year", "90 years"), "minimum='90 years'"),
        (TOML.replace("usd_per_hour = 2.0\n", ""), "no usd_per_hour"),
    ],
)
def test_what_is_no_quote_is_refused_with_its_place(tmp_path, text, words):
    with pytest.raises(DataError) as refused:
        read_quotes(_file(tmp_path, text))
    assert words in str(refused.value)
    assert "quotes.toml" in str(refused.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "macintosh"])
def test_every_spreadsheet_ends_lines_its_own_way_and_leaves_blank_ones(mine, end):
    path = mine((CSV + ",,,,,,\n").replace("\n", end).encode(), "quotes.csv")
    (found,) = read_quotes(path)
    assert (found.system, found.price.interval) == ("h100", exact(2.0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.csv", CSV + "x," + 140_000 * "a" + "\n"),
        ("twice.csv", CSV.replace("terms", "usd_per_hour")),
        ("quote.csv", CSV.replace("h100", '"h"100')),
        ("more.csv", CSV.replace("0.09", "0.09, 1")),
        ("digits.toml", TOML.replace("2.0", "2" + 400 * "0")),
        ("deep.toml", "quote = " + 100_000 * "["),
    ],
)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path, name, text):
    with pytest.raises(DataError) as refused:
        read_quotes(_file(tmp_path, text, name))
    assert name in str(refused.value)
    assert len(str(refused.value)) < 500


def test_what_is_no_file_is_refused(tmp_path, mine):
    for path in (tmp_path, tmp_path / "absent.toml"):
        with pytest.raises(DataError, match="--prices"):
            read_quotes(path)
    path = mine(b"\xff\xfe\x00", "binary.csv")
    with pytest.raises(DataError, match="UTF-8"):
        read_quotes(path)
