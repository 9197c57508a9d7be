"""Tokens and passwords, in a file of their own that only its owner can read, never in a config."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from modules.util.config.BaseConfig import BaseConfig
from modules.util.errors import UserError
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import read_json
from modules.util.owned_files import Owned

SECRETS_NAME = "secrets.json"
TOKEN_VARIABLE = "HF_TOKEN"


def secrets_path() -> Path:
    """The user's secrets file, in the settings folder."""
    return settings_folder() / SECRETS_NAME


class SecretsConfig(BaseConfig):
    """Values that must not be shown, logged or shared."""

    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "secrets file"

    huggingface_token: str = Field(
        default="", repr=False, title="Hugging Face token", description="For models that need an account."
    )

    @classmethod
    def load_if_there(cls, path: str | os.PathLike[str] | None = None) -> SecretsConfig:
        """The secrets in a file (by default the user's), or empty ones if the file does not exist.

        Raises:
            UserError: the file is unreadable or invalid. The message does not repeat its content.
        """
        source = Path(path) if path is not None else secrets_path()
        if not source.exists():
            return cls()
        data = read_json(source, cls.WHAT)
        try:
            return cls.from_dict(data)
        except UserError:
            raise UserError(f"the {cls.WHAT} {source} is damaged", hint="enter the token again") from None

    @classmethod
    def hub_token(cls) -> str | None:
        """The token to log in to the hub with: from the environment, else the stored one; ``None`` leaves it to the
        hub's library.

        Raises:
            UserError: the secrets file is damaged.
        """
        return os.environ.get(TOKEN_VARIABLE) or cls.load_if_there().huggingface_token or None

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write atomically to a file that nobody else can read at any moment."""
        target = Path(path) if path is not None else secrets_path()
        with Owned(target.parent, local=True).write(target.name, private=True) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=2), encoding="utf-8")
