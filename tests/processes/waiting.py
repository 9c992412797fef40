"""Waiting for what another process does, without a time that a busy machine can miss."""

import time


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
