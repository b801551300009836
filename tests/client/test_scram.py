"""SCRAM: the examples of the RFCs, both sides against each other, and hostile messages."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.scram import (
    Mechanism,
    ScramClient,
    ScramError,
    ScramServer,
    credential_of,
    decoy_credential,
    is_password,
    new_credential,
    salted_password,
)
from sparklog.errors import InvalidRequestError
from sparklog.metadata import ScramUsers

SHA_256, SHA_512 = Mechanism.SHA_256, Mechanism.SHA_512
DECOY_KEY = base64.b64encode(b"d" * 32).decode()
BOTH = pytest.mark.parametrize("mechanism", Mechanism)


def users_with(mechanism: Mechanism, user: str = "alice", password: str = "secret") -> ScramUsers:
    return ScramUsers(DECOY_KEY, {user: {mechanism.value: new_credential(mechanism, password)}})


def server_of(
    users: ScramUsers, mechanism: Mechanism = SHA_256, nonce: Callable[[], str] | None = None
) -> ScramServer:
    return ScramServer(mechanism, lambda: users, nonce or (lambda: "SERVER"))


def test_example_of_rfc_7677() -> None:
    """From both sides."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of(SHA_256, salted_password(SHA_256, "pencil", salt, 4096), salt, 4096)
    server = server_of(
        ScramUsers(DECOY_KEY, {"user": {SHA_256.value: credential}}),
        nonce=lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    client = ScramClient(SHA_256, "user", "pencil", lambda: "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    answer = server.answer(client.first())
    assert answer == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final(answer)
    assert final == b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = server.answer(final)
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify(last)
    assert (server.is_done, server.user) == (True, "user")


@pytest.mark.slow
@given(st.text(min_size=1, max_size=8), st.text(alphabet="a=,ü \u20ac", min_size=1, max_size=8))
def test_sides_agree(password: str, user: str) -> None:
    if any(0xD800 <= ord(one) < 0xE000 for one in password):
        return
    for mechanism in Mechanism:
        credential = new_credential(mechanism, password)
        server = server_of(ScramUsers(DECOY_KEY, {user: {mechanism.value: credential}}), mechanism)
        client = ScramClient(mechanism, user, password)
        client.verify(server.answer(client.final(server.answer(client.first()))))
        assert (server.is_done, server.user) == (True, user)
        assert is_password(mechanism, credential, password)
        assert not is_password(mechanism, credential, password + "x")


@BOTH
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "secret"), ("bob", "wrong")])
def test_wrong_passwords_and_unknown_users_fail_alike(mechanism: Mechanism, user: str, password: str) -> None:
    server = server_of(users_with(mechanism), mechanism)
    client = ScramClient(mechanism, user, password)
    final = client.final(server.answer(client.first()))
    with pytest.raises(ScramError, match="the proof is wrong, or the user is unknown"):
        server.answer(final)
    assert not server.is_done


@BOTH
def test_unknown_user_has_a_salt_like_that_of_known_ones(mechanism: Mechanism) -> None:
    users = users_with(mechanism)
    known = users.credentials["alice"][mechanism.value]
    decoys = [decoy_credential(users, name, mechanism) for name in ("bob", "bob", "eve")]
    assert decoys[0] == decoys[1] != decoys[2]
    assert decoys[0].iterations == known.iterations
    assert {len(base64.b64decode(one.salt)) for one in (known, *decoys)} == {26}
    other = ScramUsers(base64.b64encode(b"e" * 32).decode(), users.credentials)
    assert decoy_credential(other, "bob", mechanism) != decoys[0]


def test_decoy_cannot_be_proved() -> None:
    """Its stored key is not the hash of any key that a client can find."""
    decoy = decoy_credential(users_with(SHA_256), "bob", SHA_256)
    assert not is_password(SHA_256, decoy, "")


def test_exchange_cannot_be_replayed() -> None:
    users, nonces = users_with(SHA_256), iter(["ONE", "TWO"])
    first = server_of(users, nonce=lambda: next(nonces))
    client = ScramClient(SHA_256, "alice", "secret")
    final = client.final(first.answer(client.first()))
    assert first.answer(final).startswith(b"v=")
    with pytest.raises(ScramError, match="after the end"):
        first.answer(final)
    second = server_of(users, nonce=lambda: next(nonces))
    second.answer(client.first())
    with pytest.raises(ScramError, match="nonce of another exchange"):
        second.answer(final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,r=x,n=alice",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=root,n=alice,r=x",
        b"n,,m=ext,n=alice,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,n=\xff,r=x",
        b"n" * 9000,
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError) as failed:
        server_of(users_with(SHA_256)).answer(message)
    assert "alice" not in str(failed.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final[:-4],
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"SERVER", b"server"),
        lambda final: final.replace(b"SERVER", b""),
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final.partition(b",p=")[0] + b",p=!!!!",
        lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
        lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(64)),
        lambda _: b"",
        lambda _: b"n,,n=alice,r=x",
    ],
)
def test_final_messages_that_are_refused(change: Callable[[bytes], bytes]) -> None:
    server = server_of(users_with(SHA_256))
    client = ScramClient(SHA_256, "alice", "secret")
    final = client.final(server.answer(client.first()))
    with pytest.raises(ScramError):
        server.answer(change(final))
    assert not server.is_done


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(first: bytes, second: bytes) -> None:
    server = server_of(users_with(SHA_256))
    for message in (b"n,,n=alice," + first, second):
        try:
            server.answer(message)
        except ScramError:
            break
    assert not server.is_done


@pytest.mark.parametrize(
    "answer",
    [
        b"r=CLIENT,s=c2FsdA==,i=4096",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=CLIENTx,s=c2FsdA==,i=1",
        b"r=CLIENTx,s=c2FsdA==,i=99999999",
        b"r=CLIENTx,s=!,i=4096",
        b"e=unknown-user",
        b"",
    ],
)
def test_client_refuses_a_hostile_server(answer: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient(SHA_256, "alice", "secret", lambda: "CLIENT").final(answer)


def test_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient(SHA_256, "alice", "secret", lambda: "CLIENT")
    client.final(b"r=CLIENTx,s=c2FsdA==,i=4096")
    with pytest.raises(ScramError, match="does not know the password"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(("password", "iterations"), [("", 4096), ("x", 4095), ("x", 16_385)])
def test_credentials_that_are_refused(password: str, iterations: int) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_USER"):
        new_credential(SHA_256, password, iterations)


def test_keys_are_in_no_text() -> None:
    users = users_with(SHA_256)
    assert repr(users) == "ScramUsers(['alice'])"
    assert repr(users.credentials["alice"][SHA_256.value]) == "ScramCredential(iterations=4096)"
