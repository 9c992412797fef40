"""Profiles that ship: parameters by software, how wrong they were, which serves a question, as a model."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import HeldOutErrors
from equipoise.errors import SpecError
from equipoise.files import shipped_record
from equipoise.intervals import DEVIATE
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.parameters import PRIORS, Parameters, Prior, stacked
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator, Kind
from equipoise.spec.strategy import PRIORS_ONLY, SOFTWARE_NAMES
from equipoise.spec.strategy import software as software_named
from equipoise.spec.workload import Workload

if TYPE_CHECKING:
    from equipoise.calibration.user_collectives import TimedCollectives
    from equipoise.calibration.user_links import UserLinks

NAME = "software.json"
MEMORY: Final = "memory.json"


class ProfileRecord(Struct, frozen=True, kw_only=True):
    """How wrong predictions of held-out rows were: |predicted time / measured time - 1|, by configuration.

    log_half_width: of the interval at `level`, of the logarithm of a time, from the same errors.
    """

    split: str
    num_executions: int
    num_clusters: int
    mape: float
    median: float
    p90: float
    coverage: float
    level: float
    log_half_width: float


class Profile(Struct, frozen=True, kw_only=True, dict=True):
    """Parameters of one software, learnt from all software, and how wrong it was on sources left out.

    name: of the software. values: of a source that is new, by name. cholesky: of the covariance of their
    logarithms, in standard deviations of their priors, a row per value with blanks between its numbers: the
    lower triangle. row_digests: of the rows of all software.
    """

    name: str
    values: Mapping[str, float]
    cholesky: tuple[str, ...]
    log_half_width: float
    record: ProfileRecord
    row_digests: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse a parameter that the model no longer has: it would silently be without effect."""
        strange = sorted(self.values.keys() - {each.name for each in PRIORS})
        if strange:
            raise ValueError(f"parameters {', '.join(strange)} of profile {self.name!r} are not the model's")

    @property
    def parameters(self) -> Parameters:
        """The middle parameters of the software."""
        return Parameters().changed(self.values)

    @property
    def fitted(self) -> tuple[Prior, ...]:
        """The priors of the values, in the order of `log_factor`."""
        return tuple(each for each in PRIORS if each.name in self.values)

    @cached_property
    def log_factor(self) -> Numbers:
        """A square root of the covariance of the values' logarithms: (n_values, n_values)."""
        lower = np.zeros((len(self.values), len(self.values)))
        lower[np.tril_indices(len(lower))] = [float(each) for row in self.cholesky for each in row.split()]
        return np.asarray(lower * np.array([each.log_sd for each in self.fitted])[:, None])


class _MemoryErrors(Struct, frozen=True, kw_only=True):
    """What MEMORY holds: how far log(stated / predicted) memory goes, as a standard deviation.

    log_sd: of all, over sources, each counted once; of one software, over its executions.
    """

    num_executions: int
    log_sd: float
    by_software: "Mapping[str, _MemoryErrors]" = {}


# Executions of a software that weigh as much as what all sources show.
_MEMORY_PRIOR_WEIGHT: Final = 10


@cache
def memory_log_sd(software: str | None) -> float:
    """Standard deviation of log(memory / predicted memory) of a software; of any where None.

    Assumes that a software's errors are like all sources' until it has many more than _MEMORY_PRIOR_WEIGHT.
    Source: the mean of a variance and its prior, weighted by their numbers (Gelman et al. 2013, section 2.6).
    """
    found = shipped_record(MEMORY, _MemoryErrors, made_by="profiles")
    own = found.by_software.get(software or "")
    if own is None:
        return found.log_sd
    total = own.num_executions * own.log_sd**2 + _MEMORY_PRIOR_WEIGHT * found.log_sd**2
    return float(np.sqrt(total / (own.num_executions + _MEMORY_PRIOR_WEIGHT)))


class _Profiles(Struct, frozen=True, kw_only=True):
    """What NAME holds."""

    row_digests: frozenset[str]
    software: tuple[Profile, ...]


@cache
def profiles() -> Mapping[str, Profile]:
    """The parameters of every software that ship. Raises DataError where their file is missing or broken."""
    return read_profiles(NAME)


def read_profiles(path: str | Path) -> Mapping[str, Profile]:
    """The profiles of a file, by name. Raises DataError where it is missing or broken."""
    found = shipped_record(path, _Profiles, made_by="profiles")
    return {each.name: replace(each, row_digests=found.row_digests) for each in found.software}


Architecture: TypeAlias = Literal["dense transformer", "mixture of experts", "other"]


# Which weights are trained. MLPerf's benchmark of adapters is run by those who write software for its chips.
TrainedPart: TypeAlias = Literal["all weights", "adapters of MLPerf's benchmark", "other adapters"]


class CalibrationRule(Struct, frozen=True, kw_only=True):
    """For all chips of a vendor and kind: the software that serves some trainings, and why it does.

    vendor, kind: None for all chips but TPUs, on which software of their own runs.
    """

    vendor: str | None
    kind: Kind | None
    architectures: tuple[Architecture, ...]
    parts: tuple[TrainedPart, ...]
    software: str
    reason: str


_TPU_VENDOR = "Google"
_TRANSFORMERS: Final[tuple[Architecture, ...]] = ("dense transformer", "mixture of experts")
_PLURALS: Mapping[Architecture, str] = {
    "dense transformer": "all dense transformers",
    "mixture of experts": "all mixtures of experts",
    "other": "all models that are not transformers",
}
# Everything that no rule names is estimated with the medians of the priors.
RULES: tuple[CalibrationRule, ...] = (
    # Asked as users ask, published steps of LoRA by other software than NeMo's took 1.5 to 2 times as long
    # as advised for Megatron-Core, and 1.1 to 1.5 times as long as for Hugging Face's; on RTX cards 1.5 times
    # and as long: docs/experiments/0061. 42 steps in 4 bits: 11 to 16 % off by source, 11 to 23 %: 0048. Of
    # SDXL, a U-Net, 8 by kohya's scripts took 1.7 to 3.7 times as long as by the priors, 0.8 to 1.4 so.
    CalibrationRule(
        vendor=None,
        kind=None,
        architectures=get_args(Architecture),
        parts=("other adapters",),
        software="hf",
        # Makers are compared in the same code: by the priors alone a compiler's would stand against eager.
        reason="the one that most published trainings of adapters ran",
    ),
    CalibrationRule(
        vendor="NVIDIA",
        kind="gpu",
        architectures=_TRANSFORMERS,
        parts=("all weights", "adapters of MLPerf's benchmark"),
        software="megatron_core",
        # Published trainings of transformers are planned 16 % off, pretrainings 16 %; 20 and 18 % where only
        # Megatron-Bridge's own steps were fitted, and convolutional networks 20 % by `ngc` where the priors
        # are 15 % off: docs/experiments/0041.
        reason="the one that most of their published steps and records ran",
    ),
    CalibrationRule(
        vendor=_TPU_VENDOR,
        kind="tpu",
        architectures=("dense transformer",),
        parts=get_args(TrainedPart),
        software="jax_tpu",
        # GPT-3 and BERT on TPU v3 to v6e, which it has not seen: 8 and 19 % off in the median (the priors: 6
        # and 18 %), on v6e 11 % (23 %): docs/experiments/0035.
        reason="the only software measured on TPUs",
    ),
)


def architecture(about: Workload) -> Architecture:
    """What kind of model a workload trains, as calibrations distinguish it."""
    if about.transformer is None:
        return "other"
    return "mixture of experts" if about.transformer.num_expert_blocks > 0 else "dense transformer"


def trained_part(about: Workload) -> TrainedPart:
    """Which weights a workload trains, as calibrations distinguish it."""
    if about.trained == "full":
        return "all weights"
    return "other adapters" if about.first_round is None else "adapters of MLPerf's benchmark"


def _rule(vendor: str, kind: Kind, architecture: Architecture, part: TrainedPart) -> CalibrationRule | None:
    kinds = {(vendor, kind)} if vendor == _TPU_VENDOR else {(vendor, kind), (None, None)}
    served = (each for each in RULES if (each.vendor, each.kind) in kinds)
    return next((each for each in served if architecture in each.architectures and part in each.parts), None)


USER_CALIBRATION = "your runs"
_NUM_DRAWS = 64
_SEED = 1
# How much steps of mixtures of experts differ between sources beside what those of dense models do, as the
# standard deviation of the logarithm: kernels and exchange of experts became twice as fast within a year of
# one software's releases. It is a reason of its own, and adds to that of the software in variance. Sources
# left out, each counted once: docs/experiments/0056, 0075 and 0076.
EXPERTS_LOG_SD: Final = 0.34


class CalibratedModel(Struct, frozen=True, kw_only=True, dict=True):
    """Parameters, draws of equally likely ones, the name of their calibration, and how wrong it was.

    log_half_width: half the width of a step's interval at LEVEL, of its logarithm, that errors on what was
    held out show; it comes on top of what the draws leave open. 0 where nothing was held out. links: the
    user's own timed collectives, which parameters and draws hold; None where none were given.
    """

    parameters: Parameters
    draws: tuple[Parameters, ...]
    log_half_width: float
    calibration: str
    words: str
    record: HeldOutErrors | None
    links: "UserLinks | None" = None

    @cached_property
    def drawn(self) -> Parameters:
        """All draws as one calibration, an element of each number a draw."""
        return stacked(self.draws)

    @property
    def basis(self) -> str:
        """What its times rest on, in two words."""
        return "priors only" if self.calibration == PRIORS_ONLY else f"calibration {self.calibration}"


def software_for(chip: Accelerator, workload: Workload, stated: str | None = None) -> str | None:
    """The software whose measurements calibrate the model of a workload on a chip; None for the priors.

    stated: a software, or PRIORS_ONLY; the usual one of the chip's maker unless given.
    """
    if stated is not None:
        return None if stated == PRIORS_ONLY else stated
    rule = _rule(chip.vendor, chip.kind, architecture(workload), trained_part(workload))
    return None if rule is None else rule.software


def model_for(chip: Accelerator, workload: Workload, *, software: str | None = None) -> CalibratedModel:
    """The model to use for a workload on a chip.

    software: as `software_for` takes it. Raises SpecError for software that does not run on the chip, or is
    not known, with the names there are.
    """
    if software is None:
        return _usual_model(chip.vendor, chip.kind, architecture(workload), trained_part(workload))
    if software == PRIORS_ONLY:
        return prior_model()
    if not runs_on(software, chip):
        others = ", ".join(each for each in SOFTWARE_NAMES if runs_on(each, chip))
        raise SpecError(f"software {software!r} does not run on {chip.title}; expected one of {others}")
    return _software_model(software, architecture(workload))


@lru_cache(maxsize=64)
def _usual_model(vendor: str, kind: Kind, of_model: Architecture, part: TrainedPart) -> CalibratedModel:
    """The model that serves where no software is stated, with the reason in words."""
    rule = _rule(vendor, kind, of_model, part)
    found = prior_model() if rule is None else _software_model(rule.software, of_model)
    of_adapters = "" if part == "all weights" else f" of which {part} are trained"
    words = f"{found.words}; used for every {vendor} {kind.upper()} and {_PLURALS[of_model]}{of_adapters}"
    return replace(found, words=words if rule is None else f"{words}: {rule.reason}")


@cache
def prior_model() -> CalibratedModel:
    """The model before any measurement: the medians of the priors, and draws from them."""
    return CalibratedModel(
        parameters=Parameters(),
        draws=_prior_draws(),
        log_half_width=0.0,
        calibration=PRIORS_ONLY,
        words="no calibration: the medians of the priors; the range comes from the priors",
        record=None,
    )


def runs_on(software: str, chip: Accelerator) -> bool:
    """Whether a software runs on a chip. Raises SpecError with the names there are."""
    return (software_named(software).vendor == _TPU_VENDOR) == (chip.vendor == _TPU_VENDOR)


def _held_out(record: ProfileRecord) -> HeldOutErrors:
    return HeldOutErrors(
        of=record.split,
        num_held_out=record.num_clusters,
        median_abs_error=record.median,
        p90_abs_error=record.p90,
        coverage=record.coverage,
    )


@lru_cache(maxsize=64)
def _software_model(name: str, of_model: Architecture) -> CalibratedModel:
    """The model with a software's parameters: draws as likely as all measured steps together leave them.

    Source: log-normal about the middle, with the covariance of the fit; records/software_fit.py.
    """
    found = profiles()[name]
    record = found.record
    deviates = np.random.default_rng(_SEED).standard_normal((_NUM_DRAWS, len(found.values)))
    middle = np.array([found.values[each.name] for each in found.fitted])
    return CalibratedModel(
        parameters=found.parameters,
        draws=_drawn(found.fitted, middle * np.exp(deviates @ found.log_factor.T)),
        log_half_width=math.hypot(
            found.log_half_width, DEVIATE * EXPERTS_LOG_SD * (of_model == "mixture of experts")
        ),
        calibration=found.name,
        words=f"fitted to all software, as {software_named(name).title} runs; sources held out whole",
        record=_held_out(record),
    )


def _prior_draws() -> tuple[Parameters, ...]:
    """Equally likely parameters before any measurement: log-normal, independent, each by its prior."""
    # A stream of each name's own: another parameter changes no draw of those that are there. Each half
    # mirrors the other, so that the middle of what is estimated is that of the medians.
    streams = [np.random.default_rng([_SEED, crc32(each.name.encode())]) for each in PRIORS]
    half = np.column_stack([each.standard_normal(_NUM_DRAWS // 2) for each in streams])
    deviates = np.concatenate([half, -half])
    medians = np.array([each.median for each in PRIORS])
    spreads = np.array([each.log_sd for each in PRIORS])
    return _drawn(PRIORS, medians * np.exp(spreads * deviates))


def _drawn(priors: Sequence[Prior], values: Numbers) -> tuple[Parameters, ...]:
    """Parameters of each row of values, none of which exceeds what its prior allows: (n_draws, n_priors)."""
    names = [each.name for each in priors]
    rows = np.minimum(values, [each.largest for each in priors]).tolist()
    return tuple(Parameters().changed(dict(zip(names, each, strict=True))) for each in rows)


def with_links(model: CalibratedModel, given: "TimedCollectives | None", nodes: Cluster) -> CalibratedModel:
    """The model with the user's own timed collectives in place of its links; as it is without any.

    nodes: the cluster that is planned on.
    """
    if given is None:
        return model
    from equipoise.calibration.user_links import user_links  # noqa: PLC0415 - only where collectives are given

    found = user_links(given, nodes, model.parameters.collective, [each.collective for each in model.draws])
    return replace(
        model,
        parameters=replace(model.parameters, collective=found.parameters),
        draws=tuple(
            replace(each, collective=own) for each, own in zip(model.draws, found.draws, strict=True)
        ),
        links=found,
    )
