"""Random valid configs, made from what the fields say about themselves."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.faults import type_at
from modules.util.config.overrides import parse_place
from modules.util.config.settings import Limits, Setting, iter_settings

# text with a grammar of its own
SPECIAL = {
    "resolution": st.sampled_from(["512", "512, 768", "64,1024 , 8192"]),
    "resolution_override": st.sampled_from(["256", "512, 640"]),
    "caption_extension": st.sampled_from([".caption", ".tags.txt"]),
    "weight_variant": st.sampled_from(["", "fp16", "non_ema"]),
    "placeholder": st.sampled_from(["<my-cat>", "wolke7", "<A>"]),
    "train_device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3", "cuda:0,cuda:2"]),
    "host": st.sampled_from(["", "gpu.example.org", "192.0.2.7", "2001:db8::1"]),
    "user": st.sampled_from(["", "me", "jörg"]),
    "directory": st.sampled_from(["tastemaker", "/workspace/x y", "~/x"]),
    "python": st.sampled_from(["", "venv/bin/python"]),
    "proxy_jump": st.sampled_from(["", "gate", "me@gate:2200", "[2001:db8::1]:22"]),
    "caps_randomize_mode": st.sampled_from(["title", "capslock, first"]),
}


def numbers(setting: Setting) -> st.SearchStrategy[Any]:
    limits: Limits = setting.limits
    low = limits.ge if limits.ge is not None else limits.gt
    high = limits.le if limits.le is not None else limits.lt
    if setting.kind == "int":
        step = int(limits.multiple_of or 1)
        return st.integers(-(-int(low) // step), int(high) // step).map(lambda n: n * step)
    return st.floats(
        low,
        high if high is not None else 1e300,
        allow_nan=False,
        allow_infinity=False,
        exclude_min=limits.gt is not None,
        exclude_max=limits.lt is not None,
    )


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Plain values a setting may have, as in a file."""
    name = setting.path.rpartition(".")[2]
    made: st.SearchStrategy[Any]
    if name in SPECIAL:
        made = SPECIAL[name]
    elif setting.kind == "bool":
        made = st.booleans()
    elif setting.kind in ("int", "float"):
        made = numbers(setting)
    elif setting.kind == "text":
        letters = st.characters(codec="utf-8")
        if (
            setting.widget in ("file", "folder", "save_file", "model")
            or setting.path == "save_filename_prefix"
        ):
            letters = st.characters(
                codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters='/\\:*?"<>|'
            )
        made = st.text(letters, min_size=setting.limits.min_length or 0, max_size=20)
    elif setting.kind == "choice":
        made = st.sampled_from([choice.value for choice in setting.choices])
    elif setting.kind == "choices":
        made = st.lists(st.sampled_from([c.value for c in setting.choices]), min_size=1, unique=True)
    elif setting.kind == "table":
        scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
        made = st.dictionaries(st.text(min_size=1, max_size=9), scalars, max_size=3)
    else:
        raise AssertionError(f"no strategy for {setting.path}")
    return st.none() | made if setting.optional else made


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in flat.items():
        *owners, name = parse_place(path)
        box = made
        for owner in owners:
            box = box.setdefault(owner, {})
        box[name] = value
    return made


def configs(model: type[BaseConfig], lists: dict[str, st.SearchStrategy[Any]] | None = None) -> Any:
    """Partial plain configs: any subset of the settings with any allowed value."""
    lists = lists or {}
    flat = {s.path: values(s) for s in iter_settings(model) if s.kind != "list"}
    assert all(type_at(model, parse_place(path)) is not None for path in flat)
    return st.fixed_dictionaries({}, optional={**flat, **lists}).map(nested)
