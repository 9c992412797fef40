"""Sources of bytes: folders, archives, git repositories and single files, safe to read whatever they hold."""

from equipoise.runs.sources.gate import ReadLimits
from equipoise.runs.sources.source import DataSource, open_source

__all__ = ["DataSource", "ReadLimits", "open_source"]
