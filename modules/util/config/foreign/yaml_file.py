"""Reads untrusted YAML: plain values from a file of bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.util.errors import ConfigError

_MOST_BYTES = 1_000_000


def read_yaml(path: Path) -> Any:
    """Read a file of plain values. Tags are refused, and so are aliases, which can expand without bound.

    Raises:
        ConfigError: the file is unreadable, too large, or not such YAML.
    """
    import yaml

    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES:,} bytes", None, "is it a config?")
    try:
        text = data.decode("utf-8-sig")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ConfigError(f"{path} has aliases (*name), which are not read", None, "write the values out")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} is not plain YAML: {why}") from None
