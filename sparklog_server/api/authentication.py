"""SaslHandshake and SaslAuthenticate: how a client of a SASL listener says who it is.

Not here: the mechanisms and the session (security/sasl.py), which requests are allowed before
(protocol/session.py).
"""

import asyncio
from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.session import Phase
from sparklog_server.security.tokens import AuthenticationError

# --- SaslHandshake -----------------------------------------------------------------------------------


@api(ApiKey.SASL_HANDSHAKE, versions=range(2), waits=True)
async def handle_sasl_handshake(request: Any, context: RequestContext, services: Services) -> Any:
    """SaslHandshake (key 17), versions 0-1.

    Does: begin an authentication, or a re-authentication of a session that expires (KIP-368), with one of the
        enabled mechanisms; an unknown one is answered with the list.
    Does not: take messages without Kafka's headers, as they follow version 0 in Kafka: it is answered
        UNSUPPORTED_VERSION, with the mechanisms.
    On listeners without SASL, and where no authentication is due: ILLEGAL_SASL_STATE.
    Versions: 1 is followed by SaslAuthenticate (KIP-152).
    """
    session, authenticator = context.session, services.authenticator
    code = ErrorCode.none
    mechanisms: tuple[str, ...] = ()
    if session is None or not authenticator.may_begin(session):
        code = ErrorCode.illegal_sasl_state
    else:
        await services.root.look()  # a user that was made a moment ago may be known to the root only
        mechanisms = authenticator.mechanisms(session)
        if context.api_version == 0:
            session.phase, code = Phase.FAILED, ErrorCode.unsupported_version
        else:
            try:
                authenticator.begin(session, request.mechanism)
            except AuthenticationError:
                code = ErrorCode.unsupported_sasl_mechanism
                await asyncio.sleep(services.config.security.failed_authentication_delay_ms / 1000)
    return make(context.types.SaslHandshakeResponse, error_code=code, mechanisms=mechanisms)


# --- SaslAuthenticate --------------------------------------------------------------------------------


@api(ApiKey.SASL_AUTHENTICATE, versions=range(3), waits=True)
async def handle_sasl_authenticate(request: Any, context: RequestContext, services: Services) -> Any:
    """SaslAuthenticate (key 36), versions 0-2.

    Does: one message of the mechanism that the handshake has chosen. A failure is answered after
        connection.failed.authentication.delay.ms, and ends the connection.
    Does not: say whether the user exists.
    Versions: 1 returns the lifetime of the session (KIP-368); 2 flexible.
    """
    types, session = context.types, context.session
    if session is None or session.phase is not Phase.EXCHANGE:
        return make(
            types.SaslAuthenticateResponse,
            error_code=ErrorCode.illegal_sasl_state,
            error_message="SaslAuthenticate request received after successful authentication",
            auth_bytes=b"",
        )
    message = bytes(request.auth_bytes)
    try:
        answer = await services.authenticator.answer(session, message, context.peer_host)
    except AuthenticationError as error:
        return make(
            types.SaslAuthenticateResponse,
            error_code=ErrorCode.sasl_authentication_failed,
            error_message=str(error),
            auth_bytes=b"",
        )
    return make(
        types.SaslAuthenticateResponse,
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=answer.message,
        session_lifetime=answer.lifetime_ms,  # from version 1 on
    )
