"""ComfyUI workflows of a person's own: each request changes what it should, and nothing else."""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from modules.generator.ComfyUi import ComfyUi, Graph, plain_graph
from modules.generator.Generator import ImageRequest
from modules.util.errors import ConfigError
from scripts import taste
from tests.generator.servers import ComfyServer, png, seed_of

FOX = ImageRequest("a red fox, sitting", 5, "blurry")
PLAIN_FOX = ImageRequest("a red fox, sitting", 5)


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))


def workflow() -> Graph:
    graph = plain_graph("sd15.safetensors")
    graph["6"]["inputs"]["text"], graph["7"]["inputs"]["text"] = "an example", "ugly"
    return graph


def filled(graph: Graph, request: ImageRequest, slots: dict[str, str] | None = None) -> Graph:
    settings: dict[str, Any] = {"url": "http://127.0.0.1:1", "workflow": graph, "slots": slots or {}}
    return ComfyUi(settings).filled(request, "")


def second_pass(graph: Graph, **inputs: Any) -> Graph:
    """The workflow with another sampler that refines the image of the first one."""
    sampler = {**graph["3"]["inputs"], "seed": 77, "steps": 10, "latent_image": ["3", 0], **inputs}
    graph["30"] = {"class_type": "KSampler", "inputs": sampler}
    graph["8"]["inputs"]["samples"] = ["30", 0]
    return graph


@pytest.mark.parametrize("request_", [FOX, PLAIN_FOX], ids=["negative", "no negative"])
def test_the_prompt_stays_where_the_negative_side_is_made_from_it(request_):
    graph = workflow()
    graph["7"] = {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["6", 0]}}
    assert filled(graph, request_)["6"]["inputs"]["text"] == "a red fox, sitting"


def test_each_side_is_found_behind_a_node_that_both_sides_pass():
    graph = workflow()
    sides = {"positive": ["6", 0], "negative": ["7", 0], "control_net": ["41", 0], "strength": 1.0}
    graph["40"] = {"class_type": "ControlNetApplyAdvanced", "inputs": sides}
    graph["3"]["inputs"] |= {"positive": ["40", 0], "negative": ["40", 1]}
    made = filled(graph, FOX)
    assert (made["6"]["inputs"]["text"], made["7"]["inputs"]["text"]) == ("a red fox, sitting", "blurry")


def test_the_negative_prompt_of_a_workflow_stays_where_none_is_asked_for():
    assert filled(workflow(), PLAIN_FOX)["7"]["inputs"]["text"] == "ugly"
    assert filled(workflow(), FOX)["7"]["inputs"]["text"] == "blurry"


def custom() -> Graph:
    """A workflow whose sampler takes steps and scale from other nodes."""
    graph = workflow()
    for name in ("steps", "cfg", "sampler_name"):
        graph["3"]["inputs"].pop(name)
    graph["40"] = {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["6", 0]}}
    graph["3"]["inputs"]["negative"] = ["40", 0]
    graph["50"] = {"class_type": "BasicScheduler", "inputs": {"steps": 20, "model": ["4", 0]}}
    return graph


def test_images_do_not_claim_settings_that_have_no_place_in_the_workflow(tmp_path):
    request = ImageRequest("a red fox", 5, "blurry", 64, 32, 33, 4.0, "euler")
    for slots, steps in (({}, None), ({"steps": "50.steps"}, "33")):
        server = ComfyServer(tmp_path / "loras")
        with server.running() as url:
            comfy = ComfyUi({"url": url, "workflow": custom(), "slots": slots})
            (made,) = comfy.generate([request])
        with Image.open(BytesIO(made.data)) as image:
            text = image.text["parameters"]
        assert "Size: 64x32" in text and "blurry" not in text and "CFG" not in text and "Sampler" not in text
        assert re.findall(r"Steps: (\d+)", text) == ([] if steps is None else [steps])


@pytest.mark.parametrize(("option", "value"), [("steps", "9"), ("cfg", "4"), ("sampler", "euler"), ("negative", "x")])
def test_options_without_a_place_in_the_workflow_are_refused(tmp_path, capsys, option, value):
    (tmp_path / "graph.json").write_text(json.dumps(custom()))
    (tmp_path / "prompts.txt").write_text("a fox\nan owl\nan elk\na cat\n")
    words = ["new", tmp_path / "p", "--base-model", "x/y", "--prompts", tmp_path / "prompts.txt"]
    words += ["--generator", "comfyui"]
    words += ["--workflow", tmp_path / "graph.json", f"--{option}", value]
    assert taste.main([str(word) for word in words]) == 2
    assert f"--{option}: has no effect: no place for it is found in the workflow" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_the_seed_reaches_every_sampler_and_steps_the_first_one():
    request = ImageRequest("a red fox, sitting", 5, steps=33)
    made = filled(second_pass(workflow()), request)
    assert (made["3"]["inputs"]["seed"], made["30"]["inputs"]["seed"]) == (5, 5)
    assert (made["3"]["inputs"]["steps"], made["30"]["inputs"]["steps"]) == (33, 10)


def test_a_second_model_with_the_same_example_is_given_the_same_prompt():
    graph = second_pass(workflow(), positive=["31", 0], negative=["32", 0])
    graph["31"] = {"class_type": "CLIPTextEncode", "inputs": {"text": "an example", "clip": ["33", 1]}}
    graph["32"] = {"class_type": "CLIPTextEncode", "inputs": {"text": "ugly", "clip": ["33", 1]}}
    made = filled(graph, FOX)
    assert [made[key]["inputs"]["text"] for key in ("6", "31")] == ["a red fox, sitting"] * 2
    assert [made[key]["inputs"]["text"] for key in ("7", "32")] == ["blurry"] * 2


def test_model_and_size_are_those_of_the_first_sampler():
    graph = second_pass(workflow(), model=["33", 0])
    graph["33"] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "refiner.safetensors"}}
    graph["34"] = {"class_type": "EmptyLatentImage", "inputs": {"width": 8, "height": 8, "batch_size": 1}}
    settings = {"url": "http://127.0.0.1:1", "workflow": graph, "checkpoint": "mine.safetensors"}
    made = ComfyUi(settings).filled(ImageRequest("a red fox", 5, width=64, height=48), "")
    assert [made[key]["inputs"]["ckpt_name"] for key in ("4", "33")] == ["mine.safetensors", "refiner.safetensors"]
    assert [made[key]["inputs"]["width"] for key in ("5", "34")] == [64, 8]


def test_a_second_pass_with_a_text_of_its_own_keeps_it():
    graph = second_pass(workflow(), positive=["31", 0])
    graph["31"] = {"class_type": "CLIPTextEncode", "inputs": {"text": "a detailed face", "clip": ["4", 1]}}
    made = filled(graph, FOX)
    assert made["6"]["inputs"]["text"] == "a red fox, sitting"
    assert made["31"]["inputs"]["text"] == "a detailed face"


def test_a_place_that_is_told_is_the_only_one():
    made = filled(second_pass(workflow()), FOX, {"seed": "30.seed"})
    assert (made["3"]["inputs"]["seed"], made["30"]["inputs"]["seed"]) == (0, 5)


def test_a_prompt_that_is_told_is_not_replaced_by_the_negative_side():
    graph = workflow()
    assert filled(graph, PLAIN_FOX, {"prompt": "7.text"})["7"]["inputs"]["text"] == "a red fox, sitting"
    assert filled(graph, FOX, {"prompt": "7.text"})["7"]["inputs"]["text"] == "a red fox, sitting"


def adapted(graph: Graph, adapter: str, slots: dict[str, str] | None = None) -> Graph:
    """The workflow for an image with an adapter at 0.7, or for one of the base model."""
    settings: dict[str, Any] = {"url": "http://127.0.0.1:1", "workflow": graph, "slots": slots or {}}
    return ComfyUi(settings).filled(ImageRequest("a red fox", 5, strength=0.7), adapter)


def with_lora() -> Graph:
    graph = workflow()
    loader = {"lora_name": "style.safetensors", "strength_model": 0.9, "strength_clip": 0.8}
    graph["10"] = {"class_type": "LoraLoader", "inputs": {**loader, "model": ["4", 0], "clip": ["4", 1]}}
    graph["3"]["inputs"]["model"] = ["10", 0]
    return graph


def test_the_lora_of_a_workflow_that_is_named_holds_the_adapter_and_does_nothing_without_one():
    told = {"lora": "10.lora_name"}
    mine = adapted(with_lora(), "mine.safetensors", told)
    assert mine.keys() == with_lora().keys()
    assert mine["10"]["inputs"] == {
        "lora_name": "mine.safetensors", "strength_model": 0.7, "strength_clip": 0.7,
        "model": ["4", 0], "clip": ["4", 1],
    }  # fmt: skip
    base = adapted(with_lora(), "", told)["10"]["inputs"]
    assert (base["strength_model"], base["strength_clip"], base["lora_name"]) == (0.0, 0.0, "style.safetensors")


def test_a_lora_that_is_not_named_stays():
    made = adapted(with_lora(), "mine.safetensors")
    assert made["10"]["inputs"]["strength_model"] == 0.9
    (added,) = (made[key]["inputs"] for key in made.keys() - with_lora().keys())
    assert (added["lora_name"], added["model"], made["10"]["inputs"]["model"][0] != "4") == (
        "mine.safetensors", ["4", 0], True,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["6.text", "3.seed"])
def test_a_place_that_takes_no_lora_is_refused(place):
    with pytest.raises(ConfigError, match="is not the name of a LoRA"):
        adapted(with_lora(), "", {"lora": place})


def test_only_loaders_whose_model_makes_images_are_given_the_adapter():
    """The checkpoint gives text encoder and autoencoder; other models find the background."""
    graph = workflow()
    graph["70"] = {"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": "flux.gguf"}}
    graph["80"] = {"class_type": "LoadRembgByBiRefNetModel", "inputs": {"model": "General"}}
    graph["81"] = {"class_type": "GetMaskByBiRefNet", "inputs": {"model": ["80", 0], "images": ["8", 0]}}
    graph["3"]["inputs"]["model"] = ["70", 0]
    made = adapted(graph, "mine.safetensors")
    added = {made[key]["inputs"]["model"][0]: key for key in made if key not in graph}
    assert added.keys() == {"4", "70"} and made["3"]["inputs"]["model"] == [added["70"], 0]
    assert made["6"]["inputs"]["clip"] == [added["4"], 1] and made["81"]["inputs"]["model"] == ["80", 0]


def test_a_loader_of_an_extension_is_given_the_adapter_too():
    """The model of a node that is not ComfyUI's own, behind another node that changes it."""
    graph = workflow()
    graph["70"] = {"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": "flux.gguf"}}
    graph["71"] = {"class_type": "DualCLIPLoader", "inputs": {"clip_name1": "a", "clip_name2": "b"}}
    graph["72"] = {"class_type": "ModelSamplingFlux", "inputs": {"model": ["70", 0], "max_shift": 1.15}}
    graph["73"] = {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}}
    del graph["4"]
    graph["3"]["inputs"]["model"], graph["8"]["inputs"]["vae"] = ["72", 0], ["73", 0]
    graph["6"]["inputs"]["clip"] = graph["7"]["inputs"]["clip"] = ["71", 0]
    made = adapted(graph, "mine.safetensors")
    (added,) = (key for key in made if key not in graph)
    assert made["72"]["inputs"]["model"] == [added, 0] and made["6"]["inputs"]["clip"] == ["71", 0]
    assert made[added] == {
        "class_type": "LoraLoaderModelOnly",
        "inputs": {"lora_name": "mine.safetensors", "strength_model": 0.7, "model": ["70", 0]},
    }


class SavesBoth(ComfyServer):
    """Saves what each pass has made, the first one first."""

    def _finish(self, key: str, seed: int, fault: str) -> None:
        super()._finish(key, seed, fault)
        self.images["first.png"] = png(1)
        first = {"images": [{"filename": "first.png", "subfolder": "", "type": "output"}]}
        self.history[key]["outputs"] = {"90": first, **self.history[key]["outputs"]}


def test_of_several_saved_images_the_last_pass_counts(tmp_path):
    graph = second_pass(workflow())
    graph["89"] = {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}}
    graph["90"] = {"class_type": "SaveImage", "inputs": {"filename_prefix": "first", "images": ["89", 0]}}
    server = SavesBoth(tmp_path)
    with server.running() as url:
        (made,) = ComfyUi({"url": url, "workflow": graph}).generate([PLAIN_FOX])
    assert seed_of(made.data) == 5
