"""The dashboard in a real headless Chromium: forms ask as they change, names run nothing, keys are enough."""

import json
import math
import re
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
from watched_page import watched_page

pytestmark = pytest.mark.browser
SIX_SYSTEMS = ("dgx-h100", "b200", "mi300x", "h200-sxm5-141gb", "a100-sxm4-80gb", "tpu-v5p")


@pytest.fixture
def opened(browser, dashboard):
    @contextmanager
    def opened_page(path, **options):
        """A page of the dashboard once its answer is there."""
        with watched_page(
            browser,
            dashboard.url + path,
            is_own=lambda url: url.startswith((dashboard.url, "data:", "blob:")),
            is_trouble=lambda text: "status of 422" not in text,
            timeout_ms=300_000,  # a busy machine takes long to search
            **options,
        ) as page:
            page.locator("#result h1").wait_for()  # what is slow the first time comes after its frame
            yield page

    return opened_page


def drawn(page):
    """Wait until the first figure is there: figures are drawn when they come near the screen."""
    page.locator(".plot").first.scroll_into_view_if_needed()
    page.locator(".plot .main-svg").first.wait_for(state="attached")


def test_hostile_names_are_shown_and_never_run(opened, hostile):
    with opened("/study") as page:
        page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
        drawn(page)
        assert page.locator("img").count() == 0
        assert page.title().endswith(": MLPerf v4.1 · Equipoise")
        assert hostile[:30] in page.locator("main").inner_text()
    with opened("/runs") as page:
        assert page.locator("img").count() == 0
        assert "owned" not in page.title()
        assert "<script>" in page.locator("#failures").inner_text()


def test_a_change_asks_at_once_and_the_address_follows(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        first = page.locator("h1").inner_text()
        page.locator("form summary", has_text="What counts").click()
        page.get_by_label("Choose by").select_option("time")
        page.wait_for_url("**objective=time**")
        slider = page.get_by_label("Accelerators, at most, by slider")
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**max_accelerators=16**")
        page.locator("h1", has_text="16").wait_for()
        assert "accelerator=dgx-a100" in page.url  # though the field to compare with is empty
        assert page.locator("h1").inner_text() != first
        assert page.locator("#announcement").inner_text() == page.locator("h1").inner_text().replace(
            "\xa0", " "
        )
        assert slider.get_attribute("aria-valuetext") == "16"
        assert "global_batch" not in page.url
        page.reload()
        assert page.get_by_label("Accelerators, at most", exact=True).input_value() == "16"
        drawn(page)


def test_amounts_with_a_unit_move_the_slider(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8&deadline=7d") as page:
        slider = page.get_by_label("Deadline, hours, by slider")
        assert float(slider.input_value()) == pytest.approx(math.log2(168), abs=0.2)
        page.get_by_label("Deadline, hours", exact=True).fill("90min")
        assert float(slider.input_value()) == pytest.approx(math.log2(1.5), abs=0.2)
        page.wait_for_url("**deadline=90min**")


def test_a_system_to_compare_with_brings_room_for_one_more(opened):
    with opened("/plan?workload=bert&accelerator=dgx-a100&accelerators=8") as page:
        assert page.get_by_label("Compared with").count() == 1
        page.get_by_label("Compared with").fill("dgx-h100")
        page.wait_for_url("**accelerator=dgx-a100&accelerator=dgx-h100**")
        page.locator("#accelerator-3").wait_for()
        assert page.get_by_label("Compared with").count() == 2
        assert page.locator("h1", has_text="H100").count() == 1


def test_what_is_typed_while_an_answer_is_on_its_way_stays(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        held = []

        def hold(route):
            held.append(route)

        page.route("**accelerator=dgx-h100**", hold)
        with page.expect_request("**accelerator=dgx-h100**"):
            page.get_by_label("On", exact=True).fill("dgx-h100")
        page.get_by_label("Compared with").fill("b200, mi300x")
        held[0].continue_()
        page.unroute("**accelerator=dgx-h100**")  # the page is used again
        page.locator("h1", has_text="H100").wait_for()
        assert page.get_by_label("Compared with").input_value() == "b200, mi300x"


def test_a_slider_between_doublings_has_two_digits(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8&deadline=4") as page:
        page.get_by_label("Deadline, hours, by slider").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**deadline=4.8**")  # a quarter of a doubling: 4.757
        assert page.get_by_label("Deadline, hours", exact=True).input_value() == "4.8"


def test_part_of_a_name_is_not_asked_about(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        first = page.locator("h1").inner_text()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        model = page.get_by_label("Train", exact=True)
        model.focus()
        page.keyboard.press("Control+A")  # an empty field would be a question of its own
        model.press_sequentially("resne")
        page.wait_for_timeout(700)  # longer than typing is waited for
        assert [each for each in asked if "resne" in each] == []
        assert page.locator("h1").inner_text() == first
        model.fill("retinanet")
        page.wait_for_url("**workload=retinanet**")
        assert page.evaluate("document.activeElement.id") == "workload"


def test_a_name_is_chosen_by_keys_alone(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        model = page.get_by_role("combobox", name="Train", exact=True)
        model.focus()
        page.keyboard.press("Control+A")
        page.keyboard.type("retina")
        assert model.get_attribute("aria-expanded") == "true"
        assert page.locator("#suggestions li").count() == 1
        page.keyboard.press("Escape")
        assert (model.get_attribute("aria-expanded"), model.input_value()) == ("false", "retina")
        assert "aria-activedescendant" not in model.evaluate("field => field.getAttributeNames()")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        marked = page.locator(f"#{model.get_attribute('aria-activedescendant')}")
        assert marked.get_attribute("aria-selected") == "true"
        page.keyboard.press("Enter")
        page.wait_for_url("**workload=retinanet&accelerator=dgx-a100**")
        page.locator("#result h1").wait_for()
        assert (model.input_value(), page.locator("#suggestions").is_visible()) == ("retinanet", False)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") != "workload"


def test_a_whole_name_that_is_typed_still_narrows_the_list(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        model = page.get_by_role("combobox", name="Train", exact=True)
        model.fill("gpt2")
        names = page.locator("#suggestions li code").all_inner_texts()
        assert {"gpt2", "gpt2_medium", "gpt2_xl"} <= {*names}
        assert all("gpt2" in each for each in names)
        page.keyboard.press("Escape")
        model.click()  # a list that is opened on a name offers the others
        assert page.locator("#suggestions li").count() > len(names)


def test_back_returns_to_the_question_that_was_sent(opened):
    first = "/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8"
    with opened(first) as page:
        most = page.get_by_label("Accelerators, at most", exact=True)
        for number in ("16", "32"):
            most.fill(number)
            if number == "32":  # the other is sent before what is typed asks by itself
                page.wait_for_url(f"**max_accelerators={number}**")
            page.get_by_role("button", name="Advise").click()
            page.locator("#files a[href*='max_accelerators=" + number + "']").first.wait_for()
        for number in ("16", "8"):
            page.go_back()
            page.locator(f"#max_accelerators[value='{number}']").wait_for()  # as the page comes anew
            page.locator("#result h1").wait_for()
            assert f"max_accelerators={number}" in page.url


def test_enter_asks_about_what_was_typed(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        field = page.get_by_role("combobox", name="On", exact=True)
        field.fill("3x rtx4090")  # a value that is not offered, as the field itself suggests
        page.keyboard.press("Enter")
        page.wait_for_url("**accelerator=3x*rtx4090**")
        page.locator("#result h1", has_text="4090").wait_for()


def test_jobs_are_shared_out_as_rows_are_filled(opened):
    first = "/allocate?accelerator=16x+h100&workload-1=bert&deadline-1=1+h"
    with opened(first) as page:
        assert page.locator("#result tbody").first.locator("tr").count() == 1
        page.locator("#workload-2").fill("retinanet")
        page.wait_for_url("**workload-2=retinanet**")
        page.locator("#workload-3").wait_for()
        rows = page.locator("#result tbody").first.locator("tr")
        assert sorted(rows.locator("th").all_inner_texts()) == ["bert", "retinanet"]
        page.locator("summary", has_text="Paste jobs").click()
        page.locator("#pasted").fill("name,times\nours,8=30min 16=20min")
        page.wait_for_url("**pasted=**")
        page.locator("#result tbody tr", has_text="ours").wait_for()
        assert rows.count() == 3


def test_it_opens_with_the_question_asked_last(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        page.locator(".brand").click()
        page.wait_for_url("**/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8")
    with opened("/") as page:
        assert page.url.endswith("/advice")


def test_scenarios_are_kept_by_name_and_lead_back(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8&deadline=7d") as page:
        headline = page.locator("h1").inner_text()
        page.get_by_label("Keep it as a scenario").fill("<b>eight</b>")
        page.keyboard.press("Enter")
        page.goto(page.url.replace("max_accelerators=8", "max_accelerators=16"))
        page.get_by_label("Keep it as a scenario").fill("sixteen")
        page.get_by_role("button", name="Keep", exact=True).click()
        rows = page.locator(".scenarios tbody tr")
        assert rows.count() == 2
        assert rows.first.locator("td").first.inner_text() == headline
        assert "%" in rows.first.locator("td").nth(1).inner_text()
        rows.first.locator("a", has_text="<b>eight</b>").click()
        page.wait_for_url("**max_accelerators=8&deadline=7d")
        page.get_by_role("button", name="Remove sixteen").click()
        assert page.locator(".scenarios tbody tr").count() == 1


def test_a_refusal_is_no_scenario_to_keep(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        name = page.get_by_label("Keep it as a scenario")
        assert name.is_visible()
        page.goto(page.url.replace("max_accelerators=8", "max_accelerators=0"))
        assert not name.is_visible()


def test_scenarios_fit_a_phone(opened):
    options = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8", **options) as page:
        page.get_by_label("Keep it as a scenario").fill("a name of some length, as people give them")
        page.get_by_role("button", name="Keep", exact=True).click()
        assert page.locator(".scenarios tbody tr").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        remove = page.get_by_role("button", name="Remove").bounding_box()
        assert remove["x"] + remove["width"] <= 390


def test_an_answer_is_saved_as_it_was_asked_for(opened):
    with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8") as page:
        slider = page.get_by_label("Accelerators, at most, by slider")
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**max_accelerators=16**")
        page.locator("#files a[href*='max_accelerators=16']").first.wait_for()
        with page.expect_download() as started:
            page.get_by_role("link", name="JSON").click()
        found = json.loads(started.value.path().read_bytes())
        assert started.value.suggested_filename == "advise.json"
        assert found["question"]["max_accelerators"] == 16


def test_another_workload_brings_its_own_systems_and_back_leads_back(opened):
    with opened("/compare?workload=bert") as page:
        page.get_by_role("checkbox").first.check()
        page.wait_for_url("**entry=**")
        page.get_by_label("Workload").select_option("retinanet")
        page.locator("h1", has_text="RetinaNet").wait_for()
        assert "entry=" not in page.url
        assert page.get_by_role("checkbox").first.is_checked() is False
        page.go_back()
        page.locator("h1", has_text="BERT").wait_for()
        assert page.get_by_label("Workload").input_value() == "bert"


def test_a_wrong_question_is_refused_in_the_page(opened):
    with opened("/plan?workload=bert&accelerator=dgx-a100&accelerators=8") as page:
        page.locator("form summary", has_text="Limits").click()
        page.get_by_label("Deadline, hours", exact=True).fill("-3")
        page.locator("#result .summary", has_text="above 0").wait_for()
        assert "above 0" in page.locator("main").inner_text()
        page.get_by_label("Deadline, hours", exact=True).fill("")
        page.locator("h1", has_text="Take").wait_for()


def test_the_keyboard_reaches_everything_in_order(opened):
    with opened("/plan?workload=bert&accelerator=dgx-a100&accelerators=8") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "result"
        page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        page.locator(".brand").focus()
        reached = []
        for _ in range(10):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 12)"))
        assert reached[:2] == ["Advice", "Plan"]
        assert any("theme" in each for each in reached)
        roles = page.locator("body").aria_snapshot()
        for landmark in ("banner", "main", 'navigation "Pages"', "contentinfo", "form"):
            assert landmark in roles, landmark


def test_buying_is_chosen_by_keys_alone(opened):
    with opened("/advice?workload=bert&accelerator=dgx-h100&max_accelerators=8") as page:
        page.locator("h1", has_text="Take").wait_for()
        page.locator("summary", has_text="Buying").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "buy"
        page.keyboard.press("ArrowDown")
        page.wait_for_url("**buy=yes**")
        page.locator("#buying-title").click()
        assert "months" in page.locator("#buying").inner_text()


def test_the_theme_stays_while_pages_change(opened):
    with opened("/accuracy", color_scheme="light") as page:
        page.get_by_role("button", name="Dark theme").click()
        page.get_by_role("link", name="Compare", exact=True).click()
        page.get_by_role("button", name="Light theme").wait_for()
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", ground)[:3])) < 200


@pytest.mark.parametrize(
    "path",
    [
        "/study",
        "/compare",
        "/plan?workload=bert&accelerator=dgx-a100&accelerators=8",
        "/runs",
        "/allocate",
        "/advice?workload=bert&accelerator=dgx-h100&max_accelerators=8&deadline=9&buy=yes",
    ],
)
def test_a_phone_never_scrolls_sideways(opened, path):
    with opened(path, viewport={"width": 390, "height": 800}, is_mobile=True) as page:
        page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tops = page.locator("nav[aria-label=Pages] a").evaluate_all("all => all.map(each => each.offsetTop)")
        assert (len(tops), len(set(tops))) == (7, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/accuracy",
        "/advice?workload=llama2_7b&tokens=1G&deadline=9d&max_accelerators=8&"
        + "&".join(f"accelerator={each}" for each in SIX_SYSTEMS),
    ],
)
def test_on_a_phone_figures_of_tables_are_in_sight_and_named(opened, path):
    with opened(path, viewport={"width": 390, "height": 844}, is_mobile=True) as page:
        page.locator("summary").evaluate_all("all => all.forEach(each => each.parentElement.open = true)")
        figures = page.locator("#result .folding td.number")
        rights = figures.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
        assert len(rights) > 20
        assert max(rights) <= 390
        table = page.locator("#result .folding").first
        heads = table.get_by_role("columnheader").count()
        assert heads == table.get_by_role("row").nth(1).locator("th, td").count() > 3
        # Each figure has the heading of its column above it.
        titles = table.locator("thead th button").all_inner_texts()
        labels = (
            table.locator("tbody tr")
            .first.locator("th, td")
            .evaluate_all(
                "all => all.map(each => [each.dataset.label, getComputedStyle(each, '::before').content, each.className])"
            )
        )
        assert [label for label, _, _ in labels] == titles
        figures = [(label, shown) for label, shown, kind in labels if kind == "number"]
        assert figures
        assert all(shown == f'"{label}"' for label, shown in figures)
        cut = "each => each.scrollWidth > each.clientWidth + 1"
        assert [each for each in page.locator("table.matrix td").all() if each.evaluate(cut)] == []


@pytest.mark.parametrize("path", ["/runs", "/study", "/accuracy", "/advice?workload=bert&accelerator=h100"])
def test_a_phone_cuts_no_heading_of_a_table(opened, path):
    with opened(path, viewport={"width": 390, "height": 844}, is_mobile=True) as page:
        page.locator("summary").evaluate_all("all => all.forEach(each => each.parentElement.open = true)")
        headings = page.locator("#result th:visible button")
        sizes = headings.evaluate_all(
            "all => all.map(each => [each.textContent, each.scrollWidth, each.clientWidth])"
        )
        assert sizes
        assert [text for text, needed, given in sizes if needed > given + 1] == []


def test_no_field_cuts_off_what_an_empty_one_means(opened):
    for width in (390, 1280):
        options = {"viewport": {"width": width, "height": 844}, "is_mobile": width == 390}
        with opened("/advice?workload=bert&accelerator=dgx-a100&max_accelerators=8", **options) as page:
            page.locator("form summary").evaluate_all("all => all.forEach(each => each.click())")
            fields = page.locator("form input:placeholder-shown")
            assert fields.count() > 20
            cut = fields.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.id)")
            assert cut == []


def test_the_fields_in_sight_and_their_button_share_a_line(opened):
    for path in ("/advice?workload=bert&accelerator=dgx-a100", "/plan?workload=bert&accelerator=dgx-a100"):
        with opened(path, viewport={"width": 1280, "height": 900}) as page:
            tops = page.locator("form.question > .at > .field, form.question > .last").evaluate_all(
                "all => all.map(each => each.offsetTop)"
            )
            assert (len(tops), len(set(tops))) == (7, 1)
            tops = page.locator("#workload, form.question button").evaluate_all(
                "all => all.map(each => Math.round(each.getBoundingClientRect().top))"
            )
            assert abs(tops[0] - tops[1]) <= 2


def test_a_page_out_of_sight_does_not_ask(browser, start, tmp_path, running_sweep):
    started = start("--runs", tmp_path)
    with running_sweep(tmp_path / "mine", num_finished=1):
        page = browser.new_page()
        page.goto(f"{started.url}/runs")
        with page.expect_request("**/runs/live*"):
            pass
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(5000)  # twice as long as between two requests
        assert asked == []
        with page.expect_request("**/runs/live*"):
            page.evaluate("delete document.hidden")
        page.close()


def test_a_running_sweep_is_live(browser, start, tmp_path, running_sweep):
    started = start("--runs", tmp_path)
    with running_sweep(tmp_path / "mine", num_finished=1) as add:
        page = browser.new_page()
        page.goto(f"{started.url}/runs")
        assert page.get_by_role("progressbar").get_attribute("value") == "1"
        add()
        page.locator("h1", has_text="2 of 6 runs; running").wait_for(timeout=60_000)
        page.close()


def test_without_javascript_forms_ask_and_answers_come(browser, dashboard):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{dashboard.url}/compare")
    page.get_by_label("Workload").select_option("retinanet")
    page.get_by_role("button", name="Compare").click()
    assert "RetinaNet" in page.locator("h1").inner_text()
    assert "workload=retinanet" in page.url
    context.close()


def test_what_is_slow_the_first_time_shows_its_frame_and_then_its_answer(opened):
    # 671 G parameters on two systems take seconds to search, far longer than a page is held back for its answer.
    with opened("/advice?workload=deepseekv3_671b&tokens=1T&accelerator=h100,mi300x") as page:
        assert page.title().endswith("· Equipoise")
        assert page.locator(".waiting").count() == 0
        page.locator("#announcement", has_text=re.compile(r"\S")).wait_for(state="attached")
        assert page.locator("#announcement").inner_text() == page.locator("h1").inner_text().replace(
            "\xa0", " "
        )


def test_no_more_systems_are_offered_than_are_compared(opened, dashboard):
    _, page = dashboard.page("/compare?workload=bert")
    entries = [box["value"] for box in page.all("input") if box.get("name") == "entry"]
    with opened("/compare?workload=bert&" + urlencode([("entry", each) for each in entries[:5]])) as page:
        boxes = page.locator("#field-entry input")
        assert boxes.nth(6).is_enabled()
        boxes.nth(5).check()
        page.wait_for_url(re.compile(r"(entry=.*){6}"))
        assert boxes.nth(6).is_disabled()
        boxes.nth(0).uncheck()
        assert boxes.nth(6).is_enabled()
        page.wait_for_url(lambda url: url.count("entry=") == 5)
        page.locator("#result h1").wait_for()


def test_with_as_many_systems_as_may_be_the_page_offers_no_other(dashboard):
    _, page = dashboard.page("/compare?workload=bert")
    entries = [box["value"] for box in page.all("input") if box.get("name") == "entry"]
    assert len(entries) > 6
    _, full = dashboard.page("/compare?workload=bert&" + urlencode([("entry", each) for each in entries[:6]]))
    boxes = [box for box in full.all("input") if box.get("name") == "entry"]
    assert ["checked" in box for box in boxes].count(True) == 6
    assert all(("checked" in box) != ("disabled" in box) for box in boxes)
