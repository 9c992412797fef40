"""Sources of bytes: folders, archives, git repositories and single files, safe to read whoever wrote them."""

from equipoise.runs.sources.source import Source, open_source

__all__ = ["Source", "open_source"]
