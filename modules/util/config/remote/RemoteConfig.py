"""The computer that a run is trained on, if not this one."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

from pydantic import field_validator

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import PathText, setting

_HOST = re.compile(r"[A-Za-z0-9:_%][A-Za-z0-9.:_%-]{0,252}")
_USER = re.compile(r"[^\s@:/\\\x00-\x1f\x7f\ud800-\udfff-][^\s@:/\\\x00-\x1f\x7f\ud800-\udfff]{0,63}")
_JUMP = re.compile(rf"(({_USER.pattern})@)?(\[[A-Za-z0-9:.%]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(:\d{{1,5}})?")

_free_setting = partial(setting, free=True)


class RemoteConfig(BaseConfig):
    """The SSH address of the other computer, and the program's folder there. It holds no secret."""

    WHAT: ClassVar[str] = "remote settings"

    host: str = _free_setting(
        "",
        tip=(
            "Name or address of a computer to train on with \u201cStart there\u201d or scripts/train_remote.py. The "
            "Start button below always trains on this computer."
        ),
    )
    port: int = _free_setting(22, within=(1, 65535), tip="Port of the SSH server on that computer.")
    user: str = _free_setting(
        "", tip="Your name on that computer. Empty: the same name as here."
    )
    key_file: PathText = _free_setting(
        "",
        widget="file",
        title="Private key",
        tip=(
            "File of the private key for that computer. Empty: the usual keys in ~/.ssh and those in the SSH agent."
        ),
    )
    directory: PathText = _free_setting(
        "tastemaker",
        min_length=1,
        title="Folder there",
        tip=(
            "Folder on that computer for program, data and runs. A relative path is in the home folder. The program "
            "needs about 10 GB there; models and images need more."
        ),
    )
    python: PathText = _free_setting(
        "",
        title="Python there",
        tip=(
            "Python of an environment on that computer that has the program's packages. Empty: an environment is set "
            "up when it is first needed."
        ),
    )
    proxy_jump: str = _free_setting(
        "",
        title="Jump host",
        tip="A computer to connect through, as user@host:port. Empty: connect directly.",
    )

    @field_validator("host")
    @classmethod
    def _a_host(cls, value: str) -> str:
        if value and not _HOST.fullmatch(value):
            raise ValueError(f"must be a name or an address such as gpu.example.org, not {value!r}")
        return value

    @field_validator("user")
    @classmethod
    def _a_user(cls, value: str) -> str:
        if value and not _USER.fullmatch(value):
            raise ValueError(f"must be the name of a user, not {value!r}")
        return value

    @field_validator("proxy_jump")
    @classmethod
    def _a_jump(cls, value: str) -> str:
        if value and (not _JUMP.fullmatch(value) or not 1 <= _port_in(value) <= 65535):
            raise ValueError(f"must be host, user@host or user@host:port, not {value!r}")
        return value

    def jump(self) -> RemoteConfig | None:
        """The connection to the jump host, with the same key; ``None`` without one."""
        if not self.proxy_jump:
            return None
        user, _, rest = self.proxy_jump.rpartition("@")
        port = _port_in(rest)
        host = re.sub(r":\d+\Z", "", rest) if not rest.endswith("]") else rest
        return RemoteConfig(host=host.strip("[]"), port=port, user=user, key_file=self.key_file)

    def address(self) -> str:
        """The address for messages: ``user@host:port``, without default values."""
        host = f"[{self.host}]" if ":" in self.host and self.port != 22 else self.host
        return f"{self.user}@" * bool(self.user) + host + f":{self.port}" * (self.port != 22)


def _port_in(jump: str) -> int:
    """The port in ``user@host:port``; 22 without one."""
    found = re.search(r":(\d{1,5})\Z", jump)
    return int(found[1]) if found else 22
