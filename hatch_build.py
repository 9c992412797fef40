"""What building a wheel and an editable installation run first: tables in TOML are kept as parsed, and the
longest as the records that they make.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KeptTables(BuildHookInterface[Any]):
    """Writes src/equipoise/data/parsed, which git ignores and the wheel holds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's
        """Write the files and name them as part of the wheel. Of other libraries msgspec alone is there."""
        sys.path.insert(0, str(Path(self.root, "src")))
        from equipoise.files import keep_tables  # noqa: PLC0415 - where the path is known
        from equipoise.spec.catalogue import keep_shipped  # noqa: PLC0415

        keep_tables()
        keep_shipped()
        build_data["artifacts"].append("src/equipoise/data/parsed/*")
