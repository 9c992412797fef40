"""Names and texts in files of others come out harmless: in pages, on a terminal, in tables and in scripts."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from command_line import in_process
from parsed_page import Parsed

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
NAME = "=cmd|' /C calc'!A0\"><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b]0;owned\x07\x1b[2J\x9b31m\r[bold]x[/] $(touch owned)`touch owned`"
LONG = "=x" * 50_000
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
FORMULA = re.compile(r"\s*[=+\-@]")
MOST_CHARS = 3_000_000  # of a page: those of the figures' library are 1.2 million, and no name is shown whole


def attacks(page):
    """The images, handlers and scripts of a name that are more than text in a page."""
    return [
        (each.tag, each.text[:80])
        for each in page.elements
        if each.tag == "img"
        or any(name.startswith("on") for name in each)
        or (each.tag == "script" and each.get("type") != "application/json" and "alert(1)" in each.text)
    ]


def text(ended, *, codes=(0,)):
    """What a verb printed, which must reach a terminal as it is."""
    assert ended.returncode in codes, ended.stderr
    for stream in (ended.stdout, ended.stderr):
        assert not HIDDEN.search(stream), HIDDEN.search(stream)
        assert len(stream) < 100_000
        assert "Traceback" not in stream
    return ended.stdout


def page(path):
    """The page of a file, in which no name is more than text."""
    found = path.read_text()
    assert not attacks(Parsed(found))
    assert not HIDDEN.search(found)
    assert len(found) < MOST_CHARS
    return found


def cells(content):
    """Every cell of a CSV, none of which a spreadsheet runs."""
    rows = list(csv.reader(io.StringIO(content, newline="")))
    assert rows
    numbers = re.compile(r"-?[\d.]+(e[+-]?\d+)?")
    cells = [cell for row in rows for cell in row]
    assert cells
    for cell in cells:
        assert not FORMULA.match(cell) or numbers.fullmatch(cell), cell
    return rows


@pytest.fixture(params=[NAME, LONG], ids=["hostile", "long"])
def name(request):
    return request.param


def table(path, header, rows):
    """A file of comma-separated values, quoted as it must be."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def toml(value):
    """Text as TOML has it: the escapes of JSON, and DEL as one too."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def test_in_a_table_of_times(tmp_path, name):
    header = ["num_accelerators", "time_to_train_s", "workload", "submitter", name]
    table(tmp_path / "mine.csv", header, [[size, 1000 / size, name, name, name] for size in (1, 2, 4, 8)])
    assert "8" in text(
        in_process("predict", "--from", "mine.csv", "--html", "p.html", "--full", cwd=tmp_path)
    )
    page(tmp_path / "p.html")
    text(in_process("ingest", "mine.csv", "--into", "data", "--accelerator", name, cwd=tmp_path))
    text(in_process("scores", "--data", "data", cwd=tmp_path), codes=(0, 3))
    rows = cells(in_process("export", "runs", "--data", "data", cwd=tmp_path).stdout)
    assert any(f"'{name}" in row for row in rows)


def test_in_a_round_of_mlperf(tmp_path, name):
    log = [
        {"key": "submission_benchmark", "value": name},
        {"key": "submission_org", "value": name},
        {"key": name, "value": name},
        {"key": "run_start", "value": None},
        {"key": "run_stop", "value": None, "metadata": {"status": "success", name: name}},
    ]
    common = {"namespace": "", "event_type": "POINT_IN_TIME"}
    lines = (
        ":::MLLOG " + json.dumps({**common, "time_ms": 1000 * at, **line}) for at, line in enumerate(log)
    )
    named = ("submitter", "system_name", "accelerator_model_name", "framework", "host_processor_model_name")
    system = dict.fromkeys(named, name) | {"accelerators_per_node": "8", "number_of_nodes": "1"}
    files = {
        "training_results_v4.1/Org/results/S/bert/result_0.txt": "\n".join(lines),
        "training_results_v4.1/Org/systems/S.json": json.dumps(system | {"division": "closed"}),
    }
    with tarfile.open(tmp_path / "round.tar", "w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    text(in_process("ingest", "round.tar", "--into", "data", cwd=tmp_path))
    text(in_process("list", "rounds", "--data", "data", cwd=tmp_path))
    text(in_process("scores", "--data", "data", cwd=tmp_path), codes=(0, 3))
    for what in ("runs", "scores"):
        cells(in_process("export", what, "--data", "data", cwd=tmp_path).stdout)


def test_in_a_trace(tmp_path, name):
    def event(kind, called, at_us, for_us, **args):
        return {"ph": "X", "cat": kind, "name": called, "ts": at_us, "dur": for_us, "pid": name, "args": args}

    events = [
        each
        for at in range(3)
        for each in (
            event("user_annotation", f"ProfilerStep#{at}", 100 * at, 90),
            event("kernel", name, 100 * at, 5, stream=7, **{name: name}),
            event("kernel", f"ncclDevKernel_{name}", 100 * at + 9, 50, stream=8, **{"Collective name": name}),
            event(name, name, 100 * at, 5),
        )
    ]
    about = {
        "distributedInfo": {"rank": 0, "world_size": 2, "backend": name},
        "deviceProperties": [{"name": name}],
    }
    (tmp_path / "rank0\x1b.json").write_text(json.dumps({"traceEvents": events, **about, name: name}))
    text(in_process("trace", "rank0\x1b.json", "--full", "--html", "t.html", cwd=tmp_path))
    page(tmp_path / "t.html")


def test_in_measurements_of_the_published(tmp_path, name):
    header = [
        "workload",
        "layers",
        "hidden",
        "heads",
        "hardware",
        "n_gpus",
        "precision",
        "global_batch",
        "seq",
    ]
    row = [name, 24, 1024, 16, "DGX A100", 8, "fp16", 64, 1024]
    units = ("s/iteration", name)
    table(tmp_path / "mine.csv", [*header, "measured", "unit"], [[*row, 0.4, unit] for unit in units])
    text(in_process("validate", "mine.csv", cwd=tmp_path))


def test_in_a_log_of_collectives_and_a_topology(tmp_path, name):
    name = name.replace("\r", "")  # which begins another line
    row = "     1048576        262144     float     sum      -1    47.38   22.13   22.13      0    46.84   22.39   22.39      0\n"
    device = f"#  Rank  0 Group  0 Pid 7 on h device  0 [0x0f] NVIDIA {name}\n"
    (tmp_path / "log.txt").write_text(device + row.replace("float", name[:99].replace(" ", "")) + row)
    text(in_process("collectives", "log.txt", cwd=tmp_path))
    cards = f"GPU 0: {name[:3000]} (UUID: G)\nGPU 1: Blue (UUID: G)\n"
    (tmp_path / "topo.txt").write_text(cards + "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    text(in_process("topology", "topo.txt", cwd=tmp_path))


def test_in_an_own_accelerator_and_workload(tmp_path, name):
    for own in ("accelerators", "workloads"):
        example = in_process("list", own, "--example").stdout
        named = count()
        file = re.sub(
            r"^(title|source|vendor|sample) = .*$",
            lambda found: f"{found[1]} = {toml(f'{name[:3000]} {next(named)}')}",  # noqa: B023
            example,
            flags=re.MULTILINE,
        )
        assert next(named) > 3
        (tmp_path / f"{own}.toml").write_text(file)
    hardware, workloads = ("--hardware", "accelerators.toml"), ("--workloads", "workloads.toml")
    for what, file in (("accelerators", hardware), ("systems", hardware), ("workloads", workloads)):
        text(in_process("list", what, *file, cwd=tmp_path))
    asked = ("mygpt_3b", "--tokens", "1G", *hardware, *workloads, "--accelerator", "mychip-192gb", "--full")
    text(in_process("plan", *asked, "--accelerators", "8", "--html", "plan.html", cwd=tmp_path))
    how = ("--price", "3", "--max-accelerators", "8", "--launch", "scripts", "--html", "advice.html")
    text(in_process("advise", *asked, *how, cwd=tmp_path))
    for written in ("plan.html", "advice.html"):
        page(tmp_path / written)
    scripts = sorted(each for each in (tmp_path / "scripts").rglob("*") if each.is_file())
    assert scripts
    for script in scripts:
        # A line of the script's own: no name runs, and none is longer than a name is shown.
        lines = [line for line in script.read_text().splitlines() if "touch owned" in line or "=x=x" in line]
        assert not [line for line in lines if not line.lstrip().startswith(("#", "//"))], script.name
        assert not HIDDEN.search(script.read_text())


def test_in_a_ledger(tmp_path, name):
    made = json.loads((EXAMPLES / "own-ledger.jsonl").read_text().splitlines()[0])
    name = name[:150]  # lines with longer texts are counted as unread
    made |= {"workload": name, "accelerator": name, "strategy": name, "ref": name}
    measured = {"schema": made["schema"], "line": "measurement", "made": made["made"], "source": name}
    measured |= {"prediction": made["id"], "quantity": "time_to_train_s", "value": 108.3}
    lines = "".join(json.dumps(line) + "\n" for line in (made, measured, {"schema": name}))
    (tmp_path / "ledger.jsonl").write_text(lines)
    assert "Measured 1 of 1" in text(in_process("record", "--ledger", "ledger.jsonl", cwd=tmp_path))


def test_in_jobs_and_quotes(tmp_path, name):
    short = HIDDEN.sub("", name)[:60]  # what is longer or cannot be seen is refused
    jobs = f'[[job]]\nworkload = "bert"\n[[job]]\nname = {toml(short)}\ntimes = {{ 8 = "6 h", 16 = "3 h" }}\n'
    (tmp_path / "jobs.toml").write_text(jobs)
    pool = ("--cluster", "16xh100-sxm5-80gb", "--full", "--html", "jobs.html")
    text(in_process("allocate", "jobs.toml", *pool, cwd=tmp_path))
    header = ["provider", "system", "terms", "usd_per_hour"]
    table(tmp_path / "quotes.csv", header, [[short, "h100", "on demand", 2.5]])
    asked = (
        "advise",
        "bert",
        "--accelerator",
        "h100",
        "--prices",
        "quotes.csv",
        "--full",
        "--html",
        "advice.html",
    )
    text(in_process(*asked, cwd=tmp_path))
    for written in tmp_path.glob("*.html"):
        page(written)


@pytest.mark.parametrize(
    "arguments",
    [
        ("advise",),
        ("advise", "bert", "--accelerator"),
        ("advise", "bert", "--accelerator", "h100", "--deadline"),
        ("plan", "bert", "--cluster"),
        ("scores", "--workload"),
        ("explain",),
        ("ingest",),
        ("list",),
        (),
    ],
    ids=" ".join,
)
def test_in_words_of_the_command_line(tmp_path, name, arguments):
    text(in_process(*arguments, name, cwd=tmp_path), codes=(2,))
    assert list(tmp_path.iterdir()) == []


def test_a_text_of_a_megabyte_is_refused_in_a_sentence(tmp_path):
    table(tmp_path / "mine.csv", ["num_accelerators", "time_to_train_s", LONG * 10], [[1, 1, 1]])
    text(in_process("predict", "--from", "mine.csv", cwd=tmp_path), codes=(2,))
    (tmp_path / "own.toml").write_text(f'[accelerator.{LONG.replace("=", "a") * 10}]\ntitle = "x"\n')
    text(in_process("list", "accelerators", "--hardware", "own.toml", cwd=tmp_path), codes=(2,))


@pytest.mark.parametrize(
    "arguments",
    [("export", "runs", "--data", "data"), ("record", "--ledger", "l.jsonl", "--json")],
    ids=" ".join,
)
def test_a_terminal_gets_no_escape_of_a_document_or_table(tmp_path, arguments):
    table(tmp_path / "mine.csv", ["num_accelerators", "time_to_train_s", "submitter"], [[1, 9, NAME]])
    text(in_process("ingest", "mine.csv", "--into", "data", cwd=tmp_path))
    made = json.loads((EXAMPLES / "own-ledger.jsonl").read_text().splitlines()[0]) | {"workload": NAME}
    (tmp_path / "l.jsonl").write_text(json.dumps(made) + "\n")
    read, written = os.openpty()
    command = [sys.executable, "-m", "equipoise", *arguments]
    with subprocess.Popen(command, cwd=tmp_path, stdout=written, stderr=subprocess.PIPE) as ended:
        os.close(written)
        printed = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(read, 65536):
                printed += piece
        os.close(read)
        assert (ended.wait(), ended.stderr.read()) == (0, b"")
    shown = printed.decode().replace("\r\n", "\n")
    assert "alert(1)" in shown
    assert not HIDDEN.search(shown)


def latin(tmp_path, name):
    """An example under a name that is no UTF-8, as old archives and other systems write them."""
    path = tmp_path / os.fsdecode(b"r\xe9sum\xe9-" + os.fsencode(name))
    path.write_bytes((EXAMPLES / name).read_bytes())
    return path


@pytest.mark.parametrize(
    ("verb", "named", "more"),
    [
        ("ingest", "wandb-runs.csv", ("--accelerator", "h100")),
        ("trace", "dlrm-traces.tar.gz", ()),
        ("collectives", "nccl-a100.txt", ()),
        ("validate", "measured.csv", ()),
        ("record", "own-ledger.jsonl", ("--ledger",)),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_file_whose_name_is_no_utf_8_is_read_and_named(tmp_path, verb, named, more):
    path = latin(tmp_path, named)
    arguments = (*more, path) if verb == "record" else (path, *more)
    shown = text(in_process(verb, *arguments, "--json-out", "found.json", cwd=tmp_path))
    assert shown
    assert json.loads((tmp_path / "found.json").read_text())["schema"].startswith(f"equipoise.{verb}")


def test_a_table_goes_to_a_file_whose_name_is_no_utf_8(tmp_path):
    out = tmp_path / os.fsdecode(b"\xe9\x1b[31m.csv")
    shown = text(in_process("export", "scores", "--round", "v4.1", "--out", out, cwd=tmp_path))
    assert str(len(out.read_text().splitlines()) - 1) in shown.split()


def test_a_run_of_a_file_whose_name_is_no_utf_8_has_a_row(tmp_path):
    path = latin(tmp_path, "wandb-runs.csv")
    text(in_process("ingest", path, "--accelerator", "h100", "--into", "data", cwd=tmp_path))
    rows = cells(text(in_process("export", "runs", "--data", "data", cwd=tmp_path)))
    assert r"r\udce9sum\udce9-wandb-runs.csv" in rows[1]
