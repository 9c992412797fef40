"""What a training costs: money, energy and carbon, each with an interval; rented or owned; what fails.

Tables of prices, grids, failures and purchases have dates and sources; the user's own figures override them.
"""

from equipoise.economics.costs import (
    DEFAULT_GRID,
    SYSTEM_POWER,
    Bill,
    Electricity,
    GridCarbon,
    Price,
    PriceTerms,
    Rates,
    SystemPower,
    bill,
    bill_fields,
    electricity,
    grid,
    price,
    rates,
)

__all__ = [
    "DEFAULT_GRID",
    "SYSTEM_POWER",
    "Bill",
    "Electricity",
    "GridCarbon",
    "Price",
    "PriceTerms",
    "Rates",
    "SystemPower",
    "bill",
    "bill_fields",
    "electricity",
    "grid",
    "price",
    "rates",
]
