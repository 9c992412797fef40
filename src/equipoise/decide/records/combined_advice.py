"""How right the number is that combined curves advise: sizes held out of published groups, and what ships.

`python -m equipoise.decide.records.combined_advice` advises again and writes data/combined_advice.json.
"""

import sys
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from equipoise.calibration.advice_backtest import Curves, advice_document, held_out_advice, pooled_curves
from equipoise.calibration.forecast_record import COMBINED, write_record
from equipoise.decide.combine import combine, combined_curves, combined_record
from equipoise.decide.estimators.model import when_published
from equipoise.decide.evidence import LEAST_LOG_SD, Estimate, Estimates
from equipoise.decide.records.plans import modelled, published_problem
from equipoise.errors import EvidenceError, InputError
from equipoise.runs import embedded
from equipoise.runs.results import Scores
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.scaling.pooled import PooledLaw, Question
from equipoise.spec.mlperf import Entries
from equipoise.stats import Interval, log_sd, with_log_sd


class CombinedCurves(Struct, frozen=True, kw_only=True):
    """The curves that numbers are sought on, from what was known of a group. scores: all published results.

    A group that the model cannot estimate has the curves of published results alone, as an answer does.
    """

    scores: Scores

    def __call__(self, law: PooledLaw, known: Entries, domain: Domain) -> Curves:
        """As `CurvesOf`: of strictly earlier rounds and the known rows, samples to target too.

        Assumes profiles of the model, which were fitted to steps of all years.
        """
        model = self._modelled(law, known, domain)
        if model is None:
            return pooled_curves(law, known, domain)
        largest = known[-1].num_accelerators
        published = _published(law, known, domain)
        estimators = (published, when_published(model, largest))
        found = combined_curves(estimators, domain=domain)
        assert found is not None
        return about_combined(found[0], estimators)

    def _modelled(self, law: PooledLaw, known: Entries, domain: Domain) -> Estimates | None:
        """The estimates of the model for the sizes asked about, and their doubles."""
        first, last = known[0], known[-1]
        entries = tuple(
            each
            for each in self.scores.entries
            if each.campaign in law.rounds
            or (each.group == first.group and each.num_accelerators <= last.num_accelerators)
        )
        try:
            return modelled(
                published_problem(first.workload, first.accelerator, Scores(entries)), _sizes(domain)
            )
        except (InputError, EvidenceError):
            return None


def about_combined(curves_s: Curves, estimators: Sequence[Estimates]) -> Curves:
    """The curves about the combined time of each size, as an answer seeks its number on them.

    Source: times the ratio of combined time and median, straight between sizes in both logarithms.
    """
    times = {}
    for size in sorted({size for each in estimators for size in each.by_size}):
        found = [each.by_size[size] for each in estimators if size in each.by_size]
        times[size] = combine([each.time_s for each in found], [each.log_sd for each in found]).time.value
    sizes = np.array([float(size) for size in times])
    ratios = np.log(np.array(list(times.values())) / np.median(curves_s(sizes), axis=0))

    def moved_s(at: FloatArray) -> FloatArray:
        return np.asarray(curves_s(at) * np.exp(np.interp(np.log(at), np.log(sizes), ratios)))

    return moved_s


def taken_sizes(domain: Domain) -> tuple[int, ...]:
    """The sizes that a number is chosen from, as an answer does: both ends, and powers of two between."""
    return tuple(size for size in _sizes(domain) if domain.smallest <= size <= domain.largest)


def _sizes(domain: Domain) -> tuple[int, ...]:
    """Both ends, the double of the larger, and powers of two between."""
    low, high = round(domain.smallest), round(domain.largest)
    powers = {2**step for step in range((2 * high).bit_length())}
    return tuple(sorted({low, high, 2 * high} | {each for each in powers if low <= each <= 2 * high}))


def _published(law: PooledLaw, known: Entries, domain: Domain) -> Estimates:
    """What published results say: the known ones as they are, other sizes carried by the pooled law.

    Source: data/combined.json, by how far beyond the largest known a size lies.
    """
    first = known[0]
    results = {each.num_accelerators: each.score_s for each in known}
    largest = max(results)
    found = law.predict_all(
        known,
        [
            Question(workload=first.workload, accelerator=first.accelerator, num_accelerators=size)
            for size in _sizes(domain)
        ],
    )
    by_size = {}
    for each in found:
        size = each.question.num_accelerators
        spread = combined_record().at(size / largest).published_scale * log_sd(each.time_s)
        by_size[size] = _estimate(each.time_s, spread)
    for size, score_s in results.items():
        by_size[size] = _estimate(with_log_sd(score_s, LEAST_LOG_SD), LEAST_LOG_SD)
    return Estimates(
        estimator="published",
        name="published results",
        by_size={size: by_size[size] for size in sorted(by_size)},
        grade=dict.fromkeys(by_size, "published"),
        curves_s=pooled_curves(law, known, domain),
        domain=domain,
    )


def _estimate(time_s: Interval, spread: float) -> Estimate:
    return Estimate(estimator="published", name="published results", time_s=time_s, log_sd=spread, why="")


def main() -> int:
    """Advise every group again, and write the record.

    Without cost: it is no equilibrium of these curves, and its record is that of published results.
    """
    scores = embedded.scores()
    results = held_out_advice(scores.entries, curves_of=CombinedCurves(scores=scores), sizes_of=taken_sizes)
    write_record(COMBINED, advice_document([each for each in results if each.objective != "cost"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
