"""Which interface leads to another machine; two real machines are in test_two_machines."""

import pytest

from onsight.ranks.meeting import interface_towards


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no.such.host.invalid", ""])
def test_loopback_and_unknown_hosts_have_none(host):
    assert interface_towards(host) is None
