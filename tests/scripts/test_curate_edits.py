"""From images that ComfyUI has edited to an adapter that learned from them, without a window and without an edit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.util.dpo_curation_util import load_manifest
from scripts import curate
from tests.contracts.test_family_training import family_config
from tests.curation.edits import edit_folder, picture
from tests.trainer.builders import ROOT, environment, run_here, same_weights
from tests.usual import usual
from tests.util.image_metadata.edit_graphs import Graph, kontext, qwen

FAMILIES: dict[str, Callable[..., Graph]] = {
    "FLUX_KONTEXT_DEV_1": kontext,
    "FLUX_2": kontext,
    "QWEN_EDIT_PLUS": qwen,
}
"""Families that edit, with the graph by which ComfyUI edits with them."""
PAIRS = 2


def pick_all(images: Path, inputs: Path, out: Path) -> list[dict[str, Any]]:
    """Choose the second image over the first of every group, as another program does; all replies."""
    chosen = json.dumps({"do": "choose", "best": 1, "worst": 0})
    options = ["--mode", "SELECT", "--near-duplicates", "-1", "--input-dir", str(inputs)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "curate.py"), "serve-pairs", str(images), str(out), *options],
        input="\n".join([chosen] * PAIRS) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("key", usual(FAMILIES, "QWEN_EDIT_PLUS"))
def test_what_comfyui_edited_becomes_pairs_that_train_an_adapter(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, inputs = edit_folder(tmp_path, PAIRS, 2, FAMILIES[key], (32, 32))
    out = tmp_path / "out"
    *_, last, _bye = pick_all(images, inputs, out)
    assert (last["type"], last["pairs"]) == ("finished", PAIRS)
    assert curate.main(["finalize", str(out), "--val-percentage", "0"]) == 0
    assert curate.main(["check", str(out), "--resolution", "32"]) == 0
    assert '"not_edited": []' in capsys.readouterr().out
    for pair in load_manifest(out)["pairs"]:
        (source,) = pair["source_images"]
        assert (out / source["file"]).read_bytes() == Path(source["from"]).read_bytes()
        assert Path(source["from"]).stem[-1] == pair["prompt"][-1], "the source of this very instruction"

    def train(name: str) -> Path:
        config = family_config(
            tmp_path / name,
            key,
            concepts=None,
            concept_file_name=str(out / "concepts.json"),
            epochs=1,
            learning_rate=0.05,
            samples=[],
        )
        run_here(config)
        return tmp_path / name / "out.safetensors"

    first = train("first")
    for pair in load_manifest(out)["pairs"]:
        picture(77, (32, 32)).save(out / pair["source_images"][0]["file"])
    assert not same_weights(first, train("other sources")), "the sources take part"


def test_the_options_of_edits_are_those_of_scanning_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, inputs = edit_folder(tmp_path, 1, 2)
    with Image.open(inputs / "sub" / "source0.png") as source:
        source.save(images / "g000_i00_source.png")

    def scan(*options: str) -> list[tuple[str, list[str], str | None]]:
        assert curate.main(["scan", str(images), *options]) == 0
        rows = json.loads(capsys.readouterr().out)
        return [(row["path"], [Path(one).name for one in row["sources"]], row["error"]) for row in rows]

    unknown = "edit without source: the folder with sub/source0.png [input] is not known: name ComfyUI's input folder"
    assert scan("--edits") == [
        ("g000_i00.png", ["g000_i00_source.png"], None),
        ("g000_i01.png", [], unknown),
    ]
    assert scan("--input-dir", str(inputs))[1] == ("g000_i01.png", ["source0.png"], None)
    for_all = scan("--source", str(inputs / "sub" / "source0.png"))
    assert [names for _, names, _ in for_all] == [["source0.png"]] * 2
    assert curate.main(["scan", str(images), "--source", str(images / "none.png")]) == 2
    assert "the source image" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        curate.main(["scan", str(images), "--source", "a.png", "--input-dir", "b"])
