"""The whole loop with the demo model and its simulated person: new, generate, pick, train, compare, next."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.demo.judge import read_image
from scripts.demo.pairs import load_pixels, prompt_split
from scripts.demo.taste import get_taste
from scripts.demo.world import Wish
from tests.project.simulated import headless, preferring, told

LARGE = get_taste("large")


def liking(path: Path, prompt: str) -> float:
    return LARGE.score(read_image(load_pixels(path)), Wish.parse(prompt))


@pytest.mark.slow  # starts the sampler and the trainer as programs several times
def test_from_new_to_the_next_round(tmp_path, capsys, monkeypatch):
    folder = str(tmp_path / "my taste")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(wish.caption() for wish in prompt_split(1)[0][:15]), encoding="utf-8")
    made = told(
        capsys, "new", folder, "--base-model", "resources/demo_model", "--prompts", prompts, "--device", "cpu",
        "--width", 64, "--height", 64, "--steps", 20, "--cfg", 2.5, "--sampler", "DDIM", "--near-duplicates", -1,
    )  # fmt: skip
    assert (made["prompts"], made["held_out"], made["next"]) == (12, 3, "generate")
    assert "demo dpo" in made["preset"]
    assert told(capsys, "generate", folder, "--per-prompt", 4) == {
        "round": 1, "candidates": 48, "made": 48, "next": "pick",
    }  # fmt: skip
    headless(monkeypatch, preferring(liking, 0.03), "pick", folder)
    picked = told(capsys, "status", folder)
    assert picked["next"] == "train" and picked["rounds"][0]["pairs"] >= 10
    trained = told(capsys, "train", folder, "--set", "cpu_threads=1", "--set", "epochs=8")
    assert (trained["adapter"], trained["next"]) == ("round-1/adapter.safetensors", "compare")
    said = headless(monkeypatch, preferring(liking, 0.03), "compare", folder, "--images", "24")
    result = said[-1]["result"]
    assert result["contestants"] == ["round-1", "base"] and result["win_rate"] > 0.5
    assert told(capsys, "status", folder)["next"] == "new-round"
    begun = told(capsys, "next", folder, "--per-prompt", 2)
    assert begun == {"round": 2, "prompts": 12, "planned": 24, "next": "generate"}
    assert told(capsys, "generate", folder)["made"] == 24
    first, second = ({path.read_bytes() for path in (tmp_path / "my taste" / f"round-{n}" / "candidates").iterdir()}
                     for n in (1, 2))  # fmt: skip
    assert len(first) == 48 and len(second) == 24 and not first & second
