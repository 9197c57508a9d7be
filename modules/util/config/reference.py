"""Documents generated from the config classes: the JSON schema and the page of all settings."""

from __future__ import annotations

import json
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.optimizer.tables import parameters_of
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.settings import Setting, iter_settings, section_name
from modules.util.config.TrainConfig import SECTIONS, TrainConfig
from modules.util.enum.choices import Optimizer

_HEAD = """# Settings

Generated from the config classes by `scripts/generate_docs.py`; do not edit by hand.

A config is one JSON object. Every key may be left out and then has the default below. Unknown keys, values of
the wrong kind and numbers out of range are refused and reported together. Single values can be set on the
command line with `--set name=value`, for example `--set learning_rate=1e-5 --set unet.train=false`. Infinity
is written `"inf"`.
"""


_FIRST = """These ten settings determine what is trained, on what, and how strongly. In a first run on preference pairs,
everything else can keep its default. The ten are listed again in their own chapters."""

_TABLE = "| Setting | Default | Values | Meaning |\n| --- | --- | --- | --- |"


def train_config_schema() -> str:
    """The JSON schema (draft 2020-12) of a config file, as text."""
    schema = TrainConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    _add_version(schema, TrainConfig)
    for kind in (ConceptConfig, SampleConfig):
        _add_version(schema["$defs"][kind.__name__], kind)
    _sort_properties(schema)
    _add_older_names(schema)
    return json.dumps(_tidy(schema), indent=2, ensure_ascii=False) + "\n"


def _add_version(schema: dict[str, Any], kind: type[BaseConfig]) -> None:
    version = {"const": kind.VERSION, "title": "Format", "description": "Version of the file format."}
    schema["properties"] = {VERSION_KEY: version, **schema["properties"]}


def _sort_properties(schema: dict[str, Any]) -> None:
    order = [VERSION_KEY, *(name for section in SECTIONS for name in section.model_fields)]
    schema["properties"] = {name: schema["properties"][name] for name in order}


def _add_older_names(schema: dict[str, Any]) -> None:
    for name, part in OlderNames.model_json_schema()["properties"].items():
        schema["properties"][name] = {**part, "deprecated": True}


_LIMIT_NAMES = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _tidy(node: Any) -> Any:
    """Remove what only the program needs, and name limits of optional numbers as the standard does."""
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
        if key not in ("group", "visible", "widget", "hidden", "first", "free", "cost")
    }


FIRST = (
    "model_type",
    "base_model_name",
    "concept_file_name",
    "output_model_destination",
    "rlhf_enabled",
    "rlhf_dpo_beta",
    "learning_rate",
    "epochs",
    "resolution",
    "lora_rank",
)
"""The settings to look at before a first run, in the order they are decided."""


def settings_page(config: type[TrainConfig] = TrainConfig) -> str:
    """``docs/config.md``. For a subclass, it includes what the subclass adds."""
    settings = iter_settings(config)
    by_path = {setting.path: setting for setting in settings}
    lines = ["\n## The ten settings that matter first\n", _FIRST, ""]
    lines += [_TABLE, *(_row(by_path[path]) for path in FIRST)]
    for title in dict.fromkeys(setting.section for setting in settings):
        about = " ".join(_first_line(section) for section in SECTIONS if section_name(section) == title)
        lines.append(f"\n## {title}\n\n{about}\n")
        lines.extend(_tables([setting for setting in settings if setting.section == title]))
    for kind, title in ((ConceptConfig, "Concepts"), (SampleConfig, "Samples"), (OlderNames, "Older names")):
        lines.append(f"\n## {title}\n\n{_first_line(kind)}\n")
        lines.extend(_tables(list(iter_settings(kind))))
    return "\n".join([_HEAD, _contents(lines), *lines]).rstrip() + "\n"


def _contents(lines: list[str]) -> str:
    """Links to the chapters in ``lines``."""
    titles = [line.strip().splitlines()[0][3:] for line in lines if line.startswith("\n## ")]
    return (
        "Chapters: " + ", ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles) + "."
    )


def _first_line(kind: type[BaseConfig]) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


def _tables(settings: list[Setting]) -> list[str]:
    """The most important settings first, then one table per group for the others."""
    lines: list[str] = []
    first = [setting for setting in settings if setting.first]
    if first:
        lines += ["\n### Basics\n", _TABLE, *map(_row, first)]
        settings = [setting for setting in settings if not setting.first]
    for group in dict.fromkeys(setting.group for setting in settings):
        lines.append(f"\n### {group}\n" if group else "")
        lines.append(_TABLE)
        lines.extend(_row(setting) for setting in settings if setting.group == group)
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


_OPTIMIZERS = """# Optimizers

Generated from `modules/util/config/optimizer` by `scripts/generate_docs.py`; do not edit by hand.

This page lists the choices of `optimizer.optimizer` and the parameters of each update rule. `beta1`, `beta2`, `eps`,
`weight_decay` and `momentum` are separate settings, such as `optimizer.beta1`. The others are entries of
`optimizer.params`. Parameters that are left out keep their default. Unknown names and values outside their range are
refused before a model is loaded. The button **Parameters** on the Training page opens the same tables for editing.

The 8BIT rules need bitsandbytes: `pip install -r requirements-gpu.txt`. `PRODIGY_PLUS_SCHEDULE_FREE` and the ADV rules
need additional packages: `scripts/setup.sh --optimizers`, or `pip install -r requirements-optimizers.txt`. The tables
leave out the parameters of these packages that need random numbers or a state that a backup cannot store. Stochastic
rounding inside these packages is off.
"""


def optimizers_page() -> str:
    """``docs/optimizers.md``: a table of parameters for every update rule."""
    lines: list[str] = [_OPTIMIZERS]
    for kind in Optimizer:
        lines += [f"\n## {kind}\n", "| Parameter | Default | Values | Meaning |", "| --- | --- | --- | --- |"]
        for one in parameters_of(kind):
            default = json.dumps(one.default).replace("Infinity", '"inf"')
            lines.append(f"| `{one.name}` | `{default}` | {one.allowed()} | {one.about} |")
    return "\n".join(lines).rstrip() + "\n"
