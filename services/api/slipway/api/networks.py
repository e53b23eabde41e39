"""Networks that an operator allows, and the IPv4 address that an IPv6 one leads to.

The checks of webhooks and of the proxy share them: both make the api connect to an address that others chose.

Source: RFC 6052 (addresses of the NAT64 prefix hold an IPv4 one).
"""

import ipaddress
from collections.abc import Sequence

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks in CIDR form. Raises ValueError for one that is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_within(address: IP, networks: Sequence[Network]) -> bool:
    """Whether one of the networks holds the address, or the IPv4 one that it leads to."""
    return any(each in network for each in {address, inner(address)} for network in networks)


def inner(address: IP) -> IP:
    """The IPv4 address that an IPv6 one leads to, if it does: mapped, 6to4, NAT64."""
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
    """One spelling for all texts of an address, that of the IPv4 one that it leads to; empty for a text that is none.

    An IPv6 address loses its zone, which says by which interface a machine reaches it.
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
"""Where clouds serve their machines' credentials and settings, besides link-local addresses."""
