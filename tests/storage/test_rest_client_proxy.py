"""REST stores behind an HTTP proxy that wants a user, and one that is named without a scheme."""

import base64

import pytest
import urllib3

from sparklog.storage.gcs import GcsStore, parse_gcs_options


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize(("user", "sent"), [("", None), ("me:s%40cret@", b"me:s@cret")])
def test_the_user_of_a_proxy_is_sent(
    monkeypatch: pytest.MonkeyPatch, scheme: str, user: str, sent: bytes | None
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"{scheme}{user}proxy.test:3128")
    client = GcsStore("gs://b/r", parse_gcs_options({"endpoint_url": "http://store.test"})).client
    http = client.connected()
    assert isinstance(http, urllib3.ProxyManager)
    assert http.proxy is not None
    assert http.proxy.url == "http://proxy.test:3128"
    expected = None if sent is None else f"Basic {base64.b64encode(sent).decode()}"
    assert http.proxy_headers.get("proxy-authorization") == expected
