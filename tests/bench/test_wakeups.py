"""What is started inside `prompt_wakeups` has short turns, its niceness stays, and afterwards all is as before."""

import os
import subprocess
import sys
import threading

import pytest
from emulated import SLICE_S, prompt_wakeups

from equipoise.bench.environment import time_slice_s

TOLD = "import os; from equipoise.bench.environment import time_slice_s as s; print(s(), os.nice(0))"
BEFORE_S = time_slice_s()


@pytest.mark.skipif(BEFORE_S is None, reason="this kernel has no slices that can be asked for")
def test_turns_are_short_inside_for_children_too_and_as_before_afterwards():
    with prompt_wakeups():
        assert time_slice_s() == pytest.approx(SLICE_S)
        told = subprocess.run((sys.executable, "-c", TOLD), capture_output=True, text=True, check=True)
    slice_s, niceness = told.stdout.split()
    assert float(slice_s) == pytest.approx(SLICE_S)
    assert int(niceness) == os.nice(0)
    assert time_slice_s() == pytest.approx(BEFORE_S)


def test_nothing_is_raised_where_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("emulated._LATENCY", tmp_path / "none")
    monkeypatch.setattr("equipoise.bench.environment.SCHEDULING_CALLS", {})
    with prompt_wakeups():
        assert time_slice_s() is None


def test_threads_that_interrupt_end_with_it_and_move_nobody_else():
    before = threading.active_count(), os.sched_getaffinity(0), os.sched_getscheduler(0)
    with prompt_wakeups(sorted(os.sched_getaffinity(0))[:1]):
        assert os.sched_getaffinity(0) == before[1]
    assert (threading.active_count(), os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
