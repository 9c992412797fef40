"""What differs between two records of the bank, question by question, for a person to go through.

    git show COMMIT:tests/bank/answers.jsonl.zst > before.zst
    python tests/bank/compare.py before.zst tests/bank/answers.jsonl.zst
    python tests/bank/compare.py BEFORE AFTER --only spot-7d --all

A line marked `!` differs by more than the tolerance (0.5 %), or is no number. Sizes that only one side has are counted,
not listed, unless --all is given.
"""

import argparse
from pathlib import Path

from facts import facts, flat
from questions import questions
from record import read

TOLERANCE = 0.005
_TIMES = "times_s/"


def differences(before, after):
    """(fact, old, new, relative difference or None) of each fact that differs; None where a side lacks it."""
    old, new = flat(before), flat(after)
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name), new.get(name)
        if one != other:
            yield name, one, other, _relative(one, other)


def _relative(one, other):
    numbers = (int, float)
    if any(isinstance(each, bool) or not isinstance(each, numbers) for each in (one, other)) or one == 0:
        return None
    return other / one - 1


def _outcome(found):
    """How an answer ended, in a few words."""
    best = found["recommended"]
    if best is not None:
        return f"{best['num_accelerators']} x {best['accelerator']} on {best['terms']} terms"
    return f"{found['refusal'] or 'an answer'} (exit code {found['exit_code']})"


def _shown(value):
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def report(question, before, after, *, tolerance, everything):
    """The lines about one question; none where nothing differs."""
    expected = question.exit_code
    if expected is not None and after["exit_code"] != expected:
        yield f"! exit code {after['exit_code']}, expected {expected}: {after['message'].strip()}"
    if before is None:
        if expected is None and after["exit_code"] != 0:
            yield f"! new, refused with {after['exit_code']}: {after['message'].strip()}"
        else:
            yield f"  new: {_outcome(facts(after))}"
        return
    old, new = facts(before), facts(after)
    lone = 0
    if old["refusal"] != new["refusal"] and not everything:
        yield f"! {_outcome(old)} -> {_outcome(new)}"
        old = new = {}
    for name, one, other, share in differences(old, new):
        if not everything and name.startswith(_TIMES) and None in {one, other}:
            lone += 1
            continue
        is_large = share is None or abs(share) > tolerance
        if is_large or everything:
            change = "" if share is None else f"  ({share:+.2%})"
            yield f"{'!' if is_large else ' '} {name}: {_shown(one)} -> {_shown(other)}{change}"
    if lone:
        yield f"  {lone} sizes that one side alone has"
    if before["exit_code"] and before["message"] != after["message"]:
        yield f"  said: {before['message'].strip()}"
        yield f"  says: {after['message'].strip()}"


def main():
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", action="append", metavar="NAME", help="this question; may be repeated")
    parser.add_argument(
        "--all", action="store_true", help="differences below the tolerance and lone sizes too"
    )
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="relative; 0.005")
    options = parser.parse_args()
    (_, before), (_, after) = read(options.before), read(options.after)
    num_same = num_different = 0
    for question in questions():
        if question.name not in after or (options.only and question.name not in options.only):
            continue
        one, other = before.get(question.name), after[question.name]
        lines = list(report(question, one, other, tolerance=options.tolerance, everything=options.all))
        if not lines:
            num_same += 1
            continue
        num_different += 1
        mark = ", of this machine" if question.this_machine else ""
        print(f"{question.name} ({question.theme}{mark}): {question.why}")
        if question.right:
            print(f"  right: {question.right}")
        print(*(f"  {line}" for line in lines), sep="\n")
        print()
    print(f"{num_different} differ, {num_same} are the same to {options.tolerance:.2%}.")
    for name in sorted(before.keys() - after.keys()):
        print(f"only before: {name}")


if __name__ == "__main__":
    main()
