"""Stars, ratings and favourites of other programs become pairs and a list of likes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from modules.util.dpo_curation_util import load_manifest
from scripts import curate

PACKET = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description xmlns:xmp="http://ns.adobe.com/xap/1.0/" {}</rdf:RDF></x:xmpmeta>'
)


def write_image(path: Path, prompt: str, seed: int, packet: str = "", starred: bool | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    info = PngImagePlugin.PngInfo()
    if starred is None:
        info.add_text("parameters", f"{prompt}\nSteps: 20, Sampler: Euler, Seed: {seed}, Size: 64x64")
    else:
        data: dict[str, Any] = {"sui_image_params": {"prompt": prompt, "seed": seed}, "is_starred": starred}
        info.add_text("parameters", json.dumps(data, indent=2))
    if packet:
        info.add_itxt("XML:com.adobe.xmp", packet)
    pixels = np.random.default_rng(seed).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, pnginfo=info)
    return path


def rating(number: int) -> str:
    return PACKET.format(f'xmp:Rating="{number}"/>')


def imported(
    tmp_path: Path, *more: str
) -> tuple[dict[str, Any], list[dict[str, str]], list[tuple[str, str, str]]]:
    """The result, the likes, and the pairs as (prompt, chosen, rejected)."""
    result, likes = tmp_path / "result.json", tmp_path / "likes.json"
    arguments = ["import", str(tmp_path / "images"), str(tmp_path / "pairs"), "--likes", str(likes), *more]
    assert curate.main([*arguments, "--json", str(result)]) == 0
    pairs = [
        (one["prompt"], Path(one["sources"]["chosen"]).name, Path(one["sources"]["rejected"]).name)
        for one in load_manifest(tmp_path / "pairs")["pairs"]
    ]
    return json.loads(result.read_text()), json.loads(likes.read_text()), pairs


def test_every_way_of_marking_is_read(tmp_path: Path) -> None:
    images = tmp_path / "images"
    # starred in the file; the other says that it is not
    write_image(images / "a0.png", "a fox", 1, starred=True)
    write_image(images / "a1.png", "a fox", 2, starred=False)
    # ratings as attribute and as element; 3 is no mark
    write_image(images / "b0.png", "an owl", 3, rating(5))
    write_image(images / "b1.png", "an owl", 4, rating(1))
    write_image(
        images / "b2.png", "an owl", 5, PACKET.format("><xmp:Rating>4</xmp:Rating></rdf:Description>")
    )
    write_image(images / "b3.png", "an owl", 6, rating(3))
    # sidecars of Lightroom and of darktable; the sidecar is the later word
    write_image(images / "c0.png", "a cat", 7).with_suffix(".xmp").write_text(rating(4))
    write_image(images / "c1.png", "a cat", 8, rating(5))
    (images / "c1.png.xmp").write_text(rating(-1))
    # a rating that was lowered to 3, and one that was raised to 2: in the sidecar, both are no mark any more
    write_image(images / "c2.png", "a cat", 18, rating(5)).with_suffix(".xmp").write_text(rating(3))
    write_image(images / "c3.png", "a cat", 19, rating(1))
    (images / "c3.png.xmp").write_text(rating(2))
    # a sidecar that says nothing about ratings changes nothing
    write_image(images / "j0.png", "a jay", 21, rating(5)).with_suffix(".xmp").write_text(PACKET.format("/>"))
    # a star that was taken back
    write_image(images / "a2.png", "a fox", 20, starred=True).with_suffix(".swarm.json").write_text(
        '{"is_starred": false}'
    )
    # SwarmUI's own sidecar
    write_image(images / "d0.png", "a dog", 9).with_suffix(".swarm.json").write_text('{"is_starred" : true}')
    write_image(images / "d1.png", "a dog", 10)
    # SwarmUI's folder of stars, and a folder of favourites; copies are one image
    (images / "Starred").mkdir()
    shutil.copy(write_image(images / "e0.png", "a bee", 11), images / "Starred" / "e0.png")
    write_image(images / "e1.png", "a bee", 12)
    (tmp_path / "best").mkdir()
    shutil.copy(write_image(images / "f0.png", "a cow", 13), tmp_path / "best" / "renamed.png")
    write_image(images / "f1.png", "a cow", 14)
    # liked, and nothing to compare with; nothing liked; no prompt
    write_image(images / "g0.png", "a hen", 15, rating(5))
    write_image(images / "h0.png", "a pig", 16, rating(1))
    write_image(images / "h1.png", "a pig", 17)
    Image.new("RGB", (64, 64)).save(images / "i0.png")
    result, likes, pairs = imported(tmp_path, "--favourites", str(tmp_path / "best"))
    assert sorted(pairs) == [
        ("a bee", "e0.png", "e1.png"),
        ("a cat", "c0.png", "c1.png"),
        ("a cow", "f0.png", "f1.png"),
        ("a dog", "d0.png", "d1.png"),
        ("a fox", "a0.png", "a1.png"),
        ("an owl", "b0.png", "b1.png"),
        ("an owl", "b2.png", "b3.png"),
    ]
    assert (result["imported"], result["likes"], result["dislikes"], result["without_prompt"]) == (7, 9, 3, 1)
    told = {one["file"]: (one["mark"], one["why"]) for one in likes}
    assert told["c1.png"] == ("dislike", "rated -1 in c1.png.xmp")
    assert told["e0.png"] == ("like", "a copy in Starred")
    assert told["f0.png"] == ("like", "a copy in the favourites")
    assert told["g0.png"] == ("like", "rated 5 in the file")
    assert told["j0.png"] == ("like", "rated 5 in the file")
    assert not told.keys() & {"b3.png", "a1.png", "a2.png", "c2.png", "c3.png"}


def test_once_more_brings_nothing_new(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a0.png", "a fox", 1, starred=True)
    write_image(tmp_path / "images" / "a1.png", "a fox", 2)
    imported(tmp_path)
    result, _, pairs = imported(tmp_path)
    assert (result["imported"], result["already_there"], len(pairs)) == (0, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no image in"),
        (["--favourites", "nowhere"], "nowhere is not a folder"),
        (["--format", "hpd"], "has no format"),
    ],
)
def test_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    write_image(tmp_path / "images" / "a0.png", "a fox", 1, rating(3))
    assert curate.main(["import", str(tmp_path / "images"), str(tmp_path / "pairs"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "pairs" / "manifest.json").exists()


def test_likes_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("")
    assert (
        curate.main(["import", str(lines), str(tmp_path / "out"), "--likes", str(tmp_path / "likes.json")])
        == 2
    )
    assert "only a folder of images has likes" in capsys.readouterr().err


def test_likes_listed_next_to_the_pairs_are_there_after_finalising(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a0.png", "a fox", 1, starred=True)
    write_image(tmp_path / "images" / "a1.png", "a fox", 2)
    pairs = tmp_path / "pairs"
    likes = pairs / "likes.json"
    assert curate.main(["import", str(tmp_path / "images"), str(pairs), "--likes", str(likes)]) == 0
    listed = json.loads(likes.read_text())
    assert [one["file"] for one in listed] == ["a0.png"]
    assert curate.main(["finalize", str(pairs)]) == 0
    assert json.loads(likes.read_text()) == listed
