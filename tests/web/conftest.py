"""Dashboards as users start them: real processes, over data whose names are as hostile as can be."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import polars as pl
import pytest
from parsed_page import Parsed

from equipoise.bench.sweep import planned
from equipoise.bench.trial import FinishedTrial, Store
from equipoise.runs import embedded
from equipoise.runs.store import Tables, write_tables

pytest.importorskip("fastapi", reason="the extra `web` is not installed")

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>x</b>'\"&"
HOSTILE_REASON = "<script>document.title='owned'</script> {{7*7}} \x1b[2J\u202e"


class Dashboard:
    """A dashboard in a process of its own."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "equipoise", "serve", "--port", "0", "--no-warm", *map(str, arguments)],
            # Where compiled code crashes, a failing test shows what each thread did.
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "80",
                "PYTHONFAULTHANDLER": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed = self.process.stdout.readline()
        found = re.search(r"http://(\S+?):(\d+)/(\S*)", self.printed)
        assert found, self.process.stderr.read()
        self.port, self.query = int(found[2]), found[3]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path, method="GET", **headers):
        """Status, headers and text of a response; names of headers with underscores."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="host" in named, skip_accept_encoding=True)
            for name, value in named.items():
                connection.putheader(name, value)
            connection.endheaders()
            found = connection.getresponse()
            return found.status, {k.lower(): v for k, v in found.getheaders()}, found.read().decode()
        finally:
            connection.close()

    def page(self, path, **headers):
        """The parsed page of a path and its status."""
        status, _, text = self.answer(path, **headers)
        return status, Parsed(text)

    def stopped(self, number=signal.SIGINT):
        """Interrupt it as Ctrl-C does, or by another signal; its exit code and what it printed."""
        self.process.send_signal(number)
        try:
            _, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, err


@pytest.fixture(scope="session")
def hostile_data(tmp_path_factory):
    """Tables of one round whose submitters, systems and logs are named to break out of a page."""
    folder = tmp_path_factory.mktemp("hostile")
    held = embedded.load()
    scores = held.scores.filter(
        (pl.col("campaign") == "v4.1")
        & (pl.col("division") == "closed")
        & pl.col("workload").is_in(["bert", "retinanet"])
    )
    named = {
        "submitter": pl.concat_str(pl.lit(HOSTILE), "submitter"),
        "system": pl.concat_str(pl.lit(HOSTILE), "system"),
        "source_uri": pl.concat_str(pl.lit(HOSTILE), "source_uri"),
        "entry_id": pl.concat_str(pl.lit("<b>"), "entry_id"),
    }
    write_tables(Tables(runs=held.runs.head(0), scores=scores.with_columns(**named)), folder)
    return folder


def trials():
    """The 6 runs of a sweep: one rank, and two ranks in two ways."""
    found = planned(
        workloads=["small_mlp"], methods=["ddp", "fp16"], sizes=[1, 2], batches=[64], num_repetitions=2
    )
    assert len(found) == 6
    return found


def measured(trial, number):
    """What a run of 4 ms a step on one rank and 3 ms on two leaves; one way fails once."""
    failed = trial.method == "fp16" and trial.repetition == 2
    step_s = (0.004 if trial.num_ranks == 1 else 0.003) * (1 + 0.01 * number)
    split = {"input": 0.0, "forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1, "step": 1.0}
    steps = [{name: share * step_s for name, share in split.items()}] * 20
    return FinishedTrial(
        trial=trial,
        status="failed" if failed else "success",
        reason=HOSTILE_REASON if failed else None,
        conditions={"launcher": HOSTILE},
        result={} if failed else {"steps": steps, "steady": True},
    )


@contextmanager
def sweep_in(folder: Path, *, num_finished: int = 6):
    """A sweep that runs while it is held, so many of its runs on disk; adds the next when it is called."""
    store, waiting = Store(folder), iter(list(enumerate(trials())))

    def add():
        number, trial = next(waiting)
        store.add(measured(trial, number))

    with store.opened(trials(), resume=False, settings={"scaling": "strong", "note": HOSTILE}):
        for _ in range(num_finished):
            add()
        (folder / "running-1").mkdir()
        yield add
        (folder / "running-1").rmdir()


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory):
    """A folder with a whole sweep in it, its name hostile too."""
    folder = tmp_path_factory.mktemp("sweeps")
    with sweep_in(folder / "<img src=x onerror=alert(1)>"):
        return folder


@pytest.fixture(scope="session")
def hostile():
    """The name that everybody has in the hostile data."""
    return HOSTILE


@pytest.fixture
def running_sweep():
    """Holds a sweep in a folder."""
    return sweep_in


@pytest.fixture
def start():
    """Starts dashboards, and ends those that a test left."""
    started = []

    def begun(*arguments, **environment):
        started.append(Dashboard(*arguments, **environment))
        return started[-1]

    yield begun
    for each in started:
        if each.process.poll() is None:
            each.stopped()


@pytest.fixture(scope="session")
def dashboard(hostile_data, sweeps):
    """One dashboard for all tests that only read it."""
    started = Dashboard("--data", hostile_data, "--runs", sweeps)
    yield started
    code, err = started.stopped()
    assert (code, err) == (130, "equipoise: interrupted\n")
