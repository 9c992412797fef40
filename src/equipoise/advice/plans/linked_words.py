"""What the user's timed collectives mean for a plan, in sentences."""

from collections.abc import Iterator

from equipoise.advice.links.own_link_words import link_words
from equipoise.advice.plans.planned import Plan
from equipoise.units import format_count, format_percent


def linked_words(plan: Plan) -> Iterator[str]:
    """What was timed, what follows, what is still of the catalogue, and how sure of its links a step is now.

    Nothing where nothing was given; what was not used is in plan.links.notes.
    """
    if plan.links is None:
        return
    yield from link_words(plan.links, plan.cluster)
    doubt = plan.link_doubt
    if doubt is not None and plan.recommended is not None:
        now, before = (format_percent(round(each, 4)) for each in (doubt.timed_log_sd, doubt.usual_log_sd))
        yield (
            f"Links leave a step on {format_count(plan.recommended.num_accelerators)} open by {now} "
            f"(standard deviation), by {before} without these files."
        )
