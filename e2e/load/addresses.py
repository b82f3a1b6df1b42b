"""Where load may be sent: this machine and the one-machine cluster, nobody else."""

from __future__ import annotations

import ipaddress

from yarl import URL

ALLOWED = tuple(ipaddress.ip_network(net) for net in ("127.0.0.0/8", "::1/128", "10.244.0.0/16", "10.96.0.0/16"))


class ForbiddenAddressError(ValueError):
    """Load was to be sent to a place that it must not reach."""


def checked(url: str) -> str:
    """The URL without its last slash. Raises ForbiddenAddressError; names other than localhost are never looked up."""
    host = URL(url).host or ""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not any(address in net for net in ALLOWED) or URL(url).scheme != "http":
        allowed = ", ".join(str(net) for net in ALLOWED)
        raise ForbiddenAddressError(f"{url}: load goes only to http:// addresses in {allowed} (or localhost)")
    return url.rstrip("/")
