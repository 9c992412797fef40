"""A browser gets the frame at once where an answer takes long; programs wait for the answer."""

import asyncio
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra `web` is not installed")

from fastapi import Request

from equipoise.web import (
    DataSources,
    PageQuery,
    Screen,
    StudyFields,
    decision_screens,
    evidence_screens,
    reader_of,
)
from equipoise.web.answers import PageAnswer
from equipoise.web.app import Dashboard


def request(path, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked, never = [{"type": "http.request", "body": b"", "more_body": False}], asyncio.Event()

    async def receive():
        if not asked:
            await never.wait()
        return asked.pop()

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"a=%22%3E",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    return Request(scope, receive)


async def text(response):
    sent = []

    async def send(message):
        sent.append(message)

    await response({}, None, send)
    return b"".join(each.get("body", b"") for each in sent).decode()


def test_the_frame_comes_at_once_and_the_answer_when_it_is_there():
    go, made = threading.Event(), []

    def slow(_query, _sources):
        assert go.wait(30)
        made.append(1)
        return PageAnswer(title="t", headline="s", body=b"<p>the answer</p>")

    screen = Screen(
        path="/slow",
        title="Slow",
        about="",
        verb="",
        read=reader_of(PageQuery),
        fields=lambda _, __: (),
        answer=slow,
    )

    async def checks():
        dashboard = Dashboard(DataSources())
        opened = await dashboard.show(request("/slow", sec_fetch_dest="document"), screen, PageQuery())
        waits = await text(opened)
        assert 'hx-get="/slow?a=%22%3E" hx-trigger="load"' in waits
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in waits
        assert "<p>the answer" not in waits
        asked = [
            asyncio.create_task(dashboard.show(request("/slow", **headers), screen, PageQuery()))
            for headers in ({"hx_request": "true", "sec_fetch_dest": "empty"}, {}, {})
        ]
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*asked)
        assert len(answers) == 3
        for each in answers:
            assert "<p>the answer</p>" in await text(each)
        again = await dashboard.show(request("/slow", sec_fetch_dest="document"), screen, PageQuery())
        assert "<p>the answer</p>" in await text(again)

    asyncio.run(checks())
    assert made == [1]


def test_the_first_page_is_computed_before_anybody_asks(hostile_data):
    async def checks():
        dashboard = Dashboard(DataSources(data=hostile_data))
        await dashboard.warm()
        num_bytes = dashboard.answers.kept.num_bytes
        assert num_bytes > 0
        page = await text(
            await dashboard.show(request("/study"), evidence_screens.STUDY_SCREEN, StudyFields())
        )
        assert dashboard.answers.kept.num_bytes == num_bytes  # another page would be kept too
        assert "MLPerf Training v4.1" in page
        advice = decision_screens.ADVICE.read({}, dashboard.sources)
        await dashboard.show(request("/advice"), decision_screens.ADVICE, advice)
        assert dashboard.answers.kept.num_bytes == num_bytes  # another page would be kept too

    asyncio.run(checks())
