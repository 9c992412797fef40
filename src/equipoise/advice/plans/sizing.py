"""Options of a plan side by side: each beside perfect scaling, and where their time and memory go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.advice.plans.planned import Option, Plan

# More parts than this no figure can keep apart, and parts below a hundredth of every whole nobody can see.
_MOST_PARTS = 7
_LEAST_SHARE = 0.01
_THE_REST = "rest"
_SUM_OF_KINDS = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """An option beside another, its reference. is_asked: whether its size is one of those asked for."""

    option: Option
    reference: Option
    is_asked: bool

    @property
    def ideal_s(self) -> float:
        """The training, if each accelerator did as much in a second as those of the reference."""
        return self.reference.time.value * self.reference.num_accelerators / self.option.num_accelerators

    @property
    def efficiency(self) -> float:
        """The ideal time over the time: above 1 where an accelerator does more than at the reference."""
        return self.ideal_s / self.option.time.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What wholes are made of, the largest part first; `rest` last, where small ones were summed.

    names: (n_parts,) of the parts. amounts: (n_wholes, n_parts), which sum to the wholes.
    """

    names: tuple[str, ...]
    amounts: tuple[tuple[float, ...], ...]


def by_size(plan: Plan) -> tuple[Sized, ...]:
    """The best option of each size tried, against the smallest size."""
    return tuple(
        Sized(option=each, reference=plan.by_size[0], is_asked=plan.question.asks(each.num_accelerators))
        for each in plan.by_size
    )


def layouts(plan: Plan) -> tuple[Sized, ...]:
    """The recommended option and the best of other layouts of that size, against the recommended."""
    best = plan.recommended
    if best is None:
        return ()
    return tuple(Sized(option=each, reference=best, is_asked=True) for each in (best, *plan.alternatives))


def stored(plan: Plan) -> tuple[Option, ...]:
    """The options whose memory tells what fits: the leanest where nothing does, and the best of each size."""
    return plan.by_size if plan.leanest is None else (plan.leanest, *plan.by_size)


def spent(options: Sequence[Option]) -> Parts:
    """Accelerator-seconds a sample takes, by cause.

    Perfect scaling leaves their sum as it is: what grows from size to size is what scaling costs.
    """
    return _parts(
        [
            {
                cause: seconds * each.num_accelerators / each.strategy.global_batch_samples
                for cause, seconds in each.seconds.items()
            }
            for each in options
        ]
    )


def held(options: Sequence[Option]) -> Parts:
    """Bytes of the fullest accelerator, by kind."""
    return _parts([kinds_held(each) for each in options])


def kinds_held(option: Option) -> dict[str, float]:
    """Bytes of the fullest accelerator by kind, to their sum; `slack` is what the allocator holds beside."""
    told = {kind: size for kind, size in option.memory.items() if kind != _SUM_OF_KINDS}
    return told | {"slack": option.memory_bytes - sum(told.values())}


def _parts(wholes: Sequence[Mapping[str, float]]) -> Parts:
    """The parts worth telling apart, by the largest share they have of any whole."""
    shares = {
        name: max(each[name] / sum(each.values()) for each in wholes)
        for name in (wholes[0] if wholes else ())
    }
    ranked = sorted((name for name in shares if shares[name] >= _LEAST_SHARE), key=lambda name: -shares[name])
    names = ranked[:_MOST_PARTS]
    amounts = [[each[name] for name in names] for each in wholes]
    rests = [sum(each.values()) - sum(told) for each, told in zip(wholes, amounts, strict=True)]
    if not any(rest > 0.0 for rest in rests):
        return Parts(names=tuple(names), amounts=tuple(map(tuple, amounts)))
    rows = tuple((*told, rest) for told, rest in zip(amounts, rests, strict=True))
    return Parts(names=(*names, _THE_REST), amounts=rows)
