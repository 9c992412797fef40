"""A page of a browser that is watched while a test uses it."""

from contextlib import contextmanager
from weakref import WeakKeyDictionary

# Pages that a test has left as it found them, by the options of their context: a new one starts two processes of
# the browser, which takes a second of a core.
_LEFT = WeakKeyDictionary()
_EVENTS = ("console", "pageerror", "dialog", "request")


@contextmanager
def watched_page(browser, url, *, is_own, is_trouble=lambda _text: True, timeout_ms, **options):
    """A page opened with its theme, without what others stored; nothing may be logged, asked of others or shown
    as a dialog.

    is_own: whether an address may be asked. is_trouble: whether a text that was logged counts.
    """
    left = _LEFT.setdefault(browser, {}).setdefault(repr(sorted(options.items())), [])
    page = left.pop() if left else browser.new_context(**options).new_page()
    page.context.set_default_timeout(timeout_ms)
    troubles, requests = [], []
    noted = {
        "console": lambda message: troubles.append(message.text),
        "pageerror": lambda error: troubles.append(str(error)),
        "dialog": lambda dialog: troubles.append(dialog.message),
        "request": lambda request: requests.append(request.url),
    }
    for event in _EVENTS:
        page.on(event, noted[event])
    page.goto(url)
    page.locator(".theme").wait_for()
    yield page
    logged = [text for text in troubles if is_trouble(text)]
    assert not logged, logged
    asked_others = [asked for asked in requests if not is_own(asked)]
    assert not asked_others, asked_others
    for event in _EVENTS:
        page.remove_listener(event, noted[event])
    # Asked by the page itself, an empty page stays in its process.
    page.evaluate("localStorage.clear(); sessionStorage.clear(); location.replace('about:blank')")
    page.wait_for_url("about:blank")
    page.context.clear_cookies()
    page.emulate_media(
        media="null",
        color_scheme=options.get("color_scheme", "null"),
        reduced_motion="null",
        forced_colors="null",
    )
    left.append(page)
