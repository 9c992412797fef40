"""The terms on which accelerators are rented, and the usual grid: words of a question, free of any table."""

from typing import Final, Literal, TypeAlias, get_args

PriceTerms: TypeAlias = Literal["on_demand", "reserved", "spot"]
TERMS: Final[tuple[PriceTerms, ...]] = get_args(PriceTerms)
OnReclaim: TypeAlias = Literal["wait", "shrink"]
ON_RECLAIM: Final[tuple[OnReclaim, ...]] = get_args(OnReclaim)
DEFAULT_GRID: Final = "world"
