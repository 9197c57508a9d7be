"""Which node of a graph decides: the one that feeds the saved picture, if the graph holds its text at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.curation.intake.scan import FoundImage, ScanFault, scan_images
from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.hazards import node

Graph = dict[str, Any]
_FOLDER = Path(__file__).parents[4] / "shared" / "data" / "comfyui_graphs"
_EXPECTED = _FOLDER / "expected.json"
_RECORDED: dict[str, dict[str, str]] = json.loads(_EXPECTED.read_text("utf-8")) if _EXPECTED.is_file() else {}


def read(folder: Path, graph: Graph) -> tuple[str | None, str | None, int | None]:
    path = folder / "a.png"
    path.write_bytes(f.png(f.text("prompt", json.dumps(graph))))
    about = read_metadata(path)
    return about.prompt, about.negative_prompt, about.seed


@pytest.mark.skipif(not _RECORDED, reason="no recorded graphs next to the project")
@pytest.mark.parametrize("name", sorted(_RECORDED))
def test_recorded_graphs_of_partner_nodes(name: str, tmp_path: Path) -> None:
    graph = json.loads((_FOLDER / name).read_text("utf-8"))
    assert read(tmp_path, graph)[0] == _RECORDED[name]["prompt"]


SAMPLED = {
    "3": node("KSampler", seed=5, steps=20, positive=["6", 0], negative=["7", 0], latent_image=["5", 0]),
    "5": node("EmptyLatentImage", width=8, height=8),
    "6": node("CLIPTextEncode", text="a cat", clip=["4", 1]),
    "7": node("CLIPTextEncode", text="bad", clip=["4", 1]),
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", filename_prefix="x", images=["8", 0]),
}
"""The graph the window starts with."""
SAVED = node("SaveImage", filename_prefix="x", images=["p", 0])


@pytest.mark.parametrize(
    ("maker", "negative", "seed"),
    [
        (
            node("OpenAIDalle3", prompt="a fox", seed=7, quality="hd", style="natural", size="1024x1024"),
            "",
            7,
        ),
        (node("IdeogramV2", prompt="a fox", negative_prompt="dull", aspect_ratio="1:1", seed=7), "dull", 7),
        (node("LumaImageNode", prompt="a fox", model="photon-1", aspect_ratio="16:9", seed=7), "", 7),
        (
            node("RecraftTextToImageNode", prompt="a fox", size="1x1", n=1, seed=7, negative_prompt="dull"),
            "dull",
            7,
        ),
        (node("RunwayTextToImageNode", prompt="a fox", ratio="1920:1080"), "", None),
        (
            node("StabilityStableImageSD_3_5Node", prompt="a fox", model="l", aspect_ratio="1:1", seed=7),
            "",
            7,
        ),
        (node("GeminiImageNode", prompt="a fox", model="gemini-2.5-flash-image", seed=7), "", 7),
        (
            node("ByteDanceSeedreamNode", model="s", **{"model.prompt": "a fox", "model.size": "2K"}, seed=7),
            "",
            7,
        ),
        (node("FluxKontextMaxImageNode", prompt=["t", 0], aspect_ratio="1:1", seed=7), "", 7),
        (node("FluxKontextMaxImageNode", prompt="a fox", seed=7, input_image=["v", 0], steps=50), "", 7),
        (node("OmniGen", prompt_text="a fox", seed=7, width=8, height=8), "", 7),
        (node("BriaReplaceBackground", prompt="a fox", seed=7, image=["v", 0]), "", 7),
    ],
    ids=lambda one: one["class_type"] if isinstance(one, dict) else None,
)
def test_a_node_with_its_own_prompt(maker: Graph, negative: str, seed: int | None, tmp_path: Path) -> None:
    graph = {
        "p": maker,
        "s": SAVED,
        "t": node("PrimitiveString", value="a fox"),
        "v": node("LoadImage", image="x.png"),
    }
    assert read(tmp_path, graph) == ("a fox", negative, seed)
    assert read(tmp_path, {**SAMPLED, **graph}) == ("a fox", negative, seed)


def test_pictures_that_are_only_shown_decide_where_none_is_saved(tmp_path: Path) -> None:
    partner = node("IdeogramV3", prompt="a fox", aspect_ratio="1:1", seed=7)
    shown = {"p": partner, "s": node("PreviewImage", images=["p", 0])}
    assert read(tmp_path, shown)[0] == "a fox"
    assert read(tmp_path, {**SAMPLED, **shown})[0] == "a cat"


def test_a_partner_that_only_enlarges_leaves_the_prompt_to_the_sampler(tmp_path: Path) -> None:
    enlarged = {
        **SAMPLED,
        "9": node("SaveImage", images=["u", 0]),
        "u": node("StabilityUpscaleCreativeNode", image=["8", 0], prompt="", seed=9, aspect_ratio="1:1"),
    }
    assert read(tmp_path, enlarged) == ("a cat", "bad", 5)
    enlarged["u"]["inputs"]["prompt"] = "a fox"
    assert read(tmp_path, enlarged) == ("a fox", "", 9)


PIPED = {
    "easy": {
        "l": node(
            "easy fullLoader", ckpt_name="x.safetensors", vae_name="Baked VAE", clip_skip=-1, lora_name="None",
            resolution="512 x 512", empty_latent_width=8, empty_latent_height=8, positive="a fox",
            positive_token_normalization="none", negative="dull", negative_weight_interpretation="comfy",
        ),
        "q": node("easy preSampling", pipe=["l", 0], steps=20, cfg=8, sampler_name="euler", seed=7, denoise=1),
        "k": node("easy kSampler", pipe=["q", 0], image_output="Preview", link_id=0, save_prefix="ComfyUI"),
        "s": node("SaveImage", images=["k", 1]),
    },
    "easy in one": {
        "l": node("easy fullLoader", ckpt_name="x.safetensors", positive="a fox", negative="dull"),
        "k": node("easy fullkSampler", pipe=["l", 0], steps=20, seed=7, image_output="Save"),
    },
    "easy without steps": {
        "l": node("easy fullLoader", ckpt_name="x.safetensors", positive=["t", 0], negative="dull"),
        "t": node("easy positive", positive="a fox"),
        "k": node("easy kSampler", pipe=["l", 0], image_output="Save", seed=7),
    },
    "tinyterra": {
        "l": node(
            "ttN pipeLoader_v2", ckpt_name="x.safetensors", config_name="", vae_name="Baked VAE", clip_skip=-1,
            loras="", positive="fox", positive_token_normalization="none", negative="dull", seed=3,
            empty_latent_width=8, empty_latent_height=8, prepend_positive=["t", 0],
        ),
        "t": node("ttN text", text="a"),
        "k": node("ttN pipeKSampler_v2", pipe=["l", 0], steps=20, sampler_name="euler", seed=7, image_output="Hide"),
        "s": node("SaveImage", images=["k", 8]),
    },
    "efficient": {
        "l": node(
            "Eff. Loader SDXL", base_ckpt_name="x.safetensors", refiner_ckpt_name="None", vae_name="Baked VAE",
            positive="a fox", negative="dull", token_normalization="none", empty_latent_width=8, batch_size=1,
        ),
        "k": node("KSampler SDXL (Eff.)", noise_seed=7, steps=20, sdxl_tuple=["l", 0], latent_image=["l", 1]),
        "s": node("SaveImage", images=["k", 3]),
    },
    "efficient through a pack": {
        "l": node("Eff. Loader SDXL", positive="a fox", negative="dull", vae_name="Baked VAE"),
        "u": node("Pack SDXL Tuple", sdxl_tuple=["l", 0]),
        "k": node("KSampler SDXL (Eff.)", noise_seed=7, steps=20, sdxl_tuple=["u", 0]),
        "s": node("SaveImage", images=["k", 3]),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PIPED))
def test_loaders_that_put_everything_into_a_pipe(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, PIPED[name]) == ("a fox", "dull", 7)


def written_by(**writer: Any) -> Graph:
    """The plain graph with its text out of another node."""
    return {**SAMPLED, "6": node("CLIPTextEncode", text=["w", 0], clip=["4", 1]), "w": writer}


FOXES = node("CLIPTextEncode", text="a fox, a very long text", clip=["4", 1])
SILENT: dict[str, Graph] = {
    "file of a prompt": written_by(**node("LoadPrompt", text="example/prompt2.txt")),
    "file name as text": {**SAMPLED, "6": node("CLIPTextEncode", text="SD1.5/V07_v07.safetensors", clip=["4", 1])},
    "path as text": {**SAMPLED, "6": node("CLIPTextEncode", text="C:\\models\\a b\\V07.ckpt", clip=["4", 1])},
    "colour as text": {**SAMPLED, "6": node("CLIPTextEncode", text="#00ff00", clip=["4", 1])},
    "address as text": {**SAMPLED, "6": node("CLIPTextEncode", text="https://example.org/a?b=c", clip=["4", 1])},
    "file as own prompt": {"p": node("LumaImageNode", prompt="in/prompts.txt", seed=1), "s": SAVED},
    "language model": written_by(**node("OllamaGenerate", prompt="Describe a fox in detail", model="x")),
    "chat": written_by(**node("OpenAIChatNode", prompt="Describe a fox in detail", seed=3)),
    "caption": written_by(**node("Text Captioner", text="Describe this picture", image=["i", 0])),
    "settings of a model": written_by(**node("X", prompt="Describe a fox", temperature=0.5)),
    "line of a list": written_by(**node("easy promptLine", prompt="a\nb\nc", start_index=1, max_rows=1)),
    "random line": written_by(**node("Random Prompt", text="a\nb")),
    "partly from a model": {
        **SAMPLED,
        "6": node("CLIPTextEncode", text=["j", 0], clip=["4", 1]),
        "j": node("StringConcatenate", string_a="photo of", string_b=["w", 0], delimiter=" "),
        "w": node("GeminiNode", prompt="Describe a fox", model="x"),
    },
    "partner asked by a model": {
        "p": node("LumaImageNode", prompt=["w", 0], seed=1),
        "s": SAVED,
        "w": node("OpenAIChatNode", prompt="Describe a fox in detail", seed=3),
    },
    "unknown text next to another encoder": {**written_by(**node("LLM", text="x")), "x": FOXES},
    "enlarged": {
        "i": node("LoadImage", image="x.png"),
        "u": node("ImageUpscaleWithModel", image=["i", 0], upscale_model=["m", 0]),
        "s": node("SaveImage", images=["u", 0]),
        "x": FOXES,
    },
    "cut out by words": {
        "i": node("LoadImage", image="x.png"),
        "u": node("GroundingDinoSAMSegment (segment anything)", image=["i", 0], prompt="a face", threshold=0.3, seed=1),
        "s": node("SaveImage", images=["u", 0]),
    },
    "words on a picture": {
        "i": node("LoadImage", image="x.png"),
        "u": node("CR Overlay Text", image=["i", 0], text="Happy birthday to you", font_name="a.ttf", size=20),
        "s": node("SaveImage", images=["u", 0]),
    },
    "picture described": {
        "i": node("LoadImage", image="x.png"),
        "u": node("Florence2Run", image=["i", 0], text_input="a face", seed=3, task="caption"),
        "s": node("PreviewImage", images=["u", 0]),
        "t": node("PreviewAny", source=["u", 2]),
    },
    "text in the name of the file": {
        "i": node("LoadImage", image="x.png"),
        "s": node("SaveImage", images=["i", 0], filename_prefix=["w", 0]),
        "w": node("X", prompt="a fox, a very long text", seed=1, size="1x1"),
    },
    "only shown text": {
        "w": node("OllamaGenerate", prompt="Describe a fox", seed=1),
        "t": node("ShowText", text=["w", 0]),
    },
    "two pictures of two texts": {
        **SAMPLED,
        "k": node("KSampler", seed=6, steps=20, positive=["x", 0], negative=["7", 0]),
        "x": FOXES,
        "s": node("SaveImage", images=["k", 0]),
    },
    "two partners of two texts": {
        "p": node("IdeogramV3", prompt="a fox", aspect_ratio="1:1", seed=7),
        "s": SAVED,
        "q": node("IdeogramV3", prompt="a cat", aspect_ratio="1:1", seed=7),
        "t": node("SaveImage", images=["q", 0]),
    },
    "nothing but loaders": {
        "a": node("CheckpointLoaderSimple", ckpt_name="x.safetensors"),
        "b": node("Note", text="hi"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SILENT))
def test_a_graph_that_does_not_say_gives_none(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, SILENT[name]) == (None, None, None)


def test_a_folder_of_silent_graphs_is_a_list_of_reasons(tmp_path: Path) -> None:
    for name, graph in SILENT.items():
        (tmp_path / f"{name}.png").write_bytes(f.png(f.text("prompt", json.dumps(graph))))
    (tmp_path / "says.png").write_bytes(f.png(f.text("prompt", json.dumps(SAMPLED))))
    found = list(scan_images(tmp_path))
    assert [(one.name, one.about.prompt) for one in found if isinstance(one, FoundImage)] == [
        ("says.png", "a cat")
    ]
    faults = {one.path.stem: one.reason for one in found if isinstance(one, ScanFault)}
    assert faults == dict.fromkeys(SILENT, "no prompt found")


def test_one_text_for_two_pictures_has_no_seed_of_its_own(tmp_path: Path) -> None:
    twice = {
        **SAMPLED,
        "k": node("KSampler", seed=6, steps=20, positive=["6", 0], negative=["7", 0]),
        "s": node("SaveImage", images=["k", 0]),
    }
    assert read(tmp_path, twice) == ("a cat", "bad", None)
    twice["k"]["inputs"]["seed"] = 5
    assert read(tmp_path, twice) == ("a cat", "bad", 5)


@pytest.mark.parametrize(
    ("maker", "text"),
    [
        (node("StringReplace", string="a cat", find="cat", replace="fox"), "a fox"),
        (node("StringReplace", string="a fox", find="", replace="x"), "a fox"),
        (node("Any Switch (rgthree)", any_01=["t", 0], any_02=["z", 0]), "a fox"),
        (node("ShowText|pysssss", text=["z", 0], text_0="a fox"), "a fox"),
        (node("Text Multiline", text="a fox"), "a fox"),
    ],
    ids=lambda one: one["class_type"] if isinstance(one, dict) else None,
)
def test_texts_that_nodes_make_of_others(maker: Graph, text: str, tmp_path: Path) -> None:
    graph = written_by(**maker) | {"t": node("PrimitiveString", value="a fox"), "z": node("LLM", prompt="?")}
    assert read(tmp_path, graph)[0] == text
