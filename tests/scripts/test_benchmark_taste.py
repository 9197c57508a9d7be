"""The benchmark of few picks: its rows, its tables, what it refuses, and heads measured on drawn images."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modules.curation.marking.Marks import Marks
from modules.curation.store import CurationStore
from modules.util.rng import python_random
from scripts import benchmark
from scripts.benchmarks import _taste_cell, _taste_rounds, taste
from scripts.benchmarks._taste_cell import Asked, Seen, in_turn, train_on_answers, with_surplus
from scripts.benchmarks._taste_images import Images, wishes_of
from scripts.benchmarks._taste_picking import with_the_pair_tool
from scripts.benchmarks._taste_spec import METHODS, Cell, part_file, parts_of
from scripts.demo.sampling import load_model
from scripts.demo.taste import TASTES, Person
from scripts.demo.world import draw_scene, render
from tests.scripts.test_convert_model import changes


def row(taste_name, answers, win, head=0.8, seed=1):
    return {
        "taste": taste_name, "method": "head-nft", "answers": answers, "seed": seed, "win_rate": win,
        "best_of_n": 1 + 4 * win, "fidelity_loss": 1 - win, "diversity_ratio": 1.0, "head_accuracy": head,
        "images_made": 762, "train_cpu_seconds": 120.5,
    }  # fmt: skip


def drawn(kind, seed, count):
    wishes = wishes_of(kind, seed)[:count]
    return Images(
        wishes, [render(draw_scene(one, python_random("drawn", seed, i))) for i, one in enumerate(wishes)]
    )


def test_means_are_over_tastes_and_the_worst_taste_is_named():
    rows = [row("large", 25, 0.9), row("large", 25, 0.7, seed=2), row("left", 25, 0.6)]
    assert taste.summarise(rows, "win_rate")[:2] == ("0.700", "left 0.600")
    assert taste.summarise(rows, "fidelity_loss")[1] == "left 0.400"
    assert taste.summarise([one | {"win_rate": None} for one in rows], "win_rate") is None
    text = taste.table([taste.Row(one) for one in rows])
    assert "worst taste" in text and "0.650 0.700 0.800" in text


def test_the_curve_is_a_picture_of_every_method():
    rows = [row("large", 25, 0.9), row("left", 100, 0.6), row("left", 25, 0.6) | {"method": "dpo"}]
    tree = ElementTree.fromstring(taste.learning_curve(rows))
    texts = [one.text for one in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"head-nft", "dpo", "25", "100"} <= set(texts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tastes", "loud"], "--tastes"),
        (["--methods", "magic"], "--methods"),
        (["--answers", "1"], "--answers"),
        (["--answers", "25,9999"], "--answers"),
        (["--answers", "200", "--methods", "grid-head"], "--answers"),
        (["--answers", "50,8", "--methods", "rounds"], "--answers"),
        (["--seeds", ""], "--seeds"),
        (["--resume"], "--resume"),
        (["--taste-file", "nowhere.py"], "--taste-file"),
        (["--jobs", "-1"], "--jobs"),
    ],
)
def test_what_is_not_possible_is_refused_before_anything_is_made(arguments, words):
    with pytest.raises(benchmark.UserError, match=words):
        benchmark.main(["taste", *arguments])


def test_a_folder_with_rows_is_not_mixed_up(tmp_path):
    (tmp_path / "a.work").mkdir()
    (tmp_path / "a.work" / "old").touch()
    with pytest.raises(benchmark.UserError, match="--resume"):
        benchmark.main(["taste", "--json", str(tmp_path / "a.json")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TASTES = 3", "no TASTES"),
        ("import nothing_there", "cannot be run"),
        ("from scripts.demo.taste import TASTES as T\nTASTES = (T['large'],)", "name of a taste"),
        ("from scripts.demo.taste import Taste\nTASTES = (Taste('../x', '', '', len),)", "name of a taste"),
    ],
)
def test_a_faulty_taste_file_is_named(tmp_path, text, words):
    file = tmp_path / "more.py"
    file.write_text(text)
    with pytest.raises(benchmark.UserError, match=words):
        benchmark.main(["taste", "--taste-file", str(file), "--tastes", "x"])


@pytest.mark.parametrize(
    ("method", "epochs", "mode"), [("guarded-nft", 6, None), ("head-nft", None, None), ("awm", 6, "AWM")]
)
def test_a_method_trains_in_its_mode_for_its_own_epochs(tmp_path, monkeypatch, method, epochs, mode):
    told = []
    monkeypatch.setattr(_taste_cell, "train", lambda journey, name, changes, report: told.append(changes))
    cell = Cell("large", method, 25, 1)
    train_on_answers(cell, cell.method_spec, tmp_path)
    given = dict(one.split("=", 1) for one in told[0])
    assert json.loads(given.get("epochs", "null")) == epochs
    assert json.loads(given.get("rlhf_mode", "null")) == mode
    params = json.loads(given["rlhf_rewards"])[0]["params"]
    assert (params["guard"], params["caution"]) == (cell.method_spec.guard, cell.method_spec.caution)


class Rounds:
    """A project whose rounds take no time; the person has nothing to say to the last eight questions of each."""

    def __init__(self, folder):
        self.folder, self.number, self.trained, self.rounds = folder, 1, False, []

    @property
    def round(self):
        number, folder = self.number, self.folder
        events = SimpleNamespace(events_path=folder / f"{number}.jsonl")
        return SimpleNamespace(
            number=number, trained=self.trained, run=events, adapter_path=folder / f"adapter-{number}",
            taste_path=folder / f"taste-{number}",
        )  # fmt: skip

    def play(self, loop, project, person, report):
        step = {"kind": "step", "metrics": {"rl/reward_mean": 0.5, "rl/images": 64}}
        self.round.run.events_path.write_text(json.dumps(step | {"seq": 1, "time": 0.0}) + "\n")
        self.trained = True
        self.rounds.append(loop.answers)
        return {"answers": loop.answers - 8, "candidates": 65}

    def next(self, project, surplus):
        assert self.trained, "a round is finished before the next one begins"
        self.number, self.trained = self.number + 1, False


def test_rows_of_a_project_come_after_the_rounds_that_their_answers_need(tmp_path, monkeypatch):
    project = Rounds(tmp_path)
    asked_about = []
    monkeypatch.setattr(
        _taste_rounds, "new_project", lambda loop, wishes: asked_about.extend(wishes) or project
    )
    monkeypatch.setattr(_taste_rounds, "one_round", project.play)
    monkeypatch.setattr(_taste_rounds, "new_round", project.next)
    cells = [Cell("large", "rounds", answers, 1) for answers in (200, 50, 100)]
    found = list(_taste_rounds.play(cells, Person(TASTES["large"], 1, 0.1), tmp_path))
    assert [(one.cell.answers, one.adapter.name, one.taste.name) for one in found] == [
        (50, "adapter-1", "taste-1"), (100, "adapter-2", "taste-2"), (200, "adapter-4", "taste-4"),
    ]  # fmt: skip
    assert [one.given for one in found] == [42, 84, 168], "answers that were not given do not count"
    assert [one.images for one in found] == [129, 258, 516]
    judged = {wish.caption() for wish in wishes_of("curve", 1)}
    assert asked_about and not judged & {wish.caption() for wish in asked_about}


@pytest.mark.parametrize(("answers", "rounds"), [(25, [25]), (75, [50, 25]), (100, [50, 50])])
def test_answers_that_are_no_whole_rounds_end_in_a_shorter_one(tmp_path, monkeypatch, answers, rounds):
    project = Rounds(tmp_path)
    monkeypatch.setattr(_taste_rounds, "new_project", lambda loop, wishes: project)
    monkeypatch.setattr(_taste_rounds, "one_round", project.play)
    monkeypatch.setattr(_taste_rounds, "new_round", project.next)
    list(_taste_rounds.play([Cell("large", "rounds", answers, 1)], Person(TASTES["large"], 1, 0.1), tmp_path))
    assert project.rounds == rounds


def test_rows_of_one_project_are_measured_together_and_others_apart():
    cells = [
        Cell(name, method, answers, 1)
        for answers in (25, 50, 100, 120)
        for name in ("large", "left")
        for method in ("rounds", "dpo")
    ]
    groups = taste.together(cells)
    assert sorted(one.key for same in groups for one in same) == sorted(one.key for one in cells)
    several = [[(one.taste, one.answers) for one in same] for same in groups if len(same) > 1]
    assert several == [[("large", 50), ("large", 100)], [("left", 50), ("left", 100)]]


@pytest.mark.parametrize("answers", [2, 7, 25])
def test_exactly_the_answers_are_given_and_pairs_are_exported(tmp_path, answers):
    cell = Cell("large", "dpo", answers, 1)
    images = drawn("pool", 1, 5 * -(-answers // 4))
    person = Asked(Person(TASTES["large"], 1, 0.0), images.scores(TASTES["large"]), [])
    with_the_pair_tool(images, person.ask, tmp_path, 1, answers)
    assert len(person.given) == answers
    prompts = images.prompts
    assert all(prompts[a] == prompts[b] for a, b, _ in person.given)
    exported = json.loads((tmp_path / "pairs" / "manifest.json").read_text())["pairs"]
    assert 1 <= len(exported) <= 2 * -(-answers // 4)
    turned = Asked(person.person, person.scores, [])
    in_turn(images, turned, cell)
    assert len(turned.given) == answers


def test_half_of_the_answers_are_about_what_a_head_of_the_others_is_least_sure_about(tmp_path):
    cell = Cell("large", "surplus-head", 26, 1)
    images = drawn("surplus", 1, 15 * 7)
    person = Asked(Person(TASTES["large"], 1, 0.0), images.scores(TASTES["large"]), [])
    sizes_N1 = torch.tensor([[reading.size] for reading in images.readings()])
    with_surplus(Seen(images, sizes_N1, {"size": 1}), person, cell, tmp_path)
    assert len(person.given) == 26
    assert all(images.prompts[a] == images.prompts[b] for a, b, _ in person.given)
    asked = [place for a, b, _ in person.given for place in (a, b)]
    first, second = [one for one in asked if one < 15 * 3], [one for one in asked if one >= 15 * 3]
    assert {one % 15 for one in first} <= set(range(5)) and len(first) == 24, "the first five of each prompt"
    for prompt in {one // 15 for one in second}:
        assert len({one for one in second if one // 15 == prompt}) <= 5
    assert any(one % 15 > 4 for one in second), "a head chose among all fifteen"


@pytest.mark.parametrize("slips", [0.0, 0.3])
def test_exactly_the_likes_and_dislikes_are_given_on_pages_of_prompts(tmp_path, slips):
    images = drawn("pool", 1, 5 * 18)
    person = Asked(Person(TASTES["large"], 1, slips), images.scores(TASTES["large"]), [])
    person.look_through(images, tmp_path, Cell("large", "grid-head", 40, 1))
    with CurationStore(tmp_path / "pairs") as store:
        marks = Marks(store.events())
        pairs = store.pair_count()
    assert person.marks == marks.count(True) + marks.count(False) == 40
    assert marks.count(None) > 10 and marks.judged < len(images.pixels), "the rest was not looked at"
    assert pairs >= 8, "the first page was closed as a person closes it"
    wrong = sum(person.scores[better] <= person.scores[worse] for better, worse, _ in person.given)
    assert (wrong > 0) == (slips > 0) and wrong < len(person.given) / 2


@pytest.mark.slow  # starts the trainer three times as a program
def test_likes_and_dislikes_of_the_same_answers_train_by_kto_and_as_a_difference_of_two_adapters(tmp_path):
    cell = Cell("large", "composed-strong", 8, 1)
    images = drawn("pool", 1, 10)
    person = Asked(Person(TASTES["large"], 1, 0.0), images.scores(TASTES["large"]), [])
    with_the_pair_tool(images, person.ask, tmp_path, 1, 8)
    made = train_on_answers(cell, METHODS["composed-strong"], tmp_path)
    names = ("supervised", "disliked", "composed")
    good, bad, both = (changes(load_file(tmp_path / f"adapter-{name}.safetensors")) for name in names)
    assert made.adapter == tmp_path / "adapter-composed.safetensors"
    for place, change in both.items():
        torch.testing.assert_close(change, 3 * (good[place] - bad[place]), rtol=1e-3, atol=1e-5)
    assert max(change.abs().max() for change in both.values()) > 1e-4
    load_model(adapter=made.adapter)
    by_kto = train_on_answers(Cell("large", "kto", 8, 1), METHODS["kto"], tmp_path)
    with safe_open(by_kto.adapter, framework="pt") as adapter:
        assert adapter.metadata()["tastemaker.objective"] == "KTO"


def test_rows_of_another_taste_of_the_same_name_are_measured_again(tmp_path, monkeypatch, capsys):
    more, work, measured = tmp_path / "more.py", tmp_path / "work", []

    def measure(parts, jobs, tell):
        monkeypatch.setattr(_taste_cell, "run_cell", lambda work, cell, *more: row(cell.taste, cell.answers, 0.5))
        for told in parts:
            if told["what"] == "rows":
                measured.extend(cell["taste"] for cell in told["cells"])
                _taste_cell.do(told)

    monkeypatch.setattr(taste, "_all", measure)
    arguments = ["taste", "--work", str(work), "--resume", "--taste-file", str(more), "--tastes", "low,large"]
    arguments += ["--answers", "25", "--seeds", "1", "--methods", "head"]
    for value, expected in (("r.y", ["low", "large"]), ("r.y", []), ("1 - r.y", ["low"])):
        measured.clear()
        own = f"(Taste('low', 'shapes below', 'y', lambda r: {value}),)"
        more.write_text(f"from scripts.demo.taste import Taste\nTASTES = {own}\n")
        assert benchmark.main(arguments) == 0
        assert measured == expected


@pytest.mark.slow
def test_heads_are_measured_on_prompts_nobody_saw_and_rows_are_kept(tmp_path, capsys):
    work, more = tmp_path / "work", tmp_path / "more.py"
    for kind in ("pool", "surplus", "curve"):
        images = drawn(kind, 1, 10_000)
        for part in range(parts_of(kind, 25)):
            file = part_file(work, 1, kind, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, np.stack(images.pixels[part * 50 : part * 50 + 50]))
    more.write_text(
        "from scripts.demo.taste import Taste\nTASTES = (Taste('low', 'shapes below', 'y', lambda r: r.y),)\n"
    )
    arguments = ["taste", "--work", str(work), "--resume", "--taste-file", str(more), "--tastes", "low,large"]
    arguments += [
        "--answers",
        "25",
        "--seeds",
        "1",
        "--methods",
        "head,asked-head,vae-head,surplus-head",
        "--jobs",
        "2",
    ]
    out = tmp_path / "rows.json"
    assert benchmark.main([*arguments, "--json", str(out)]) == 0
    rows = {(one["taste"], one["method"]): one["head_accuracy"] for one in json.loads(out.read_text())}
    assert rows["large", "head"] > rows["large", "vae-head"] and rows["large", "head"] > 0.85
    assert rows["low", "asked-head"] > 0.75
    assert rows["large", "surplus-head"] > 0.85
    before = {file.name: file.stat().st_mtime_ns for file in (work / "rows").iterdir()}
    (work / "rows" / "large--head--25--1.json").unlink()
    assert benchmark.main([*arguments, "--json", str(out)]) == 0
    again = {(one["taste"], one["method"]): one["head_accuracy"] for one in json.loads(out.read_text())}
    assert again == rows, "a row is the same when it is measured again"
    after = {file.name: file.stat().st_mtime_ns for file in (work / "rows").iterdir()}
    assert [name for name in before if before[name] != after[name]] == ["large--head--25--1.json"]
