"""ComfyUI graphs: from the sampler to the words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.image_metadata.formats.comfy import is_graph, read_graph
from modules.util.image_metadata.formats.comfy_workflow import read_workflow
from modules.util.image_metadata.formats.found import Found
from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.hazards import cycle, node

Graph = dict[str, Any]


def graph(**nodes: Any) -> Graph:
    """A plain text-to-image graph with nodes added or replaced."""
    base = {
        "k": node("KSampler", seed=5, steps=20, positive=["p", 0], negative=["n", 0], latent_image=["l", 0]),
        "p": node("CLIPTextEncode", text="a cat", clip=["c", 1]),
        "n": node("CLIPTextEncode", text="bad", clip=["c", 1]),
        "l": node("EmptyLatentImage", width=8, height=8),
        "v": node("VAEDecode", samples=["k", 0], vae=["c", 2]),
        "s": node("SaveImage", images=["v", 0]),
    }
    return {**base, **nodes}


def found(data: Graph) -> tuple[str, str, int | None]:
    result = read_graph(data)
    assert isinstance(result, Found)
    assert result.generator == "ComfyUI"
    return result.prompt, result.negative, result.seed


FINE = ("a cat", "bad", 5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "k": node("KSampler", seed=5, steps=20, positive=["g", 0], negative=["n", 0]),
            "g": node("FluxGuidance", conditioning=["p", 0]),
        },
        {"k": node("KSamplerAdvanced", noise_seed=5, steps=20, positive=["p", 0], negative=["n", 0])},
        {
            "k": node(
                "SamplerCustom",
                noise_seed=5,
                positive=["p", 0],
                negative=["n", 0],
                sampler=["x", 0],
                sigmas=["y", 0],
            )
        },
        {
            "k": node(
                "SamplerCustomAdvanced", noise=["r", 0], guider=["g", 0], sampler=["x", 0], sigmas=["y", 0]
            ),
            "r": node("RandomNoise", noise_seed=5),
            "g": node("CFGGuider", positive=["p", 0], negative=["n", 0], cfg=4),
        },
        {
            "k": node("SamplerCustomAdvanced", noise=["r", 0], guider=["g", 0]),
            "r": node("RandomNoise", noise_seed=["q", 0]),
            "q": node("PrimitiveInt", value=5),
            "g": node("DualCFGGuider", cond1=["p", 0], cond2=["n", 0], negative=["n", 0]),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0], clip=["c", 1]),
            "t": node("PrimitiveStringMultiline", value="a cat"),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0]),
            "t": node("Reroute", **{"": ["u", 0]}),
            "u": node("String Literal", string="a cat"),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0]),
            "t": node("ShowText|pysssss", text=["u", 0], text_0="a cat"),
            "u": node("LLM", seed=1),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0]),
            "t": node("ImpactWildcardProcessor", wildcard_text="a __animal__", populated_text="a cat"),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0]),
            "t": node("StringConcatenate", string_a="a", string_b=["u", 0], delimiter=" "),
            "u": node("S", value="cat"),
        },
        {"p": node("CLIPTextEncodeSDXL", text_g="a cat", text_l="a cat", width=8, height=8)},
        {"p": node("CLIPTextEncodeFlux", clip_l="a cat", t5xxl="a cat", guidance=3.5)},
        {"p": node("CLIPTextEncodeFlux", clip_l="", t5xxl="a cat", guidance=3.5)},
        {"p": node("CLIPTextEncodeSD3", clip_l="cat", clip_g="cat", t5xxl="a cat")},
        {"p": node("CLIPTextEncodeLumina2", system_prompt="superior", user_prompt="a cat")},
        {"p": node("TextEncodeQwenImageEdit", prompt="a cat", clip=["c", 0])},
        {
            "k": node("KSampler", seed=5, steps=2, positive=["a", 0], negative=["a", 1]),
            "a": node("ControlNetApplyAdvanced", positive=["p", 0], negative=["n", 0], control_net=["z", 0]),
        },
        {
            "k": node("KSampler", seed=5, steps=2, positive=["a", 0], negative=["a", 1]),
            "a": node("WanImageToVideo", positive=["p", 0], negative=["n", 0], vae=["z", 0]),
        },
        {
            "p": node("GLIGENTextBoxApply", conditioning_to=["q", 0], text="a box"),
            "q": node("CLIPTextEncode", text="a cat"),
        },
        {
            "p": node("ConditioningCombine", conditioning_1=["q", 0], conditioning_2=["q", 0]),
            "q": node("CLIPTextEncode", text="a cat"),
        },
        {
            "k": node("KSampler (Efficient)", seed=5, steps=2, positive=["e", 1], negative=["e", 2]),
            "e": node("Efficient Loader", positive="a cat", negative="bad"),
        },
        {
            "k": node("KSampler (Efficient)", seed=5, steps=2, positive=["e", 1], negative=["e", 2]),
            "e": node("Efficient Loader", positive=["t", 0], negative=["u", 0], ckpt_name="x"),
            "t": node("PrimitiveString", value="a cat"),
            "u": node("StringConcatenate", string_a="ba", string_b="d", delimiter=""),
        },
        {
            "k": node(
                "KSampler (Efficient)",
                seed=5,
                steps=2,
                positive=["j", 1],
                negative=["j", 2],
                latent_image=["j", 3],
            ),
            "j": node("KSampler (Efficient)", seed=5, steps=2, positive=["p", 0], negative=["n", 0]),
        },
        {
            "k": node(
                "XlabsSampler", noise_seed=5, steps=2, conditioning=["p", 0], neg_conditioning=["n", 0]
            ),
        },
        {
            "k": node("WanVideoSampler", seed=5, steps=2, text_embeds=["e", 0], image_embeds=["i", 0]),
            "e": node("WanVideoTextEncode", positive_prompt="a cat", negative_prompt="bad"),
        },
        {
            "p": node("CLIPTextEncodeSDXL", text_g=["t", 2], text_l=["t", 2]),
            "t": node("LoraTagLoader", text=["u", 0], model=["m", 0], clip=["m", 1]),
            "u": node("SDXLPromptStyler", text_positive="a cat", text_negative="bad"),
        },
        {
            "k": node("KSamplerPipe", seed=5, steps=2, basic_pipe=["b", 0]),
            "b": node("ToBasicPipe", model=["m", 0], positive=["p", 0], negative=["n", 0]),
        },
        {
            "k": node("easy kSampler", seed=5, steps=2, pipe=["b", 0]),
            "b": node("easy preSampling", pipe=["e", 0]),
            "e": node("easy fullLoader", positive="a cat", negative="bad"),
        },
        {
            "p": node("CLIPTextEncode", text=["t", 0]),
            "n": node("CLIPTextEncode", text=["t", 1]),
            "t": node("SDXLPromptStyler", text_positive="a cat", text_negative="bad", style="x"),
        },
        {
            "p": node("ConditioningSwitch", select=2, input1=["n", 0], input2=["q", 0]),
            "q": node("CLIPTextEncode", text="a cat"),
        },
    ],
)
def test_ways_to_the_words(changes: Graph) -> None:
    assert found(graph(**changes)) == FINE


def test_two_texts_are_joined_in_order() -> None:
    changes = {
        "p": node("ConditioningConcat", conditioning_to=["q", 0], conditioning_from=["r", 0]),
        "q": node("CLIPTextEncode", text="a cat"),
        "r": node("CLIPTextEncode", text="on a mat"),
    }
    assert found(graph(**changes))[0] == "a cat, on a mat"


def test_different_heads_keep_both_texts() -> None:
    changes = {"p": node("CLIPTextEncodeFlux", clip_l="cat, mat", t5xxl="a cat sits on a mat")}
    assert found(graph(**changes))[0] == "a cat sits on a mat, cat, mat"


def test_a_zeroed_negative_side_is_empty() -> None:
    assert found(graph(n=node("ConditioningZeroOut", conditioning=["p", 0]))) == ("a cat", "", 5)


def test_a_basic_guider_has_no_negative_side() -> None:
    changes = {
        "k": node("SamplerCustomAdvanced", guider=["g", 0]),
        "g": node("BasicGuider", conditioning=["p", 0]),
    }
    assert found(graph(**changes)) == ("a cat", "", None)


def test_the_first_sampler_of_a_chain_says_what_is_in_the_picture() -> None:
    changes = {
        "0": node("KSampler", seed=9, steps=2, positive=["q", 0], negative=["n", 0], latent_image=["k", 0]),
        "q": node("CLIPTextEncode", text="sharp details"),
        "v": node("VAEDecode", samples=["0", 0]),
    }
    assert found(graph(**changes)) == FINE


def test_a_detailer_is_asked_last() -> None:
    changes = {
        "0": node("FaceDetailer", seed=9, steps=2, image=["v", 0], positive=["q", 0], negative=["n", 0]),
        "q": node("CLIPTextEncode", text="a detailed face, very long text"),
        "s": node("SaveImage", images=["0", 0]),
    }
    assert found(graph(**changes)) == FINE


def test_a_sampler_that_made_nothing_is_asked_last() -> None:
    changes = {
        "0": node("KSampler", seed=9, steps=2, positive=["q", 0], negative=["n", 0]),
        "q": node("CLIPTextEncode", text="left over"),
    }
    assert found(graph(**changes)) == FINE


def test_without_a_sampler_the_longest_text_that_is_not_negative() -> None:
    data = {
        "a": node("CLIPTextEncode", text="a cat"),
        "b": {
            **node("CLIPTextEncode", text="bad, worse, the worst there is"),
            "_meta": {"title": "Negative"},
        },
        "c": node("ControlNetApplyAdvanced", negative=["d", 0], positive=["a", 0]),
        "d": node("CLIPTextEncode", text="also bad, and very long"),
        "e": node("LoadImage", image="some very long file name that is no prompt.png"),
    }
    assert found(data) == ("a cat", "", None)


def test_a_graph_that_runs_in_circles_ends_with_a_text() -> None:
    assert found(cycle())[0] == "a good cat"


@pytest.mark.parametrize(
    "data",
    [
        graph(
            p=node("CLIPTextEncode", text=["k", 0]), k=node("KSampler", positive=["k", 0], seed=1, steps=2)
        ),
        graph(p=node("CLIPTextEncode", text=["p", 0])),
        graph(p=node("Reroute", **{"": ["p", 0]})),
        graph(g=node("X", guider=["g", 0]), k=node("KSampler", seed=["k", 0], steps=1, guider=["g", 0])),
        {"1": {"class_type": "X", "inputs": []}, "2": {"class_type": 5, "inputs": {"a": [[], 0]}}},
    ],
)
def test_odd_graphs_end(data: Graph) -> None:
    result = read_graph(data)
    assert result is None or isinstance(result, Found)


def test_a_zeroed_positive_side_falls_back_on_the_longest_text() -> None:
    changes = {
        "k": node("KSampler", seed=5, steps=2, positive=["z", 0], negative=["n", 0]),
        "z": node("ConditioningZeroOut", conditioning=["p", 0]),
    }
    assert found(graph(**changes)) == FINE


def test_empty_texts_are_an_empty_prompt_and_no_texts_are_none() -> None:
    empty = node("CLIPTextEncode", text="")
    assert found(graph(p=empty)) == ("", "bad", 5)
    assert found(graph(p=empty, x=node("CLIPTextEncode", text="not connected"))) == ("", "bad", 5)
    lost = node("CLIPTextEncode", text=["LLM", 0])
    assert read_graph(graph(p=lost, x=node("CLIPTextEncode", text="something"))) is None
    video = {
        "k": node("KSampler", seed=5, steps=2, positive=["c", 0], negative=["c", 1]),
        "c": node("SVD_img2vid_Conditioning", clip_vision=["x", 0], init_image=["i", 0]),
        "i": node("LoadImage", image="cat.png"),
    }
    assert read_graph(video) is None


def test_a_graph_without_words_is_none() -> None:
    assert (
        read_graph({"1": node("LoadImage", image="x.png"), "2": node("SaveImage", images=["1", 0])}) is None
    )
    assert not is_graph({"nodes": []})
    assert not is_graph([])


def workflow(**changes: Any) -> Graph:
    """What the window saves of the plain graph."""
    return {
        "nodes": [
            {
                "id": 1,
                "type": "KSampler",
                "inputs": [{"name": "positive", "link": 10}, {"name": "negative", "link": 11}],
                "widgets_values": [5, "fixed", 20],
            },
            {
                "id": 2,
                "type": "FluxGuidance",
                "inputs": [{"name": "conditioning", "link": 12}],
                "widgets_values": [3.5],
                **changes,
            },
            {
                "id": 3,
                "type": "CLIPTextEncode",
                "inputs": [{"name": "clip", "link": 99}],
                "widgets_values": ["a cat"],
            },
            {"id": 4, "type": "CLIPTextEncode", "inputs": [], "widgets_values": ["bad"]},
        ],
        "links": [
            [10, 2, 0, 1, 0, "CONDITIONING"],
            [11, 4, 0, 1, 1, "CONDITIONING"],
            {"id": 12, "origin_id": 3, "origin_slot": 0},
            "junk",
            [1],
        ],
    }


@pytest.mark.parametrize(
    "changes", [{}, {"mode": 4}, {"inputs": [{"name": "conditioning", "link": 12, "widget": None}]}]
)
def test_what_the_window_saves(changes: Graph) -> None:
    result = read_workflow(workflow(**changes))
    assert result is not None
    assert (result.prompt, result.negative, result.seed) == FINE


def test_named_widgets() -> None:
    data = workflow()
    data["nodes"][2] = {
        "id": 3,
        "type": "Odd",
        "inputs": [
            {"name": "style", "widget": {"name": "style"}},
            {"name": "text", "widget": {"name": "text"}},
        ],
        "widgets_values": ["photo", "a cat"],
    }
    result = read_workflow(data)
    assert result is not None
    assert result.prompt == "a cat"


def test_the_graph_is_asked_before_the_window(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(
        f.png(
            f.text("workflow", json.dumps(workflow())),
            f.text("prompt", json.dumps(graph(p=node("CLIPTextEncode", text="run")))),
        )
    )
    assert read_metadata(path).prompt == "run"
    path.write_bytes(f.png(f.text("workflow", json.dumps(workflow())), f.text("prompt", "{broken")))
    assert read_metadata(path).prompt == "a cat"


@pytest.mark.parametrize("prefix", ["prompt:", "Prompt: "])
@pytest.mark.parametrize("tag", [0x010F, 0x0110, 0x010E])
def test_comfyui_in_exif(prefix: str, tag: int, tmp_path: Path) -> None:
    exif = f.tiff({tag: (prefix + json.dumps(graph())).encode() + b"\0"})
    path = tmp_path / "a.webp"
    path.write_bytes(f.webp((b"EXIF", exif)))
    about = read_metadata(path)
    assert (about.prompt, about.negative_prompt, about.seed, about.generator) == (*FINE, "ComfyUI")
    path.write_bytes(f.webp((b"EXIF", f.tiff({tag: b"Workflow:" + json.dumps(workflow()).encode()}))))
    assert read_metadata(path).prompt == "a cat"
