"""Parameters of the performance model by the software that ran: random effects over all measured steps.

A parameter is that of all software, what the family and the software differ by, and what each source does.
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

# The files of training steps; those of collectives, matrix products and whole trainings hold none, and what
# DeepLearningExamples counts its tables do not say.
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
# How far apart parameters are, in standard deviations of their priors: of all software from the priors'
# medians, of a family and one software from those, and of one source from its software. Chosen for the
# likelihood of sources left out: docs/experiments/0028 and 0054. LOCAL_SD: of what is local to a campaign.
ALL_SD, FAMILY_SD, SOFTWARE_SD, SOURCE_SD = 0.45, 0.35, 0.75, 0.48
LOCAL_SD = 0.2
# What parameters do not explain, of the logarithm of a time: of a source, its kinds of model, its models and
# chips, a cluster of nearly equal executions, and one execution.
LOCAL_LOG_SD: Mapping[str, float] = {
    "source": 0.04,
    "kind": 0.02,
    "model": 0.03,
    "chip": 0.06,
    "cluster": 0.065,
    "execution": 0.05,
}
# Models of a source that are farther than this from what all other rows predict count ever less.
_ROBUST_LOG_SD = 0.2
# Of a whole source: the most by which its spread grows in a pass, the most that the square of one error over
# its variance counts, how many rows as far off as stated it is seen next to, and in how many passes.
_MOST_SPREAD, _MOST_SQUARE, _NUM_AS_STATED = 4.0, 25.0, 6
_NUM_SPREADS = 2
_MOST_UNITS = 3.0
_BELOW_LARGEST = 0.999
_JITTER = 1e-8  # of a covariance, so that rounding leaves it positive
_NUM_PASSES = 4
_DAMPING = 0.7
# Memory is no part of a time.
_OF_MEMORY = ("fixed_bytes", "communicator_bytes", "activation_slack", "reserved_slack")
_MOVED = tuple(each for each in PRIORS if each.name not in _OF_MEMORY)
_NAMES = tuple(each.name for each in _MOVED)
_PRIOR_LOG_SD = np.array([each.log_sd for each in _MOVED])
_LOG_MEDIAN = np.log([each.median for each in _MOVED])
_IS_LOCAL = np.array([each.local for each in _MOVED])
_LOG_LARGEST = np.log([each.largest for each in _MOVED])


class RowGroups(Struct, frozen=True, kw_only=True):
    """Which rows are alike; every array of shape (n_rows,).

    doubt: what the row itself leaves open of the logarithm of its time. spread: of its software, see
    `Software.spread`, with that of mixtures of experts where it trains one. effects: by name of
    LOCAL_LOG_SD but the last, numbers of groups.
    """

    doubt: Floats
    spread: Floats
    software: NDArray[np.str_]
    family: NDArray[np.str_]
    effects: Mapping[str, NDArray[np.intp]]

    def taken(self, indices: NDArray[np.intp]) -> "RowGroups":
        """The rows of some indices."""
        return RowGroups(
            doubt=self.doubt[indices],
            spread=self.spread[indices],
            software=self.software[indices],
            family=self.family[indices],
            effects={name: groups[indices] for name, groups in self.effects.items()},
        )


class SoftwareRows(Struct, frozen=True, kw_only=True):
    """Measured steps, one of each cluster. log_s: logarithms of the measured seconds, (n_rows,)."""

    arrays: StepRows
    log_s: Floats
    groups: RowGroups

    def taken(self, indices: NDArray[np.intp]) -> "SoftwareRows":
        """The rows of some indices."""
        return SoftwareRows(
            arrays=self.arrays.taken(indices),
            log_s=self.log_s[indices],
            groups=self.groups.taken(indices),
        )


def fitting_rows(rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
    """The rows of steps whose software is known, one of each cluster: whatever their order, the same one.

    rows: of executions.
    """
    one: dict[int, PublishedRow] = {}
    for row in rows:
        if row.kind == "step" and refusal(row) is None and software_of(row) is not None:
            one[row.cluster] = min(one.get(row.cluster, row), row, key=digest_of)
    return tuple(one.values())


def software_rows(rows: Sequence[PublishedRow]) -> SoftwareRows:
    """Rows as arrays. rows: as `fitting_rows` returned them, at least one."""
    named = [found for row in rows if (found := software_of(row)) is not None]
    campaigns = [(source_of(row), each.name) for row, each in zip(rows, named, strict=True)]
    kinds = [model_kind_of(None if row.model is None else row.model.transformer) for row in rows]
    has_experts = np.array(kinds) == "experts"
    return SoftwareRows(
        arrays=step_rows(rows),
        log_s=np.log([row.seconds for row in rows if row.seconds is not None]),
        groups=RowGroups(
            doubt=np.array([row.resolution for row in rows]),
            spread=np.hypot(
                np.array([each.spread for each in named]), has_experts * EXPERTS_LOG_SD / local_log_sd(1.0)
            ),
            software=np.array([each.name for each in named]),
            family=np.array([each.family for each in named]),
            effects={
                "source": _numbers(campaigns),
                "kind": _numbers([*zip(campaigns, kinds, strict=True)]),
                "model": _numbers([(source_of(row), _model(row)) for row in rows]),
                "chip": _numbers([(source_of(row), *_chip(row)) for row in rows]),
                "cluster": _numbers([row.cluster for row in rows]),
            },
        ),
    )


def _numbers(groups: Sequence[Hashable]) -> NDArray[np.intp]:
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


# Of every software, by name, in standard deviations of the priors from their medians: (n_names,).
_Units: TypeAlias = Mapping[str, Floats]


class SoftwareFit(Struct, frozen=True, kw_only=True):
    """Parameters by software, as a new source runs it.

    units: by software, in standard deviations of the priors. covariance: of the same, (n_names, n_names).
    """

    units: _Units
    covariance: Mapping[str, NDArray[np.float64]]

    def parameters(self, name: str) -> Parameters:
        """The middle parameters of a software."""
        return parameters_at(self.units[name])

    def log_sd(self, name: str, rows: SoftwareRows) -> Floats:
        """What is left open of the logarithm of every predicted time: (n_rows,). rows: of that software."""
        logs = np.tile(_log_values(self.units[name]), (len(rows.log_s), 1))
        _, slopes = _log_times(rows.arrays, logs)
        open_ = np.einsum("ij,jk,ik->i", slopes, self.covariance[name], slopes)
        return np.asarray(np.hypot(np.sqrt(np.maximum(open_, 0.0)), local_log_sd(rows.groups.spread)))


def local_log_sd(spread: Floats | float) -> Floats:
    """What parameters do not explain of executions of a new source, of the logarithm of their times.

    spread: of `RowGroups`.
    """
    return np.asarray(spread * np.sqrt(sum(each**2 for each in LOCAL_LOG_SD.values())))


def parameters_at(units: Floats) -> Parameters:
    """The parameters so many standard deviations of their priors from the medians."""
    return Parameters().changed(dict(zip(_NAMES, np.exp(_log_values(units)).tolist(), strict=True)))


def _log_values(units: Floats) -> Floats:
    """Logarithms of parameters so many prior standard deviations from the medians: (..., n_names)."""
    logs = _LOG_MEDIAN + units * _PRIOR_LOG_SD
    return np.asarray(np.minimum(logs, _LOG_LARGEST + np.log(_BELOW_LARGEST)))


def _log_times(arrays: StepRows, logs: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """The logarithm of every predicted time, (n_rows,), and its change with each parameter, in prior standard
    deviations, (n_rows, n_names). logs: of the parameters of every row, (n_rows, n_names).
    """
    values = dict(zip(_NAMES, np.exp(logs).T, strict=True))
    log_s, slopes = log_times(arrays.step_s, Parameters(), values)
    return log_s, np.asarray(slopes.T * _PRIOR_LOG_SD)


def fit_software(rows: SoftwareRows, names: Sequence[str], *, start: _Units | None = None) -> SoftwareFit:
    """Parameters of some software, from all rows.

    names: of software; rows may have others, and none of some. start: where to begin, by software.
    Assumes that times are log-linear in parameters near the fit, which is found in a few passes.
    Source: linear mixed effects (Laird and Ware 1982); best linear unbiased prediction, by the kernel that
    the random effects imply.
    """
    units = {name: _centre(name) for name in (*names, *np.unique(rows.groups.software).tolist())}
    units |= {} if start is None else dict(start)
    for number in range(_NUM_PASSES):
        if number >= _NUM_PASSES - _NUM_SPREADS:
            slopes, target = _linear(rows, units)
            groups = with_source_spread(rows.groups, slopes, target, is_local=_IS_LOCAL)
            rows = replace(rows, groups=groups)
        found = _solved(rows, units, names=[*units]).units
        for name, each in found.items():
            centre = _centre(name)
            damped = (1 - _DAMPING) * units[name] + _DAMPING * each
            units[name] = np.clip(damped, centre - _MOST_UNITS, centre + _MOST_UNITS)
    final = _solved(rows, units, names=names)
    return SoftwareFit(units={name: units[name] for name in names}, covariance=final.covariance)


def _solved(rows: SoftwareRows, at: _Units, *, names: Sequence[str]) -> SoftwareFit:
    """One pass: the posterior of parameters where times are linear about some."""
    slopes, target = _linear(rows, at)
    found = posterior(rows.groups, slopes, target, names=names, is_local=_IS_LOCAL)
    return replace(found, units={name: _centre(name) + each for name, each in found.units.items()})


def posterior(
    groups: RowGroups,
    slopes: NDArray[np.float64],
    target: Floats,
    *,
    names: Sequence[str],
    is_local: NDArray[np.bool_],
) -> SoftwareFit:
    """Parameters of some software as a new source runs it, from where they stand before any row.

    slopes: change of the logarithm of each row's time with each parameter, (n_rows, n_parameters). target:
    what they have to explain of it, (n_rows,). is_local: (n_parameters,), what each source does its own way.
    Source: the best linear unbiased prediction of random effects (Henderson 1975), by their kernel.
    """
    shared = slopes * ~is_local
    own_sd = np.where(is_local, LOCAL_SD, SOURCE_SD)
    kernel = _kernel(groups, slopes, is_local)
    stray = _stray_variance(kernel, target, groups.effects["model"])
    lower = np.linalg.cholesky(kernel + np.diag(stray))
    # The kernel is lower @ lower.T: what each side of its inverse makes of them, for all software at once.
    across = np.hstack([target[:, None], *(shared * _reach(groups, name)[:, None] for name in names)])
    whitened = solve_triangular(lower, across, lower=True, check_finite=False)
    prior = np.diag(own_sd**2 + ~is_local * (ALL_SD**2 + FAMILY_SD**2 + SOFTWARE_SD**2))
    parts = dict(zip(names, np.split(whitened[:, 1:], len(names), axis=1), strict=True))
    return SoftwareFit(
        units={name: part.T @ whitened[:, 0] for name, part in parts.items()},
        covariance={name: prior - part.T @ part for name, part in parts.items()},
    )


def _kernel(
    groups: RowGroups, slopes: NDArray[np.float64], is_local: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Covariance of all rows, noise included: (n_rows, n_rows)."""
    own_sd = np.where(is_local, LOCAL_SD, SOURCE_SD)
    kernel = _alike(groups, slopes * ~is_local) + _campaigns(groups, slopes * own_sd)
    kernel[np.diag_indices_from(kernel)] += (groups.spread * LOCAL_LOG_SD["execution"]) ** 2 + groups.doubt**2
    return kernel


def with_source_spread(
    groups: RowGroups,
    slopes: NDArray[np.float64],
    target: Floats,
    *,
    is_local: NDArray[np.bool_],
) -> RowGroups:
    """The rows with a wider spread of sources that are farther from what all others predict than stated.

    slopes, target, is_local: as `posterior` takes them. A source that is nearer keeps its spread.
    Assumes that what is odd of a source scales with what is left open of its rows, seen next to
    _NUM_AS_STATED rows that are as far as stated.
    Source: scale mixtures of normal effects, by their expected squares (Lange, Little and Taylor 1989).
    """
    kernel = _kernel(groups, slopes, is_local)
    stray = _stray_variance(kernel, target, groups.effects["model"])
    spread = groups.spread.copy()
    for mine, left_out, covariance in _left_out(kernel + np.diag(stray), target, groups.effects["source"]):
        variance = np.diag(covariance) - stray[mine]
        squares = np.minimum(left_out**2 / variance, _MOST_SQUARE)
        wider = np.sqrt((squares.sum() + _NUM_AS_STATED) / (len(mine) + _NUM_AS_STATED))
        spread[mine] *= np.clip(wider, 1.0, _MOST_SPREAD)
    return replace(groups, spread=spread)


def _left_out(
    kernel: NDArray[np.float64], target: Floats, groups: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Floats, NDArray[np.float64]]]:
    """Of each group its rows, what all others leave of their target, and the covariance of that.

    Source: residuals of groups left out, from the inverse of the kernel (Rasmussen and Williams 2006, 5.4.2).
    """
    # Of the inverse, root.T @ root, only the blocks of the groups are needed.
    root, _ = dtrtri(np.linalg.cholesky(kernel), lower=1)
    weighted = root.T @ (root @ target)
    order = np.argsort(groups, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        columns = root[mine.min() :, mine]
        covariance = np.linalg.inv(columns.T @ columns)
        yield mine, covariance @ weighted[mine], covariance


def _stray_variance(
    kernel: NDArray[np.float64], target: Floats, groups: NDArray[np.intp]
) -> NDArray[np.float64]:
    """What rows get as noise of their own because their group is far from what all others predict of it.

    groups: models of one source. A whole campaign may be broken, and has many rows that agree.
    """
    found = np.zeros(len(target))
    for mine, left_out, _ in _left_out(kernel, target, groups):
        found[mine] = np.maximum(0.0, left_out**2 - _ROBUST_LOG_SD**2)
    return found


def _linear(rows: SoftwareRows, at: _Units) -> tuple[NDArray[np.float64], Floats]:
    """Slopes of every row about the parameters of its software, (n_rows, n_names), and what they have to
    explain: the logarithm of measured over predicted before any row, were times log-linear.
    """
    present, of_row = np.unique(rows.groups.software, return_inverse=True)
    logs = _log_values(np.stack([at[str(name)] for name in present]))
    moved = (logs - _LOG_MEDIAN) / _PRIOR_LOG_SD - np.stack([_centre(str(name)) for name in present])
    log_s, slopes = _log_times(rows.arrays, logs[of_row])
    return slopes, rows.log_s - log_s + (slopes * moved[of_row]).sum(axis=1)


def _centre(name: str) -> Floats:
    """Where the parameters of a software stand before any row, in prior standard deviations: (n_names,)."""
    medians = dict(software(name).medians)
    logs = np.log([medians.get(each.name, each.median) for each in _MOVED])
    return np.asarray((logs - _LOG_MEDIAN) / _PRIOR_LOG_SD)


def _same(groups: NDArray[Any]) -> NDArray[np.float64]:
    _, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(numbers[:, None] == numbers[None, :], dtype=float)


def _alike(groups: RowGroups, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of rows by the parameters of all software, of families and of each: (n_rows, n_rows)."""
    shared = ALL_SD**2 + FAMILY_SD**2 * _same(groups.family) + SOFTWARE_SD**2 * _same(groups.software)
    return np.asarray(shared * (slopes @ slopes.T))


def _campaigns(groups: RowGroups, own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of rows by what one source does its own way, parameters and all else: (n_rows, n_rows).

    own: slopes times the standard deviations of a source's own parameters.
    """
    found = _same(groups.effects["source"]) * (own @ own.T)
    spread = np.outer(groups.spread, groups.spread)
    for name, numbers in groups.effects.items():
        found += LOCAL_LOG_SD[name] ** 2 * spread * _same(numbers)
    return np.asarray(found)


def _reach(groups: RowGroups, name: str) -> Floats:
    """Covariance of a parameter of a software, as a new source runs it, with that of every row."""
    family = software(name).family
    shared = ALL_SD**2 + FAMILY_SD**2 * (groups.family == family)
    return np.asarray(shared + SOFTWARE_SD**2 * (groups.software == name))


class HeldOutSteps(Struct, frozen=True, kw_only=True):
    """Rows that were predicted by fits to all others: log(measured / predicted), and the log_sd stated."""

    rows: tuple[PublishedRow, ...]
    log_ratio: Floats
    log_sd: Floats


def held_out_steps(rows: Sequence[PublishedRow], fold_of: Callable[[PublishedRow], Hashable]) -> HeldOutSteps:
    """Every row predicted by fits to the rows of the other folds, of those whose machine is known.

    rows: as `fitting_rows` returned them. fold_of: what is left out as one, such as `source_of`.
    What the same model was asked of the same rows before is read from .cache, since it takes minutes.
    """
    arrays, fitted = software_rows(rows), _on_known_machines(rows)
    folds = _numbers([fold_of(row) for row in rows])
    kept = _CACHE / f"held_out_{_digest((arrays, fitted, folds))}.npy"
    if kept.is_file():
        log_ratio, log_sd = np.load(kept, allow_pickle=False)
    else:
        log_ratio, log_sd = np.empty((2, len(rows)))
        some = [(arrays, fitted, folds, fold) for fold in range(int(folds.max()) + 1)]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            for out, ratios, widths in pool.map(_held_out, some):
                log_ratio[out], log_sd[out] = ratios, widths
        kept.parent.mkdir(exist_ok=True)
        with written(kept) as file:
            np.save(file, (log_ratio, log_sd))
    return HeldOutSteps(rows=tuple(rows), log_ratio=log_ratio, log_sd=log_sd)


def _held_out(
    fold: tuple[SoftwareRows, NDArray[np.bool_], NDArray[np.intp], int],
) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Of one fold its rows, and their ratios and spreads as `HeldOutSteps` has them.

    fold: all rows, which of them may be fitted to, the fold of each, and the number of the one left out.
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


def _digest(asked: object) -> str:
    """Digits that change with what is asked, and with the code and tables that answer it."""
    package = Path(equipoise.__file__).parent
    model = [
        *package.glob("perfmodel/*.py"),
        *package.glob("perfmodel/*.toml"),
        package / "calibration/step_rows.py",
        package / "spec/software.toml",
    ]
    texts = (path.read_bytes() for path in (Path(__file__), *sorted(model)))
    return blake2s(b"".join((pickle.dumps(asked), *texts)), digest_size=10).hexdigest()


def _on_known_machines(rows: Sequence[PublishedRow]) -> NDArray[np.bool_]:
    """Which rows are fitted to: under a limit of power that the source does not name a chip is another one.

    Source: torchtitan, Llama 3 8B on B200, one sample of 8,192 tokens: 12,211 tokens/s (pull request 1196),
    8,308 on cards that pytorch/ao calls power limited.
    """
    return np.array([not is_limited(row.hardware) for row in rows])


def software_document(directory: Path) -> dict[str, Any]:
    """Parameters of every software as they ship: fitted to a directory's measurements and those beside."""
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
    """How wrong one software was whose sources were left out whole."""
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
