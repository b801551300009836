"""The exchanges of mechanisms: no other identity, and the work for unknown users."""

import base64
import hashlib
import time
from collections.abc import Callable

import pytest

import sparklog
from sparklog.client.scram import Mechanism, new_credential
from sparklog.metadata import ScramUsers
from sparklog_server.security.sasl import PlainExchange, ScramExchange
from tests.support.running_broker import RunningBroker

Start = Callable[..., RunningBroker]


def test_plain_asks_for_no_other_identity(root_with_users: str) -> None:
    with sparklog.open(root_with_users) as log:
        users = log.image.scram
    for data, is_known in ((b"alice\0alice\0secret", True), (b"bob\0alice\0secret", False)):
        exchange = PlainExchange(lambda: users)
        if is_known:
            exchange.answer(data)
        else:
            with pytest.raises(Exception, match="authorization id that is different"):
                exchange.answer(data)
        assert exchange.is_done == is_known


def test_a_password_of_an_unknown_user_is_hashed_like_that_of_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where kafka-configs has made a credential for SHA-512 only, with more iterations."""
    credential = new_credential(Mechanism.SHA_512, "secret", 8192)
    key = base64.b64encode(bytes(32)).decode()
    users = ScramUsers(key, {"alice": {Mechanism.SHA_512.value: credential}})
    hashed: list[tuple[str, int, int]] = []
    compute = hashlib.pbkdf2_hmac

    def watched(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append((name, len(salt), iterations))
        return compute(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", watched)
    for user in ("alice", "nobody"):
        with pytest.raises(Exception, match="Invalid username or password"):
            PlainExchange(lambda: users).answer(f"\0{user}\0wrong".encode())
    assert hashed == [("sha512", 26, 8192)] * 2


def _work(run: Callable[[], object], rounds: int) -> float:
    """The least CPU time of some rounds: others only add to it."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        run()
        found.append(time.thread_time() - began)
    return min(found)


def test_unknown_users_take_the_same_work(root_with_users: str) -> None:
    with sparklog.open(root_with_users) as log:
        users = log.image.scram

    def plain(user: str) -> Callable[[], object]:
        def run() -> None:
            with pytest.raises(Exception, match="Invalid username or password"):
                PlainExchange(lambda: users).answer(f"\0{user}\0wrong".encode())

        return run

    def scram(user: str) -> Callable[[], object]:
        def run() -> None:
            exchange = ScramExchange("SCRAM-SHA-256", lambda: users)
            nonce = exchange.answer(f"n,,n={user},r=x".encode()).decode().split(",")[0]
            with pytest.raises(Exception, match="invalid credentials"):
                exchange.answer(f"c=biws,{nonce},p={base64.b64encode(bytes(32)).decode()}".encode())

        return run

    for made in (plain, scram):
        known, unknown = _work(made("alice"), 30), _work(made("nobody"), 30)
        assert 0.4 < known / unknown < 2.5, made
