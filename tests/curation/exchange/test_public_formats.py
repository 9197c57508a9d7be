"""Public preference data in and out, and what a hostile file cannot do."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from modules.curation.exchange.public_formats import (
    BadRow,
    PublicFile,
    PublicPair,
    export_datasets_folder,
    export_jsonl_folder,
)
from modules.util import dpo_curation_util as util
from modules.util.errors import DataError, UserError
from tests.changes import full_disk

CORPUS = Path(__file__).parents[2] / "faults" / "corpus" / "parquet"


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in "abcd":
        (tmp_path / "images" / f"{name}.jpg").write_bytes(jpeg(ord(name)))
    return tmp_path


@pytest.mark.child
def test_pick_a_pic_winners_are_chosen_and_ties_left_out(tmp_path):
    table = pa.table(
        {
            "caption": ["a  cat", "a dog", "tie"],
            "jpg_0": [jpeg(1), jpeg(2), jpeg(3)],
            "jpg_1": [jpeg(11), jpeg(12), jpeg(13)],
            "label_0": [1.0, 0.0, 0.5],
        }
    )
    pq.write_table(table, tmp_path / "p.parquet")
    assert list(PublicFile(tmp_path / "p.parquet")) == [
        PublicPair("a cat", jpeg(1), jpeg(11)),
        PublicPair("a dog", jpeg(12), jpeg(2)),
    ]


def test_ranks_pair_the_best_with_the_worst(folder):
    rows = [
        {"prompt": "x", "generations": ["a.jpg", "b.jpg", "c.jpg"], "ranking": [2, 3, 1]},
        {"prompt": "y", "generations": ["a.jpg", "b.jpg"], "ranking": [1, 1]},
    ]
    (folder / "ir.json").write_text(json.dumps(rows))
    (pair,) = PublicFile(folder / "ir.json")
    assert isinstance(pair.chosen, Path) and isinstance(pair.rejected, Path)
    assert (pair.prompt, pair.chosen.name, pair.rejected.name) == ("x", "c.jpg", "b.jpg")


def test_both_generations_of_hpd(folder):
    rows = [
        {"prompt": "v2", "image_path": ["a.jpg", "b.jpg"], "human_preference": [0, 1]},
        {"prompt": "v2r", "image_path": ["a.jpg", "b.jpg", "c.jpg"], "rank": [2, 1, 3]},
        {"prompt": "v3", "path1": "c.jpg", "path2": "d.jpg"},
    ]
    (folder / "hpd.json").write_text(json.dumps(rows))
    made = [(p.prompt, p.chosen.name, p.rejected.name) for p in PublicFile(folder / "hpd.json")]
    assert made == [("v2", "b.jpg", "a.jpg"), ("v2r", "b.jpg", "c.jpg"), ("v3", "c.jpg", "d.jpg")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "p", "chosen": "../secret.jpg", "rejected": "images/a.jpg"}', "leaves the folder"),
        ('{"prompt": "p", "chosen": "/etc/hostname", "rejected": "images/a.jpg"}', "leaves the folder"),
        ('{"prompt": "p", "chosen": "images/zz.jpg", "rejected": "images/a.jpg"}', "does not exist"),
        ('{"prompt": " ", "chosen": "images/b.jpg", "rejected": "images/a.jpg"}', "no prompt"),
        ('{"prompt": "p", "chosen": 3, "rejected": "images/a.jpg"}', "not a file name"),
        ("[]", "not an object"),
        ("{", "line 3: the row is not valid JSON"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "longer than"),
    ],
)
def test_a_hostile_line_is_named_with_its_place(folder, line, message):
    sound = '{"prompt": "p", "chosen": "images/b.jpg", "rejected": "images/a.jpg"}'
    (folder.parent / "secret.jpg").write_bytes(jpeg(0))
    (folder / "x.jsonl").write_text(f"{sound}\n\n{line}\n")
    good, bad = PublicFile(folder / "x.jsonl")
    assert isinstance(good, PublicPair) and good.prompt == "p"
    assert isinstance(bad, BadRow) and message in bad.reason
    assert bad.reason.startswith(f"{folder / 'x.jsonl'}, line 3")


@pytest.mark.child
@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_one_clear_error(tmp_path, content):
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(DataError, match="parquet"):
        list(PublicFile(tmp_path / "x.parquet"))


@pytest.mark.child
def test_a_file_that_ends_arrows_process_is_refused_and_the_next_one_is_read(tmp_path):
    """Its footer counts repetitions in a table of the wrong size: Arrow throws where C++ lets nothing be caught."""
    with pytest.raises(DataError, match="histogram.*ended its reader"):
        list(PublicFile(CORPUS / "histogram-of-a-wrong-size.parquet"))
    columns = {"caption": ["a", "b"], "jpg_0": [jpeg(1)] * 2, "jpg_1": [jpeg(2)] * 2, "label_0": [1.0, 0.0]}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    both = PublicFile(tmp_path / "p.parquet")
    # the second loop begins while the first is in the middle of the file
    assert [(one.prompt, [two.prompt for two in both]) for one in both] == [
        ("a", ["a", "b"]),
        ("b", ["a", "b"]),
    ]
    assert next(iter(both)) == PublicPair("a", jpeg(1), jpeg(2))
    assert len(list(both)) == 2


@pytest.mark.child
def test_rows_of_other_types_are_left_out_by_name(tmp_path):
    columns = {
        "caption": [b"\xff", b"fine"],
        "jpg_0": [jpeg(1), None],
        "jpg_1": [jpeg(2)] * 2,
        "label_0": [1.0] * 2,
    }
    table = pa.table(columns).set_column(
        0, "caption", pa.array(columns["caption"], pa.binary()).view(pa.utf8())
    )
    pq.write_table(table, tmp_path / "p.parquet")
    first, second = PublicFile(tmp_path / "p.parquet")
    assert isinstance(first, BadRow) and "row 1 cannot be read" in first.reason
    assert isinstance(second, BadRow) and "row 2: an image is missing" in second.reason


def test_unknown_formats_and_missing_files_are_refused(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    for name in ("x.json", "missing.jsonl"):
        with pytest.raises(UserError):
            PublicFile(tmp_path / name)


def test_the_exported_folder_reads_back_as_the_same_pairs(folder, tmp_path):
    out = tmp_path / "out"
    manifest = util.load_manifest(out)
    for i, prompt in enumerate(("one", "two", "three")):
        pair = (folder / "images" / "abc"[i]).with_suffix(".jpg"), folder / "images" / "d.jpg"
        util.export_single_pair(out, manifest, *pair, prompt, "1:1")
    util.finalize_export(out, manifest, 30.0)
    assert export_datasets_folder(out, tmp_path / "hf") == 3
    rows = []
    for split in ("train", "validation"):
        for line in (tmp_path / "hf" / split / "metadata.jsonl").read_text().splitlines():
            row = json.loads(line)
            chosen = (tmp_path / "hf" / split / row["chosen_file_name"]).read_bytes()
            rows.append((row["prompt"], chosen))
    assert sorted(rows) == sorted((p, jpeg(ord("abc"[i]))) for i, p in enumerate(("one", "two", "three")))
    with pytest.raises(UserError, match="not empty"):
        export_datasets_folder(out, tmp_path / "hf")


@pytest.mark.parametrize("export", [export_datasets_folder, export_jsonl_folder])
@pytest.mark.parametrize("exists", [True, False])
def test_an_export_that_fails_leaves_nothing_and_can_be_repeated(folder, tmp_path, export, exists):
    out, target = tmp_path / "out", tmp_path / "there" / "exported"
    manifest = util.load_manifest(out)
    for i, prompt in enumerate(("one", "two", "three")):
        pair = (folder / "images" / "abc"[i]).with_suffix(".jpg"), folder / "images" / "d.jpg"
        util.export_single_pair(out, manifest, *pair, prompt, "1:1")
    util.finalize_export(out, manifest, 0.0)
    if exists:
        target.mkdir(parents=True)
    lost = out / "rejected" / "train" / "pair_0001.jpg"
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(DataError, match="pair_0001 has lost a side"):
        export(out, target)
    lost.write_bytes(kept)
    with full_disk(after=9), pytest.raises((UserError, OSError)):
        export(out, target)
    assert target.exists() == exists and not list(tmp_path.glob("there/**/*.*"))
    assert export(out, target) == 3
    assert len(list(target.rglob("*.jpg"))) == 6


def test_a_pair_in_both_splits_is_not_written_over_another_one(folder, tmp_path):
    out = tmp_path / "out"
    manifest = util.load_manifest(out)
    util.export_single_pair(out, manifest, folder / "images" / "a.jpg", folder / "images" / "d.jpg", "one", "1:1")
    util.finalize_export(out, manifest, 0.0)
    for side, name in (("chosen", "b.jpg"), ("rejected", "c.jpg")):
        (out / side / "val" / "pair_0000.jpg").write_bytes((folder / "images" / name).read_bytes())
    with pytest.raises(DataError, match="in train and in val:\n.*pair_0000"):
        export_jsonl_folder(out, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    assert export_datasets_folder(out, tmp_path / "exported") == 2
