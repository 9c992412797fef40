"""The page that is there at once where its answer takes long; it asks for the answer itself."""

from typing import Final

from equipoise.report.markup import element, joined
from equipoise.web.answer import Answer

WORDS: Final = "Computing this for the first time: it takes some seconds, and is kept."


def waiting(title: str, address: str, *, shares_form: bool) -> Answer:
    """What is shown until the answer at an address has come.

    shares_form: whether there is a form, whose own question goes before.
    """
    asks = element(
        "div",
        element(
            "p",
            element("progress", aria_label="Computing"),
            element("span", WORDS),
            class_="progress",
        ),
        element("noscript", element("p", "Without scripts the page asks again by itself.")),
        class_="waiting",
        hx_get=address,
        hx_trigger="load",
        hx_target="#result",
        hx_swap="innerHTML show:none",
        hx_sync="form.asked:abort" if shares_form else None,
    )
    return Answer(title=title, said="Computing", body=joined(asks).encode(), is_waiting=True)
