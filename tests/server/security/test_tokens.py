"""OAUTHBEARER: tokens that are accepted, and all the others."""

import base64
import hmac
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sparklog.clock import ManualClock, SystemClock
from sparklog_server.runtime.crypto_threads import THREADS
from sparklog_server.security.tokens import (
    MIN_REFRESH_MS,
    AuthenticationError,
    InvalidTokenError,
    TokenExchange,
    Tokens,
)
from sparklog_server.settings.security import ListenerSecurity
from tests.support.certificates import Authority
from tests.support.running_broker import RunningBroker
from tests.support.sasl_client import AUTHENTICATE, FAILED, NONE, handshake, log_in, message
from tests.support.wire_client import WireClient

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
NOW = SystemClock().now_ms() // 1000
EXPIRES = NOW + 86_400  # a suite takes its time
CLAIMS = {
    "sub": "alice",
    "exp": EXPIRES,
    "iat": NOW,
    "aud": "kafka",
    "iss": "https://idp",
    "scope": "read write",
}


def jwks(**keys: Any) -> str:
    found = []
    for kid, key in keys.items():
        algorithm = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        found.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    return json.dumps({"keys": found})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(jwks(one=RSA_KEY, two=EC_KEY))
    return path


def tokens_of(keys: Path, clock: Any = None, **settings: Any) -> Tokens:
    url = keys.as_uri()
    configured = ListenerSecurity(oauth_jwks_endpoint_url=url, **settings)
    return Tokens(configured, frozenset({url}), clock or SystemClock())


def token(key: Any = RSA_KEY, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid} if kid else {})


STRICT = {
    "oauth_expected_audience": "other, kafka",
    "oauth_expected_issuer": "https://idp",
    "oauth_required_scope": "write",
}


@pytest.mark.parametrize("settings", [{}, STRICT])
@pytest.mark.parametrize(
    "made", [token, lambda: token(EC_KEY, "two", "ES256"), lambda: token(aud=["x", "kafka"], scope=["write"])]
)
def test_valid_tokens(keys: Path, settings: dict[str, Any], made: Callable[[], str]) -> None:
    assert tokens_of(keys, **settings).check(made()) == ("alice", EXPIRES * 1000)


def _none() -> str:
    return jwt.encode(CLAIMS, "", algorithm="none", headers={"kid": "one"})


def _confused() -> str:
    """An HMAC with the public key as its secret, which PyJWT does not sign."""
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = _encoded({"alg": "HS256", "typ": "JWT", "kid": "one"})
    text = f"{head}.{_encoded(CLAIMS)}"
    signature = base64.urlsafe_b64encode(hmac.digest(public, text.encode(), "sha256")).decode().rstrip("=")
    return f"{text}.{signature}"


def _encoded(document: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _changed() -> str:
    head, _, signature = token().split(".")
    return f"{head}.{_encoded({**CLAIMS, 'sub': 'root'})}.{signature}"


@pytest.mark.parametrize(
    "made",
    [
        _none,
        _confused,
        _changed,
        lambda: token(exp=NOW - 60),
        lambda: token(exp=None),
        lambda: token(nbf=NOW + 86_000),
        lambda: token(sub=None),
        lambda: token(sub=7),
        lambda: token(sub=" "),
        lambda: token(aud="another"),
        lambda: token(aud=None),
        lambda: token(iss="https://evil"),
        lambda: token(iss=None),
        lambda: token(scope="read"),
        lambda: token(scope=None),
        lambda: token(kid="unknown"),
        lambda: token(kid=None),
        lambda: token(rsa.generate_private_key(65537, 2048)),
        lambda: token(EC_KEY, "one", "ES256"),
        lambda: "x.y.z",
        lambda: "",
        lambda: token()[:-10],
    ],
)
def test_tokens_that_are_refused(keys: Path, made: Callable[[], str]) -> None:
    text = made()
    with pytest.raises(InvalidTokenError) as refused:
        tokens_of(keys, **STRICT).check(text)
    assert "alice" not in str(refused.value)


def test_expiry_allows_for_the_skew_of_clocks(keys: Path) -> None:
    expired = token(exp=NOW - 60)
    assert tokens_of(keys, oauth_clock_skew_seconds=3600).check(expired)[0] == "alice"


def test_other_claims(keys: Path) -> None:
    tokens = tokens_of(
        keys, oauth_sub_claim_name="email", oauth_scope_claim_name="scp", oauth_required_scope="x"
    )
    assert tokens.check(token(email="a@b", scp=["x"]))[0] == "a@b"


def test_new_keys_are_read_but_not_for_every_unknown_id(keys: Path) -> None:
    clock = ManualClock(SystemClock().now_ms())
    tokens = tokens_of(keys, clock)
    tokens.check(token())
    keys.write_text(jwks(three=RSA_KEY))
    with pytest.raises(InvalidTokenError, match="no key"):
        tokens.check(token(kid="three"))
    clock.sleep_ms(MIN_REFRESH_MS)
    assert tokens.check(token(kid="three"))[0] == "alice"
    with pytest.raises(InvalidTokenError, match="no key"):
        tokens.check(token(kid="one"))


def test_keys_that_cannot_be_read_leave_those_before(keys: Path) -> None:
    clock = ManualClock(SystemClock().now_ms())
    tokens = tokens_of(keys, clock)
    tokens.check(token())
    for content in (
        "broken",
        "{}",
        '{"keys": 7}',
        json.dumps({"keys": [{"kty": "oct", "k": "eA", "kid": "x"}]}),
    ):
        keys.write_text(content)
        clock.advance_ms(3_600_000)
        if "oct" in content:
            with pytest.raises(InvalidTokenError):
                tokens.check(token())
        else:
            assert tokens.check(token())[0] == "alice"


# --- exchange ----------------------------------------------------------------------------------------


def initial(text: str, header: bytes = b"n,,") -> bytes:
    return header + b"\x01auth=Bearer " + text.encode() + b"\x01\x01"


def test_exchange_of_a_valid_token(keys: Path) -> None:
    exchange = TokenExchange(tokens_of(keys))
    assert exchange.answer(initial(token())) == b""
    assert (exchange.user, exchange.is_done, exchange.expires_at_ms) == ("alice", True, EXPIRES * 1000)


def test_invalid_token_is_told_and_acknowledged(keys: Path) -> None:
    exchange = TokenExchange(tokens_of(keys))
    assert exchange.answer(initial(token(exp=NOW - 60))) == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationError, match="invalid_token"):
        exchange.answer(b"\x01")
    assert not exchange.is_done


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic eA==\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        initial("x", b"y,,"),
        initial("x" * 70_000),
        initial("x")[:-1],
    ],
)
def test_first_messages_that_are_refused(keys: Path, data: bytes) -> None:
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        TokenExchange(tokens_of(keys)).answer(data)


def test_token_of_another_user_than_asked_for(keys: Path) -> None:
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        TokenExchange(tokens_of(keys)).answer(initial(token(), b"n,a=root,"))


def test_over_a_connection(start_broker: Callable[..., RunningBroker], keys: Path, tmp_path: Path) -> None:
    """The session ends with the token."""
    authority = Authority(tmp_path)
    broker = start_broker(
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.certificate("server"),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": keys.as_uri(),
        }
    )
    with WireClient(broker.host, broker.port, tls=authority.client_context()) as client:
        handshake(client, "OAUTHBEARER")
        answer = message(client, initial(token()))
        assert answer.error_code == NONE
        assert 0 < answer.session_lifetime.total_seconds() <= 86_400
        assert client.ask(3, 1, topics=None).brokers
    with WireClient(broker.host, broker.port, tls=authority.client_context()) as client:
        handshake(client, "OAUTHBEARER")
        assert message(client, initial(_none())).auth_bytes == b'{"status":"invalid_token"}'
        assert message(client, b"\x01").error_code == FAILED


def test_tokens_of_known_keys_do_not_wait_while_keys_are_read(keys: Path) -> None:
    clock = ManualClock()
    tokens = tokens_of(keys, clock)
    tokens.check(token())
    clock.sleep_ms(MIN_REFRESH_MS)
    published = keys.read_bytes()
    keys.unlink()
    os.mkfifo(keys)  # who opens it waits for the other side
    with ThreadPoolExecutor(2) as pool:
        made_up = pool.submit(tokens.check, token(kid="made up"))
        with keys.open("wb") as file:  # the keys are being read
            assert pool.submit(tokens.check, token()).result(10)[0] == "alice"
            file.write(published)
        assert isinstance(made_up.exception(30), InvalidTokenError)


def test_passwords_do_not_wait_while_keys_are_read(
    start_broker: Callable[..., RunningBroker], root_with_users: str, keys: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    broker = start_broker(
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.certificate("server"),
            "sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": keys.as_uri(),
        },
        root=root_with_users,
    )
    published = keys.read_bytes()
    keys.unlink()
    os.mkfifo(keys)

    def client() -> WireClient:
        return WireClient(broker.host, broker.port, tls=authority.client_context())

    with ExitStack() as opened:
        waiting = [opened.enter_context(client()) for _ in range(THREADS)]
        for one in waiting:
            handshake(one, "OAUTHBEARER")
            one.send(AUTHENTICATE, 2, auth_bytes=initial(token()))
        with keys.open("wb") as file:
            with client() as other:
                assert log_in(other, mechanism="PLAIN").error_code == NONE
            file.write(published)
        for one in waiting:
            assert one.receive(AUTHENTICATE, 2)[1].error_code == NONE
