"""The fixtures that build a frame of scores."""

from made_scores import entries, table, truth

__all__ = ["entries", "table", "truth"]
