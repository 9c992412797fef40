"""Addresses of this host: which interface leads to another, and which port is free. Linux; no torch."""

import fcntl
import socket
import struct

# What the kernel calls the request for an interface's address, and how long its name may be.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
_ANY_PORT_BUT_0 = 9


def address_towards(address: str) -> str:
    """The address of this host that others see when it speaks to that address. Raises OSError for none."""
    family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT_BUT_0, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: the kernel chooses a route
        return str(probe.getsockname()[0])


def interface_towards(address: str) -> str | None:
    """The name of the interface over which this host reaches an address; None where it cannot be told."""
    try:
        own = address_towards(address)
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(
                    probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                )
            except OSError:  # it has no address of this family
                continue
        if socket.inet_ntoa(found[20:24]) == own:
            return name
    return None


def free_port() -> int:
    """A port that nobody on this host holds now."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
