"""The page of a plan: sound, offline, the plan's own numbers, text for who cannot see, and nothing that runs."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from equipoise.advice.forecast.answer import Evidence
from equipoise.report import html, terminal
from equipoise.report.pages import PLAN
from equipoise.report.sections.plan import SECTIONS
from equipoise.report.words import TIMES

HOSTILE = "</script><img src=x onerror=\"alert('x')\">\u202e\x1b[2J"


@pytest.fixture(scope="module")
def text(planned):
    return html.render(PLAN, planned)


@pytest.fixture
def page(text, parsed):
    return parsed(text)


def figure(page, name):
    """The traces of a figure by name, those without a name left out."""
    (script,) = page.all("script", id=f"figure-{name}-data")
    traces = json.loads(script["text"])["data"]
    return {trace["name"]: trace for trace in reversed(traces) if "name" in trace and "fill" not in trace}


def shown(page, tag="body"):
    (found,) = page.all(tag)
    return " ".join(found["text"].split())


def test_it_is_well_formed_with_unique_anchors_and_a_way_to_each_section(page):
    assert page.unbalanced == []
    assert page.open == []
    anchors = [found["attributes"]["id"] for found in page.elements if "id" in found["attributes"]]
    assert len(anchors) == len(set(anchors))
    assert [found["attributes"]["id"] for found in page.all("section")] == [each.name for each in SECTIONS]
    links = {found["attributes"]["href"] for found in page.all("a")}
    assert {f"#{each.name}" for each in SECTIONS} <= links
    labels = {found["attributes"].get("aria-labelledby") for found in page.elements}
    assert labels - {None} <= set(anchors)


def test_the_answer_comes_first_with_its_interval_money_energy_and_carbon(page, planned):
    best = planned.plan.recommended
    assert page.all("h1")[0]["text"].startswith(
        f"GPT-2 1.5B: {best.num_accelerators} {TIMES} A100 SXM4 80 GB, "
    )
    first = page.all("ul", class_="summary")[0]["text"]
    assert "90 %) to train on 1 G tokens" in first
    # 400 W, 1.18 for the rest of the system (docs/experiments/0003) and 0.481 kg a kWh (grids.toml, world).
    energy_kwh = best.num_accelerators * 400 * 1.18 * best.time.value / 3.6e6
    assert f"{energy_kwh * 3.6:.3g} MJ" in first
    assert f"{energy_kwh * 0.481:.3g} kg CO2" in first
    assert "USD" in first


def test_the_curve_is_that_of_the_plan_and_perfect_scaling_starts_at_its_smallest_size(page, planned):
    traces = figure(page, "plan-times")
    times_h = [each.time.value / 3600 for each in planned.plan.by_size]
    sizes = [each.num_accelerators for each in planned.plan.by_size]
    assert traces["best strategy"]["x"] == sizes
    assert traces["best strategy"]["y"] == pytest.approx(times_h)
    assert traces["perfect scaling"]["y"] == pytest.approx([times_h[0] * sizes[0] / size for size in sizes])
    assert traces["beyond what was asked"]["x"] == [16]


def test_the_interval_is_drawn_around_the_curve(page, planned):
    (script,) = page.all("script", id="figure-plan-times-data")
    (band,) = [trace for trace in json.loads(script["text"])["data"] if "fill" in trace]
    num_sizes = len(planned.sizes)
    assert band["y"][:num_sizes] == pytest.approx([each.option.time.high / 3600 for each in planned.sizes])
    lows = [each.option.time.low / 3600 for each in planned.sizes]
    assert band["y"][: num_sizes - 1 : -1] == pytest.approx(lows)


def test_bars_of_time_sum_to_accelerator_seconds_of_a_sample(page, planned):
    heights = [trace["y"] for name, trace in figure(page, "plan-seconds").items() if name]
    sums_ms = [sum(part or 0.0 for part in parts) for parts in zip(*heights, strict=True)]
    expected = [each.step_s * each.num_accelerators / 512 * 1000 for each in planned.plan.by_size]
    assert sums_ms == pytest.approx(expected)


def test_bars_of_memory_sum_to_what_is_needed_below_what_there_is(page, planned):
    heights = [trace["y"] for trace in figure(page, "plan-memory").values()]
    sums_gb = [sum(part or 0.0 for part in parts) for parts in zip(*heights, strict=True)]
    assert sums_gb == pytest.approx([each.memory_bytes / 1e9 for each in planned.plan.by_size])
    (script,) = page.all("script", id="figure-plan-memory-data")
    (line,) = json.loads(script["text"])["layout"]["shapes"]
    assert line["y0"] == line["y1"] == 80.0
    assert max(sums_gb) <= 80.0


def test_time_and_money_of_each_size_are_a_point(page, planned):
    traces = figure(page, "plan-trade")
    front = traces["best trade-offs"]
    assert front["x"] == pytest.approx([each.time.value / 3600 for each in planned.plan.pareto])
    assert front["y"] == pytest.approx([each.bill.usd for each in planned.plan.pareto])
    assert "kg CO2" in front["hovertext"][0]


def test_each_figure_says_in_words_what_it_shows(page, planned):
    told = [found["attributes"]["aria-label"] for found in page.all("div", role="img")]
    assert len(told) == 5  # time, efficiency, trade-off, seconds, memory
    for each in planned.sizes:
        assert f"at {each.option.num_accelerators}" in told[0]
    assert "computing" in told[3]
    assert "An accelerator has 80 GB." in told[4]


def test_alternatives_and_rejections_have_rows_of_their_own(page, planned):
    (section,) = page.all("section", id="choices")
    for each in planned.plan.alternatives:
        assert each.strategy.text() in section["text"]
    assert "more memory than an accelerator has" in section["text"]


def test_facts_formulas_and_priors_name_their_sources(page):
    assert "Lambda" in shown(page) or "RunPod" in shown(page)
    for source in ("Korthikanti et al. 2022", "Patarasuk and Yuan 2009", "McCandlish et al. 2018"):
        assert source in page.all("section", id="method")[0]["text"]
    assert "product_fraction" in page.all("details", id="parameters")[0]["text"]


def test_an_uncalibrated_plan_says_that_no_error_is_known(planned, parsed):
    (record,) = parsed(html.render(PLAN, planned)).all("section", id="plan-record")
    assert "no error of a step can be stated" in record["text"]


def test_the_record_of_a_calibration_is_shown(planned, parsed):
    basis = replace(
        planned.plan.basis,
        name="vtrain",
        num_held_out=1160,
        median_abs_error=0.043,
        p90_abs_error=0.127,
        coverage=0.911,
    )
    page = parsed(html.render(PLAN, replace(planned, plan=replace(planned.plan, basis=basis))))
    (record,) = page.all("section", id="plan-record")
    assert all(amount in record["text"] for amount in ("4.3 %", "12.7 %", "91.1 %", "1,160"))
    assert "the time of a step by 4.3 % on 1,160 held out" in page.all("header")[0]["text"]


def test_a_published_training_of_the_same_size_stands_beside_the_plan(planned, parsed):
    seen = Evidence(
        kind="published", ref=HOSTILE, num_accelerators=8, time_s=5400.0, weight=None, is_own=False
    )
    page = parsed(html.render(PLAN, replace(planned, plan=replace(planned.plan, seen=seen))))
    point = figure(page, "plan-times")["published training"]
    assert (point["x"], point["y"]) == ([8.0], [1.5])
    (record,) = page.all("section", id="plan-record")
    assert "took 90.0 min on as many of the same accelerators, evaluation and start-up" in record["text"]
    assert page.all("img") == []


def test_where_nothing_fits_the_page_says_what_is_needed_and_what_would_help(planned_of, parsed):
    found = planned_of(workload="gpt3", fewest=1, most=1)
    page = parsed(html.render(PLAN, found))
    assert page.all("h1")[0]["text"] == f"GPT-3 175B does not fit on 1 {TIMES} A100 SXM4 80 GB"
    assert found.plan.remedy in shown(page)
    assert "1 x 80 GB hold 80 GB" in shown(page)
    (memory,) = page.all("section", id="memory")
    assert found.plan.leanest.strategy.text() in memory["text"]
    assert [each["attributes"]["aria-label"].partition(",")[0] for each in page.all("div", role="img")] == [
        "Memory of the fullest accelerator"
    ]
    assert "Left out for lack of data: Time against accelerators" in shown(page, "footer")


def test_a_deadline_that_nothing_keeps_is_named_as_the_reason(planned_of, parsed):
    page = parsed(html.render(PLAN, planned_of(deadline_s=60.0)))
    assert "misses the deadline on 2 to 8" in page.all("h1")[0]["text"]
    assert "later than the deadline" in page.all("section", id="choices")[0]["text"].lower()


def test_accelerators_compared_have_a_row_each(planned_of, parsed):
    found = planned_of(accelerator=("a100-sxm4-80gb", "h100-sxm5-80gb"))
    page = parsed(html.render(PLAN, found))
    text = page.all("section", id="choices")[0]["text"]
    assert "A100 SXM4 80 GB" in text
    assert "H100 SXM5 80 GB" in text
    assert "Compared with" in page.all("header")[0]["text"]


def test_without_a_price_accelerator_hours_stand_in(planned, parsed):
    def unpriced(option):
        return replace(option, bill=replace(option.bill, money=None))

    plan = planned.plan
    plan = replace(
        plan,
        rates=replace(plan.rates, price=None),
        recommended=unpriced(plan.recommended),
        by_size=tuple(map(unpriced, plan.by_size)),
        pareto=tuple(map(unpriced, plan.pareto)),
    )
    sizes = tuple(replace(each, option=unpriced(each.option)) for each in planned.sizes)
    page = parsed(html.render(PLAN, replace(planned, plan=plan, sizes=sizes)))
    front = figure(page, "plan-trade")["best trade-offs"]
    assert front["y"] == pytest.approx([each.bill.accelerator_hours for each in plan.pareto])
    assert "No price is known: give --price." in shown(page)


def test_hostile_names_are_text_everywhere(planned, parsed):
    plan = planned.plan
    hostile = replace(
        plan,
        workload=replace(plan.workload, title=HOSTILE, source=HOSTILE),
        cluster=replace(plan.cluster, source=HOSTILE),
        length=replace(plan.length, words=HOSTILE, missing=(HOSTILE,)),
        basis=replace(plan.basis, name=HOSTILE, words=HOSTILE),
        remedy=HOSTILE,
        notes=(HOSTILE,),
    )
    page = parsed(html.render(PLAN, replace(planned, plan=hostile)))
    assert page.all("img") == []
    assert [found["tag"] for found in page.elements].count("script") == 2 + 5
    assert "<img src=x" in shown(page)
    assert "\u202e" not in shown(page)
    assert "\x1b" not in shown(page)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_can_show_it_too(planned, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=80, force_terminal=False, legacy_windows=False)
    terminal.render(PLAN, planned, console)
    stream.flush()
    lines = stream.buffer.getvalue().decode(encoding).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("Time against money and energy" in line for line in lines)
