"""Somebody's own training loop, watched: the phases of its steps, recorded as the sweep records them."""
