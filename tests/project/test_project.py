"""A project through its command line: what is decided, made, counted, and what comes next."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from PIL import Image

from modules.curation.store import STORE_NAME, CurationStore
from modules.project import taste_head, training
from modules.project.overview import overview
from modules.project.Project import Project
from modules.project.proving import adapters_between
from modules.ui.home.BoardView import learned
from modules.util.errors import UserError
from modules.util.image_metadata_util import read_metadata
from scripts import taste
from tests.project.conftest import PROMPTS
from tests.project.simulated import headless, preferring, refused, told
from tests.usual import usual

NEW = ("--base-model", "resources/demo_model", "--device", "cpu", "--near-duplicates", "-1")


def brightness(path: Path, prompt: str) -> float:
    with Image.open(path) as image:
        return image.getpixel((0, 0))[0]


@pytest.fixture
def project(tmp_path, prompts_file, drawer, capsys) -> Path:
    folder = tmp_path / "my taste"
    told(capsys, "new", folder, "--prompts", prompts_file, *NEW)
    return folder


@pytest.fixture
def picked_from(made_once, prompts_file, drawer, capsys, monkeypatch) -> Path:
    """A project whose first images were picked from."""

    def make(work: Path) -> None:
        told(capsys, "new", work / "my taste", "--prompts", prompts_file, *NEW)
        told(capsys, "generate", work / "my taste")
        headless(monkeypatch, preferring(brightness), "pick", str(work / "my taste"))

    return made_once("picked", make) / "my taste"


@pytest.fixture
def trained_from(made_once, prompts_file, drawer, capsys, monkeypatch, trains) -> Path:
    """A project with a trained round; what is trained next ends too."""
    trains("finish")

    def make(work: Path) -> None:
        told(capsys, "new", work / "my taste", "--prompts", prompts_file, *NEW)
        told(capsys, "generate", work / "my taste")
        headless(monkeypatch, preferring(brightness), "pick", str(work / "my taste"))
        told(capsys, "train", work / "my taste")

    return made_once("trained", make) / "my taste"


def settings(folder: Path) -> dict:
    return json.loads((folder / "project.json").read_text())


class TestNew:
    def test_held_out_prompts_are_fixed(self, project, drawer, capsys):
        held_out = settings(project)["held_out"]
        assert len(held_out) == 2 and set(held_out) < set(PROMPTS)
        with (project / "prompts.txt").open("a") as stream:
            stream.write("\n# a remark\na {green|grey} owl\na {red|{light|dark} blue} hen\n" + held_out[0])
        told(capsys, "generate", project, "--per-prompt", 1)
        assert settings(project)["held_out"] == held_out
        made = {prompt for prompt, _, _ in drawer.made}
        assert made == set(PROMPTS) - set(held_out) | {
            "a green owl", "a grey owl", "a red hen", "a light blue hen", "a dark blue hen",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--prompts", "{two}"), "2 prompts are too few"),
            (("--prompts", "{none}"), "cannot be read"),
            ((), "needs prompts"),
            (("--prompts", "{good}", "--model-type", "NOTHING"), "no model type"),
            (("--prompts", "{good}", "--width", "65"), "image.width"),
            (("--prompts", "{good}", "--adapter", "{none}"), "no file"),
            (("--prompts", "{choices}"), "make 512 prompts"),
            (("--prompts", "{pipe}"), "error: --prompts: "),
            (("--prompts", "{good}", "--generator", "comfyui", "--slot", "sed=3.seed"), "no slot 'sed'"),
        ],
    )
    def test_mistakes_leave_nothing_behind(self, tmp_path, prompts_file, drawer, capsys, arguments, message):
        (tmp_path / "two").write_text("one\ntwo\n")
        (tmp_path / "choices").write_text("{a|b}" * 9)
        os.mkfifo(tmp_path / "pipe")
        files = {name: tmp_path / name for name in ("two", "none", "choices", "pipe")} | {"good": prompts_file}
        given = [argument.format(**files) for argument in arguments]
        assert message in refused(capsys, "new", tmp_path / "p", *NEW, *given)
        assert not (tmp_path / "p").exists()

    def test_a_folder_with_something_in_it(self, tmp_path, prompts_file, drawer, capsys):
        assert "not empty" in refused(capsys, "new", tmp_path, "--prompts", prompts_file, *NEW)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": 3}, "newer version"),
            ({"card": 10}, "card"),
            ({"colour": "red"}, "colour"),
            ({"held_out": "a fox"}, "held_out"),
            ({"generator": {}}, "generator"),
            ({"generator": {"kind": "none"}}, "no generator 'none'"),
        ],
    )
    def test_a_damaged_project_is_named(self, project, capsys, change, message):
        (project / "project.json").write_text(json.dumps({**settings(project), **change}))
        assert message in refused(capsys, "generate", project)

    def test_no_project(self, tmp_path, capsys):
        for verb in ("generate", "pick", "train", "status", "next", "compare"):
            assert "not a project" in refused(capsys, verb, tmp_path)

    @pytest.mark.parametrize("option", [("--mode", "GRID"), ("--pairs-per-group", "2"), ("--threshold", "0.9")])
    def test_options_that_the_window_does_not_take(self, project, capsys, drawer, monkeypatch, option):
        opened = []
        monkeypatch.setattr("modules.ui.curation.windows.main", lambda arguments: opened.append(arguments))
        told(capsys, "generate", project)
        assert f"{option[0]}: only acts with --headless" in refused(capsys, "pick", project, *option)
        assert not opened
        told(capsys, "pick", project)
        assert len(opened) == 1

    def test_another_computer(self, project, tmp_path, capsys, drawer):
        told(capsys, "generate", project)
        moved = tmp_path / "elsewhere" / "p"
        shutil.move(project, moved)
        before = {**settings(moved)}
        told(capsys, "new", moved, "--base-model", "other/model")
        after = settings(moved)
        assert after["model"]["base"] == "other/model"
        assert {k: v for k, v in after.items() if k != "model"} == {
            k: v for k, v in before.items() if k != "model"
        }
        assert told(capsys, "status", moved)["next"] == "pick"
        assert str(tmp_path) not in (moved / "round-1" / "plan.json").read_text()
        assert "already" in refused(capsys, "new", moved, "--prompts", tmp_path / "x", *NEW)


class TestGenerate:
    def test_stopped_and_called_again(self, project, capsys, drawer):
        drawer.stops_after = 7
        assert taste.main(["generate", str(project)]) == 130
        assert told(capsys, "status", project)["rounds"][0]["candidates"] == 7
        drawer.stops_after, drawer.fails_after = 10**6, 5
        assert "broke its pen" in refused(capsys, "generate", project)
        drawer.fails_after = 10**6
        assert told(capsys, "generate", project) == {"round": 1, "candidates": 48, "made": 36, "next": "pick"}
        assert Counter(drawer.made).most_common(1)[0][1] == 1, "nothing is made twice"
        assert told(capsys, "generate", project)["made"] == 0
        for path in (project / "round-1" / "candidates").iterdir():
            about = read_metadata(path)
            assert (about.prompt, about.seed) in {(p, s) for p, s, _ in drawer.made}

    def test_more_images_of_each_prompt(self, project, capsys, drawer):
        told(capsys, "generate", project, "--per-prompt", 2)
        assert told(capsys, "generate", project, "--per-prompt", 3) == {
            "round": 1, "candidates": 24, "made": 8, "next": "pick",
        }  # fmt: skip
        assert len({seed for _, seed, _ in drawer.made}) == 24

    def test_another_adapter(self, project, tmp_path, capsys, drawer):
        (tmp_path / "mine.safetensors").write_text("mine")
        told(capsys, "generate", project, "--per-prompt", 1, "--adapter", tmp_path / "mine.safetensors")
        assert {adapter for _, _, adapter in drawer.made} == {"mine"}
        assert "were already made with" in refused(
            capsys, "generate", project, "--per-prompt", 2, "--adapter", "none"
        )
        assert "no adapter 'round-7'" in refused(capsys, "generate", project, "--adapter", "round-7")

    def test_an_adapter_from_elsewhere_is_part_of_the_project(self, project, tmp_path, capsys, drawer):
        """The project is moved, the file is replaced, and still every image of the round has the same adapter."""
        (tmp_path / "cache").write_text("mine")
        link = tmp_path / "mine.safetensors"
        link.symlink_to(tmp_path / "cache")
        told(capsys, "generate", project, "--per-prompt", 1, "--adapter", project / ".." / link.name)
        assert told(capsys, "generate", project, "--adapter", link)["made"] == 0
        moved = tmp_path / "elsewhere" / "taste"
        moved.parent.mkdir()
        shutil.move(project, moved)
        link.write_text("another")
        assert "were already made with" in refused(capsys, "generate", moved, "--per-prompt", 2, "--adapter", link)
        told(capsys, "generate", moved, "--per-prompt", 2)
        assert len(drawer.made) == 16 and {adapter for _, _, adapter in drawer.made} == {"mine"}
        assert str(tmp_path) not in (moved / "round-1" / "plan.json").read_text()

    def test_a_link_is_an_adapter_to_start_from(self, tmp_path, prompts_file, capsys, drawer):
        (tmp_path / "cache").write_text("mine")
        (tmp_path / "link.safetensors").symlink_to(tmp_path / "cache")
        folder = tmp_path / "taste"
        told(capsys, "new", folder, "--prompts", prompts_file, *NEW, "--adapter", tmp_path / "link.safetensors")
        # trainers write a file of the same name into the same place
        (tmp_path / "cache").write_text("another")
        assert (folder / "start.safetensors").read_text() == "mine"

    def test_two_at_once(self, project, capsys):
        from modules.project.Project import Project

        with Project(project).busy():
            assert "another process" in refused(capsys, "generate", project)


class TestTheLoop:
    def test_what_comes_next(self, project, capsys, monkeypatch, trains, drawer):
        def now() -> str:
            return told(capsys, "status", project)["next"]

        assert now() == "generate"
        assert "no images yet" in refused(capsys, "pick", project)
        told(capsys, "generate", project)
        assert now() == "pick"
        assert "too few to train on" in refused(capsys, "train", project)
        headless(monkeypatch, preferring(brightness), "pick", str(project))
        assert now() == "train"
        assert "not trained yet" in refused(capsys, "next", project)
        assert "no adapter to compare" in refused(capsys, "compare", project)
        trains("finish")
        assert told(capsys, "train", project)["next"] == "compare"
        assert "already trained" in refused(capsys, "train", project)
        *_, bye = headless(monkeypatch, preferring(brightness), "compare", str(project))
        assert bye["result"]["winner"] == "round-1" and bye["result"]["votes"] == 8
        assert now() == "new-round"
        (row,) = told(capsys, "status", project)["rounds"]
        assert (row["pairs"], row["steps"], row["adapter"]) == (8, 1, "round-1/adapter.safetensors")
        assert row["answers"] > 8 and row["arena"]["win_rate"] == 1.0
        assert told(capsys, "next", project) == {"round": 2, "prompts": 8, "planned": 48, "next": "generate"}
        drawer.made.clear()
        told(capsys, "generate", project)
        assert {adapter for _, _, adapter in drawer.made} == {"adapter of round-1"}
        assert len(told(capsys, "status", project)["rounds"]) == 2

    def test_the_arena_judges_by_held_out_prompts_alone(self, trained_from, capsys, monkeypatch, drawer):
        drawer.made.clear()
        drawer.stops_after = 9
        assert taste.main(["compare", str(trained_from), "--headless", "--images", "10"]) == 130
        drawer.stops_after = 10**6
        said = headless(monkeypatch, preferring(brightness), "compare", str(trained_from), "--images", "10")
        assert {prompt for prompt, _, _ in drawer.made} == set(settings(trained_from)["held_out"])
        assert Counter(drawer.made).most_common(1)[0][1] == 1 and len(drawer.made) == 20
        assert {one["prompt"] for one in said if one["type"] == "question"} == set(
            settings(trained_from)["held_out"]
        )
        assert "round-1" not in json.dumps(said[:-2])

    def test_the_result_is_left_as_a_file_and_a_picture(self, trained_from, capsys, monkeypatch):
        said = headless(monkeypatch, preferring(brightness), "compare", str(trained_from))
        assert json.loads((trained_from / "arena" / "result.json").read_text()) == said[-1]["result"]
        with Image.open(trained_from / "arena" / "result.png") as picture:
            votes = said[-1]["result"]["votes"]
            assert votes > 5 and picture.height > 128 * (votes // 5)
            colours = {colour for _, colour in picture.getcolors(10**6)}
            assert (46, 158, 87) in colours, "the preferred ones have a green frame"

    @pytest.mark.slow
    def test_the_result_so_far_needs_no_images_and_the_images_no_votes(
        self, trained_from, capsys, monkeypatch, drawer
    ):
        drawer.made.clear()
        with Project(trained_from).busy():  # as while another program votes
            assert taste.main(["compare", str(trained_from), "--result"]) == 0
        assert capsys.readouterr().out == "There are no votes yet.\nnext: to vote, run compare without --result\n"
        assert drawer.made == []
        assert told(capsys, "compare", trained_from, "--images", "10", "--prepare")["votes"] == 0
        assert len(drawer.made) == 20
        said = headless(monkeypatch, preferring(brightness), "compare", str(trained_from), "--images", "10")
        assert len(drawer.made) == 20
        shutil.rmtree(trained_from / "arena" / "images")
        assert told(capsys, "compare", trained_from, "--result") == said[-1]["result"]
        assert len(drawer.made) == 20

    def test_a_pick_after_questions_is_no_further_answer(self, project, capsys, monkeypatch, drawer):
        told(capsys, "generate", project)
        headless(monkeypatch, preferring(brightness), "pick", str(project))
        with closing(sqlite3.connect(project / "round-1" / "pairs" / STORE_NAME)) as store:
            (asked,) = store.execute("SELECT COUNT(*) FROM events WHERE kind = 'answer'").fetchone()
            before = told(capsys, "status", project)["rounds"][0]["answers"]
            assert before == asked == overview(Project(project)).answers
            pick, key = store.execute("SELECT payload, group_key FROM events WHERE kind = 'pick'").fetchone()
            by_hand = json.dumps({**json.loads(pick), "automatic": False})
            fill = "INSERT INTO events (group_key, kind, payload, time) VALUES (?, 'pick', ?, 0)"
            store.execute(fill, (key, by_hand))
            store.execute(fill, ("a group without questions", by_hand))
            store.commit()
        assert told(capsys, "status", project)["rounds"][0]["answers"] == asked + 1

    def test_a_mark_that_was_taken_off_is_no_answer(self, project, capsys):
        told(capsys, "generate", project)

        def answers() -> int:
            (one,) = told(capsys, "status", project)["rounds"]
            return one["answers"]

        def mark(file: str, like: bool | None) -> None:
            with CurationStore(project / "round-1" / "pairs") as store:
                store.append("a group", "mark", {"file": file, "like": like, "prompt": "a fox"})

        mark("1.png", True), mark("1.png", False), mark("2.png", False)
        assert answers() == 2
        mark("1.png", None)
        assert answers() == 1
        with CurationStore(project / "round-1" / "pairs") as store:
            store.undo_last(lambda event: False)
        assert answers() == 2, "the mark is there again"

    @pytest.mark.slow
    def test_strengths_and_files_are_contestants(self, trained_from, tmp_path, capsys, monkeypatch):
        (tmp_path / "other.safetensors").write_text("other")
        between = f"base,round-1@0.5,{tmp_path / 'other.safetensors'}"
        said = headless(monkeypatch, preferring(brightness), "compare", str(trained_from), "--between", between)
        assert said[-1]["result"]["contestants"] == ["base", "round-1 at 0.5", "other"]

    def test_files_may_have_commas_and_at_signs_in_their_names(self, project, tmp_path):
        folder = tmp_path / "me@work, at home"
        folder.mkdir()
        for name in ("a.safetensors", "b@2,5.safetensors"):
            (folder / name).write_text(name)
        text = f"{folder / 'a.safetensors'}@0.5, {folder / 'b@2,5.safetensors'},base"
        found = adapters_between(Project(project), text)
        assert [(one.name, one.strength) for one in found] == [
            ("a at 0.5", 0.5), ("b@2,5", 1.0), ("base", 1.0),
        ]  # fmt: skip
        assert found[1].file == folder / "b@2,5.safetensors"

    def test_another_training_has_other_votes(self, trained_from, capsys, monkeypatch):
        headless(monkeypatch, preferring(brightness), "compare", str(trained_from))
        (trained_from / "round-1" / "adapter.safetensors").write_text("trained anew")
        assert told(capsys, "status", trained_from)["next"] == "compare"

    def test_the_next_round_asks_where_it_is_uncertain(self, trained_from, capsys):
        with (trained_from / "prompts.txt").open("a") as stream:
            stream.write("".join(f"\nan owl {i}" for i in range(40)))
        told(capsys, "next", trained_from)
        plan = json.loads((trained_from / "round-2" / "plan.json").read_text())
        prompts = {one["prompt"] for one in plan["images"]}
        assert len(prompts) == 8 and sum("owl" in prompt for prompt in prompts) >= 6, "new ones come first"

    @pytest.mark.slow
    def test_the_next_round_is_nearer_to_what_was_lost(self, trained_from, capsys, monkeypatch):
        darker = preferring(lambda path, prompt: -brightness(path, prompt))
        said = headless(monkeypatch, darker, "compare", str(trained_from))
        assert said[-1]["result"]["win_rate"] == 0.0
        with (trained_from / "prompts.txt").open("a") as stream:
            stream.write("".join(f"\nan owl at night {i}" for i in range(40)))
            stream.write("".join(f"\na quick fox {i}0" for i in range(8)))
        told(capsys, "next", trained_from)
        plan = json.loads((trained_from / "round-2" / "plan.json").read_text())
        prompts = {one["prompt"] for one in plan["images"]}
        assert sum("quick fox" in prompt for prompt in prompts) >= 6, "all prompts with a fox were lost"
        assert not prompts & set(settings(trained_from)["held_out"])


class TestTrain:
    @pytest.fixture
    def picked(self, picked_from) -> Path:
        return picked_from

    def test_the_config_of_the_round(self, picked, capsys, trains):
        trains("finish")
        told(capsys, "train", picked, "--set", "learning_rate=0.001")
        config = json.loads((picked / "round-1" / "config.json").read_text())
        assert config["concept_file_name"] == "round-1/pairs/concepts.json"
        assert (config["learning_rate"], config["rlhf_dpo_beta"]) == (0.001, 120.0)
        assert str(picked) not in json.dumps(config)
        ran = json.loads((picked / "round-1" / "run" / "config.json").read_text())
        assert ran["output_model_destination"] == str(picked / "round-1" / "adapter.safetensors")
        assert Path(ran["concept_file_name"]).is_file()

    def test_a_bad_setting_is_named_before_it_runs(self, picked, capsys, trains):
        trains("finish")
        assert "learning_rate" in refused(capsys, "train", picked, "--set", "learning_rate=-1")
        assert not (picked / "round-1" / "run" / "config.json").exists()

    def test_a_failure_says_why(self, picked, capsys, trains):
        trains("oom")
        assert "failed" in refused(capsys, "train", picked)
        assert told(capsys, "status", picked)["next"] == "train"
        trains("finish")
        assert told(capsys, "train", picked)["next"] == "compare"

    def test_a_run_whose_starter_was_killed_is_found_again(self, picked, capsys, trains, monkeypatch):
        trains("obey")

        class Killed(BaseException):
            """What a kill leaves: nothing is caught, nothing is tidied up."""

        def die(process, progress):
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(training, "follow", die)
            with pytest.raises(Killed):
                taste.main(["train", str(picked)])
        posted = []

        def stop_soon(follower) -> str:
            if not posted and follower.run.trainer() is not None:
                posted.append(follower.run.post("stop"))
            return ""

        monkeypatch.setattr(training, "_said", stop_soon)
        assert "was stopped" in refused(capsys, "train", picked)
        assert posted, "the same run was followed"

    @pytest.mark.slow
    def test_again(self, picked, capsys, trains):
        trains("finish")
        told(capsys, "train", picked)
        assert told(capsys, "train", picked, "--again")["steps"] == 1

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            pytest.param(("--set", "learning_rate=-1"), "learning_rate", marks=pytest.mark.slow),
            (("--set", "nothing=1"), "nothing"),
            pytest.param(("--method", "taste", "--set", "epochs=0"), "epochs", marks=pytest.mark.slow),
        ],
    )
    def test_what_was_trained_stays_until_it_can_be_trained_again(self, picked, capsys, trains, wish, message):
        trains("finish")
        told(capsys, "train", picked)
        files = {path: path.read_bytes() for path in sorted((picked / "round-1").rglob("*")) if path.is_file()}
        assert message in refused(capsys, "train", picked, "--again", *wish)
        assert {path: path.read_bytes() for path in files if path.is_file()} == files
        assert told(capsys, "status", picked)["next"] == "compare"

    def test_files_of_a_person_in_the_folder_of_the_run_stay(self, picked, capsys, trains):
        trains("finish")
        told(capsys, "train", picked)
        mine = picked / "round-1" / "run" / "notes.txt"
        mine.write_text("mine")
        assert "also holds notes.txt" in refused(capsys, "train", picked, "--again")
        assert mine.read_text() == "mine" and (picked / "round-1" / "adapter.safetensors").is_file()
        former = mine.rename(mine.with_name("config.before-20260102-030405-abcd.json"))
        assert f"{former.name} holds settings of yours" in refused(capsys, "train", picked, "--again")
        assert former.read_text() == "mine"
        former.rename(picked / former.name)
        (mine.parent / ".DS_Store").write_bytes(b"x")
        assert told(capsys, "train", picked, "--again")["steps"] == 1

    def test_with_too_few_answers_for_a_taste_the_former_training_stays(self, picked, capsys, trains, monkeypatch):
        trains("finish")
        told(capsys, "train", picked)
        monkeypatch.setattr(taste_head, "FEWEST_ANSWERS", 10_000)
        assert "too few" in refused(capsys, "train", picked, "--again", "--method", "taste")
        assert (picked / "round-1" / "adapter.safetensors").is_file()

    def test_resuming_keeps_the_settings(self, picked, capsys, trains):
        trains("oom")
        refused(capsys, "train", picked, "--set", "learning_rate=0.002")
        (picked / "round-1" / "run" / "backup" / "one").mkdir(parents=True)
        trains("finish")
        told(capsys, "train", picked)
        ran = json.loads((picked / "round-1" / "run" / "config.json").read_text())
        assert (ran["continue_last_backup"], ran["learning_rate"]) == (True, 0.002)


class TestALearnedTaste:
    """Training on the model's own images, judged by a taste that the answers taught."""

    @pytest.fixture
    def picked(self, picked_from, trains) -> Path:
        trains("finish")
        return picked_from

    @pytest.fixture
    def asked(self, monkeypatch) -> list[list[str]]:
        """The commands that learn a taste, each with its input as the last word; none is run."""
        commands: list[list[str]] = []

        class Learner:
            def __init__(self, command, data, what, heard):
                commands.append([*command, data.decode()])
                Path(command[command.index("--out") + 1]).write_bytes(f"taste {len(commands)}".encode())
                heard("features of 20/48 images")

            def lines(self):
                said = {"train_pairs": 30, "held_out_pairs": 8, "held_out_accuracy": 0.75, **self.also}
                yield json.dumps(said).encode() + b"\n"

            also: ClassVar[dict[str, str]] = {}

            def end(self):
                pass

        monkeypatch.setattr(taste_head, "LineProcess", Learner)
        self.learner = Learner
        return commands

    def test_the_config_of_the_round(self, picked, capsys, asked):
        made = told(capsys, "train", picked, "--method", "taste")
        assert made["method"] == "taste"
        assert made["taste"] == {
            "comparisons": 30, "measured_on": 8, "accuracy": 0.75, "knows_fit": True,
        }  # fmt: skip
        config = json.loads((picked / "round-1" / "config.json").read_text())
        (reward,) = config["rlhf_rewards"]
        assert (reward["reward"], reward["params"]) == (
            "preference_head",
            {"weights": "round-1/taste.safetensors", "guard": 10.0},
        )
        assert config["rlhf_mode"] == "NFT" and str(picked.parent) not in json.dumps(config)
        prompts = (picked / config["rlhf_prompts_file"]).read_text().splitlines()
        assert set(prompts) == set(PROMPTS) - set(settings(picked)["held_out"])
        (command,) = asked
        assert command[command.index("--pairs") + 1] == str(picked / "round-1" / "pairs")

    def test_the_interval_of_the_accuracy_is_that_of_the_bar_below_the_grid(self, picked, capsys, asked):
        """32 comparisons from 4 clicks are not 32 independent answers."""
        self.learner.also = {"held_out_accuracy": 0.75, "held_out_pairs": 32, "held_out_interval": [0.41, 0.93]}
        assert told(capsys, "learn", picked)["interval"] == [0.41, 0.93]
        assert "41" in learned(taste_head.measured(Project(picked).round))
        assert taste.main(["train", str(picked), "--method", "taste"]) == 0
        assert "no better than guessing" in "".join(capsys.readouterr())

    @pytest.mark.parametrize(("right", "of", "warned"), usual([(0.55, 20, True), (0.9, 40, False)], (0.9, 40, False)))
    def test_a_taste_that_may_be_a_guess_is_told(self, picked, capsys, asked, right, of, warned):
        """20 comparisons cannot tell 55 % from guessing; 40 can tell 90 %."""
        self.learner.also = {"held_out_accuracy": right, "held_out_pairs": of}
        told(capsys, "learn", picked)
        assert ("no better than guessing" in learned(taste_head.measured(Project(picked).round))) is warned
        assert taste.main(["train", str(picked), "--method", "taste"]) == 0
        said = "".join(capsys.readouterr())
        assert ("the learned taste may be no better than guessing: it is right in" in said) is warned

    def test_a_later_round_learns_from_all_answers(self, picked, capsys, monkeypatch, asked):
        told(capsys, "train", picked)
        told(capsys, "next", picked)
        told(capsys, "generate", picked)
        headless(monkeypatch, preferring(brightness), "pick", str(picked))
        told(capsys, "train", picked, "--method", "taste")
        (command,) = asked
        for name in ("pairs", "candidates"):
            assert [one for one in command if one.endswith(f"/{name}")] == [
                str(picked / f"round-{number}" / name) for number in (1, 2)
            ]
        config = json.loads((picked / "round-2" / "config.json").read_text())
        assert config["lora_model_name"] == "round-1/adapter.safetensors"
        assert "--fit-images" in command
        *images, exported = json.loads(command[-1])
        assert exported == str(picked / "round-1" / "pairs")
        first = (picked / "round-1" / "candidates").iterdir()
        assert set(images) == set(map(str, first)), "the bar of the guard does not follow the model"

    @pytest.mark.parametrize(("method", "share"), usual([("taste", 0.25), ("pairs", 0.75)], ("taste", 0.25)))
    def test_an_adapter_that_follows_a_taste_is_trained_less(
        self, picked, capsys, monkeypatch, asked, method, share
    ):
        """A quarter of the epochs after a round on a taste, three quarters at first and after a round on pairs."""

        def epochs(number: int, *more: str) -> int:
            told(capsys, "train", picked, "--method", "taste", *more)
            return json.loads((picked / f"round-{number}" / "config.json").read_text())["epochs"]

        usual = 8  # "#demo nft.json"
        if method == "taste":
            assert epochs(1) == usual * 0.75
        else:
            told(capsys, "train", picked)
        told(capsys, "next", picked, "--surplus", 1)  # the stand-in of a head cannot choose
        told(capsys, "generate", picked)
        headless(monkeypatch, preferring(brightness), "pick", str(picked))
        assert epochs(2) == usual * share
        if method == "taste":
            assert epochs(2, "--again", "--set", "epochs=3") == 3, "what the person sets wins"

    def test_a_stopped_run_keeps_its_method(self, picked, capsys, asked, trains):
        trains("exit1")
        refused(capsys, "train", picked, "--method", "taste")
        backup = picked / "round-1" / "run" / "backup" / "one"
        backup.mkdir(parents=True)
        assert "started with --method taste" in refused(capsys, "train", picked, "--method", "pairs")
        trains("finish")
        assert told(capsys, "train", picked)["method"] == "taste"
        assert len(asked) == 1, "it is not learned again"

    def test_a_begun_run_keeps_its_taste_and_its_guard(self, picked, capsys, asked, trains):
        """Whatever is learned meanwhile; also one that was begun before there was a guard."""
        trains("exit1")
        refused(capsys, "train", picked, "--method", "taste")
        one = picked / "round-1"
        (one / "run" / "backup" / "one").mkdir(parents=True)
        config = json.loads((one / "config.json").read_text())
        del config["rlhf_rewards"][0]["params"]["guard"]
        (one / "config.json").write_text(json.dumps(config))
        self.learner.also = {"no_fit": "the other taste has none"}
        assert told(capsys, "learn", picked)["knows_fit"] is False
        assert (one / "taste.safetensors").read_bytes() == b"taste 1"
        assert taste_head.taste_file(Project(picked)).read_bytes() == b"taste 2", "it judges the next images"
        trains("finish")
        made = told(capsys, "train", picked)
        (reward,) = json.loads((one / "run" / "config.json").read_text())["rlhf_rewards"]
        assert reward["params"] == {
            "weights": str(one / "taste.safetensors"),
            "source": settings(picked)["model"]["base"],
        }
        assert made["taste"]["knows_fit"] is True, "the record is of the taste that trained"
        told(capsys, "learn", picked)
        assert taste_head.taste_file(Project(picked)).read_bytes() == b"taste 3"
        assert not list(one.glob("taste-newer*")), "a finished run needs its taste no more"

    def test_a_newer_taste_keeps_its_record_when_training_is_forgotten(self, picked, capsys, asked, trains):
        trains("exit1")
        refused(capsys, "train", picked, "--method", "taste")
        one = Project(picked).round
        (one.folder / "run" / "backup" / "one").mkdir(parents=True)
        self.learner.also = {"no_fit": "the other taste has none"}
        told(capsys, "learn", picked)
        one.forget_training()
        assert one.taste_path.read_bytes() == b"taste 2" and one.taste["knows_fit"] is False
        assert not list(one.folder.glob("taste-newer*"))

    def test_learning_shows_its_progress(self, picked, asked):
        said = []
        taste_head.learn(Project(picked), said.append)
        assert said[-1] == "round-1: learning your taste, features of 20/48 images"

    def test_what_is_trained_and_on_what_is_said(self, picked, capsys, asked):
        assert taste.main(["train", str(picked), "--method", "taste"]) == 0
        said = capsys.readouterr().err
        assert "epochs 6 (preset: 8)" in said and "not lowered" not in said
        self.learner.also = {"no_fit": "the guard cannot read the denoiser of this model"}
        assert taste.main(["train", str(picked), "--method", "taste", "--again"]) == 0
        said = capsys.readouterr().err
        assert "is not lowered: the guard cannot read the denoiser of this model" in said
        config = json.loads((picked / "round-1" / "config.json").read_text())
        assert "guard" not in config["rlhf_rewards"][0]["params"]

    def test_too_few_answers(self, project, capsys, monkeypatch):
        told(capsys, "generate", project, "--per-prompt", 2)
        answer = preferring(brightness)
        left = iter(range(5))
        headless(
            monkeypatch,
            lambda reply: answer(reply) if next(left, None) is not None else {"do": "quit"},
            "pick",
            str(project),
        )
        assert "too few to learn a taste" in refused(capsys, "train", project, "--method", "taste")

    def test_a_family_without_such_a_preset(self, tmp_path, prompts_file, drawer, capsys, monkeypatch):
        folder = tmp_path / "flux"
        told(capsys, "new", folder, "--prompts", prompts_file, *NEW, "--model-type", "FLUX_DEV_1")
        told(capsys, "generate", folder)
        headless(monkeypatch, preferring(brightness), "pick", str(folder))
        assert "no preset for a learned taste" in refused(capsys, "train", folder, "--method", "taste")

    def test_fewer_prompts(self, project, capsys, drawer):
        assert told(capsys, "generate", project, "--prompts", 3)["candidates"] == 18
        assert len({prompt for prompt, _, _ in drawer.made}) == 3
        assert "already has 3 prompts" in refused(capsys, "generate", project, "--prompts", 5)


NAMES = ["../../prompts.txt", "/etc/hostname", "chosen/../../plan.json"]


class TestOverview:
    """What is shown of the images that were chosen."""

    @pytest.fixture
    def picked(self, picked_from) -> Project:
        return Project(picked_from)

    def rewrite(self, made: Project, entry: str) -> None:
        with closing(sqlite3.connect(made.round.pairs / STORE_NAME)) as db:
            db.execute("UPDATE pairs SET entry = ?", (entry,))
            db.commit()

    def test_the_chosen_images_are_shown(self, picked):
        shown = overview(picked).steps["pick"].images
        assert shown and all(path.is_file() and path.is_relative_to(picked.round.pairs) for path in shown)

    def test_the_folder_of_images_is_looked_through_once(self, picked, monkeypatch):
        looked: list[Path] = []
        is_file = Path.is_file
        folder, images = picked.round.candidates, picked.round.images()

        def noting(path: Path) -> bool:
            looked.append(path)
            return is_file(path)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "is_file", noting)
            overview(picked)
        candidates = [path for path in looked if path.parent == folder]
        assert len(candidates) == len(set(candidates)) == len(images) > 0

    @pytest.mark.parametrize("name", usual(NAMES, *NAMES[1:]))
    def test_a_name_that_leads_elsewhere_is_refused(self, picked, name):
        self.rewrite(picked, json.dumps({"chosen_file": name}))
        with pytest.raises(UserError) as caught:
            overview(picked)
        assert name in caught.value.message

    def test_a_damaged_entry_is_one_message(self, picked):
        self.rewrite(picked, "{")
        with pytest.raises(UserError, match="cannot be read"):
            overview(picked)

    def test_an_entry_without_an_image_shows_none(self, picked):
        self.rewrite(picked, "{}")
        assert overview(picked).steps["pick"].images == ()
