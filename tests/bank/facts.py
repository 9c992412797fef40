"""The facts of an answer in one form, whichever verb gave it.

`facts(answer)` takes what `questions.ask` returns and gives

- exit_code, and refusal: null, "usage" (exit 2), "not_enough_evidence" (exit 3) or "no_candidate" (nothing keeps the
  limits; exit 0);
- recommended: null, or accelerator, num_accelerators, terms, strategy, global_batch_samples, accelerator_hours, and
  time_s, usd and energy_j, each as {value, low, high};
- times_s: by accelerator and number of accelerators, the time of each size in the document;
- equilibria: by kind, num_accelerators, low, high and at_least (the search ended before the point);
- reach: what `--ask` asked for: tokens, params and limit;
- jobs: of `allocate`, by name: num_accelerators, start_s, time_s, usd; and its total, makespan and feasibility.

`accelerator` is the name that was asked for, of a chip or a system, as in the ids of candidates.
"""

_ENDS = ("value", "low", "high")
_PLAIN = ("accelerator", "num_accelerators", "terms", "strategy", "global_batch_samples", "accelerator_hours")
_AMOUNTS = ("time_s", "usd", "energy_j")


def facts(answer):
    """The canonical facts of one answer."""
    document = answer["document"] or {}
    found = {
        "exit_code": answer["exit_code"],
        "refusal": _refusal(answer["exit_code"], document),
        "recommended": None,
        "times_s": {},
        "equilibria": {},
        "reach": None,
        "jobs": {},
    }
    if answer["exit_code"] != 0 or not document:
        return found
    return found | (_allocate(document) if "jobs" in document else _answer(document))


def _refusal(exit_code, document):
    if exit_code != 0:
        return {2: "usage", 3: "not_enough_evidence"}.get(exit_code, "error")
    is_refused = "recommended" in document and document["recommended"] is None
    return "no_candidate" if is_refused or document.get("refusal") else None


def _interval(amount):
    """{value, low, high} of an interval, without its level."""
    return None if amount is None else {end: amount[end] for end in _ENDS}


# One Candidate everywhere: in `predict` as `predictions`, in `allocate` in each job, in `--ask` by size.


def _candidate(candidate):
    if candidate is None:
        return None
    return {name: candidate[name] for name in _PLAIN} | {
        name: _interval(candidate[name]) for name in _AMOUNTS
    }


def _times(candidates):
    """The time of each size; where one was weighed on several terms, the shortest."""
    times = {}
    for each in candidates:
        if each["time_s"] is not None:
            sizes = times.setdefault(each["accelerator"], {})
            size, time_s = str(each["num_accelerators"]), each["time_s"]["value"]
            sizes[size] = min(time_s, sizes.get(size, time_s))
    return times


def _equilibria(document):
    best = (document.get("recommended") or {}).get("accelerator")
    return {
        each["kind"]: {
            "num_accelerators": each["num_accelerators"],
            "low": each["low"],
            "high": each["high"],
            "at_least": each["limited_by"] is not None,
        }
        for each in document.get("equilibria", [])
        if each.get("accelerator", best) in {best, None}
    }


def _answer(document):
    if "best" in document:
        return _reach(document)
    best = _candidate(document.get("recommended"))
    return {
        "recommended": best,
        "times_s": _times(document.get("candidates", document.get("predictions", []))),
        "equilibria": _equilibria(document),
    }


def _reach(document):
    """What `--ask` found of the system that goes furthest; the amount is in tokens unless it says otherwise."""
    best = document["best"]
    return {
        "recommended": _candidate(best["recommended"]),
        "times_s": _times([each["candidate"] for each in best["by_size"]]),
        "reach": {
            best["unit"]: _interval(best["training_budget"]),
            "params": _interval(best["params"]),
            "limit": best["limit"],
        },
    }


def _allocate(document):
    pool = {name: document[name] for name in ("makespan_s", "feasible")}
    jobs = {"(all)": {"value": document["value"]["value"], **pool}}
    for each in document["jobs"]:
        taken = _candidate(each["candidate"])
        jobs[each["name"]] = {
            "num_accelerators": taken["num_accelerators"],
            "start_s": each["start_s"],
            "time_s": taken["time_s"]["value"],
            "usd": None if taken["usd"] is None else taken["usd"]["value"],
        }
    return {"jobs": jobs}


def flat(value, prefix=""):
    """Nested facts as dotted name -> plain value."""
    if isinstance(value, dict):
        return {
            name: each
            for key, inner in value.items()
            for name, each in flat(inner, f"{prefix}{key}/").items()
        }
    return {prefix.removesuffix("/"): value}
