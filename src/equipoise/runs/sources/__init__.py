"""Sources of bytes: folders, archives, git repositories and single files, safe to read whatever they hold."""

from equipoise.runs.sources.source import DataSource, open_source

__all__ = ["DataSource", "open_source"]
