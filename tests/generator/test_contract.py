"""What every generator in another program owes: images as asked, adapters handed over, faults named, nothing twice."""

from __future__ import annotations

import errno
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from modules.generator.ComfySocket import read_news
from modules.generator.ComfyUi import ComfyUi, faults_of, find_slots, message_of, plain_graph
from modules.generator.Generator import ImageRequest, MakingNews
from modules.generator.registry import GENERATORS, make_generator
from modules.project.Round import Candidate, Round
from modules.ui.texts.home import PROGRAMS
from modules.util.errors import ConfigError, UserError
from modules.util.image_metadata_util import read_metadata
from modules.util.program_files import ROOT
from modules.util.web import HttpClient as http
from scripts import taste
from tests.generator.servers import SERVERS, A1111Server, ComfyServer, Server, SwarmServer, png, seed_of
from tests.usual import usual

REQUESTS = [ImageRequest("a red fox, sitting", seed, "blurry", 64, 48, 3, 4.0) for seed in (5, 700, 9)]


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.KEY)
def server(request, tmp_path, monkeypatch) -> Server:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    (tmp_path / "loras").mkdir()
    return request.param(tmp_path / "loras")


@pytest.fixture
def running(server) -> Iterator[dict[str, Any]]:
    with server.running() as url:
        yield {**server.SETTINGS, "url": url, "lora_folder": str(server.loras)}


def test_every_generator_is_tested_named_in_the_window_and_documented():
    assert {"own", *(server.KEY for server in SERVERS)} == set(GENERATORS), (
        "a server in tests/generator/servers.py"
    )
    assert set(PROGRAMS) == set(GENERATORS), "a name in modules/ui/texts/home.py"
    page = (ROOT / "docs" / "taste.md").read_text(encoding="utf-8")
    table = page.partition("## Where images are made")[2].partition("\n* ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(GENERATORS), "a row in docs/taste.md"


def test_images_are_those_that_were_asked_for(server, running, tmp_path):
    generator = make_generator(server.KEY, running)
    generator.check(REQUESTS)
    made = {image.number: image.data for image in generator.generate(REQUESTS)}
    assert [seed_of(made[i]) for i in range(3)] == [5, 700, 9]
    first = {"prompt": "a red fox, sitting", "negative": "blurry", "seed": 5, "width": 64}
    assert server.asked[0].items() >= first.items() and len(server.asked) == 3
    for number, request in enumerate(REQUESTS):
        (tmp_path / "x.png").write_bytes(made[number])
        about = read_metadata(tmp_path / "x.png")
        assert (about.prompt, about.negative_prompt, about.seed) == (request.prompt, "blurry", request.seed)


def test_an_image_of_the_programs_usual_values_is_read_as_well(server, running, tmp_path):
    """Images of one prompt stay one group, whatever is left to the program."""
    requests = [ImageRequest("a red fox, sitting", seed) for seed in (5, 700)]
    for made in make_generator(server.KEY, running).generate(requests):
        (tmp_path / "x.png").write_bytes(made.data)
        about = read_metadata(tmp_path / "x.png")
        assert (about.prompt, about.seed) == ("a red fox, sitting", requests[made.number].seed)


def test_an_adapter_is_handed_over_once(server, running, tmp_path):
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"weights")
    (server.loras / "adapter.safetensors").write_bytes(b"somebody's own")
    requests = [replace(REQUESTS[0], adapter=adapter, strength=0.5), REQUESTS[1]]
    for _ in range(2):
        generator = make_generator(server.KEY, running)
        generator.check(requests)
        list(generator.generate(requests))
    (name,) = [path for path in server.loras.iterdir() if path.name != "adapter.safetensors"]
    assert name.read_bytes() == b"weights" and name.name.startswith("tastemaker-")
    assert (server.loras / "adapter.safetensors").read_bytes() == b"somebody's own"
    assert [(one["lora"], one["strength"]) for one in server.asked[:2]] == [(name.stem, 0.5), ("", None)]
    assert server.refreshed == (0 if server.KEY == "comfyui" else 1)


def test_an_adapter_that_is_a_link_is_handed_over(server, running, tmp_path):
    (tmp_path / "blob").write_bytes(b"adapter")
    adapter = tmp_path / "linked.safetensors"
    adapter.symlink_to(tmp_path / "blob")
    list(make_generator(server.KEY, running).generate([replace(REQUESTS[0], adapter=adapter)]))
    (file,) = server.loras.glob("*.safetensors")
    assert file.read_bytes() == b"adapter" and not file.is_symlink() and adapter.is_symlink()


@pytest.mark.parametrize(
    ("told", "in_file", "refused"),
    [
        ({"r": 2, "lora_alpha": 8}, False, True),
        ({"r": 2, "lora_alpha": 2}, False, False),
        ({"r": 2, "lora_alpha": 2, "use_rslora": True}, False, True),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {"x": 4}}, False, True),
        ({"r": 2, "lora_alpha": 2, "alpha_pattern": {"x": 4}, "rank_pattern": {"x": 4}}, False, False),
        ({"r": 2, "lora_alpha": 8}, True, False),
    ],
)
def test_an_adapter_with_its_strength_in_another_file_is_not_used_with_a_wrong_one(
    server, running, tmp_path, told, in_file, refused
):
    folder = tmp_path / "peft"
    folder.mkdir()
    adapter = folder / "adapter_model.safetensors"
    tensors = {"base_model.model.x.lora_A.weight": torch.ones(2, 2)}
    save_file(tensors | ({"base_model.model.x.alpha": torch.tensor(8.0)} if in_file else {}), adapter)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **told}))
    generator, request = make_generator(server.KEY, running), replace(REQUESTS[0], adapter=adapter)
    if not refused:
        generator.check([request])
        assert [path.read_bytes() for path in server.loras.iterdir()] == [adapter.read_bytes()]
        return
    for use in (generator.check, lambda requests: list(generator.generate(requests))):
        with pytest.raises(UserError, match=r"wrong strength: it does not read adapter_config\.json") as caught:
            use([request])
        # the file of peft does not name its family
        assert "convert_model.py adapter FILE NEW --to KOHYA_LORA --family FAMILY" in caught.value.hint
    assert not server.asked and not list(server.loras.iterdir())


def test_what_is_missing_is_said_before_the_first_image(server, running, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    for settings, request, message in (
        ({"checkpoint": "absent"}, REQUESTS[0], "no model 'absent'"),
        ({}, replace(REQUESTS[0], adapter=tmp_path / "none"), "no adapter file"),
        (
            {"lora_folder": ""},
            replace(REQUESTS[0], adapter=tmp_path / "a.safetensors"),
            "does not have the adapter",
        ),
        (
            {"lora_folder": str(tmp_path)},
            replace(REQUESTS[0], adapter=tmp_path / "a.safetensors"),
            "does not see",
        ),
    ):
        with pytest.raises(UserError, match=message):
            make_generator(server.KEY, {**running, **settings}).check([request])
    assert not server.asked
    if server.KEY != "swarmui":
        with pytest.raises(UserError, match="no sampler 'x'"):
            make_generator(server.KEY, running).check([replace(REQUESTS[0], sampler="x")])


def test_nobody_there(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UserError, match="cannot be reached") as raised:
        make_generator(server.KEY, {**server.SETTINGS, "url": url}).check(REQUESTS)
    assert url in str(raised.value)


@pytest.mark.parametrize("fault", ["500", "cut", "html", "failed"])
def test_a_fault_ends_it_with_one_message_and_what_was_made_stays(server, running, fault):
    generator = make_generator(server.KEY, running)
    server.faults.extend(["", fault])
    made = []
    stream = generator.generate(REQUESTS)
    made.append(next(stream).number)
    with pytest.raises(UserError) as raised:
        next(stream)
    assert "Traceback" not in str(raised.value) and made == [0]
    if fault == "failed":
        assert "out of memory" in str(raised.value)
    # asked again for what is missing
    rest = list(make_generator(server.KEY, running).generate(REQUESTS[1:]))
    assert [seed_of(image.data) for image in rest] == [700, 9]


def test_reading_is_tried_again_and_making_is_not(server, running):
    server.read_faults.extend(["503", "cut"])
    generator = make_generator(server.KEY, running)
    generator.check(REQUESTS)
    assert len(list(generator.generate(REQUESTS))) == 3
    count = len(server.asked)
    server.faults.append("500")
    with pytest.raises(UserError, match="status 500"):
        list(generator.generate(REQUESTS))
    assert len(server.asked) == count


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://8.8.8.8:1", "outside this computer"),
        ("ftp://127.0.0.1", "not an address"),
        ("x", "not an address"),
    ],
)
def test_other_addresses_are_refused(server, url, message):
    with pytest.raises(UserError, match=message):
        make_generator(server.KEY, {**server.SETTINGS, "url": url})


def test_the_address_may_be_allowed(server):
    assert make_generator(server.KEY, {**server.SETTINGS, "url": "http://8.8.8.8:1", "remote": True})


def test_a_body_without_end_is_cut_off(server, running, monkeypatch):
    monkeypatch.setattr(http, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="more than"):
        make_generator(server.KEY, running).check(REQUESTS)


def edit_graph(used: bool = True) -> dict[str, Any]:
    """A workflow that edits a picture, or loads one without use."""
    graph = plain_graph("sd15.safetensors")
    graph["30"] = {"class_type": "LoadImage", "inputs": {"image": "sub/mine.png"}}
    graph["31"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["30", 0], "vae": ["4", 2]}}
    graph["32"] = {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["6", 0], "latent": ["31", 0]}}
    if used:
        graph["3"]["inputs"]["positive"] = ["32", 0]
    return graph


class TestComfyUi:
    @pytest.fixture
    def comfy(self, tmp_path, monkeypatch) -> ComfyServer:
        monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
        (tmp_path / "loras").mkdir()
        return ComfyServer(tmp_path / "loras")

    @pytest.mark.parametrize(
        ("slots", "message"),
        [
            ({"source2": "30.image"}, "source2 is given without source"),
            ({"source": "3.seed"}, "3.seed does not hold the name of an image file"),
            ({"source": "31.pixels"}, "31.pixels does not hold the name of an image file"),
            ({"source": "30.picture"}, "no input '30.picture'"),
        ],
    )
    def test_slots_that_take_no_image_are_refused(self, slots, message):
        with pytest.raises(ConfigError, match=message):
            ComfyUi({"url": "http://127.0.0.1:1", "workflow": edit_graph(), "slots": slots})

    def test_a_restart_between_two_images(self, comfy):
        comfy.faults.append("lost")
        with comfy.running() as url:
            made = list(ComfyUi({"url": url, "checkpoint": "sd15.safetensors"}).generate(REQUESTS))
        assert [seed_of(image.data) for image in made] == [5, 700, 9]
        assert [one["seed"] for one in comfy.asked] == [5, 5, 700, 9]

    def test_a_refused_workflow_names_the_node(self, comfy):
        with comfy.running() as url, pytest.raises(UserError) as raised:
            list(ComfyUi({"url": url, "checkpoint": "absent.safetensors"}).generate(REQUESTS))
        for part in ("node 4", "CheckpointLoaderSimple", "absent.safetensors"):
            assert part in str(raised.value)

    def test_a_workflow_of_ones_own(self, comfy):
        graph = plain_graph("sd15.safetensors")
        graph["60"] = {"class_type": "Conditioning", "inputs": {"conditioning": ["6", 0]}}
        graph["3"]["inputs"]["positive"] = ["60", 0]
        assert find_slots(graph, {})["prompt"] == ("6", "text")
        with comfy.running() as url:
            list(ComfyUi({"url": url, "workflow": graph}).generate(REQUESTS[:1]))
        assert comfy.asked[0]["prompt"] == "a red fox, sitting" and comfy.asked[0]["negative"] == "blurry"

    def test_a_workflow_that_edits_is_given_the_sources_of_each_request(self, comfy, tmp_path):
        places = [tmp_path / name / "photo.png" for name in ("a", "b")]
        for number, path in enumerate(places):
            path.parent.mkdir()
            path.write_bytes(png(number))
        requests = [replace(REQUESTS[n], sources=(places[n % 2],)) for n in range(3)]
        with comfy.running() as url:
            generator = ComfyUi({"url": url, "workflow": edit_graph()})
            generator.refuse_sources()
            generator.check(requests)
            assert [seed_of(image.data) for image in generator.generate(requests)] == [5, 700, 9]
            with pytest.raises(UserError, match="edits 1 image at once, but a prompt has 2"):
                generator.check([replace(requests[0], sources=tuple(places))])
            for settings in ({"checkpoint": "sd15.safetensors"}, {"workflow": edit_graph(used=False)}):
                with pytest.raises(UserError, match="loads no image that it edits"):
                    ComfyUi({"url": url, **settings}).check(requests)
        assert len(comfy.uploads) == 2, "each is handed over once"
        uploaded = dict(comfy.uploads)
        for asked, request in zip(comfy.asked, requests, strict=True):
            (name,) = asked["images"]
            assert uploaded[name] == request.sources[0].read_bytes()
            assert re.fullmatch(r"tastemaker/[0-9a-f]{32}\.png", name)

    def test_a_place_of_the_source_can_be_told(self, comfy, tmp_path):
        (tmp_path / "photo.png").write_bytes(png(3))
        graph = edit_graph(used=False)
        with comfy.running() as url:
            generator = ComfyUi({"url": url, "workflow": graph, "slots": {"source": "30.image"}})
            list(generator.generate([replace(REQUESTS[0], sources=(tmp_path / "photo.png",))]))
        assert comfy.asked[0]["images"] == [comfy.uploads[0][0]]

    def test_places_that_are_told(self):
        graph = plain_graph("x")
        assert find_slots(graph, {"prompt": "7.text"})["prompt"] == ("7", "text")
        for told, message in (({"seed": "3.nothing"}, "no input"), ({"seed": "99.seed"}, "no input")):
            with pytest.raises(UserError, match=message):
                find_slots(graph, told)
        with pytest.raises(UserError, match="API format"):
            find_slots({"nodes": [], "links": []}, {})
        with pytest.raises(UserError, match="no place for the prompt"):
            find_slots({"1": {"class_type": "x", "inputs": {}}}, {})

    def test_stopping_takes_the_prompt_out_of_the_queue(self, comfy, monkeypatch):
        def stop(self: ComfyUi) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ComfyUi, "_listen", stop)
        comfy.faults.append("lost")
        comfy.running_now.append("id-0")
        with comfy.running() as url, pytest.raises(KeyboardInterrupt):
            list(ComfyUi({"url": url, "checkpoint": "sd15.safetensors"}).generate(REQUESTS))
        assert comfy.deleted == ["id-0"] and comfy.interrupted == 1

    def test_steps_and_previews_come_as_they_are_told(self, comfy):
        news: list[MakingNews] = []
        with comfy.running() as url:
            generator = ComfyUi({"url": url, "checkpoint": "sd15.safetensors"})
            generator.on_news = news.append
            list(generator.generate(REQUESTS))
        assert [(n.number, n.step, n.steps) for n in news if n.step] == [
            (number, step, 2) for number in range(3) for step in (1, 2)
        ]
        assert [seed_of(n.preview) for n in news if n.preview] == [5, 700, 9]
        assert len(comfy.clients) == 1

    def test_a_lost_socket_is_opened_again_under_the_same_name(self, comfy, monkeypatch):
        monkeypatch.setattr("modules.generator.ComfySocket.AGAIN_SECONDS", 0.0)
        comfy.faults.extend(["", "socket"])
        news: list[MakingNews] = []
        with comfy.running() as url:
            generator = ComfyUi({"url": url, "checkpoint": "sd15.safetensors"})
            generator.on_news = news.append
            made = list(generator.generate(REQUESTS))
        assert [seed_of(image.data) for image in made] == [5, 700, 9]
        assert len(comfy.asked) == 3, "nothing is made twice"
        assert len(comfy.clients) == 2 and len(set(comfy.clients)) == 1
        assert (2, 2, 2) in [(n.number, n.step, n.steps) for n in news]

    def test_without_a_socket_images_come_all_the_same(self, comfy, monkeypatch):
        def refused(*arguments, **more):
            raise OSError("refused")

        monkeypatch.setattr("modules.generator.ComfySocket.connect", refused)
        with comfy.running() as url:
            made = list(ComfyUi({"url": url, "checkpoint": "sd15.safetensors"}).generate(REQUESTS[:1]))
        assert seed_of(made[0].data) == 5

    def test_what_was_recorded_is_understood(self, comfy):
        """Messages, a refusal and a finished entry as the real program wrote them."""
        read = [read_news(json.dumps(message)) for message in comfy.recorded_messages]
        said = [one for one in read if one is not None]
        assert [(one.step, one.steps) for one in said if one.step is not None] == [(1, 2), (2, 2)]
        assert sum(one.over for one in said) == 2 and len({one.prompt_id for one in said}) == 1
        refusals = {one["note"]: one["response"] for one in comfy.recorded if one.get("status") == 400}
        assert "absent.safetensors" in faults_of(refusals["a model that is not there"])
        missing = faults_of(refusals["a node that is not installed"])
        assert "NoSuchNode" in missing and "#3" in missing
        (entry,) = next(o["response"] for o in comfy.recorded if o["note"] == "the finished entry").values()
        assert entry["status"]["status_str"] == "success"
        (image,) = entry["outputs"]["9"]["images"]
        assert image == {"filename": "rec_00001_.png", "subfolder": "", "type": "output"}
        (broken,) = next(
            o["response"] for o in comfy.recorded if o["note"] == "the interrupted entry"
        ).values()
        assert broken["status"]["status_str"] == "error" and "interrupted" in message_of(broken)

    @pytest.mark.parametrize(
        "message",
        [b"", b"\0\0\0\1", b"\0\0\0\1\0\0\0\2<html>", b"\0\0\0\4\xff\xff\xff\xff{}", "", "[]", "{", '{"data": 3}',
         '{"type": "progress", "data": {"prompt_id": 4}}', "[" * 100_000],
    )  # fmt: skip
    def test_messages_that_are_none(self, message):
        assert read_news(message) is None

    @pytest.mark.parametrize("value", ["NaN", "1e999", '"2"', "null"])
    def test_a_step_that_is_no_number_is_unknown(self, value):
        said = read_news(f'{{"type": "progress", "data": {{"prompt_id": "a", "value": {value}, "max": 4}}}}')
        assert said is not None and (said.step, said.steps) == (None, 4)


def test_programs_describe_themselves(server, running):
    said = make_generator(server.KEY, running).describe()
    assert said.name and "sd15" in said.models[0] and said.adapters == ()
    assert said.version == {"comfyui": "0.8.0", "swarmui": "0.9.7", "a1111": ""}[server.KEY]
    assert ("euler" in said.samplers) == (server.KEY != "swarmui")


@pytest.mark.parametrize("server", usual(SERVERS, SERVERS[0]), indirect=True, ids=lambda kind: kind.KEY)
def test_a_slow_program_is_waited_for(server, running):
    server.faults.append("slow")
    server.read_faults.append("slow")
    made = list(make_generator(server.KEY, running).generate(REQUESTS[:1]))
    assert seed_of(made[0].data) == 5 and len(server.asked) == 1


def test_cancelling_when_nothing_is_made(server, running):
    make_generator(server.KEY, running).cancel()
    assert not server.asked


def test_a_full_disk_loses_nothing_and_asks_for_no_image_twice(
    server, running, tmp_path, monkeypatch, capsys
):
    """The disk is full at the third image; with room again only what is missing is made."""
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\nfour")
    more = [text for name in ("checkpoint", "url") for text in (f"--{name}", str(running[name]))]
    project = str(tmp_path / "p")
    new = [
        "new",
        project,
        "--base-model",
        "a/model",
        "--prompts",
        str(tmp_path / "prompts.txt"),
        "--generator",
    ]
    assert taste.main([*new, server.KEY, *more]) == 0
    keep, count = Round.keep_image, iter(range(100))

    def full(self: Round, image: Candidate, data: bytes) -> None:
        if next(count) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", image.file)
        keep(self, image, data)

    monkeypatch.setattr(Round, "keep_image", full)
    capsys.readouterr()
    assert taste.main(["generate", project, "--per-prompt", "2"]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "No space left" in said and "Traceback" not in said
    there = {path.name for path in (tmp_path / "p" / "round-1" / "candidates").iterdir()}
    assert len(there) == 2
    assert taste.main(["generate", project, "--per-prompt", "2"]) == 0
    asked = Counter((one["prompt"], one["seed"]) for one in server.asked)
    assert len(asked) == 6 and sum(asked.values()) == 7, "only the image that had no room is asked for again"
    assert not list((tmp_path / "p" / "round-1").glob("preview"))


def test_a_session_of_swarmui_that_ended_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path))
    server = SwarmServer(tmp_path)
    with server.running() as url:
        stream = make_generator("swarmui", {"url": url, "checkpoint": "sd15"}).generate(REQUESTS)
        next(stream)
        server.sessions += 7
        assert len(list(stream)) == 2
    assert len(server.asked) == 3


def test_logins_come_from_the_settings_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path))
    login = {"http://127.0.0.1:1": {"user": "me", "password": "secret", "cookies": {"swarm_token": "t"}}}
    (tmp_path / "generators.json").write_text(json.dumps(login))
    client = http.HttpClient("A1111", "http://127.0.0.1:1")
    assert client._session.auth == ("me", "secret") and client._session.cookies["swarm_token"] == "t"
    assert http.HttpClient("A1111", "http://127.0.0.1:2")._session.auth is None


def test_a_login_is_found_with_or_without_a_slash_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path))
    for written in ("http://127.0.0.1:1", "http://127.0.0.1:1/"):
        (tmp_path / "generators.json").write_text(json.dumps({written: {"token": "abc"}}))
        for url in ("http://127.0.0.1:1", "http://127.0.0.1:1/"):
            assert http.HttpClient("A1111", url).headers() == {"Authorization": "Bearer abc"}


def test_a_project_with_a_program(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    server = A1111Server(tmp_path)
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\nfour")
    with server.running() as url:
        new = ["new", str(tmp_path / "p"), "--base-model", "a/model", "--prompts", str(tmp_path / "prompts.txt"),
               "--generator", "a1111", "--url", url, "--checkpoint", "sd15"]  # fmt: skip
        assert taste.main(new) == 0
        server.faults.extend(["", "", "500"])
        assert taste.main(["generate", str(tmp_path / "p"), "--per-prompt", "2"]) == 2
        assert taste.main(["generate", str(tmp_path / "p"), "--per-prompt", "2"]) == 0
    assert len({(one["prompt"], one["seed"]) for one in server.asked}) == len(server.asked) == 6
