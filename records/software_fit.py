"""Parameters of the performance model by software: a mixed-effects fit to all measured steps.

A parameter is the sum of a common value and random effects of the family, the software and the source.
"""

import os
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2s
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtrtri
from step_table import COLLECTED, is_limited, source_of

import equipoise
from equipoise.calibration.accuracy import time_errors
from equipoise.calibration.profiles import EXPERTS_LOG_SD, ProfileRecord
from equipoise.calibration.published import PublishedRow, model_kind_of, nodes_of
from equipoise.calibration.published.executions import digest_of, read_executions, software_of
from equipoise.calibration.step_rows import StepRows, refusal, step_rows
from equipoise.files import written
from equipoise.intervals import DEVIATE, LEVEL
from equipoise.perfmodel.calibrate import log_times
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.strategy import SOFTWARE_NAMES, software

Floats: TypeAlias = NDArray[np.float64]

_CACHE = Path(__file__).parents[1] / ".cache"

# Files with training steps. Those of collectives, matrix products and whole trainings have none, and the
# tables of DeepLearningExamples do not state what they count.
FILE_NAMES: tuple[str, ...] = (
    "bigscience_bloom_a100.csv",
    "bigscience_v100.csv",
    "korthikanti_table5.csv",
    "lambda_gpus_v0.csv",
    "lambda_gpus_v1v2.csv",
    "maxtext_tpu.csv",
    "megatron_bridge_nemo.csv",
    "megatron_lm_h100_scaling.csv",
    "megatron_sc21_mtnlg.csv",
    "mpt_llm_foundry.csv",
    "nemo_long_sequence.csv",
    "nvidia_dgxc_recipes.csv",
    "torchao_float8.csv",
    "torchtitan.csv",
    "vtrain_multi.csv",
    "vtrain_single.csv",
)
# Standard deviations of the random effects on parameters, in units of the prior sd: of all software (from the
# prior medians), of a family, of one software, and of one source. Chosen by the likelihood of left-out
# sources: docs/experiments/0028 and 0054. LOCAL_SD: of a source, for parameters local to a campaign.
ALL_SD, FAMILY_SD, SOFTWARE_SD, SOURCE_SD = 0.45, 0.35, 0.75, 0.48
LOCAL_SD = 0.2
# Standard deviations of log times not explained by parameters: of a source, a kind of model, a model and a
# chip in a source, a cluster of nearly equal executions, and one execution.
LOCAL_LOG_SD: Mapping[str, float] = {
    "source": 0.04,
    "kind": 0.02,
    "model": 0.03,
    "chip": 0.06,
    "cluster": 0.065,
    "execution": 0.05,
}
# Models of a source whose leave-one-out residual exceeds this are down-weighted.
_ROBUST_LOG_SD = 0.2
# Widening of a source's spread: largest factor per pass, largest squared residual over variance that is
# counted, number of pseudo-rows with the stated variance, and number of passes with widening.
_MAX_WIDENING, _MAX_SQUARE, _NUM_PRIOR_ROWS = 4.0, 25.0, 6
_NUM_WIDENING_PASSES = 2
_MAX_UNITS = 3.0
_BELOW_LARGEST = 0.999
_JITTER = 1e-8  # added to a covariance, so that it stays positive definite despite rounding
_NUM_PASSES = 4
_DAMPING = 0.7
# Parameters of memory do not affect times.
_MEMORY_PARAMETERS = ("fixed_bytes", "communicator_bytes", "activation_slack", "reserved_slack")
_FITTED_PRIORS = tuple(each for each in PRIORS if each.name not in _MEMORY_PARAMETERS)
_NAMES = tuple(each.name for each in _FITTED_PRIORS)
_PRIOR_LOG_SD = np.array([each.log_sd for each in _FITTED_PRIORS])
_LOG_MEDIAN = np.log([each.median for each in _FITTED_PRIORS])
_IS_LOCAL = np.array([each.local for each in _FITTED_PRIORS])
_LOG_LARGEST = np.log([each.largest for each in _FITTED_PRIORS])


class RowGroups(Struct, frozen=True, kw_only=True):
    """Random-effect groups and noise of rows; every array of shape (n_rows,).

    resolution: sd of the log time due to rounding in the source. spread: scale of unexplained effects, from
    `Software.spread` and, for mixtures of experts, EXPERTS_LOG_SD. effects: group index by name of
    LOCAL_LOG_SD, except "execution".
    """

    resolution: Floats
    spread: Floats
    software: NDArray[np.str_]
    family: NDArray[np.str_]
    effects: Mapping[str, NDArray[np.intp]]

    def taken(self, indices: NDArray[np.intp]) -> "RowGroups":
        """The rows at these indices."""
        return RowGroups(
            resolution=self.resolution[indices],
            spread=self.spread[indices],
            software=self.software[indices],
            family=self.family[indices],
            effects={name: groups[indices] for name, groups in self.effects.items()},
        )


class SoftwareRows(Struct, frozen=True, kw_only=True):
    """Measured steps, one per cluster. log_s: logarithms of the measured seconds, (n_rows,)."""

    arrays: StepRows
    log_s: Floats
    groups: RowGroups

    def taken(self, indices: NDArray[np.intp]) -> "SoftwareRows":
        """The rows at these indices."""
        return SoftwareRows(
            arrays=self.arrays.taken(indices),
            log_s=self.log_s[indices],
            groups=self.groups.taken(indices),
        )


def fitting_rows(rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
    """The steps of known software among rows of executions: one per cluster, independent of row order."""
    one: dict[int, PublishedRow] = {}
    for row in rows:
        if row.kind == "step" and refusal(row) is None and software_of(row) is not None:
            one[row.cluster] = min(one.get(row.cluster, row), row, key=digest_of)
    return tuple(one.values())


def software_rows(rows: Sequence[PublishedRow]) -> SoftwareRows:
    """Rows as arrays. rows: from `fitting_rows`, at least one."""
    named = [found for row in rows if (found := software_of(row)) is not None]
    campaigns = [(source_of(row), each.name) for row, each in zip(rows, named, strict=True)]
    kinds = [model_kind_of(None if row.model is None else row.model.transformer) for row in rows]
    has_experts = np.array(kinds) == "experts"
    return SoftwareRows(
        arrays=step_rows(rows),
        log_s=np.log([row.seconds for row in rows if row.seconds is not None]),
        groups=RowGroups(
            resolution=np.array([row.resolution for row in rows]),
            spread=np.hypot(
                np.array([each.spread for each in named]), has_experts * EXPERTS_LOG_SD / local_log_sd(1.0)
            ),
            software=np.array([each.name for each in named]),
            family=np.array([each.family for each in named]),
            effects={
                "source": _group_indices(campaigns),
                "kind": _group_indices([*zip(campaigns, kinds, strict=True)]),
                "model": _group_indices([(source_of(row), _model(row)) for row in rows]),
                "chip": _group_indices([(source_of(row), *_chip(row)) for row in rows]),
                "cluster": _group_indices([row.cluster for row in rows]),
            },
        ),
    )


def _group_indices(groups: Sequence[Hashable]) -> NDArray[np.intp]:
    order = {each: at for at, each in enumerate(dict.fromkeys(groups))}
    return np.array([order[each] for each in groups], dtype=np.intp)


def _model(row: PublishedRow) -> Hashable:
    if row.model is None:
        return row.workload
    if row.model.known is not None:
        return row.model.known.slug
    return None if row.model.transformer is None else row.model.transformer.hidden


def _chip(row: PublishedRow) -> tuple[str, str]:
    nodes = nodes_of(row)
    assert nodes is not None
    assert row.strategy is not None
    return nodes.accelerator.slug, row.strategy.precision


# Parameters by software: deviations from the prior medians in units of the prior sd, (n_names,).
_Units: TypeAlias = Mapping[str, Floats]


class SoftwareFit(Struct, frozen=True, kw_only=True):
    """Posterior of the parameters by software, for a new source.

    units: posterior mean by software, in units of the prior sd. covariance: of the same, (n_names, n_names).
    """

    units: _Units
    covariance: Mapping[str, NDArray[np.float64]]

    def parameters(self, name: str) -> Parameters:
        """Posterior median of a software's parameters."""
        return parameters_at(self.units[name])

    def log_sd(self, name: str, rows: SoftwareRows) -> Floats:
        """Predictive sd of the logarithm of every row's time, (n_rows,). rows: of that software."""
        logs = np.tile(_log_values(self.units[name]), (len(rows.log_s), 1))
        _, slopes = _log_times(rows.arrays, logs)
        variance = np.einsum("ij,jk,ik->i", slopes, self.covariance[name], slopes)
        return np.asarray(np.hypot(np.sqrt(np.maximum(variance, 0.0)), local_log_sd(rows.groups.spread)))


def local_log_sd(spread: Floats | float) -> Floats:
    """Sd of the log times of a new source not explained by parameters. spread: see `RowGroups`."""
    return np.asarray(spread * np.sqrt(sum(each**2 for each in LOCAL_LOG_SD.values())))


def parameters_at(units: Floats) -> Parameters:
    """The parameters at these deviations from the prior medians, in units of the prior sd."""
    return Parameters().changed(dict(zip(_NAMES, np.exp(_log_values(units)).tolist(), strict=True)))


def _log_values(units: Floats) -> Floats:
    """Logarithms of the parameters at these deviations, in units of the prior sd: (..., n_names)."""
    logs = _LOG_MEDIAN + units * _PRIOR_LOG_SD
    return np.asarray(np.minimum(logs, _LOG_LARGEST + np.log(_BELOW_LARGEST)))


def _log_times(arrays: StepRows, logs: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Log predicted times, (n_rows,), and derivatives per prior sd of each parameter, (n_rows, n_names).

    logs: log parameters of every row, (n_rows, n_names).
    """
    values = dict(zip(_NAMES, np.exp(logs).T, strict=True))
    log_s, slopes = log_times(arrays.step_s, Parameters(), values)
    return log_s, np.asarray(slopes.T * _PRIOR_LOG_SD)


def fit_software(rows: SoftwareRows, names: Sequence[str], *, start: _Units | None = None) -> SoftwareFit:
    """The parameters of some software, fitted to all rows.

    names: of software; rows may include other software, and need not include all. start: initial values.
    Assumes log times are linear in log parameters near the fit, which a few passes of linearisation find.
    Source: linear mixed effects (Laird and Ware 1982); best linear unbiased prediction, with the covariance
    implied by the random effects.
    """
    units = {name: _prior_mean(name) for name in (*names, *np.unique(rows.groups.software).tolist())}
    units |= {} if start is None else dict(start)
    for number in range(_NUM_PASSES):
        if number >= _NUM_PASSES - _NUM_WIDENING_PASSES:
            slopes, target = _linearised(rows, units)
            groups = with_source_spread(rows.groups, slopes, target, is_local=_IS_LOCAL)
            rows = replace(rows, groups=groups)
        found = _linearised_posterior(rows, units, names=[*units]).units
        for name, each in found.items():
            mean = _prior_mean(name)
            damped = (1 - _DAMPING) * units[name] + _DAMPING * each
            units[name] = np.clip(damped, mean - _MAX_UNITS, mean + _MAX_UNITS)
    final = _linearised_posterior(rows, units, names=names)
    return SoftwareFit(units={name: units[name] for name in names}, covariance=final.covariance)


def _linearised_posterior(rows: SoftwareRows, at: _Units, *, names: Sequence[str]) -> SoftwareFit:
    """The posterior with log times linearised about the parameters `at`."""
    slopes, target = _linearised(rows, at)
    found = posterior(rows.groups, slopes, target, names=names, is_local=_IS_LOCAL)
    return replace(found, units={name: _prior_mean(name) + each for name, each in found.units.items()})


def posterior(
    groups: RowGroups,
    slopes: NDArray[np.float64],
    target: Floats,
    *,
    names: Sequence[str],
    is_local: NDArray[np.bool_],
) -> SoftwareFit:
    """Posterior of some software's parameters for a new source, as deviations from the prior mean.

    slopes: derivative of each row's log time by each parameter, (n_rows, n_parameters). target: log times
    less those at the prior mean, (n_rows,). is_local: whether a parameter varies by source only,
    (n_parameters,).
    Source: best linear unbiased prediction of random effects (Henderson 1975), by their covariance.
    """
    shared = slopes * ~is_local
    own_sd = np.where(is_local, LOCAL_SD, SOURCE_SD)
    covariance = _row_covariance(groups, slopes, is_local)
    outlier_variance = _outlier_variance(covariance, target, groups.effects["model"])
    lower = np.linalg.cholesky(covariance + np.diag(outlier_variance))
    # Whitening by the Cholesky factor, for the target and all software at once.
    columns = np.hstack(
        [target[:, None], *(shared * _covariance_with_rows(groups, name)[:, None] for name in names)]
    )
    whitened = solve_triangular(lower, columns, lower=True, check_finite=False)
    prior = np.diag(own_sd**2 + ~is_local * (ALL_SD**2 + FAMILY_SD**2 + SOFTWARE_SD**2))
    parts = dict(zip(names, np.split(whitened[:, 1:], len(names), axis=1), strict=True))
    return SoftwareFit(
        units={name: part.T @ whitened[:, 0] for name, part in parts.items()},
        covariance={name: prior - part.T @ part for name, part in parts.items()},
    )


def _row_covariance(
    groups: RowGroups, slopes: NDArray[np.float64], is_local: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Covariance of the rows' log times, including noise: (n_rows, n_rows)."""
    own_sd = np.where(is_local, LOCAL_SD, SOURCE_SD)
    covariance = _shared_covariance(groups, slopes * ~is_local) + _source_covariance(groups, slopes * own_sd)
    covariance[np.diag_indices_from(covariance)] += (
        groups.spread * LOCAL_LOG_SD["execution"]
    ) ** 2 + groups.resolution**2
    return covariance


def with_source_spread(
    groups: RowGroups,
    slopes: NDArray[np.float64],
    target: Floats,
    *,
    is_local: NDArray[np.bool_],
) -> RowGroups:
    """The groups with wider spread for sources whose leave-one-source-out residuals exceed their stated sd.

    slopes, target, is_local: as in `posterior`. Sources with smaller residuals keep their spread.
    Assumes a source's deviation scales with the predictive sd of its rows; the scale is estimated from its
    residuals and _NUM_PRIOR_ROWS pseudo-rows with the stated variance.
    Source: scale mixtures of normal effects, by their expected squares (Lange, Little and Taylor 1989).
    """
    covariance = _row_covariance(groups, slopes, is_local)
    outlier_variance = _outlier_variance(covariance, target, groups.effects["model"])
    spread = groups.spread.copy()
    noisy = covariance + np.diag(outlier_variance)
    for mine, residuals, residual_covariance in _leave_group_out(noisy, target, groups.effects["source"]):
        variance = np.diag(residual_covariance) - outlier_variance[mine]
        squares = np.minimum(residuals**2 / variance, _MAX_SQUARE)
        widening = np.sqrt((squares.sum() + _NUM_PRIOR_ROWS) / (len(mine) + _NUM_PRIOR_ROWS))
        spread[mine] *= np.clip(widening, 1.0, _MAX_WIDENING)
    return replace(groups, spread=spread)


def _leave_group_out(
    covariance: NDArray[np.float64], target: Floats, groups: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Floats, NDArray[np.float64]]]:
    """Yield, for each group, its row indices, its leave-one-group-out residuals, and their covariance.

    Source: leave-out residuals from the inverse covariance (Rasmussen and Williams 2006, section 5.4.2).
    """
    # Only the groups' diagonal blocks of the inverse, root.T @ root, are computed.
    root, _ = dtrtri(np.linalg.cholesky(covariance), lower=1)
    weighted = root.T @ (root @ target)
    order = np.argsort(groups, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        columns = root[mine.min() :, mine]
        residual_covariance = np.linalg.inv(columns.T @ columns)
        yield mine, residual_covariance @ weighted[mine], residual_covariance


def _outlier_variance(
    covariance: NDArray[np.float64], target: Floats, groups: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Extra noise variance of rows whose group has large leave-one-group-out residuals: (n_rows,).

    groups: models of one source. Groups rather than rows are left out, because all rows of a faulty series of
    measurements may agree with each other.
    """
    found = np.zeros(len(target))
    for mine, residuals, _ in _leave_group_out(covariance, target, groups):
        found[mine] = np.maximum(0.0, residuals**2 - _ROBUST_LOG_SD**2)
    return found


def _linearised(rows: SoftwareRows, at: _Units) -> tuple[NDArray[np.float64], Floats]:
    """Derivatives of log times at the parameters `at`, (n_rows, n_names), and the target for `posterior`.

    The target is log(measured / predicted) at the prior mean, by linear extrapolation from `at`: (n_rows,).
    """
    present, of_row = np.unique(rows.groups.software, return_inverse=True)
    logs = _log_values(np.stack([at[str(name)] for name in present]))
    moved = (logs - _LOG_MEDIAN) / _PRIOR_LOG_SD - np.stack([_prior_mean(str(name)) for name in present])
    log_s, slopes = _log_times(rows.arrays, logs[of_row])
    return slopes, rows.log_s - log_s + (slopes * moved[of_row]).sum(axis=1)


def _prior_mean(name: str) -> Floats:
    """Prior mean of a software's parameters, in units of the prior sd: (n_names,)."""
    medians = dict(software(name).medians)
    logs = np.log([medians.get(each.name, each.median) for each in _FITTED_PRIORS])
    return np.asarray((logs - _LOG_MEDIAN) / _PRIOR_LOG_SD)


def _same_group(groups: NDArray[Any]) -> NDArray[np.float64]:
    _, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(numbers[:, None] == numbers[None, :], dtype=float)


def _shared_covariance(groups: RowGroups, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of rows due to parameters of all software, of families and of software: (n_rows, n_rows)."""
    shared = (
        ALL_SD**2 + FAMILY_SD**2 * _same_group(groups.family) + SOFTWARE_SD**2 * _same_group(groups.software)
    )
    return np.asarray(shared * (slopes @ slopes.T))


def _source_covariance(groups: RowGroups, own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of rows due to effects of their source, on parameters and otherwise: (n_rows, n_rows).

    own: slopes times the sd of a source's parameters.
    """
    found = _same_group(groups.effects["source"]) * (own @ own.T)
    spread = np.outer(groups.spread, groups.spread)
    for name, numbers in groups.effects.items():
        found += LOCAL_LOG_SD[name] ** 2 * spread * _same_group(numbers)
    return np.asarray(found)


def _covariance_with_rows(groups: RowGroups, name: str) -> Floats:
    """Prior covariance of a software's parameter, for a new source, with the same parameter of every row."""
    family = software(name).family
    shared = ALL_SD**2 + FAMILY_SD**2 * (groups.family == family)
    return np.asarray(shared + SOFTWARE_SD**2 * (groups.software == name))


class HeldOutSteps(Struct, frozen=True, kw_only=True):
    """Rows predicted by fits without their fold: log(measured / predicted), and the predictive sd of that."""

    rows: tuple[PublishedRow, ...]
    log_ratio: Floats
    log_sd: Floats


def held_out_steps(rows: Sequence[PublishedRow], fold_of: Callable[[PublishedRow], Hashable]) -> HeldOutSteps:
    """Cross-validated predictions of all rows, from fits to the other folds' rows on known machines.

    rows: from `fitting_rows`. fold_of: the fold of a row, such as `source_of`.
    Results are cached in .cache by rows, code and tables, because they take minutes.
    """
    arrays, fitted = software_rows(rows), _on_known_machines(rows)
    folds = _group_indices([fold_of(row) for row in rows])
    cached = _CACHE / f"held_out_{_digest((arrays, fitted, folds))}.npy"
    if cached.is_file():
        log_ratio, log_sd = np.load(cached, allow_pickle=False)
    else:
        log_ratio, log_sd = np.empty((2, len(rows)))
        some = [(arrays, fitted, folds, fold) for fold in range(int(folds.max()) + 1)]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            for out, ratios, widths in pool.map(_held_out, some):
                log_ratio[out], log_sd[out] = ratios, widths
        cached.parent.mkdir(exist_ok=True)
        with written(cached) as file:
            np.save(file, (log_ratio, log_sd))
    return HeldOutSteps(rows=tuple(rows), log_ratio=log_ratio, log_sd=log_sd)


def _held_out(
    fold: tuple[SoftwareRows, NDArray[np.bool_], NDArray[np.intp], int],
) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Row indices of one fold, and their log_ratio and log_sd as in `HeldOutSteps`.

    fold: all rows, which of them may be used in fits, the fold of each, and the index of the fold left out.
    """
    arrays, fitted, folds, number = fold
    out = np.flatnonzero(folds == number)
    tested = arrays.taken(out)
    names = np.unique(tested.groups.software).tolist()
    found = fit_software(arrays.taken(np.flatnonzero(fitted & (folds != number))), names)
    log_ratio, log_sd = np.empty((2, len(out)))
    for name in names:
        mine = np.flatnonzero(tested.groups.software == name)
        some = tested.taken(mine)
        log_ratio[mine] = some.log_s - np.log(some.arrays.step_s(found.parameters(name)))
        log_sd[mine] = found.log_sd(name, some)
    return out, log_ratio, log_sd


def _digest(arguments: object) -> str:
    """Digest of the arguments, and of the code and tables on which results depend."""
    package = Path(equipoise.__file__).parent
    model = [
        *package.glob("perfmodel/*.py"),
        *package.glob("perfmodel/*.toml"),
        package / "calibration/step_rows.py",
        package / "spec/software.toml",
    ]
    texts = (path.read_bytes() for path in (Path(__file__), *sorted(model)))
    return blake2s(b"".join((pickle.dumps(arguments), *texts)), digest_size=10).hexdigest()


def _on_known_machines(rows: Sequence[PublishedRow]) -> NDArray[np.bool_]:
    """Which rows are used in fits: not those of chips under a power limit that the source does not state.

    Source: torchtitan, Llama 3 8B on B200, one sample of 8,192 tokens: 12,211 tokens/s (pull request 1196),
    8,308 on cards that pytorch/ao calls power limited.
    """
    return np.array([not is_limited(row.hardware) for row in rows])


def software_document(directory: Path) -> dict[str, Any]:
    """The shipped parameters of every software, fitted to measurements in a directory and in COLLECTED."""
    rows = fitting_rows(read_executions([*(directory / name for name in FILE_NAMES), *COLLECTED]))
    held_out = held_out_steps(rows, source_of)
    fitted = [row for row, is_known in zip(rows, _on_known_machines(rows), strict=True) if is_known]
    arrays = software_rows(fitted)
    fit = fit_software(arrays, np.unique(arrays.groups.software).tolist())
    return {
        "row_digests": [digest_of(row) for row in fitted],
        "software": [_document(name, fit, held_out) for name in SOFTWARE_NAMES if name in fit.units],
    }


def _document(name: str, fit: SoftwareFit, held_out: HeldOutSteps) -> dict[str, Any]:
    parameters = fit.parameters(name)
    lower = np.linalg.cholesky(fit.covariance[name] + _JITTER * np.eye(len(_NAMES)))
    log_half_width = float(DEVIATE * local_log_sd(np.array(software(name).spread)))
    return {
        "name": name,
        "values": {each: float(f"{parameters.value(each):.5g}") for each in _NAMES},
        "cholesky": [
            " ".join(f"{value:.3f}" for value in row[: at + 1]) for at, row in enumerate(lower.tolist())
        ],
        "log_half_width": log_half_width,
        "record": to_builtins(_record(name, held_out)),
    }


def _record(name: str, held_out: HeldOutSteps) -> ProfileRecord:
    """Accuracy of one software's predictions with whole sources left out."""
    mine = np.flatnonzero(
        [(each := software_of(row)) is not None and each.name == name for row in held_out.rows]
    )
    measured_s = np.array([held_out.rows[at].seconds for at in mine], dtype=float)
    predicted_s = measured_s / np.exp(held_out.log_ratio[mine])
    half = DEVIATE * held_out.log_sd[mine]
    errors = time_errors(
        measured_s=measured_s,
        predicted_s=predicted_s,
        low_s=predicted_s * np.exp(-half),
        high_s=predicted_s * np.exp(half),
        clusters=np.array([held_out.rows[at].cluster for at in mine], dtype=np.intp),
    )
    of_record = {"split": "leave-source-out", "level": LEVEL, "log_half_width": float(np.median(half))}
    return convert({**to_builtins(errors), **of_record}, ProfileRecord)
