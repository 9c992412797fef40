"""How right the number is that the joint curve advises: sizes held out of published groups, and what ships.

`python -m equipoise.advice.answer.joined_advice` asks again and writes data/joined_advice.json.
"""

import sys
from dataclasses import dataclass, replace

import polars as pl

from equipoise.advice.answer.evidence import Witness
from equipoise.advice.answer.joined import joined_curves
from equipoise.advice.answer.joined_record import joined_record
from equipoise.advice.answer.weighed import log_sd
from equipoise.advice.answer.witnesses import modelled_witness
from equipoise.advice.forecast.advice_record import JOINED, write_advice
from equipoise.advice.forecast.held_out_advice import Curves, held_out_advice, pooled_curves
from equipoise.advice.plans.plan import plan
from equipoise.advice.plans.planned import Question
from equipoise.errors import EvidenceError, InputError
from equipoise.runs import embedded
from equipoise.scaling.law import Domain
from equipoise.scaling.pooled import PooledLaw
from equipoise.scaling.pooled import Question as Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCurves:
    """The curves that advice is sought on, from what was known of a group before. scores: all that is known.

    A group of which the model tells nothing has those of published results alone, as advice does.
    """

    scores: pl.DataFrame

    def __call__(self, law: PooledLaw, known: pl.DataFrame, domain: Domain) -> Curves:
        """As `CurvesOf`: of strictly earlier rounds and the known rows, samples to target too.

        Assumes profiles of the model, which were fitted to steps of all years.
        """
        published = _published(law, known, domain)
        modelled = self._modelled(law, known, domain)
        if modelled is None:
            return pooled_curves(law, known, domain)
        largest = int(known["num_accelerators"][-1])
        joined = joined_curves(
            [published, _beside(modelled, largest)], published.times[largest], largest, domain=domain
        )
        assert joined is not None
        return joined[0]

    def _modelled(self, law: PooledLaw, known: pl.DataFrame, domain: Domain) -> Witness | None:
        """What the model says of the sizes asked about, and their doubles."""
        first = known.row(0, named=True)
        mine = (pl.col("campaign") == first["campaign"]) & (pl.col("workload") == first["workload"])
        mine &= pl.col("accelerator") == first["accelerator"]
        mine &= pl.col("num_accelerators") <= known["num_accelerators"][-1]
        sizes = _sizes(domain)
        question = Question(
            workload=first["workload"],
            accelerator=first["accelerator"],
            fewest=sizes[0],
            most=sizes[-1],
            sizes=sizes,
            num_best=1,
        )
        try:
            found = plan(question, scores=self.scores.filter(pl.col("campaign").is_in(law.rounds) | mine))
        except (InputError, EvidenceError):
            return None
        return modelled_witness(found)


def _sizes(domain: Domain) -> tuple[int, ...]:
    """Both ends, the double of the larger, and powers of two between."""
    low, high = round(domain.smallest), round(domain.largest)
    powers = {2**step for step in range((2 * high).bit_length())}
    return tuple(sorted({low, high, 2 * high} | {each for each in powers if low <= each <= 2 * high}))


def _published(law: PooledLaw, known: pl.DataFrame, domain: Domain) -> Witness:
    """The pooled law's witness: as wrong as such times were, by how far beyond the known ones they lie."""
    first = known.row(0, named=True)
    largest = int(known["num_accelerators"][-1])
    sizes = sorted({*_sizes(domain), largest})
    found = law.predict_all(
        known,
        [
            Asked(workload=first["workload"], accelerator=first["accelerator"], num_accelerators=size)
            for size in sizes
        ],
    )
    times = {each.question.num_accelerators: each.time_s for each in found}
    return Witness(
        kind="published",
        name="published results",
        times=times,
        log_sds={
            size: joined_record().at(size / largest).published_scale * log_sd(time)
            for size, time in times.items()
        },
        why={},
        sources=(),
        curves_s=pooled_curves(law, known, domain),
        domain=domain,
    )


def _beside(modelled: Witness, largest: int) -> Witness:
    """The model's witness: as wrong as it was where results of such sizes were published.

    Source: data/joined.json, by how many times the largest size known.
    """
    log_sds = {size: joined_record().at(size / largest).modelled_log_sd for size in modelled.times}
    return replace(modelled, log_sds=log_sds)


def main() -> int:
    """Ask every group again, and write the record.

    Without cost: its deadline needs the spread of the level, to which these curves are set.
    """
    scores = embedded.load().scores
    results = held_out_advice(scores, curves_of=JoinedCurves(scores=scores))
    write_advice(JOINED, [each for each in results if each.objective != "cost"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
