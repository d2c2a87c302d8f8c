"""Connections to the API server: certificates, proxies, and detection of dead connections."""

import base64
import socket
import ssl
import tempfile
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from trainyard.errors import ConfigError
from trainyard.gateways.kubernetes.cluster_access import Access

KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
"""A connection whose other end has vanished is detected after a minute; a log may be silent."""


def pool_of(access: Access, connections: int) -> Any:
    """The kept-alive connections to a cluster. Raises ConfigError for certificates that cannot be used."""
    import urllib3

    settings: dict[str, Any] = {"num_pools": 2, "maxsize": connections, "block": True}
    settings["socket_options"] = [*urllib3.connection.HTTPConnection.default_socket_options, *KEEP_ALIVE]
    if access.server.startswith("https:"):
        settings["ssl_context"] = ssl_context(access)
        if access.server_name:
            settings.update(server_hostname=access.server_name, assert_hostname=access.server_name)
        if not access.verify:
            settings["cert_reqs"] = "CERT_NONE"
    proxy = proxy_of(access)
    if not proxy:
        return urllib3.PoolManager(**settings)
    try:
        address = urllib3.util.parse_url(proxy)._replace(auth=None).url
        return urllib3.ProxyManager(address, proxy_headers=proxy_headers(proxy), **settings)
    except (ValueError, urllib3.exceptions.HTTPError):
        host = proxy.rpartition("@")[2]
        raise ConfigError(f"the proxy {host} cannot be used: it is no address of http or https") from None


def proxy_of(access: Access) -> str:
    """Return the proxy between us and the API server; empty if there is none."""
    address = urlsplit(access.server)
    if access.proxy or proxy_bypass(address.hostname or ""):
        return access.proxy
    return getproxies().get(address.scheme, "")


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the header with the user and password of a proxy's URL; empty when it names no user."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def ssl_context(access: Access) -> ssl.SSLContext:
    """Return the certificates of both sides. Raises ConfigError if they cannot be used."""
    try:
        authority = access.authority.decode() or None
        context = ssl.create_default_context(cadata=authority)
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.credentials.certificate:
            with tempfile.NamedTemporaryFile() as file:  # Python reads keys from files only
                file.write(access.credentials.certificate + b"\n" + access.credentials.key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"the certificates of context {access.context} cannot be used ({why}); they must be PEM, with a "
            "key that belongs to the client's"
        ) from None
    return context
