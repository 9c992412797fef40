"""A page as a browser reads it, elements with attributes and text, and as a terminal shows it."""

from html.parser import HTMLParser
from io import StringIO

from rich.console import Console

from equipoise.report.terminal import render

VOID = {"meta", "br", "img", "input", "link", "hr", "wbr"}  # tags that are never closed


class Element(dict):
    """An element: its attributes by name. text: of all in it. inside: the tags around it, outermost first."""

    def __init__(self, tag, attributes, inside):
        super().__init__(attributes)
        self.tag, self.text, self.inside = tag, "", inside


class Parsed(HTMLParser):
    """Elements with their text, and whether every tag is closed in its turn."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.unbalanced, self._words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = Element(tag, attrs, [each.tag for each in self.open])
        self.elements.append(found)
        if tag not in VOID:
            self.open.append(found)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1].tag != tag:
            self.unbalanced.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data):
        self._words.append(data)
        for found in self.open:
            found.text += data.replace("\N{NO-BREAK SPACE}", " ")  # between numbers and their units

    @property
    def text(self):
        """All words, with one blank between them."""
        return " ".join("".join(self._words).split())

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [found for found in self.elements if found.tag == tag and wanted.items() <= found.items()]


def printed(page, findings, *, full=True, width=80):
    """The page in a terminal without colours."""
    file = StringIO()
    render(
        page, findings, Console(file=file, width=width, color_system=None, legacy_windows=False), full=full
    )
    return file.getvalue()
