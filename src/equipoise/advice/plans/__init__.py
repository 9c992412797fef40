"""Which strategy, on how many? Searches of the performance model, priced and held against results."""
