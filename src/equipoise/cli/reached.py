"""What `--ask tokens` and `--ask model` say: to people, and the fields of the document."""

from collections.abc import Callable
from dataclasses import asdict
from textwrap import fill
from typing import Any

from equipoise.advice.plans.planned import Option
from equipoise.advice.priced import Reaches
from equipoise.advice.reach import Reach
from equipoise.cli.output import counted, printable, table_text, width_columns
from equipoise.economics import bill_fields
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
        f"{each.cluster.accelerator.title}: {_range(_size(each), _short)} "
        f"{'parameters' if each.asked == 'model' else 'tokens' if each.has_tokens else 'samples'}"
        for each in found.others
    ]
    lines = [*(f"- {each}" for each in others), *found.notes]
    more = "".join(_paragraph(line) for line in lines)
    return text(found.best) + (f"\nOthers reach less:\n{more}" if others else more)


def _size(found: Reach) -> Interval:
    return found.params if found.asked == "model" and found.params is not None else found.tokens


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
    parts = (_answer(found), _sizes(found), "".join(_paragraph(f"- {each}") for each in _ground(found)))
    return "\n".join(part for part in parts if part)


def _paragraph(sentence: str, hanging: int = 2) -> str:
    return f"{fill(printable(sentence), width_columns(), subsequent_indent=' ' * hanging)}\n"


def _answer(found: Reach) -> str:
    chip = found.cluster.accelerator
    about = f"{found.workload.title} on {chip.title}, for {_there_is(found)}"
    option, unit = found.option, "tokens" if found.has_tokens else "samples"
    lines: dict[str, str] = {}
    if found.asked == "model" and found.params is not None and found.shape is not None:
        head = f"Largest model: {_range(found.params, _short)} parameters\n"
        shape = found.shape
        experts = f", {shape.experts} experts" if shape.experts else ""
        lines["shape"] = (
            f"{shape.layers} layers, hidden {shape.hidden:,}, {shape.heads} heads, feed-forward "
            f"{shape.ffn_hidden or shape.expert_ffn_hidden:,}{experts}"
        )
        lines["trained on"] = f"{_short(found.tokens.value)} {unit}"
    else:
        head = f"Enough for {_range(found.tokens, _short)} {unit}\n"
        if found.params is not None and found.has_tokens:
            ratio = found.tokens.value / found.params.value
            lines["that is"] = f"{ratio:.3g} a parameter ({_short(found.params.value)} parameters)"
    batch = option.strategy.global_batch_samples
    lines |= {
        "takes": f"{counted(option.num_accelerators, 'accelerator', 'accelerators')} for "
        f"{_range(option.time, format_duration)}",
        "costs": "no price is known: give --price"
        if option.bill.money is None
        else _costs(option.bill.money),
        "batch": counted(batch, "sample", "samples"),
        "strategy": option.strategy.text(),
        "ends at": {
            "budget": "the budget",
            "deadline": "the deadline",
            "memory": "the memory: money and time would do for more",
        }[found.limit],
    }
    told = (_paragraph(f"  {name:<12}{words}", 14) for name, words in lines.items())
    return f"{_paragraph(about)}\n{head}{''.join(told)}"


def _there_is(found: Reach) -> str:
    """Money and time there are, in words."""
    told = []
    if found.question.budget_usd < float("inf"):
        told.append(f"{found.question.budget_usd:,.10g} USD")
    if found.question.deadline_s < float("inf"):
        told.append(format_duration(found.question.deadline_s))
    return " and ".join(told)


def _costs(money: Interval) -> str:
    """The money, and what it may be where the training is carried through whatever it costs."""
    level = format_percent(money.level)
    ends = f"; {_short(money.low)} to {_short(money.high)} to carry it through, {level}"
    return f"{_short(money.value)} USD{'' if money.low == money.high else ends}"


def _range(amount: Interval, form: Callable[[float], str]) -> str:
    """An amount and its interval."""
    if amount.low == amount.high:
        return form(amount.value)
    level = format_percent(amount.level)
    return f"{form(amount.value)} ({form(amount.low)} to {form(amount.high)}, {level})"


def _short(value: float) -> str:
    return format_si(value, "").strip()


def _sizes(found: Reach) -> str:
    """What each number of accelerators does."""
    if not found.by_size:
        return ""
    rows = [
        (
            format_count(each.option.num_accelerators),
            _short(each.amount.value),
            f"{_short(each.amount.low)} to {_short(each.amount.high)}",
            format_duration(each.option.time.value),
            "-" if each.option.bill.usd is None else _short(each.option.bill.usd),
            each.limit,
            "take this" if each.option.num_accelerators == found.option.num_accelerators else "",
        )
        for each in found.by_size
    ]
    level = format_percent(found.tokens.level)
    unit = "tokens" if found.has_tokens else "samples"
    head = ("N", unit, f"{level} range", "time", "USD", "ends at", "")
    return table_text(head, rows, align=">>>>><<")


def _ground(found: Reach) -> tuple[str, ...]:
    """What it rests on."""
    told = list(found.assumes)
    if found.option.bill.money is not None and found.limit == "budget":
        told.append("the range is that of time and price; where it is cheaper or faster there is more")
    elif found.limit == "deadline":
        told.append("the range is that of the time")
    return tuple(told)
