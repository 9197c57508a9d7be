"""What every generator in another program owes: images as asked, adapters handed over, faults named, nothing twice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.generator import HttpClient as http
from modules.generator.ComfyUi import ComfyUi, find_slots, plain_graph
from modules.generator.Generator import ImageRequest
from modules.generator.registry import GENERATORS, make_generator
from modules.util.errors import UserError
from modules.util.image_metadata_util import read_metadata
from scripts import taste
from tests.generator.servers import A1111Server, ComfyServer, Server, SwarmServer, seed_of

REQUESTS = [ImageRequest("a red fox, sitting", seed, "blurry", 64, 48, 3, 4.0) for seed in (5, 700, 9)]


@pytest.fixture(params=[ComfyServer, SwarmServer, A1111Server], ids=lambda kind: kind.KEY)
def server(request, tmp_path, monkeypatch) -> Server:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    (tmp_path / "loras").mkdir()
    return request.param(tmp_path / "loras")


@pytest.fixture
def running(server) -> Iterator[dict[str, Any]]:
    with server.running() as url:
        yield {**server.SETTINGS, "url": url, "lora_folder": str(server.loras)}


def test_every_generator_is_tested():
    assert GENERATORS.keys() == {"own", ComfyServer.KEY, SwarmServer.KEY, A1111Server.KEY}


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


def test_what_is_missing_is_said_before_the_first_image(server, running, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    for settings, request, message in (
        ({"checkpoint": "absent"}, REQUESTS[0], "no model 'absent'"),
        ({}, replace(REQUESTS[0], adapter=tmp_path / "none"), "no adapter file"),
        (
            {"lora_folder": ""},
            replace(REQUESTS[0], adapter=tmp_path / "a.safetensors"),
            "has not got the adapter",
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


class TestComfyUi:
    @pytest.fixture
    def comfy(self, tmp_path, monkeypatch) -> ComfyServer:
        monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
        (tmp_path / "loras").mkdir()
        return ComfyServer(tmp_path / "loras")

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
        def stop(seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("modules.generator.ComfyUi.time.sleep", stop)
        monkeypatch.setattr(ComfyUi, "_is_queued", lambda self: bool(not comfy.deleted))
        comfy.faults.append("lost")
        with comfy.running() as url, pytest.raises(KeyboardInterrupt):
            list(ComfyUi({"url": url, "checkpoint": "sd15.safetensors"}).generate(REQUESTS))
        assert comfy.deleted == ["id-0"]


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
