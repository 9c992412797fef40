"""Which calibration serves a question: by the chip's maker and the kind of model, never by the chip itself.

One calibration for all chips of a maker, so that what one chip is said to do better than another comes from
their stated facts alone. Measured in docs/experiments/0025.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.advice.validation.profiles import Profile, profile
from equipoise.spec.hardware import Kind
from equipoise.spec.workload import Workload

Architecture: TypeAlias = Literal["dense transformer", "mixture of experts", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRule:
    """For all chips of a vendor and kind: the profile that serves some architectures, and why that one."""

    vendor: str
    kind: Kind
    architectures: tuple[Architecture, ...]
    profile: str
    reason: str


_PLURALS: Mapping[Architecture, str] = {
    "dense transformer": "all dense transformers",
    "mixture of experts": "all mixtures of experts",
    "other": "all models that are no transformers",
}
# Everything that no rule names is estimated with the medians of the priors.
RULES: tuple[CalibrationRule, ...] = (
    CalibrationRule(
        vendor="NVIDIA",
        kind="gpu",
        architectures=("dense transformer", "mixture of experts"),
        profile="blackwell-bridge",
        # Over 12 files, each left out of the fit, the mean of the files' median errors is 13 %, and 38 % at
        # most; 18 to 33 % and 47 to 141 % for the other profiles, the priors and a fit to all files:
        # docs/experiments/0025.
        reason="of those tried, the one with the smallest error on NVIDIA measurements that were held out",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationChoice:
    """The profile to use, or None for the priors, and what it serves, in words."""

    profile: Profile | None
    words: str


def architecture(about: Workload) -> Architecture:
    """What kind of model a workload trains, as calibrations tell them apart."""
    if about.transformer is None:
        return "other"
    return "mixture of experts" if about.transformer.num_expert_blocks > 0 else "dense transformer"


def calibration_choice(
    vendor: str, kind: Kind, architecture: Architecture, *, name: str | None = None
) -> CalibrationChoice:
    """The calibration for all chips of a vendor and kind, and one kind of model.

    name: of a profile, which then serves whatever is asked.
    Raises SpecError with the names there are.

    >>> calibration_choice("NVIDIA", "gpu", "dense transformer").profile.name
    'blackwell-bridge'
    >>> calibration_choice("Google", "tpu", "dense transformer").profile is None
    True
    """
    if name is not None:
        return CalibrationChoice(profile=profile(name), words="asked for by name, and used for every chip")
    for rule in RULES:
        if (rule.vendor, rule.kind) == (vendor, kind) and architecture in rule.architectures:
            return CalibrationChoice(
                profile=profile(rule.profile), words=f"{_serves(vendor, kind, architecture)}: {rule.reason}"
            )
    return CalibrationChoice(profile=None, words=_serves(vendor, kind, architecture))


def _serves(vendor: str, kind: Kind, architecture: Architecture) -> str:
    return f"used alike for every {vendor} {kind.upper()} and {_PLURALS[architecture]}"
