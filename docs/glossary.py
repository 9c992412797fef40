"""Writes docs/glossary.md from the words of src/equipoise/glossary.toml."""

import re
from pathlib import Path

from equipoise.glossary import Term, terms

PAGE = Path(__file__).with_name("glossary.md")


def markdown() -> str:
    """The whole glossary as docs/glossary.md has it."""
    lines = [
        "# Glossary",
        "",
        "Each term has one meaning in Equipoise. `equipoise explain TERM` prints it in the terminal.",
        "",
        "<!-- Made from src/equipoise/glossary.toml by `python docs/glossary.py`; edit that file. -->",
    ]
    for group in dict.fromkeys(term.group for term in terms()):
        lines += ["", f"## {group}"]
        for term in terms():
            if term.group == group:
                lines += ["", f"### {term.name}", "", *_paragraphs(term)]
    return "\n".join(lines) + "\n"


def _paragraphs(term: Term) -> list[str]:
    """What stands under the heading of a term."""
    lines = [term.meaning]
    if term.formula is not None:
        lines += ["", f"    {term.formula}"]
    lines += ["", f"Source: {term.source}."]
    if term.aliases:
        lines += ["", f"Also: {', '.join(f'`{alias}`' for alias in term.aliases)}."]
    if term.see:
        lines += ["", f"See: {', '.join(f'[{name}](#{_anchor(name)})' for name in term.see)}."]
    return lines


def _anchor(name: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", name.casefold()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
