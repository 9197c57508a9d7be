"""The hub account used to download models."""

from __future__ import annotations

import os

from modules.util.config.SecretsConfig import SecretsConfig

TOKEN_VARIABLE = "HF_TOKEN"


def hub_token() -> str | None:
    """The token to log in with: from the environment, else the stored one; ``None`` leaves it to the hub's
    library.

    Raises:
        UserError: the secrets file is damaged.
    """
    return os.environ.get(TOKEN_VARIABLE) or SecretsConfig.load_if_there().huggingface_token or None
