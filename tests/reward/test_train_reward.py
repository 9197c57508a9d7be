"""From a folder of the pair tool to a reward that agrees with the picks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.pipeline.nodes.images import load_rgb
from modules.reward.base import create_reward
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.preference_head import FEWEST_FITS, load_head
from modules.util.errors import DataError, UserError
from scripts import train_reward
from scripts.train_reward import answer_comparisons, load_image, pair_comparisons
from tests.reward.builders import batch_of
from tests.source_tree import ROOT
from tests.tiny import tiny_folder
from tests.tools.pictures import damaged_avif

DEMO = str(ROOT / "resources" / "demo_model")
VAE = ("--features", "vae", "--grid", "2")


def grey(level, size=32):
    return Image.new("RGB", (size, size), (level, level, level))


@pytest.fixture
def folders(tmp_path):
    """Ten prompts of four images; the person likes bright ones and answers one question of each prompt."""
    images, output = tmp_path / "images", tmp_path / "picked"
    images.mkdir()
    with CurationStore(output) as store:
        for prompt in range(10):
            names = []
            for place in range(4):
                name = f"p{prompt}_{place}.png"
                grey(20 + 50 * place + 3 * prompt).save(images / name)
                names.append(name)
            answer = {"mode": "FOUR_UP", "places": names, "best": names[3], "worst": names[0], "tie": False,
                      "both_bad": False}  # fmt: skip
            store.append(f"group{prompt}", "answer", answer)
            nothing = {"best": None, "worst": None, "tie": True}
            store.append(f"group{prompt}", "answer", answer | nothing)
            store.export(
                f"group{prompt}",
                [(images / names[3], images / names[0])],
                f"prompt {prompt}",
                "1:1",
                {"used": [names[3], names[0]]},
            )
    return output, images


def test_pairs_are_read_from_the_manifest(folders):
    output, _ = folders
    found = pair_comparisons(output)
    assert len(found) == 10
    assert {one.group for one in found} == {f"prompt {i}" for i in range(10)}
    for one in found:
        assert one.better.parent.name == "chosen" and one.worse.parent.name == "rejected"
        assert not one.validation
    (output / "chosen" / "val").mkdir()
    first = found[0].better
    first.rename(output / "chosen" / "val" / first.name)
    again = pair_comparisons(output)
    assert [one.validation for one in again] == [True] + [False] * 9
    found[1].worse.unlink()
    with pytest.raises(DataError, match="missing"):
        pair_comparisons(output)


def test_every_answer_counts_when_the_images_are_there(folders):
    output, images = folders
    found = answer_comparisons(output, images)
    assert sum(not c.tie for c in found) == 10 * 5
    assert sum(c.tie for c in found) == 10 * 6, "four images found equal are six ties"
    one = [(c.better.stem[-1], c.worse.stem[-1]) for c in found if c.group == "prompt 3" and not c.tie]
    assert sorted(one) == [("1", "0"), ("2", "0"), ("3", "0"), ("3", "1"), ("3", "2")]


def test_pairs_without_a_question_count_as_well(folders):
    output, images = folders
    with CurationStore(output) as store:
        store.export("chosen", [(images / "p0_1.png", images / "p1_1.png")], "other", "1:1", {"used": []})
    assert sum(one.group == "other" for one in answer_comparisons(output, images)) == 1


def test_images_that_are_gone_are_named(folders):
    output, images = folders
    (images / "p4_2.png").unlink()
    with pytest.raises(DataError, match=r"(?s)1 images.*p4_2"):
        answer_comparisons(output, images)
    with CurationStore(output) as store:
        payload = {"places": ["../x.png", "p0_0.png"], "best": "../x.png", "worst": None}
        store.append("bad", "answer", payload)
        with pytest.raises(UserError, match="."):
            answer_comparisons(output, images)
    (images.parent / "x.png").write_bytes((images / "p0_0.png").read_bytes())
    grey(9).save(images / "p4_2.png")
    with pytest.raises(DataError, match="x.png"):
        answer_comparisons(output, images)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_was_said_of_an_image_that_the_pair_tool_left_out_is_not_learned(tmp_path, replaced):
    images = tmp_path / "images"
    images.mkdir()
    names = tuple(f"{place}.png" for place in range(4))
    for place, name in enumerate(names):
        grey(50 * place).save(images / name)
    stats = [(images / name).stat() for name in names]
    stamps = tuple((one.st_size, one.st_mtime_ns) for one in stats)
    group = ImageGroup("a fox", "a fox", "1:1", images, names, stamps)
    with CurationStore(tmp_path / "picked") as store:
        session = CurationSession(store, SessionSettings(CurationMode("ELO")))
        session.open(group)
        best, worst = session.state().question
        session.answer(best, worst)
        session.answer(tie=True)
        (images / names[best]).unlink()
        if replaced:
            grey(7, 48).save(images / names[best])
        session.pick_now()
        assert names[best] in session.note and not session.pairs()
    found = answer_comparisons(tmp_path / "picked", images)
    judged = {path.name for one in found for path in (one.better, one.worse)}
    assert judged == set(names) - {names[best], names[worst]}


@pytest.mark.parametrize("before", ["GRID", "SMART"])
def test_a_pair_chosen_after_looking_or_skipping_is_learned(tmp_path, before):
    images = tmp_path / "images"
    images.mkdir()
    names = tuple(f"{place}.png" for place in range(3))
    for place, name in enumerate(names):
        grey(50 * place).save(images / name)
    group = ImageGroup("a fox", "a fox", "1:1", images, names)
    with CurationStore(tmp_path / "picked") as store:
        session = CurationSession(store, SessionSettings(CurationMode(before)))
        session.open(group)
        if before == "GRID":
            session.see(group, names)
        else:
            session.skip()
        session = CurationSession(store, SessionSettings(CurationMode("SELECT")))
        session.open(group)
        session.choose(2, 0)
    (found,) = answer_comparisons(tmp_path / "picked", images)
    assert load_image(found.better).mean() > load_image(found.worse).mean()


def run(folders, tmp_path, capsys, *more):
    out = tmp_path / "taste.safetensors"
    arguments = ["--pairs", str(folders[0]), "--source", DEMO, "--out", str(out), *more]
    code = train_reward.main(arguments)
    return code, out, capsys.readouterr()


def test_the_reward_agrees_with_the_picks(folders, tmp_path, capsys):
    code, out, printed = run(folders, tmp_path, capsys, *VAE, "--images", str(folders[1]))
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["images"] == 40 and report["held_out_pairs"] == 10 and report["train_pairs"] == 40
    assert report["held_out_accuracy"] == 1
    reward = create_reward("preference_head", {"weights": str(out)})
    reward.load()
    levels = torch.tensor([0.2, 0.5, 0.8]).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    dark, middle, bright = reward.score(batch_of(levels)).tolist()
    assert dark < middle < bright
    first = out.read_bytes()
    run(folders, tmp_path, capsys, *VAE, "--images", str(folders[1]))
    assert out.read_bytes() == first, "the same picks give the same file"


def test_the_denoiser_judges_by_default(folders, tmp_path, capsys, monkeypatch):
    # the fit of each image takes eight passes, and ten images are enough for a bar
    monkeypatch.setattr(train_reward, "MOST_FITS", FEWEST_FITS)
    cache = tmp_path / "cache"
    more = ("--source", str(tiny_folder()), "--images", str(folders[1]), "--cache", str(cache))
    code, out, printed = run(folders, tmp_path, capsys, *more)
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["features"] == "denoiser" and report["images"] == 40
    assert report["train_pairs"] == 110 and report["held_out_pairs"] == 50, (
        "cross-validated, ties not counted"
    )
    low, high = report["held_out_interval"]
    assert 0.5 < low < report["held_out_accuracy"] <= high + 1e-9
    levels = torch.tensor([0.2, 0.5, 0.8]).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    reward = create_reward("preference_head", {"weights": str(out)})
    reward.load()
    dark, middle, bright = reward.score(batch_of(levels)).tolist()
    assert dark < middle < bright
    careful = create_reward("preference_head", {"weights": str(out), "caution": 0.5})
    careful.load()
    assert (careful.score(batch_of(levels)) < reward.score(batch_of(levels))).all()
    first, kept = out.read_bytes(), sorted(cache.iterdir())
    assert len(kept) == 40
    kept[0].write_bytes(b"damaged")
    code, _, printed = run(folders, tmp_path, capsys, *more)
    assert code == 0 and "damaged" in printed.err
    assert out.read_bytes() == first, "the same picks give the same file, with and without the cache"


def test_a_model_without_a_unet_is_no_obstacle(folders, tmp_path, capsys):
    """The newest families are transformers, whose autoencoders say little about a taste."""
    model = tmp_path / "flux"
    (model / "transformer").mkdir(parents=True)
    code, out, printed = run(folders, tmp_path, capsys, "--source", str(model), "--model-type", "FLUX_2")
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["features"] == "picture" and report["held_out_accuracy"] == 1
    assert "learned from the pictures alone" in printed.err and "cannot read the denoiser" in report["no_fit"]
    reward = create_reward("preference_head", {"weights": str(out), "source": str(model)})
    reward.load()
    levels = torch.tensor([0.2, 0.5, 0.8]).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous()
    dark, middle, bright = reward.score(batch_of(levels)).tolist()
    assert dark < middle < bright


def test_finalised_validation_pairs_are_measured_with(folders, tmp_path, capsys):
    (folders[0] / "chosen" / "val").mkdir()
    for name in ("pair_0000.png", "pair_0001.png"):
        (folders[0] / "chosen" / name).rename(folders[0] / "chosen" / "val" / name)
    code, _, printed = run(folders, tmp_path, capsys, *VAE, "--strength", "0.1")
    assert code == 0
    report = json.loads(printed.out)
    assert report["held_out_pairs"] == 2 and report["train_pairs"] == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pairs", "./nowhere", "--source", DEMO], "--pairs"),
        (["--pairs", ".", "--source", "./nowhere"], "no comparison"),
        (["--pairs", ".", "--source", "x", "--size", "9"], "multiple of 8"),
        (["--pairs", ".", "--source", "x", "--hidden", "-1"], "hidden"),
        (["--pairs", ".", "--source", DEMO, "--hidden", "4"], "--features vae"),
        (["--pairs", ".", "--source", DEMO, "--timestep", "1000"], "timestep"),
    ],
)
def test_wrong_options_have_a_reason(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert train_reward.main([*arguments, "--out", "x.safetensors"]) == 2
    assert words in capsys.readouterr().err


def test_images_are_turned_and_laid_on_white(tmp_path):
    clear = Image.new("RGBA", (4, 2), (255, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    assert load_image(tmp_path / "clear.png").eq(1).all()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(tmp_path / "turned.jpg", exif=exif)
    assert load_image(tmp_path / "turned.jpg").shape == (3, 4, 2)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    for broken in (tmp_path / "broken.png", damaged_avif(tmp_path / "broken.avif")):
        with pytest.raises(DataError, match=broken.name):
            load_image(broken)


def test_grey_levels_of_16_bits_are_read_as_training_reads_them(tmp_path):
    levels = (np.arange(64, dtype=np.uint16) * 1040).reshape(8, 8)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    trained = np.asarray(load_rgb(tmp_path / "deep.png")).transpose(2, 0, 1) / 255
    assert np.allclose(load_image(tmp_path / "deep.png"), trained) and 0.4 < trained.mean() < 0.6


def test_an_image_with_too_many_pixels_is_told_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(train_reward, "MAX_PIXELS", 7)
    Image.new("RGB", (4, 2)).save(tmp_path / "large.png")
    with pytest.raises(DataError, match="large.png has more than 7 pixels$"):
        load_image(tmp_path / "large.png")


@pytest.fixture
def liked(tmp_path):
    """Ten prompts of four images; the brightest of each is liked, the others were seen."""
    images, output = tmp_path / "images", tmp_path / "picked"
    images.mkdir()
    with CurationStore(output) as store:
        for prompt in range(10):
            names = [f"p{prompt}_{place}.png" for place in range(4)]
            for place, name in enumerate(names):
                grey(20 + 50 * place + 3 * prompt).save(images / name)
            told = {"prompt": f"prompt {prompt}"}
            store.append(f"group{prompt}", "seen", {"files": names, **told})
            store.append(f"group{prompt}", "mark", {"file": names[3], "like": True, **told})
    return output, images


def test_likes_count_as_answers(liked):
    output, images = liked
    found = answer_comparisons(output, images)
    assert len(found) == 30
    assert all(one.better.stem[-1] == "3" and one.worse_group == one.group for one in found)
    assert sum(one.weight for one in found) == pytest.approx(10), "each of the ten likes counts once"


def test_edits_of_two_sources_are_not_compared_and_one_instruction_is_measured(liked, capsys):
    """All images have the same instruction; each group has a source of its own, and one like has nothing to beat."""
    output, images = liked
    for prompt in range(10):
        for place in range(4):
            source = grey(3 * prompt, 9) if prompt < 9 or place < 2 else grey(250, 9)
            source.save(images / f"p{prompt}_{place}-source.png")
            (images / f"p{prompt}_{place}.json").write_text('{"caption": "make it brighter"}')
    found = answer_comparisons(output, images)
    assert len(found) == 9 * 3 + 1, (
        "the liked image of the last group was made from another source than two others"
    )
    for one in found:
        assert one.better.name[:2] == one.worse.name[:2]
    assert len({one.source for one in found}) == 10
    with CurationStore(output) as store:
        same = [replace_prompt(event.payload) for event in store.events()]
    with CurationStore(output.with_name("same")) as store:
        for number, (kind, payload) in enumerate(same):
            store.append(f"group{number // 2}", kind, payload)
    call = ["--pairs", str(output.with_name("same")), "--images", str(images), "--features", "picture"]
    assert train_reward.main([*call, "--measure-only"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out_pairs"] > 0


def replace_prompt(payload):
    return "mark" if "like" in payload else "seen", {**payload, "prompt": "make it brighter"}


def test_a_taste_is_measured_from_pictures_alone_without_a_model(liked, capsys):
    output, images = liked
    call = ["--pairs", str(output), "--images", str(images), "--features", "picture", "--measure-only"]
    assert train_reward.main(call) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["held_out_accuracy"] == 1.0 and said["held_out_pairs"] == 10
    assert said["out"] is None


@pytest.mark.slow
def test_a_head_on_pictures_is_a_reward_that_prefers_what_was_liked(liked, tmp_path):
    output, images = liked
    out = tmp_path / "taste.safetensors"
    call = ["--pairs", str(output), "--images", str(images), "--features", "picture", "--out", str(out)]
    assert train_reward.main(call) == 0
    reward = create_reward("preference_head", {"weights": str(out), "caution": 0.1})
    reward.load()
    scores = reward.score(batch_of(torch.stack([load_image(images / f"p4_{i}.png") for i in (0, 1, 3)])))
    assert scores.tolist() == sorted(scores.tolist())


@pytest.mark.parametrize("metadata", [None, {"description": "a model"}, {"description": '{"format": "x"}'}])
def test_a_file_that_is_not_a_taste_is_not_replaced(metadata, liked, tmp_path, capsys, monkeypatch):
    output, images = liked
    out = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(4)}, out, metadata)
    before = out.read_bytes()
    monkeypatch.setattr(train_reward, "gather", lambda options: pytest.fail("it is refused at once"))
    call = ["--pairs", str(output), "--images", str(images), "--features", "picture", "--out", str(out)]
    assert train_reward.main(call) == 2
    assert "model.safetensors already exists and is not a preference head" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_file_that_appears_during_the_work_stays_and_so_does_the_taste(liked, tmp_path, capsys, monkeypatch):
    output, images = liked
    out = tmp_path / "taste.safetensors"
    learn = train_reward.train_taste

    def meanwhile(*given):
        out.write_bytes(b"mine")
        return learn(*given)

    monkeypatch.setattr(train_reward, "train_taste", meanwhile)
    call = ["--pairs", str(output), "--images", str(images), "--features", "picture", "--out", str(out)]
    assert train_reward.main(call) == 2
    kept = tmp_path / "taste-2.safetensors"
    said = capsys.readouterr().err
    assert f"{out} already exists" in said and f"the result is {kept}" in said
    assert out.read_bytes() == b"mine" and load_head(kept).features.kind == "picture"


def test_a_list_of_comparisons_teaches_across_prompts(liked, tmp_path, capsys):
    _, images = liked
    rows = [
        {"better": str(images / f"p{i}_3.png"), "worse": str(images / f"p{i - 1}_0.png"), "prompt": f"prompt {i}",
         "worse_prompt": f"prompt {i - 1}"}
        for i in range(1, 10)
    ]  # fmt: skip
    file = tmp_path / "list.json"
    file.write_text(json.dumps(rows))
    call = ["--comparisons", str(file), "--features", "picture", "--measure-only"]
    assert train_reward.main(call) == 0
    assert json.loads(capsys.readouterr().out)["train_pairs"] == 9
    (images / "p3_0.png").unlink()
    assert train_reward.main(call) == 2
    assert "p3_0.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"better": 1}', "is not a list"),
        ('[{"better": "a"}]', "is not a list"),
        ('[{"better": "a", "worse": "b", "prompt": "c", "weight": 0}]', "weight a number above 0"),
        ('[{"better": "a", "worse": "b", "prompt": "c", "weight": true}]', "weight a number above 0"),
        ("[", "list.json"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, capsys, text, part):
    file = tmp_path / "list.json"
    file.write_text(text)
    assert train_reward.main(["--comparisons", str(file), "--features", "picture", "--measure-only"]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--features", "picture"], "--out or --measure-only"),
        (["--out", "x.safetensors"], "no model is named"),
        (["--features", "picture", "--hidden", "4", "--measure-only"], "--hidden"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_read(tmp_path, capsys, more, part):
    assert train_reward.main(["--pairs", str(tmp_path / "nothing"), *more]) == 2
    assert part in capsys.readouterr().err


def test_the_fit_is_looked_at_on_images_at_equal_distances(tmp_path):
    images = {tmp_path / f"{number:03d}.png": f"prompt {number}" for number in range(250)}
    for path in images:
        grey(100, 8).save(path)
    asked = []

    class Features:
        def prompt_fit(self, images_BCHW, prompts):
            asked.extend(prompts)
            return torch.zeros(len(prompts))

    assert len(train_reward.fit_of(images, Features())) == 100
    assert asked[:3] == ["prompt 0", "prompt 2", "prompt 5"] and asked[-1] == "prompt 247"
    asked.clear()
    few = dict(list(images.items())[:7])
    assert len(train_reward.fit_of(few, Features())) == 7 and asked == list(few.values())


def test_only_images_from_before_any_training_set_the_bar(tmp_path):
    """Those of later rounds fit less well the more the model drifts; with too few others they count too."""
    images = {tmp_path / folder / f"{number:02d}.png": folder for folder in "ab" for number in range(12)}
    for path in images:
        path.parent.mkdir(exist_ok=True)
        grey(100, 8).save(path)

    class Features:
        options = FeatureOptions("denoiser", "x")

        def prompt_fit(self, images_BCHW, prompts):
            return torch.tensor([float(prompts[0] == "a") * 5 + next(self.numbers)])

    def bar(untrained):
        Features.numbers = iter(range(100))
        return train_reward.usual_fit(images, untrained, Features())[0].least

    first = bar({tmp_path / "a"})
    assert first == bar(set(list(images)[:12])) > 5
    assert bar(None) == bar({tmp_path / "a" / "00.png"}) == bar({tmp_path / "elsewhere"}) != first


def test_the_head_is_kept_where_the_fit_cannot_be_measured(folders, tmp_path, capsys, monkeypatch):
    def full(self, images_BCHW, prompts):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(FrozenFeatures, "prompt_fit", full)
    more = ("--source", str(tiny_folder()), "--cache", str(tmp_path / "cache"))
    code, out, printed = run(folders, tmp_path, capsys, *more)
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["usual_fit"] is None and "out of memory" in report["no_fit"]
    assert load_head(out).usual_fit is None

    def broken(self, images_BCHW, prompts):
        raise ZeroDivisionError

    monkeypatch.setattr(FrozenFeatures, "prompt_fit", broken)
    out.unlink()
    with pytest.raises(ZeroDivisionError):
        run(folders, tmp_path, capsys, *more)
    assert load_head(out)


@pytest.mark.parametrize(("more", "device"), [((), "cuda:0"), (("--device", "cpu"), "cpu")])
def test_features_are_computed_on_the_graphics_card_if_there_is_one(
    folders, tmp_path, capsys, monkeypatch, more, device
):
    asked = []

    def load(self, device):
        asked.append(str(device))
        raise DataError("loaded")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(FrozenFeatures, "load", load)
    assert run(folders, tmp_path, capsys, *more)[0] == 2
    assert asked == [device]
