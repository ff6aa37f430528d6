"""The address of a Spark Connect server, looked at before Spark's client waits for it."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from photinus.core.errors import NotReadyError, UsageError
from photinus.transport.filesystems import check_reachable, speaks_tls

_PORT = 15002
"""Of a server whose address names none."""
_FORM = "write it as sc://host:port/;token=..."


def check_remote(remote: str) -> None:
    """Refuses a server that Spark's client would try again and again, for ten minutes and more.

    Args:
        remote: as of SPARK_REMOTE; what follows the first semicolon may be a token, and is in no
            message.

    Raises:
        UsageError: it has another form.
        NotReadyError: nothing answers there, or an answer without TLS, which its parameters need.
    """
    address, _, parameters = remote.partition(";")
    if parameters and not address.endswith("/"):
        wrong = "SPARK_REMOTE lacks the / before its parameters"
        raise UsageError(wrong, got=f"{address};...", do=_FORM)
    address = address.removesuffix("/")
    check_reachable(address)
    settings = {name: value for name, _, value in (p.partition("=") for p in parameters.split(";"))}
    has_token = "token" in settings or "SPARK_CONNECT_AUTHENTICATE_TOKEN" in os.environ
    uses_tls = settings.get("use_ssl", "").lower() == "true"
    host, port = urlsplit(address).hostname, urlsplit(address).port or _PORT
    if host and (uses_tls or (has_token and host != "localhost")) and not speaks_tls(host, port):
        wrong = "use_ssl=true asks for TLS" if uses_tls else "a token needs TLS"
        do = f"put it behind a proxy that does, or reach it as localhost: ssh -L {port}:..."
        do += ", without use_ssl" * uses_tls
        raise NotReadyError(f"{wrong}, which the server does not speak", got=address, do=do)
