"""A user's own training loop, watched: the phases of its steps, recorded as a sweep records them."""
