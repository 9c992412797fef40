"""Findings on a topology in sentences, the most important first. Figures come from `links.py`."""

import re
from collections.abc import Iterator, Sequence

from equipoise.bench.topology.topology import Topology
from equipoise.diagnose.links import FAMILY, Crossover, Gain, Meaning
from equipoise.intervals import LEVEL
from equipoise.spec.links import PEER_WORDS, kind, number, rank
from equipoise.spec.links import meaning as what_lies_between
from equipoise.spec.workload import workload
from equipoise.stats import by_key
from equipoise.units import (
    format_count,
    format_milliseconds,
    format_percent,
    format_rough,
    listed,
    plural,
)

# Speedups of two cards over one, behind a host bridge without peer access:
# docs/experiments/0018-field-report.md.
_REPORTED_SPEEDUPS = (("mobilenet_v2", 0.80), ("resnet50", 1.18), ("resnet152", 1.60))


def basis(found: Meaning) -> str:
    """The basis of the predictions, in one sentence."""
    count = len(found.candidates)
    who = found.candidates[0].title if count == 1 else f"any of {count} accelerators"
    return (
        f"Predicted, not measured, for {who} under torch's DistributedDataParallel "
        f"{'with autocast' if found.with_autocast else 'in fp32'}: "
        f"{format_percent(LEVEL)} ranges from the model's priors and the rates of the links"
        f"{'' if count == 1 else ', over all of them'}."
    )


def gain_words(found: Meaning) -> Iterator[str]:
    """Which models gain on two devices over the weakest link, and which others gain over the best link."""
    classes = ends([each.link_class for each in found.reached])
    by_class = {name: [gain for gain in found.gains if gain.link_class == name] for name in classes}
    if not found.gains or not by_class[classes[-1]]:
        return
    yield _sentence_of(classes[-1], by_class[classes[-1]], found.batch)
    sure = {gain.workload for gain in by_class[classes[-1]] if gain.verdict == "gains"}
    more = [gain for gain in by_class[classes[0]] if gain.verdict == "gains" and gain.workload not in sure]
    if more:
        also = listed([f"{gain.title} ({_times(gain)})" for gain in more], _MOST_NAMED)
        yield f"Over {classes[0]} also {also}."
    for crossover in found.crossovers:
        if crossover.link_class == classes[-1]:
            yield _family(crossover, found.batch)
    yield from _step_breakdown_words(found, classes)
    if any("staged" in each.reach.path and each.link_class == classes[-1] for each in found.reached):
        yield _published_speedups()


def _step_breakdown_words(found: Meaning, classes: Sequence[str]) -> Iterator[str]:
    """Where the time of a step on two devices goes, over the weakest and over the best link."""
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
    return f"{format_milliseconds(seconds)} ms"


def _published_speedups() -> str:
    """Measurements by others on a pair without peer access."""
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
    slow = "no model tried is surely slower" if not idle else _idle(idle)
    closest = "" if gains[-1] in idle else f", not even {_example(gains[-1])}"
    worth = f"{_example(fast[0])} gains" if fast else f"none is surely faster{closest}"
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
    """The first and the last of some classes, which are ordered from best to worst."""
    return list(dict.fromkeys((*classes[:1], *classes[-1:])))


_MOST_NAMED = 4


def sentences(found: Meaning) -> tuple[str, ...]:
    """Sentences on what the links mean for training, the most important first."""
    topology = found.topology
    return (
        *_connection_words(found),
        *_slices(topology),
        *_rates(found),
        *gain_words(found),
        *_groups(found),
        *_cards(topology),
    )


def gaps(topology: Topology) -> tuple[str, ...]:
    """Sentences on what the topology's text omits or contradicts."""
    return (*_omissions(topology), *_contradictions(topology), *topology.notes)


def named(names: Sequence[str]) -> str:
    """Names as a list in words, with consecutive numbers combined.

    >>> named(["GPU0", "GPU1", "GPU2", "NIC4"]), named(["GPU0", "GPU1"])
    ('GPU0-GPU2 and NIC4', 'GPU0 and GPU1')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    short = [text for run in runs for text in (run if len(run) < 3 else [f"{run[0]}-{run[-1]}"])]  # noqa: PLR2004
    return short[0] if len(short) == 1 else f"{', '.join(short[:-1])} and {short[-1]}"


def _follows(before: str, name: str) -> bool:
    parts = [re.fullmatch(r"(.*?)(\d{1,9})", text) for text in (before, name)]
    first, second = parts
    return bool(first and second and first[1] == second[1] and int(second[2]) == int(first[2]) + 1)


def _counted(topology: Topology) -> str:
    count = len(topology.devices)
    return plural(count, "accelerator")


def _connection_words(found: Meaning) -> Iterator[str]:
    """What connects the devices, in one sentence."""
    topology = found.topology
    if all(device.kind == "cpu" for device in topology.devices):
        yield from _processors(topology)
        return
    if len(topology.devices) == 1:
        yield "One accelerator: there is no link to another."
        return
    pairs = len(topology.devices) * (len(topology.devices) - 1) // 2
    known = sum(each.num_pairs for each in found.reached)
    is_cut = bool(cut_devices(topology))
    if not found.reached:
        yield f"Of {_counted(topology)} no link {'between two whole ones ' if is_cut else ''}is known."
    elif len(found.reached) == 1 and known == pairs:
        whole = "The one pair" if pairs == 1 else f"All {pairs:,} pairs"
        yield f"{whole} of {_counted(topology)} {_verb(pairs, found.reached[0].link_class)}."
    else:
        parts = [f"{each.num_pairs:,} {each.link_class}" for each in found.reached]
        unknown = f"not known{' or of MIG slices' if is_cut else ''}"
        rest = [f"{pairs - known:,} {unknown}"] if known < pairs else []
        yield f"Of {plural(pairs, 'pair')} of {_counted(topology)}: {', '.join((*parts, *rest))}."
    if topology.is_switched:
        yield "Their NVLinks go through a switch: each pair may use all of an accelerator's links."


def _processors(topology: Topology) -> Iterator[str]:
    count = len(topology.devices)
    cores = sum(device.num_cores or 0 for device in topology.devices)
    nodes = ", ".join(sorted({str(device.numa_affinity or "unknown") for device in topology.devices}))
    yield (
        f"No accelerators: {plural(count, 'processor socket')} with {format_count(cores)} "
        f"cores; NUMA {nodes}."
    )
    if count > 1:
        yield "Ranks on different sockets communicate over the link between them (SYS)."


def _verb(count: int, name: str) -> str:
    """The predicate for `count` pairs: they have direct links, or cross a shared component."""
    if kind(name) == "NV":
        links = f"{plural(number(name), 'link')} bonded"
        return f"{'has' if count == 1 else 'have'} NVLink ({name}: {links})"
    if kind(name) == "XGMI":
        hops = f"{plural(number(name), 'hop')}"
        return f"{'has' if count == 1 else 'have'} Infinity Fabric ({name}: {hops})"
    return f"cross{'es' if count == 1 else ''} {what_lies_between(name)} ({name})"


def _rates(found: Meaning) -> Iterator[str]:
    by_reach = by_key((each.reach, each.link_class) for each in found.reached)
    for rate, classes in by_reach.items():
        stated, shared = rate.stated_byte_per_s, (rate.byte_per_s, rate.low, rate.high)
        low, high = (format_rough(each, "B/s") for each in stated)
        middle, least, most = (format_rough(each, "B/s") for each in shared)
        figures = low if low == high else f"{low} to {high}"
        yield (
            f"{', '.join(classes)}: 2 accelerators share about {middle} per direction ({least} to {most}), "
            f"of {figures} stated."
        )
    denied = any(link.peers not in (None, "OK", "U") for link in found.topology.between_devices)
    if denied or any(each.reach.path == "staged" for each in found.reached):
        yield f"{_why_staged(found)}: every byte is written to the host's memory and read from it again."
    yield from _missing_information(found)


def _why_staged(found: Meaning) -> str:
    peers = {link.peers for link in found.topology.between_devices} - {None, "OK"}
    words = "; ".join(f"{word}: {PEER_WORDS[word]}" for word in sorted(str(each) for each in peers))
    name = found.chip.title if found.chip else "these accelerators"
    return (
        f"Peers do not reach each other's memory ({words})"
        if words
        else f"The driver gives {name} no peer access over PCIe"
    )


def _missing_information(found: Meaning) -> Iterator[str]:
    """Which information would narrow the ranges."""
    if not found.reached or found.chip is not None:
        return
    known = found.catalogue.hardware
    titles = sorted({device.title for device in found.topology.devices if device.title})
    unknown = [each for each in titles if known.exact(each) is None]
    who = "The accelerator is not named"
    if unknown:
        who = f"The table of accelerators lacks {listed(unknown, _MOST_NAMED)}"
    elif len(titles) > 1:
        who = f"They differ: {listed(titles, _MOST_NAMED)}"
    elif titles:
        who = f"Only some accelerators are named {titles[0]}"
    over_pcie = any(each.reach.path != "fabric" for each in found.reached)
    has_peers = any(link.peers for link in found.topology.between_devices)
    peers = ""
    if over_pcie and not has_peers and "nvidia" in found.topology.origin:
        peers = "; whether peers reach each other's memory is not known (`nvidia-smi topo -p2p r` shows it)"
    yield f"{who} (--accelerator NAME names it){peers}: ranges cover all {len(found.candidates)} candidates."


def _groups(found: Meaning) -> Iterator[str]:
    """The islands, and the best group for each number of ranks."""
    members = [group for group in found.islands.members if len(group) > 1]
    if len(found.islands.members) > 1 and members:
        yield f"Islands: {'; '.join(named(group) for group in members)}. Keep tensor parallelism inside one."
    if found.islands.unplaced and len(found.topology.devices) > 1:
        yield f"The island of {named(found.islands.unplaced)} is not known."
    known = ends([each.link_class for each in found.reached])
    for group in found.groups:
        # If some links are unknown, another choice may have a worse link than the worst known one.
        worst = group.worst_class or (f"{known[-1]} or what is not known" if known else None)
        if worst is not None and worst.split()[0] != group.link_class:
            yield (
                f"For {group.num_devices}, take {named(group.devices)}: weakest link {group.link_class}; "
                f"others may have {worst}."
            )


def _cards(topology: Topology) -> Iterator[str]:
    """The nearest network card of each accelerator."""
    if not topology.nics or any(device.kind == "cpu" for device in topology.devices):
        return
    nearest: dict[str, list[str]] = {}
    known = topology.classes
    for device in topology.devices:
        classes = [
            known[pair] for nic in topology.nics if (pair := frozenset((device.name, nic.name))) in known
        ]
        if classes:
            nearest.setdefault(min(classes, key=rank), []).append(device.name)
    parts = [f"{named(nearest[name])} {name}" for name in sorted(nearest, key=rank)]
    if parts:
        yield f"Nearest network card of each: {'; '.join(parts)}."
    if far := nearest.get("SYS"):
        send = "sends" if len(far) == 1 else "send"
        yield f"What {named(far)} {send} to other machines crosses {what_lies_between('SYS')}."


def cut_devices(topology: Topology) -> tuple[str, ...]:
    """A phrase for each accelerator that is divided into MIG slices."""
    return tuple(
        f"{device.name} is cut into {plural(len(device.slices), 'MIG slice')} "
        f"({', '.join(dict.fromkeys(device.slices))})"
        for device in topology.devices
        if device.slices
    )


def _slices(topology: Topology) -> Iterator[str]:
    cut = cut_devices(topology)
    for words in cut[:_MOST_NAMED]:
        yield f"{words}."
    if cut:
        yield (
            "MIG slices have neither NVLink nor peer access (NVIDIA MIG User Guide): they suit separate "
            "runs, not one run over several."
        )


def _omissions(topology: Topology) -> Iterator[str]:
    whole = [row.name for row in topology.missing_rows if row.num_cells == 0]
    if whole:
        yield f"Missing rows: {named(whole)}; what is known of them comes from other rows."
    for row in topology.missing_rows:
        if row.num_cells:
            yield f"Row {row.name} is cut: {row.num_cells} of {row.num_expected} cells."
    silent = sum(link.link_class is None and link.conflict is None for link in topology.links)
    if topology.missing_rows and silent:
        among = sum(link.link_class is None and link.conflict is None for link in topology.between_devices)
        yield f"Not known: the links of {plural(silent, 'pair')}, {among:,} of them between accelerators."


def _contradictions(topology: Topology) -> Iterator[str]:
    torn = [link for link in topology.links if link.conflict]
    for link in torn[:_MOST_NAMED]:
        assert link.conflict is not None
        yield (
            f"{link.a} and {link.b}: the row of {link.a} has {link.conflict[0]}, that of {link.b} "
            f"has {link.conflict[1]}; neither is used."
        )
    if len(torn) > _MOST_NAMED:
        yield f"The same holds for {plural(len(torn) - _MOST_NAMED, 'more pair')}."
