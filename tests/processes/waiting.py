"""Waiting for what another process does, without a time that a busy machine can miss."""

import os
import shutil
import time
from pathlib import Path


def awaited(look, *, limit_s=120.0, every_s=0.02):
    """What a look finds once it finds something, or what the last one found.

    Looks are counted, not time: each look takes some and the machine may stand still between two, so that one at the
    end of a stated time may be the second.
    """
    for _ in range(round(limit_s / every_s)):
        if something := look():
            return something
        time.sleep(every_s)
    return look()


# Where Linux shares processors between sessions, only a session's own number counts: it is in this file.
AHEAD = 'echo -10 2>/dev/null > /proc/self/autogroup; exec nice -n -10 "$@"'


def ahead_of_others(*command):
    """A command, begun in a session of its own, that computes before what else runs here: where allowed, as root.

    Ray ends a node whose own agents take more than 15 s to load, and nothing sets another time.
    """
    return ("sh", "-c", AHEAD, "sh", *command) if os.geteuid() == 0 and shutil.which("nice") else command


def alive(pid):
    """Whether a process runs: one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
