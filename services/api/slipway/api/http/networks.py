"""Networks that an operator allows, and the IPv4 address that is embedded in an IPv6 address.

Webhooks and the proxy share these checks: both make the api connect to an address that a user chose.

Source: RFC 6052 (addresses of the NAT64 prefix contain an IPv4 address).
"""

import ipaddress
from collections.abc import Sequence

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse networks in CIDR form. Raises ValueError for a text that is no network."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_within(address: IP, networks: Sequence[Network]) -> bool:
    """Whether one of the networks contains the address, or the IPv4 address that is embedded in it."""
    return any(each in network for each in {address, inner(address)} for network in networks)


def inner(address: IP) -> IP:
    """Return the IPv4 address that is embedded in an IPv6 address (mapped, 6to4, NAT64); else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def normal_text(text: str) -> str:
    """Return the one normal spelling of an address, or of the IPv4 address embedded in it; empty if it is no address.

    The zone of an IPv6 address is removed: it only names the interface through which a machine reaches the address.
    """
    try:
        address = inner(ipaddress.ip_address(text))
    except ValueError:
        return ""
    return str(address).partition("%")[0]


METADATA = parse_networks(
    (
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:ec2::/64",  # AWS: the metadata of machines, the identities of pods
        "fd20:ce::254/128",  # Google
        "fd00:42::42/128",  # Scaleway
    )
)
"""Where clouds serve the credentials and settings of their machines, in addition to link-local addresses."""
