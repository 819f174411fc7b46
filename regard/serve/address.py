"""Where a server listens, and whether others can get there. Nothing here is heavy: a mistake is answered at once."""

from __future__ import annotations

import ipaddress
import socket

from regard.errors import ConfigError

BACKLOG = 1024  # connections that the system holds until they are taken
PORTS = 20  # tried from the one that was asked for


def bind(host: str, port: int, *, exactly: bool) -> socket.socket:
    """The port that was asked for, or the next that is free."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if exactly or not port else range(port, port + PORTS):
        listener = socket.socket(
            kind, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # known as TCP, it waits for no full packet
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(BACKLOG)  # whoever comes before we are ready is not turned away
        except OSError as error:
            listener.close()
            trouble = error.strerror
            continue
        return listener
    raise ConfigError(f"--port {port}: cannot listen there on {host} ({trouble}); choose another with --port")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_every(host: str) -> bool:
    """0.0.0.0 and ::, where any name may lead here."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
