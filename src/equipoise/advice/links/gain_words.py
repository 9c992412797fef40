"""Which models gain on two devices over some links, and why, said in sentences."""

from collections.abc import Iterator, Sequence

from equipoise.advice.links.links import FAMILY, Crossover, Gain, Meaning
from equipoise.advice.links.pair import LEVEL
from equipoise.spec.workload import workload
from equipoise.units import MILLISECOND_S, format_percent, format_rough

_MOST_NAMED = 4
# Two cards over one behind a host bridge without peer access: docs/experiments/0018-field-report.md.
_REPORTED_SPEEDUPS = (("mobilenet_v2", 0.80), ("resnet50", 1.18), ("resnet152", 1.60))


def basis(found: Meaning) -> str:
    """What the predictions rest on, in one sentence."""
    count = len(found.candidates)
    who = found.candidates[0].title if count == 1 else f"any of {count} accelerators"
    return (
        f"Predicted, not measured, for {who} under torch's DistributedDataParallel "
        f"{'with autocast' if found.with_autocast else 'in fp32'}: "
        f"{format_percent(LEVEL)} ranges from the model's priors and the rates of the links"
        f"{'' if count == 1 else ', over all of them'}."
    )


def gain_words(found: Meaning) -> Iterator[str]:
    """Which models gain on two, over the weakest link between devices; and which more over the best."""
    classes = ends([each.link_class for each in found.reached])
    by_class = {name: [gain for gain in found.gains if gain.link_class == name] for name in classes}
    if not found.gains or not by_class[classes[-1]]:
        return
    yield _sentence_of(classes[-1], by_class[classes[-1]], found.batch)
    sure = {gain.workload for gain in by_class[classes[-1]] if gain.verdict == "gains"}
    more = [gain for gain in by_class[classes[0]] if gain.verdict == "gains" and gain.workload not in sure]
    if more:
        also = ", ".join(f"{gain.title} ({_times(gain)})" for gain in more[:_MOST_NAMED])
        yield f"Over {classes[0]} also {also}."
    for crossover in found.crossovers:
        if crossover.link_class == classes[-1]:
            yield _family(crossover, found.batch)
    yield from _why(found, classes)
    if any("staged" in each.reach.path and each.link_class == classes[-1] for each in found.reached):
        yield _elsewhere()


def _why(found: Meaning, classes: Sequence[str]) -> Iterator[str]:
    """Where a step on two goes, over the weakest link and over the best."""
    of = {each.link_class: each for each in found.parts}
    shown = [of[name] for name in reversed(classes) if name in of]
    if not shown:
        return
    parts = "; ".join(
        f"on two over {each.link_class}, {_ms(each.share_s)} for half the batch, {_ms(each.launching_s)} of "
        f"launches and copies that do not shrink with it, {_ms(each.exchange_s)} of exposed communication"
        for each in shown
    )
    yield f"Why: a step of {shown[0].title} takes {_ms(shown[0].one_s)} on one; {parts}."


def _ms(seconds: float) -> str:
    return f"{seconds / MILLISECOND_S:.3g} ms"


def _elsewhere() -> str:
    """What others measured on a pair without peer access."""
    measured = ", ".join(
        f"{speedup:.2f}x with {model.title} ({format_rough(float(model.params or 0))})"
        for model, speedup in ((workload(name), speedup) for name, speedup in _REPORTED_SPEEDUPS)
    )
    return (
        f"A field report measured two cards without peer access: {measured}; a rule by parameters alone "
        "holds for its link and batch."
    )


def _sentence_of(name: str, gains: Sequence[Gain], batch: int) -> str:
    idle = [gain for gain in gains if gain.verdict in ("slower", "no gain")]
    fast = [gain for gain in gains if gain.verdict == "gains"]
    start = f"Two over {name}, sharing a batch of {batch}: "
    slow = "no model tried surely loses" if not idle else _idle(idle)
    worth = f"{_example(fast[0])} gains" if fast else f"none surely gains, not even {_example(gains[-1])}"
    return f"{start}{slow}; {worth}."


def _example(gain: Gain) -> str:
    return f"{gain.title} ({format_rough(gain.params)}; {_times(gain)})"


def _idle(gains: Sequence[Gain]) -> str:
    largest = max(gains, key=lambda gain: gain.params)
    slower = any(gain.verdict == "slower" for gain in gains)
    what = "slow down" if slower else "gain nothing"
    size = format_rough(largest.params)
    return f"expect models of {size} parameters or fewer to {what}, like {largest.title} ({_times(largest)})"


def _times(gain: Gain) -> str:
    return f"{gain.speedup:.2f}x, {gain.low:.2f} to {gain.high:.2f}"


def _family(crossover: Crossover, batch: int) -> str:
    if crossover.params is None:
        start = f"up to {_size(crossover.most, crossover)} parameters gain less than 5 %"
    else:
        start = f"gain 5 % or more from {_size(crossover.params, crossover)} parameters up"
    low = "none" if crossover.low is None else _size(crossover.low, crossover)
    beyond = f"no size up to {_size(crossover.most, crossover)}"
    high = beyond if crossover.high is None else _size(crossover.high, crossover)
    return (
        f"{FAMILY[:1].upper()}{FAMILY[1:]} {start} ({format_percent(LEVEL)} range: from {low} to {high}; "
        f"batch {batch}, {crossover.link_class})."
    )


def _size(params: float, crossover: Crossover) -> str:
    text = format_rough(params)
    return f"{text} or fewer" if params == crossover.least else text


def ends(classes: Sequence[str]) -> list[str]:
    """The first and the last of some classes, which stand from best to worst."""
    return list(dict.fromkeys((*classes[:1], *classes[-1:])))
