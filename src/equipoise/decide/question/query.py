"""TrainingQuery: the question asked by every verb, form, file and function.

Each field is declared once, in fields.toml; the command line, the TOML reader, the dashboard, the Python
functions and the docs read `FIELDS`.
"""

import math
import re
from collections.abc import Collection, Mapping
from datetime import date
from difflib import get_close_matches
from keyword import iskeyword
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct, convert
from msgspec.structs import force_setattr, replace

from equipoise.decide.question.field import NUMBER, Field, Group, Sizes, Verb, in_usd
from equipoise.errors import DataError, EvidenceError, InputError, UsageError, as_option, hint
from equipoise.files import shipped_table
from equipoise.spec.hardware import DEFAULT_GRID, ON_RECLAIM, TERMS, OnReclaim
from equipoise.spec.strategy import (
    METHODS,
    PRECISIONS,
    PRIORS_ONLY,
    SOFTWARE_NAMES,
    TRAINED,
    field_of,
    parameter_guessed,
)
from equipoise.units import format_stated

Objective: TypeAlias = Literal["balance", "time", "cost", "energy", "value_of_time"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
# What each objective except `balance` minimises, in words.
SOUGHT: Final[Mapping[Objective, str]] = {
    "time": "least time",
    "cost": "least money",
    "energy": "least energy",
    "value_of_time": "least money with the value of time",
}
Ask: TypeAlias = Literal["tokens", "model"]
Submitter: TypeAlias = Literal["best", "new"]

ALL: Final[tuple[Verb, ...]] = ("advise", "plan", "predict", "allocate")
_DECIDE: Final[tuple[Verb, ...]] = ("advise", "plan")

# Default size limit if none is stated; larger if larger sizes have results or the training is long.
USUAL_MOST: Final = 512
USUAL_HORIZON_MONTHS: Final = 36.0
# Time from job start to the first step, at any size: nine of ten of 7,112 runs of MLPerf Training v4.0 to
# v5.1 initialised in less (`init_s` of the table `runs`), with data at hand.
START_S: Final = 300.0
# Tokens per parameter that give the lowest loss for a compute budget: Hoffmann et al. 2022, 1.4e12 tokens for
# the 70e9 parameters of their own model. Widely used models are trained on many times more.
TOKENS_PER_PARAM: Final = 20.0
NUM_STRATEGIES: Final = 3  # shown for the recommended size
# Pairs of mutually exclusive attributes, and what both of them state.
RIVALS: Final = (
    ("training_samples", "training_tokens", "the training budget"),
    ("training_examples", "training_tokens", "the training budget"),
    ("training_examples", "training_samples", "the training budget"),
    ("num_epochs", "training_tokens", "the training budget"),
    ("num_epochs", "training_samples", "the training budget"),
    ("workload", "config", "the model"),
    ("sizes", "num_nodes", "the size"),
    ("here", "systems", "the machine"),
)
# Attributes that state a training budget.
BUDGETS: Final = ("training_tokens", "training_samples", "training_examples", "num_epochs")
# Attributes that describe what reinforcement learning generates.
ROLLOUT: Final = ("completion_tokens", "prompt_tokens", "group_size")
# Default number of completions per prompt: that of DeepSeek-R1 (arXiv:2501.12948, 2025).
USUAL_GROUP: Final = 16
_MOST_USD: Final = 1e15  # of any currency for one US dollar
_CURRENCY: Final = re.compile(rf"([A-Za-z]{{3}})=({NUMBER})(?:@([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}))?")


class TrainingQuery(Struct, frozen=True, kw_only=True):
    """A question. None (or empty) means not given; the answer names the value chosen instead.

    Attributes are in SI units; the help text in fields.toml states the meaning of each. A size is a number of
    accelerators. `price`, `terms` and `stock` are pairs (system, value); the name "" stands for all systems.
    """

    workload: str
    config: Path | None = None
    train: tuple[str, ...] = ()
    training_tokens: float | None = None
    training_samples: float | None = None
    training_examples: float | None = None
    num_epochs: float | None = None
    sequence_tokens: int | None = None
    image_side_pixels: int | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    group_size: int | None = None
    global_batch_samples: int | None = None
    precision: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    here: bool = False
    max_accelerators: int | None = None
    sizes: Sizes | None = None
    num_nodes: int | None = None
    node_size: int | None = None
    oversubscription: float | None = None
    leaf_nodes: int | None = None
    topology: Path | None = None
    stock: tuple[tuple[str, int], ...] = ()
    power_cap_w: float | None = None
    objective: Objective = "balance"
    value_of_time_usd_per_hour: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    queue_s: float | None = None
    price: tuple[tuple[str, float], ...] = ()
    quotes: Path | None = None
    terms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    on_reclaim: OnReclaim = "wait"
    electricity_usd_per_kwh: float | None = None
    pue: float | None = None
    region: str = DEFAULT_GRID
    carbon_g_per_kwh: float | None = None
    currency: str | None = None
    buy: bool = False
    purchase_usd: float | None = None
    utilisation: float | None = None
    hosting_usd_per_month: float | None = None
    horizon_months: float | None = None
    runs: Path | None = None
    collectives: tuple[Path, ...] = ()
    traces: tuple[Path, ...] = ()
    traced_as: str | None = None
    times_from: Path | None = None
    columns: tuple[str, ...] = ()
    rows: str | None = None
    law: str | None = None
    round: str | None = None
    submitter: Submitter = "best"
    fixed: tuple[str, ...] = ()
    software: str | None = None
    num_strategies: int = NUM_STRATEGIES
    ask: Ask | None = None
    tokens_per_param: float = TOKENS_PER_PARAM
    data: Path | None = None
    also: tuple[Path, ...] = ()
    hardware: tuple[Path, ...] = ()
    workloads: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Refuse contradictory and incomplete questions."""
        self._refuse_twice_stated()
        if self.queue_s is not None and self.deadline_s is not None and self.queue_s >= self.deadline_s:
            raise UsageError(
                f"--queue of {format_stated(self.queue_s)} leaves no time before the --deadline of "
                f"{format_stated(self.deadline_s)}"
            )
        self._settle_value_of_time()
        if self.ask is not None and self.is_buying:
            raise UsageError(f"--ask {self.ask} and --buy are two different questions; keep one")
        if self.ask is not None and self.deadline_s is None and self.budget_usd is None:
            raise UsageError(f"--ask {self.ask} needs --budget or --deadline")
        if self.currency is not None:
            currency_of(self.currency)
        self._refuse_half_stated_rollouts()

    def _settle_value_of_time(self) -> None:
        """Make a stated value of time the objective; refuse it with an objective that ignores it."""
        if self.value_of_time_usd_per_hour is None:
            if self.objective == "value_of_time":
                raise UsageError(
                    "--objective value_of_time needs --value-of-time USD, in US dollars per hour"
                )
        elif self.objective == "balance":
            force_setattr(self, "objective", "value_of_time")
        elif self.objective != "value_of_time":
            raise UsageError(
                f"--objective {self.objective} ignores the value of an hour (--value-of-time): leave one of "
                "them out"
            )

    def _refuse_half_stated_rollouts(self) -> None:
        """Refuse completion lengths without `--train grpo`, and the reverse."""
        given = [name for name in ROLLOUT if getattr(self, name) is not None]
        if "grpo" not in self.train:
            if given:
                option = FIELDS[given[0]].option
                raise UsageError(
                    f"--{option} applies only to --train grpo; add --train grpo, or omit --{option}"
                )
            return
        if self.completion_tokens is None:
            raise UsageError("--train grpo needs --completion N: the mean number of tokens per completion")
        if self.global_batch_samples is not None and self.global_batch_samples % self.num_in_group:
            raise UsageError(
                f"--global-batch {self.global_batch_samples:,} counts completions, in groups of "
                f"{self.num_in_group} (--group): give a multiple of {self.num_in_group}"
            )

    def _refuse_twice_stated(self) -> None:
        """Refuse facts that are stated twice."""
        for one, other, what in RIVALS:
            if getattr(self, one) and getattr(self, other):
                options = " and ".join(_stated(name, getattr(self, name)) for name in (one, other))
                raise UsageError(f"{options} both state {what}; keep one")
        for names, what in ((TRAINED, "which weights are trained"), (METHODS, "what is optimised")):
            if len(both := [each for each in self.train if each in names]) > 1:
                raise UsageError(f"--train {','.join(both)} states {what} twice; keep one")

    @property
    def has_measurements(self) -> bool:
        """Whether the user gives runs, timed collectives or traces, or states how traces ran."""
        return bool(self.runs or self.collectives or self.traces or self.traced_as)

    @property
    def fixed_names(self) -> frozenset[str]:
        """The names of the strategy parameters that the question fixes."""
        stated = frozenset(field_of(name) for text in self.fixed for name in re.findall(r"(\w+)\s*=", text))
        return stated | {"precision"} if self.precision else stated

    @property
    def rests_on_files(self) -> bool:
        """Whether estimates depend on files or this machine, besides the catalogue and published results."""
        is_code = ":" in self.workload
        return self.has_measurements or is_code or bool(self.config or self.topology or self.here)

    @property
    def own_currency(self) -> tuple[str, float] | None:
        """The user's currency, and its amount per US dollar."""
        return None if self.currency is None else currency_of(self.currency)

    @property
    def currency_date(self) -> str | None:
        """The date of the user's exchange rate; None if not given."""
        found = _CURRENCY.fullmatch(self.currency or "")
        return found[3] if found else None

    @property
    def states_strategies(self) -> bool:
        """Whether the number of strategies to show differs from the default."""
        return self.num_strategies != NUM_STRATEGIES

    @property
    def is_buying(self) -> bool:
        """Whether to compare buying: asked for, or implied by one of its amounts."""
        return self.buy or any(
            each is not None
            for each in (self.purchase_usd, self.hosting_usd_per_month, self.utilisation, self.horizon_months)
        )

    @property
    def is_to_target(self) -> bool:
        """Whether the training budget is the published target, the only one with published times."""
        return not any(getattr(self, name) for name in BUDGETS)

    @property
    def start_s(self) -> float:
        """Seconds from job start to the first step; 0 for a training to a target, as in published times."""
        return 0.0 if self.is_to_target else START_S

    @property
    def changes_workload(self) -> bool:
        """Whether the training differs from the workload's in weights, samples or model."""
        return bool(self.config or self.train or self.sequence_tokens or self.image_side_pixels)

    @property
    def num_in_group(self) -> int:
        """Completions per prompt in reinforcement learning."""
        return self.group_size or USUAL_GROUP

    @property
    def states_size(self) -> bool:
        """Whether the question limits the number of accelerators."""
        return any(each is not None for each in (self.max_accelerators, self.sizes, self.num_nodes))

    @property
    def compares_rentable(self) -> bool:
        """Whether to compare accelerators for rent, because a fine-tuning leaves its system open.

        Not if the user states measured links, which belong to one machine.
        """
        is_open = not (self.systems or self.here or self.topology or self.collectives)
        return is_open and bool(self.train or self.counts_examples)

    @property
    def counts_examples(self) -> bool:
        """Whether the training budget is stated as passes over a data set."""
        return self.training_examples is not None or self.num_epochs is not None

    @property
    def within_s(self) -> float:
        """Time available for the training: the deadline less the queue; infinite without a deadline."""
        return math.inf if self.deadline_s is None else self.deadline_s - (self.queue_s or 0.0)

    @property
    def spend_usd(self) -> float:
        """The budget; infinite if not given."""
        return math.inf if self.budget_usd is None else self.budget_usd


def _stated(name: str, value: object) -> str:
    """An option of the question, with its value if that is text or a path."""
    option = f"--{FIELDS[name].option}"
    return f"{option} {value}" if isinstance(value, str | Path) else option


def currency_of(text: str) -> tuple[str, float]:
    """The name and rate in text such as `EUR=0.92`. Raises UsageError for any other text."""
    found = _CURRENCY.fullmatch(text)
    rate = float(found[2]) if found else 0.0
    try:
        date.fromisoformat(found[3] or date.max.isoformat() if found else "")
    except ValueError:
        rate = 0.0
    if found is None or not 0.0 < rate < _MOST_USD:
        raise UsageError(
            f"--currency is {text!r}; expected a name and what one USD is in it, as EUR=0.92 or, with the "
            "date of the rate, EUR=0.92@2026-11-20"
        )
    name = found[1].upper()
    if name == "USD" and rate != 1.0:
        raise UsageError(f"--currency is {text!r}, but one USD is 1 USD; leave it out, or name another")
    return name, rate


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": (*TRAINED, *METHODS),
    "precision": PRECISIONS,
    "objective": OBJECTIVES,
    "terms": TERMS,
    "on_reclaim": ON_RECLAIM,
    "submitter": get_args(Submitter),
    "software": (*SOFTWARE_NAMES, PRIORS_ONLY),
    "ask": get_args(Ask),
}


def _declared() -> dict[str, Field]:
    table = shipped_table(Path(__file__).with_name("fields.toml"))
    found: dict[str, Field] = {}
    for group, blocks in table.items():
        for name, block in blocks.items():
            usual = {"option": name.replace("_", "-"), "verbs": _DECIDE, "choices": _CHOICES.get(name, ())}
            found[name] = convert({**usual, **block, "group": group}, Field)
    return {name: found[name] for name in TrainingQuery.__struct_fields__}


FIELDS: Final[Mapping[str, Field]] = _declared()
ATTRIBUTES: Final[Mapping[str, str]] = {
    key: name for name, each in FIELDS.items() for key in (each.key, *each.also_keys)
}


QuestionError = TypeVar("QuestionError", InputError, EvidenceError, InputError | EvidenceError)
# Matches what follows an option in a sentence: a value, recognised by its form or as one of all choices, or
# a placeholder.
_CHOICE_PATTERN: Final = "|".join(sorted({choice for each in _CHOICES.values() for choice in each}))
_CHOICES_PATTERN: Final = rf"(?:{_CHOICE_PATTERN})(?:,(?:{_CHOICE_PATTERN}))*"
_VALUE_PATTERN: Final = rf"(?: (?:([\w-]+=[\w.,]+|{_CHOICES_PATTERN})(?![\w-])|[A-Z]+(?![\w.=])))?"


class WayToAsk(Struct, frozen=True, kw_only=True):
    """An interface for asking questions, with the names to use in error messages.

    names: its names of fields, by option; an option with a value may be a key of its own. stated: format of a
    name with a value.
    """

    names: Mapping[str, str]
    stated: str = '{} = "{}"'

    def words(self, text: str) -> str:
        """A sentence with options replaced by the names of this interface; commands in backticks stay.

        >>> IN_FILE.words("try --train qlora,dpo, or --tokens N, not `equipoise plan --train lora`")
        'try train = "qlora,dpo", or tokens, not `equipoise plan --train lora`'
        """
        options = "|".join(sorted(self.names, reverse=True)) or "(?!)"
        option = re.compile(rf"--({options})(?![\w-]){_VALUE_PATTERN}")
        parts = text.split("`")  # every second one is a command
        parts[::2] = (option.sub(lambda found: self.state(*found.groups()), each) for each in parts[::2])
        return "`".join(parts)

    def state(self, option: str, value: str | None) -> str:
        """The name of a field, with its value if there is one."""
        if option not in self.names:
            return as_option(option, value)
        text = self.stated.format(self.names[option], value) if value else self.names[option]
        return text.replace('"', "") if value and value[0].isdigit() else text

    def worded(self, err: QuestionError) -> QuestionError:
        """The error with the names of this interface."""
        if isinstance(err, EvidenceError):
            return err.reworded(self.words)
        message, remedy = self.words(err.message), self.words(err.remedy)
        return type(err)(message, give=err.give, remedy=remedy, state=self.state)


IN_FILE: Final = WayToAsk(
    names={option: each.key for each in FIELDS.values() for option in (each.option, *each.also)}
)


def fields_of(verb: Verb) -> dict[str, Field]:
    """The fields of a verb, by attribute, in the order of declaration."""
    return {name: each for name, each in FIELDS.items() if verb in each.verbs}


# The fields that each job in a shared pool states for itself.
OF_JOB: Final = {
    each.option: each.key
    for name, each in fields_of("advise").items()
    if name != "workload" and (each.group == "training" or name in {"fixed", "software"})
}
OWN_TIMES: Final = "runs FILE.csv"
IN_JOB: Final = OF_JOB | {OWN_TIMES: 'file = "FILE.csv"', "max-accelerators": "the size of the pool"}


def way_of(verb: Verb | None, *, is_python: bool = False) -> WayToAsk:
    """The interface of a verb: the command line or Python; for `allocate`, its file of jobs.

    verb: None if no question is asked.
    """
    names = {each.option: each.argument for each in FIELDS.values()} if is_python else {}
    if verb == "predict":
        names[OWN_TIMES] = 'from_="FILE.csv"' if is_python else "--from FILE.csv"
    return WayToAsk(names=names | IN_JOB) if verb == "allocate" else WayToAsk(names=names, stated='{}="{}"')


def values(
    given: Mapping[str, object], *, verb: Verb | None = None, where: str | None = None
) -> dict[str, Any]:
    """The parsed values of given options, by attribute.

    given: by option name (`max_accelerators` or `max-accelerators`), as text or values; None is not given.
    verb: whose fields may be given; all verbs by default. where: the file that contains the names.
    Amounts of money are in US dollars, or name the currency that is given too.
    Raises UsageError for an invalid value, DataError for one in a file and for an unknown name.
    """
    found: dict[str, Any] = {}
    named: dict[str, str] = {}
    stated = given.get("currency")
    for name, value in given.items():
        attribute = ATTRIBUTES.get(name.replace("-", "_").removesuffix("_"))
        if attribute is None or (verb is not None and verb not in FIELDS[attribute].verbs):
            raise DataError(f"{where or 'question'}: {unknown(name, verb)}")
        if value is None or (isinstance(value, tuple | list) and not value):
            continue
        if attribute in found:
            raise UsageError(f"--{name.replace('_', '-')} and --{named[attribute]} are one option; keep one")
        named[attribute] = name.replace("_", "-")
        try:
            found[attribute] = FIELDS[attribute].read(in_dollars(FIELDS[attribute], value, stated))
        except UsageError as err:
            if where is None:
                raise
            raise DataError(f"{where}: {IN_FILE.words(str(err))}") from err
    return found


def in_dollars(field: Field, given: object, currency: object) -> object:
    """The input for a field, with amounts of money in the user's currency converted to US dollars.

    currency: as given; an invalid one is refused by TrainingQuery.
    """
    stated = str(currency or "").strip()
    if not (field.unit or "").startswith("USD") or not _CURRENCY.fullmatch(stated):
        return given
    return in_usd(given, currency_of(stated))


def verbs_of(name: str) -> tuple[Verb, ...]:
    """The verbs that take an option or key of this name; empty if none does."""
    attribute = ATTRIBUTES.get(name.strip("-").replace("-", "_").removesuffix("_"))
    return () if attribute is None else tuple(each for each in ALL if each in FIELDS[attribute].verbs)


def guessed(name: str) -> tuple[str, ...]:
    """The options probably meant by an unknown name, from the `guesses` of fields; empty if there are none.

    A strategy parameter is suggested as a value of `fix`.

    >>> guessed("--batch-size"), guessed("gpus"), guessed("zero")
    (('global-batch',), ('accelerator', 'accelerators'), ('fix zero_stage=VALUE',))
    """
    key = name.strip("-").replace("-", "_").removesuffix("_").lower()
    found = tuple(each.option for each in FIELDS.values() if key in each.guesses)
    parameter = parameter_guessed(key)
    fix = FIELDS["fixed"].option
    return found or (() if parameter is None else (f"{fix} {parameter}=VALUE",))


def meant(name: str, known: Collection[str]) -> list[str]:
    """The known names, written with underscores, probably meant by another name; empty if there are none.

    From `guessed`, else the closest spelling.
    """
    key = name.replace("-", "_").removesuffix("_")
    options = [each.replace("-", "_") for each in guessed(name)]
    options = [each for each in options if each.partition(" ")[0] in known]
    return options or get_close_matches(key, known, n=1)


def unknown(name: str, verb: Verb | None = None, *, is_python: bool = False) -> str:
    """The error message for a name that is no field, with a suggestion.

    is_python: for arguments, where keywords have an underscore: `from_` for `from`.
    """
    if verb is not None and verbs_of(name):
        return f"{name!r} is not a field of {verb}, but of {', '.join(verbs_of(name))}"
    known = [key for key, attribute in ATTRIBUTES.items() if verb is None or verb in FIELDS[attribute].verbs]
    if is_python:
        known = [f"{key}_" if iskeyword(key) else key for key in known]
    expected = f"expected one of {', '.join(sorted(known))}"
    return f"{name!r} is not a field of a question; {hint(meant(name, known), expected)}"


def question(found: Mapping[str, Any]) -> TrainingQuery:
    """The question with these values, by attribute. Raises UsageError if they make no valid question."""
    if not {"workload", "config", "times_from"} & set(found):
        why = (
            "; --ask model looks for the largest model with its proportions"
            if found.get("ask") == "model"
            else ""
        )
        raise UsageError(
            f"no workload: give a name of `equipoise list workloads`, MODULE:FUNCTION, or --config FILE{why}"
        )
    # A law fitted to the user's own times needs no workload.
    asked = TrainingQuery(**{"workload": "", **found})
    _refuse_without_effect(asked)
    return asked


def _refuse_without_effect(asked: TrainingQuery) -> None:
    """Refuse options that have no effect on this question."""
    if asked.tokens_per_param != TOKENS_PER_PARAM and asked.ask != "model":
        raise UsageError("--tokens-per-param applies only to --ask model; add --ask model, or omit it")
    if asked.ask is not None and asked.objective != "balance":
        is_by_value = asked.objective == "value_of_time"
        option = "value-of-time" if is_by_value else f"objective {asked.objective}"
        raise UsageError(
            f"--{option} has no effect with --ask {asked.ask}, which finds the most that the limits allow: "
            "leave one of them out"
        )
    if asked.queue_s is not None and asked.deadline_s is None:
        raise UsageError("--queue is time taken from the --deadline; add --deadline, or leave --queue out")
    if asked.submitter == "new" and (asked.ask is not None or not asked.is_to_target):
        stated = ["ask", *BUDGETS]
        option = next(FIELDS[name].option for name in stated if getattr(asked, name) is not None)
        raise UsageError(
            f"--submitter new needs published results, and there are none for --{option}: leave one of them "
            "out"
        )


def query(given: Mapping[str, object]) -> TrainingQuery:
    """The question asked by options, file keys, form fields or arguments, given as to `values`."""
    return question(values(given))


# Zipped from the end, since fields without a default come first.
_DEFAULTS: Final[Mapping[str, Any]] = dict(
    zip(TrainingQuery.__struct_fields__[::-1], TrainingQuery.__struct_defaults__[::-1], strict=False)
)


def default_of(name: str) -> Any:  # noqa: ANN401 - each field has its own type
    """The default of an attribute; None if it has none."""
    return _DEFAULTS.get(name)


def default_words(name: str) -> str:
    """The default of an attribute in words; empty if it has none."""
    default = default_of(name)
    if FIELDS[name].unset is not None:
        return str(FIELDS[name].unset)
    if default in (None, (), False):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


# Groups of fields that affect only the selection among candidates: no estimate depends on them.
_SELECTION_GROUPS: Final[frozenset[Group]] = frozenset({"objective", "limits", "money", "buying"})


def without_choice(query: TrainingQuery) -> TrainingQuery:
    """The question with the fields for the selection (objective, limits, money) reset to defaults."""
    left = {name: default_of(name) for name, each in FIELDS.items() if each.group in _SELECTION_GROUPS}
    return replace(query, **left)
