"""A page of a browser that is watched while a test uses it."""

from contextlib import contextmanager


@contextmanager
def watched_page(browser, url, *, is_own, is_trouble=lambda _text: True, timeout_ms, **options):
    """A page of its own, opened with its theme; nothing may be logged, asked of others or shown as a dialog.

    is_own: whether an address may be asked. is_trouble: whether a text that was logged counts.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(timeout_ms)
    page = context.new_page()
    troubles, requests = [], []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    page.locator(".theme").wait_for()
    yield page
    assert [text for text in troubles if is_trouble(text)] == []
    assert [asked for asked in requests if not is_own(asked)] == []
    context.close()
