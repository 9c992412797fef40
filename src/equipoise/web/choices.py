"""What the forms of plans and advice offer: workloads, machines, regions. The catalogue's names alone."""

from functools import cache

from equipoise.economics.grids import DEFAULT_GRID
from equipoise.economics.tables import table
from equipoise.spec.cluster import systems
from equipoise.spec.hardware import accelerators
from equipoise.spec.workload import workload, workloads
from equipoise.web.asked import MOST_ACCELERATORS, AskedPlan
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


def plan_fields(given: Given, *more: Field) -> tuple[Field, ...]:
    """The fields of a plan as the address fills them, else as a plan is asked without them.

    more: further ones of a page, at the end.
    """

    def held(name: str) -> str:
        if name in given:
            return first(given, name)
        usual = AskedPlan.model_fields[name].default
        return "" if usual is None else str(usual)

    def number(
        name: str, label: str, limits: tuple[float, float], *, unset: str = "", whole: bool = False
    ) -> Number:
        least, most = limits
        step = "1" if whole else "any"
        return Number(
            name=name,
            label=label,
            value=held(name),
            least=least,
            most=most,
            step=step,
            unset=unset,
            slider=SLIDERS.get(name),
        )

    return (
        Select(name="workload", label="Train", choices=(), groups=workload_groups(), value=held("workload")),
        Select(
            name="accelerator", label="On", choices=(), groups=machine_groups(), value=held("accelerator")
        ),
        Select(name="objective", label="What counts", choices=OBJECTIVES, value=held("objective")),
        number("most", "Accelerators, at most", (1, MOST_ACCELERATORS), whole=True),
        More(
            name="more",
            label="Limits, money and more",
            fields=(
                number("deadline", "Deadline, hours", (0.001, 1e6), unset="none"),
                number("budget", "Budget, USD", (0.01, 1e12), unset="none"),
                number("price", "USD an accelerator-hour", (0.001, 1e4), unset="price table"),
                Select(name="terms", label="Rented", choices=TERMS, value=held("terms")),
                number("global_batch", "Global batch, samples", (1, 1e9), unset="chosen", whole=True),
                Select(name="precision", label="Precision", choices=PRECISIONS, value=held("precision")),
                number("tokens", "Tokens to train on", (1, 1e15), unset="to the target"),
                Select(name="region", label="Electricity of", choices=regions(), value=held("region")),
                Select(
                    name="other",
                    label="Compared with",
                    choices=(Choice(value="", label="nothing else"),),
                    groups=machine_groups(),
                    value=held("other"),
                ),
                *more,
            ),
        ),
    )
