from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from modules.spec.registry import MODES
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.load import check_config
from modules.util.config.reference import settings_page, train_config_schema
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.setting import Float, setting
from modules.util.config.settings import (
    Limits,
    is_visible,
    iter_settings,
    read_setting,
    unmet,
    visibility_in_words,
)
from modules.util.config.TrainConfig import SECTIONS, TrainConfig
from modules.util.enum.DPOObjective import DPOObjective
from modules.util.enum.ModelType import families_with
from modules.util.errors import ConfigError
from scripts import generate_docs

MODELS = [TrainConfig, ConceptConfig, SampleConfig, OlderNames]


@pytest.mark.parametrize("model", MODELS)
def test_every_setting_says_what_it_is(model: type[BaseConfig]) -> None:
    found = iter_settings(model)
    assert len({s.path for s in found}) == len(found)
    for s in found:
        assert s.title, s.path
        assert len(s.title) <= 40, s.path
        assert len(s.tip) > 10, s.path
        assert s.tip[-1] in ".?", s.path
        if model is TrainConfig:
            assert s.section, s.path
            assert s.group, s.path


@pytest.mark.parametrize("model", MODELS)
def test_every_number_has_a_range(model: type[BaseConfig]) -> None:
    for s in iter_settings(model):
        if s.kind in ("int", "float"):
            assert s.limits.ge is not None or s.limits.gt is not None, s.path
            most = s.limits.le if s.limits.le is not None else s.limits.lt
            assert most is not None, s.path
            assert most <= 1e12 or math.isinf(most) or s.kind == "int", s.path


@pytest.mark.parametrize("model", MODELS)
def test_numbers_beyond_the_range_are_refused(model: type[BaseConfig]) -> None:
    for s in iter_settings(model):
        if s.kind not in ("int", "float"):
            continue
        step = 1 if s.kind == "int" else 1e-9
        bad = [limit for limit in (s.limits.gt, s.limits.lt) if limit is not None]
        bad += [s.limits.ge - step] if s.limits.ge is not None else []
        bad += [s.limits.le + step * max(1, abs(s.limits.le))] if s.limits.le is not None else []
        for value in [*bad, True, math.nan, "1"]:
            *owners, name = s.path.split(".")
            data: dict = {name: int(value) if s.kind == "int" and value in bad else value}
            for owner in reversed(owners):
                data = {owner: data}
            with pytest.raises(ConfigError, match=re.escape(s.path)):
                model.from_dict(data)


@pytest.mark.parametrize("model", MODELS)
def test_visibility_rules_ask_about_settings_that_exist(model: type[BaseConfig]) -> None:
    known = {s.path: s for s in iter_settings(model)}
    for s in known.values():
        for condition in re.split(",| or ", s.visible) if s.visible else ():
            name = condition.strip().removeprefix("!").partition("=")[0]
            assert name in known, s.path
            for word in re.findall(rf"{re.escape(name)}=([^, ]+)", s.visible):
                allowed = {choice.value for choice in known[name].choices} or {"custom"}  # free text
                assert set(word.split("|")) <= allowed, s.path
        is_visible(s.visible, lambda path: known[path].default)


def test_settings_cover_the_config_in_the_order_of_the_sections() -> None:
    paths = [s.path for s in iter_settings(TrainConfig)]
    top = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    assert top == [name for section in SECTIONS for name in section.model_fields]
    assert set(top) == set(TrainConfig.model_fields)
    by_path = {s.path: s for s in iter_settings(TrainConfig)}
    beta = by_path["rlhf_dpo_beta"]
    assert (beta.section, beta.kind, beta.default, beta.limits.ge) == ("RLHF", "float", 5000.0, 0)
    rate = by_path["unet.learning_rate"]
    assert (rate.section, rate.group, rate.optional) == ("Model", "UNet", True)
    assert rate.visible == f"{families_with('unet')},unet.train"
    assert [c.value for c in by_path["rlhf_mode"].choices] == list(MODES)
    assert by_path["rlhf_dpo_patience_metrics"].kind == "choices"
    assert by_path["rlhf_dpo_patience_metrics"].default == ["val_accuracy", "val_loss"]
    assert by_path["optimizer.params"].kind == "table"
    assert by_path["concepts"].kind == "list"


def test_boxes_of_a_section_are_not_torn_apart() -> None:
    for section in SECTIONS:
        groups = [s.group for s in iter_settings(TrainConfig) if s.section == section.SECTION]
        runs = [group for index, group in enumerate(groups) if index == 0 or groups[index - 1] != group]
        assert len(runs) == len(set(runs)), (section.SECTION, runs)


def test_listing_is_cheap() -> None:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    iter_settings.cache_clear()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = iter_settings(TrainConfig)
    finally:
        sys.setprofile(before)
    # counted, not timed, so that a busy machine changes nothing; 10 ms on a slow one
    assert 0 < calls < 200 * len(found)


def test_defaults_follow_the_rules() -> None:
    assert check_config(TrainConfig()) == []


@pytest.mark.parametrize(
    ("rule", "values", "shown"),
    [
        ("", {}, True),
        ("a", {"a": True}, True),
        ("a", {"a": 0.0}, False),
        ("!a", {"a": ""}, True),
        ("a=X|Y", {"a": "Y"}, True),
        ("a=X|Y", {"a": "XY"}, False),
        ("!a=X|Y", {"a": "Z"}, True),
        ("a,b=X", {"a": True, "b": "X"}, True),
        ("a,b=X", {"a": False, "b": "X"}, False),
        ("a,b=X or !c", {"a": True, "b": "Y", "c": False}, True),
        ("a,b=X or !c", {"a": True, "b": "X", "c": True}, True),
        ("a,b=X or !c", {"a": True, "b": "Y", "c": True}, False),
        ("a,b=X or !c", {"a": False, "b": "X", "c": False}, False),
    ],
)
def test_visibility(rule: str, values: dict, shown: bool) -> None:
    assert is_visible(rule, values.__getitem__) is shown


@pytest.mark.parametrize(("method", "shown"), [("LORA", True), ("EMBEDDING", True), ("FINE_TUNE", False)])
def test_the_hold_on_the_background_is_shown_where_it_acts(method: str, shown: bool) -> None:
    (weight,) = (s for s in iter_settings(TrainConfig) if s.path == "masked_prior_preservation_weight")
    assert is_visible(weight.visible, {"masked_training": True, "training_method": method}.__getitem__) is shown


@pytest.mark.parametrize(("mode", "shown"), [("DPO", False), ("GRPO", True), ("NFT", True), ("ONLINE_DPO", False)])
def test_the_limit_of_advantages_is_shown_where_it_acts(mode: str, shown: bool) -> None:
    (limit,) = (s for s in iter_settings(TrainConfig) if s.path == "rlhf_advantage_clip")
    assert is_visible(limit.visible, {"rlhf_enabled": True, "rlhf_mode": mode}.__getitem__) is shown


def _shown(path: str, config: TrainConfig) -> bool:
    (one,) = (s for s in iter_settings(TrainConfig) if s.path == path)
    return is_visible(one.visible, lambda name: config.to_dict()[name])


@pytest.mark.parametrize(
    ("path", "modes"),
    [
        ("rlhf_dpo_reference_cache", ()),
        ("rlhf_dpo_reference_cache_draws", ()),
        ("rlhf_dpo_anchor_weight", ()),
        ("rlhf_norm_guard", ("NFT", "AWM")),
    ],
)
def test_what_needs_a_reference_is_shown_where_there_is_one(path: str, modes: tuple[str, ...]) -> None:
    base = {"__version": 1, "rlhf_enabled": True, "rlhf_dpo_reference_cache": True}
    for objective in DPOObjective:
        config = TrainConfig.from_dict({**base, "rlhf_dpo_objective": objective.value})
        assert _shown(path, config) == config.rlhf_mode.spec.needs_reference(config), objective
    for mode in MODES.keys() - {"DPO"}:
        config = TrainConfig.from_dict({**base, "rlhf_dpo_objective": "MAPO", "rlhf_mode": mode})
        assert _shown(path, config) == (mode in modes), mode


@pytest.mark.parametrize("mode", MODES)
def test_a_kl_is_shown_in_modes_that_take_one(mode: str) -> None:
    config = TrainConfig.from_dict({"__version": 1, "rlhf_enabled": True, "rlhf_mode": mode, "rlhf_kl_beta": 0.1})
    for path in ("rlhf_kl_beta", "rlhf_kl_type"):
        assert _shown(path, config) == (mode not in ("DPO", "ONLINE_DPO")), path


def test_alternatives_are_named_in_words_and_in_the_reason() -> None:
    rule = "rlhf_enabled,!rlhf_mode=DPO or !rlhf_dpo_objective=MAPO"
    known = {s.path: s for s in iter_settings(TrainConfig)}
    words = "Preference training is on and (Mode is not DPO or Objective is not MAPO)"
    assert visibility_in_words(rule, known) == words
    values = {"rlhf_enabled": True, "rlhf_mode": "DPO", "rlhf_dpo_objective": "MAPO"}
    assert unmet(rule, values.__getitem__) == ["rlhf_mode", "rlhf_dpo_objective"]


def test_a_bad_rule_is_a_bug() -> None:
    with pytest.raises(ValueError, match="visibility"):
        is_visible("a & b", lambda path: True)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(), ""),
        (Limits(ge=0, le=1), "0 to 1"),
        (Limits(ge=0, lt=0.5), "0 to below 0.5"),
        (Limits(gt=0), "above 0"),
        (Limits(ge=0), "0 or more"),
        (Limits(le=5), "5 or less"),
        (Limits(lt=5), "below 5"),
        (Limits(ge=64, le=8192, multiple_of=8), "64 to 8192, a multiple of 8"),
    ],
)
def test_limits_in_words(limits: Limits, text: str) -> None:
    assert limits.text() == text


def test_typed_text_is_read_and_checked() -> None:
    assert read_setting(TrainConfig, "learning_rate", "1e-5") == 1e-5
    assert read_setting(TrainConfig, "unet.learning_rate", "") is None
    assert read_setting(TrainConfig, "resolution", "768") == "768"
    with pytest.raises(ConfigError, match="learning_rate: must be at least 0"):
        read_setting(TrainConfig, "learning_rate", "-1")
    with pytest.raises(ConfigError, match="there is no such setting"):
        read_setting(TrainConfig, "learning_rat", "1")


class NewPart(BaseConfig):
    """A part nobody has heard of."""

    size: Float = setting(2.5, within=(0, 10), title="Size", tip="How large it is.")


class NewConfig(BaseConfig):
    """Fields written as a developer would add them: one line each."""

    VERSION: ClassVar[int] = 1
    zeal: Float = setting(
        0.5, within=(0, 1), title="Zeal", tip="How much of it.", group="New", visible="!part.size"
    )
    part: NewPart = setting(factory=NewPart, title="Part", tip="Holds more.")


def test_adding_a_field_is_one_line() -> None:
    assert [s.path for s in iter_settings(NewConfig)] == ["zeal", "part.size"]
    assert iter_settings(NewConfig)[0].limits.text() == "0 to 1"
    with pytest.raises(ConfigError, match="zeal: must be at most 1, not 2"):
        NewConfig.from_dict({"zeal": 2})
    assert NewConfig().to_dict() == {"__version": 1, "zeal": 0.5, "part": {"size": 2.5}}
    assert NewConfig.from_dict(NewConfig().to_dict()) == NewConfig()
    assert NewConfig.from_dict({"part": {"size": 3}}).part.size == 3.0
    assert read_setting(NewConfig, "part.size", "3") == 3.0
    assert NewConfig.model_json_schema()["properties"]["zeal"]["maximum"] == 1


def test_plain_float_fields_are_not_used() -> None:
    """A bare ``float`` would let NaN in and not know "inf"."""
    for model in (*SECTIONS, ConceptConfig, SampleConfig, OptimizerConfig):
        for name, field in model.model_fields.items():
            assert field.annotation is not float or field.metadata, f"{model.__name__}.{name}"
    with pytest.raises(ValidationError):
        TrainConfig.model_validate({"learning_rate": math.nan})


def test_documents_are_fresh() -> None:
    assert generate_docs.main(["--check"]) == 0, "run scripts/generate_docs.py"


def test_stale_documents_are_noticed_and_rewritten(tmp_path, capsys) -> None:
    assert generate_docs.main(["--check"], tmp_path) == 1
    assert "stale" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert generate_docs.main([], tmp_path) == 0
    assert generate_docs.main(["--check"], tmp_path) == 0
    (tmp_path / "docs/config.md").write_text("old")
    assert generate_docs.main(["--check"], tmp_path) == 1


def test_schema_describes_what_is_written() -> None:
    schema = json.loads(train_config_schema())
    older = [name for name, part in schema["properties"].items() if part.get("deprecated")]
    assert list(schema["properties"]) == [*TrainConfig().to_dict(), *older]
    assert older == list(OlderNames.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["__version"]["const"] == TrainConfig.VERSION
    assert schema["properties"]["rlhf_dpo_label_smoothing"]["exclusiveMaximum"] == 0.5
    assert schema["properties"]["clip_grad_norm"]["anyOf"][0]["minimum"] == 0
    assert schema["$defs"]["RLHFMode"]["enum"] == list(MODES)
    for name, part in schema["properties"].items():
        assert not {"group", "visible", "widget", "hidden", "free", "ge", "le"} & part.keys(), name


def chapters(page: str) -> dict[str, list[str]]:
    """The settings listed in each chapter of the page."""
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    named = [(part.partition("\n")[0], re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)) for part in parts]
    assert len(dict(named)) == len(named), "a chapter is listed twice"
    return dict(named)


def test_page_names_every_setting_once_in_its_chapter() -> None:
    found = chapters(settings_page())
    assert all(len(set(paths)) == len(paths) for paths in found.values())
    first = found.pop("The ten settings that matter first")
    for model, titles in (
        (ConceptConfig, ["Concepts"]),
        (SampleConfig, ["Samples"]),
        (OlderNames, ["Older names"]),
    ):
        assert [found.pop(title) for title in titles] == [[s.path for s in iter_settings(model)]]
    listed = [path for paths in found.values() for path in paths]
    assert sorted(listed) == sorted(s.path for s in iter_settings(TrainConfig))
    assert len(first) == 10
    assert set(first) <= set(listed)
    by_path = {s.path: s for s in iter_settings(TrainConfig)}
    assert all(by_path[path].section == title for title, paths in found.items() for path in paths)


def test_the_page_opens_with_its_chapters_and_the_settings_that_matter_first() -> None:
    page = settings_page()
    titles = list(chapters(page))
    assert titles[0] == "The ten settings that matter first"
    linked = re.findall(r"\[([^\]]+)\]\(#([^)]+)\)", page.partition("\n## ")[0])
    assert [title for title, _ in linked] == titles
    assert [anchor for _, anchor in linked] == [title.lower().replace(" ", "-") for title in titles]
