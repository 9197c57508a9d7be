"""Trusted computers: the user's OpenSSH list, and a list of the program next to its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.errors import UserError
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import read_bytes
from modules.util.owned_files import Owned

if TYPE_CHECKING:
    from asyncssh import SSHKey, SSHKnownHosts

NAME = "known_hosts"
MAX_BYTES = 16 << 20


class UnknownHost(UserError):
    """No key of a computer is trusted yet. ``trust`` changes that.

    Args:
        remote: the computer; the jump host, if that one is unknown.
        message, field, hint: as for every ``UserError``.
    """

    def __init__(self, remote: RemoteConfig, key: SSHKey, message: str, field: str, hint: str) -> None:
        super().__init__(message, field, hint)
        self.remote, self.key = remote, key

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key, as OpenSSH shows it."""
        return str(self.key.get_fingerprint())


def lists_of_hosts() -> list[Path]:
    """The known-hosts files, OpenSSH's first."""
    return [Path.home() / ".ssh" / NAME, settings_folder() / NAME]


def known_hosts() -> SSHKnownHosts:
    """Read these files.

    Raises:
        UserError: a file is unreadable.
    """
    import asyncssh

    made = asyncssh.SSHKnownHosts()
    for path in lists_of_hosts():
        if path.exists():
            text = read_bytes(path, "list of known hosts", MAX_BYTES).decode("utf-8", "replace")
            try:
                made.load(text)
            except ValueError as error:
                raise UserError(
                    f"{path} cannot be read: {error}", hint="correct or remove that line"
                ) from None
    return made


def is_known(remote: RemoteConfig) -> bool:
    """Return whether any key of this computer is trusted."""
    import asyncssh

    # with a port asyncssh also finds the key of the computer itself, but a container there has a key of its own
    found = asyncssh.match_known_hosts(known_hosts(), place_of(remote), "", None)
    return any(found[:2])


def place_of(remote: RemoteConfig) -> str:
    """The name of a computer in such files."""
    return remote.host if remote.port == 22 else f"[{remote.host}]:{remote.port}"


def trust(remote: RemoteConfig, key: SSHKey) -> Path:
    """Add a key to the program's list. Returns the list's file."""
    folder = settings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    Owned(folder, local=True).append(NAME, f"{place_of(remote)} ".encode() + key.export_public_key())
    return folder / NAME


def fault_of_key(remote: RemoteConfig, key: SSHKey) -> UserError:
    """The error for a computer whose key is not trusted; ``UnknownHost`` if no other key of it is."""
    fingerprint = key.get_fingerprint()
    if is_known(remote):
        files = " or ".join(str(path) for path in lists_of_hosts() if path.exists())
        return UserError(
            f"the host key of {place_of(remote)} is not the trusted one: it is now {fingerprint}. Either the computer "
            "was set up again, or somebody is intercepting the connection",
            "remote.host",
            f"ask its owner for the fingerprint; if it is the new one, remove the line of {place_of(remote)} from "
            f"{files} and trust the computer again",
        )
    options = {"port": remote.port if remote.port != 22 else "", "proxy-jump": remote.proxy_jump}
    more = "".join(f" --{name} {value}" for name, value in options.items() if value)
    return UnknownHost(
        remote,
        key,
        f"the host {place_of(remote)} is unknown; its key has the fingerprint {fingerprint}",
        "remote.host",
        "compare it with the one its owner or provider shows, then: scripts/train_remote.py trust "
        f"--host {remote.host}{more} --fingerprint {fingerprint}",
    )
