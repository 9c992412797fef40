"""What failures leave of a long run: checkpoints written, work done twice, restarts. Elementwise."""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.load import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often accelerators fail, and what a failure costs.

    mean_time_between_s: of one accelerator with its share of host and network. checkpoint_s: to write one
    while training stands still. restart_s: from a failure to the first new step.
    """

    mean_time_between_s: Floats
    checkpoint_s: Floats
    restart_s: Floats


# 419 unexpected interruptions of 16,384 accelerators in 54 days (Llama team 2024, section 3.3.4): one in
# 1.8e8 s each. Assumed, not measured: 10 s to write some terabytes to storage of 2 TB/s (same paper,
# section 3.3.1), and ten minutes until an automatic restart steps again.
TYPICAL_FAILURES = Failures(mean_time_between_s=1.8e8, checkpoint_s=10.0, restart_s=600.0)


def checkpoint_interval_s(num_accelerators: Floats, failures: Failures) -> Floats:
    """Seconds between checkpoints that lose least: root of twice a checkpoint's time by the time to a
    failure.

    Assumes failures come at random and are rare beside a checkpoint. Source: Young 1974.

    >>> rare = Failures(mean_time_between_s=2e6, checkpoint_s=25.0, restart_s=0.0)
    >>> float(checkpoint_interval_s(100, rare))
    1000.0
    """
    between_s = failures.mean_time_between_s / np.asarray(num_accelerators, dtype=float)
    return np.asarray(np.sqrt(2 * failures.checkpoint_s * between_s))


def goodput_fraction(num_accelerators: Floats, failures: Failures = TYPICAL_FAILURES) -> Floats:
    """The share of a run's time that is progress, in (0, 1].

    Returns an array of the shape of num_accelerators.
    Assumes the best checkpoint interval, half of it lost at each failure, and that any accelerator stops all.
    Source: Young 1974; Daly 2006: overhead C / tau + (tau / 2 + R) / M.

    >>> rare = Failures(mean_time_between_s=2e6, checkpoint_s=25.0, restart_s=0.0)
    >>> round(float(goodput_fraction(100, rare)), 4)
    0.9524
    """
    between_s = failures.mean_time_between_s / np.asarray(num_accelerators, dtype=float)
    interval_s = checkpoint_interval_s(num_accelerators, failures)
    lost = failures.checkpoint_s / interval_s + (interval_s / 2 + failures.restart_s) / between_s
    return np.asarray(1.0 / (1.0 + lost))


def best_interval_s(between_s: Floats, checkpoint_s: Floats) -> Floats:
    """Seconds of work between checkpoints that lose least, also where failures are not rare.

    between_s: mean time to a failure of the whole. Returns it where a checkpoint takes twice as long.
    Assumes failures come at random.
    Source: Daly 2006, equation 37.

    >>> [round(float(best_interval_s(60.0 * hours, 5.0))) for hours in (24, 6)]  # minutes
    [117, 57]
    """
    between = np.asarray(between_s, dtype=float)
    ratio = np.asarray(checkpoint_s, dtype=float) / (2.0 * between)
    interval = np.sqrt(2.0 * checkpoint_s * between) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0)
    return np.asarray(np.where(ratio < 1.0, interval - checkpoint_s, between))


def stretch(interval_s: Floats, between_s: Floats, *, checkpoint_s: Floats, restart_s: Floats) -> Floats:
    """How many times longer a run takes than its work alone: checkpoints, work done twice, restarts.

    interval_s: of work between checkpoints. between_s: mean time to a failure of the whole.
    Assumes failures come at random, during checkpoints and restarts too, and a run of many intervals.
    Source: Daly 2006, equation 20: M / tau exp(R / M) (exp((tau + C) / M) - 1).

    >>> round(float(stretch(1000.0, 1e12, checkpoint_s=0.0, restart_s=0.0)), 6)
    1.0
    """
    between = np.asarray(between_s, dtype=float)
    with np.errstate(over="ignore"):
        spent = np.exp(restart_s / between) * np.expm1((interval_s + checkpoint_s) / between)
        return np.asarray(between / interval_s * spent)
