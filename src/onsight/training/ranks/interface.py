"""The network interface by which a machine reaches another: gloo guesses by the host's name."""

import socket
import struct
from contextlib import suppress

_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux


def interface_towards(host: str) -> str | None:
    """The interface from which packets to a host leave; None if it is unknown or loopback.

    Nothing is sent. Many systems name themselves 127.0.0.1 or 127.0.1.1 in /etc/hosts, and gloo
    would then wait there for the ranks of other machines.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # of UDP: only looks up the route
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return None if address.startswith("127.") else name
    return None
