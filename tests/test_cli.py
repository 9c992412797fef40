"""The command line as its users and scripts meet it: real processes, exit codes, streams, files."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import typer
from command_line import document, equipoise, in_process

from equipoise import __version__
from equipoise.cli.app import app, verbs

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "h200-v5.0.tar.gz"


def complaint(ended):
    """The one line on standard error of a verb that could not answer; nothing else was printed."""
    assert ended.stdout == ""
    assert re.fullmatch(r"equipoise: [^\n]+\n", ended.stderr), ended.stderr
    return ended.stderr.removeprefix("equipoise: ").rstrip("\n")


@pytest.fixture(scope="session")
def ingested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ingested")
    ended = equipoise("ingest", EXAMPLE, "--into", folder)
    assert ended.returncode == 0, ended.stderr
    return folder


# Exit codes and complaints


def test_without_a_verb_the_help_is_the_answer():
    ended = equipoise()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [verb for verb in verbs() if not re.search(rf"^  {verb} ", ended.stdout, re.MULTILINE)] == []


def test_the_help_says_of_a_verb_what_its_own_help_says():
    commands = typer.main.get_command(app()).commands
    assert tuple(commands) == verbs()
    listed = equipoise("--help").stdout
    for name, command in commands.items():
        assert f"{name} {command.help}" in " ".join(listed.split()), name


def test_version_is_that_of_the_package():
    assert equipoise("--version").stdout == f"equipoise {__version__}\n"


def test_the_options_of_a_verb_are_always_listed_in_one_order():
    # The names of --help come from a set, whose order these seeds change.
    command = [sys.executable, "-m", "equipoise", "record", "-3"]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    ended = [subprocess.run(command, env=each, capture_output=True, check=False) for each in environments]
    assert ended[0].stderr == ended[1].stderr
    assert b"--help" in ended[0].stderr


def test_a_flag_may_be_repeated():
    assert equipoise("explain", "marginal", "--json", "--json").returncode == 0


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["no-such-verb"], 2)])
def test_what_others_do_at_the_end_is_done(arguments, code, tmp_path):
    written = tmp_path / "written"
    program = f"""if True:
        import atexit, pathlib, threading
        from equipoise.cli.app import main
        atexit.register(pathlib.Path({str(written)!r}).write_text, "handler")
        threading.Thread(target=lambda: (threading.Event().wait(0.2), print("thread"))).start()
        main({arguments!r})"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1] == "thread"
    assert written.read_text() == "handler"


def test_a_profiler_reports_after_a_command():
    program = ("-m", "cProfile", "-m", "equipoise", "--version")
    ended = subprocess.run([sys.executable, *program], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"equipoise {__version__}\n")
    assert "function calls" in ended.stdout


@pytest.fixture(scope="session")
def two_entries(ingested, tmp_path_factory):
    """The example without its largest entry: one too few for a study."""
    folder = tmp_path_factory.mktemp("two")
    for table in ("runs", "scores"):
        rows = pl.read_parquet(ingested / f"{table}.parquet")
        rows.filter(pl.col("num_accelerators") < 32).write_parquet(folder / f"{table}.parquet")
    return folder


def test_too_little_evidence_is_exit_code_3_and_says_what_is_missing(two_entries):
    ended = equipoise("report", "--data", two_entries)
    assert "llama2_70b_lora has 2" in complaint(ended)
    assert re.search(r"\(missing: .*\bv5\.0\)", ended.stderr)
    assert ended.returncode == 3


def test_too_little_evidence_has_a_document_too(two_entries):
    found = document(equipoise("report", "--data", two_entries, "--json"), 3)
    assert found["schema"] == "equipoise.report/1"
    assert found["status"] == "not_enough_evidence"
    (missing,) = found["missing"]
    assert missing.endswith(" v5.0")


# JSON


@pytest.mark.parametrize(
    "arguments",
    [
        ["scores", "--round", "v4.1", "--workload", "bert"],
        ["report", "--workload", "bert"],
        ["list", "rounds"],
        ["list", "workloads"],
        ["list", "accelerators"],
        ["list", "systems"],
        ["list", "strategies"],
        ["list", "laws"],
        ["explain", "E'"],
        ["explain"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_json_is_alone_on_standard_output_and_the_same_in_a_file(arguments, tmp_path):
    ended = equipoise(*arguments, "--json", "--json-out", "answer.json", cwd=tmp_path)
    assert ended.stderr == ""
    found = document(ended)
    assert list(found)[:3] == ["schema", "equipoise", "dataset"]
    assert found["schema"] == f"equipoise.{arguments[0]}/1"
    assert (tmp_path / "answer.json").read_text() == ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


def test_json_out_leaves_the_text_where_it_was(tmp_path):
    plain = equipoise("list", "rounds", cwd=tmp_path)
    beside = equipoise("list", "rounds", "--json-out", "rounds.json", cwd=tmp_path)
    assert beside.stdout == plain.stdout
    assert json.loads((tmp_path / "rounds.json").read_text())["rounds"]


def test_scores_document_has_the_fields_scripts_rely_on(promised_score_fields):
    entry = document(equipoise("scores", "--round", "v4.1", "--workload", "bert", "--json"))["entries"][0]
    assert list(entry)[: len(promised_score_fields)] == promised_score_fields


def test_ingest_document_has_the_fields_scripts_rely_on():
    found = document(equipoise("ingest", EXAMPLE, "--json"))
    assert found["rounds"] == ["v5.0"]
    assert found["entries"] == {"kept": 3, "unscored": 0}
    assert found["runs"]["kept"] == 30
    assert {"rejected", "unknown_names"} <= found.keys()


def test_input_without_any_entry_is_exit_code_2_and_says_what_was_refused(tmp_path):
    (tmp_path / "result_0.txt").write_text("epoch 1: loss 0.5\n")
    ended = equipoise("ingest", tmp_path, "--into", tmp_path / "tables", "--json")
    assert document(ended, 2)["rejected"]
    assert "no entry" in ended.stderr
    assert not (tmp_path / "tables").exists()


# What people see


@pytest.fixture(scope="module")
def times(tmp_path_factory):
    """A folder with a file of own times: T = 10 s + 1000 s / N."""
    folder = tmp_path_factory.mktemp("times")
    rows = "".join(f"{size},{10 + 1000 / size}\n" for size in (1, 2, 4, 8, 16, 32))
    (folder / "mine.csv").write_text(f"num_accelerators,time_to_train_s\n{rows}")
    return folder


@pytest.mark.parametrize(
    "asked",
    [
        "scores --round v4.1 --workload bert",
        "scores --workload gpt3 --sort score_s",
        "report",
        "list rounds",
        "list workloads",
        "list accelerators",
        "list systems",
        "list strategies",
        "list laws",
        "doctor",
        "explain E'",
        "predict llama2_70b_lora --accelerator h200-sxm5-141gb",
        "predict bert --accelerator h100-sxm5-80gb --round v4.1 --law usl",
        "predict bert --accelerator tpu-v4 --at 4,1048576 --hour-usd 1000",
        "predict --from mine.csv --price 2",
        "backtest --rounds v0.6",
        "backtest --rounds 0.5,v0.6 --new-round",
        "backtest --rounds v0.6 --given batch",
        "backtest --rounds v0.6 --advice",
        *(f"{verb} --help" for verb in verbs()),
    ],
)
def test_text_is_plain_and_fits_80_columns_where_there_is_no_terminal(asked, times):
    ended = in_process(*asked.split(), cwd=times)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_ingested_rounds_take_the_place_of_the_embedded_ones(ingested):
    listed = document(equipoise("list", "rounds", "--data", ingested, "--json"))["rounds"]
    assert [(row["round"], row["num_entries"], row["num_runs"]) for row in listed] == [("v5.0", 3, 30)]


def test_the_list_names_the_data_it_counted(ingested):
    words = equipoise("list", "rounds", "--data", ingested).stdout
    assert f"1round;{ingested}.Round" in "".join(words.split())


def test_a_sorted_table_shows_the_system_where_what_all_share_stands_above():
    ended = equipoise("scores", "--round", "v4.1", "--workload", "bert", "--sort", "-score_s")
    lines = ended.stdout.splitlines()
    assert "v4.1 bert" in lines
    heads = next(place for place, line in enumerate(lines) if line.startswith("Accelerator"))
    assert lines[heads].split() == ["Accelerator", "N", "Minutes", "E'", "E", "System"]
    assert "tinycorp /" in lines[heads + 2]  # the slowest BERT of v4.1: tinybox red, 397 minutes


def test_ingested_rounds_are_added_to_the_embedded_ones(ingested):
    embedded = document(equipoise("scores", "--round", "v5.0", "--json"))["entries"]
    beside = document(equipoise("scores", "--round", "v5.0", "--also", ingested, "--json"))["entries"]
    assert len(beside) == len(embedded)  # the same three entries, not twice


def test_like_for_like_of_the_example_is_what_its_minutes_say(ingested):
    # Dell 8 x H200, the smallest of its kind, is the baseline; 16 and 32 H200 against it by hand from their scores.
    entries = document(equipoise("scores", "--data", ingested, "--json"))["entries"]
    by_size = {entry["num_accelerators"]: entry for entry in entries}
    assert sorted(by_size) == [8, 16, 32]
    for size, entry in by_size.items():
        expected = by_size[8]["score_s"] / entry["score_s"] / (size / 8)
        assert entry["like_for_like_efficiency"] == pytest.approx(expected, rel=1e-12)
        assert entry["like_for_like_baseline"].endswith("XE9680x8H200-SXM-141GB")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("equipoise sco", "scores"),
        ("equipoise scores --round v4", "v4.0\nv4.1"),
        ("equipoise report --workload llama2", "llama2_70b_lora"),
        ("equipoise scores --accelerator h100-sxm5-8", "h100-sxm5-80gb"),
        ("equipoise explain margi", "marginal"),
    ],
)
def test_a_shell_completes_verbs_options_and_names(words, completed):
    env = {"_EQUIPOISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert equipoise(env=env).stdout.strip() == completed


# Files


@pytest.mark.parametrize("table", ["runs", "scores"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_export_writes_every_row_in_every_form(table, suffix, ingested, tmp_path):
    out = tmp_path / f"{table}.{suffix}"
    assert equipoise("export", table, "--data", ingested, "--out", out).returncode == 0
    stored = pl.read_parquet(ingested / f"{table}.parquet")
    if suffix == "parquet":
        assert pl.read_parquet(out).equals(stored)
    elif suffix == "csv":
        assert pl.read_csv(out, schema=stored.schema).equals(stored)
    else:
        assert [json.loads(line) for line in out.read_text().splitlines()] == stored.to_dicts()


def test_export_without_a_file_prints_csv(ingested):
    lines = equipoise("export", "scores", "--data", ingested).stdout.splitlines()
    assert lines[0].startswith("entry_id,origin,campaign,")
    assert len(lines) == 1 + 3


def test_an_answer_that_cannot_be_given_leaves_the_old_file(tmp_path, mine):
    kept = mine("yesterday's", "report.html")
    assert equipoise("report", "--round", "v99.9", "--out", kept).returncode == 2
    assert kept.read_text() == "yesterday's"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m equipoise scores --format csv | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] == "0"


def test_a_full_disk_is_a_sentence():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as stream:
        ended = subprocess.run(
            [sys.executable, "-m", "equipoise", "scores", "--json"],
            stdout=stream,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert re.fullmatch(rf"equipoise: .*{os.strerror(errno.ENOSPC)}\n", ended.stderr)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "ended by SIGTERM"),
        (signal.SIGHUP, "ended by SIGHUP"),
    ],
)
def test_interrupting_ingest_exits_with_the_signal_and_leaves_nothing(tmp_path, data_dir, number, said):
    into = tmp_path / "tables"
    rounds = sorted((data_dir / "mlperf").glob("training_results_v*.tar.zst"))
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "equipoise",
            "ingest",
            *map(str, rounds),
            "--into",
            str(into),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_until_it_reads(process, rounds)
    os.killpg(process.pid, number)  # as a terminal does: the workers get it too
    printed, message = process.communicate(timeout=60)
    assert (process.returncode, printed, message) == (128 + number, "", f"equipoise: {said}\n")
    assert not into.exists() or list(into.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_page_that_a_signal_stops_leaves_no_file(tmp_path, number):
    asked = ["advise", "bert", "--accelerator", "h100", "--html", "page.html"]
    command = [sys.executable, "-m", "equipoise", *asked]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path)
    while process.poll() is None and not list(tmp_path.iterdir()):  # until it has made sure of its file
        os.sched_yield()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_the_shell_ignores_stays_ignored():
    ended = subprocess.run(
        ["nohup", sys.executable, "-c", _HANGS_UP], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "0\n"


_HANGS_UP = """
import os, signal, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "equipoise", "list", "rounds"], stdout=subprocess.DEVNULL)
while process.poll() is None:
    process.send_signal(signal.SIGHUP)
print(process.returncode)
"""


# A module that loses the first KeyboardInterrupt, as callbacks of the import system do, and then has work.
_LOSES_AN_INTERRUPT = """
import os, signal, sys, threading, time
from equipoise.cli import app

def start(self, started=threading.Thread.start):
    started(self)
    time.sleep(float(sys.argv[1]))

threading.Thread.start = start

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

app.count_interrupts(signal.SIGINT)
Finalized()
try:
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit(130)
"""


# Starting a thread takes longer on a busy machine: long enough for its signal to come before it has started.
@pytest.mark.parametrize("start_s", ["0", "0.1"])
def test_an_interrupt_that_a_finalizer_loses_still_interrupts(start_s):
    ended = subprocess.run(
        [sys.executable, "-c", _LOSES_AN_INTERRUPT, start_s],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 130
    assert ended.stderr == ""


def _wait_until_it_reads(process, rounds):
    """Return once the process, or a worker of it, has an archive open."""
    names = {str(path.resolve()) for path in rounds}
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc: cannot tell when ingest has begun")
    while process.poll() is None:
        for folder in Path("/proc").glob("[0-9]*/fd"):
            try:
                if os.getpgid(int(folder.parent.name)) == process.pid and names & {
                    str(link.readlink()) for link in folder.iterdir()
                }:
                    return
            except OSError:
                continue
    pytest.fail(f"ingest ended before it was interrupted: {process.communicate()}")


# Streams that are closed, full or left


@pytest.mark.parametrize("verb", ["list accelerators", "--help", "scores --round v4.1 --format parquet"])
def test_a_closed_standard_output_is_said_in_one_sentence(verb):
    command = f"{sys.executable} -m equipoise {verb} >&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert "/dev/null" in complaint(ended)
    assert ended.returncode == 2


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_other_closed_streams_change_no_answer(closed):
    command = f"{sys.executable} -m equipoise list rounds {closed}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == equipoise("list", "rounds").stdout


@pytest.mark.parametrize(
    "words", [("ingest", ""), ("topology", ""), ("scores", "--data", ""), ("report", "--out", "")]
)
def test_an_empty_path_is_not_the_working_folder(words):
    ended = equipoise(*words)
    assert "empty" in complaint(ended)
    assert ended.returncode == 2


def test_a_closed_standard_input_is_an_empty_one():
    command = f"{sys.executable} -m equipoise topology - <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert "standard input" in complaint(ended)
    assert ended.returncode == 2


def test_an_error_is_wrapped_at_words_on_a_terminal_alone():
    question = ("advise", "gpt2", "--tokens", "1e9", "--accelerator", "h100", "--fix", "foo=3")
    line = equipoise(*question).stderr
    assert line.count("\n") == 1
    assert len(line) > 180
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "equipoise", *question]
    subprocess.run(
        command, stderr=end, env={**os.environ, "COLUMNS": "60", "TERM": "dumb"}, check=False, timeout=120
    )
    os.close(end)
    shown = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert 1 < len(shown) == sum(len(each) <= 60 for each in shown)
    assert " ".join(shown).split() == line.split()


@pytest.mark.parametrize("verb", ["list accelerators", "export scores", "list planets"])
def test_a_reader_that_leaves_after_a_line_sees_no_traceback(verb):
    command = f"{sys.executable} -m equipoise {verb} 2>&1 | head -1"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""


def test_a_closed_stream_for_errors_leaves_the_exit_code():
    for redirection in ("2>&-", "2>/dev/full"):
        command = f"{sys.executable} -m equipoise list planets {redirection}"
        ended = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=120)
        assert (ended.returncode, ended.stdout) == (2, b"")
