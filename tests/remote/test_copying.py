"""What a start copies, how often, and what it does when that fails."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path, PurePosixPath

import pytest

from modules.remote import records, starting
from modules.remote.again import persistently
from modules.remote.Connection import Lost
from modules.remote.Far import Far
from modules.remote.helper_file import modules_needed
from modules.remote.packing import pack, places_of_files
from modules.remote.program import program_files
from modules.runner.run_list import summary_of
from modules.runner.RunDirectory import RunDirectory
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.load import load_config
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from scripts import train_remote
from scripts.train_remote import main
from tests.remote.support import begin, newest, write_light
from tests.runner.support import wait_until
from tests.source_tree import ROOT
from tests.usual import usual

pytestmark = pytest.mark.child
LARGE = 12 << 20


def inputs(server, run: str = "run-1") -> dict[str, bytes]:
    base = server.home / "tastemaker" / "inputs" / run
    return {p.relative_to(base).as_posix(): p.read_bytes() for p in base.rglob("*") if p.is_file()}


def said(capsys) -> str:
    found = capsys.readouterr().err
    assert "Traceback" not in found and found.startswith("error: ") and len(found.splitlines()) <= 2
    return found


def test_images_come_with_captions_masks_and_sources(server, remote, program, tmp_path):
    folder = tmp_path / "job"
    write_light(folder, remote)
    for name in ("a-masklabel.png", ".hidden.png", "deep/b.png"):
        (folder / "images" / name).parent.mkdir(exist_ok=True)
        (folder / "images" / name).write_bytes(name.encode())
    (folder / "sources" / "deep").mkdir(parents=True)
    (folder / "sources" / "deep" / "a.png").write_bytes(b"before")
    (folder / "words.txt").write_text("red\n")
    concept = {
        "path": str(folder / "images"), "source_path": str(folder / "sources"),
        "text": {"tag_dropout_special_tags": str(folder / "words.txt")},
    }  # fmt: skip
    begin(write_light(folder, remote, concepts=[concept]), alongside=True)
    names = {name.partition("/")[2] for name in inputs(server)}
    assert names == {
        "model.safetensors", "images/a.png", "images/a.txt", "images/a-masklabel.png", "sources/deep/a.png",
        "words.txt",
    }  # fmt: skip
    sent = json.loads((server.home / "tastemaker" / "runs" / "run-1" / "config.json").read_text())
    assert sent["concepts"][0]["path"].startswith(str(server.home / "tastemaker" / "inputs" / "run-1"))
    assert Path(sent["concepts"][0]["text"]["tag_dropout_special_tags"]).read_text() == "red\n"
    assert str(folder) not in json.dumps(sent) and not sent["remote"]["host"]


def test_a_second_start_copies_only_what_changed(server, remote, program, tmp_path):
    config = write_light(tmp_path / "job", remote)
    first = begin(config)
    assert first.sent > 2000
    assert begin(config, "run-2", alongside=True).sent == 0
    (tmp_path / "job" / "images" / "a.png").write_bytes(b"another image")
    assert begin(config, "run-3", alongside=True).sent == len(b"another image")
    assert [v for k, v in inputs(server, "run-1").items() if k.endswith("a.png")] == [b"image"]
    # a copy that was changed there is not taken for the file
    path = next(p for p in (server.home / "tastemaker" / "inputs" / "run-3").rglob("model.safetensors"))
    path.chmod(0o600)
    path.write_bytes(b"MODEL")
    assert begin(config, "run-4", alongside=True).sent == len(b"model")
    assert b"model" in inputs(server, "run-4").values()


def test_a_connection_that_ends_while_a_file_is_copied_costs_little(server, remote, program, tmp_path):
    config = write_light(tmp_path / "job", remote)
    data = os.urandom(LARGE)
    (tmp_path / "job" / "model.safetensors").write_bytes(data)

    def cut_once(received: int) -> None:
        if received > LARGE * 3 // 4:
            server.on_data = None
            server.cut()

    server.on_data = cut_once
    begin(config)
    assert server.on_data is None and data in inputs(server).values()
    assert server.received < LARGE * 3 // 2


def test_a_run_that_was_started_before_the_connection_ended_is_not_started_twice(
    server, remote, program, tmp_path, monkeypatch
):
    config, real, pids = write_light(tmp_path / "job", remote), Far.ask, []

    async def lost_after_start(self, kind, verb, **fields):
        found = await real(self, kind, verb, **fields)
        if verb == "begin":
            pids.append(found)
            raise Lost("the connection ended")
        return found

    monkeypatch.setattr(Far, "ask", lost_after_start)
    begin(config)
    run = RunDirectory(server.home / "tastemaker" / "runs" / "run-1")
    assert len(pids) == 1 and run.launched().pid == pids[0]


@pytest.mark.parametrize("resumed", usual([False, True], False))
def test_a_start_whose_connection_ends_before_the_trainer_is_asked_for_starts_it(
    resumed, server, remote, program, tmp_path, monkeypatch
):
    config, real, lost = write_light(tmp_path / "job", remote), Far.ask, []
    run = RunDirectory(server.home / "tastemaker" / "runs" / "run-1")
    if resumed:
        begin(config)
        wait_until(run.trainer)
        assert main(["send", "stop", "--wait"]) == 0
        wait_until(lambda: run.trainer() is None and run.launched() is None)

    async def lost_before_start(self, kind, verb, **fields):
        if verb == "begin" and not lost:
            lost.append(verb)
            raise Lost("the connection ended")
        return await real(self, kind, verb, **fields)

    monkeypatch.setattr(Far, "ask", lost_before_start)
    begin(config)
    assert lost and run.launched() is not None


def test_a_run_that_may_have_started_is_recorded_and_listed(
    server, remote, program, tmp_path, monkeypatch, capsys
):
    config, real = write_light(tmp_path / "job", remote), Far.ask

    async def lost_after_start(self, kind, verb, **fields):
        found = await real(self, kind, verb, **fields)
        if verb == "begin":
            raise Lost("the connection ended")
        return found

    monkeypatch.setattr(Far, "ask", lost_after_start)
    monkeypatch.setattr(starting, "TRIES", 1)
    assert main(["start", "--config-path", str(config)]) == 2
    assert "the connection ended" in said(capsys)
    assert summary_of(newest().folder).state == "remote"


def test_two_starts_at_once_copy_the_same_files(server, remote, program, tmp_path):
    config = write_light(tmp_path / "job", remote)
    (tmp_path / "job" / "model.safetensors").write_bytes(os.urandom(LARGE))
    failed = []

    def run(name: str) -> None:
        try:
            begin(config, name, alongside=True)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(name,)) for name in ("run-1", "run-2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert inputs(server, "run-1") == inputs(server, "run-2") and len(inputs(server)) == 3
    # one file, which both runs have
    store = [p for p in (server.home / "tastemaker" / "store").rglob("*") if p.stat().st_size == LARGE]
    assert len(store) == 1 and store[0].stat().st_nlink == 3


def test_a_run_that_is_started_again_keeps_its_folder_here(server, remote, program, tmp_path):
    config = ["--config-path", str(write_light(tmp_path / "job", remote))]
    assert main(["start", *config, "--run", "run-1", "--to", str(tmp_path / "mine")]) == 0
    run = RunDirectory(server.home / "tastemaker" / "runs" / "run-1")
    wait_until(run.trainer)
    assert main(["send", "stop", "--wait"]) == 0
    assert main(["start", *config, "--run", "run-1", "--set", "continue_last_backup=true"]) == 0
    assert newest().folder == tmp_path / "mine" and not (tmp_path / "job" / "run-1").exists()
    assert json.loads(run.config_path.read_text())["continue_last_backup"] is True


def test_files_that_were_removed_here_are_not_there_when_a_run_is_started_again(
    server, remote, program, tmp_path
):
    config, images = write_light(tmp_path / "job", remote), tmp_path / "job" / "images"
    (images / "b.png").write_bytes(b"a bad image")
    begin(config)
    assert sorted(name.partition("/")[2] for name in inputs(server)) == [
        "images/a.png", "images/a.txt", "images/b.png", "model.safetensors"
    ]  # fmt: skip
    run = RunDirectory(server.home / "tastemaker" / "runs" / "run-1")
    wait_until(run.trainer)
    assert main(["send", "stop", "--wait"]) == 0
    wait_until(lambda: run.trainer() is None and run.launched() is None)
    (images / "b.png").unlink()
    begin(config)
    assert sorted(name.partition("/")[2] for name in inputs(server)) == [
        "images/a.png", "images/a.txt", "model.safetensors"
    ]  # fmt: skip


def test_a_start_of_a_run_that_is_running_leaves_its_files_alone(server, remote, program, tmp_path, capsys):
    config = write_light(tmp_path / "job", remote)
    begin(config)
    before = inputs(server)
    (tmp_path / "job" / "images" / "a.png").write_bytes(b"another image")
    (tmp_path / "job" / "images" / "a.txt").unlink()
    assert main(["start", "--config-path", str(config), "--run", "run-1", "--alongside"]) == 2
    assert "run-1 is already running" in said(capsys)
    assert inputs(server) == before


def test_a_device_is_used_by_one_run(server, remote, program, tmp_path, capsys):
    config = write_light(tmp_path / "job", remote)
    begin(config)
    assert main(["start", "--config-path", str(config)]) == 2
    assert "waits for the run" in said(capsys)
    assert records.known() == ["run-1"]  # what was refused leaves nothing here
    assert [path.name for path in (tmp_path / "job").glob("*run*")] == ["run-1"]
    assert main(["start", "--config-path", str(config), "--run", "run-1", "--alongside"]) == 2
    assert "already running" in said(capsys)


def test_a_full_disk_is_said_before_anything_is_copied(
    server, remote, program, tmp_path, monkeypatch, capsys
):
    config = write_light(tmp_path / "job", remote)
    monkeypatch.setattr(starting, "SPARE_BYTES", 1 << 60)
    assert main(["start", "--config-path", str(config)]) == 2
    assert "is too full" in said(capsys)
    assert not (server.home / "tastemaker" / "store").exists()


@pytest.mark.parametrize("size", [1 << 20, LARGE])
def test_a_disk_that_gets_full_is_said(server, remote, program, tmp_path, capsys, size):
    config = write_light(tmp_path / "job", remote)
    (tmp_path / "job" / "model.safetensors").write_bytes(os.urandom(size))
    server.limit = 512 * 1024
    assert main(["start", "--config-path", str(config)]) == 2
    assert "File too large" in said(capsys)
    assert not (server.home / "tastemaker" / "runs").exists()


def test_a_folder_that_cannot_be_written_is_named(server, remote, program, tmp_path, capsys):
    (server.home / "file").write_text("in the way")
    config = write_light(tmp_path / "job", remote)
    assert main(["start", "--config-path", str(config), "--directory", "file/below"]) == 2
    assert "remote.directory" in said(capsys)


def test_a_missing_or_old_python_is_named(server, remote, program, tmp_path, capsys):
    config = write_light(tmp_path / "job", remote)
    assert main(["start", "--config-path", str(config), "--python", "no/python"]) == 2
    assert "has no no/python; Python 3.11 or newer is needed" in said(capsys)
    old = server.home / "python3"
    old.write_text("#!/bin/sh\necho python 3 8\n")
    old.chmod(0o755)
    server.environment["PATH"] = str(server.home)
    assert main(["start", "--config-path", str(config), "--python", ""]) == 2
    assert "has only Python 3.8" in said(capsys)


def test_a_python_without_the_packages_is_named(server, remote, program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(starting, "packages_needed", lambda: {"torch": "1.0", "no-such-package": "1"})
    assert main(["start", "--config-path", str(write_light(tmp_path / "job", remote))]) == 2
    assert "lacks no-such-package" in said(capsys)


@pytest.mark.parametrize(
    ("optimizer", "more"),
    usual(
        [("ADAMW", False), ("ADAMW_ADV", True), ("PRODIGY_PLUS_SCHEDULE_FREE", True)],
        ("ADAMW", False), ("PRODIGY_PLUS_SCHEDULE_FREE", True),
    ),
)  # fmt: skip
def test_an_environment_is_set_up_where_there_is_none(
    optimizer, more, server, remote, program, tmp_path, monkeypatch
):
    """Its own script is copied like the rest; here one that only says what it was asked for."""
    (program / "scripts" / "bootstrap.py").write_text(
        "import pathlib, sys\n"
        "place = pathlib.Path(sys.argv[-1])\n"
        "print(sys.argv[1:-1], sorted(p.name for p in place.iterdir()))\n"
        "(place / '.venv' / 'bin').mkdir(parents=True)\n"
        f"(place / '.venv' / 'bin' / 'python').symlink_to({remote.python!r})\n"
    )
    card = server.home / "bin" / "nvidia-smi"  # as on a computer with a card
    card.parent.mkdir()
    card.write_text("#!/bin/sh\n")
    card.chmod(0o755)
    server.environment["PATH"] += f"{os.pathsep}{card.parent}"
    files = {**starting.program_files(), "scripts/bootstrap.py": program / "scripts" / "bootstrap.py"}
    files["requirements-optimizers.txt"] = ROOT / "requirements-optimizers.txt"
    monkeypatch.setattr(starting, "program_files", lambda: files)
    config = load_config(
        write_light(tmp_path / "job", remote), ["remote.python=", f"optimizer.optimizer={optimizer}"]
    )
    lines: list[str] = []
    task = starting.Start(starting.Wanted(config.remote, config, "run-1"), lines.append)
    asyncio.run(persistently(config.remote, lambda _: None, lines.append, task.work))
    extra = ["requirements-optimizers.txt"] if more else []
    names = ["constraints.txt", "requirements-gpu.txt", *extra, "requirements.txt"]
    options = ["--gpu", *(["--optimizers"] if more else []), "--no-window", "--into"]
    assert f"{options} {names}" in lines
    launch = json.loads((server.home / "tastemaker" / "runs" / "run-1" / "launch.json").read_text())
    assert launch["command"][0].startswith(str(server.home / "tastemaker" / "environments"))


# -- packing ---------------------------------------------------------------------------------------------------------


def test_names_in_an_error_cannot_control_the_terminal(monkeypatch, capsys):
    class Hostile:
        remote = RemoteConfig(host="gpu.example.org")

        async def ask(self, kind, verb, **fields):
            return ["\x1b]0;taken\x07.png"] if verb == "plant" else {}

    def plant(_):
        task = starting.Start(starting.Wanted(Hostile.remote, TrainConfig(), "run-1"), print)
        asyncio.run(task._plant(Hostile(), "inputs/run-1", {}))

    def other(_):
        raise UserError("\x1b[2J said the other computer")

    for work, words in ((plant, "taken"), (other, "said the other computer")):
        monkeypatch.setitem(train_remote.VERBS, "status", work)
        assert main(["status"]) == 2
        error = capsys.readouterr().err
        assert words in error and "\x1b" not in error and "\x07" not in error


def test_every_setting_that_names_a_file_is_looked_at():
    config = TrainConfig()
    known = {
        one.path
        for one in iter_settings(TrainConfig)
        if one.widget in ("file", "folder", "model", "save_file")
    }
    for path in known:
        if not path.startswith("remote."):
            owner: object = config
            *way, last = path.split(".")
            for part in way:
                owner = getattr(owner, part)
            setattr(owner, last, "a/file")
    found = {place.path for place in places_of_files(config)}
    assert found == {path for path in known if not path.startswith("remote.")}


def test_a_missing_file_is_named_and_may_be_there_already(tmp_path, remote):
    config = load_config(write_light(tmp_path, remote, lora_model_name=str(tmp_path / "no.safetensors")))
    with pytest.raises(UserError) as caught:
        pack(config, "/far", "run-1", {})
    assert caught.value.field == "lora_model_name"
    made = pack(config, "/far", "run-1", {"lora_model_name": "/models/mine.safetensors"})
    assert made.config.lora_model_name == "/models/mine.safetensors"
    assert config.base_model_name == str(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="not a setting of this run that names a file"):
        pack(config, "/far", "run-1", {"learning_rate": "/x", "lora_model_name": "/y"})


@pytest.mark.parametrize("name", ["owner/an-adapter", "owner/an-adapter/version_2.safetensors"])
def test_a_training_adapter_on_the_hub_is_downloaded_there(name, tmp_path, remote):
    config = load_config(write_light(tmp_path, remote))
    config.training_adapter.model_name = name
    made = pack(config, "/far", "run-1", {})
    assert made.config.training_adapter.model_name == name
    config.training_adapter.model_name = str(tmp_path / "no.safetensors")
    with pytest.raises(UserError, match=r"no.safetensors does not exist"):
        pack(config, "/far", "run-1", {})


def test_images_that_prompts_edit_are_copied_with_their_list(tmp_path, remote):
    prompts = tmp_path / "list" / "prompts.jsonl"
    prompts.parent.mkdir()
    prompts.write_text(
        '{"prompt": "a", "source": "in/a.png"}\n{"prompt": "b", "source": "in/a.png"}\n', "utf-8"
    )
    config = load_config(write_light(tmp_path, remote))
    config.rlhf_prompts_file = str(prompts)
    with pytest.raises(UserError, match="a.png does not exist"):
        pack(config, "/far", "run-1", {})
    (prompts.parent / "in").mkdir()
    for name in ("a.png", "a.2.png"):
        (prompts.parent / "in" / name).write_bytes(name.encode())
    made = pack(config, "/far", "run-1", {})
    place = made.config.rlhf_prompts_file.removeprefix("/far/inputs/run-1/").removesuffix("prompts.jsonl")
    own = {name.removeprefix(place): path.name for name, path in made.files.items() if name.startswith(place)}
    assert own == {"prompts.jsonl": "prompts.jsonl", "in/a.png": "a.png", "in/a.2.png": "a.2.png"}


def test_all_images_that_a_sample_edits_are_copied(tmp_path, remote):
    for name in ("cat.png", "cat.2.jpg", "cat.4.png"):
        (tmp_path / name).write_bytes(name.encode())
    sample = {"prompt": "a cat with this hat", "source_path": str(tmp_path / "cat.png")}
    made = pack(load_config(write_light(tmp_path, remote, samples=[sample])), "/far", "run-1", {})
    first = PurePosixPath(made.config.samples[0].source_path.removeprefix("/far/inputs/run-1/"))
    own = {name: path.name for name, path in made.files.items() if PurePosixPath(name).parent == first.parent}
    assert own == {str(first): "cat.png", str(first.with_name("cat.2.jpg")): "cat.2.jpg"}


def test_what_is_switched_off_is_neither_looked_for_nor_copied(tmp_path, remote):
    (tmp_path / "off").mkdir()
    (tmp_path / "off" / "1.png").write_bytes(b"1")
    off = [{"path": str(tmp_path / name), "enabled": False} for name in ("off", "gone")]
    sample = {"prompt": "a cat", "enabled": False, "source_path": str(tmp_path / "gone.png")}
    config = load_config(write_light(tmp_path, remote, samples=[sample]))
    config.concepts = [*config.load_concepts(), *ConceptConfig.load_all(off)]
    made = pack(config, "/far", "run-1", {"concepts[2].path": "/there"})
    assert not [path for path in made.files.values() if path.parent == tmp_path / "off"]


def test_captions_listed_with_full_paths_are_refused_before_anything_is_copied(tmp_path, remote):
    images, listed = tmp_path / "pets", tmp_path / "captions.json"
    images.mkdir()
    (images / "1.png").write_bytes(b"1")
    text = {"prompt_source": "metadata", "prompt_path": str(listed)}
    config = load_config(write_light(tmp_path, remote))
    config.concepts = ConceptConfig.load_all([{"path": str(images), "text": text}])
    listed.write_text(json.dumps({str(images / "1.png"): {"caption": "a cat"}}), "utf-8")
    with pytest.raises(UserError, match="full path") as caught:
        pack(config, "/far", "run-1", {})
    assert caught.value.field == "concepts[0].text.prompt_path"
    assert pack(config, "/far", "run-1", {"concepts[0].text.prompt_path": "/captions.json"}).files
    listed.write_text(json.dumps({"1": {"caption": "a cat"}, "/elsewhere/2": {"caption": "a dog"}}), "utf-8")
    assert listed in pack(config, "/far", "run-1", {}).files.values()


@pytest.mark.parametrize(
    "tags", ["cat, dog", "images", "~mycat, dog", ", ".join(f"a tag of the list {number}" for number in range(40))]
)
def test_special_tags_in_the_setting_itself_stay_as_they_are(tags, tmp_path, remote, monkeypatch):
    concept = {"path": str(tmp_path / "images"), "text": {"tag_dropout_special_tags": tags}}
    config = load_config(write_light(tmp_path, remote, concepts=[concept]))
    monkeypatch.chdir(tmp_path)  # where one of the tags is the name of a folder
    made = pack(config, "/far", "run-1", {})
    (sent,) = made.config.load_concepts()
    assert sent.text.tag_dropout_special_tags == tags
    assert sorted(path.name for path in made.files.values()) == ["a.png", "a.txt", "model.safetensors"]


def test_names_of_the_hub_stay_and_parameters_that_are_files_are_copied(tmp_path, remote):
    (tmp_path / "head.safetensors").write_bytes(b"head")
    reward = {
        "reward": "taste_head",
        "params": {"source": str(tmp_path / "head.safetensors"), "other": "a/b"},
    }
    config = load_config(write_light(tmp_path, remote, base_model_name="owner/model"))
    config.rlhf_rewards = [type(config).from_dict({"__version": 1, "rlhf_rewards": [reward]}).rlhf_rewards[0]]
    made = pack(config, "/far", "run-1", {}).config
    assert made.base_model_name == "owner/model"
    assert made.rlhf_rewards[0].params["other"] == "a/b"
    assert made.rlhf_rewards[0].params["source"].startswith("/far/inputs/run-1/")
    assert config.rlhf_rewards[0].params["source"] == str(tmp_path / "head.safetensors")


def test_only_files_of_the_program_are_copied():
    files = program_files(ROOT)
    assert "scripts/train.py" in files and "constraints.txt" in files
    assert not [name for name in files if name.startswith(("tests/", "docs/", ".")) or "__pycache__" in name]


def test_what_runs_there_needs_python_alone():
    """Of our modules, only those that import the standard library are sent first."""
    assert "modules.runner.launcher" in modules_needed() and "modules.util.owned_files" in modules_needed()
    assert not [
        name for name in modules_needed() if name.startswith(("modules.util.config", "modules.trainer"))
    ]
