"""Settings of encryption and authentication: of all listeners and of one, and what is refused."""

import pytest

from sparklog.errors import InvalidRequestError
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.network import SecurityProtocol
from sparklog_server.settings.security import NoMatchingRuleError, PrincipalRules

PEM = {"ssl.keystore.location": "/k.pem"}
JWKS = "https://idp.example/keys"


def test_listeners_may_differ() -> None:
    config = ServerConfig.parse(
        {
            **PEM,
            "listeners": "INSIDE://:1,SSL://:2,OUTSIDE://:3,PLAINTEXT://:4",
            "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_SSL",
            "listener.name.outside.ssl.keystore.location": "/outside.pem",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
            "ssl.client.auth": "required",
            "ssl.truststore.location": "/t.pem",
        }
    )
    found = config.secured_listeners()
    assert [one.protocol for one in found.values()] == [
        SecurityProtocol.SASL_PLAINTEXT,
        SecurityProtocol.SSL,
        SecurityProtocol.SASL_SSL,
        SecurityProtocol.PLAINTEXT,
    ]
    assert found["OUTSIDE"].settings.ssl_keystore_location == "/outside.pem"
    assert found["SSL"].settings.ssl_keystore_location == "/k.pem"
    assert found["OUTSIDE"].mechanisms == ("PLAIN",)
    assert found["INSIDE"].mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert found["SSL"].mechanisms == ()
    assert [one.authenticates for one in found.values()] == [True, True, True, False]
    # As in Kafka: for SASL_SSL only with the listener's prefix.
    assert found["OUTSIDE"].settings.ssl_client_auth == "none"
    assert found["SSL"].settings.ssl_client_auth == "required"


def test_settings_of_a_mechanism_on_a_listener() -> None:
    """As Kafka's documentation and its users write them."""
    listener = "listener.name.sasl_ssl"
    config = ServerConfig.parse(
        {
            **PEM,
            "listeners": "SASL_SSL://:1",
            "connections.max.reauth.ms": "1",
            f"{listener}.scram-sha-512.connections.max.reauth.ms": "5000",
            f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": "of the mechanism",
            f"{listener}.sasl.oauthbearer.expected.audience": "of the listener",
        }
    )
    found = config.secured_listeners()["SASL_SSL"]
    assert [found.max_reauth_ms(one) for one in ("SCRAM-SHA-256", "SCRAM-SHA-512")] == [1, 5000]
    assert found.settings.oauth_expected_audience == "of the mechanism"


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (
            {"listeners": "SASL_SSL://:1", "listener.name.sasl_ssl.scram-sha-512.ssl.client.auth": "none"},
            "unknown",
        ),
        ({"listeners": "SSL://:1"}, "listener SSL .SSL.: ssl.keystore.location is missing"),
        ({"listeners": "SSL://:1", "ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({"ssl.keystore.type": "PKCS12"}, "openssl pkcs12 -in"),
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type: found 'JKS', expected PEM"),
        ({**PEM, "listeners": "SSL://:1", "ssl.client.auth": "required"}, "without a trust store"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "any of TLSv1.2, TLSv1.3"),
        ({"ssl.principal.mapping.rules": "RULE:a/b"}, "expected RULE:pattern/replacement/"),
        ({"ssl.principal.mapping.rules": "RULE:(/b/"}, r"found the pattern '\('"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "PLAIN"}, "unencrypted"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "any of SCRAM-SHA-256"),
        (
            {"listener.name.other.ssl.client.auth": "none"},
            "no such listener, only PLAINTEXT",
        ),
        ({"listener.name.plaintext.ssl.client.aut": "none"}, "Write 'ssl.client.auth'"),
        (
            {"listener.name.plaintext.scram-sha-256.sasl.jaas.config": "x.Y required password=top-secret;"},
            "sparklog users create",
        ),
        ({"listener.name.plaintext.ssl.keystore.password": "top-secret"}, "ssl.key.password"),
        ({**PEM, "listeners": "SASL_SSL://:1", "sasl.enabled.mechanisms": "OAUTHBEARER"}, "without keys"),
        (
            {
                **PEM,
                "listeners": "SASL_SSL://:1",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": JWKS,
            },
            "add it to org.apache.kafka.sasl.oauthbearer.allowed.urls",
        ),
    ],
)
def test_what_is_refused(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        ServerConfig.parse(configs)
    assert "top-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=duke,OU=ServiceUsers,O=Org", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L", "CN=Duke,OU=SME", "duke@sme"),
        ("RULE:^cn=(.*?),.*$/$1/U , DEFAULT", "cn=webuser,ou=x", "WEBUSER"),
        ("RULE:^x$/y/, RULE:^CN=(.*)$/$1/, DEFAULT", "CN=z", "z"),
        ("RULE:^x$/y/,DEFAULT", "CN=z", "CN=z"),
        (r"RULE:^CN=(.*)\/(.*)$/$2/", "CN=a/b", "b"),
        ("RULE:^CN=(.*)$/$1@$4/", "CN=a", "a@$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("RULE:^CN=(.*)$/$0!/", "CN=a", "CN=a!"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
        ("RULE:^CN=(.*?)(,O=(.*))?$/$1-$3/", "CN=a", "a-"),
        ("RULE:.*/x/", "CN=a", "xx"),  # Java's replaceAll, too, also replaces the empty end
    ],
)
def test_mapping_rules_are_those_of_kafka(rules: str, name: str, user: str) -> None:
    assert PrincipalRules(rules).user_of(name) == user


def test_name_that_no_rule_matches() -> None:
    with pytest.raises(NoMatchingRuleError):
        PrincipalRules("RULE:^CN=a$/a/").user_of("CN=b")
