"""What several nodes share: cores by hand, conditions as a set, messages, and who is to blame for a failure."""

import os
import re
import select
import socket
import sys
from pathlib import Path

import pytest

from equipoise.bench.environment import core_sets_by_node, refuse_unlike_nodes
from equipoise.bench.launchers import (
    RESULT,
    Command,
    End,
    LaunchJob,
    interface_towards,
    outcome,
    run_commands,
    write_document,
)
from equipoise.bench.launchers.hosts import HostConnection
from equipoise.bench.trial import Trial
from equipoise.errors import DataError

HOSTS = {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("nodes", "most_ranks", "expected"),
    [
        # Two machines of four cores: two a rank.
        ([("a", (0, 1, 2, 3)), ("b", (0, 1, 2, 3))], 2, (((0, 1), (2, 3)), ((0, 1), (2, 3)))),
        # The weaker machine decides: every rank has as many.
        ([("a", (0, 1, 2, 3)), ("b", (6, 7))], 1, (((0, 1),), ((6, 7),))),
        # Two nodes that are one machine share its cores.
        ([("a", (0, 1)), ("a", (0, 1))], 1, (((0,),), ((1,),))),
        ([("a", (0,)), ("a", (1,))], 1, (((0,),), ((1,),))),
    ],
)
def test_every_rank_of_all_nodes_has_as_many_cores(nodes, most_ranks, expected):
    assert core_sets_by_node(nodes, most_ranks) == expected


def test_more_ranks_than_cores_are_refused():
    with pytest.raises(DataError, match=r"3 ranks on 2 cores"):
        core_sets_by_node([("a", (0, 1, 2)), ("b", (0, 1))], 3)


def test_nodes_are_compared_as_a_set_without_their_names():
    one = {"host": "a", "processor": "X", "torch": "2.13.0", "core_sets": [[0, 1]]}
    other = {"host": "b", "processor": "Y", "torch": "2.13.0", "core_sets": [[4, 5]]}
    refuse_unlike_nodes([[one, other], [{**other, "host": "c"}, {**one, "load_1min": 9.0}]], "ddp")
    with pytest.raises(DataError, match=r"processor='X' and 'Y'"):
        refuse_unlike_nodes([[one, other], [other, other]], "ddp")
    with pytest.raises(DataError, match=r"core_sets"):
        refuse_unlike_nodes([[one], [{**one, "core_sets": [[0]]}]], "ddp")
    with pytest.raises(DataError, match=r"on 2 and 1 nodes"):
        refuse_unlike_nodes([[one, other], [one]], "ddp")
    card = {**one, "accelerator": "NVIDIA H200", "driver": "570.1"}
    with pytest.raises(DataError, match=r"accelerator='NVIDIA H200' and 'NVIDIA H100 NVL'"):
        refuse_unlike_nodes([[card], [{**card, "accelerator": "NVIDIA H100 NVL"}]], "ddp")


def job(folder):
    trial = Trial(workload="mlp", method="ddp", num_ranks=2, batch_samples=16)
    return LaunchJob(task=trial, folder=folder, core_sets=(), limit_s=9.0)


@pytest.mark.parametrize(
    ("ends", "ran_out", "reason"),
    [
        # The peer of a killed rank may be heard of first: it only saw that the other was gone.
        (((0, 1, "raised X: Connection closed by peer"), (1, -9, "was killed by SIGKILL")), False, "rank 1 on b .*SIGKILL"),
        (((0, 1, "raised X: Connection reset by peer"), (1, 1, "raised ValueError")), False, "rank 1 on b .*ValueError"),
        (((1, 1, "raised ValueError"), (0, 1, "raised TypeError")), False, "rank 1 on b .*ValueError"),
        # As a training does that ends by itself on one rank: the others only see that it is gone.
        (((1, 0, None), (0, 1, "raised X: Connection closed by peer")), False, "rank 1 on b "),
        (((0, 0, None),), True, r"hung: .*\b9 s"),
        (((0, 0, None), (1, 0, None)), False, ".*result"),
    ],
)  # fmt: skip
def test_the_rank_that_failed_first_is_named_with_its_host(tmp_path, ends, ran_out, reason):
    found = [End(rank=rank, code=code, why=why) for rank, code, why in ends]
    assert re.match(reason, outcome(job(tmp_path), found, hosts=HOSTS, ran_out=ran_out).reason)


# Programs of ranks that fail: one that lost another, and the one that failed, which takes long to end.
LOST = "open('reason.0', 'w').write('raised X: Connection closed by peer')"
FAILED = "open('reason.1', 'w').write('raised ValueError'); import time; time.sleep({})"


@pytest.mark.parametrize(
    ("programs", "by_agent"),
    [((LOST, FAILED.format(60)), False), ((f"{LOST}; {FAILED.format(0)}",), True)],
    ids=["ranks", "an agent"],
)
def test_a_rank_that_has_not_ended_is_asked_for_its_reason(tmp_path, monkeypatch, programs, by_agent):
    monkeypatch.chdir(tmp_path)
    commands = [
        Command(arguments=(sys.executable, "-c", f"{each}; raise SystemExit(1)"), environment=os.environ)
        for each in programs
    ]
    found = run_commands(job(tmp_path), commands, by_agent=by_agent)
    assert found.reason == "rank 1 raised ValueError"


def test_a_result_counts_only_when_every_rank_ended_well(tmp_path):
    write_document(tmp_path, RESULT, {"steps": []})
    well = [End(rank=rank, code=0, why=None) for rank in (0, 1)]
    assert outcome(job(tmp_path), well, hosts=HOSTS, ran_out=False).result == {"steps": []}
    assert outcome(job(tmp_path), well[:1], hosts=HOSTS, ran_out=True).result is None


def test_messages_arrive_whole_and_a_peer_that_ends_is_noticed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = HostConnection(socket.create_connection(listener.getsockname()))
        there = HostConnection(listener.accept()[0])
    long = {"text": "ä" * 20_000}
    here.send(long)
    here.send({"n": 1})
    found = []
    while len(found) < 2:
        select.select([there], [], [], 30)
        found += there.received()
    assert found == [long, {"n": 1}]
    here.close()
    select.select([there], [], [], 30)
    assert there.received() == []
    assert there.lost
    there.close()


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="needs a loopback called lo")
def test_the_interface_towards_this_host_is_its_loopback():
    assert interface_towards("127.0.0.1") == "lo"
