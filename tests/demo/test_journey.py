"""The whole journey, small: images, picks, two trainings, a report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from safetensors import safe_open

from modules.modelSetup.sample_images import SampleRequest, sample
from scripts.demo.journey import run_journey
from scripts.demo.judging import win_rate
from scripts.demo.plan import FULL, Journey, Size
from scripts.demo.sampling import STEPS
from scripts.make_demo import main
from tests.children.warm import start_warm

FIELDS = {
    "mode", "seed", "prompts", "pairs", "heldout_pair_accuracy", "win_rate", "fidelity_base", "fidelity_adapter",
    "attribute_base", "attribute_adapter", "supervised_win_rate", "train_seconds", "total_seconds",
}  # fmt: skip


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings are forks; those of the other journeys are new processes."""

    def run(command: Sequence[str], stdout: Any, env: Mapping[str, str], **_: object) -> SimpleNamespace:
        log = Path(stdout.name)
        training = start_warm(Path(command[1]), command[2:], log, log, env)
        return SimpleNamespace(returncode=training.wait(300))

    programs = SimpleNamespace(run=run, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr("scripts.demo.training.subprocess", programs)


@pytest.fixture
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """All images take 4 denoising steps: what they look like is tried in ``test_model.py``."""

    def made(setup: Any, model: Any, request: SampleRequest) -> Any:
        assert request.steps == STEPS
        return sample(setup, model, replace(request, steps=4))

    monkeypatch.setattr("scripts.demo.sampling.sample", made)


@pytest.mark.usefixtures("forked", "rough")
def test_a_small_journey(tmp_path: Path) -> None:
    told: list[str] = []
    size = Size(prompts=5, images_per_prompt=4, pairs_per_prompt=1, judged=2, epochs=2)
    out = tmp_path / "a folder with spaces"
    made = run_journey(Journey(out, seed=3, size=size, overrides=("cpu_threads=1",)), told.append)
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert written == made
    assert set(made) >= FIELDS
    assert made["pairs"] + made["heldout_pairs"] == 5 and made["steps"] == 2
    for name in (
        "win_rate",
        "fidelity_base",
        "fidelity_adapter",
        "heldout_pair_accuracy",
        "supervised_win_rate",
    ):
        assert 0.0 <= made[name] <= 1.0
    with Image.open(out / "before_after.png") as sheet:
        assert sheet.width > 500 and sheet.height > 200
    with safe_open(out / "adapter-dpo.safetensors", framework="pt") as adapter:
        assert adapter.metadata()["tastemaker.objective"] == "SIGMOID"
    assert len(list((out / "images").iterdir())) == 20
    assert {p.suffix for p in (out / "images").iterdir()} == {".png", ".webp"}
    assert any("chose 5 pairs" in line for line in told)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x", encoding="utf-8")
    for arguments, expected in (
        (["--mode", "NOTHING", "--out", str(tmp_path / "new")], "NOTHING"),
        (["--out", str(tmp_path / "full")], "not empty"),
        (["--error-rate", "0.7", "--out", str(tmp_path / "new")], "0.7"),
        (["--model", str(tmp_path / "nowhere"), "--out", str(tmp_path / "new")], "nowhere"),
    ):
        assert main(["journey", *arguments]) == 2
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["data", "vae", "model"])
def test_nothing_is_written_into_a_folder_that_holds_something(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, full = tmp_path / "mine.png", tmp_path / "full"
    mine.write_text("mine", encoding="utf-8")
    full.mkdir()
    (full / "00000.png").symlink_to(mine)
    (full / "config.json").write_text("mine", encoding="utf-8")
    assert main([what, "--out", str(full)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert sorted(path.name for path in full.iterdir()) == ["00000.png", "config.json"]
    assert {path.read_text(encoding="utf-8") for path in (mine, full / "config.json")} == {"mine"}


def test_win_rate_counts_equals_half() -> None:
    assert win_rate([1.0, 0.0, 0.5, 0.5], [0.0, 1.0, 0.5, 0.4]) == pytest.approx(0.625)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preference_training_wins(tmp_path: Path, seed: int) -> None:
    made = run_journey(Journey(tmp_path / "out", seed=seed, size=FULL), print)
    assert made["win_rate"] >= 0.70
    assert made["fidelity_base"] - made["fidelity_adapter"] <= 0.03
    assert made["win_rate"] > made["supervised_win_rate"]
    assert made["heldout_pair_accuracy"] > 0.6
    assert made["train_cpu_seconds"] <= 300
