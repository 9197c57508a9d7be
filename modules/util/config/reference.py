"""The documents made from the config classes: the JSON schema and the page of all settings."""

from __future__ import annotations

import json
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.settings import Setting, iter_settings
from modules.util.config.TrainConfig import SECTIONS, TrainConfig

_HEAD = """# Settings

Made from the config classes by `scripts/generate_docs.py`; do not edit by hand.

A config is one JSON object. Every key may be left out and then has the default below. Unknown keys, values of
the wrong kind and numbers out of range are refused, all at once. Single values change on the command line
with `--set name=value`, for example `--set learning_rate=1e-5 --set unet.train=false`. Infinity is written
`"inf"`.
"""


def train_config_schema() -> str:
    """The JSON schema (draft 2020-12) of a config file, as text."""
    schema = TrainConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    _add_version(schema, TrainConfig)
    for kind in (ConceptConfig, SampleConfig):
        _add_version(schema["$defs"][kind.__name__], kind)
    _sort_properties(schema)
    return json.dumps(_tidy(schema), indent=2, ensure_ascii=False) + "\n"


def _add_version(schema: dict[str, Any], kind: type[BaseConfig]) -> None:
    version = {"const": kind.VERSION, "title": "Format", "description": "Version of the file format."}
    schema["properties"] = {VERSION_KEY: version, **schema["properties"]}


def _sort_properties(schema: dict[str, Any]) -> None:
    order = [VERSION_KEY, *(name for section in SECTIONS for name in section.model_fields)]
    schema["properties"] = {name: schema["properties"][name] for name in order}


_LIMIT_NAMES = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _tidy(node: Any) -> Any:
    """Leave out what only the program needs, and name limits of optional numbers as the standard does."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "properties" in node:
        made = {key: _tidy(value) for key, value in node.items() if key != "properties"}
        made["properties"] = {name: _tidy(value) for name, value in node["properties"].items()}
        return made
    return {
        _LIMIT_NAMES.get(key, key): _tidy(value)
        for key, value in node.items()
        if key not in ("group", "visible", "widget", "hidden")
    }


def settings_page(config: type[TrainConfig] = TrainConfig) -> str:
    """``docs/config.md``; of a subclass, with what it adds."""
    lines = [_HEAD]
    settings = iter_settings(config)
    for section in SECTIONS:
        title = str(getattr(section, "SECTION", ""))
        lines.append(f"\n## {title}\n\n{_first_line(section)}\n")
        lines.extend(_tables([s for s in settings if s.section == title]))
    for kind, title in ((ConceptConfig, "Concepts"), (SampleConfig, "Samples")):
        lines.append(f"\n## {title}\n\n{_first_line(kind)}\n")
        lines.extend(_tables(list(iter_settings(kind))))
    return "\n".join(lines).rstrip() + "\n"


def _first_line(kind: type[BaseConfig]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0]


def _tables(settings: list[Setting]) -> list[str]:
    lines: list[str] = []
    group: str | None = None
    for setting in settings:
        if setting.group != group:
            group = setting.group
            lines.append(f"\n### {group}\n" if group else "")
            lines.append("| Setting | Default | Values | |\n| --- | --- | --- | --- |")
        lines.append(_row(setting))
    return lines


def _row(setting: Setting) -> str:
    default = json.dumps(setting.default, ensure_ascii=False)
    text = f"**{setting.title}.** {setting.tip}".replace("|", "\\|")
    return f"| `{setting.path}` | `{default}` | {_values(setting)} | {text} |"


def _values(setting: Setting) -> str:
    names = {"bool": "true, false", "int": "whole number", "float": "number", "text": "text", "list": "list"}
    names["table"] = "names and values"
    words = names.get(setting.kind, "")
    if setting.choices:
        listed = ", ".join(f"`{choice.value}`" for choice in setting.choices)
        words = f"list of {listed}" if setting.kind == "choices" else listed
    limits = setting.limits.text()
    words = f"{words}, {limits}" if limits else words
    return f"{words}; may be null" if setting.optional else words
