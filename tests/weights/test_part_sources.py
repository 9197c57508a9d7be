"""Parts of models from files in the layouts they were published in, and from other places than the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.util.errors import UserError
from tests.modelSetup.originals import COMPUTED, LAYOUTS, to_original
from tests.tiny import SIZE, factories, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.usual import usual

FAMILIES = sorted(LAYOUTS.keys() & factories().keys())
PREFIX = "model.diffusion_model."


def unlike(keys: list[str]) -> list[str]:
    """One of the families that have the same class of denoiser, the same published names and the same prediction."""
    found: dict[tuple[object, ...], str] = {}
    for key in keys:
        spec = tiny_setup(key).spec
        found.setdefault((spec.part(spec.denoiser).classes, spec.key_map, spec.prediction), key)
    return list(found.values())


def part_state(key: str, part: str) -> dict[str, torch.Tensor]:
    """The weights of a part of a tiny folder, under the names of diffusers or transformers."""
    state: dict[str, torch.Tensor] = {}
    place = tiny_setup(key).spec.part(part).place
    for path in sorted((tiny_folder(key) / place).glob("*.safetensors")):
        state |= load_file(path)
    return state


def denoiser_file(key: str, path: Path, prefix: str = "", dtype: torch.dtype | None = None) -> Path:
    """The denoiser of a tiny folder as one file in its published layout."""
    state = to_original(part_state(key, tiny_setup(key).spec.denoiser), LAYOUTS[key])
    state |= {name: torch.zeros(shape) for name, shape in COMPUTED.get(key, {}).items()}
    save_file({f"{prefix}{name}": t.to(dtype) if dtype else t for name, t in state.items()}, path)
    return path


def configs_beside(key: str, path: Path, parts: tuple[str, ...]) -> None:
    for part in parts:
        target = path.with_name(f"{path.name}.config") / part
        target.mkdir(parents=True)
        for config in (tiny_folder(key) / part).glob("*config.json"):
            shutil.copy(config, target)


def assert_same(model: Model, other: Model) -> None:
    for name, module in model.modules().items():
        state = other.module(name).state_dict()
        assert state.keys() == module.state_dict().keys()
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, state[key]), f"{name} {key}"


# test_one_file reads back what it writes for the others
@pytest.mark.parametrize(
    "key", usual(FAMILIES, "ANIMA", "FLUX_DEV_1", "HI_DREAM_FULL", "LUMINA_2", "STABLE_DIFFUSION_3")
)
def test_a_denoiser_from_a_file(key: str, tmp_path: Path) -> None:
    """Under its published names, alone and with the prefix that whole models have."""
    setup, folder, model = tiny_setup(key), str(tiny_folder(key)), tiny_model(key)
    denoiser = setup.spec.denoiser
    plain, path = denoiser_file(key, tmp_path / "plain.safetensors"), tmp_path / "denoiser.safetensors"
    save_file({f"{PREFIX}{name}": tensor for name, tensor in load_file(plain).items()}, path)
    assert_same(setup.load(folder, parts={denoiser}, part_sources={denoiser: str(plain)}), model)
    other = setup.load(folder, part_sources={denoiser: str(path), setup.spec.vae: ""})
    assert_same(model, other)
    first, second = (
        images(setup, each, ["a red cat"], seeds=[1], steps=2, size=SIZE) for each in (model, other)
    )
    # where weights lie in memory shows in the last digit
    assert torch.allclose(first, second, atol=1e-5)
    assert other.source == folder and other.denoiser_source == str(path)


@pytest.mark.parametrize("key", ["FLUX_DEV_1", "STABLE_DIFFUSION_35", "SANA"])
def test_files_in_the_names_of_diffusers(key: str) -> None:
    setup, folder = tiny_setup(key), tiny_folder(key)
    sources = {name: str(next((folder / name).glob("*.safetensors"))) for name in setup.spec.module_parts}
    assert_same(tiny_model(key), setup.load(str(folder), part_sources=sources))


def test_files_of_text_encoders_and_autoencoders(tmp_path: Path) -> None:
    """As they come for programs that take every part from a file of its own."""
    from modules.weights.one_file import save_file as save_single_file
    from tests.tiny.stable_diffusion import write_standard_pipeline

    folder = write_standard_pipeline(tmp_path / "model")
    setup = tiny_setup()
    model = setup.load(str(folder))
    whole = load_file(save_single_file(model, tmp_path / "whole.safetensors"))
    vae, clip = tmp_path / "vae.safetensors", tmp_path / "clip_l.safetensors"
    # an autoencoder without the prefix it has in whole models; a text encoder with what belongs to images
    save_file(
        {k.removeprefix("first_stage_model."): t for k, t in whole.items() if k.startswith("first")}, vae
    )
    head = "cond_stage_model.transformer."
    text = {key.removeprefix(head): tensor for key, tensor in whole.items() if key.startswith(head)}
    save_file({**text, "logit_scale": torch.ones(()), "text_projection.weight": torch.ones(2, 2)}, clip)
    sources = {"vae": str(vae), "text_encoder": str(clip), "unet": str(tmp_path / "whole.safetensors")}
    assert_same(model, setup.load(str(folder), part_sources=sources))


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        ("QWEN", ""),
        ("QWEN", "text_encoders.qwen25_7b.transformer."),
        ("Z_IMAGE", ""),
        ("Z_IMAGE", "text_encoders.qwen3_4b.transformer."),
        ("FLUX_2", "text_encoders.qwen3_8b.transformer."),
        ("SANA", "text_encoders.gemma2_2b.transformer."),
    ],
)
def test_language_models_in_the_names_of_their_publishers(key: str, prefix: str, tmp_path: Path) -> None:
    """Which ComfyUI keeps too: layers in ``model``, what reads images next to it."""
    state = part_state(key, "text_encoder")
    plain = ("model.", "lm_head.", "visual.")
    state = {name if name.startswith(plain) else f"model.{name}": t for name, t in state.items()}
    path = tmp_path / "text.safetensors"
    save_file({f"{prefix}{name}": tensor for name, tensor in state.items()}, path)
    setup, folder = tiny_setup(key), str(tiny_folder(key))
    again = setup.load(folder, parts=["text_encoder"], part_sources={"text_encoder": str(path)})
    assert_same(again, tiny_model(key))


def test_parts_from_other_folders(tmp_path: Path) -> None:
    key = "FLUX_DEV_1"
    setup, folder = tiny_setup(key), tiny_folder(key)
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    shutil.rmtree(bare / "text_encoder_2")
    alone = Path(shutil.copytree(folder / "vae", tmp_path / "only-vae"))
    shutil.rmtree(bare / "vae")
    again = setup.load(str(bare), part_sources={"text_encoder_2": str(folder), "vae": str(alone)})
    assert_same(tiny_model(key), again)
    with pytest.raises(UserError) as caught:
        setup.load(str(folder), part_sources={"text_encoder_2": str(bare)})
    assert "text_encoder_2 is missing" in str(caught.value)
    assert caught.value.field == "text_encoder_2.model_name"
    with pytest.raises(UserError, match="does not exist") as caught:
        setup.load(str(folder), part_sources={"vae": str(tmp_path / "nowhere.safetensors")})
    assert caught.value.field == "vae.model_name"


@pytest.mark.parametrize("suffix", usual([".safetensors", ".ckpt"], ".ckpt"))
def test_everything_in_one_file(tmp_path: Path, suffix: str) -> None:
    key = "STABLE_DIFFUSION_3"
    setup, folder = tiny_setup(key), tiny_folder(key)
    path = denoiser_file(key, tmp_path / "model.safetensors", PREFIX)
    state = load_file(path)
    names = {"text_encoder": "clip_l", "text_encoder_2": "clip_g", "text_encoder_3": "t5xxl"}
    for part, name in names.items():
        state |= {f"text_encoders.{name}.transformer.{k}": t for k, t in part_state(key, part).items()}
    if suffix == ".ckpt":
        path = tmp_path / "model.ckpt"
        torch.save({"state_dict": state}, path)
    else:
        save_file(state, path)
    configs_beside(key, path, (*setup.spec.module_parts, "scheduler"))
    with pytest.raises(UserError) as caught:
        setup.load(str(path))
    assert "lacks parts of Stable Diffusion 3: vae, tokenizer_3" in str(caught.value)
    assert (
        "set base_model_name to a diffusers folder or hub name and transformer.model_name to this file"
        in str(caught.value.hint)
    )
    assert "vae.model_name" in str(caught.value.hint)
    assert "only the tokenizer of CLIP comes with this program" in str(caught.value.hint)
    # a folder for one of them has the tokenizers too
    again = setup.load(str(path), part_sources={"vae": str(folder)})
    model = tiny_model(key)
    assert_same(model, again)
    made = [images(setup, each, ["a cat"], seeds=[1], steps=2, size=SIZE) for each in (model, again)]
    assert torch.allclose(made[0], made[1], atol=1e-5)


def test_optional_parts_may_be_absent(tmp_path: Path) -> None:
    key = "STABLE_DIFFUSION_3"
    path = denoiser_file(key, tmp_path / "model.safetensors", PREFIX)
    setup, folder = tiny_setup(key), str(tiny_folder(key))
    configs_beside(key, path, ("transformer",))
    parts = {"vae": folder, "text_encoder": folder, "text_encoder_2": folder}
    model = setup.load(str(path), part_sources=parts)
    assert "text_encoder_3" not in model.parts
    # the scheduler is the one of the published model
    assert model.parts["scheduler"]["shift"] == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_stored_types(tmp_path: Path, dtype: torch.dtype) -> None:
    key = "CHROMA_1"
    setup, folder = tiny_setup(key), str(tiny_folder(key))
    path = denoiser_file(key, tmp_path / "model.safetensors", PREFIX, dtype)
    want = PartDtypes(default=torch.bfloat16)
    model = setup.load(folder, want, {"transformer"}, part_sources={"transformer": str(path)})
    own = tiny_model(key).denoiser.state_dict()
    for name, tensor in model.denoiser.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, own[name].to(dtype).to(torch.bfloat16)), name


def test_a_poisoned_checkpoint_as_part(tmp_path: Path) -> None:
    from tests.model.test_weight_files import Poison

    mark, path = tmp_path / "ran", tmp_path / "transformer.pt"
    torch.save({"a": torch.ones(1), "b": Poison(mark)}, path)
    with pytest.raises(UserError, match="more than weights") as caught:
        tiny_setup("SANA").load(str(tiny_folder("SANA")), part_sources={"transformer": str(path)})
    assert caught.value.field == "transformer.model_name"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("wanted", "given", "label"),
    [
        # both are built alike
        ("FLUX_SCHNELL_1", "FLUX_DEV_1", "FLUX.1 dev or FLUX.1 Kontext dev"),
        ("FLUX_DEV_1", "CHROMA_1", "Chroma1"),
        ("STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35", "Stable Diffusion 3.5"),
        pytest.param("SANA", "PIXART_ALPHA", "PixArt alpha", marks=pytest.mark.slow),
        pytest.param("PIXART_SIGMA", "Z_IMAGE", "Z-Image", marks=pytest.mark.slow),
    ],
)
def test_files_of_other_families_are_named(wanted: str, given: str, label: str, tmp_path: Path) -> None:
    path = denoiser_file(given, tmp_path / "model.safetensors", PREFIX)
    for base, sources in (
        (str(tiny_folder(wanted)), {"transformer": str(path)}),
        (str(path), {}),
    ):
        with pytest.raises(UserError) as caught:
            tiny_setup(wanted).load(base, part_sources=sources)
        assert f"it looks like {label}\n" in str(caught.value)


def test_unknown_and_missing_tensors_are_listed(tmp_path: Path) -> None:
    key = "FLUX_DEV_1"
    path = denoiser_file(key, tmp_path / "model.safetensors")
    state = load_file(path)
    state.pop("double_blocks.0.img_attn.qkv.weight")
    state |= {f"adapter.{index}.weight": torch.zeros(1) for index in range(30)}
    save_file(state, path)
    with pytest.raises(UserError) as caught:
        tiny_setup(key).load(str(tiny_folder(key)), part_sources={"transformer": str(path)})
    text = str(caught.value)
    assert "double_blocks.0.img_attn.qkv.weight" in text
    assert "unknown (30)" in text and text.count("adapter.") == 20 and "and 10 more" in text
    assert "model.safetensors.config/transformer/config.json" in text


def test_a_config_beside_the_file_comes_first(tmp_path: Path) -> None:
    key = "FLUX_DEV_1"
    path = denoiser_file(key, tmp_path / "model.safetensors")
    configs_beside(key, path, ("transformer",))
    config = path.with_name("model.safetensors.config") / "transformer" / "config.json"
    setup, folder = tiny_setup(key), str(tiny_folder(key))
    changed = json.loads(config.read_text()) | {"axes_dims_rope": [8, 4, 4]}
    config.write_text(json.dumps(changed))
    model = setup.load(folder, parts={"transformer"}, part_sources={"transformer": str(path)})
    assert list(model.denoiser.config.axes_dims_rope) == [8, 4, 4]
    config.write_text(json.dumps(changed | {"num_layers": 2}))
    with pytest.raises(UserError, match=r"double_blocks\.1\."):
        setup.load(folder, part_sources={"transformer": str(path)})
    config.write_text("[]")
    with pytest.raises(UserError, match="not a JSON object"):
        setup.load(folder, part_sources={"transformer": str(path)})


def test_several_parts_but_not_the_wanted_one(tmp_path: Path) -> None:
    path = denoiser_file("SANA", tmp_path / "model.safetensors", PREFIX)
    with pytest.raises(UserError, match="several parts of a model, but no text_encoder"):
        tiny_setup("SANA").load(str(tiny_folder("SANA")), part_sources={"text_encoder": str(path)})
