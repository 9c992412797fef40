"""The page in a real headless Chromium: it draws, sorts, prints, fits a phone, and runs nothing of a name."""

from functools import partial

import pytest
from made_answer import made_answer
from watched_page import watched_page

from equipoise import allocate
from equipoise.decide.decision import answer
from equipoise.decide.question.query import query
from equipoise.report import html
from equipoise.report.pages.allocate import ALLOCATION
from equipoise.report.pages.answer import ANSWER
from equipoise.report.pages.study import STUDY
from equipoise.runs.embedded import scores

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>x</b>"

pytestmark = pytest.mark.browser


def page_of(browser, folder, findings, kind=STUDY, **options):
    """The page of some findings, offline."""
    path = folder / "report.html"
    path.write_text(html.render(kind, findings), encoding="utf-8")
    address = path.as_uri()
    return watched_page(
        browser,
        address,
        is_own=lambda url: url == address or url.startswith("data:"),
        timeout_ms=10_000,
        offline=True,
        **options,
    )


@pytest.fixture
def opened(browser, tmp_path):
    return partial(page_of, browser, tmp_path)


def drawn_points(page, name):
    return page.evaluate(
        "name => document.getElementById(name).querySelector('.plot').data"
        ".filter(trace => trace.name).map(trace => [trace.x, trace.y])",
        name,
    )


def show_all(page):
    """Scroll to each figure, so that it is drawn. (Waiting for a script would need what the policy forbids.)"""
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for(state="attached")


def test_every_figure_is_drawn_with_the_findings_numbers(findings, opened):
    with opened(findings) as page:
        show_all(page)
        entries = findings.workloads[0].entries
        expected = [[list(map(float, entries["num_accelerators"])), entries["relative_efficiency"].to_list()]]
        assert drawn_points(page, "figure-bert-relative") == expected
        assert page.locator("#figure-bert-relative .points path").count() == 3


@pytest.mark.parametrize("width", [300, 700])
def test_a_figure_takes_the_width_of_its_place_though_the_window_keeps_its_own(findings, opened, width):
    expect = pytest.importorskip("playwright.sync_api").expect
    with opened(findings) as page:
        show_all(page)
        page.locator(".panels").evaluate_all(
            "(all, width) => all.forEach(each => { each.style.width = `${width}px`; })", width
        )
        plots = page.locator(".plot").all()
        assert plots
        for plot in plots:
            place = plot.evaluate("each => each.offsetWidth")
            assert place <= width
            expect(plot.locator(".main-svg").first).to_have_attribute("width", str(place))


def test_a_hostile_name_is_shown_and_never_run(findings_of, opened):
    with opened(findings_of(submitter=HOSTILE, system=HOSTILE, accelerator=HOSTILE)) as page:
        show_all(page)
        page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
        page.locator("#figure-bert-relative .plot").hover()
        assert page.locator("img").count() == 0
        assert page.title().endswith(": MLPerf v9.9")
        assert HOSTILE in page.locator("h1").inner_text()


def test_a_hover_names_system_and_log(findings, opened):
    with opened(findings) as page:
        page.locator("#figure-bert-relative").scroll_into_view_if_needed()
        box = page.locator("#figure-bert-relative .points path").nth(2).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        hover = page.locator("#figure-bert-relative .hoverlayer")
        hover.get_by_text("result_0.txt:102").wait_for()
        assert "Dell / XE-64" in hover.text_content()


def test_tables_sort_by_key_both_ways_from_the_keyboard(findings, opened):
    with opened(findings) as page:
        page.locator("#entries summary").first.click()
        table = page.locator("#entries table").first
        minutes = table.locator("th button", has_text="Minutes")
        minutes.focus()
        page.keyboard.press("Enter")
        assert table.locator("th[aria-sort=ascending]").inner_text().strip() == "Minutes"
        assert table.locator("tbody th").first.inner_text().startswith("Dell / XE-64")
        page.keyboard.press("Space")
        assert table.locator("th[aria-sort=descending]").inner_text().strip() == "Minutes"
        assert table.locator("tbody th").first.inner_text().startswith("Dell / XE-4")


def test_a_phone_never_scrolls_sideways(findings_of, opened):
    long = findings_of(submitter="Long" * 30, system="unbroken" * 20, accelerator="accelerator" * 9)
    with opened(long, viewport={"width": 320, "height": 800}, is_mobile=True) as page:
        show_all(page)
        page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
        for width_px in (320, 390, 768):  # as it is, and turned
            page.set_viewport_size({"width": width_px, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width_px


def contrast(page, selector):
    """WCAG contrast of an element's text with the page behind it."""
    return page.evaluate(
        """selector => {
            const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map((v) => v / 255)
                .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const style = getComputedStyle(document.querySelector(selector));
            let behind = document.querySelector(selector);
            while (/(, 0\\)|transparent)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
            const pair = [light(style.color), light(getComputedStyle(behind).backgroundColor)].sort((a, b) => b - a);
            return (pair[0] + 0.05) / (pair[1] + 0.05);
        }""",
        selector,
    )


SCHEMES = ("light", "dark")


def ground_in(page, scheme):
    """What is behind all of the page once it has a theme."""
    page.emulate_media(color_scheme=scheme)
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def test_text_has_contrast_in_both_themes(findings, opened):
    with opened(findings, color_scheme="light") as page:
        texts = (
            "h1",
            ".summary li",
            ".note",
            ".tile .detail",
            ".badge.good",
            ".badge.bad",
            ".toc a",
            "th button",
        )
        assert len({ground_in(page, scheme) for scheme in SCHEMES}) == 2
        for scheme in SCHEMES:
            ground_in(page, scheme)
            for selector in texts:
                assert contrast(page, selector) >= 4.5, (scheme, selector)


def test_figures_change_with_the_theme(findings, opened):
    with opened(findings, color_scheme="light") as page:
        page.locator("#figure-bert-systems").scroll_into_view_if_needed()
        tick = page.locator("#figure-bert-systems .xtick text").first
        before = tick.evaluate("each => getComputedStyle(each).fill")
        page.get_by_role("button", name="Dark theme").click()
        assert tick.evaluate("each => getComputedStyle(each).fill") != before
        assert page.get_by_role("button", name="Light theme").is_visible()


def test_the_legend_brings_one_series_forward(findings, opened):
    with opened(findings) as page:
        button = page.locator("#workloads .legend button", has_text="group 2")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        faded = page.evaluate(
            "document.querySelector('#figure-bert-systems .plot').data.map(trace => [trace.name, trace.opacity ?? 1])"
        )
        assert dict(faded) == {"group 1": 0.12, "group 2": 1}


def test_paper_shows_every_figure_and_every_fold(findings, opened, tmp_path):
    with opened(findings, color_scheme="dark") as page:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open]):not(.aside)").count() == 0
        undrawn = "[...document.querySelectorAll('.plot')].filter(plot => !plot.querySelector('.main-svg[viewBox]')).length"
        assert page.evaluate(undrawn) == 0
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.locator("#entries details:not([open])").count() == 1
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_without_javascript_every_number_is_still_there(findings, browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html.render(STUDY, findings), encoding="utf-8")
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "Figures need JavaScript" in page.locator("noscript").inner_text()
    assert page.locator("#entries tbody tr").count() == 4
    context.close()


def test_an_answer_draws_its_figures_with_its_own_numbers(opened):
    answer = made_answer()
    with opened(answer, ANSWER) as page:
        show_all(page)
        curves = page.evaluate(
            "document.querySelector('#figure-answer-times .plot').data"
            ".filter(trace => trace.name === 'H100 SXM5 80 GB' && !trace.fill).map(trace => [trace.x, trace.y])"
        )
        assert curves[0][0] == [8, 16, 32, 64]
        assert curves[0][1] == pytest.approx([29_400 / 3600, 15_000 / 3600, 7_800 / 3600, 4_200 / 3600])
        # One bar a size and kind of memory, and the line of what an accelerator has.
        assert page.locator("#figure-answer-memory .bars .point path").count() == 2 * 4
        assert page.locator("#figure-answer-memory .shapelayer path").count() == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_an_answer_fits_a_phone_in_both_themes(opened, is_refused):
    options = {"color_scheme": "light", "viewport": {"width": 390, "height": 800}, "is_mobile": True}
    with opened(made_answer(is_refused=is_refused), ANSWER, **options) as page:
        show_all(page)
        page.locator("summary").evaluate_all("all => all.forEach(each => each.click())")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shown = ".tile .detail" if is_refused else ".facts dd"
        for scheme in SCHEMES:
            ground_in(page, scheme)
            for selector in ("h1", shown, "th button", "footer p"):
                assert contrast(page, selector) >= 4.5, (scheme, selector)


FOUR_SYSTEMS = {
    "workload": "llama31_8b",
    "tokens": "1T",
    "accelerator": ["h100", "b200", "mi300x", "h200"],
    "deadline": "7d",
    "budget": 120_000,
}
LORA = {"workload": "llama2_70b_lora", "accelerator": ["h100", "b200"], "at": "8..512"}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}
# A4 less the margins of the style sheet, 13 and 12 mm a side, in CSS pixels of 1/96 inch.
PAPER = {"width": round(184 / 25.4 * 96), "height": round(273 / 25.4 * 96)}


SIX_COLUMNS = {
    "workload": "llama31_405b",
    "tokens": "15T",
    "accelerator": ["h100", "b200", "h200"],
    "terms": ["on_demand,spot"],
    "max_accelerators": 65_536,
    "deadline": "90d",
}


@pytest.fixture(
    scope="module", params=[FOUR_SYSTEMS, LORA, SIX_COLUMNS], ids=["four-systems", "lora", "six-columns"]
)
def real_answer(request):
    asked = dict(request.param)
    return answer(query(asked), scores=scores())


@pytest.fixture(scope="module")
def phone(browser, real_answer, tmp_path_factory):
    """The answer on a phone, opened once for all that only look at it."""
    with page_of(browser, tmp_path_factory.mktemp("phone"), real_answer, ANSWER, **PHONE) as page:
        yield page


@pytest.fixture(scope="module")
def paper(browser, real_answer, tmp_path_factory):
    """The answer as it is printed, opened once for all that only look at it."""
    with page_of(browser, tmp_path_factory.mktemp("paper"), real_answer, ANSWER, viewport=PAPER) as page:
        page.emulate_media(media="print")
        yield page


def test_a_card_of_a_phone_has_no_line_for_words_that_there_are_none_of(opened, tmp_path):
    jobs = tmp_path / "jobs.toml"
    job = '[[job]]\nname = "{}"\ntimes = {{ 8 = "2 h" }}\n{}'
    jobs.write_text(job.format("free", "") + job.format("hurried", 'deadline = "9 h"\n'))
    found = allocate(jobs, accelerator="8x h100-sxm5-80gb").record
    for options, num_lines in (PHONE, 1), ({}, 2):
        with opened(found, ALLOCATION, **options) as page:
            show_all(page)
            assert sum(each.is_visible() for each in page.locator("[data-label=Deadline]").all()) == num_lines


def bottom(page, selector):
    # Of all at once: asked one by one, a thousand of them take 5 s.
    return page.locator(selector).evaluate_all(
        """all => Math.max(...all.filter(each => each.getClientRects().length)
            .map(each => each.getBoundingClientRect().bottom))"""
    )


def test_the_first_screen_of_a_phone_has_what_time_money_and_chance(phone):
    assert bottom(phone, "h1") < bottom(phone, "#answer .tile") <= PHONE["viewport"]["height"]
    assert phone.locator("#answer .tile").count() == 4
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]


def test_the_answer_needs_no_inner_scrolling_on_a_phone(phone):
    boxes = phone.locator("#answer .scroll").evaluate_all(
        "all => all.map(each => [each.scrollWidth - each.clientWidth, each.scrollHeight - each.clientHeight])"
    )
    assert len(boxes) == 3
    assert all(max(each) <= 1 for each in boxes), boxes
    recommended = phone.locator("#answer .marked, #answer td.good").all()
    assert len(recommended) >= 2  # an hour may be worth no size that is recommended
    assert all(each.is_visible() for each in recommended)


# Numbers of the answer, and names of the unit, whose characters stand on several lines.
BROKEN = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("#answer"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (const each of node.data.matchAll(/[0-9][0-9.,]*[0-9]|USD/g)) {
            const range = document.createRange();
            range.setStart(node, each.index);
            range.setEnd(node, each.index + each[0].length);
            const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
            if (tops.size > 1) found.push(each[0]);
        }
    return found;
}"""


def test_no_number_is_broken_over_lines_on_a_phone_or_paper(phone, paper):
    assert phone.evaluate(BROKEN) == []
    assert paper.evaluate(BROKEN) == []


def test_the_answer_is_the_first_page_on_paper(paper):
    assert bottom(paper, "#answer *") <= PAPER["height"]
    assert paper.evaluate("getComputedStyle(document.querySelector('#answer')).breakAfter") == "page"


def test_on_paper_titles_of_folds_and_names_of_files_stay_whole(paper):
    # Chromium avoids a break only behind a block of the flow: not inside a flex box, which a summary is.
    style = "all => all.map(e => [getComputedStyle(e).display, getComputedStyle(e).breakAfter])"
    titles = paper.locator("details.part > summary").evaluate_all(style)
    assert titles
    assert {tuple(each) for each in titles} == {("block", "avoid")}
    cells = paper.locator("table:not(.matrix) td:not(.number, .path)")
    wraps = cells.evaluate_all("all => all.map(each => getComputedStyle(each).overflowWrap)")
    assert set(wraps) == {"break-word"}


def test_labels_of_the_drawing_collide_with_nothing(phone):
    boxes = phone.locator("#figure-answer-money text").evaluate_all(
        "all => all.map(each => each.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"
    )
    assert len(boxes) > 10
    # A line of type has a little air above and below its letters.
    pairs = [(one, other) for place, one in enumerate(boxes) for other in boxes[:place]]
    assert not [
        (a, b)
        for a, b in pairs
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 4
    ]


def test_on_a_desk_no_number_is_broken_and_every_chart_is_there_without_scrolling(opened, real_answer):
    with opened(real_answer, ANSWER, viewport={"width": 1280, "height": 800}) as page:
        assert page.evaluate(BROKEN) == []
        page.locator("details.part > summary").evaluate_all("all => all.forEach(each => each.click())")
        plots = page.locator(".plot")
        assert plots.count() >= 2
        page.locator(".plot .main-svg").nth(3 * plots.count() - 1).wait_for(state="attached")
        assert page.evaluate("scrollY") == 0


def test_the_drawing_needs_no_script(browser, tmp_path):
    path = tmp_path / "answer.html"
    path.write_text(html.render(ANSWER, made_answer()), encoding="utf-8")
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    # Four sizes of H100, two of B200, and the recommended one again as a star.
    assert page.locator("#figure-answer-money .marker").count() == 4 + 2 + 1
    context.close()


def test_a_link_of_the_contents_opens_its_fold(opened):
    with opened(made_answer(), ANSWER) as page:
        assert not page.locator("#sizes .table").first.is_visible()
        page.locator(".toc a", has_text="All systems").click()
        page.locator("#sizes .table").first.wait_for(state="visible")
