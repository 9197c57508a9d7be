"""The pair tool's command line: results as JSON on stdout, mistakes as one message and status 2."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from modules.curation.exchange.parquet_pages import unpacked_bytes
from modules.curation.store import CurationStore
from modules.util.config.ConceptConfig import ConceptConfig
from scripts import curate

ROOT = Path(__file__).resolve().parents[2]


def picture(path: Path, shade: int, size: tuple[int, int] = (24, 24)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(path)
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    rows = []
    for i in range(4):
        picture(tmp_path / "data" / f"good{i}.png", 10 * i)
        picture(tmp_path / "data" / f"bad{i}.webp", 200 + i)
        rows.append({"prompt": f"prompt {i}", "chosen": f"good{i}.png", "rejected": f"bad{i}.webp"})
    file = tmp_path / "data" / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def out(tmp_path: Path, jsonl: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert curate.main(["import", str(jsonl), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    return tmp_path / "out"


def call(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict:
    assert curate.main([str(a) for a in arguments]) == status
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert curate.main([str(a) for a in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


class TestImport:
    def test_twice_is_once(self, tmp_path, jsonl, capsys):
        first = call(capsys, "import", jsonl, tmp_path / "out")
        nothing_else = {"contradictory": 0, "identical": 0, "left_out": 0, "faults": [], "warnings": []}
        assert first == {"imported": 4, "already_there": 0, "pairs": 4, **nothing_else}
        again = call(capsys, "import", jsonl, tmp_path / "out")
        assert again == {"imported": 0, "already_there": 4, "pairs": 4, **nothing_else}

    def test_images_inside_parquet(self, tmp_path, capsys):
        images = []
        for shade in (0, 200):
            stream = io.BytesIO()
            Image.new("RGB", (30, 20), (shade, 0, 0)).save(stream, "JPEG")
            images.append(stream.getvalue())
        columns = {"caption": ["a hill", "a tie"], "jpg_0": [images[0]] * 2, "jpg_1": [images[1]] * 2}
        parquet.write_table(pa.table({**columns, "label_0": [0.0, 0.5]}), tmp_path / "a.parquet")
        assert call(capsys, "import", tmp_path / "a.parquet", tmp_path / "out")["imported"] == 1
        (pair,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["pairs"]
        assert (tmp_path / "out" / pair["chosen_file"]).read_bytes() == images[1]
        assert pair["chosen_file"].endswith(".jpg")
        assert pair["aspectratio"] == "3:2"
        assert pair["sources"]["chosen"] == f"{tmp_path / 'a.parquet'}, pair 1"

    def test_bad_rows_in_the_middle_are_listed_and_the_others_are_in(self, tmp_path, jsonl, capsys):
        (jsonl.parent / "text.webp").write_text("no image")
        (jsonl.parent / "secret.png").write_bytes((jsonl.parent / "good0.png").read_bytes())
        picture(jsonl.parent / "cut.png", 9, (80, 80))
        data = (jsonl.parent / "cut.png").read_bytes()
        (jsonl.parent / "cut.png").write_bytes(data[: len(data) - 30])
        (jsonl.parent / "round.png").symlink_to("about.png")
        (jsonl.parent / "about.png").symlink_to("round.png")
        names = [
            "../secret.png", "gone.png", "a\0.png", "round.png", 7, None, "x" * 5000, "text.webp", "cut.png",
        ]  # fmt: skip
        bad = [json.dumps({"prompt": "x", "chosen": name, "rejected": "bad0.webp"}) for name in names]
        bad += ["[]", "{", '{"prompt": "' + "x" * (1 << 20) + '"}', '{"prompt": 1}', "\x00"]
        good = jsonl.read_text().splitlines()
        lines = [line for pair in zip(good, bad, strict=False) for line in pair] + bad[len(good) :]
        jsonl.write_text("\n".join(lines) + "\n")
        assert curate.main(["import", str(jsonl), str(tmp_path / "out")]) == 0
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert (found["imported"], found["left_out"], len(found["faults"])) == (4, len(bad), len(bad))
        for number, words in enumerate(
            [
                "line 2",
                "line 4",
                "NUL",
                "leads nowhere",
                "line 9",
                "line 10",
                "too long",
                "pair 12",
                "cut.png cannot",
            ]
        ):
            assert words in found["faults"][number]
        assert f"warning: {len(bad)} rows left out" in said.err and "Traceback" not in said.err
        assert call(capsys, "import", jsonl, tmp_path / "out")["already_there"] == 4

    def test_a_file_of_bad_rows_alone_is_refused(self, tmp_path, jsonl, capsys):
        jsonl.write_text('{"prompt": "x", "chosen": "gone.png", "rejected": "bad0.webp"}\n' * 3)
        assert "gone.png does not exist" in refused(capsys, "import", jsonl, tmp_path / "out")

    def test_pairs_that_contradict_each_other_are_counted_and_left_out(self, tmp_path, jsonl, capsys):
        rows = [json.loads(line) for line in jsonl.read_text().splitlines()]
        turned = {"prompt": "prompt  1 <lora:x:1>", "chosen": "bad1.webp", "rejected": "good1.png"}
        other_prompt = {"prompt": "another", "chosen": "bad2.webp", "rejected": "good2.png"}
        same = {"prompt": "same", "chosen": "good3.png", "rejected": "good3.png"}
        made = [*rows, turned, other_prompt, same]
        jsonl.write_text("".join(json.dumps(row) + "\n" for row in made))
        found = call(capsys, "import", jsonl, tmp_path / "out")
        assert (found["imported"], found["contradictory"], found["identical"]) == (4, 2, 1)
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert [pair["prompt"] for pair in manifest["pairs"]] == [
            "prompt 0",
            "prompt 2",
            "prompt 3",
            "another",
        ]
        (jsonl.parent / "more.jsonl").write_text(
            json.dumps({"prompt": "prompt 0", "chosen": "bad0.webp", "rejected": "good0.png"}) + "\n"
        )
        found = call(capsys, "import", jsonl.parent / "more.jsonl", tmp_path / "out")
        assert (found["imported"], found["contradictory"], found["pairs"]) == (0, 1, 4)

    def test_a_parquet_file_that_unpacks_to_far_more_is_refused_by_its_footer(self, tmp_path, capsys):
        image = bytes(1 << 20)
        columns = {
            "caption": ["x"] * 200,
            "jpg_0": [image] * 200,
            "jpg_1": [image] * 200,
            "label_0": [1.0] * 200,
        }
        path = tmp_path / "bomb.parquet"
        parquet.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd")
        assert path.stat().st_size < 1 << 20
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "would unpack" in refused(capsys, "import", path, tmp_path / "out")
        assert time.process_time() - start < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024

    def test_a_footer_that_lies_about_it_does_not_help(self, tmp_path, capsys):
        image = bytes(1 << 20)
        columns = {"caption": ["x"] * 60, "jpg_0": [image] * 60, "jpg_1": [image] * 60, "label_0": [1.0] * 60}
        path = tmp_path / "bomb.parquet"
        parquet.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd")
        found = parquet.ParquetFile(path).metadata.row_group(0)
        data = path.read_bytes()
        for honest in {varint(found.column(at).total_uncompressed_size << 1) for at in (1, 2)}:
            # as long, so that all else stays where it is
            first, second = varint(999 << 1)
            data = data.replace(honest, bytes([first, 128 | second, *[128] * (len(honest) - 3), 0]))
        path.write_bytes(data)
        group = parquet.ParquetFile(path).metadata.row_group(0)
        assert [group.column(at).total_uncompressed_size for at in (1, 2)] == [999, 999]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "would unpack" in refused(capsys, "import", path, tmp_path / "out")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024

    def test_pages_of_every_kind_are_measured(self, tmp_path):
        rows = {
            "caption": ["a", "b", None] * 500,
            "label_0": [0.0, 1.0, 0.5] * 500,
            "jpg_0": [b"x" * 9] * 1500,
        }
        kinds = (
            {},
            {"compression": "zstd", "data_page_version": "2.0"},
            {"data_page_size": 64, "use_dictionary": False},
        )
        for number, options in enumerate(kinds):
            path = tmp_path / f"{number}.parquet"
            parquet.write_table(pa.table(rows), path, **options)
            group = parquet.ParquetFile(path).metadata.row_group(0)
            with path.open("rb") as stream:
                for at in range(group.num_columns):
                    column = group.column(at)
                    # the footer counts the headers too
                    assert 0 < unpacked_bytes(stream, column) < column.total_uncompressed_size

    def test_what_is_no_page_is_named(self, tmp_path, capsys):
        columns = {"caption": ["x"], "jpg_0": [b"x"], "jpg_1": [b"x"], "label_0": [1.0]}
        path = tmp_path / "pairs.parquet"
        parquet.write_table(pa.table(columns), path)
        data = bytearray(path.read_bytes())
        data[4:20] = b"\xff" * 16
        path.write_bytes(data)
        assert "cannot be read as parquet" in refused(capsys, "import", path, tmp_path / "out")

    def test_an_unknown_file_makes_no_folder(self, tmp_path, capsys):
        (tmp_path / "x.txt").write_text("?")
        assert "not in a known format of preference data" in refused(
            capsys, "import", tmp_path / "x.txt", tmp_path / "out"
        )
        assert not (tmp_path / "out").exists()


def varint(value: int) -> bytes:
    """A number as thrift's compact protocol has it."""
    made = []
    while value > 127:
        made.append(128 | value & 127)
        value >>= 7
    return bytes([*made, value])


class TestFinalize:
    def test_concepts_are_ready_for_training(self, out, capsys):
        made = call(capsys, "finalize", out, "--val-percentage", 25)
        assert (made["train"], made["val"]) == (3, 1)
        concepts = ConceptConfig.load_all(made["concepts"], None)
        assert sorted(c.type.value for c in concepts) == [
            "DPO_CHOSEN",
            "DPO_CHOSEN_VAL",
            "DPO_REJECTED",
            "DPO_REJECTED_VAL",
        ]

    def test_again_with_another_share(self, out, capsys):
        call(capsys, "finalize", out, "--val-percentage", 25)
        assert call(capsys, "finalize", out, "--val-percentage", 0)["val"] == 0
        with CurationStore(out) as store:
            assert all(pair["chosen_file"].startswith("chosen/train/") for pair in store.pairs())

    def test_mistakes(self, tmp_path, out, capsys):
        assert "not the output folder" in refused(capsys, "finalize", tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()
        assert "between 0 and 100" in refused(capsys, "finalize", out, "--val-percentage", 101)
        (out / "chosen" / "pair_0002.png").unlink()
        assert "pair_0002" in refused(capsys, "finalize", out)


class TestCheck:
    def test_a_good_folder_flat_and_finalised(self, out, capsys):
        for _ in range(2):
            found = call(capsys, "check", out, "--batch-size", 3)
            assert found["ok"]
            assert found["buckets"] == [{"width": 512, "height": 512, "pairs": 4, "missing_to_full_batch": 2}]
            call(capsys, "finalize", out)

    def test_faults_are_listed_with_status_1(self, out, capsys):
        picture(out / "rejected" / "pair_0000.webp", 201, (48, 16))
        (out / "rejected" / "pair_0001.txt").write_text("else")
        (out / "rejected" / "pair_0002.webp").unlink()
        (out / "rejected" / "pair_0003.webp").write_bytes(b"")
        found = call(capsys, "check", out / "chosen", out / "rejected", status=1)
        assert not found["ok"]
        assert found["different_buckets"] == ["pair_0000"]
        assert found["differing_captions"] == ["pair_0001"]
        assert found["only_chosen"] == ["pair_0002"]
        assert "pair_0003.webp" in found["unreadable"][0]

    def test_mistakes(self, tmp_path, capsys):
        assert "does not exist" in refused(capsys, "check", tmp_path / "nowhere")
        with pytest.raises(SystemExit) as caught:
            curate.main(["check", str(tmp_path), "--batch-size", "0"])
        assert caught.value.code == 2


class TestReview:
    def test_operations(self, out, capsys):
        call(capsys, "finalize", out)
        before = {p["pair_id"]: p for p in call(capsys, "review", out)["pairs"]}
        assert len(before) == 4
        asked = ["--swap", "pair_0000", "--caption", "pair_0001", "new  words", "--remove", "pair_0002"]
        after = {p["pair_id"]: p for p in call(capsys, "review", out, *asked)["pairs"]}
        assert after["pair_0000"]["chosen"].endswith(".webp")
        assert after["pair_0001"]["caption"] == "new words"
        assert "pair_0002" not in after
        with CurationStore(out) as store:
            stored = {pair["pair_id"]: pair for pair in store.pairs()}
        assert sorted(stored) == ["pair_0000", "pair_0001", "pair_0003"]
        assert stored["pair_0001"]["prompt"] == "new words"
        assert stored["pair_0000"]["chosen_file"] == after["pair_0000"]["chosen"]

    def test_fixing(self, out, capsys):
        call(capsys, "finalize", out, "--val-percentage", 0)
        folder = out / "rejected" / "train"
        (folder / "pair_0000.txt").write_text("two\nlines")
        (folder / "pair_0001.webp").unlink()
        (folder / "pair_0002.txt").unlink()
        (out / "chosen" / "train" / "pair_0003.png").unlink()
        (folder / "pair_0003.webp").unlink()
        assert {f["pair_id"] for f in call(capsys, "review", out)["faults"]} == {
            f"pair_000{i}" for i in range(4)
        }
        after = call(capsys, "review", out, "--fix")
        assert after["faults"] == []
        assert {f["pair_id"] for f in after["fixed"]} == {f"pair_000{i}" for i in range(4)}
        assert [(p["pair_id"], p["caption"]) for p in after["pairs"]] == [
            ("pair_0000", "prompt 0"),
            ("pair_0002", "prompt 2"),
        ]
        assert (folder / "pair_0000.txt").read_text() == "prompt 0\n"

    def test_an_unknown_pair_changes_nothing(self, out, capsys):
        assert "pair_0099" in refused(capsys, "review", out, "--remove", "pair_0001", "pair_0099")
        assert len(call(capsys, "review", out)["pairs"]) == 4


class TestExport:
    def test_jsonl_comes_back_as_the_same_pairs(self, tmp_path, out, capsys):
        call(capsys, "finalize", out)
        call(capsys, "export", out, tmp_path / "other", "--format", "jsonl")
        for split in ("train", "val"):
            call(capsys, "import", tmp_path / "other" / f"{split}.jsonl", tmp_path / "again")
        with CurationStore(out) as one, CurationStore(tmp_path / "again") as two:
            hashes = [
                sorted((p["prompt"], *p["hashes"].values()) for p in store.pairs()) for store in (one, two)
            ]
        assert hashes[0] == hashes[1]
        assert len(hashes[0]) == 4

    def test_datasets(self, tmp_path, out, capsys):
        assert "finalise first" in refused(capsys, "export", out, tmp_path / "hf")
        call(capsys, "finalize", out)
        assert call(capsys, "export", out, tmp_path / "hf")["pairs"] == 4
        assert (tmp_path / "hf" / "train" / "metadata.jsonl").is_file()
        assert "not empty" in refused(capsys, "export", out, tmp_path / "hf")


class TestAll:
    def test_stats(self, tmp_path, out, capsys):
        assert curate.main(["stats", str(out), "--json", str(tmp_path / "s.json")]) == 0
        assert capsys.readouterr().out == ""
        made = json.loads((tmp_path / "s.json").read_text())
        assert made["pairs"] == 4
        assert made["events"] == {"pick": 4}
        assert made["answers"]["questions"] == 0

    def test_agreement_with_a_reward_model(self, tmp_path, capsys):
        with CurationStore(tmp_path / "out") as store:
            for best, worst in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "unscored"), (None, None)):
                answer = {"places": ["a", "b"], "best": best, "worst": worst, "tie": False, "both_bad": False}
                store.append("g", "answer", answer)
        scores = tmp_path / "scores.json"
        scores.write_text('{"a": 3, "b": 1.5, "c": 1}')
        made = call(capsys, "stats", tmp_path / "out", "--scores", scores)["scores"]
        assert made == {"compared": 3, "agreeing": 2, "share": pytest.approx(2 / 3)}
        for wrong in ("[]", '{"a": "high"}', '{"a": NaN}', "{"):
            scores.write_text(wrong)
            assert "scores.json" in refused(capsys, "stats", tmp_path / "out", "--scores", scores)

    @pytest.mark.parametrize("verb", ["finalize", "stats", "review", "export", "import"])
    def test_a_folder_open_elsewhere_is_refused(self, verb, tmp_path, out, jsonl, capsys):
        more = {"export": [tmp_path / "to"]}.get(verb, [])
        arguments = [jsonl, out] if verb == "import" else [out, *more]
        with CurationStore(out):
            assert "open in another window" in refused(capsys, verb, *arguments)

    def test_a_damaged_store_says_what_to_do(self, out, capsys):
        for extra in ("-wal", "-shm"):
            (out / f"curation.sqlite{extra}").unlink(missing_ok=True)
        (out / "curation.sqlite").write_bytes(b"not a database" * 100)
        assert "rename it" in refused(capsys, "stats", out)

    def test_no_command_and_light_start(self):
        done = subprocess.run(
            [sys.executable, "scripts/curate.py"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "COMMAND" in done.stderr
        code = "import sys; from scripts import curate; sys.exit(any(m in sys.modules for m in ('torch', 'tkinter')))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
        assert done.returncode == 0

    def test_an_output_that_cannot_be_written(self, tmp_path, capsys):
        (tmp_path / "file").write_text("x")
        (tmp_path / "p.jsonl").write_text("")
        assert "file" in refused(capsys, "import", tmp_path / "p.jsonl", tmp_path / "file" / "out")
