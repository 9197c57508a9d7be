"""Meeting of the processes of a run on one computer: on its loopback address, which no other computer can
reach.

The libraries below listen on all network interfaces unless they are told otherwise, and whoever connects is
taken for a process of the run.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

LOOPBACK = "127.0.0.1"
BACKEND = "loopback"
WAITING_SECONDS = 60
INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}
"""Variables that name the network interface of a library, and what goes before a name that is meant exactly."""


class LocalMeeting(StaticTCPRendezvous):
    """The meeting place of the processes of one launcher, for torch's launcher."""

    def __init__(self, given: RendezvousParameters) -> None:
        store = listening_store(LOOPBACK, 0, timedelta(seconds=WAITING_SECONDS))
        super().__init__(LOOPBACK, store.port, 0, 1, given.run_id, WAITING_SECONDS)
        # the class above would make one that listens on all interfaces
        self._store = store

    def get_backend(self) -> str:
        return BACKEND


def listening_store(host: str, port: int, timeout: timedelta) -> TCPStore:
    """A store that listens on one address of this computer alone.

    Args:
        port: 0 for any that is free.
        timeout: how long a process waits for what another one sets.

    Raises:
        OSError: the port is in use.
    """
    listener = socket.create_server((host, port), backlog=128)
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, use_libuv=sys.platform != "win32",
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def is_on_one_computer(host: str, world_size: int) -> bool:
    """Return whether all processes of a group run on this computer, by the number that the launcher started here.
    Without that number, only if they meet at a loopback address: a name may mean the loopback on its own computer
    alone.

    Args:
        host: where the processes meet.
    """
    here = os.environ.get("LOCAL_WORLD_SIZE")
    if here is not None:
        return here == str(world_size)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loopback_of(host: str) -> str | None:
    """The loopback address that a name or an IPv4 address means on this computer; ``None`` if it means another one."""
    try:
        address = socket.gethostbyname(host)
        return address if ipaddress.ip_address(address).is_loopback else None
    except OSError:
        return None


def stay_local() -> None:
    """Let the libraries through which gradients are exchanged listen on the loopback interface alone, in this process.
    A variable that is already set says otherwise.
    """
    import psutil

    found = psutil.net_if_addrs().items()
    names = [name for name, places in found if any(place.address == LOOPBACK for place in places)]
    for variable, exactly in INTERFACE_VARIABLES.items():
        if names:
            os.environ.setdefault(variable, exactly + names[0])
