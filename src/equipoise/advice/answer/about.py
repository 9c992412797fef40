"""What is trained, once for all machines: the workload, and the batch that a user's function shows."""

from dataclasses import dataclass

from equipoise.advice.plans.subject import usual_batch
from equipoise.errors import EvidenceError
from equipoise.spec.torch_model import count_function
from equipoise.spec.workload import Workload, workload
from equipoise.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is trained. global_batch_samples: to take where neither results nor custom tell one."""

    workload: Workload
    global_batch_samples: int | None
    notes: tuple[str, ...] = ()


def subject_of(name: str) -> Subject:
    """The workload of a name of the catalogue, or of the model and batch that `module:function` returns.

    Where nobody knows how many more samples a larger batch needs, the function's own batch is kept at every
    size: then training stays what it is on one accelerator.
    Raises SpecError with the nearest names, or why the function's model cannot be counted.
    """
    if ":" not in name:
        return Subject(workload=workload(name), global_batch_samples=None)
    counted = count_function(name)
    about = counted.workload(name, name)
    try:
        usual_batch(about)
    except EvidenceError:
        batch = counted.num_samples
        note = (
            f"The global batch is the {format_count(batch)} samples that {name} returns, kept at every size, "
            "so that training needs as many samples as before: give --global-batch for another."
        )
        return Subject(workload=about, global_batch_samples=batch, notes=(note,))
    return Subject(workload=about, global_batch_samples=None)
