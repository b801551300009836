"""A console that may change its root, and short ways to preview and confirm in it."""

import re
from collections.abc import Mapping
from typing import Any

from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.console.app import create_app
from sparklog.console.message_masks import MessageRules

CODE = re.compile(r'name="confirm" value="([^"]+)"')


def writing_client(log: SparkLog) -> TestClient:
    """A client that does not follow redirects."""
    app = create_app(log, history=LagHistory(), messages=MessageRules(), write=True)
    return TestClient(app, follow_redirects=False)


def preview(client: TestClient, path: str, fields: Mapping[str, object]) -> Any:
    """The API's preview, which there must be."""
    answer = client.post(f"/api/v1{path}", json=dict(fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, fields: Mapping[str, object]) -> tuple[int, str]:
    """Status and code of what the API answers in place of a preview."""
    answer = client.post(f"/api/v1{path}", json=dict(fields))
    assert answer.status_code >= 400, answer.text
    return answer.status_code, answer.json()["code"]


def confirm(client: TestClient, shown: Any) -> Any:
    """Do what a preview showed."""
    answer = client.post("/api/v1/confirm", json={"confirm": shown["confirm"]})
    assert answer.status_code == 200, answer.text
    return answer.json()


def change(client: TestClient, path: str, fields: Mapping[str, object]) -> Any:
    """Preview and confirm."""
    return confirm(client, preview(client, path, fields))


def submit(client: TestClient, path: str, fields: Mapping[str, str]) -> str:
    """As a browser without scripts: the form, its preview, its button; the page that it leads to."""
    assert client.get(path).status_code == 200
    shown = client.post(path, data=dict(fields))
    assert shown.status_code == 200, shown.text
    (code,) = CODE.findall(shown.text)
    done = client.post("/confirm", data={"confirm": code})
    assert done.status_code == 303, done.text
    where: str = done.headers["location"]
    assert client.get(where).status_code == 200
    return where
