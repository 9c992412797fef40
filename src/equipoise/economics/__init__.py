"""What a training costs: money, energy and carbon, each with an interval; rented or owned; what fails.

Tables of prices, grids, failures and purchases have dates and sources; the user's own figures override them.
"""
