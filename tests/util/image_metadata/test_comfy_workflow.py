"""Images that carry only what the ComfyUI window saves: boxes are opened, and values without names are no prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.image_metadata.limits import Reason
from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f

Node = dict[str, Any]
BOX = "ef10a538-17cf-46fb-930c-5460c4cf7f0e"


def item(number: int, kind: str, values: Any = (), **more: Any) -> Node:
    return {"id": number, "type": kind, "mode": 0, "widgets_values": values if values != () else [], **more}


def slots(**links: int | None) -> list[Node]:
    return [{"name": name, "link": link} for name, link in links.items()]


def read(
    folder: Path, nodes: list[Node], links: list[Any], **more: Any
) -> tuple[str | None, str | None, int | None]:
    path = folder / "a.png"
    path.write_bytes(f.png(f.text("workflow", json.dumps({"nodes": nodes, "links": links, **more}))))
    about = read_metadata(path)
    return about.prompt, about.negative_prompt, about.seed


SAVE = item(9, "SaveImage", ["name"], inputs=slots(images=1))
SAMPLER = [5, "fixed", 20, 8, "euler", "normal", 1]


def sampled(*texts: Node) -> list[Node]:
    """A plain workflow around its encoders 6 and 7."""
    return [
        SAVE,
        item(8, "VAEDecode", inputs=slots(samples=2)),
        item(3, "KSampler", SAMPLER, inputs=slots(model=None, positive=3, negative=4)),
        *texts,
    ]


LINKS = [[1, 8, 0, 9, 0, "IMAGE"], [2, 3, 0, 8, 0, "LATENT"], [3, 6, 0, 3, 1, "C"], [4, 7, 0, 3, 2, "C"]]
BAD = item(7, "CLIPTextEncode", ["bad"], inputs=slots(clip=None))
FINE = ("a cat", "bad", 5)


@pytest.mark.parametrize(
    "encoder",
    [
        item(6, "CLIPTextEncode", ["a cat"], inputs=slots(clip=None)),
        item(6, "CLIPTextEncodeFlux", ["a cat", "a cat", 3.5]),
        item(6, "CLIPTextEncodeSDXL", [8, 8, 0, 0, 8, 8, "a cat", "a cat"]),
        item(6, "CLIPTextEncodeSDXLRefiner", [6, 8, 8, "a cat"]),
        item(6, "CLIPTextEncodeLumina2", ["superior", "a cat"]),
        item(6, "TextEncodeQwenImageEditPlus", ["a cat"]),
        item(6, "ImpactWildcardEncode", ["a __animal__", "a cat", True, "Select"]),
        item(6, "SomebodysTextEncode", ["a cat"]),
        item(6, "SomebodysTextEncode", ["euler", "a cat, on a mat", "x.safetensors"]),
        item(6, "Odd", {"text": "a cat", "other": "x"}),
        item(
            6, "Odd", [77, "randomize", "a cat"],
            inputs=[{"name": "noise_seed", "widget": {"name": "noise_seed"}}, {"name": "text", "widget": {}}],
        ),
    ],
    ids=lambda one: one["type"],
)  # fmt: skip
def test_texts_of_encoders(encoder: Node, tmp_path: Path) -> None:
    prompt, negative, seed = read(tmp_path, sampled(encoder, BAD), LINKS)
    assert (prompt.removesuffix(", on a mat") if prompt else None, negative, seed) == FINE


@pytest.mark.parametrize(
    "encoder",
    [
        item(6, "CLIPTextEncode", ["SD1.5/V07_v07.safetensors"]),
        item(6, "CLIPTextEncode", ["example/prompt2.txt"]),
        item(6, "Odd", ["a cat on a mat"]),
        item(6, "Prompt Styler", ["sai-anime", "a cat on a mat", "left side, right side"]),
        item(6, "ColorText", ["#000000"]),
        item(6, "Prompt Loader", ["a cat on a mat"]),
        item(6, "Text Select", ["pipe one, pipe two"]),
        item(6, "CLIPTextEncode", [], inputs=slots(text=5)),
    ],
    ids=lambda one: str(one["widgets_values"])[:30],
)
def test_values_without_a_name_and_names_of_files_are_no_prompt(encoder: Node, tmp_path: Path) -> None:
    nodes = [*sampled(encoder, BAD), item(10, "Load Prompt", ["prompts/a.txt", "pipe1", "#fff"])]
    assert read(tmp_path, nodes, [*LINKS, [5, 10, 0, 6, 0, "STRING"]]) == (None, None, None)


@pytest.mark.parametrize(
    ("maker", "prompt"),
    [
        (item(3, "FluxKontextProImageNode", ["a cat here", "1:1", 3, 50, 7, "fixed", False]), "a cat here"),
        (item(3, "UpscalerWithModel", ["4x-model one, best", 7, "nearest"]), None),
        (item(3, "LoadImage", ["a cat on a mat.png", "image"]), None),
        (
            item(
                3, "GPT", ["a cat", 7, "randomize"],
                inputs=[{"name": "prompt", "widget": {}}, {"name": "seed", "widget": {}}],
            ),
            "a cat",
        ),
    ],
    ids=lambda one: one["type"] if isinstance(one, dict) else None,
)  # fmt: skip
def test_nodes_that_make_pictures_by_themselves(maker: Node, prompt: str | None, tmp_path: Path) -> None:
    nodes = [SAVE, {**maker, "outputs": [{"type": "IMAGE"}]}]
    assert read(tmp_path, nodes, [[1, 3, 0, 9, 0, "IMAGE"]])[0] == prompt


def test_what_is_set_under_a_name_is_got_under_it(tmp_path: Path) -> None:
    nodes = [
        *sampled(item(6, "CLIPTextEncode", ["old"], inputs=[{"name": "text", "link": 5, "widget": {}}]), BAD),
        item(10, "GetNode", ["the prompt"], inputs=[]),
        item(11, "SetNode", ["the prompt"], inputs=slots(STRING=6)),
        item(12, "PrimitiveNode", ["a cat", "fixed"]),
        item(13, "SetNode", ["another"], inputs=slots(STRING=7)),
    ]
    links = [*LINKS, [5, 10, 0, 6, 0, "STRING"], [6, 12, 0, 11, 0, "STRING"], [7, 99, 0, 13, 0, "STRING"]]
    assert read(tmp_path, nodes, links) == FINE


def test_a_bypassed_sampler_made_nothing(tmp_path: Path) -> None:
    first, other = item(6, "CLIPTextEncode", ["a cat"]), item(12, "CLIPTextEncode", ["sharp"])
    second = item(10, "KSampler", SAMPLER, mode=4, inputs=slots(positive=6, latent_image=2))
    nodes = [*sampled(first, BAD), other, second]
    nodes[1] = item(8, "VAEDecode", inputs=slots(samples=5))
    assert read(tmp_path, nodes, [*LINKS, [5, 10, 0, 8, 0, "L"], [6, 12, 0, 10, 0, "C"]]) == FINE


def box(**changes: Any) -> dict[str, Any]:
    """The plain workflow in a subgraph, its text given from outside at input 0."""
    inner = sampled(
        item(6, "CLIPTextEncode", ["old"], inputs=[{"name": "text", "link": 5, "widget": {}}]), BAD
    )[1:]
    links = [
        {"id": number, "origin_id": origin, "origin_slot": slot}
        for number, origin, slot, *_ in [*LINKS[1:], [5, -10, 0], [6, 8, 0]]
    ]
    return {
        "id": BOX,
        "name": "Text to Image",
        "nodes": inner,
        "links": links,
        "inputs": [{"name": "text"}],
        "outputs": [{"name": "IMAGE", "linkIds": [6]}],
        **changes,
    }


def outside(**more: Any) -> list[Node]:
    return [SAVE, item(20, BOX, **more)]


FROM_BOX = [[1, 20, 0, 9, 0, "IMAGE"]]


def test_a_subgraph_given_a_link(tmp_path: Path) -> None:
    nodes = [*outside(inputs=slots(text=30)), item(21, "PrimitiveString", ["a cat"])]
    links = [*FROM_BOX, [30, 21, 0, 20, 0, "STRING"]]
    assert read(tmp_path, nodes, links, definitions={"subgraphs": [box()]}) == FINE


@pytest.mark.parametrize(
    "more",
    [
        {"values": ["a cat"], "inputs": [{"name": "text", "link": None, "widget": {"name": "text"}}]},
        {"values": ["a cat", 5], "properties": {"proxyWidgets": [["6", "text"], ["3", "seed"]]}},
    ],
)
def test_a_subgraph_with_fields_of_its_own(more: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, outside(**more), FROM_BOX, definitions={"subgraphs": [box()]}) == FINE


def test_a_subgraph_that_holds_its_text_itself(tmp_path: Path) -> None:
    inner = box(inputs=[], nodes=sampled(item(6, "CLIPTextEncode", ["a cat"]), BAD)[1:])
    more = {"properties": {"proxyWidgets": [["6", "text"], ["3", "seed"]]}}
    assert read(tmp_path, outside(**more), FROM_BOX, definitions={"subgraphs": [inner]}) == FINE


def test_subgraphs_in_subgraphs(tmp_path: Path) -> None:
    outer = {
        "id": "outer",
        "nodes": [item(50, BOX, inputs=slots(text=1))],
        "links": [
            {"id": 1, "origin_id": -10, "origin_slot": 0},
            {"id": 2, "origin_id": 50, "origin_slot": 0},
        ],
        "inputs": [{"name": "words"}],
        "outputs": [{"linkIds": [2]}],
    }
    nodes = [SAVE, item(20, "outer", inputs=slots(words=30)), item(21, "PrimitiveString", ["a cat"])]
    links = [*FROM_BOX, [30, 21, 0, 20, 0, "STRING"]]
    assert read(tmp_path, nodes, links, definitions={"subgraphs": [outer, box()]}) == FINE


def test_subgraphs_without_end_are_refused(tmp_path: Path) -> None:
    inside = [item(n, BOX, inputs=slots(text=5)) for n in range(2)]
    path = tmp_path / "a.png"
    data = {"nodes": outside(), "links": FROM_BOX, "definitions": {"subgraphs": [box(nodes=inside)]}}
    path.write_bytes(f.png(f.text("workflow", json.dumps(data))))
    error = read_metadata(path).error
    assert error is not None
    assert error.startswith(Reason.TEXT_TOO_LARGE.value)


def grouped(values: list[Any], **more: Any) -> tuple[list[Node], dict[str, Any]]:
    """The plain workflow as a group node: encoders 0 and 1, sampler 2, decoder 3."""
    members = [
        {"type": "CLIPTextEncode", "widgets_values": ["old"], "inputs": slots(clip=None), "outputs": [{}]},
        {"type": "CLIPTextEncode", "widgets_values": ["old"], "inputs": slots(clip=None), "outputs": [{}]},
        {
            "type": "KSampler",
            "widgets_values": [0] * 7,
            "inputs": slots(model=None, positive=3, negative=4),
            "outputs": [{}],
        },
        {"type": "VAEDecode", "inputs": slots(samples=2), "outputs": [{}]},
    ]
    links = [[0, 0, 2, 1, 6, "C"], [1, 0, 2, 2, 7, "C"], [2, 0, 3, 0, 3, "LATENT"]]
    group = {"nodes": members, "links": links, "external": []}
    inputs = [{"name": name, "link": None} for name in ("clip", "CLIPTextEncode clip", "model")]
    nodes = [SAVE, item(20, "workflow/My group", values, inputs=inputs, **more)]
    return nodes, {"groupNodes": {"My group": group}}


def test_group_nodes(tmp_path: Path) -> None:
    nodes, extra = grouped(["a cat", "bad", *SAMPLER])
    assert read(tmp_path, nodes, FROM_BOX, extra=extra) == FINE
    nodes[1]["type"] = "workflow>My group"
    assert read(tmp_path, nodes, FROM_BOX, extra=extra) == FINE


def test_group_nodes_whose_values_do_not_fit_say_nothing(tmp_path: Path) -> None:
    nodes, extra = grouped(["a cat", "bad", "#000000", "pipe1", *SAMPLER])
    assert read(tmp_path, nodes, FROM_BOX, extra=extra)[0] is None


def test_an_unknown_box_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, outside(values=["a cat on a mat"]), FROM_BOX)[0] is None
