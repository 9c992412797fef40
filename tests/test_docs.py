"""The pages are true: commands run and print what is shown, links resolve, tables equal the schema, examples run."""

import doctest
import importlib.util
import json
import math
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_line import in_process, programs

import equipoise
from equipoise.calibration.published import published_steps
from equipoise.cli.app import verbs
from equipoise.runs.store import PUBLISHED_STEPS, TABLES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_spec = importlib.util.spec_from_file_location("sessions", DOCS / "sessions.py")
sessions = importlib.util.module_from_spec(_spec)
sys.modules["sessions"] = sessions
_spec.loader.exec_module(sessions)

WITH_SESSIONS = [page for page in sessions.PAGES if any(sessions.sessions(page))]


@pytest.mark.parametrize("page", WITH_SESSIONS, ids=lambda page: page.name)
def test_commands_on_the_pages_print_what_is_shown(page, tmp_path):
    if page != ROOT / "README.md":  # its commands need no file: they run wherever the package is installed
        sessions.furnish(tmp_path)
    found = list(sessions.sessions(page))
    assert found
    for session in found:
        printed = _printed(session.command, tmp_path)
        assert _without_times(printed) == _without_times(session.shown), (
            f"{page.name}:{session.line}: {session.command} (make docs rewrites it)"
        )


def _printed(command, folder):
    """What a command prints: run here where it needs no shell, so that commands share what they search."""
    program, *arguments = shlex.split(command)
    if program != "equipoise" or {*"|<>;&$`*"} & {*command}:
        return sessions.printed(command, folder=folder, programs=[programs()])
    ended = in_process(*arguments, cwd=folder, env={"NO_COLOR": "1", "EQUIPOISE_LEDGER": "ledger.jsonl"})
    assert "" in {ended.stdout, ended.stderr}, command  # else their order would count
    return ended.stdout + ended.stderr


def test_a_command_that_prints_nothing_is_no_session(tmp_path):
    assert sessions.printed("echo 8 | grep 8", folder=tmp_path) == "8\n"
    with pytest.raises(ValueError, match="grep 9"):
        sessions.printed("echo 8 | grep 9", folder=tmp_path)


def _without_times(text):
    """What a command prints but for how long it searched, which is the machine's."""
    return re.sub(r"(strategies in )[\d.]+( s;)", r"\1...\2", text)


def test_every_verb_is_shown_in_the_readme_or_docs():
    pages = "\n".join(page.read_text() for page in sessions.PAGES)
    missing = [verb for verb in verbs() if not re.search(rf"equipoise {verb}\b", pages)]
    assert not missing


def test_options_beside_a_verb_are_options_of_it():
    declared = {verb: {*re.findall(r"--[a-z][\w-]*", in_process(verb, "--help").stdout)} for verb in verbs()}
    commands = re.compile(
        rf"(?:^\s*(?:\$ )?|`)(?:equipoise )?({'|'.join(verbs())})((?: [^`\n|;]*)?--[^`\n|;#]*)", re.MULTILINE
    )
    # Not those of how to add an option, and not what an earlier version had.
    pages = {*sessions.PAGES, ROOT / "CONTRIBUTING.md"} - {
        DOCS / "extend.md",
        *(DOCS / "experiments").iterdir(),
    }
    found = [(page.name, *each) for page in pages for each in commands.findall(page.read_text())]
    assert len(found) > 100
    assert not [
        (page, verb, option)
        for page, verb, rest in found
        for option in {*re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)} - declared[verb]
    ]


def _headings(text):
    """Anchors as forges make them from headings."""
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*sessions.PAGES, *ROOT.glob("[CS]*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    broken = []
    for target in targets:
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        if not linked.exists() or (anchor and anchor not in set(_headings(linked.read_text()))):
            broken.append(target)
    assert not broken


def test_pages_that_are_named_exist():
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in [*sessions.PAGES, *ROOT.glob("[CS]*.md"), *(ROOT / "src").rglob("*.py")]
        for name in re.findall(r"\bdocs/[\w/\-]+\.(?:md|py)\b", page.read_text())
    }
    assert named
    assert not {(page, name) for page, name in named if not (ROOT / name).exists()}


def test_the_site_shows_every_page_and_the_reference_every_name():
    navigation = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(navigation) == sorted(pages)
    names = re.findall(r"^::: equipoise\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted({*equipoise.__all__} - {"__version__"})


def test_code_in_tables_has_no_bar():
    """Forges split a cell at a bar that is not escaped, and the site shows the backslash of one that is."""
    rows = [
        line for page in sessions.PAGES for line in page.read_text().splitlines() if line.startswith("| ")
    ]
    assert len(rows) > 1000
    assert not [row for row in rows if re.search(r"`[^`]*\\\|[^`]*`", row)]


def test_the_index_leads_to_every_page_for_users():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text()))
    folders = ("get-started", "decide", "measure", "understand", "reference")
    pages = {page.relative_to(DOCS).as_posix() for folder in folders for page in (DOCS / folder).glob("*.md")}
    assert pages
    assert pages <= linked


def _median(record):
    return f"{100 * record['median']:.1f} %"


def _coverage(record):
    return f"{100 * record['coverage']:.0f} %"


def test_the_accuracy_table_of_the_readme_states_the_records():
    readme = (ROOT / "README.md").read_text()
    header = "| predicted | tested on | median error | 90 % coverage | seen before? |"
    rows = readme.partition(header)[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells
    assert all(re.search(r"\]\((src|docs)/", tested_on) for _, tested_on, *_ in cells)

    def row(file):
        return next(
            (error, coverage) for _, tested_on, error, coverage, _ in cells if f"/{file})" in tested_on
        )

    def data(file):
        return json.loads((ROOT / "src" / "equipoise" / "data" / file).read_text())

    largest = next(each for each in data("forecast.json")["backtests"] if each["protocol"] == "largest")
    ours, power, perfect = (
        largest["pooled_law"],
        *(largest["baselines"][name] for name in ("power_law", "perfect")),
    )
    medians = [f"{100 * each['median_abs_error']:.1f} %" for each in (ours, power, perfect)]
    error, coverage = row("forecast.json")
    assert re.findall(r"[\d.]+ %", error) == medians
    assert coverage == _coverage(ours)
    assert row("combined.json") == (
        _median(data("combined.json")["record"]),
        _coverage(data("combined.json")["record"]),
    )
    advice = data("combined_advice.json")["errors"][0]
    assert (advice["objective"], advice["held_out"], advice["jump"]) == ("answer", "largest", "all")
    error, coverage = row("combined_advice.json")
    assert re.findall(r"[\d.]+ %", error) == [
        f"{100 * advice['methods']['equipoise']['within_doubling']:.0f} %"
    ]
    assert coverage == _coverage(advice)
    chips = data("transfer.json")["records"]
    assert row("transfer.json") == ("; ".join(map(_median, chips)), "; ".join(map(_coverage, chips)))
    plans = data("plans.json")["records"]
    to_target = [each for each in plans if "pretraining" not in each["kind"]]
    assert row("plans.json")[0] == "; ".join(map(_median, to_target))
    pretrainings = [each for each in plans if "pretraining" in each["kind"]]
    assert row("0049-usual-batches-by-training-length.md")[0] == "; ".join(map(_median, pretrainings))


def test_how_wrong_estimators_are_is_stated_as_recorded():
    rows = dict(
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (DOCS / "decide" / "advice.md").read_text(), re.MULTILINE)
    )

    def data(file):
        return json.loads((ROOT / "src" / "equipoise" / "data" / file).read_text())

    record, chips = data("combined.json")["record"], data("transfer.json")["records"]
    jumps, doublings = record["by_jump"], record["carried_log_sd"]
    expected = {
        "published": [
            *(each["published_scale"] for each in jumps),
            *(doublings[place] for place in (1, 3, 5)),
        ],
        "published, transferred from another chip": [each["log_sd"] for each in chips],
        "model": [
            *(each["modelled_log_sd"] for each in jumps),
            *(record["modelled_log_sd"][kind] for kind in ("transformer", "other")),
        ],
    }
    for name, values in expected.items():
        assert re.findall(r"\b\d\.\d+\b", rows[name]) == [f"{value:.2f}" for value in values]


def test_commands_of_the_readme_are_whole():
    commands = [session.command for session in sessions.sessions(ROOT / "README.md")]
    assert commands
    assert not [command for command in commands if re.search(r"[|<>;&]", command)]


def test_the_readme_names_targets_of_make():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"`make (\w+)`", (ROOT / "README.md").read_text())
    assert named
    assert {*named} <= {*targets}


@pytest.mark.parametrize("table", [*TABLES, PUBLISHED_STEPS], ids=lambda table: table.name)
def test_tables_page_equals_the_schema(table):
    page = (DOCS / "reference" / "tables.md").read_text()
    section = re.search(
        rf"^## `{table.name}`: {re.escape(table.row)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert section, f"docs/reference/tables.md has no section for {table.name}: {table.row}"
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section.group(1), re.MULTILINE)
    assert rows == [(column.name, column.kind, column.meaning) for column in table.columns]
    assert f"Key: {', '.join(f'`{name}`' for name in table.key)}." in section.group(1)


def test_the_sources_of_published_steps_have_the_figures_that_the_page_says():
    page = (DOCS / "understand" / "published-steps.md").read_text()
    stated = re.findall(r"^\| ([\w.-]+/[\w.-]+) \| ([\d,]+) \|", page, re.MULTILINE)
    shipped = Counter(published_steps()["repository"])
    assert stated
    counted = {name: shipped[f"github:{name.lower()}"] for name, _ in stated}
    assert counted == {name: int(number.replace(",", "")) for name, number in stated}


# The examples of decide/models.md and measure/watch.md run beside the tests of what they show.
WITH_EXAMPLES = [
    DOCS / "reference" / "python.md",
    DOCS / "decide" / "launch.md",
    DOCS / "get-started" / "own-loop.md",
    DOCS / "understand" / "scaling-course.md",
]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_python_examples_give_what_is_shown(page, tmp_path, monkeypatch):
    if "import digits" in page.read_text():
        pytest.importorskip("torch")
    sessions.furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= page.read_text().count("```python")
    assert result.failed == 0


def _types(value):
    """A document with its values replaced by the kinds of JSON value they are."""
    if isinstance(value, dict):
        return {key: _types(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_types(inner) for inner in value]
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def _differences(shown, printed, path="$"):
    """Where two documents differ; numbers may in their last digits, which libraries do not promise."""
    if isinstance(shown, dict) and isinstance(printed, dict) and list(shown) == list(printed):
        return [found for key in shown for found in _differences(shown[key], printed[key], f"{path}.{key}")]
    if isinstance(shown, list) and isinstance(printed, list) and len(shown) == len(printed):
        pairs = zip(shown, printed, strict=True)
        return [found for at, pair in enumerate(pairs) for found in _differences(*pair, f"{path}[{at}]")]
    if isinstance(shown, float) and isinstance(printed, float) and math.isclose(shown, printed, rel_tol=1e-9):
        return []
    if path.endswith(".search_s"):  # what the machine was busy with
        return []
    return [] if shown == printed else [f"{path}: shown {shown!r}, printed {printed!r}"]


EXAMPLES = sessions.json_examples(DOCS / "reference" / "json.md")


@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES, ids=[arguments for arguments, _ in EXAMPLES])
def test_json_examples_are_what_the_command_prints(arguments, shown, tmp_path):
    sessions.furnish(tmp_path)
    ended = in_process(*arguments.split(), cwd=tmp_path, env={"EQUIPOISE_LEDGER": "ledger.jsonl"})
    assert ended.returncode == 0, ended.stderr
    printed = sessions.first_items(json.loads(ended.stdout, parse_constant=pytest.fail))
    assert list(printed)[:3] == ["schema", "equipoise", "dataset"]
    if arguments.startswith("doctor"):  # its values are this machine's
        assert _types(printed) == _types(json.loads(shown))
    else:
        assert _differences(json.loads(shown), printed) == []


def test_every_verb_has_a_json_example():
    in_a_browser = {"serve"}
    assert {arguments.split()[0] for arguments, _ in EXAMPLES} == set(verbs()) - in_a_browser
