"""Which addresses are on the public internet: every other one is refused unless its endpoint allows it.

The networks are those of the IANA registries of special-purpose addresses (RFC 6890 and its updates), written out so
that the answer does not depend on the version of Python.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_NOT_PUBLIC_V4 = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host: many systems take 0.0.0.0 for loopback
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds keep their metadata service there
        "127.0.0.0/8",
        "168.63.129.16/32",  # looks public, but is Azure's own service to its machines
        "169.254.0.0/16",  # link-local: most clouds keep their metadata service there
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_UNICAST_V6 = ip_network("2000::/3")
"""All that was ever given out. Loopback, link-local, unique-local, mapped and multicast addresses are outside of it."""
_NOT_PUBLIC_V6 = tuple(
    ip_network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: carries any IPv4 address
        "3fff::/20",  # documentation
    )
)
_NAT64 = ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether a connection to this address leaves for the public internet; what is no address does not.

    A NAT64 address (RFC 6052) is judged by the IPv4 address that it stands for: on a network without IPv4 there is no
    other way out. Every other form that carries an IPv4 address is refused.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(str(IPv4Address(int(address) & 0xFFFFFFFF)))
        return address in _UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
    return not any(address in network for network in _NOT_PUBLIC_V4)


def is_loopback(text: str) -> bool:
    """Whether the address is this machine's own."""
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False
