"""TrainingQuery: the one question that every verb, form, file and function asks.

Each field is declared once, in fields.toml; `FIELDS` is read by the command line, the TOML reader, the
dashboard, the Python functions and the docs.
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
# What each but `balance` looks for.
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

# What users of clusters ask about where no limit is stated; more where more was published or the training is
# a long one.
USUAL_MOST: Final = 512
USUAL_HORIZON_MONTHS: Final = 36.0
# Between the start of a job and its first step, whatever the size: nine of ten of 7,112 runs of MLPerf
# Training v4.0 to v5.1 took less to initialise (`init_s` of the table `runs`), with data at hand.
START_S: Final = 300.0
# Tokens per parameter at which a training budget gives the lowest loss: Hoffmann et al. 2022, 1.4e12 tokens
# for the 70e9 parameters of their own model. Models that are used much are trained on many times more.
TOKENS_PER_PARAM: Final = 20.0
NUM_STRATEGIES: Final = 3  # of the recommended size that are shown
# Attributes of which one at most is given, and what both state.
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
# Attributes that state what a reinforcement learning generates.
ROLLOUT: Final = ("completion_tokens", "prompt_tokens", "group_size")
# Completions of a prompt where nobody states them: those of DeepSeek-R1 (arXiv:2501.12948, 2025).
USUAL_GROUP: Final = 16
_MOST_USD: Final = 1e15  # of any currency for one US dollar
_CURRENCY: Final = re.compile(rf"([A-Za-z]{{3}})=({NUMBER})(?:@([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}))?")


class TrainingQuery(Struct, frozen=True, kw_only=True):
    """One question. None (or empty) means not given; the answer names what was chosen instead.

    Attributes are SI; each one's meaning is the help text of its block in fields.toml. A size is a number of
    accelerators. `price`, `terms` and `stock` are pairs (system, value); the name "" stands for every system.
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
        """Refuse what asks for two things at once, or for nothing."""
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
        """A value of an hour is an objective by itself; refuse it beside one that does not count it."""
        if self.value_of_time_usd_per_hour is None:
            if self.objective == "value_of_time":
                raise UsageError(
                    "--objective value_of_time needs --value-of-time USD, in US dollars per hour"
                )
        elif self.objective == "balance":
            force_setattr(self, "objective", "value_of_time")
        elif self.objective != "value_of_time":
            raise UsageError(
                f"--objective {self.objective} does not count what an hour is worth (--value-of-time): leave "
                "one of them out"
            )

    def _refuse_half_stated_rollouts(self) -> None:
        """Refuse lengths of completions without the training that generates them, and the other way round."""
        given = [name for name in ROLLOUT if getattr(self, name) is not None]
        if "grpo" not in self.train:
            if given:
                raise UsageError(f"--{FIELDS[given[0]].option} is of --train grpo; add it, or leave it out")
            return
        if self.completion_tokens is None:
            raise UsageError("--train grpo needs --completion N: tokens that a completion has on average")
        if self.global_batch_samples is not None and self.global_batch_samples % self.num_in_group:
            raise UsageError(
                f"--global-batch {self.global_batch_samples:,} counts completions, in groups of "
                f"{self.num_in_group} (--group): give a multiple of that"
            )

    def _refuse_twice_stated(self) -> None:
        """Refuse what is stated in two ways."""
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
        """The parameters of a strategy that the question states, by name."""
        stated = frozenset(field_of(name) for text in self.fixed for name in re.findall(r"(\w+)\s*=", text))
        return stated | {"precision"} if self.precision else stated

    @property
    def rests_on_files(self) -> bool:
        """Whether estimates depend on more than the catalogue and published results: files, this machine."""
        is_code = ":" in self.workload
        return self.has_measurements or is_code or bool(self.config or self.topology or self.here)

    @property
    def own_currency(self) -> tuple[str, float] | None:
        """The user's currency, and how much of it a US dollar is."""
        return None if self.currency is None else currency_of(self.currency)

    @property
    def currency_date(self) -> str | None:
        """The date of the rate of the user's currency; None where it is not given."""
        found = _CURRENCY.fullmatch(self.currency or "")
        return found[3] if found else None

    @property
    def states_strategies(self) -> bool:
        """Whether another number of strategies than the usual one is to be shown."""
        return self.num_strategies != NUM_STRATEGIES

    @property
    def is_buying(self) -> bool:
        """Whether buying is to be compared: asked for, or an amount of it given."""
        return self.buy or any(
            each is not None
            for each in (self.purchase_usd, self.hosting_usd_per_month, self.utilisation, self.horizon_months)
        )

    @property
    def is_to_target(self) -> bool:
        """Whether the published target is meant: published times are of no other training budget."""
        return not any(getattr(self, name) for name in BUDGETS)

    @property
    def start_s(self) -> float:
        """What comes before the times of the training; the clock of published ones begins after it."""
        return 0.0 if self.is_to_target else START_S

    @property
    def changes_workload(self) -> bool:
        """Whether the training is another than the workload's: other weights, samples or model."""
        return bool(self.config or self.train or self.sequence_tokens or self.image_side_pixels)

    @property
    def num_in_group(self) -> int:
        """Completions of each prompt of a reinforcement learning."""
        return self.group_size or USUAL_GROUP

    @property
    def states_size(self) -> bool:
        """Whether it states how many accelerators may be taken."""
        return any(each is not None for each in (self.max_accelerators, self.sizes, self.num_nodes))

    @property
    def compares_rentable(self) -> bool:
        """Whether it is left open on what a fine-tuning runs: accelerators for rent are compared.

        Links that the user states are of one machine.
        """
        is_open = not (self.systems or self.here or self.topology or self.collectives)
        return is_open and bool(self.train or self.counts_examples)

    @property
    def counts_examples(self) -> bool:
        """Whether the training budget is stated as passes over a data set."""
        return self.training_examples is not None or self.num_epochs is not None

    @property
    def within_s(self) -> float:
        """What the training may take: what the queue leaves of the deadline; infinite without one."""
        return math.inf if self.deadline_s is None else self.deadline_s - (self.queue_s or 0.0)

    @property
    def spend_usd(self) -> float:
        """What the training may cost; infinite without a budget."""
        return math.inf if self.budget_usd is None else self.budget_usd


def _stated(name: str, value: object) -> str:
    """An option of the question, with its value where that is short text."""
    option = f"--{FIELDS[name].option}"
    return f"{option} {value}" if isinstance(value, str | Path) else option


def currency_of(text: str) -> tuple[str, float]:
    """The name and rate of `EUR=0.92`. Raises UsageError for any other text."""
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
    return found[1].upper(), rate


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


Told = TypeVar("Told", InputError, EvidenceError, InputError | EvidenceError)
# What follows an option in a sentence: a value, by its form or as one of all choices, or a word for any.
_CHOSEN: Final = "|".join(sorted({choice for each in _CHOICES.values() for choice in each}))
_VALUE: Final = rf"(?: (?:([\w-]+=[\w.,]+|{_CHOSEN})(?![\w-])|[A-Z]+(?![\w.=])))?"


class WayToAsk(Struct, frozen=True, kw_only=True):
    """A way to ask questions, which words errors for those who ask so.

    names: what it calls fields, by option; an option with a value is named as a whole. stated: a name with a
    value.
    """

    names: Mapping[str, str]
    stated: str = '{} = "{}"'

    def words(self, text: str) -> str:
        """A sentence that names fields by their options, with the names of this way; commands stay.

        >>> IN_FILE.words("try --train qlora or --tokens N, not `equipoise plan --train lora`")
        'try train = "qlora" or tokens, not `equipoise plan --train lora`'
        """
        options = "|".join(sorted(self.names, reverse=True)) or "(?!)"
        option = re.compile(rf"--({options})(?![\w-]){_VALUE}")
        parts = text.split("`")  # every second one is a command
        parts[::2] = (option.sub(lambda found: self.state(*found.groups()), each) for each in parts[::2])
        return "`".join(parts)

    def state(self, option: str, value: str | None) -> str:
        """A field with a value, or alone."""
        if option not in self.names:
            return as_option(option, value)
        text = self.stated.format(self.names[option], value) if value else self.names[option]
        return text.replace('"', "") if value and value[0].isdigit() else text

    def worded(self, err: Told) -> Told:
        """An error in the words of this way."""
        if isinstance(err, EvidenceError):
            return err.reworded(self.words)
        message, remedy = self.words(err.message), self.words(err.remedy)
        return type(err)(message, give=err.give, remedy=remedy, state=self.state)


IN_FILE: Final = WayToAsk(
    names={option: each.key for each in FIELDS.values() for option in (each.option, *each.also)}
)


def fields_of(verb: Verb) -> dict[str, Field]:
    """The fields that a verb takes, by attribute, in the order of their declaration."""
    return {name: each for name, each in FIELDS.items() if verb in each.verbs}


# The fields of a question that each training of a shared pool has its own of.
OF_JOB: Final = {
    each.option: each.key
    for name, each in fields_of("advise").items()
    if name != "workload" and (each.group == "training" or name in {"fixed", "software"})
}
OWN_TIMES: Final = "runs FILE.csv"
IN_JOB: Final = OF_JOB | {OWN_TIMES: 'file = "FILE.csv"', "max-accelerators": "the size of the pool"}


def way_of(verb: Verb | None, *, is_python: bool = False) -> WayToAsk:
    """How a verb is asked, by a command line unless in Python; of what shares a pool, by its file of jobs.

    verb: None for what asks no question.
    """
    names = {each.option: each.argument for each in FIELDS.values()} if is_python else {}
    if verb == "predict":
        names[OWN_TIMES] = 'from_="FILE.csv"' if is_python else "--from FILE.csv"
    return WayToAsk(names=names | IN_JOB) if verb == "allocate" else WayToAsk(names=names, stated='{}="{}"')


def values(
    given: Mapping[str, object], *, verb: Verb | None = None, where: str | None = None
) -> dict[str, Any]:
    """The values of what was given, by attribute.

    given: by option name (`max_accelerators` or `max-accelerators`), as text or as values; None is not given.
    verb: whose fields may be given; of all verbs unless stated. where: the file that the names stand in.
    Amounts of money are in US dollars, or in the currency that is given too, by its name.
    Raises UsageError for a value that a field cannot be, DataError for the same in a file and for a name that
    is no field.
    """
    found: dict[str, Any] = {}
    named: dict[str, str] = {}
    stated = str(given.get("currency", "")).strip()
    # Any other text is refused with the question.
    own = currency_of(stated) if _CURRENCY.fullmatch(stated) else None
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
            is_money = (FIELDS[attribute].unit or "").startswith("USD")
            found[attribute] = FIELDS[attribute].read(in_usd(value, own) if own and is_money else value)
        except UsageError as err:
            if where is None:
                raise
            raise DataError(f"{where}: {IN_FILE.words(str(err))}") from err
    return found


def verbs_of(name: str) -> tuple[Verb, ...]:
    """The verbs that take an option or key of that name; empty where none does."""
    attribute = ATTRIBUTES.get(name.strip("-").replace("-", "_").removesuffix("_"))
    return () if attribute is None else tuple(each for each in ALL if each in FIELDS[attribute].verbs)


def guessed(name: str) -> tuple[str, ...]:
    """The options that people mean by a name that none has, by what `guesses` lists; empty where unknown.

    A parameter of a strategy is one of `fix`.

    >>> guessed("--batch-size"), guessed("gpus"), guessed("zero")
    (('global-batch',), ('accelerator', 'accelerators'), ('fix zero_stage=VALUE',))
    """
    key = name.strip("-").replace("-", "_").removesuffix("_").lower()
    found = tuple(each.option for each in FIELDS.values() if key in each.guesses)
    parameter = parameter_guessed(key)
    fix = FIELDS["fixed"].option
    return found or (() if parameter is None else (f"{fix} {parameter}=VALUE",))


def meant(name: str, known: Collection[str]) -> list[str]:
    """Which of some names, written with underscores, a person may mean by another; empty where unknown.

    What `guesses` lists, else the nearest; of a parameter of a strategy, how `fix` states it.
    """
    key = name.replace("-", "_").removesuffix("_")
    options = [each.replace("-", "_") for each in guessed(name)]
    options = [each for each in options if each.partition(" ")[0] in known]
    return options or get_close_matches(key, known, n=1)


def unknown(name: str, verb: Verb | None = None, *, is_python: bool = False) -> str:
    """What is wrong with a name that is no field, with what may be meant.

    is_python: of an argument, which no word of Python can name: `from_` for `from`.
    """
    if verb is not None and verbs_of(name):
        return f"{name!r} is not a field of {verb}; it is one of {', '.join(verbs_of(name))}"
    known = [key for key, attribute in ATTRIBUTES.items() if verb is None or verb in FIELDS[attribute].verbs]
    if is_python:
        known = [f"{key}_" if iskeyword(key) else key for key in known]
    expected = f"expected one of {', '.join(sorted(known))}"
    return f"{name!r} is not a field of a question; {hint(meant(name, known), expected)}"


def question(found: Mapping[str, Any]) -> TrainingQuery:
    """The question of values by attribute. Raises UsageError where it is none."""
    if not {"workload", "config", "times_from"} & set(found):
        why = (
            "; --ask model looks for the largest model of its proportions"
            if found.get("ask") == "model"
            else ""
        )
        raise UsageError(
            f"no workload: give a name of `equipoise list workloads`, MODULE:FUNCTION, or --config FILE{why}"
        )
    # A curve through the user's own times needs no workload.
    asked = TrainingQuery(**{"workload": "", **found})
    _refuse_without_effect(asked)
    return asked


def _refuse_without_effect(asked: TrainingQuery) -> None:
    """Refuse what counts only in a question that is not asked."""
    if asked.tokens_per_param != TOKENS_PER_PARAM and asked.ask != "model":
        raise UsageError("--tokens-per-param is of --ask model; add it, or leave it out")
    if asked.ask is not None and asked.objective != "balance":
        is_by_value = asked.objective == "value_of_time"
        option = "value-of-time" if is_by_value else f"objective {asked.objective}"
        raise UsageError(
            f"--{option} does not count in --ask {asked.ask}, which finds the most that limits allow: leave "
            "one of them out"
        )
    if asked.queue_s is not None and asked.deadline_s is None:
        raise UsageError("--queue counts against the --deadline; add it, or leave it out")
    if asked.submitter == "new" and (asked.ask is not None or not asked.is_to_target):
        stated = ["ask", *BUDGETS]
        option = next(FIELDS[name].option for name in stated if getattr(asked, name) is not None)
        raise UsageError(
            f"--submitter new is of published results, and none is of --{option}: leave one of them out"
        )


def query(given: Mapping[str, object]) -> TrainingQuery:
    """The question that options, keys of a file, form fields or arguments ask, given as to `values`."""
    return question(values(given))


# Fields without a default stand before the others.
_DEFAULTS: Final[Mapping[str, Any]] = dict(
    zip(TrainingQuery.__struct_fields__[::-1], TrainingQuery.__struct_defaults__[::-1], strict=False)
)


def default_of(name: str) -> Any:  # noqa: ANN401 - each field has its own type
    """The value of an attribute where nothing is given; None where it has none."""
    return _DEFAULTS.get(name)


def default_words(name: str) -> str:
    """What holds where an attribute is not given, in words; empty where nothing does."""
    default = default_of(name)
    if FIELDS[name].unset is not None:
        return str(FIELDS[name].unset)
    if default in (None, (), False):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


# How one chooses among candidates: no estimate of a system depends on these.
_OF_CHOICE: Final[frozenset[Group]] = frozenset({"objective", "limits", "money", "buying"})


def without_choice(query: TrainingQuery) -> TrainingQuery:
    """The question with every field of its choice as if it was not given: objective, limits and money."""
    left = {name: default_of(name) for name, each in FIELDS.items() if each.group in _OF_CHOICE}
    return replace(query, **left)
