"""The strategies of a training on a system: the search as one problem, and what it finds by size."""
