"""Questions that wait are computed by processes beside the server, none of which outlives it."""

import os
import pickle
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `web` is not installed")

from equipoise.runs import embedded
from equipoise.runs.store import Tables, write_tables
from equipoise.runs.workers import num_cores
from equipoise.web import DataSources, WrongFieldsError
from equipoise.web.app import _AnswerJob
from equipoise.web.decision_screens import PLAN
from equipoise.web.workers import Workers

pytestmark = pytest.mark.skipif(num_cores() < 2, reason="one core: everything is computed in threads")
LONGEST_S = 30


def who(_sources):
    """The process that computes, after a while in which others are asked."""
    time.sleep(0.05)
    return os.getpid()


def killed_unless_in(process_id, _sources):
    """Dies like a process that the system kills, in any process but this."""
    if os.getpid() != process_id:
        os.kill(os.getpid(), signal.SIGKILL)
    return who(_sources)


def refused_unless_in(process_id, _sources):
    """Refused in any process but this."""
    if os.getpid() != process_id:
        raise WrongFieldsError(["not here"])
    return who(_sources)


@pytest.fixture
def workers():
    """Of a server that is this process."""
    begun = Workers(DataSources(), "equipoise.web.app")
    yield begun
    begun.shutdown()


def computed(workers, *functions):
    """What functions that are asked at once return."""
    jobs = [workers.submit(each) for each in functions]
    return [job.result(LONGEST_S) for job in jobs]


def beside(workers):
    """A process that computes beside this one, once there is one."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        others = {*computed(workers, *[who] * 4)} - {os.getpid()}
        if others:
            return others.pop()
    raise AssertionError("no process was started")


def children(process_id):
    """The processes that a process has started."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_there(process_id):
    """Whether a process runs; one whose parent has not asked for its end does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_one_question_after_the_other_starts_no_process(start):
    started = start()
    for price in (1, 2, 3):
        assert started.answer(f"/plan?workload=bert&accelerator=dgx-h100&price={price}")[0] == 200
    assert children(started.process.pid) == []


def test_two_questions_at_once_are_answered_by_two_processes(workers):
    other = beside(workers)
    assert {*computed(workers, who, who)} == {os.getpid(), other}
    assert computed(workers, who) == [os.getpid()]


def test_a_process_finds_what_the_server_does(workers):
    sources = DataSources()
    query = PLAN.read({"price": ["2.5"]}, sources)
    page, table = _AnswerJob(PLAN, query), _AnswerJob(PLAN, query, "csv")
    beside(workers)
    _, found = computed(workers, who, page)
    expected = page(sources)
    assert (found.headline, found.status) == (expected.headline, 200)
    assert computed(workers, who, table)[1] == table(sources)


@pytest.mark.parametrize("troubled", [killed_unless_in, refused_unless_in])
def test_what_a_process_cannot_answer_is_answered_here(workers, troubled):
    beside(workers)
    here = os.getpid()
    assert computed(workers, *[partial(troubled, here)] * 3) == [here] * 3
    assert beside(workers) != here


def test_a_process_killed_while_it_waits_is_replaced(workers):
    first = beside(workers)
    os.kill(first, signal.SIGKILL)
    assert len(computed(workers, who, who)) == 2
    assert beside(workers) != first


def test_a_process_has_the_tables_that_the_server_read(tmp_path):
    held = embedded.load()
    write_tables(Tables(runs=held.runs.head(0), scores=held.scores.head(20)), tmp_path)
    sources = DataSources(data=tmp_path)
    assert sources.tables.scores.height == 20
    write_tables(Tables(runs=held.runs.head(0), scores=held.scores.head(10)), tmp_path)
    assert pickle.loads(pickle.dumps(sources)).tables.scores.height == 20  # noqa: S301 - what it is for


def busy(started):
    """Connections that wait for different answers, and the processes started for them."""
    opened = []
    for number in range(12):
        opened.append(socket.create_connection(("127.0.0.1", started.port), timeout=10))
        path = f"/plan?workload=gpt3_175b&accelerator=h100&accelerators={1024 + 8 * number}"
        opened[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until = time.monotonic() + LONGEST_S
    while not (found := children(started.process.pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert found
    return opened, found


@pytest.mark.parametrize("wait_s", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_server(start, number, wait_s):
    started = start()
    opened, processes = busy(started)
    time.sleep(wait_s)  # it is being started, loads, or computes
    for each in processes:
        os.kill(each, signal.SIGINT)  # a terminal interrupts all of them
    ended = started.stopped(number)
    assert ended == ((130, "equipoise: interrupted\n") if number == signal.SIGINT else (-number, ""))
    until = time.monotonic() + LONGEST_S
    while any(map(is_there, processes)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_there, processes))
    for connection in opened:
        connection.close()
