"""Made questions of a decision: rows of plain numbers, limits, an objective, and what was selected of them.

Nothing else knows the API of `equipoise.decide.select`.
"""

import math

import numpy as np
from hypothesis import strategies as st
from msgspec import Struct

from equipoise.decide.answer import Candidate, Constraint
from equipoise.decide.evidence import SizeCurve
from equipoise.decide.explanation.explain import alternatives
from equipoise.decide.select import Rule, figures_of, select, time_values
from equipoise.intervals import Interval

LEVEL = 0.9
# What each limit judges of a row.
JUDGED = {
    "deadline_s": lambda row: row["time_s"],
    "budget_usd": lambda row: row["usd"],
    "max_accelerators": lambda row: row["num_accelerators"],
}
NUMBERS = ("time_s", "usd", "energy_j")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256)


class Selected(Struct, frozen=True, kw_only=True):
    """What was selected, in plain data.

    recommended, cheapest, fastest: rows, or None. relaxations: by limit, what would do. judged: every row by its
    id, as the answer has it, and with `feasible`. equilibria: the number of accelerators by kind. frontier: rows.
    thresholds: pairs of USD per hour and the row that is the best from there on.
    """

    recommended: dict | None
    cheapest: dict | None
    fastest: dict | None
    relaxations: dict
    judged: dict
    equilibria: dict
    frontier: list
    thresholds: list


def row(system, num_accelerators, time_s, *, usd_per_hour=1.0, power_w=500.0):
    """One thing to do whose money and energy follow from its time."""
    return {
        "system": system,
        "num_accelerators": num_accelerators,
        "time_s": float(time_s),
        "usd": usd_per_hour * num_accelerators * time_s / 3600,
        "energy_j": power_w * num_accelerators * time_s,
    }


def row_id(made):
    return f"{made['system']}/{made['num_accelerators']}/on_demand"


def amdahl(sizes, *, serial_s, parallel_s, system="red", **rates):
    """A system that follows Amdahl's law over sizes."""
    return [row(system, size, serial_s + parallel_s / size, **rates) for size in sizes]


def keeps(made, limits):
    """Whether a row keeps all limits, by its own values."""
    return all(JUDGED[name](made) <= limit for name, limit in limits.items())


# --- the one place that knows the API ------------------------------------------------------------------------------


def selection(rows, limits=None, objective="time", *, value_of_time=None, start_s=0.0):
    """What `equipoise.decide.select` makes of the rows, as `Selected`."""
    limits = limits or {}
    candidates = [_candidate(made, limits) for made in rows]
    rule = Rule(
        objective=objective,
        value_of_time_usd_per_hour=value_of_time or 0.0,
        deadline_s=limits.get("deadline_s", math.inf),
        start_s=start_s,
        spend_usd=limits.get("budget_usd", math.inf),
    )
    found = select(candidates, rule, _curves(rows, limits))
    by_id = {each.id: each for each in candidates}
    refusal = found.refusal
    changes = () if refusal is None else refusal.relaxations or refusal.joint
    return Selected(
        recommended=_row(found.recommended),
        cheapest=None if refusal is None else _row(refusal.cheapest),
        fastest=None if refusal is None else _row(refusal.fastest),
        relaxations={each.constraint: each.needed for each in changes},
        judged={each.id: _row(each) | {"feasible": each.feasible} for each in candidates},
        equilibria={
            each.kind: each.num_accelerators for known in found.equilibria.values() for each in known
        },
        frontier=[_row(by_id[name]) for name in found.frontier],
        thresholds=[
            (each.from_usd_per_hour, _row(by_id[each.candidate]))
            for each in time_values([figures_of(each) for each in candidates], rule)
        ],
    )


def alternatives_to_first(rows):
    """The alternatives to the first of some rows of one system without limits, by number."""
    made = [_candidate(each, {}) for each in rows]
    found = alternatives(made, made[0], Rule(objective="balance"), (), ())
    return {each.candidate.num_accelerators: each for each in found}


def exact(value):
    """An amount that is known."""
    return Interval(value=value, low=value, high=value, level=LEVEL)


def _candidate(made, limits):
    """The row as a candidate: what a choice looks at, and nothing that it does not."""
    return Candidate(
        **dict.fromkeys((name for name in Candidate.__struct_fields__), None)
        | {
            "system": made["system"],
            "title": made["system"],
            "accelerator": made["system"],
            "num_accelerators": made["num_accelerators"],
            "terms": "on_demand",
            "work_s": exact(made["time_s"]),
            **{name: exact(made[name]) for name in NUMBERS},
            "constraints": tuple(
                Constraint(name=name, limit=limit, value=JUDGED[name](made), probability=None)
                for name, limit in limits.items()
            ),
            "estimates": (),
            "published": (),
            "disagreement": 1.0,
            "grade": "priors",
        }
    )


def _curves(rows, limits):
    """The times of each system at the sizes that may be taken, as the one curve that there is of them."""
    rows = [made for made in rows if made["num_accelerators"] <= limits.get("max_accelerators", math.inf)]
    found = {}
    for name in {made["system"] for made in rows}:
        own = sorted((made["num_accelerators"], made["time_s"]) for made in rows if made["system"] == name)
        found[name, "on_demand"] = SizeCurve(
            sizes=tuple(size for size, _ in own),
            central_s=np.array([time_s for _, time_s in own]),
            drawn_s=np.array([[time_s for _, time_s in own]]),
            limited_by="question",
        )
    return found


def _row(candidate):
    if candidate is None:
        return None
    return {
        "system": candidate.system,
        "num_accelerators": candidate.num_accelerators,
        **{name: getattr(candidate, name).value for name in NUMBERS},
    }


# --- strategies ----------------------------------------------------------------------------------------------------


@st.composite
def systems_of_rows(draw, *, most_systems=3):
    """Rows of one to three systems, each of several sizes, as irregular as real ones: more may be slower."""
    rows = []
    for name in ("red", "blue", "green")[: draw(st.integers(1, most_systems))]:
        sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=6, unique=True))
        usd_per_hour = draw(st.integers(10, 1000)) / 100
        power_w = float(draw(st.integers(100, 1000)))
        for size in sorted(sizes):
            time_s = draw(st.integers(60, 10_000_000)) / 10
            rows.append(row(name, size, time_s, usd_per_hour=usd_per_hour, power_w=power_w))
    return rows


@st.composite
def limits_near(draw, rows):
    """Limits at, a little above and a little below what some row takes, or far from all; or none."""
    limits = {}
    for name, judge in JUDGED.items():
        if draw(st.booleans()):
            limit = judge(draw(st.sampled_from(rows))) * draw(st.sampled_from([0.5, 0.999, 1.0, 1.001, 2.0]))
            limits[name] = int(limit) if name == "max_accelerators" else limit
    return {name: limit for name, limit in limits.items() if limit > 0}


@st.composite
def questions(draw, *, objectives=("time", "cost", "energy")):
    """Rows, limits near them, and an objective."""
    rows = draw(systems_of_rows())
    return rows, draw(limits_near(rows)), draw(st.sampled_from(objectives))
