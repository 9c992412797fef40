"""What the forms of plans and advice offer: workloads, machines, regions. The catalogue's names alone."""

from dataclasses import dataclass
from functools import cache

from equipoise.economics.grids import DEFAULT_GRID
from equipoise.economics.tables import table
from equipoise.spec.cluster import systems
from equipoise.spec.hardware import accelerators
from equipoise.spec.workload import workload, workloads
from equipoise.web.asked import MOST_ACCELERATORS, AskedAdvice, AskedPlan
from equipoise.web.fields import Choice, Field, Given, Group, More, Number, Select, Slider, first

OTHERS = "Other accelerators"
KINDS = {"gpu": "GPUs", "tpu": "TPUs", "npu": OTHERS, "ipu": OTHERS, "cpu": "CPUs"}
SLIDERS = {
    "most": Slider(low=1, high=4096, step=1, scale="doublings"),
    "global_batch": Slider(low=8, high=65_536, step=0.5, rest=512, scale="doublings"),
    "deadline": Slider(low=1, high=8192, step=0.25, rest=8192, scale="doublings"),
    "budget": Slider(low=16, high=2**27, step=0.25, rest=2**27, scale="doublings"),
    "price": Slider(low=0.25, high=16, step=0.25, rest=2),
}
OBJECTIVES = (
    Choice(value="balance", label="The balance point"),
    Choice(value="time", label="The shortest time"),
    Choice(value="cost", label="The least money"),
    Choice(value="energy", label="The least energy"),
)
TERMS = (
    Choice(value="on_demand", label="On demand"),
    Choice(value="reserved", label="Reserved"),
    Choice(value="spot", label="Spot"),
)
ASKS = (
    Choice(value="size", label="accelerators to take"),
    Choice(value="tokens", label="tokens to train on"),
    Choice(value="model", label="parameters of a model"),
)
BUYING = (
    Choice(value="no", label="Not compared"),
    Choice(value="yes", label="Compared"),
)
PRECISIONS = (
    Choice(value="bf16", label="bf16"),
    Choice(value="bf16,fp8", label="bf16 or fp8"),
    Choice(value="fp8", label="fp8"),
    Choice(value="fp16", label="fp16"),
    Choice(value="fp32", label="fp32"),
)


def known_workload(name: str) -> str:
    """The slug of a workload of the catalogue. Raises SpecError for any other name.

    Names alone come from a browser: a `module:function`, which a command line may name, would be run.
    """
    return workload(name).slug


@cache
def workload_groups() -> tuple[Group, ...]:
    """Workloads whose work is known, those of MLPerf first."""
    counted = [each for each in workloads() if each.train_flop_per_sample is not None]
    rounds = [each for each in counted if each.first_round is not None]
    others = [each for each in counted if each.first_round is None]
    return tuple(
        Group(title=title, choices=tuple(Choice(value=each.slug, label=each.title) for each in group))
        for title, group in (("MLPerf Training", rounds), ("Other models", others))
    )


@cache
def machine_groups() -> tuple[Group, ...]:
    """Systems by name, then accelerators, which sit in their usual node."""
    named = tuple(Choice(value=each.slug, label=each.title) for each in systems())
    by_kind: dict[str, list[Choice]] = {}
    for each in accelerators():
        by_kind.setdefault(KINDS[each.kind], []).append(Choice(value=each.slug, label=each.title))
    groups = (Group(title=title, choices=tuple(choices)) for title, choices in by_kind.items())
    return (Group(title="Systems", choices=named), *groups)


@cache
def regions() -> tuple[Choice, ...]:
    """Regions whose electricity is known, the world first."""
    known = sorted(table("grids.toml")["kg_co2_per_kwh"], key=lambda name: (name != DEFAULT_GRID, name))
    return tuple(Choice(value=name, label=name.replace("_", " ").capitalize()) for name in known)


@dataclass(frozen=True, slots=True)
class Filled:
    """A form as the address fills it, else as a page is asked without it."""

    given: Given
    asked: type[AskedPlan]

    def held(self, name: str) -> str:
        """What a field holds."""
        if name in self.given:
            return first(self.given, name)
        usual = self.asked.model_fields[name].default
        return "" if usual is None else str(usual)

    def number(
        self, name: str, label: str, limits: tuple[float, float], *, unset: str = "", whole: bool = False
    ) -> Number:
        """A number between limits. unset: what an empty field means."""
        return Number(
            name=name,
            label=label,
            value=self.held(name),
            least=limits[0],
            most=limits[1],
            step="1" if whole else "any",
            unset=unset,
            slider=SLIDERS.get(name),
        )

    def select(self, name: str, label: str, choices: tuple[Choice, ...]) -> Select:
        """One of a few."""
        return Select(name=name, label=label, choices=choices, value=self.held(name))

    def grouped(
        self, name: str, label: str, groups: tuple[Group, ...], choices: tuple[Choice, ...] = ()
    ) -> Select:
        """One of many, in groups."""
        return Select(name=name, label=label, choices=choices, groups=groups, value=self.held(name))

    def more(self, name: str, label: str, *fields: Field) -> More:
        """Fields behind a label, open where the address fills one."""
        return More(
            name=name, label=label, fields=fields, is_open=any(each.name in self.given for each in fields)
        )


def plan_fields(given: Given) -> tuple[Field, ...]:
    """The fields of a plan."""
    form = Filled(given, AskedPlan)
    return (
        *_asked_first(form),
        More(
            name="more",
            label="Limits, money and more",
            fields=(*_limits(form), *_rent(form), *_training(form), _region(form), _other(form)),
        ),
    )


def advice_fields(given: Given, *own: Field) -> tuple[Field, ...]:
    """The fields of an advice: those of a plan, owning, and what else may be asked. own: the user's runs."""
    form = Filled(given, AskedAdvice)
    per_param = form.number("tokens_per_param", "Tokens a parameter", (0.001, 1e5), unset="20")
    return (
        form.select("ask", "How many", ASKS),
        *_asked_first(form),
        form.more(
            "limits", "Limits", *_limits(form), form.number("queue", "Queue, hours", (0, 1e6), unset="none")
        ),
        form.more(
            "money",
            "Money and power",
            *_rent(form),
            form.number("electricity", "Electricity, USD a kWh", (0.001, 9.99), unset="not billed"),
            form.number("pue", "Building over machines (PUE)", (1, 4.99), unset="as usual"),
            _region(form),
        ),
        form.more("training", "Training and evidence", *_training(form), per_param, _other(form), *own),
        form.more(
            "buying",
            "Buying",
            form.select("buy", "Buying", BUYING),
            form.number("purchase", "To buy one, USD", (0, 1e8), unset="price table"),
            form.number("hosting", "Room, USD a month", (0, 1e8), unset="as usual"),
            form.number("utilisation", "Use, 0 to 1 of hours", (0.001, 1), unset="0.5"),
            form.number("horizon", "Horizon, months", (1, 240), unset="36"),
        ),
    )


def _asked_first(form: Filled) -> tuple[Field, ...]:
    return (
        form.grouped("workload", "Train", workload_groups()),
        form.grouped("accelerator", "On", machine_groups()),
        form.select("objective", "What counts", OBJECTIVES),
        form.number("most", "Accelerators, at most", (1, MOST_ACCELERATORS), whole=True),
    )


def _limits(form: Filled) -> tuple[Field, ...]:
    return (
        form.number("deadline", "Deadline, hours", (0.001, 1e6), unset="none"),
        form.number("budget", "Budget, USD", (0.01, 1e12), unset="none"),
    )


def _rent(form: Filled) -> tuple[Field, ...]:
    return (
        form.number("price", "USD an accelerator-hour", (0.001, 1e4), unset="price table"),
        form.select("terms", "Rented", TERMS),
    )


def _training(form: Filled) -> tuple[Field, ...]:
    return (
        form.number("global_batch", "Global batch, samples", (1, 1e9), unset="chosen", whole=True),
        form.select("precision", "Precision", PRECISIONS),
        form.number("tokens", "Tokens to train on", (1, 1e15), unset="to the target"),
    )


def _region(form: Filled) -> Field:
    return form.select("region", "Electricity of", regions())


def _other(form: Filled) -> Field:
    return form.grouped("other", "Compared with", machine_groups(), (Choice(value="", label="nothing else"),))
