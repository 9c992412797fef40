"""What people call an accelerator or a workload; a name that no catalogue holds stands for itself."""

from equipoise.errors import SpecError
from equipoise.spec.hardware import exact_accelerator
from equipoise.spec.workload import workload


def accelerator_title(slug: str) -> str:
    """The display name of an accelerator, e.g. `NVIDIA H100 SXM5 80GB`."""
    known = exact_accelerator(slug)
    return slug if known is None else known.title  # results may name hardware that the catalogue lacks


def workload_title(slug: str) -> str:
    """The display name of a workload, e.g. `BERT`."""
    try:
        return workload(slug).title
    except SpecError:  # likewise
        return slug
