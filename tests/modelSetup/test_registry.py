"""One family is one file: nothing else asks which family it has, and asking for the registry costs little."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from modules.modelSetup.registry import MODEL_SETUPS, create_model_setup
from modules.spec.registry import FAMILIES
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_every_family_has_a_setup() -> None:
    for item in ModelType:
        assert item.value in MODEL_SETUPS.keys(), (  # noqa: SIM118
            f"{item.value} has a spec in modules/spec/families and no setup in modules/modelSetup/families"
        )
        assert create_model_setup(item).spec is FAMILIES[item.value]
    assert set(MODEL_SETUPS.keys()) == set(FAMILIES)


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="STABLE_DIFUSION_15") as caught:
        create_model_setup("STABLE_DIFUSION_15")
    assert caught.value.field == "model_type"
    assert "STABLE_DIFFUSION_15" in str(caught.value.hint)


def comparisons_with_families(path: Path) -> list[str]:
    keys = set(MODEL_SETUPS.keys())
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        for side in sides:
            for leaf in ast.walk(side):
                name = leaf.attr if isinstance(leaf, ast.Attribute) else getattr(leaf, "value", None)
                if isinstance(name, str) and name in keys:
                    found.append(f"{path.relative_to(ROOT)}:{leaf.lineno}")  # type: ignore[attr-defined]
    return found


@pytest.mark.slow
def test_no_code_compares_with_a_family() -> None:
    allowed = {"onetrainer_import.py", "onetrainer_migrations.py", "migrations.py"}
    offenders = [
        place
        for folder in ("modules", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in allowed
        for place in comparisons_with_families(path)
    ]
    assert offenders == []


def test_family_files_are_short() -> None:
    for path in (ROOT / "modules" / "modelSetup").rglob("*Setup.py"):
        if path.name != "BaseModelSetup.py":
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path.name


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import modules.modelSetup", ["torch", "diffusers", "transformers", "peft"]),
        ("import modules.modelSetup.registry", ["torch", "diffusers", "transformers", "peft"]),
        ("import modules.spec.FamilySpec", ["torch", "diffusers", "transformers", "peft"]),
        ("import modules.adapter", ["torch", "diffusers", "transformers", "peft"]),
        pytest.param(
            "from modules.modelSetup.registry import create_model_setup; "
            "create_model_setup('STABLE_DIFFUSION_15')",
            ["diffusers", "transformers", "peft"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import modules.adapter.formats, modules.adapter.reference",
            ["diffusers", "transformers", "peft"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_imports_are_light(statement: str, absent: list[str]) -> None:
    code = f"import sys; {statement}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
