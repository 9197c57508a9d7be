import importlib
from pathlib import Path

import pytest

import modules.util.enum as package
from modules.util.enum import choices
from modules.util.enum.BaseEnum import BaseEnum

OWN_FILES = {path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem[0].isupper()} - {
    "BaseEnum"
}
CHOICES = {name for name, kind in vars(choices).items() if isinstance(kind, type) and kind is not BaseEnum}
NAMES = sorted(OWN_FILES | CHOICES)
LOWER_CASE = {"DPOPatienceMetric", "PromptSource"}


def enum_of(name: str) -> type[BaseEnum]:
    module = name if name in OWN_FILES else "choices"
    return getattr(importlib.import_module(f"modules.util.enum.{module}"), name)


@pytest.mark.parametrize("name", NAMES)
def test_values_equal_names(name: str) -> None:
    kind = enum_of(name)
    assert issubclass(kind, BaseEnum)
    assert kind.__doc__
    assert len(kind) >= 2
    for member in kind:
        expected = member.name.lower() if name in LOWER_CASE else member.name
        assert member.value == expected
        assert f"{member}" == str(member) == member.value
        assert member.label


def test_promised_names() -> None:
    assert {
        "RLHFMode",
        "DPORefMode",
        "DPOExecutionMode",
        "DPOPatienceMode",
        "DPOObjective",
        "ConceptType",
    } <= OWN_FILES
    modes = ["DPO", "DGPO", "GRPO", "GSPO", "ONLINE_DPO", "NFT", "AWM"]
    assert [m.value for m in enum_of("RLHFMode")] == modes
    assert [m.value for m in enum_of("ConceptType")] == [
        "STANDARD",
        "VALIDATION",
        "PRIOR_PREDICTION",
        "DPO_CHOSEN",
        "DPO_REJECTED",
        "DPO_CHOSEN_VAL",
        "DPO_REJECTED_VAL",
    ]


def test_labels() -> None:
    assert [m.label for m in enum_of("DPOObjective")] == ["Sigmoid", "IPO", "Hinge", "KTO", "MAPO"]
    assert enum_of("ModelType")("STABLE_DIFFUSION_15").label == "Stable Diffusion 1.5"
    assert enum_of("ModelType")("STABLE_DIFFUSION_21_BASE").label == "Stable Diffusion 2.1 base"
    assert enum_of("DPOExecutionMode")("FULL_CONCURRENT").label == "Full concurrent"
    assert enum_of("WeightDtype")("NFLOAT_4").label == "NFloat 4"
    assert enum_of("RewardCombination")("GDPO").label == "GDPO"
