"""Tokens and passwords: in a file of their own that only its owner can read, never in a config."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from modules.util.config.BaseConfig import BaseConfig
from modules.util.jsonio import fsync_path

DEFAULT_SECRETS_PATH = "secrets.json"


class SecretsConfig(BaseConfig):
    """What must not be shown, logged or shared."""

    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "secrets file"

    huggingface_token: str = Field(
        default="", repr=False, title="Hugging Face token", description="For models that need an account."
    )

    @classmethod
    def load_if_there(cls, path: str | os.PathLike[str] = DEFAULT_SECRETS_PATH) -> SecretsConfig:
        """The secrets in the file, or empty ones when there is no file."""
        return cls.load(path) if Path(path).exists() else cls()

    def save(self, path: str | os.PathLike[str] = DEFAULT_SECRETS_PATH) -> None:
        """Write atomically to a file that nobody else can read, not even for a moment."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes the file with mode 0600, and the rename keeps it
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(self.to_dict(), stream, indent=2)
            fsync_path(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
