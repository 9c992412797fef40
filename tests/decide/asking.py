"""Questions asked of the real core on the embedded data, in this process."""

from functools import cache

from equipoise.decide.decision import answer
from equipoise.decide.question.query import query
from equipoise.runs import embedded
from equipoise.units import HOUR_S

H100, H200 = "h100-sxm5-80gb", "h200-sxm5-141gb"
B200, A100 = "b200-sxm6-180gb", "a100-sxm4-80gb"
MI300X, RTX = "mi300x-oam-192gb", "rtx-4090-pcie-24gb"
# One of each kind: published sizes, a stated budget of tokens, a chip whose results come from a sibling.
LORA = {"workload": "llama2_70b_lora", "accelerator": [H200]}
PRETRAINING = {"workload": "llama31_8b", "tokens": "1e12", "accelerator": [H100], "max_accelerators": 512}
SIBLING = {"workload": "stable_diffusion", "accelerator": ["h200-nvl-141gb"], "max_accelerators": 16}
SMALL = {
    "workload": "gpt2_xl",
    "tokens": "1e9",
    "accelerator": [RTX],
    "global_batch": 64,
    "max_accelerators": 8,
}
KINDS = {"lora": LORA, "pretraining": PRETRAINING, "sibling": SIBLING, "small": SMALL}


@cache
def published_scores():
    """The comparable entries of the embedded data."""
    return embedded.scores()


def ask(question=None, *, scores=None, **changed):
    """The answer to a question with some fields changed; without published results where scores is False."""
    known = published_scores() if scores is None else (scores if scores is not False else None)
    return answer(query({**(question or {}), **changed}), scores=known)


def paid_usd(found, each, usd_per_hour=0.0):
    """Money of a training with the 5 minutes before its first step, and the time of both at the value of an hour.

    A published target's clock begins after them (docs/decide/advice.md, where returns diminish).
    """
    start_h = 0.0 if found.question.is_to_target else 5 / 60
    usd = each.usd.value + each.num_accelerators * start_h * each.price.usd_per_accelerator_hour
    return usd + usd_per_hour * (each.time_s.value / HOUR_S + start_h)


def by_size(found, system=None):
    """Candidates by number of accelerators: of one system, or of the only one there is."""
    named = [each for each in found.candidates if system in {None, each.system}]
    sizes = {each.num_accelerators: each for each in named}
    assert len(sizes) == len(named), "several systems or terms: name one"
    return sizes
