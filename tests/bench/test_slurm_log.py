"""What Slurm logs of a job that failed, in the words of its sources (src/srun, src/slurmd/slurmstepd)."""

import pytest

from equipoise.bench.launchers.slurm import JobState, who_died

FAILED = "srun: error: Node failure on n2\n"
ENDED = "srun: error: n1: task 0: Terminated\n"
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-25T01:02:03 DUE TO NODE FAILURE ***\n"


@pytest.mark.parametrize("log", [FAILED + ENDED, ENDED + FAILED, CANCELLED + ENDED + FAILED])
def test_a_node_that_failed_is_named_before_the_tasks_that_were_ended_for_it(log):
    found = who_died(log, JobState(name="NODE_FAIL", nodes="n[1-2]"), missing={0, 1})
    assert found.split()[:2] == ["node", "n2"]


def test_of_tasks_the_one_that_left_nothing_is_named():
    log = ENDED + "srun: error: n2: task 1: Killed\n"
    assert "n2" in who_died(log, JobState(name="FAILED", nodes="n[1-2]"), missing={1})
    assert who_died(log, JobState(name="FAILED", nodes="n[1-2]"), missing=set()) is None
