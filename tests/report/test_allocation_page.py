"""The page of an allocation: its figures are those of the record, and its short form fits a screen."""

import pytest
from parsed_page import printed
from rich.cells import cell_len

import equipoise
from equipoise.report.blocks import LEAST_ROWS, Table
from equipoise.report.format import duration
from equipoise.report.pages.allocate import ALLOCATION
from equipoise.report.terminal import SCREEN_LINES

NUM_JOBS = 40


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Many short trainings of one's own times; the last cannot keep its deadline, which makes all of it late."""
    path = tmp_path_factory.mktemp("jobs") / "jobs.toml"
    job = '[[job]]\nname = "training {}"\ntimes = {{ 8 = "{} min" }}\n'
    path.write_text(
        "".join(job.format(number, 10 + number) for number in range(NUM_JOBS)) + 'deadline = "30 min"\n'
    )
    return equipoise.allocate(path, accelerator="320x h100-sxm5-80gb")


@pytest.mark.parametrize("full", [False, True], ids=["one screen", "full"])
@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_line_is_longer_than_the_terminal(found, full, width):
    assert max(map(cell_len, printed(ALLOCATION, found.record, full=full, width=width).splitlines())) <= width


def test_the_short_form_of_many_jobs_fits_a_screen(found):
    text = printed(ALLOCATION, found.record, full=False)
    assert text.count("training") >= LEAST_ROWS
    assert len(text.splitlines()) <= SCREEN_LINES


def test_the_long_form_and_the_page_have_every_job(found):
    text, page = (
        printed(ALLOCATION, found.record, full=True),
        found.to_html().replace("\N{NO-BREAK SPACE}", " "),
    )
    assert len(found.record.shares) == NUM_JOBS
    for share in found.record.shares:
        assert share.job.name in text
        assert share.job.name in page
    assert duration(found.record.makespan_s) in text
    late = next(share for share in found.record.shares if share.late_s)
    assert f"late by {duration(late.late_s)}" in text


def test_energy_is_in_joules_once(mine):
    path = mine('[[job]]\nworkload = "bert"\n\n[[job]]\nworkload = "llama2_70b_lora"\n', "jobs.toml")
    found = equipoise.allocate(path, accelerator="32x h100-sxm5-80gb", objective="energy")
    text = printed(ALLOCATION, found.record, full=False)
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith(("Total", "Uses"))}
    assert "Wh" in lines["Total"]
    assert "J)" not in lines["Total"]
    assert "J)" in lines["Uses"]


@pytest.mark.parametrize("stated", [{}, {"price": 2.0}], ids=["owned", "rented"])
def test_the_least_money_is_the_sum_of_its_rows(tmp_path, stated):
    """With prices of electricity by the hour: alone, or next to a rent that the question states."""
    path = tmp_path / "jobs.toml"
    job = '[[job]]\nname = "{}"\ntimes = {{ 8 = "{} h" }}\n'
    prices = [0.1] * 6 + [0.3] * 18
    path.write_text(f"electricity_usd_per_kwh = {prices}\n" + job.format("a", 2) + job.format("b", 5))
    result = equipoise.allocate(path, accelerator="8x h100-sxm5-80gb", objective="cost", **stated)
    found = result.record
    table = next(each for each in ALLOCATION.sections[0].blocks(found) if isinstance(each, Table))
    place = [column.title for column in table.columns].index("USD")
    rows = [row[place].key for row in table.rows]
    assert len(rows) == 2
    assert sum(rows) == pytest.approx(found.solved.value)
    assert sorted(rows) == pytest.approx(sorted(each["usd"] for each in result.to_dict()["jobs"]))
    assert sorted(rows) == pytest.approx(sorted(result.frame()["usd"]))
    # 56 accelerator-hours of 700 W times 1.18 for the system, at 0.1 or more; and at 2 USD of rent.
    assert sum(rows) >= 56 * (0.7 * 1.18 * 0.1 + stated.get("price", 0.0)) * 0.999


@pytest.mark.parametrize("by_hour", [False, True])
@pytest.mark.parametrize(("stated", "is_rented"), [(None, None), (0.0, False), (2.0, True)])
def test_a_price_is_named_where_it_counts_alone(tmp_path, by_hour, stated, is_rented):
    """Electricity is all that an own machine costs; with its price by the hour, a stated rent comes on top."""
    path = tmp_path / "jobs.toml"
    prices = f"electricity_usd_per_kwh = {[0.1] * 6 + [0.3] * 18}\n" if by_hour else ""
    path.write_text(prices + '[[job]]\nname = "a"\ntimes = { 8 = "2 h" }\n')
    asked = {} if stated is None else {"price": stated}
    found = equipoise.allocate(path, accelerator="8x h100-sxm5-80gb", **asked)
    text = " ".join(printed(ALLOCATION, found.record, full=True).split())
    counts_rent = not by_hour if is_rented is None else is_rented
    assert ("per accelerator-hour" in text) == counts_rent
    assert ("per kWh" in text) == (by_hour or is_rented is False)
    assert ("offers" in text) == (counts_rent and stated is None)  # of the price table


def test_evidence_without_a_calibration_is_called_that(mine):
    path = mine(
        '[[job]]\nworkload = "llama31_8b"\ntokens = "1B"\nsizes = [8]\nsoftware = "priors"\n', "jobs.toml"
    )
    text = printed(ALLOCATION, equipoise.allocate(path, accelerator="8x h100-sxm5-80gb").record, full=False)
    assert "priors only" in " ".join(text.split())
