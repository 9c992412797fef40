"""What forms call the fields of a question, and complaints in the same words."""

import re
from collections.abc import Mapping
from typing import Final

from equipoise.decide.query import FIELDS
from equipoise.web.asked import NOT_FROM_BROWSERS

# Where the words of the option alone would not do.
LABELS: Final[Mapping[str, str]] = {
    "workload": "Train",
    "training_tokens": "Tokens to train on",
    "training_samples": "Samples to train on",
    "systems": "On",
    "max_accelerators": "Accelerators, at most",
    "node_size": "Accelerators per node",
    "stock": "How many there are",
    "power_cap_w": "Power cap, W",
    "objective": "Choose by",
    "value_of_time_usd_per_hour": "Value of an hour, USD",
    "ask": "How many",
    "tokens_per_param": "Tokens per parameter",
    "deadline_s": "Deadline, hours",
    "queue_s": "Queue, hours",
    "budget_usd": "Budget, USD",
    "price": "USD per accelerator-hour",
    "terms": "Rented",
    "electricity_usd_per_kwh": "Electricity, USD per kWh",
    "pue": "PUE of the building",
    "region": "Carbon of electricity in",
    "buy": "Buying",
    "purchase_usd": "To buy one, USD",
    "utilisation": "Utilisation, 0 to 1",
    "hosting_usd_per_month": "Room, USD per month",
    "horizon_months": "Horizon, months",
    "runs": "Your own runs",
    "fixed": "Fixed parameters",
    "profile": "Calibration",
    "num_strategies": "Strategies to show",
}


def label_of(name: str) -> str:
    """The label of a field of a question, by its attribute.

    >>> label_of("deadline_s"), label_of("num_nodes")
    ('Deadline, hours', 'Nodes')
    """
    return LABELS.get(name) or FIELDS[name].option.replace("-", " ").capitalize()


def _options() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, each in FIELDS.items():
        if name in NOT_FROM_BROWSERS:
            continue
        found |= dict.fromkeys((each.option, *each.also), label_of(name))
    return found


_LABEL_OF_OPTION: Final[Mapping[str, str]] = _options()
_OPTION: Final = re.compile(
    rf"--({'|'.join(sorted(_LABEL_OF_OPTION, key=len, reverse=True))})(?![\w-])(?: [A-Z]+\b)?"
)


def in_form(text: str) -> str:
    """A complaint that names options of the command line, in the words of the form.

    >>> in_form("give --price or --global-batch N")
    'give “USD per accelerator-hour” or “Global batch”'
    >>> in_form("`equipoise serve --runs DIR`")
    '`equipoise serve --runs DIR`'
    """
    parts = text.split("`")  # every second one is a command, which stays as it is typed
    parts[::2] = (_OPTION.sub(lambda found: f"“{_LABEL_OF_OPTION[found[1]]}”", part) for part in parts[::2])
    return "`".join(parts)
