"""The facts of an answer in one form, whichever schema its document has.

`facts(answer)` takes what `questions.ask` returns and gives

- exit_code, and refusal: null, "usage" (exit 2), "not_enough_evidence" (exit 3) or "no_candidate" (nothing keeps the
  limits; exit 0);
- recommended: null, or accelerator, num_accelerators, terms, strategy, global_batch_samples, accelerator_hours, and
  time_s, usd and energy_j, each as {value, low, high};
- with_failures: time_s and usd of the recommended one with failures, checkpoints and the queue. Schema 1 states them
  beside the headline (advise) or in it (plan); in schema 2 they are the headline;
- times_s: by accelerator and number of accelerators, the time of each size in the document;
- equilibria: by kind, num_accelerators, low, high and at_least (the search ended before the point);
- reach: what `--ask` asked for: tokens, params and limit;
- jobs: of `allocate`, by name: num_accelerators, start_s, time_s, usd; and its total, makespan and feasibility.

`accelerator` is the name that was asked for, of a chip or a system, as in the ids of candidates in schema 2.
"""

import re

_BATCH = re.compile(r"\bglobal_batch(?:_samples)?=(\d+)")
_ENDS = ("value", "low", "high")


def facts(answer):
    """The canonical facts of one answer."""
    document = answer["document"] or {}
    found = {
        "exit_code": answer["exit_code"],
        "refusal": _refusal(answer["exit_code"], document),
        "recommended": None,
        "with_failures": None,
        "times_s": {},
        "equilibria": {},
        "reach": None,
        "jobs": {},
    }
    if answer["exit_code"] != 0 or not document:
        return found
    verb, _, schema = document["schema"].removeprefix("equipoise.").partition("/")
    return found | _READERS[verb, schema](document)


def _refusal(exit_code, document):
    if exit_code != 0:
        return {2: "usage", 3: "not_enough_evidence"}.get(exit_code, "error")
    is_refused = "recommended" in document and document["recommended"] is None
    return "no_candidate" if is_refused or document.get("refusal") else None


def _interval(amount):
    """{value, low, high} of an interval, without its level."""
    return None if amount is None else {end: amount[end] for end in _ENDS}


def _batch(strategy):
    found = _BATCH.search(strategy or "")
    return None if found is None else int(found.group(1))


# Schema 1


def _choice_1(choice, accelerator, terms):
    """A choice of `advise` or an option of `plan`."""
    if choice is None:
        return None
    strategy = choice["strategy"]
    return {
        "accelerator": accelerator,
        "num_accelerators": choice["num_accelerators"],
        "terms": terms,
        "strategy": strategy,
        "global_batch_samples": choice.get("global_batch_samples", _batch(strategy)),
        "time_s": _interval(choice["time_s"]),
        "usd": _flat_1(choice, "usd"),
        "energy_j": _flat_1(choice, "energy_j"),
        "accelerator_hours": choice["accelerator_hours"],
    }


def _flat_1(bill, name):
    """{value, low, high} of an amount whose ends are fields of their own."""
    if bill[name] is None:
        return None
    return {"value": bill[name], "low": bill[f"low_{name}"], "high": bill[f"high_{name}"]}


def _equilibria_1(document):
    return {
        each["kind"]: {
            "num_accelerators": each["num_accelerators"],
            "low": each["low"],
            "high": each["high"],
            "at_least": each["censored"],
        }
        for each in document["equilibria"]
    }


def _terms_1(document):
    price = (document.get("rates") or {}).get("price")
    return None if price is None else price["terms"]


def _name_1(cluster):
    return cluster.get("name") or cluster["accelerator"]


def _times_1(choices):
    return {str(each["num_accelerators"]): each["time_s"]["value"] for each in choices}


def _advise_1(document):
    if "asked" in document:
        return _reach_1(document)
    name, terms = _name_1(document["cluster"]), _terms_1(document)
    times = {name: _times_1(document["sizes"])}
    for each in document["compared"]:
        if each["recommended"] is not None:
            times.setdefault(_name_1(each["cluster"]), {}).update(_times_1([each["recommended"]]))
    risk = next((each for each in document["risks"] if each["terms"] == terms), None)
    return {
        "recommended": _choice_1(document["recommended"], name, terms),
        "with_failures": risk and {"time_s": _interval(risk["time_s"]), "usd": _interval(risk["usd"])},
        "times_s": times,
        "equilibria": _equilibria_1(document),
    }


def _reach_1(document):
    name = _name_1(document["cluster"])
    reach = {key: _interval(document[key]) for key in ("tokens", "params")}
    return {
        "recommended": _choice_1(document["recommended"], name, None),
        "times_s": {name: _times_1(document["sizes"])},
        "reach": {**reach, "limit": document["limit"]},
    }


def _plan_1(document):
    plans = document.get("compared") or [document]
    best = _choice_1(document["recommended"], _name_1(document["cluster"]), _terms_1(document))
    return {
        "recommended": best,
        "with_failures": best and {"time_s": best["time_s"], "usd": best["usd"]},
        "times_s": {_name_1(each["cluster"]): _times_1(each["sizes"]) for each in plans},
        "equilibria": _equilibria_1(document),
    }


def _predict_1(document):
    times = {str(each["num_accelerators"]): each["time_s"] for each in document["predictions"]}
    return {
        "times_s": {document["accelerator"] or "measured": times},
        "equilibria": _equilibria_1(document),
    }


def _allocate_1(document):
    jobs = {
        each["name"]: {
            "num_accelerators": each["num_accelerators"],
            "start_s": each["start_s"],
            "time_s": each["time_s"]["value"],
            "usd": each["usd"],
        }
        for each in document["jobs"]
    }
    return {"jobs": jobs | _pool(document)}


def _pool(document):
    return {
        "(all)": {
            "value": document["value"]["value"],
            "makespan_s": document["makespan_s"],
            "feasible": document["feasible"],
        }
    }


# Schema 2: one Candidate everywhere, in `predict` as `predictions`, in `allocate` in each job, in `--ask` by size.


def _candidate_2(candidate):
    if candidate is None:
        return None
    hours = candidate["accelerator_hours"]
    return {
        "accelerator": candidate["accelerator"],
        "num_accelerators": candidate["num_accelerators"],
        "terms": candidate["terms"],
        "strategy": candidate["strategy"],
        "global_batch_samples": candidate["global_batch_samples"],
        "time_s": _interval(candidate["time_s"]),
        "usd": _interval(candidate["usd"]),
        "energy_j": _interval(candidate["energy_j"]),
        "accelerator_hours": hours["value"] if isinstance(hours, dict) else hours,
    }


def _times_2(candidates):
    """The time of each size; where one was weighed on several terms, the shortest."""
    times = {}
    for each in candidates:
        if each["time_s"] is not None:
            sizes = times.setdefault(each["accelerator"], {})
            size, time_s = str(each["num_accelerators"]), each["time_s"]["value"]
            sizes[size] = min(time_s, sizes.get(size, time_s))
    return times


def _equilibria_2(document):
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


def _answer_2(document):
    if "best" in document:
        return _reach_2(document)
    best = _candidate_2(document.get("recommended"))
    return {
        "recommended": best,
        "with_failures": best and {"time_s": best["time_s"], "usd": best["usd"]},
        "times_s": _times_2(document.get("candidates", document.get("predictions", []))),
        "equilibria": _equilibria_2(document),
    }


def _reach_2(document):
    """What `--ask` found of the system that goes furthest; the amount is in tokens unless it says otherwise."""
    best = document["best"]
    return {
        "recommended": _candidate_2(best["recommended"]),
        "times_s": _times_2([each["candidate"] for each in best["by_size"]]),
        "reach": {
            best["unit"]: _interval(best["training_budget"]),
            "params": _interval(best["params"]),
            "limit": best["limit"],
        },
    }


def _allocate_2(document):
    jobs = {}
    for each in document["jobs"]:
        taken = _candidate_2(each["candidate"])
        jobs[each["name"]] = {
            "num_accelerators": taken["num_accelerators"],
            "start_s": each["start_s"],
            "time_s": taken["time_s"]["value"],
            "usd": None if taken["usd"] is None else taken["usd"]["value"],
        }
    return {"jobs": jobs | _pool(document)}


_READERS = {
    ("advise", "1"): _advise_1,
    ("plan", "1"): _plan_1,
    ("predict", "1"): _predict_1,
    ("allocate", "1"): _allocate_1,
    ("advise", "2"): _answer_2,
    ("advise-ask", "1"): _answer_2,
    ("plan", "2"): _answer_2,
    ("predict", "2"): _answer_2,
    ("allocate", "2"): _allocate_2,
}


def flat(value, prefix=""):
    """Nested facts as dotted name -> plain value."""
    if isinstance(value, dict):
        return {
            name: each
            for key, inner in value.items()
            for name, each in flat(inner, f"{prefix}{key}/").items()
        }
    return {prefix.removesuffix("/"): value}
