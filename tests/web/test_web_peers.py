"""A link that stands on a command line is of no use to other users of the machine."""

from __future__ import annotations

import os
import socket

import pytest
from pages_site import site_on

from savegame.vault import Vault
from savegame.web.peers import myself, user_of

pytestmark = pytest.mark.skipif(myself() is None, reason="the system does not tell whose a connection is")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_link_for_one_user_is_refused_to_others_and_not_used_up(quick_vault: Vault, host: str) -> None:
    with site_on(quick_vault, host=host) as site:
        theirs = site.server.link(os.getuid() + 1)
        refused = site.open(theirs)
        assert (refused.status, "set-cookie" in refused.headers) == (403, False)
        assert site.server.keys.works(theirs.partition("#")[2])
        assert site.open(site.server.link(os.getuid())).status == 200


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_user_of_a_connection_is_found(family: socket.AddressFamily) -> None:
    with socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family) as listening:
        ours = listening.getsockname()[:2]
        with socket.create_connection(ours) as connected:
            peer = connected.getsockname()[:2]
            assert user_of(peer, ours) == os.getuid()
            assert user_of(peer, (ours[0], 1)) is None
        assert user_of(peer, ours) is None, "closed: the kernel says that it is the root's"
