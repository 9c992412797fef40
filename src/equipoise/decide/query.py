"""TrainingQuery: the one question that every verb, form, file and function asks; each field is declared once.

`FIELDS` is read by the command line, the TOML reader, the dashboard, the Python functions and the docs.
"""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import fields, force_setattr, replace

from equipoise.decide.field import MAX_ACCELERATORS, Field, Group, Kind, Sizes, Verb
from equipoise.errors import DataError, UsageError
from equipoise.spec.renting import DEFAULT_GRID, ON_RECLAIM, TERMS, OnReclaim
from equipoise.spec.strategy import METHODS, PRECISIONS, SOFTWARE_NAMES, TRAINED
from equipoise.units import HOUR_S

Objective: TypeAlias = Literal["balance", "time", "cost", "energy", "value_of_time"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
Ask: TypeAlias = Literal["tokens", "model"]
Submitter: TypeAlias = Literal["best", "new"]

ALL: Final[tuple[Verb, ...]] = ("advise", "plan", "predict", "allocate")
_DECIDE: Final[tuple[Verb, ...]] = ("advise", "plan")
_TRAIN: Final[tuple[Verb, ...]] = ("advise", "plan", "predict")

# What users of clusters ask about where no limit is stated; more where more was published.
USUAL_MOST: Final = 512
USUAL_HORIZON_MONTHS: Final = 36.0
# Tokens per parameter at which a training budget gives the lowest loss: Hoffmann et al. 2022, 1.4e12 tokens
# for the 70e9 parameters of their own model. Models that are used much are trained on many times more.
TOKENS_PER_PARAM: Final = 20.0
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
    ("profile", "software", "the calibration"),
)
# Attributes that state a training budget.
BUDGETS: Final = ("training_tokens", "training_samples", "training_examples", "num_epochs")
# Thousands of times the longest training there was: more is a slip.
_MOST_WORK: Final = 1e18
_MOST_USD: Final = 1e15
_LONGEST_SEQUENCE: Final = 100_000_000
_LONGEST_S: Final = 1e7 * HOUR_S
_CURRENCY: Final = re.compile(r"([A-Za-z]{3})=([0-9]{1,12}(?:\.[0-9]{1,12})?)")


def _field(
    option: str,
    kind: Kind,
    help_: str,
    *,
    group: Group,
    verbs: tuple[Verb, ...] = _DECIDE,
    **more: Any,  # noqa: ANN401 - the other attributes of Field
) -> Field:
    return Field(option=option, kind=kind, help=help_, group=group, verbs=frozenset(verbs), **more)


class TrainingQuery(Struct, frozen=True, kw_only=True):
    """One question. None (or empty) means not given; the answer names what was chosen instead.

    Attributes are SI; each one's meaning is the help text of its declaration. A size is a number of
    accelerators. `price`, `terms` and `stock` are pairs (system, value); the name "" stands for every system.
    """

    workload: Annotated[
        str,
        _field(
            "workload",
            "text",
            "What to train: a name from `list workloads`, or a torch function that returns model and batch.",
            group="training",
            verbs=_TRAIN,
            metavar="WORKLOAD|MODULE:FUNCTION",
        ),
    ]
    config: Annotated[
        Path | None,
        _field(
            "config",
            "path",
            "A model's config.json as the Hugging Face hub has it, instead of a workload.",
            group="training",
            metavar="FILE",
        ),
    ] = None
    train: Annotated[
        tuple[str, ...],
        _field(
            "train",
            "list",
            "Which weights are trained, and dpo for preference pairs: full, lora, qlora, or lora,dpo.",
            group="training",
            choices=(*TRAINED, *METHODS),
            metavar="HOW",
            unset="as the workload states",
        ),
    ] = ()
    training_tokens: Annotated[
        float | None,
        _field(
            "tokens",
            "amount",
            "Tokens to train on, e.g. 1T.",
            group="training",
            unit="tokens",
            least=1,
            most=_MOST_WORK,
            unset="to the published target",
        ),
    ] = None
    training_samples: Annotated[
        float | None,
        _field(
            "samples",
            "amount",
            "Samples to train on, e.g. 10k.",
            group="training",
            unit="samples",
            least=1,
            most=_MOST_WORK,
            unset="to the published target",
        ),
    ] = None
    training_examples: Annotated[
        float | None,
        _field(
            "examples",
            "amount",
            "Examples of your data set, each a sample of the model, e.g. 10k.",
            group="training",
            unit="examples",
            least=1,
            most=_MOST_WORK,
            unset="the workload's data set",
        ),
    ] = None
    num_epochs: Annotated[
        float | None,
        _field(
            "epochs",
            "number",
            "Passes over the data set.",
            group="training",
            unit="epochs",
            least=0,
            is_open=True,
            most=1e6,
            unset="1, where --examples is given",
        ),
    ] = None
    sequence_tokens: Annotated[
        int | None,
        _field(
            "sequence",
            "count",
            "Tokens per sample, padding included: 2048, or 2k for the same.",
            group="training",
            unit="tokens",
            least=1,
            most=_LONGEST_SEQUENCE,
            multiple=1024,
            unset="the workload's",
        ),
    ] = None
    global_batch_samples: Annotated[
        int | None,
        _field(
            "global-batch",
            "count",
            "Samples per step over all accelerators.",
            group="training",
            verbs=_TRAIN,
            unit="samples",
            least=1,
            most=1_000_000_000,
            unset="that of your model, else chosen",
        ),
    ] = None
    precision: Annotated[
        tuple[str, ...],
        _field(
            "precision",
            "list",
            "Precisions to try, e.g. bf16,fp8.",
            group="training",
            choices=PRECISIONS,
            metavar="P[,P...]",
            unset="bf16 where the chip has it",
        ),
    ] = ()
    systems: Annotated[
        tuple[str, ...],
        _field(
            "accelerator",
            "texts",
            'An accelerator or system, e.g. h100, dgx-h100 or "3x rtx4090"; may be repeated.',
            group="systems",
            verbs=ALL,
            metavar="[Nx]NAME",
            also=("cluster",),
        ),
    ] = ()
    here: Annotated[
        bool,
        _field(
            "here",
            "flag",
            "Detect this machine's hardware and answer for it.",
            group="systems",
            verbs=("advise",),
        ),
    ] = False
    max_accelerators: Annotated[
        int | None,
        _field(
            "max-accelerators",
            "count",
            "Maximum number of accelerators.",
            group="systems",
            verbs=("advise",),
            unit="accelerators",
            least=1,
            most=MAX_ACCELERATORS,
            unset="512, or the largest published size",
        ),
    ] = None
    sizes: Annotated[
        Sizes | None,
        _field(
            "accelerators",
            "sizes",
            "Numbers of accelerators to compare: 64, 8..512 or 8,16,32.",
            group="systems",
            verbs=_TRAIN,
            unit="accelerators",
            least=1,
            most=MAX_ACCELERATORS,
            metavar="N|N..M|N,M",
            also=("at",),
            unset="powers of two and whole nodes",
        ),
    ] = None
    num_nodes: Annotated[
        int | None,
        _field(
            "nodes",
            "count",
            "Number of nodes, instead of a number of accelerators.",
            group="systems",
            verbs=("plan",),
            unit="nodes",
            least=1,
            most=MAX_ACCELERATORS,
        ),
    ] = None
    node_size: Annotated[
        int | None,
        _field(
            "node-size",
            "count",
            "Accelerators per node.",
            group="systems",
            unit="accelerators",
            least=1,
            most=100_000,
            unset="as the system is sold",
        ),
    ] = None
    topology: Annotated[
        Path | None,
        _field(
            "topology",
            "path",
            "Links inside a node: a file with the output of `nvidia-smi topo -m`.",
            group="systems",
            metavar="FILE",
        ),
    ] = None
    stock: Annotated[
        tuple[tuple[str, int], ...],
        _field(
            "stock",
            "per_system",
            "Number of accelerators available of a system: h100=64; may be repeated.",
            group="systems",
            verbs=("advise",),
            value_kind="count",
            unit="accelerators",
            least=1,
            most=MAX_ACCELERATORS,
            metavar="[SYSTEM=]N",
        ),
    ] = ()
    power_cap_w: Annotated[
        float | None,
        _field(
            "power-cap",
            "number",
            "Power limit per accelerator, in watts.",
            group="systems",
            unit="W",
            least=1,
            most=1e5,
        ),
    ] = None
    objective: Annotated[
        Objective,
        _field(
            "objective",
            "choice",
            "What the recommendation is optimised for.",
            group="objective",
            choices=OBJECTIVES,
            verbs=_DECIDE,
        ),
    ] = "balance"
    value_of_time_usd_per_hour: Annotated[
        float | None,
        _field(
            "value-of-time",
            "number",
            "What finishing one hour earlier is worth to you.",
            group="objective",
            verbs=_TRAIN,
            unit="USD per hour",
            least=0,
            is_open=True,
            most=1_000_000_000,
            metavar="USD",
            also=("hour-usd",),
        ),
    ] = None
    deadline_s: Annotated[
        float | None,
        _field(
            "deadline",
            "duration",
            "Maximum time for the training: 12 (hours), 90min, 7d.",
            group="limits",
            verbs=_TRAIN,
            unit="s",
            least=0,
            is_open=True,
            most=_LONGEST_S,
            metavar="HOURS",
        ),
    ] = None
    budget_usd: Annotated[
        float | None,
        _field(
            "budget",
            "amount",
            "Maximum cost of the training in US dollars, e.g. 60k.",
            group="limits",
            unit="USD",
            least=0,
            is_open=True,
            most=_MOST_USD,
            metavar="USD",
        ),
    ] = None
    queue_s: Annotated[
        float | None,
        _field(
            "queue",
            "duration",
            "Time until the accelerators are available, counted against the deadline.",
            group="limits",
            verbs=("advise",),
            unit="s",
            least=0,
            most=_LONGEST_S,
            metavar="HOURS",
        ),
    ] = None
    price: Annotated[
        tuple[tuple[str, float], ...],
        _field(
            "price",
            "per_system",
            "US dollars per accelerator-hour of a system: h100=2.1; 0 for a machine you own.",
            group="money",
            verbs=ALL,
            unit="USD per accelerator-hour",
            least=0,
            most=1e6,
            value_kind="number",
            metavar="[SYSTEM=]USD",
            unset="price table",
        ),
    ] = ()
    quotes: Annotated[
        Path | None,
        _field(
            "prices",
            "path",
            "Your quotes: a TOML or CSV file of providers, systems, terms, minimum commitments and prices.",
            group="money",
            verbs=_DECIDE,
            metavar="FILE",
        ),
    ] = None
    terms: Annotated[
        tuple[tuple[str, tuple[str, ...]], ...],
        _field(
            "terms",
            "per_system",
            "Rental terms of a system: spot, or h100=spot; several with commas are compared.",
            group="money",
            verbs=("advise",),
            value_kind="list",
            choices=TERMS,
            metavar="[SYSTEM=]TERMS",
            unset="on_demand, or those of your quotes",
        ),
    ] = ()
    on_reclaim: Annotated[
        OnReclaim,
        _field(
            "on-reclaim",
            "choice",
            "A job whose spot nodes are reclaimed waits for others, or shrinks and goes on (elastic).",
            group="money",
            verbs=("advise",),
            choices=ON_RECLAIM,
        ),
    ] = "wait"
    electricity_usd_per_kwh: Annotated[
        float | None,
        _field(
            "electricity",
            "number",
            "Price of your electricity per kilowatt-hour.",
            group="money",
            verbs=("advise",),
            unit="USD per kWh",
            least=0,
            is_open=True,
            most=10,
            metavar="USD",
        ),
    ] = None
    pue: Annotated[
        float | None,
        _field(
            "pue",
            "number",
            "Power usage effectiveness of your building: its total power over that of the machines.",
            group="money",
            verbs=("advise",),
            unit="ratio",
            least=1,
            most=5,
        ),
    ] = None
    region: Annotated[
        str,
        _field(
            "region",
            "text",
            "Electricity grid for the carbon emissions: a country, e.g. us, uk, japan.",
            group="money",
            verbs=ALL,
        ),
    ] = DEFAULT_GRID
    carbon_g_per_kwh: Annotated[
        float | None,
        _field(
            "carbon",
            "number",
            "Carbon intensity of your electricity, in place of the grid's yearly average.",
            group="money",
            verbs=_TRAIN,
            unit="g CO2 per kWh",
            least=0,
            most=5000,
            metavar="GRAMS",
        ),
    ] = None
    currency: Annotated[
        str | None,
        _field(
            "currency",
            "text",
            "Your currency and what one US dollar is in it: EUR=0.92; the headline is in both.",
            group="money",
            verbs=("advise",),
            metavar="NAME=RATE",
            unset="USD",
        ),
    ] = None
    buy: Annotated[
        bool, _field("buy", "flag", "Compare renting with buying.", group="buying", verbs=("advise",))
    ] = False
    purchase_usd: Annotated[
        float | None,
        _field(
            "purchase",
            "amount",
            "Purchase price per accelerator, including its share of host and network.",
            group="buying",
            verbs=("advise",),
            unit="USD",
            least=0,
            most=1e8,
            metavar="USD",
            unset="price table",
        ),
    ] = None
    utilisation: Annotated[
        float | None,
        _field(
            "utilisation",
            "number",
            "Fraction of all hours in which an owned machine is in use.",
            group="buying",
            verbs=("advise",),
            unit="ratio",
            least=0,
            is_open=True,
            most=1,
            metavar="0..1",
            unset="0.5",
        ),
    ] = None
    hosting_usd_per_month: Annotated[
        float | None,
        _field(
            "hosting",
            "number",
            "Hosting cost per owned accelerator per month, without power; 0 on your premises.",
            group="buying",
            verbs=("advise",),
            unit="USD per month",
            least=0,
            most=1e8,
            metavar="USD",
            unset="typical hosting price",
        ),
    ] = None
    horizon_months: Annotated[
        float | None,
        _field(
            "horizon",
            "number",
            "Months after which the return of buying is reported.",
            group="buying",
            verbs=("advise",),
            unit="months",
            least=0,
            is_open=True,
            most=240,
            metavar="MONTHS",
            unset="36",
        ),
    ] = None
    runs: Annotated[
        Path | None,
        _field(
            "runs",
            "path",
            "Your runs: a folder of `bench --out` or `watch`, or CSV files.",
            group="evidence",
            verbs=("advise",),
            metavar="DIR",
        ),
    ] = None
    collectives: Annotated[
        tuple[Path, ...],
        _field(
            "collectives",
            "paths",
            "Output of nccl-tests, or of `collectives --measure`, on your machines.",
            group="evidence",
            metavar="FILE",
        ),
    ] = ()
    traces: Annotated[
        tuple[Path, ...],
        _field(
            "trace",
            "paths",
            "Traces of your training by torch.profiler; may be repeated.",
            group="evidence",
            verbs=("advise",),
            metavar="FILE",
        ),
    ] = ()
    traced_as: Annotated[
        str | None,
        _field(
            "traced-as",
            "text",
            'How the traced run was configured: "ranks=8 global_batch=64 precision=bf16".',
            group="evidence",
            verbs=("advise",),
            metavar="NAME=VALUE ...",
        ),
    ] = None
    times_from: Annotated[
        Path | None,
        _field(
            "from",
            "path",
            "Your measured times by size (CSV, Parquet, exports of experiment trackers).",
            group="evidence",
            verbs=("predict",),
            metavar="FILE",
        ),
    ] = None
    columns: Annotated[
        tuple[str, ...],
        _field(
            "column",
            "texts",
            "Name of a column in FILE: num_accelerators=world_size.",
            group="evidence",
            verbs=("predict",),
            metavar="OURS=THEIRS",
        ),
    ] = ()
    rows: Annotated[
        str | None,
        _field(
            "strategy",
            "text",
            "Use only the rows of FILE with this strategy, e.g. ddp.",
            group="evidence",
            verbs=("predict",),
        ),
    ] = None
    law: Annotated[
        str | None,
        _field(
            "law",
            "text",
            "Fit only this scaling law, e.g. amdahl; `pooled` for published results.",
            group="evidence",
            verbs=("predict",),
            unset="all, weighted",
        ),
    ] = None
    round: Annotated[
        str | None,
        _field(
            "round",
            "text",
            "MLPerf round whose results the prediction starts from.",
            group="evidence",
            verbs=("predict",),
            unset="the accelerator's newest",
        ),
    ] = None
    submitter: Annotated[
        Submitter,
        _field(
            "submitter",
            "choice",
            "Whose time to expect from published results: the best submitter's of each size, or a new one's.",
            group="evidence",
            verbs=("advise", "predict"),
            choices=get_args(Submitter),
        ),
    ] = "best"
    fixed: Annotated[
        tuple[str, ...],
        _field(
            "fix",
            "texts",
            "Restrict a parameter of the strategy: tp=8, zero_stage=2..3, offload=none,optimizer.",
            group="strategy",
            metavar="NAME=VALUES",
        ),
    ] = ()
    profile: Annotated[
        str | None,
        _field(
            "profile",
            "text",
            "A calibration of the performance model by name, or `priors`.",
            group="strategy",
            unset="that of the chip's maker",
        ),
    ] = None
    software: Annotated[
        str | None,
        _field(
            "software",
            "choice",
            "The training software: megatron_core, torchtitan, fsdp, jax, ...",
            group="strategy",
            choices=SOFTWARE_NAMES,
            metavar="NAME",
            unset="that of the calibration of the chip's maker",
        ),
    ] = None
    num_strategies: Annotated[
        int,
        _field(
            "top",
            "count",
            "How many strategies of the recommended size to show.",
            group="strategy",
            verbs=("plan",),
            least=1,
            most=1000,
        ),
    ] = 3
    ask: Annotated[
        Ask | None,
        _field(
            "ask",
            "choice",
            "Find instead how many tokens, or how large a model, budget and deadline allow.",
            group="objective",
            verbs=("advise",),
            choices=get_args(Ask),
        ),
    ] = None
    tokens_per_param: Annotated[
        float,
        _field(
            "tokens-per-param",
            "number",
            "Tokens per parameter of the model that --ask model searches for.",
            group="objective",
            verbs=("advise",),
            unit="tokens per parameter",
            least=0,
            is_open=True,
            most=1e5,
        ),
    ] = TOKENS_PER_PARAM
    data: Annotated[
        Path | None,
        _field(
            "data",
            "path",
            "Read the tables that `ingest --into DIR` wrote instead of the embedded data.",
            group="catalogue",
            verbs=ALL,
            metavar="DIR",
        ),
    ] = None
    also: Annotated[
        tuple[Path, ...],
        _field(
            "also",
            "paths",
            "Read these tables in addition to the other data; may be repeated.",
            group="catalogue",
            verbs=ALL,
            metavar="DIR",
        ),
    ] = ()
    hardware: Annotated[
        tuple[Path, ...],
        _field(
            "hardware",
            "paths",
            "Add or override accelerators and systems from a TOML file.",
            group="catalogue",
            verbs=ALL,
            metavar="FILE",
        ),
    ] = ()
    workloads: Annotated[
        tuple[Path, ...],
        _field(
            "workloads",
            "paths",
            "Add or override workloads from a TOML file.",
            group="catalogue",
            verbs=ALL,
            metavar="FILE",
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse what asks for two things at once, or for nothing."""
        self._refuse_twice_stated()
        if self.queue_s is not None and self.deadline_s is not None and self.queue_s >= self.deadline_s:
            raise UsageError(
                f"--queue of {self.queue_s / HOUR_S:g} hours leaves no time before the --deadline of "
                f"{self.deadline_s / HOUR_S:g} hours"
            )
        if self.objective == "value_of_time" and self.value_of_time_usd_per_hour is None:
            raise UsageError("--objective value_of_time needs --value-of-time USD, in US dollars per hour")
        if self.ask is not None and self.is_buying:
            raise UsageError(f"--ask {self.ask} and --buy are two different questions; keep one")
        if self.ask is not None and self.deadline_s is None and self.budget_usd is None:
            raise UsageError(f"--ask {self.ask} needs --budget or --deadline")
        if self.currency is not None:
            _currency(self.currency)
        if self.value_of_time_usd_per_hour is not None and self.objective == "balance":
            force_setattr(self, "objective", "value_of_time")

    def _refuse_twice_stated(self) -> None:
        """Refuse what is stated in two ways."""
        for one, other, what in RIVALS:
            if getattr(self, one) and getattr(self, other):
                options = " and ".join(f"--{FIELDS[name].option}" for name in (one, other))
                raise UsageError(f"{options} both state {what}; keep one")
        for names, what in ((TRAINED, "which weights are trained"), (METHODS, "what is optimised")):
            if len(both := [each for each in self.train if each in names]) > 1:
                raise UsageError(f"--train {','.join(both)} states {what} twice; keep one")

    @property
    def has_measurements(self) -> bool:
        """Whether the user gives runs, timed collectives or traces, or states how traces ran."""
        return bool(self.runs or self.collectives or self.traces or self.traced_as)

    @property
    def own_currency(self) -> tuple[str, float] | None:
        """The user's currency, and how much of it a US dollar is."""
        return None if self.currency is None else _currency(self.currency)

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
    def changes_workload(self) -> bool:
        """Whether the training is another than the workload's: other weights, samples or model."""
        return bool(self.config or self.train or self.sequence_tokens)

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


def _currency(text: str) -> tuple[str, float]:
    """The name and rate of `EUR=0.92`. Raises UsageError for any other text."""
    found = _CURRENCY.fullmatch(text)
    rate = float(found[2]) if found else 0.0
    if found is None or not 0.0 < rate < _MOST_USD:
        raise UsageError(f"--currency is {text!r}; expected a name and what one USD is in it, as EUR=0.92")
    return found[1].upper(), rate


FIELDS: Final[Mapping[str, Field]] = {
    name: hint.__metadata__[0] for name, hint in TrainingQuery.__annotations__.items()
}
ATTRIBUTES: Final[Mapping[str, str]] = {
    key: name for name, each in FIELDS.items() for key in (each.key, *each.also_keys)
}


def fields_of(verb: Verb) -> dict[str, Field]:
    """The fields that a verb takes, by attribute, in the order of their declaration."""
    return {name: each for name, each in FIELDS.items() if verb in each.verbs}


def values(
    given: Mapping[str, object], *, verb: Verb | None = None, where: str | None = None
) -> dict[str, Any]:
    """The values of what was given, by attribute.

    given: by option name (`max_accelerators` or `max-accelerators`), as text or as values; None is not given.
    verb: whose fields may be given; of all verbs unless stated. where: the file that the names stand in.
    Raises UsageError for a value that a field cannot be, DataError for the same in a file and for a name that
    is no field.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        attribute = ATTRIBUTES.get(name.replace("-", "_").removesuffix("_"))
        if attribute is None or (verb is not None and verb not in FIELDS[attribute].verbs):
            raise DataError(f"{where or 'question'}: {unknown(name, verb)}")
        if value is None or value in ((), []):
            continue
        if attribute in found:
            raise UsageError(f"--{name} and --{FIELDS[attribute].option} are one option; keep one")
        try:
            found[attribute] = FIELDS[attribute].read(value)
        except UsageError as err:
            if where is None:
                raise
            raise DataError(f"{where}: {str(err).removeprefix('--')}") from err
    return found


def unknown(name: str, verb: Verb | None = None) -> str:
    """What is wrong with a name that is no field, with the nearest that is one."""
    key = name.replace("-", "_").removesuffix("_")
    if verb is not None and key in ATTRIBUTES:
        others = ", ".join(each for each in ALL if each in FIELDS[ATTRIBUTES[key]].verbs)
        return f"{name!r} is not a field of {verb}; it is one of {others}"
    known = [key for key, attribute in ATTRIBUTES.items() if verb is None or verb in FIELDS[attribute].verbs]
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"
    return f"{name!r} is not a field of a question; {hint}"


def question(found: Mapping[str, Any]) -> TrainingQuery:
    """The question of values by attribute. Raises UsageError where it is none."""
    if not {"workload", "config", "times_from"} & set(found):
        raise UsageError(
            "no workload: give a name of `equipoise list workloads`, MODULE:FUNCTION, or --config FILE"
        )
    # A curve through the user's own times needs no workload.
    return TrainingQuery(**{"workload": "", **found})


def query(
    given: Mapping[str, object], *, verb: Verb | None = None, where: str | None = None
) -> TrainingQuery:
    """The question that options, keys of a file, form fields or arguments ask; parameters as of `values`."""
    return question(values(given, verb=verb, where=where))


def default_of(name: str) -> Any:  # noqa: ANN401 - each field has its own type
    """The value of an attribute where nothing is given; None where it has none."""
    declared = next(each for each in fields(TrainingQuery) if each.name == name)
    return None if declared.required else declared.default


def default_words(name: str) -> str:
    """What holds where an attribute is not given, in words; empty where nothing does."""
    default = default_of(name)
    if FIELDS[name].unset is not None:
        return str(FIELDS[name].unset)
    if default in (None, (), False):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def changed(query: TrainingQuery, **values: object) -> TrainingQuery:
    """The question with some attributes changed, checked as a new one is."""
    return replace(query, **values)
