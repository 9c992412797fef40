"""Shipped profiles: parameters by software with their errors, and the choice of a calibrated model."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

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
DEVIATES: Final = "deviates.json"


class ProfileRecord(Struct, frozen=True, kw_only=True):
    """Errors of predictions of held-out rows: |predicted time / measured time - 1|, by configuration.

    log_half_width: half-width of the interval of log time at `level`, from the same errors.
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
    """Parameters of one software, fitted jointly with all software, and its leave-one-source-out errors.

    name: of the software. values: parameters for a new source, by name. cholesky: Cholesky factor of the
    covariance of their logarithms, in standard deviations of their priors: the lower triangle, one row per
    value with numbers separated by blanks. row_digests: of the rows of all software.
    """

    name: str
    values: Mapping[str, float]
    cholesky: tuple[str, ...]
    log_half_width: float
    record: ProfileRecord
    row_digests: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Reject parameters that the model does not have, because they would silently be ignored."""
        strange = sorted(self.values.keys() - {each.name for each in PRIORS})
        if strange:
            raise ValueError(f"parameters {', '.join(strange)} of profile {self.name!r} are not the model's")

    @property
    def parameters(self) -> Parameters:
        """The central parameters of the software."""
        return Parameters().changed(self.values)

    @property
    def fitted(self) -> tuple[Prior, ...]:
        """The priors of the fitted values, in the order of `log_factor`."""
        return tuple(each for each in PRIORS if each.name in self.values)

    @cached_property
    def log_factor(self) -> Numbers:
        """Cholesky factor of the covariance of the values' logarithms: (n_values, n_values)."""
        lower = np.zeros((len(self.values), len(self.values)))
        lower[np.tril_indices(len(lower))] = [float(each) for row in self.cholesky for each in row.split()]
        return np.asarray(lower * np.array([each.log_sd for each in self.fitted])[:, None])


class _MemoryErrors(Struct, frozen=True, kw_only=True):
    """Contents of MEMORY: standard deviation of log(stated memory / predicted memory).

    log_sd: overall, over sources counted once each; for one software, over its executions.
    """

    num_executions: int
    log_sd: float
    by_software: "Mapping[str, _MemoryErrors]" = {}


# Weight of the estimate from all sources, in executions of one software.
_MEMORY_PRIOR_WEIGHT: Final = 10


@cache
def memory_log_sd(software: str | None) -> float:
    """Standard deviation of log(memory / predicted memory) of a software; over all software if None.

    Assumes that a software errs like all sources until it has many more than _MEMORY_PRIOR_WEIGHT executions.
    Source: the mean of a variance and its prior, weighted by their numbers (Gelman et al. 2013, section 2.6).
    """
    found = shipped_record(MEMORY, _MemoryErrors, made_by="profiles")
    own = found.by_software.get(software or "")
    if own is None:
        return found.log_sd
    total = own.num_executions * own.log_sd**2 + _MEMORY_PRIOR_WEIGHT * found.log_sd**2
    return float(np.sqrt(total / (own.num_executions + _MEMORY_PRIOR_WEIGHT)))


class _Deviates(Struct, frozen=True, kw_only=True):
    """Contents of DEVIATES: standard normal deviates of the draws, by parameter, separated by blanks.

    of_values: for the fitted parameters of every software. of_priors: for half of the draws from the priors.
    They are shipped because the streams of NumPy's generators may differ between versions (NumPy Enhancement
    Proposal 19), and because loading these generators takes a fiftieth of an answer.
    """

    of_values: Mapping[str, str]
    of_priors: Mapping[str, str]


@cache
def _shipped_deviates() -> _Deviates:
    return shipped_record(DEVIATES, _Deviates, made_by="profiles")


def _deviates(columns: Mapping[str, str], priors: Sequence[Prior]) -> Numbers:
    """The deviates of some parameters: (n_draws, n_priors)."""
    return np.array([[float(each) for each in columns[prior.name].split()] for prior in priors]).T


class _Profiles(Struct, frozen=True, kw_only=True):
    """Contents of NAME."""

    row_digests: frozenset[str]
    software: tuple[Profile, ...]


@cache
def profiles() -> Mapping[str, Profile]:
    """The shipped parameters of every software. Raises DataError if their file is missing or invalid."""
    return read_profiles(NAME)


def read_profiles(path: str | Path) -> Mapping[str, Profile]:
    """The profiles of a file, by name. Raises DataError if it is missing or invalid."""
    found = shipped_record(path, _Profiles, made_by="profiles")
    return {each.name: replace(each, row_digests=found.row_digests) for each in found.software}


Architecture: TypeAlias = Literal["dense transformer", "mixture of experts", "other"]


# Which weights are trained. MLPerf's adapter benchmark is run by the vendors that write the chips' software.
TrainedPart: TypeAlias = Literal["all weights", "adapters of MLPerf's benchmark", "other adapters"]


class CalibrationRule(Struct, frozen=True, kw_only=True):
    """The software used to calibrate certain trainings on all chips of a vendor and kind, with the reason.

    vendor, kind: None for all chips except TPUs, which run other software.
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
# Cases without a rule use the medians of the priors.
RULES: tuple[CalibrationRule, ...] = (
    # Published steps of LoRA by software other than NeMo took 1.5 to 2 times as long as predicted for
    # Megatron-Core, and 1.1 to 1.5 times as long as for Hugging Face's; on RTX cards 1.5 times and 1.0 times:
    # docs/experiments/0061. 42 steps in 4 bits: errors of 11 to 16 % by source, and 11 to 23 %: 0048. 8 steps
    # of SDXL, a U-Net, by kohya's scripts took 1.7 to 3.7 times as long as by the priors, 0.8 to 1.4 as here.
    CalibrationRule(
        vendor=None,
        kind=None,
        architectures=get_args(Architecture),
        parts=("other adapters",),
        software="hf",
        # All vendors use the same software. With the priors, compiled code would be compared with eager code.
        reason="the software of most published trainings of adapters",
    ),
    CalibrationRule(
        vendor="NVIDIA",
        kind="gpu",
        architectures=_TRANSFORMERS,
        parts=("all weights", "adapters of MLPerf's benchmark"),
        software="megatron_core",
        # Errors on published trainings of transformers are 16 %, on pretrainings 16 %; fitted only to
        # Megatron-Bridge's own steps 20 and 18 %. For convolutional networks they are 20 % with `ngc` and
        # 15 % with the priors: docs/experiments/0041.
        reason="the software of most of their published steps and records",
    ),
    CalibrationRule(
        vendor=_TPU_VENDOR,
        kind="tpu",
        architectures=("dense transformer",),
        parts=get_args(TrainedPart),
        software="jax_tpu",
        # Median errors on GPT-3 and BERT on TPU v3 to v6e, which were not fitted: 8 and 19 % (with the
        # priors: 6 and 18 %), on v6e 11 % (23 %): docs/experiments/0035.
        reason="the only software measured on TPUs",
    ),
)


def architecture(about: Workload) -> Architecture:
    """The architecture of a workload's model, as calibrations distinguish it."""
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
# Additional standard deviation of log step time between sources for mixtures of experts, compared with dense
# models: kernels and exchange of experts became twice as fast within a year of one software's releases. It is
# independent of the software's spread, so variances add. Leave-one-source-out, each source counted once:
# docs/experiments/0056, 0075 and 0076.
EXPERTS_LOG_SD: Final = 0.34


class CalibratedModel(Struct, frozen=True, kw_only=True, dict=True):
    """Parameters, equally likely draws of them, the name of their calibration, and its errors.

    log_half_width: half-width of the interval of log step time at LEVEL, from errors on held-out data, in
    addition to the spread of the draws; 0 if nothing was held out. links: the user's own timed collectives,
    which parameters and draws include; None if none were given.
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
        """All draws stacked: each parameter is an array with one element per draw."""
        return stacked(self.draws)

    @property
    def basis(self) -> str:
        """Short description of the calibration."""
        return "priors only" if self.calibration == PRIORS_ONLY else f"calibration {self.calibration}"


def software_for(chip: Accelerator, workload: Workload, stated: str | None = None) -> str | None:
    """The software whose measurements calibrate the model for a workload on a chip; None for the priors.

    stated: a software, or PRIORS_ONLY; by default the one that RULES select.
    """
    if stated is not None:
        return None if stated == PRIORS_ONLY else stated
    rule = _rule(chip.vendor, chip.kind, architecture(workload), trained_part(workload))
    return None if rule is None else rule.software


def model_for(chip: Accelerator, workload: Workload, *, software: str | None = None) -> CalibratedModel:
    """The model to use for a workload on a chip.

    software: as `stated` in `software_for`. Raises SpecError for software that is unknown (listing the known
    names) or does not run on the chip.
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
    """The default model if no software is stated, with the reason in words."""
    rule = _rule(vendor, kind, of_model, part)
    found = prior_model() if rule is None else _software_model(rule.software, of_model)
    of_adapters = "" if part == "all weights" else f", with {part}"
    words = f"{found.words}; used for every {vendor} {kind.upper()} and {_PLURALS[of_model]}{of_adapters}"
    return replace(found, words=words if rule is None else f"{words}: {rule.reason}")


@cache
def prior_model() -> CalibratedModel:
    """The uncalibrated model: the medians of the priors, and draws from the priors."""
    return CalibratedModel(
        parameters=Parameters(),
        draws=_prior_draws(),
        log_half_width=0.0,
        calibration=PRIORS_ONLY,
        words="no calibration: the medians of the priors, with the range of the priors",
        record=None,
    )


def runs_on(software: str, chip: Accelerator) -> bool:
    """Whether a software runs on a chip. Raises SpecError, listing the known names, for unknown software."""
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
    """The model with a software's parameters, and draws from their posterior given all measured steps.

    Source: log-normal around the central values, with the covariance of the fit; records/software_fit.py.
    """
    found = profiles()[name]
    record = found.record
    deviates = _deviates(_shipped_deviates().of_values, found.fitted)
    middle = np.array([found.values[each.name] for each in found.fitted])
    return CalibratedModel(
        parameters=found.parameters,
        draws=_drawn(found.fitted, middle * np.exp(deviates @ found.log_factor.T)),
        log_half_width=math.hypot(
            found.log_half_width, DEVIATE * EXPERTS_LOG_SD * (of_model == "mixture of experts")
        ),
        calibration=found.name,
        words=f"fitted to all software, for {software_named(name).title}; whole sources held out",
        record=_held_out(record),
    )


def _prior_draws() -> tuple[Parameters, ...]:
    """Draws of the parameters from their independent log-normal priors."""
    # The second half mirrors the first (antithetic draws), so that the centre of an estimate is that of the
    # medians.
    half = _deviates(_shipped_deviates().of_priors, PRIORS)
    deviates = np.concatenate([half, -half])
    medians = np.array([each.median for each in PRIORS])
    spreads = np.array([each.log_sd for each in PRIORS])
    return _drawn(PRIORS, medians * np.exp(spreads * deviates))


def _drawn(priors: Sequence[Prior], values: Numbers) -> tuple[Parameters, ...]:
    """One set of parameters per row of values, limited to the largest that priors allow.

    values: (n_draws, n_priors).
    """
    names = [each.name for each in priors]
    rows = np.minimum(values, [each.largest for each in priors]).tolist()
    return tuple(Parameters().changed(dict(zip(names, each, strict=True))) for each in rows)


def with_links(model: CalibratedModel, given: "TimedCollectives | None", nodes: Cluster) -> CalibratedModel:
    """The model with link parameters from the user's timed collectives; unchanged if none are given.

    nodes: the cluster to plan for.
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
