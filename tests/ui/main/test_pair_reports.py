"""Checks of pairs and folders of a config."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.ui.state.folder_stats import count_images, folder_stats, stats_lines
from modules.ui.state.pair_reports import bucket_report, check_pairs, concepts_of_output
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.enum.ConceptType import ConceptType
from modules.util.errors import DataError, UserError
from modules.util.jsonio import write_json
from tests.tools.pictures import damaged_avif, picture


def make(folder: Path, count: int, size: tuple[int, int] = (64, 64)) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        Image.new("RGB", size, (index, len(str(folder)), 0)).save(folder / f"pair_{index}.png")
        (folder / f"pair_{index}.txt").write_text("a fox")


@pytest.fixture
def concepts(tmp_path: Path) -> list[ConceptConfig]:
    make(tmp_path / "chosen", 5)
    make(tmp_path / "rejected", 5)
    return [
        ConceptConfig(path=str(tmp_path / "chosen"), type="DPO_CHOSEN"),
        ConceptConfig(path=str(tmp_path / "rejected"), type="DPO_REJECTED"),
    ]


def test_good_pairs(concepts: list[ConceptConfig]) -> None:
    good, lines = check_pairs(concepts)
    assert good
    assert any("Matching: 5 pairs" in line for line in lines)


def test_bad_pairs_are_named(concepts: list[ConceptConfig], tmp_path: Path) -> None:
    (tmp_path / "rejected" / "pair_3.txt").write_text("a hen")
    (tmp_path / "chosen" / "pair_4.png").unlink()
    good, lines = check_pairs(concepts)
    assert not good
    text = "\n".join(lines)
    assert "different captions" in text and "pair_3" in text
    assert "rejected folder only" in text and "pair_4" in text


def test_a_missing_folder_is_a_fault_of_its_pair_alone(concepts: list[ConceptConfig]) -> None:
    concepts[1].path = "/nowhere"
    good, lines = check_pairs(concepts)
    assert not good
    assert any("/nowhere" in line for line in lines)


def test_one_side_alone_is_refused(concepts: list[ConceptConfig]) -> None:
    with pytest.raises(DataError, match="1 chosen and 0 rejected"):
        check_pairs(concepts[:1])
    with pytest.raises(DataError, match="no concepts with chosen and rejected"):
        check_pairs([])


def test_buckets(concepts: list[ConceptConfig], tmp_path: Path) -> None:
    Image.new("RGB", (96, 64)).save(tmp_path / "chosen" / "wide.png")
    Image.new("RGB", (96, 64)).save(tmp_path / "rejected" / "wide.png")
    (tmp_path / "chosen" / "broken.png").write_bytes(b"no image")
    lines = bucket_report(concepts, "64", 2)
    assert lines[0].startswith("6 training pairs at resolution 64")
    assert "1:1" in lines[2] and "5 pairs" in lines[2] and "add 1 or remove 1" in lines[2]
    assert "3:2" in lines[3]
    assert "1 image cannot be read" in lines[-1]


def test_the_output_of_the_pair_tool_becomes_concepts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished pairs"):
        concepts_of_output(tmp_path)
    make(tmp_path / "chosen" / "train", 1)
    make(tmp_path / "rejected" / "train", 1)
    made = concepts_of_output(tmp_path)
    assert [c.type.value for c in made] == ["DPO_CHOSEN", "DPO_REJECTED"]
    assert check_pairs(made)[0]


@pytest.mark.parametrize("home", ["/nowhere/pairs/", "C:\\pairs\\"])
def test_the_pairs_of_a_folder_that_was_moved_are_those_in_it(tmp_path: Path, home: str) -> None:
    make(tmp_path / "chosen" / "train", 1)
    make(tmp_path / "rejected" / "train", 1)

    def listed(home: str) -> list[ConceptConfig]:
        gap = home[-1]
        return [
            ConceptConfig(path=f"{home}chosen{gap}train", type=ConceptType.DPO_CHOSEN, source_path=f"{home}source"),
            ConceptConfig(path=f"{home}rejected{gap}train", type=ConceptType.DPO_REJECTED),
        ]

    mine = ConceptConfig(path="/nowhere/regularisation")
    write_json(tmp_path / "concepts.json", [one.to_dict() for one in (*listed(home), mine)])
    assert concepts_of_output(tmp_path) == [*listed(f"{tmp_path}/"), mine]
    both = [*listed(f"{tmp_path}/"), *listed(home)]
    write_json(tmp_path / "concepts.json", [one.to_dict() for one in both])
    assert concepts_of_output(tmp_path) == both


def test_folder_statistics(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b", 3, (80, 60))
    Image.new("RGB", (40, 90)).save(tmp_path / "a" / "tall.png")
    Image.new("L", (40, 90)).save(tmp_path / "a" / "tall-masklabel.png")
    (tmp_path / "a" / "broken.jpg").write_bytes(b"")
    folder = str(tmp_path / "a")
    assert count_images(folder, False) == 2
    assert count_images(folder, True) == 5
    assert count_images(folder + "x", True) is None
    stats = folder_stats(folder, True)
    assert (stats.images, stats.captions) == (5, 3)
    assert (stats.smallest, stats.largest) == ((40, 90), (80, 60))
    assert stats.unreadable == ["broken.jpg"]
    text = "\n".join(stats_lines(stats))
    assert "2 images without one" in text and "broken.jpg" in text
    with pytest.raises(UserError, match="does not exist"):
        folder_stats(folder + "x", True)


def test_an_image_of_any_damage_is_named_among_those_that_cannot_be_read(tmp_path: Path) -> None:
    damaged_avif(tmp_path / "damaged.avif")
    picture(1).save(tmp_path / "whole.png")
    stats = folder_stats(str(tmp_path), False)
    assert (stats.images, stats.unreadable) == (2, ["damaged.avif"])
