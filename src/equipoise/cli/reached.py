"""What `--ask tokens` and `--ask model` say: to people, and the fields of the document."""

from dataclasses import asdict
from typing import Any

from equipoise.advice.answer.reached import Reaches
from equipoise.advice.plans.planned import Option
from equipoise.advice.reach import Reach
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.economics import bill_fields
from equipoise.report.reach_text import (
    ENDS,
    carried_through,
    ground,
    ranged,
    ratio,
    shape,
    sized,
    there_is,
    unit,
)
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent, format_si, significant


def reaches_fields(found: Reaches) -> dict[str, Any]:
    """The fields of the document: of the machine that reaches furthest, and of all where several compete."""
    whole = fields(found.best) | {"notes": list(found.notes)}
    if found.others:
        whole["compared"] = [fields(each) for each in (found.best, *found.others)]
    return whole


def reaches_text(found: Reaches) -> str:
    """The same for people."""
    others = [
        f"{each.cluster.accelerator.title}: {ranged(each.size, format_si)} {sized(each)}"
        for each in found.others
    ]
    lines = [*(f"- {each}" for each in others), *found.notes]
    more = "".join(paragraph(line) for line in lines)
    return text(found.best) + (f"\nOthers reach less:\n{more}" if others else more)


def fields(found: Reach) -> dict[str, Any]:
    """The fields of one answer."""
    shape = found.shape
    whole = {
        "asked": found.asked,
        "workload": found.workload.slug,
        "cluster": {"name": found.cluster.name, "accelerator": found.cluster.accelerator.slug},
        "budget_usd": found.question.budget_usd,
        "deadline_s": found.question.deadline_s,
        "tokens": asdict(found.tokens),
        "unit": "tokens" if found.has_tokens else "samples",
        "params": None if found.params is None else asdict(found.params),
        "shape": None
        if shape is None
        else {
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "ffn_hidden": shape.ffn_hidden,
            "experts": shape.experts,
        },
        "limit": found.limit,
        "recommended": _option(found.option),
        "sizes": [
            {"amount": asdict(each.amount), "limit": each.limit, **_option(each.option)}
            for each in found.by_size
        ],
        "assumes": list(found.assumes),
    }
    return {name: significant(value) for name, value in whole.items()}


def _option(each: Option) -> dict[str, Any]:
    return {
        "num_accelerators": each.num_accelerators,
        "strategy": each.strategy.text(),
        "time_s": asdict(each.time),
        "samples": each.samples,
        **bill_fields(each.bill),
    }


def text(found: Reach) -> str:
    """The same for people."""
    parts = (_answer(found), _sizes(found), "".join(paragraph(f"- {each}") for each in ground(found)))
    return "\n".join(part for part in parts if part)


def _answer(found: Reach) -> str:
    about = f"{found.workload.title} on {found.cluster.accelerator.title}, for {there_is(found)}"
    option, lines = found.option, {}
    told = shape(found)
    if told is not None:
        head = f"Largest model: {ranged(found.size, format_si)} parameters\n"
        lines["shape"] = told
        lines["trained on"] = f"{format_si(found.tokens.value)} {unit(found)}"
    else:
        head = f"Enough for {ranged(found.tokens, format_si)} {unit(found)}\n"
        per_param = ratio(found)
        if found.params is not None and per_param is not None:
            lines["that is"] = f"{per_param} ({format_si(found.params.value)} parameters)"
    lines |= {
        "takes": f"{counted(option.num_accelerators, 'accelerator', 'accelerators')} for "
        f"{ranged(option.time, format_duration)}",
        "costs": "no price is known: give --price"
        if option.bill.money is None
        else _costs(option.bill.money),
        "batch": counted(option.strategy.global_batch_samples, "sample", "samples"),
        "strategy": option.strategy.text(),
        "ends at": ENDS[found.limit],
    }
    shown = (paragraph(f"  {name:<12}{words}", 14) for name, words in lines.items())
    return f"{paragraph(about)}\n{head}{''.join(shown)}"


def _costs(money: Interval) -> str:
    """The money, and what it may be."""
    through = carried_through(money)
    return f"{format_si(money.value)} USD{'' if through is None else f'; {through}'}"


def _sizes(found: Reach) -> str:
    """What each number of accelerators does."""
    if not found.by_size:
        return ""
    rows = [
        (
            format_count(each.option.num_accelerators),
            format_si(each.amount.value),
            f"{format_si(each.amount.low)} to {format_si(each.amount.high)}",
            format_duration(each.option.time.value),
            "-" if each.option.bill.usd is None else format_si(each.option.bill.usd),
            each.limit,
            "take this" if each.option.num_accelerators == found.option.num_accelerators else "",
        )
        for each in found.by_size
    ]
    head = ("N", unit(found), f"{format_percent(found.tokens.level)} range", "time", "USD", "ends at", "")
    return table_text(head, rows, align=">>>>><<")
