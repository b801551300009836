"""A botocore client for one bucket, made from our options.

Invariants: one attempt a request, so that repeating is decided in one place (s3_client.py); every wait for
    the store has a limit.
Not here: requests.
Concurrency: a botocore client may be used by any thread, but not by a forked child.
Sources: botocore.config.Config.
"""

import functools
import urllib.parse
from typing import Any

import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sparklog.storage.s3_errors import storage_error
from sparklog.storage.s3_options import S3Options

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


def connect(bucket: str, options: S3Options, *, signature_version: str | None = None) -> Any:
    """A client; nothing has been asked of the store yet.

    Raises:
        StorageError: options that botocore refuses, or a profile that is not there.
    """
    try:
        session = botocore.session.Session(profile=options.profile)
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        path_style = options.path_style
        if path_style is None:
            path_style = options.endpoint_url is not None
            client = _create(session, options, signature_version, path_style=path_style)
            # The endpoint may also come from AWS_ENDPOINT_URL or a configuration file. Stores other than
            # AWS seldom have a host name for each bucket.
            host = urllib.parse.urlsplit(client.meta.endpoint_url).hostname or ""
            if path_style or host.endswith(_AMAZON):
                return client
            path_style = True
        return _create(session, options, signature_version, path_style=path_style)
    except (BotoCoreError, ValueError) as error:
        raise storage_error("connect", f"s3://{bucket}", error, options) from error


@functools.cache
def _loader(data_path: str | None) -> Any:
    """What botocore knows of S3, read once a process: that takes most of the time of a new client."""
    return botocore.loaders.create_loader(data_path)


def _create(session: Any, options: S3Options, signature_version: str | None, *, path_style: bool) -> Any:
    return session.create_client(
        "s3",
        region_name=options.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=options.endpoint_url,
        use_ssl=options.use_ssl,
        verify=options.verify,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            max_pool_connections=options.max_concurrency,
            s3={"addressing_style": "path" if path_style else "auto"},
            signature_version=UNSIGNED if options.anon else signature_version,
            # Other stores than AWS do not know the newer checksums; our bytes carry their own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            user_agent_extra="sparklog",
        ),
    )
