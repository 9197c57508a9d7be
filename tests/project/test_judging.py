"""Automatic judges of a project: asked once, kept, and told apart from votes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from modules.project import judging
from scripts import judge as judge_script
from tests.project.simulated import refused, told
from tests.project.test_project import project, trained_from
from tests.reward.tiny_clip import save_tiny_clip

__all__ = ["project", "trained_from"]
FAKE = Path(__file__).with_name("fake_judges.py")


def test_judges_are_asked_and_their_losses_are_shown(trained_from, tmp_path, capsys, monkeypatch, drawer):
    monkeypatch.setattr(judging, "SCRIPT", FAKE)
    (found,) = told(capsys, "judge", trained_from, "--images", "8")["automatic"]
    assert (found["first"], found["second"]) == ("round-1", "base")
    assert found["win_rates"][0]["share"] == 1.0 and found["win_rates"][0]["images"] == 8
    assert found["diversity"]["ratio"] == 0.5 and len(found["losses"]) == 2
    row = told(capsys, "status", trained_from)["rounds"][0]
    assert row["automatic"] == found and row["arena"] is None
    assert told(capsys, "compare", trained_from, "--images", "8", "--result")["automatic"] == [found]
    from scripts import taste

    capsys.readouterr()
    assert taste.main(["compare", str(trained_from), "--images", "8", "--result"]) == 0
    said = capsys.readouterr().out
    assert "automatic, not your votes: Loss: less variety" in said
    # another adapter has another judgement
    drawer.made.clear()
    told(capsys, "train", trained_from, "--again")
    (trained_from / "round-1" / "adapter.safetensors").write_text("another one")
    assert told(capsys, "status", trained_from)["rounds"][0]["automatic"] is None


def test_an_untrained_round_is_refused(project, capsys):
    assert "no adapter" in refused(capsys, "judge", project)


@pytest.fixture
def images(tmp_path: Path) -> list[dict[str, str]]:
    made = []
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        path = tmp_path / f"{number}.png"
        Image.fromarray(pixels).save(path)
        made.append({"path": str(path), "prompt": "a red fox", "group": f"{number // 3} a red fox"})
    made[5]["path"] = made[4]["path"]
    return made


def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **request: object) -> dict:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(request).encode())))
    capsys.readouterr()
    assert judge_script.main([]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow  # loads a CLIP model and the demo model's VAE
def test_the_script_scores_and_measures_spread(images, tmp_path, monkeypatch, capsys):
    base = "resources/demo_model"
    plain = asked(monkeypatch, capsys, images=images, base=base)
    assert plain["measure"] == "vae" and plain["scores"] == {}
    assert {"taste", "clip", "pickscore"} == set(plain["missing"])
    assert 0 < plain["spread"]["1 a red fox"] < plain["spread"]["0 a red fox"]
    clip = str(save_tiny_clip(tmp_path / "clip"))
    found = asked(monkeypatch, capsys, images=images, base=base, clip=clip, pickscore=clip)
    assert found["measure"] == "clip" and set(found["missing"]) == {"taste"}
    assert [len(one) for one in found["scores"].values()] == [6, 6]
    assert found["scores"]["clip"][4] == pytest.approx(found["scores"]["clip"][5])


def test_the_script_names_its_mistakes(monkeypatch, capsys, images):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"images": []}')))
    assert judge_script.main([]) == 2
    assert "no images" in capsys.readouterr().err
