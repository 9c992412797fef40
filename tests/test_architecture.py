"""The rules of the house that a machine can check: import direction, heavy libraries, names, paths."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "equipoise"

# From the bottom up; the parts of one tier never import each other, except in the lowest, which is one vocabulary.
TIERS = (
    ("units", "errors", "files", "intervals", "notes", "stats", "glossary"),
    ("spec",),
    ("economics",),
    ("runs", "scaling", "perfmodel"),
    ("bench",),
    ("calibration",),
    ("diagnose", "launch"),
    ("decide",),
    ("study",),
    ("report",),
    ("library",),
    ("web",),
    ("cli",),
)
TIER = {part: height for height, parts in enumerate(TIERS) for part in parts}
# The parts, modules and packages, of each package that has packages inside: each imports earlier ones alone.
ORDER = {
    "bench": (
        *("trial", "environment", "trace", "phases", "topology", "launchers"),
        *("counters", "training", "summary", "collectives", "devices", "meters"),
        *("equipment", "stopwatch", "sweep", "communication_rank", "trial_rank"),
        *("watching", "worker"),
    ),
    "calibration": (
        *("collective_runs", "collective_verdicts", "user_collectives"),
        *("user_links", "published", "curves", "accuracy"),
        *("profiles", "step_rows", "scale_up_rows", "forecasts", "advice_backtest"),
        "validate",
    ),
    "decide": (
        *("question", "evidence", "answer", "select", "combine", "ledger"),
        *("strategies", "user_evidence", "estimators", "assessment", "other_chips", "candidates"),
        *("collect", "beyond_limits", "explanation"),
        *("decision", "prediction", "solve_for", "allocation"),
    ),
    "report": (
        *("format", "charts", "blocks", "figures", "svg", "json"),
        *("html", "textplot", "pages", "terminal"),
    ),
    "report.pages": (
        *(
            "accuracy",
            "published_steps",
            "breakdowns",
            "answer",
            "backtest",
            "collectives",
            "find",
            "topology",
            "trace",
        ),
        *("study", "allocate", "prediction", "sweep", "comparison", "watch"),
        *("ledger", "orientation"),
    ),
    "runs": (
        *("scoring", "sources", "store", "readers"),
        *("workers", "ingest", "embedded"),
    ),
    "runs.readers": ("cells", "mlperf", "exports", "measurements"),
    "spec": (
        *("hardware", "mlperf", "transformer", "scaled_transformer", "cluster", "links", "strategy"),
        *("workload", "hub_keys", "hub_diffusion", "hub_media", "hub_mixed", "hub_config"),
        *("catalogue", "torch_model"),
    ),
}
OUTSIDE_THE_TIERS = {"__init__", "__main__"}  # the front door: lazy names, and `python -m`
# Modules of which `advise` calls a function: a reader who follows an answer opens that many. It only falls.
MOST_MODULES = 60

HEAVY = ("polars", "scipy", "sklearn", "plotly", "torch", "numpy", "pandas", "rich.markdown")
BANNED_WORDS = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}
BANNED_PREFIXES = ("get_", "do_", "process_", "handle_")
MODULES = sorted(SOURCE.rglob("*.py"))
assert MODULES


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def _part(module: Path) -> str:
    return module.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def _imported(module: Path) -> tuple[tuple[str, int], ...]:
    """Every absolute name a module imports, at its top or anywhere inside, with its line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            found += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import; name the module in full"
            found += ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
    return tuple(found)


def _violations(module: Path) -> Iterator[str]:
    part = _part(module)
    for name, line in _imported(module):
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if package != "equipoise" or other == part or other not in TIER:
            continue
        if TIER[other] > TIER[part] or (TIER[other] == TIER[part] > 0):
            yield f"{module.relative_to(ROOT)}:{line}: {part} imports {other}"


def test_every_module_has_its_place_in_the_tiers():
    unplaced = {_part(module) for module in MODULES} - TIER.keys() - OUTSIDE_THE_TIERS
    assert not unplaced


def test_imports_point_down():
    wrong = [text for module in MODULES if _part(module) in TIER for text in _violations(module)]
    assert not wrong, "\n".join(wrong)


def test_the_page_on_architecture_names_what_is_there():
    """A name of a page is a path from the package, or lies beside one named before in its section."""
    missing = []
    for section in (ROOT / "docs" / "architecture.md").read_text().split("\n## "):
        folders = [SOURCE, ROOT]
        for name in re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", section):
            found = next((folder / name for folder in folders if (folder / name).exists()), None)
            if found is None:
                missing.append(f"{section.splitlines()[0]}: {name}")
            else:
                folders.insert(0, found if found.is_dir() else found.parent)
    assert not missing


def test_the_page_on_architecture_has_every_part_in_its_tier():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    assert set(re.findall(r"`([a-z]+)(?:\.py|/)?`", rows)) == TIER.keys() | {"data"}
    drawn = next(line for line in page.splitlines() if " <- " in line and line.startswith("    "))
    tiers = [re.findall(r"[a-z]+", tier) for tier in drawn.split("<-")]
    assert [set(tier) for tier in tiers] == [set(tier) for tier in TIERS]


# What docstrings name that is not of the package: other libraries, and files of data.
ELSEWHERE = {"aten", "lzma", "plotly", "string", "tomllib", "torch"}
DATA = {"json", "log"}


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _stale_names(tree: ast.Module) -> list[str]:
    """Names of modules in docstrings, as `metrics.curves`, that are not there."""
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stale = []
    for dotted in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]\w*)+)(?:\(\))?`", "\n".join(_docstrings(tree))):
        *_, first, second = parts = dotted.split(".")
        named = [each for each in MODULES if first in {each.stem, each.parent.name}]
        is_there = any(re.search(rf"\b{second}\b", f"{each.stem} {each.read_text()}") for each in named)
        if not (is_there or {*parts} & (ELSEWHERE | own) or second in {"py", *DATA}):
            stale.append(dotted)
    return stale


def test_what_docstrings_name_is_there():
    stale = {str(module.relative_to(SOURCE)): _stale_names(_tree(module)) for module in MODULES}
    assert {where: names for where, names in stale.items() if names} == {}


def test_the_rule_of_docstrings_sees_what_is_gone():
    tree = ast.parse('"""As `metrics.curves` of metrics.py, `gone.curves` and `metrics.gone_name`."""')
    assert _stale_names(tree) == ["gone.curves", "metrics.gone_name"]


def test_the_import_rule_sees_an_upward_import(tmp_path, monkeypatch):
    fake = tmp_path / "scaling" / "law.py"
    fake.parent.mkdir()
    fake.write_text("def f():\n    from equipoise.runs import schema\n    import equipoise.report.html\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert [text.rpartition(" ")[2] for text in _violations(fake)] == ["runs", "report"]


@cache
def _graph() -> dict[str, set[str]]:
    """Which files import which, by dotted names from the package; a package stands for its __init__.py."""
    named = {}
    for module in MODULES:
        name = ".".join(module.relative_to(SOURCE).with_suffix("").parts)
        named[name.removesuffix(".__init__")] = module
    graph: dict[str, set[str]] = {}
    for name, module in named.items():
        found = set()
        for imported, _ in _imported(module):
            wanted = imported.removeprefix("equipoise.")
            found.add(wanted if wanted in named else wanted.rpartition(".")[0])
        graph[name] = (found & named.keys()) - {name}
    return graph


def _cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [*graph[start]]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += graph[node]
        return found

    reach = {node: reached(node) for node in graph}
    return {
        frozenset(other for other in reach[node] if node in reach[other])
        for node in graph
        if node in reach[node]
    }


def test_no_two_files_import_each_other():
    assert not _cycles(_graph())


def test_options_that_the_app_loads_by_name_do_not_import_it():
    assert 'import_module("equipoise.cli.options")' in (SOURCE / "cli" / "app.py").read_text()
    assert "cli.app" not in _graph()["cli.options"]


def test_the_cycle_rule_sees_a_cycle_of_three():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert _cycles(graph) == {frozenset("abc")}


def _edges(package: str) -> Iterator[tuple[str, str, str]]:
    """Each import between two parts of a package: what imports, what is imported, and both modules."""
    for name, imported in _graph().items():
        for other in sorted(imported):
            if name.startswith(f"{package}.") and other.startswith(f"{package}."):
                part, other_part = (
                    one.removeprefix(f"{package}.").partition(".")[0] for one in (name, other)
                )
                if part != other_part:
                    yield part, other_part, f"{name} imports {other}"


def _wrong_edges(package: str, order: tuple[str, ...]) -> list[str]:
    """Imports of a later part by an earlier one, and parts that have no place, or a place and no module."""
    folder = SOURCE.joinpath(*package.split("."))
    parts = {module.relative_to(folder).parts[0].removesuffix(".py") for module in folder.rglob("*.py")}
    place = {part: number for number, part in enumerate(order)}
    wrong = [
        f"{package}.{part} has no place in ORDER" for part in sorted(parts - {"__init__"} - place.keys())
    ]
    wrong += [f"{package}.{part} is gone" for part in order if part not in parts]
    known = [edge for edge in _edges(package) if edge[0] in place and edge[1] in place]
    return wrong + [text for part, other, text in known if place[other] > place[part]]


def test_every_package_with_packages_inside_has_an_order():
    inside = {module.parent for module in SOURCE.rglob("__init__.py")} - {SOURCE}
    nested = {folder.parent for folder in inside} - {SOURCE}
    assert {".".join(folder.relative_to(SOURCE).parts) for folder in nested} == ORDER.keys()


@pytest.mark.parametrize("package", ORDER)
def test_imports_inside_a_package_point_to_earlier_parts(package):
    wrong = _wrong_edges(package, ORDER[package])
    assert not wrong, "\n".join(wrong)


def test_the_order_rule_sees_an_import_that_climbs_back():
    order = ORDER["decide"]
    assert order.index("question") < order.index("answer")
    swapped = tuple({"question": "answer", "answer": "question"}.get(part, part) for part in order)
    wrong = _wrong_edges("decide", swapped)
    assert any("decide.answer imports decide.question.query" in text for text in wrong)


def test_torch_is_imported_only_where_models_are_run_or_read():
    allowed = set((SOURCE / "spec" / "torch_model").glob("*.py"))
    for module in MODULES:
        if module not in allowed and _part(module) != "bench":
            names = {name.partition(".")[0] for name, _ in _imported(module)}
            assert "torch" not in names, module


def test_plotly_is_imported_only_in_report_and_never_at_its_top():
    for module in MODULES:
        at_top = {
            name.partition(".")[0]
            for node in _tree(module).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
        }
        assert "plotly" not in at_top, module
        if _part(module) != "report":
            assert "plotly" not in {name.partition(".")[0] for name, _ in _imported(module)}, module


@pytest.mark.parametrize(
    "code",
    [
        "import equipoise",
        "import equipoise.cli.app as a; a._exit_code(['--help'])",
        "import equipoise.cli.app as a; a._exit_code(['scores', '--help'])",
        "import equipoise.cli.app as a; a._exit_code(['--version'])",
        "import equipoise.runs.workers",
    ],
)
def test_importing_and_help_load_nothing_heavy(code):
    probe = f"import sys; {code}; print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == "[]"


def test_plain_words_on_the_command_line_load_no_pydantic():
    probe = (
        "import sys, equipoise.cli.app as a; a._exit_code(['list', 'laws']); print('pydantic' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == "False"


DECISION = {
    "polars",
    "numpy.ma",
    *(f"equipoise.{each}" for each in ("launch", "study", "runs.readers")),
}


@pytest.mark.parametrize(
    ("asked", "needless"),
    [
        (
            ("plan", "bert", "--accelerator", "h100-sxm5-80gb", "--at", "8"),
            {*DECISION, "equipoise.decide.allocation"},
        ),
        (("advise", "bert", "--accelerator", "h100-sxm5-80gb"), {*DECISION, "equipoise.decide.allocation"}),
        (("predict", "--workload", "bert", "--accelerator", "h100-sxm5-80gb", "--at", "8"), DECISION),
        (
            ("ingest", str(ROOT / "docs" / "examples" / "h200-v5.0.tar.gz")),
            {"numpy", "equipoise.calibration", "equipoise.decide.decision"},
        ),
        (("scores", "--round", "v4.1"), {"numpy", "equipoise.calibration", "equipoise.decide.decision"}),
        (("topology",), {"polars", "equipoise.runs", "equipoise.report.pages.answer"}),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_question_loads_nothing_that_it_does_not_need(asked, needless):
    probe = (
        f"import sys, equipoise.cli.app as a; a._exit_code({list(asked)}); "
        f"print(sorted({needless} & sys.modules.keys()), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert ended.stderr.splitlines()[-1] == "[]"


# Prints the modules of ours in which a function is called after they are imported.
CALLED_MODULES = """
import sys
from pathlib import Path
import equipoise.cli.app as app

source = str(Path(app.__file__).parents[1])
called = set()

def note(frame, event, _):
    name = frame.f_code.co_filename
    if event != "call" or name in called or not name.startswith(source):
        return
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(source)):
        frame = frame.f_back
    if frame is None:  # else an import is under way
        called.add(name)

sys.setprofile(note)
app._exit_code(sys.argv[1:])
sys.setprofile(None)
print(*sorted(name.removeprefix(source) for name in called), file=sys.stderr)
"""


def test_advise_runs_through_few_modules(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", CALLED_MODULES, "advise", "llama2_70b_lora", "--accelerator", "h200"],
        env={**os.environ, "EQUIPOISE_LEDGER": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=True,
    )
    # On a busy machine lines of progress stand there too.
    called = [line for line in ended.stderr.split() if line.startswith("/")]
    assert "/cli/app.py" in called
    assert len(called) <= MOST_MODULES, called


SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "docs", "experiments", "records")
    for path in (ROOT / folder).rglob("*.py")
)
assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_the_package_is_there(script):
    wanted = (name for name, _ in _imported(script) if name.startswith("equipoise."))
    assert [name for name in wanted if not _is_there(name)] == []


def _is_there(name):
    """Whether a module holds a name, its own or imported; or is one. Nothing is run."""
    module, _, own = name.rpartition(".")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        return False
    if found is None or found.origin is None:
        return False
    nodes = tuple(ast.walk(_tree(Path(found.origin))))
    held = {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    held |= {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    held |= {each.asname or each.name for each in nodes if isinstance(each, ast.alias)}
    held |= {
        path.stem for folder in found.submodule_search_locations or () for path in Path(folder).iterdir()
    }
    return own in held


def _defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_names_say_what_they_are():
    for module in MODULES:
        words = set(module.stem.split("_"))
        assert not words & BANNED_WORDS, module
        banned = [
            f"{name}, line {line}"
            for name, line in _defined_names(_tree(module))
            if name.lstrip("_").startswith(BANNED_PREFIXES)
        ]
        assert not banned, module


def test_no_handler_swallows_everything():
    for module in MODULES:
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught not in {"everything", "Exception"}, f"{module}:{node.lineno}: except {caught}"


def test_converting_constants_come_from_units():
    literal = re.compile(r"(?<![\w.])(1e9|1e-9|1e12|1024\s*\*\*\s*[23]|2\s*\*\*\s*30|3600(\.0)?)(?![\w.])")
    wrong = []
    for module in MODULES:
        if module == SOURCE / "units.py":
            continue
        tree = _tree(module)
        quoted = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for number, line in enumerate(module.read_text().splitlines(), 1):
            if number not in quoted and literal.search(line.partition("#")[0]):
                wrong.append(f"{module.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_every_package_shows_at_most_fifteen_names():
    for module in MODULES:
        exported = [
            ast.unparse(node.value).count(",") + 1
            for node in _tree(module).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        assert max(exported, default=0) <= 15, module


def _committed_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the list of committed files is unknown")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_committed_file_names_a_path_of_somebodys_machine():
    machine_path = re.compile(rb"(?<![\w.\-/])/(work|root|home/\w+|tmp)/\w")
    hits = [
        f"{path.relative_to(ROOT)}: {found.group()!r}"
        for path in _committed_files()
        if path.suffix not in {".parquet", ".png", ".js"}
        for found in [machine_path.search(path.read_bytes())]
        if found
    ]
    assert not hits, "\n".join(hits)
