"""No setting without effect: each one is read somewhere outside the config and the window."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig, ConceptImageConfig, ConceptTextConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.ModelPartConfig import (
    DenoiserConfig,
    FrozenPartConfig,
    FurtherTextEncoderConfig,
    ModelPartConfig,
    TextEncoderConfig,
    TransformerConfig,
)
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.section.RewardConfig import RewardConfig
from modules.util.config.TrainConfig import TrainConfig

ROOT = Path(__file__).resolve().parents[3]
PART = r"getattr|part|unet|transformer|text_encoder|vae|encoder"

HELD_AS: dict[type[BaseConfig], str] = {
    TrainConfig: r"\w*config(\.load)?|c",
    SampleConfig: r"sample",
    ConceptConfig: r"concept|own",
    ConceptTextConfig: r"text|settings",
    ConceptImageConfig: r"image|augment",
    FrozenPartConfig: PART,
    DenoiserConfig: PART,
    FurtherTextEncoderConfig: PART,
    TransformerConfig: PART,
    ModelPartConfig: PART,
    TextEncoderConfig: PART,
    OptimizerConfig: r"config|optimizer",
    RewardConfig: r"one",
}
"""Names of variables and attributes that hold an object of each class where it is used."""

INDIRECT: dict[str, tuple[str, str]] = {
    "TrainConfig.concept_file_name": ("modules/dataLoader/create.py", "config.load_concepts()"),
    "TrainConfig.concepts": ("modules/dataLoader/create.py", "config.load_concepts()"),
    "TrainConfig.sample_definition_file_name": ("modules/trainer/assembly.py", "config.load_samples()"),
    "TrainConfig.samples": ("modules/trainer/assembly.py", "config.load_samples()"),
    # shown to the user; what is trained follows from lora_model_name, from which it is derived
    "TrainConfig.rlhf_dpo_ref_mode": ("modules/trainer/assembly.py", "config.effective_dpo_ref_mode()"),
    "TrainConfig.lora_rank_pattern": ("modules/modelSetup/training.py", "config.rank_patterns()"),
    "TrainConfig.lora_alpha_pattern": ("modules/modelSetup/training.py", "config.alpha_patterns()"),
    # texts that are read with others of their kind
    "TrainConfig.rlhf_rollout_size": ("modules/trainer/online/settings.py", "rollout_size(config)"),
    "TrainConfig.rlhf_reward": ("modules/trainer/online/settings.py", "reward_list(config)"),
    # parts are reached by their names in the model's specification
    "TrainConfig.unet": ("modules/spec/parts.py", '"unet"'),
    "TrainConfig.transformer": ("modules/spec/parts.py", '"transformer"'),
    "TrainConfig.text_encoder_2": ("modules/modelSetup/families/FluxSetup.py", '"text_encoder_2"'),
    "TrainConfig.text_encoder_3": (
        "modules/modelSetup/families/StableDiffusion3Setup.py",
        '"text_encoder_3"',
    ),
    "TrainConfig.vae": ("modules/spec/parts.py", '"vae"'),
    # the sample itself makes its seed of this and its own
    "SampleConfig.random_seed": ("modules/trainer/evaluate/Sampler.py", "sample.config.seed_at("),
    "SampleConfig.seed": ("scripts/sample.py", "sample.config.seed"),
    # named in a loop
    "OptimizerConfig.eps": ("modules/trainer/optim/optimizers.py", '("eps", "weight_decay", "momentum")'),
    "OptimizerConfig.weight_decay": (
        "modules/trainer/optim/optimizers.py",
        '("eps", "weight_decay", "momentum")',
    ),
    "OptimizerConfig.momentum": (
        "modules/trainer/optim/optimizers.py",
        '("eps", "weight_decay", "momentum")',
    ),
}
"""Settings that are not read by their name: the file, and the code in it through which they take effect."""


def consumers() -> list[Path]:
    """Source files that do something with settings."""
    found = [*(ROOT / "modules").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    left_out = (ROOT / "modules" / "util" / "config", ROOT / "modules" / "ui")
    return [path for path in found if not any(path.is_relative_to(folder) for folder in left_out)]


def holder(node: ast.expr) -> str:
    """``config`` for ``config``, ``self.config`` and ``get(config)``'s ``get``."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func)
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def pattern(node: ast.expr) -> str | None:
    """The attribute a ``getattr`` asks for, as a pattern where it is put together of pieces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            re.escape(piece.value) if isinstance(piece, ast.Constant) else r"\w+" for piece in node.values
        )
    return None


def reads(source: str) -> set[tuple[str, str]]:
    """(holder, pattern of the attribute) of each attribute that is read."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add((holder(node.value), re.escape(node.attr)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            asked = pattern(node.args[1])
            if asked is not None:
                found.add((holder(node.args[0]), asked))
    return found


@cache
def all_reads() -> dict[str, set[str]]:
    made: dict[str, set[str]] = defaultdict(set)
    for path in consumers():
        for who, asked in reads(path.read_text(encoding="utf-8")):
            made[who].add(asked)
    return made


def is_read(kind: type[BaseConfig], field: str) -> bool:
    return any(
        re.fullmatch(asked, field)
        for who, patterns in all_reads().items()
        if re.fullmatch(HELD_AS[kind], who, re.IGNORECASE)
        for asked in patterns
    )


FIELDS = [(kind, field) for kind in HELD_AS for field in kind.model_fields]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{k.__name__}.{f}" for k, f in FIELDS])
def test_every_setting_is_read(kind: type[BaseConfig], field: str) -> None:
    name = f"{kind.__name__}.{field}"
    if name in INDIRECT:
        file, code = INDIRECT[name]
        assert code in (ROOT / file).read_text(encoding="utf-8")
    else:
        assert is_read(kind, field), f"nothing reads {name}"


def test_exceptions_are_needed_and_of_this_config() -> None:
    names = {f"{kind.__name__}.{field}": (kind, field) for kind, field in FIELDS}
    assert INDIRECT.keys() <= names.keys()
    needless = [name for name in INDIRECT if is_read(*names[name])]
    assert needless == []


def test_a_setting_nobody_reads_would_be_found() -> None:
    assert not is_read(TrainConfig, "no_such_setting")
    # read, but of something else
    assert not is_read(SampleConfig, "prompt_path")
    source = 'config.stored = 1\nself.config.read\ngetattr(augment, f"enable_{name}")\nconfig.called()'
    assert reads(source) == {
        ("self", "config"),
        ("config", "read"),
        ("augment", r"enable_\w+"),
        ("config", "called"),
    }
