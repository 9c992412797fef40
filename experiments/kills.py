"""Kills a real sweep 200 times at random instants, resumes it, and counts what was lost, repeated or damaged.

    python experiments/kills.py [--out DIR] [--num-kills N] [--minutes M] [--seed S]

Ten to fifteen minutes on two cores; --minutes stops earlier, between two kills, and the same command goes on
from there. Writes the table of docs/experiments/0015-kills.md when all kills are done. Linux.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import isfinite
from pathlib import Path
from statistics import median

import polars as pl
from msgspec import Struct, to_builtins

from equipoise.bench.trial import SUCCESS, FinishedTrial, Store

PAGE = Path(__file__).parents[1] / "docs" / "experiments" / "0015-kills.md"
NUM_STEPS = 6
ASKED = (
    *("bench", "mlp", "--sizes", "1,2", "--batch", "16,32", "--strategy", "ddp", "--repeat", "3"),
    *("--steps", str(NUM_STEPS), "--device", "cpu"),
)
LAUNCHERS = ("inprocess", "torchrun")
DRIVER, WORKER, AGENT = "driver", "worker", "agent"
# Whom a kill meets, and how likely; an agent is there with torchrun only.
WHOM = ((DRIVER, 0.7), (WORKER, 0.2), (AGENT, 0.1))
# From when an instant is drawn, how likely that is, and how much later at most: the start of the driver;
# the next trial that begins to run, or now where one runs; the next file that the sweep begins to write.
START, TRIAL, WRITE = "start", "trial", "write"
INSTANTS = ((START, 0.15, 3.0), (TRIAL, 0.5, 6.0), (WRITE, 0.35, 0.004))
PATIENCE_S = 60.0
ORPHAN_S = 10.0
_LOOK_S = 0.0005


class Kill(Struct, frozen=True, kw_only=True):
    """One kill and what it left. num_orphans: processes that outlived their driver by ORPHAN_S."""

    sweep: int
    whom: str
    instant: str
    after_s: float
    num_finished: int
    was_training: bool
    num_lost: int
    num_changed: int
    num_unreadable: int
    num_orphans: int


class Whole(Struct, frozen=True, kw_only=True):
    """One sweep at its end: what is wrong with it. num_failed: trials that say a rank was killed."""

    sweep: int
    num_trials: int
    num_missing: int
    num_strange: int
    num_failed: int
    num_unexplained: int
    num_corrupt: int
    num_table_faults: int
    num_leftovers: int


class Rig:
    """The folder of the experiment: sweeps, what was seen finished in each, and the records of kills."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Goes on with what the folder holds."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.kills = [Kill(**each) for each in _lines(folder / "kills.jsonl")]
        self.wholes = [Whole(**each) for each in _lines(folder / "wholes.jsonl")]
        self.random = random.Random(f"{seed} {len(self.kills)}")  # noqa: S311 - instants, no secrets
        self.leftovers: set[str] = set()
        self._seen_path = folder / "seen.json"
        self.seen: dict[str, str] = (
            json.loads(self._seen_path.read_bytes()) if self._seen_path.exists() else {}
        )

    @property
    def sweep(self) -> int:
        """The number of the sweep under way."""
        return len(self.wholes)

    @property
    def out(self) -> Path:
        """The folder of the sweep under way."""
        return self.folder / f"sweep-{self.sweep}"

    def driver(self) -> subprocess.Popen[bytes]:
        """The sweep begun, or resumed."""
        resume = ("--resume",) if (self.out / "sweep.json").exists() else ()
        kind = LAUNCHERS[self.sweep % len(LAUNCHERS)]
        command = (sys.executable, "-m", "equipoise", *ASKED, "--launcher", kind, "--out", str(self.out))
        complaints = (self.folder / "driver.log").open("ab")
        self.leftovers = _names(self.out)
        return subprocess.Popen((*command, *resume), stdout=complaints, stderr=complaints)

    def finished(self) -> dict[str, bytes]:
        """The files of finished trials, by name."""
        return {path.name: path.read_bytes() for path in sorted((self.out / "trials").glob("[!.]*.json"))}

    def changes(self) -> tuple[int, int, int]:
        """Finished trials seen before that are gone, or not what they were; and those that are no JSON."""
        now = self.finished()
        prefix = f"{self.sweep}/"
        before = {
            name[len(prefix) :]: digest for name, digest in self.seen.items() if name.startswith(prefix)
        }
        digests = {name: sha256(content).hexdigest() for name, content in now.items()}
        num_lost = len(before.keys() - digests.keys())
        num_changed = sum(digests.get(name, digest) != digest for name, digest in before.items())
        unreadable = sum(not _is_json(content) for content in now.values())
        self.seen |= {f"{prefix}{name}": digest for name, digest in digests.items()}
        self._seen_path.write_text(json.dumps(self.seen), encoding="utf-8")
        return num_lost, num_changed, unreadable

    def add(self, kill: Kill) -> None:
        """Record a kill."""
        self.kills.append(kill)
        _append(self.folder / "kills.jsonl", to_builtins(kill))

    def close(self) -> None:
        """Record the sweep that has ended."""
        whole = checked(self.sweep, self.out)
        self.wholes.append(whole)
        _append(self.folder / "wholes.jsonl", to_builtins(whole))


def processes_of(folder: Path) -> Iterator[tuple[int, str]]:
    """Processes whose command names the folder, with that command; not those that are dead already."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has just ended
            continue
        if f"{folder}/" in f"{command.rstrip()}/" and state not in "ZX" and int(entry.name) != os.getpid():
            yield int(entry.name), command


def kind_of(command: str) -> str:
    """Which part of a sweep a process is."""
    if "torch.distributed.run" in command:
        return AGENT
    return WORKER if "equipoise.bench.worker" in command else DRIVER


def orphans(folder: Path) -> int:
    """Processes of a sweep that are there although their driver is gone; they are ended."""
    deadline = time.monotonic() + ORPHAN_S
    while (left := list(processes_of(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def waited(rig: Rig, driver: subprocess.Popen[bytes], instant: str) -> float | None:
    """Waits for the instant of a kill: seconds since now, or None when the sweep ended before it."""
    begun = time.monotonic()
    after_s = rig.random.uniform(0.0, next(most_s for name, _, most_s in INSTANTS if name == instant))
    before = _names(rig.out / "trials")
    due = begun + after_s if instant == START else None
    while due is None or time.monotonic() < due:
        if driver.poll() is not None:
            return None
        now = time.monotonic()
        if due is None and (_has_come(rig, instant, before) or now - begun > PATIENCE_S):
            due = now + after_s
        time.sleep(_LOOK_S)
    return time.monotonic() - begun


def _has_come(rig: Rig, instant: str, before: set[str]) -> bool:
    """Whether that is there from which an instant is drawn. before: names in the folder of trials."""
    if instant == TRIAL:
        return any(name.startswith("running-") for name in _names(rig.out) - rig.leftovers)
    return bool(_names(rig.out / "trials") - before)


def killed(rig: Rig, driver: subprocess.Popen[bytes]) -> bool:
    """One kill; whether it met the driver, or an ended sweep: then it is to be started again."""
    instant = rig.random.choices([name for name, _, _ in INSTANTS], [share for _, share, _ in INSTANTS])[0]
    whom = rig.random.choices([name for name, _ in WHOM], [share for _, share in WHOM])[0]
    after_s = waited(rig, driver, instant)
    if after_s is None:
        return True
    there = [(pid, kind_of(command)) for pid, command in processes_of(rig.out)]
    training = any(kind == WORKER for _, kind in there)
    candidates = [pid for pid, kind in there if kind == whom and pid != driver.pid]
    if whom == DRIVER or not candidates:
        whom, victim = DRIVER, driver.pid
    else:
        victim = rig.random.choice(candidates)
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:  # it ended in between: no kill
        return False
    num_orphans = 0
    if whom == DRIVER:
        driver.wait()
        num_orphans = orphans(rig.out)
    num_lost, num_changed, num_unreadable = rig.changes()
    rig.add(
        Kill(
            sweep=rig.sweep,
            whom=whom,
            instant=instant,
            after_s=after_s,
            num_finished=len(rig.finished()),
            was_training=training,
            num_lost=num_lost,
            num_changed=num_changed,
            num_unreadable=num_unreadable,
            num_orphans=num_orphans,
        )
    )
    return whom == DRIVER


def run(rig: Rig, *, num_kills: int, minutes: float) -> bool:
    """Kills until there were enough and the last sweep has ended; whether that is so before time is up."""
    deadline = time.monotonic() + minutes * 60
    driver = rig.driver()
    try:
        while time.monotonic() < deadline:
            over = driver.poll() is not None
            if not over and len(rig.kills) < num_kills:
                over = killed(rig, driver)
            elif not over:
                over = driver.wait() is not None
            if over and driver.poll() == 0:
                rig.changes()
                rig.close()
                if len(rig.kills) >= num_kills:
                    return True
            elif over and driver.poll() != -signal.SIGKILL:
                raise SystemExit(f"{rig.out}: ended with {driver.poll()}; see {rig.folder / 'driver.log'}")
            if over:
                driver = rig.driver()
        return False
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
            orphans(rig.out)


def checked(sweep: int, out: Path) -> Whole:
    """What is wrong with a sweep that says it is at its end."""
    store = Store(out)
    planned = {f"{trial.trial_id}.json" for trial in store.plan()}
    there = {path.name for path in (out / "trials").iterdir()}
    finished = store.finished()
    failed = [one for one in finished if one.status != SUCCESS]
    return Whole(
        sweep=sweep,
        num_trials=len(planned),
        num_missing=len(planned - there),
        num_strange=len(there - planned),
        num_failed=len(failed),
        num_unexplained=sum(not _says_killed(one) for one in failed),
        num_corrupt=sum(not _is_sound(one) for one in finished),
        num_table_faults=_table_faults(out, finished),
        num_leftovers=len([*out.glob("running-*"), *out.rglob(".*.part")]),
    )


def _says_killed(one: FinishedTrial) -> bool:
    return bool(re.search(r"killed|SIG|Connection|closed|peer|exit code", one.reason or ""))


def _is_sound(one: FinishedTrial) -> bool:
    """Whether a trial has all its values: every timed step, each above zero and as long as its phases."""
    if one.status != SUCCESS:
        return not one.result and bool(one.reason)
    steps = one.result["steps"]
    return len(steps) == NUM_STEPS and all(
        step["step"] > 0 and all(isfinite(value) and value >= 0 for value in step.values()) for step in steps
    )


def _table_faults(out: Path, finished: Sequence[FinishedTrial]) -> int:
    """Rows of the tables that are missing, double or differ from the trials."""
    runs, steps = (pl.read_parquet(out / f"{name}.parquet") for name in ("runs", "steps"))
    expected = {
        (f"{out.name}/{one.trial.trial_id}", number, phase): seconds
        for one in finished
        for number, step in enumerate(one.result.get("steps") or (), 1)
        for phase, seconds in step.items()
    }
    rows = steps.select("run_id", "repetition", "phase", "seconds").rows()
    found = Counter(row[:3] for row in rows)
    faults = sum(count - 1 for count in found.values()) + len(expected.keys() ^ found.keys())
    faults += sum(expected.get(row[:3]) != row[3] for row in rows if row[:3] in expected)
    names = Counter(runs["run_id"].to_list())
    return (
        faults
        + sum((names - Counter(f"{out.name}/{one.trial.trial_id}" for one in finished)).values())
        + (len(finished) - len(names))
    )


def finished_share(kills: Sequence[Kill], wholes: Sequence[Whole]) -> float:
    """Of the kills with finished trials there, the median share of the plan that was finished."""
    shares = [kill.num_finished / wholes[0].num_trials for kill in kills if kill.num_finished]
    return median(shares) if shares else 0.0


def table(rig: Rig) -> str:
    """The figures, as a table in Markdown."""
    kills, wholes = rig.kills, rig.wholes
    by_whom = Counter(kill.whom for kill in kills)
    by_instant = Counter(kill.instant for kill in kills)
    rows = [
        (
            "kills of the driver / a worker / torchrun's agent",
            " / ".join(str(by_whom[name]) for name, _ in WHOM),
        ),
        (
            "after the start / while a trial ran / at a file being written",
            " / ".join(str(by_instant[name]) for name, _, _ in INSTANTS),
        ),
        ("of these, with ranks there", sum(kill.was_training for kill in kills)),
        (
            "of these, with finished trials there, and the median share of the plan",
            f"{sum(kill.num_finished > 0 for kill in kills)}, {finished_share(kills, wholes):.0%}",
        ),
        (
            "sweeps brought to their end, trials in all",
            f"{len(wholes)}, {sum(each.num_trials for each in wholes)}",
        ),
        (
            "finished trials lost",
            sum(kill.num_lost for kill in kills) + sum(each.num_missing for each in wholes),
        ),
        ("finished trials run again or changed", sum(kill.num_changed for kill in kills)),
        ("trials beyond the plan, or twice", sum(each.num_strange for each in wholes)),
        (
            "trials that are no JSON, or lack values",
            sum(kill.num_unreadable for kill in kills) + sum(each.num_corrupt for each in wholes),
        ),
        ("rows of the tables that differ from the trials", sum(each.num_table_faults for each in wholes)),
        ("processes left 10 s after their driver", sum(kill.num_orphans for kill in kills)),
        ("trials that failed and say that a rank was killed", sum(each.num_failed for each in wholes)),
        ("trials that failed for no kill", sum(each.num_unexplained for each in wholes)),
        ("folders or parts of files left over at the end", sum(each.num_leftovers for each in wholes)),
    ]
    lines = [f"| of {len(kills)} kills |  |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def written(page: Path, figures: str) -> None:
    """Put the table between its marks in a page."""
    text = page.read_text(encoding="utf-8")
    marks = re.compile(r"(<!-- table -->\n).*(<!-- end -->)", re.DOTALL)
    page.write_text(marks.sub(lambda found: f"{found[1]}{figures}\n{found[2]}", text), encoding="utf-8")


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - thousands of times a second
    except FileNotFoundError:
        return set()


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, record: dict[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def main() -> None:
    """Run the experiment, or go on with it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/kills"))
    parser.add_argument("--num-kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rig = Rig(asked.out.resolve(), asked.seed)
    is_over = run(rig, num_kills=asked.num_kills, minutes=asked.minutes)
    print(table(rig))
    if not is_over:
        print(f"{len(rig.kills)} of {asked.num_kills} kills; the same command goes on")
    elif PAGE.exists() and asked.num_kills == parser.get_default("num_kills"):
        written(PAGE, table(rig))


if __name__ == "__main__":
    main()
