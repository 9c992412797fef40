"""What every answer must obey: functions of one document of schema 2, or of two, that return breaches as sentences.

Documents are what `advise --json` and `plan --json` print. Laws are numbered as in the reference of decision laws.
No function here runs anything, and none knows which command made a document.
"""

import math
from collections import Counter, defaultdict

# JSON numbers carry six digits or more; a product of three of them is right to this.
REL = 1e-4
# What replicate submissions differ by, with room: two standard deviations of 3.3 %, twice.
REPLICATES = 1.12
WIDEST = 20.0
# Seconds before the first step, with which steps are judged: the published target has them outside its clock.
START_S = 300.0
BUDGETS = ("training_tokens", "training_samples", "training_examples", "num_epochs")

TOP_LEVEL = (
    "schema",
    "equipoise",
    "dataset",
    "question",
    "recommended",
    "candidates",
    "refusal",
    "equilibria",
    "flips",
    "alternatives",
    "rejected",
    "evidence",
    "records",
    "num_considered",
    "search_s",
    "notes",
)
INTERVALS = ("step_s", "time_s", "work_s", "goodput", "usd", "energy_j", "carbon_kg")
CANDIDATE = (
    "id",
    "accelerator",
    "num_accelerators",
    "num_nodes",
    "terms",
    "strategy",
    "global_batch_samples",
    *INTERVALS,
    "accelerator_hours",
    "mfu",
    "tokens_per_s_per_accelerator",
    "memory",
    "feasible",
    "constraints",
    "estimates",
    "published",
    "grade",
)
# What a constraint judges, by the first word of its name.
JUDGED = {
    "deadline": lambda each: central(each["time_s"]),
    "budget": lambda each: central(each["usd"]),
    "memory": lambda each: each["memory"]["needed_bytes"],
    "max": lambda each: each["num_accelerators"],
    "stock": lambda each: each["num_accelerators"],
}
# Limits that a question states, as the constraints they make.
STATED = {"deadline_s": "deadline", "budget_usd": "budget"}
LIMITED_BY = (None, "data", "catalogue", "question")
# What relaxing a limit may change of a candidate.
OF_THE_LIMIT = frozenset({"feasible", "constraints", "probability"})


def central(interval):
    """The central value of an interval; of a plain number itself; None of what is unknown."""
    return interval["value"] if isinstance(interval, dict) else interval


def strategy_of(candidate):
    """The parameters of a candidate's strategy as text by name; those not written are at their defaults."""
    written = candidate["strategy"]
    if isinstance(written, dict):
        return {name: str(value) for name, value in written.items()}
    return dict(part.split("=", 1) for part in (written or "").split())


def objective_value(candidate, question):
    """What the question's objective wants small; None where it is unknown, or balance, which is no one number.

    Where the amount of training is stated, starting is paid for as steps are.
    """
    time_s, usd = central(candidate["time_s"]), central(candidate["usd"])
    if time_s and any(question.get(name) for name in BUDGETS):
        usd = None if usd is None else usd + _started_usd(candidate, usd, time_s)
        time_s += START_S
    if question["objective"] == "value_of_time":
        hour_usd = question["value_of_time_usd_per_hour"]
        return None if time_s is None or usd is None else usd + hour_usd * time_s / 3600
    return {"time": time_s, "cost": usd, "energy": central(candidate["energy_j"])}.get(question["objective"])


def _started_usd(candidate, usd, time_s):
    """What starting costs: its share of the hours used, beyond those that are committed to."""
    paid = candidate.get("charges")
    if paid is None:
        return usd * START_S / time_s
    used = paid["used_usd"] * (1 + START_S / time_s)
    return max(used, paid["minimum_usd"]) - max(paid["used_usd"], paid["minimum_usd"])


def same(one, other, rel=REL):
    """Whether two JSON values are equal, numbers to rel."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], rel) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, rel) for pair in zip(one, other, strict=True))
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=rel)
    return one == other


def breaches(document):
    """All breaches of the laws of one document."""
    found = shape(document)
    if found:  # the laws read fields that have to be there
        return found
    return [breach for law in ONE_DOCUMENT for breach in law(document)]


def shape(document):
    """The contract: which keys there are."""
    found = [f"contract: no key {key!r}" for key in TOP_LEVEL if key not in document]
    verb, _, number = str(document.get("schema", "")).rpartition("/")
    if verb not in {"equipoise.advise", "equipoise.plan"} or number != "2":
        found.append(f"contract: schema={document.get('schema')!r}; expected equipoise.advise/2 or plan/2")
    for place, each in _shown(document):
        found += [f"contract: {place} has no key {key!r}" for key in CANDIDATE if key not in each]
    return found


def ids(document):
    """An id is <accelerator>/<num_accelerators>/<terms>, and occurs once."""
    counts = Counter(each["id"] for each in document["candidates"])
    found = [f"ids: {name} occurs {count} times" for name, count in counts.items() if count > 1]
    for each in document["candidates"]:
        expected = f"{each['accelerator']}/{each['num_accelerators']}/{each['terms']}"
        if each["id"] != expected:
            found.append(f"ids: {each['id']}; expected {expected}")
    return found


def headline_is_row(document):
    """Law 1: what is recommended or named elsewhere repeats its row of the candidates, field by field."""
    rows = {each["id"]: each for each in document["candidates"]}
    found = []
    for place, each in _shown(document):
        row = rows.get(each["id"])
        if row is None:
            found.append(f"law 1: {place} is {each['id']}, which is no candidate")
            continue
        found += [
            f"law 1: {place} {each['id']}: {key}={each[key]!r}; its row has {row[key]!r}"
            for key in sorted(row.keys() & each.keys())
            if not same(row[key], each[key], rel=1e-9)
        ]
        missing = sorted(row.keys() - each.keys())
        if missing:
            found.append(f"law 1: {place} {each['id']} lacks {missing} of its row")
    return found


def arithmetic(document):
    """Law 1: hours, money, energy, carbon and time of each candidate follow from each other."""
    question = document["question"]
    found = []
    for each in document["candidates"]:
        for what, value, expected in (
            *_of_time(each, question),
            *_of_money(each, question),
            *_of_steps(each, question),
        ):
            if not math.isclose(value, expected, rel_tol=REL):
                found.append(f"law 1: {each['id']}: {what} is {value!r}; its other fields give {expected!r}")
    return found + _one_grid(document["candidates"])


def _of_time(each, question):
    time_s, count = central(each["time_s"]), each["num_accelerators"]
    if time_s is None:
        return
    if each["accelerator_hours"] is not None:
        yield "accelerator_hours", each["accelerator_hours"], time_s * count / 3600
    work_s, goodput = central(each["work_s"]), central(each["goodput"])
    if work_s is not None and goodput is not None:
        yield "time_s x goodput", time_s * goodput, work_s
    power_w, energy_j = central(each.get("power_w")), central(each["energy_j"])
    if power_w is not None and energy_j is not None and question.get("pue") is not None:
        yield "energy_j", energy_j, power_w * count * time_s * question["pue"]


def _of_money(each, question):
    usd, price = central(each["usd"]), price_of(each, question)
    paid = each.get("charges")
    if paid is not None and usd is not None:
        hourly = each["price"]["usd_per_accelerator_hour"]
        yield "used_usd", paid["used_usd"], each["accelerator_hours"] * hourly
        held = max(paid["used_usd"], paid["minimum_usd"])
        yield "usd", usd, held + paid["storage_usd"] + paid["egress_usd"]
        return
    if price == 0 and each["electricity_usd"] is not None:  # an own machine
        yield "usd", usd, central(each["electricity_usd"])
        return
    if usd is not None and price is not None and each["accelerator_hours"] is not None:
        yield "usd", usd, each["accelerator_hours"] * price


def _of_steps(each, question):
    """Where nothing but the model estimates, the work is whole steps of the step time."""
    if {estimate["estimator"] for estimate in each["estimates"]} != {"model"}:
        return
    samples, tokens = question.get("training_samples"), question.get("training_tokens")
    batch, step_s = each["global_batch_samples"], central(each["step_s"])
    work_s = central(each["work_s"])
    if samples is None or step_s is None or work_s is None:
        return
    steps = work_s / step_s
    if abs(steps - samples / batch) > 1:  # the last step may be part of one
        yield "work_s / step_s", steps, samples / batch
    rate = each["tokens_per_s_per_accelerator"]
    if tokens is not None and rate is not None:
        per_step = batch * tokens / samples
        yield "tokens_per_s_per_accelerator", rate, per_step / step_s / each["num_accelerators"]


def _one_grid(candidates):
    """Carbon over energy is that of the electricity: one number for all, as they are in one region."""
    ratios = [
        (each["id"], central(each["carbon_kg"]) / central(each["energy_j"]))
        for each in candidates
        if central(each["carbon_kg"]) is not None and central(each["energy_j"])
    ]
    return [
        f"law 1: {name}: {ratio!r} kg CO2 a joule; {ratios[0][0]} has {ratios[0][1]!r}"
        for name, ratio in ratios[1:]
        if not math.isclose(ratio, ratios[0][1], rel_tol=REL)
    ]


def price_of(candidate, question):
    """USD per accelerator-hour of a candidate's system on its terms; None where the question does not say."""
    offered = [each for each in question["systems"] if each.get("terms") in {None, candidate["terms"]}]
    named = [
        each for each in offered if candidate["accelerator"] in {each["system"], each.get("accelerator")}
    ]
    if not named and len({each["system"] for each in question["systems"]}) == 1:
        named = offered
    prices = {each["price_usd_per_accelerator_hour"] for each in named}
    return prices.pop() if len(prices) == 1 else None


def constraints_per_candidate(document):
    """Law 2: a candidate is judged by its own values against the limits of the question."""
    question = document["question"]
    limits = {name: question[key] for key, name in STATED.items() if question.get(key) is not None}
    found = []
    for each in document["candidates"]:
        values = {limit["name"]: limit for limit in each["constraints"]}
        # What cannot be estimated is no candidate to take, whatever its limits.
        keeps = central(each["time_s"]) is not None and all(_keeps(limit) for limit in each["constraints"])
        if each["feasible"] != keeps:
            found.append(f"law 2: {each['id']}: feasible={each['feasible']}; its constraints say {keeps}")
        for name, limit in limits.items():
            mine = [values[key]["limit"] for key in values if key.startswith(name)]
            if not mine:
                found.append(f"law 2: {each['id']} is not judged by the {name} of the question")
            elif not same(mine, [limit]):
                found.append(f"law 2: {each['id']}: {name} limit {mine}; the question has {limit!r}")
        most = question.get("max_accelerators")
        if each["feasible"] and most is not None and each["num_accelerators"] > most:
            found.append(f"law 2: {each['id']} is feasible beyond max_accelerators={most}")
        for limit in each["constraints"]:
            found += _judged_by_its_own(each, limit, question.get("queue_s") or 0.0)
    return found


def _keeps(limit):
    return limit["value"] is not None and limit["value"] <= limit["limit"]


def _judged_by_its_own(each, limit, queue_s):
    name, value, probability = limit["name"], limit["value"], limit["probability"]
    judge = JUDGED.get(name.split("_")[0])
    waits_s = queue_s if name == "deadline_s" else 0.0  # the wait counts against the deadline
    own = None if judge is None else judge(each)
    own = None if own is None else own + waits_s
    if judge is not None and not same(value, own):
        yield f"law 2: {each['id']}: {name} is judged by {value!r}; its own value is {own!r}"
    if probability is None:
        return
    if not 0 <= probability <= 1:
        yield f"law 2: {each['id']}: {name} is kept with probability {probability!r}"
    interval = {"deadline": each["time_s"], "budget": each["usd"]}.get(name.split("_")[0])
    if interval is None:
        return
    if waits_s + interval["low"] > limit["limit"] and probability > 1 / 2:
        yield f"law 2: {each['id']}: {name} is kept with probability {probability!r}, though its low is above"
    if waits_s + interval["high"] < limit["limit"] and probability < 1 / 2:
        yield f"law 2: {each['id']}: {name} is kept with probability {probability!r}, though its high is below"


def best_of_feasible(document):
    """Law 2: the recommended candidate is feasible, and the best by the objective of all that are."""
    question, best = document["question"], document["recommended"]
    feasible = [each for each in document["candidates"] if each["feasible"]]
    if best is None:
        return [f"law 2: nothing is recommended, though {feasible[0]['id']} is feasible"] if feasible else []
    found = []
    if not best["feasible"]:
        found.append(f"law 2: {best['id']} is recommended and not feasible")
    if question["objective"] == "balance":
        return found + _balanced(document, feasible)
    mine = objective_value(best, question)
    for each in feasible:
        value = objective_value(each, question)
        if value is not None and (mine is None or value < mine * (1 - 1e-9)):
            found.append(
                f"law 2: {each['id']} has {value!r} by {question['objective']}, "
                f"the recommended {best['id']} {mine!r}"
            )
    return found


def step_pays(few, few_s, many, many_s):
    """Whether a step from few accelerators to many pays: a doubling has to be 1.5 times as fast."""
    return few_s / many_s >= 1 + (many / few - 1) / 2


def marginal(sizes):
    """The largest of sizes, pairs (number, seconds), reached by steps that each pay.

    Steps begin at the size of fewest accelerator-hours: smaller ones are slower and dearer. A step may go to
    any larger size: one that does not pay (a batch that 3 do not divide) is passed over.
    """
    first = min(sorted(sizes), key=lambda each: each[0] * each[1])
    larger = [each for each in sorted(sizes) if each > first]
    reached = [first]
    for size in larger:
        if any(step_pays(*each, *size) for each in reached):
            reached.append(size)
    return reached[-1][0]


def _reached(offered, minimum_s):
    """The last size that pays, by number. minimum_s: that are paid for however short the training is, so that a
    size counts as as many more as its price commits to longer hours than it takes.
    """
    paid = {number * max(1.0, minimum_s / time_s): number for number, time_s in offered.items()}
    return paid[marginal([(counted, offered[number]) for counted, number in paid.items()])]


def _balanced(document, feasible):
    """Law 2 for the default objective: the smallest of balance, marginal and floor; a feasible size beside it.

    Balance and floor are points of a fitted curve, so they may lie between sizes: one of the two sizes beside
    is right. The marginal size is one of the sizes, found here again from their times.
    """
    best = document["recommended"]
    mine = [
        each
        for each in document["candidates"]
        if _group(each) == _group(best) and central(each["time_s"]) is not None
    ]
    if best["id"] not in {each["id"] for each in feasible}:
        return []
    beaten = _beaten_by_a_smallest(best, feasible)
    if beaten:
        return beaten
    # Steps begin at a size that may be taken, whether or not it keeps the deadline.
    start_s = START_S if any(document["question"].get(name) for name in BUDGETS) else 0.0
    offered = {
        each["num_accelerators"]: start_s + central(each["time_s"]) for each in mine if _keeps_sizes(each)
    }
    sizes = {each["num_accelerators"]: central(each["time_s"]) for each in mine if each["feasible"]}
    last = _reached(offered, (best.get("price") or {}).get("minimum_s") or 0.0)
    points = [
        each["num_accelerators"]
        for each in document["equilibria"]
        if each["kind"] in {"balance", "floor"} and each["num_accelerators"] is not None
    ]
    bound = min([last, *points])
    right = {
        max([size for size in sizes if size <= bound], default=min(sizes)),
        min([size for size in sizes if size >= bound], default=max(sizes)),
    }
    if best["num_accelerators"] in right:
        return []
    found = (
        f"definition: {best['id']} is recommended; steps pay up to {last}, balance and floor lie at {points}: "
        f"expected one of {sorted(right)}"
    )
    return [found]


def _beaten_by_a_smallest(best, feasible):
    """Law 2: of several systems, none beats the recommended one in time and money at its smallest size."""
    smallest = {}
    for each in sorted(feasible, key=lambda each: each["num_accelerators"]):
        smallest.setdefault(_group(each), each)
    return [
        f"law 2: {each['id']} is faster and cheaper than the recommended {best['id']}"
        for each in smallest.values()
        if all(
            central(each[name]) is not None
            and central(best[name]) is not None
            and central(each[name]) < central(best[name]) * (1 - 1e-9)
            for name in ("time_s", "usd")
        )
    ]


def refused_well(document):
    """Law 2: a refusal names the cheapest and the fastest of all, and the least relaxations that would do.

    Where candidates fit and no time of any is known, limits are not what is in the way: it is neither.
    """
    refusal, candidates = document["refusal"], document["candidates"]
    if candidates and all(central(each["time_s"]) is None for each in candidates):
        return ["law 2: limits are blamed where no time is known"] if refusal is not None else []
    if (document["recommended"] is None) != (refusal is not None):
        return ["law 2: an answer either recommends or refuses"]
    if refusal is None:
        return []
    found = []
    for word, field in (("cheapest", "usd"), ("fastest", "time_s")):
        known = [each for each in candidates if central(each[field]) is not None]
        # Sizes beyond what may be taken show what more would do; they are none of those refused.
        known = [each for each in known if _keeps_sizes(each)] or known
        if not known:
            continue
        least = min(central(each[field]) for each in known)
        named = refusal[word]
        if named is None or not same(central(named[field]), least):
            name = named and named["id"]
            found.append(f"law 2: the {word} is {name}; the least {field} of all is {least!r}")
    return [*found, *_relaxed_least(refusal["relaxations"], refusal.get("joint", ()), candidates)]


def _keeps_sizes(candidate):
    return all(_keeps(each) for each in candidate["constraints"] if each["name"].endswith("_accelerators"))


def least_needed(candidates, name):
    """The least limit of one constraint with which something keeps all constraints; None where none does."""
    values = []
    for each in candidates:
        others = [limit for limit in each["constraints"] if limit["name"] != name]
        mine = [limit["value"] for limit in each["constraints"] if limit["name"] == name]
        if all(_keeps(limit) for limit in others) and mine and mine[0] is not None:
            values.append(mine[0])
    return min(values, default=None)


def _relaxed_least(relaxations, joint, candidates):
    if not candidates:
        return
    needed = {each["constraint"]: each["needed"] for each in relaxations}
    names = {limit["name"] for each in candidates for limit in each["constraints"]}
    least = {name: least_needed(candidates, name) for name in sorted(names)}
    for name in names & needed.keys():
        limits = {each["limit"] for each in relaxations if each["constraint"] == name}
        stated = {
            limit["limit"] for each in candidates for limit in each["constraints"] if limit["name"] == name
        }
        if not limits <= stated:
            yield f"law 2: the relaxation of {name} starts from {sorted(limits)}; limits are {sorted(stated)}"
    alone = {name: value for name, value in least.items() if value is not None}
    for name, value in alone.items():
        if needed.get(name) is None:
            yield f"law 2: no relaxation of {name} is named; {value!r} would do"
        elif needed[name] < value * (1 - 1e-9):
            yield f"law 2: relaxing {name} to {needed[name]!r} does not do; {value!r} would"
        elif needed[name] > value * (1 + 1e-3):
            yield f"law 2: relaxing {name} to {needed[name]!r} is more than needed; {value!r} would do"
    together = {each["constraint"]: each["needed"] for each in joint}
    # Nobody can relax a budget to a price that is not known.
    judged = [each for each in candidates if all(limit["value"] is not None for limit in each["constraints"])]
    if judged and not alone and not any(_kept_within(each, together) for each in judged):
        yield "law 2: all relaxations together make nothing feasible"


def _kept_within(each, needed):
    return all(
        limit["value"] is not None
        and limit["value"] <= max(limit["limit"], needed.get(limit["name"], -math.inf)) * (1 + 1e-9)
        for limit in each["constraints"]
    )


def _beyond_limits(before, after):
    """Candidates that a limit of the question before had tried, and that of the one after need not."""
    steps = (before.get("refusal") or {}).get("relaxations", ())
    found = {each["candidate"] for each in steps if each["constraint"] == "max_accelerators"}
    if before["question"]["deadline_s"] != after["question"]["deadline_s"]:
        largest = {}
        for each in after["candidates"]:
            largest[each["accelerator"]] = max(each["num_accelerators"], largest.get(each["accelerator"], 0))
        found |= {
            each["id"]
            for each in before["candidates"]
            if each["num_accelerators"] > largest.get(each["accelerator"], math.inf)
        }
    return found | {each["id"] for each in before["candidates"] if each.get("is_between")}


def freedom(before, after, *, by="limit"):
    """Law 3: after asks as before with more freedom: by a looser limit, by more systems or sizes, or by `strategy`.

    More strategies may make a candidate faster; nothing else may change its numbers. What a refusal names beyond
    the limit of size is shown for that refusal alone: it may not be taken, and need not be there afterwards. Nor
    need sizes that were tried because a deadline needs them, where a later one, or none, needs no such, nor those
    between the usual ones, where afterwards no limit keeps a system from its size of balance.
    """
    found = []
    beyond = _beyond_limits(before, after)
    rows = {each["id"]: each for each in after["candidates"]}
    for each in before["candidates"]:
        other = rows.get(each["id"])
        if other is None and each["id"] in beyond:
            continue
        if other is None:
            found.append(f"law 3: {each['id']} is a candidate no more")
        elif by == "strategy":
            if central(other["time_s"]) > central(each["time_s"]) * (1 + 1e-9):
                found.append(f"law 3: {each['id']} is slower with more strategies to choose from")
        else:
            found += [
                f"law 3: {each['id']}: {key} was {each[key]!r} and is {other[key]!r}"
                for key in each
                if key not in OF_THE_LIMIT and not same(each[key], other.get(key), rel=1e-6)
            ]
        if other is not None and each["feasible"] and not other["feasible"]:
            found.append(f"law 3: {each['id']} was feasible and is not")
    if before["recommended"] is None:
        return found
    if after["recommended"] is None:
        return [*found, "law 3: something was recommended and nothing is"]
    was = objective_value(before["recommended"], before["question"])
    now = objective_value(after["recommended"], before["question"])
    if was is not None and now is not None and now > was * (1 + 1e-6):
        found.append(f"law 3: {before['question']['objective']} was {was!r} and is {now!r}")
    return found


def published_is_published(document, scores=None):
    """Law 4: times lie within what replicates differ by of the best comparable result, or the answer says why not.

    Said is it by a note, or by the reason of an estimate, that names the candidate or the result.
    scores: entries of `equipoise scores --json`: what is called published has to be there, closed, and of that
    accelerator and number.
    """
    found = []
    for each in document["candidates"]:
        results = {result["entry_id"]: result["score_s"] for result in each["published"]}
        if scores is not None:
            found += _submitted(each, results, scores)
        time_s = central(each["time_s"])
        if not results or time_s is None:
            continue
        best_id = min(results, key=lambda name: results[name])
        said = _said(document["notes"]) + [str(estimate["why"]) for estimate in each["estimates"]]
        far = not 1 / REPLICATES <= time_s / results[best_id] <= REPLICATES
        if far and not any(name in text for text in said for name in (each["id"], best_id)):
            found.append(
                f"law 4: {each['id']} takes {time_s!r} s; the best result, {best_id}, {results[best_id]!r}"
            )
    return found


def entry_id(entry):
    """The id of an entry of `equipoise scores --json`."""
    return "/".join(entry[key] for key in ("round", "submitter", "system", "workload"))


def _submitted(each, results, scores):
    entries = defaultdict(list)
    for entry in scores:
        entries[entry_id(entry)].append(entry)
    for name, score_s in results.items():
        fitting = [
            entry
            for entry in entries[name]
            if entry["division"] == "closed"
            and (entry["accelerator"], entry["num_accelerators"])
            == (each["accelerator"], each["num_accelerators"])
            and entry["score_s"] is not None
            and same(entry["score_s"], score_s)
        ]
        if not fitting:
            kinds = sorted({(entry["division"], entry["num_accelerators"]) for entry in entries[name]})
            yield f"law 4: {each['id']}: {name} at {score_s!r} s is no closed result of it; found {kinds}"


def physics_orders(document, worse, better, other=None):
    """Law 5: `better`, at least as good as `worse` in every stated fact, is nowhere slower.

    Work is compared, which failures do not lengthen, at sizes of both that the model alone estimates.
    other: the document that holds the candidates of `better`, unless it is the same.
    """
    slow = _by_size(document, worse)
    fast = _by_size(other or document, better)
    return [
        f"law 5: {slow[key]['id']} works {_work_s(slow[key])!r} s, {fast[key]['id']} {_work_s(fast[key])!r}"
        for key in sorted(slow.keys() & fast.keys())
        if _work_s(fast[key]) > _work_s(slow[key]) * (1 + 1e-6)
    ]


def _by_size(document, accelerator):
    return {
        (each["num_accelerators"], each["terms"]): each
        for each in document["candidates"]
        if each["accelerator"] == accelerator
        and _work_s(each) is not None
        and {estimate["estimator"] for estimate in each["estimates"]} <= {"model"}
    }


def _work_s(each):
    return central(each["work_s"]) if each["work_s"] is not None else central(each["time_s"])


def one_number(one, other):
    """Law 6: two answers to one question give a candidate the same numbers, and recommend the same."""
    rows = {each["id"]: each for each in other["candidates"]}
    shared = [(each, rows[each["id"]]) for each in one["candidates"] if each["id"] in rows]
    if not shared:
        return ["law 6: the answers share no candidate"]
    found = [
        f"law 6: {mine['id']}: {key} is {mine[key]!r} in {one['schema']}, {theirs.get(key)!r} in "
        f"{other['schema']}"
        for mine, theirs in shared
        for key in mine
        if not same(mine[key], theirs.get(key), rel=1e-6)
    ]
    first, second = (each["recommended"] and each["recommended"]["id"] for each in (one, other))
    if same(_asked(one), _asked(other)) and first != second:
        found.append(f"law 6: {one['schema']} recommends {first}, {other['schema']} {second}")
    return found


def _asked(document):
    """What decides of a question; fields that only one verb has do not."""
    keys = ("objective", "deadline_s", "budget_usd", "max_accelerators", "value_of_time_usd_per_hour")
    return {key: document["question"].get(key) for key in keys}


def whose_limit(document):
    """Law 7: an equilibrium whose upper end was not found says which of the three limits ended the search."""
    most = document["question"].get("max_accelerators")
    largest = max((each["num_accelerators"] for each in document["candidates"]), default=0)
    found = []
    for each in document["equilibria"]:
        kind, limited_by = each["kind"], each["limited_by"]
        if limited_by not in LIMITED_BY:
            found.append(f"law 7: {kind}: limited_by={limited_by!r}; expected one of {LIMITED_BY}")
        if limited_by is None and (each["num_accelerators"] is None or each["high"] is None):
            found.append(f"law 7: {kind} was not found, and no limit is named")
        stock = any(system.get("stock") is not None for system in document["question"]["systems"])
        sized = document["question"].get("sizes") or document["question"].get("num_nodes")
        if limited_by == "question" and most is None and not stock and not sized:
            found.append(f"law 7: {kind} is limited by a question that states no limit")
        beyond = most is not None and largest > most
        if (
            limited_by == "data"
            and most is not None
            and not beyond
            and (each["num_accelerators"] or 0) >= most
        ):
            found.append(f"law 7: {kind} ends at max_accelerators={most} and blames the data")
    return found


def usable_intervals(document):
    """Law 8: low <= value <= high, and none wider than a factor of 20: unknown is null, with its reason."""
    found = []
    for place, each in _intervals(document, ""):
        low, value, high = each["low"], each["value"], each["high"]
        if not all(_is_number(number) for number in (low, value, high)):
            found.append(f"law 8: {place} is {low!r}, {value!r}, {high!r}; unknown is null as a whole")
        elif not low <= value <= high:
            found.append(f"law 8: {place}: {low!r} <= {value!r} <= {high!r} does not hold")
        elif low > 0 and high / low > WIDEST:
            found.append(f"law 8: {place}: {low!r} to {high!r} is wider than a factor of {WIDEST:g}")
    for each in document["equilibria"]:
        ordered = [each[key] for key in ("low", "num_accelerators", "high") if each[key] is not None]
        if ordered != sorted(ordered):
            found.append(f"law 8: {each['kind']}: low, number and high are {ordered}")
    return found


def question_kept(document):
    """Law 9: batch, precision, node size and fixed parameters of the question are those of every candidate."""
    question = document["question"]
    found = []
    for each in document["candidates"]:
        chosen = strategy_of(each)
        for what, value, expected in _stated(each, chosen, question):
            if str(value) not in {str(item) for item in expected}:
                found.append(f"law 9: {each['id']}: {what} is {value}; the question has {expected}")
    return found


def _stated(each, chosen, question):
    batch = question.get("global_batch_samples")
    if batch is not None:
        yield "global_batch_samples", each["global_batch_samples"], [batch]
    if "global_batch" in chosen:
        yield "global_batch of the strategy", chosen["global_batch"], [each["global_batch_samples"]]
    precisions = _listed(question.get("precision"))
    if precisions:
        yield "precision", chosen.get("precision", "bf16"), precisions
    parts = [each for each in _listed(question.get("train")) if each in {"full", "lora", "qlora"}]
    if parts and chosen:
        yield "trained", chosen.get("trained", "full"), parts
    node_size = question.get("node_size")
    if node_size is not None:
        yield "num_nodes", each["num_nodes"], [math.ceil(each["num_accelerators"] / node_size)]
    for name, values in _fixed(question):
        if name in chosen:
            yield name, chosen[name], _listed(values)
    axes = [int(chosen.get(axis, 1)) for axis in ("dp", "tp", "pp", "cp")]
    if chosen:
        yield "dp x tp x pp x cp", math.prod(axes), [each["num_accelerators"]]


def _fixed(question):
    """What --fix states, as pairs: written as in the option, or as a record."""
    fixed = question.get("fix") or {}
    return fixed.items() if isinstance(fixed, dict) else [each.split("=", 1) for each in _listed(fixed)]


def _listed(value):
    if value is None:
        return []
    return value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]


def next_steps(document):
    """Law 1: what the next step gains is said in three ways that agree, and agrees with the rows of both sizes."""
    found = []
    groups = {_group(each) for each in document["candidates"]}
    times = {each["num_accelerators"]: central(each["time_s"]) for each in document["candidates"]}
    for each in document["equilibria"]:
        step, time_s, number = each["next_step"], central(each["time_s"]), each["num_accelerators"]
        if step is None or time_s is None:
            continue
        expected = {"gain_fraction": step["gain_s"] / time_s}
        to = step.get("num_accelerators")
        if to is not None:
            expected["accelerator_hours_factor"] = to / number * (1 - step["gain_fraction"])
            if len(groups) == 1 and None not in (times.get(number), times.get(to)):
                expected["gain_s"] = times[number] - times[to]
        # Times have six digits: what each is rounded by shows in their difference.
        rounding = {"gain_s": 1e-5 * time_s}
        found += [
            f"law 1: {each['kind']}, next step: {key} is {step[key]!r}; the times give {value!r}"
            for key, value in expected.items()
            if not math.isclose(step[key], value, rel_tol=1e-3, abs_tol=max(1e-3, rounding.get(key, 0.0)))
        ]
    return found


ONE_DOCUMENT = (
    ids,
    headline_is_row,
    arithmetic,
    next_steps,
    constraints_per_candidate,
    best_of_feasible,
    refused_well,
    published_is_published,
    whose_limit,
    usable_intervals,
    question_kept,
)


def _group(each):
    return each["accelerator"], each["terms"]


def _shown(document):
    """Every candidate that the document shows beside, and with, its candidates: where, and what."""
    for key in ("recommended",):
        if document.get(key) is not None:
            yield key, document[key]
    for at, each in enumerate(document.get("candidates") or []):
        yield f"candidates[{at}]", each
    for at, each in enumerate(document.get("alternatives") or []):
        yield f"alternatives[{at}]", each
    for key in ("cheapest", "fastest"):
        if (document.get("refusal") or {}).get(key) is not None:
            yield f"refusal.{key}", document["refusal"][key]


def _said(notes):
    return [str(note) for note in notes]


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _intervals(value, place):
    """Every interval of a document: where, and what."""
    if isinstance(value, dict):
        if {"value", "low", "high"} <= value.keys():
            yield place, value
        for key, inner in value.items():
            yield from _intervals(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            name = inner.get("id", at) if isinstance(inner, dict) else at
            yield from _intervals(inner, f"{place}[{name}]")
