"""Files that are no model, tensors without a place, and weights whose shards do not fit together."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.model.lazy_modules import lazy_base_tensors
from modules.util.errors import UserError
from scripts import train
from tests.tiny import factories, tiny_folder, tiny_setup
from tests.trainer.builders import write_config
from tests.weights.test_part_sources import PREFIX, denoiser_file

SD, FLUX = "STABLE_DIFFUSION_15", "FLUX_DEV_1"
State = dict[str, torch.Tensor]
WEIGHTS = "diffusion_pytorch_model.safetensors"


def zeros(*names: str) -> State:
    return {name: torch.zeros(4, 4) for name in names}


OTHERS = {
    "comfy lora": (
        zeros("diffusion_model.blocks.0.qkv.lora_A.weight", "diffusion_model.blocks.0.qkv.lora_B.weight"),
        r"is an adapter \(LoRA\), not a model",
        "lora_model_name",
    ),
    "kohya lora": (
        zeros("lora_unet_mid.lora_down.weight", "lora_unet_mid.lora_up.weight", "lora_unet_mid.alpha"),
        r"is an adapter \(LoRA\)",
        "convert_model.py merge",
    ),
    "loha": (zeros("lora_unet_mid.hada_w1_a", "lora_unet_mid.hada_w1_b"), "is an adapter", "lora_model_name"),
    "diffusers controlnet": (
        zeros("controlnet_blocks.0.weight", "transformer_blocks.0.attn.to_q.weight"),
        "is a ControlNet",
        "base_model_name",
    ),
    "first controlnets": (
        zeros("control_model.zero_convs.0.0.weight", f"{PREFIX}input_blocks.0.0.weight"),
        "is a ControlNet",
        "base_model_name",
    ),
    "controlnet of z-image": (
        zeros("control_layers.0.attention.to_q.weight", "control_all_x_embedder.2-1.weight"),
        "is a ControlNet",
        "base_model_name",
    ),
    "controlnet-lllite": (zeros("lllite_unet_a.down.0.weight"), "is a ControlNet", "base_model_name"),
    "t2i-adapter": (
        zeros("body.0.block1.weight", "body.0.in_conv.weight", "conv_in.weight"), "is a T2I-Adapter", "base_model_name"
    ),
    "t2i-adapter of diffusers": (
        zeros("adapter.body.0.resnets.0.block1.weight", "adapter.body.1.in_conv.bias", "adapter.conv_in.weight"),
        "is a T2I-Adapter",
        "base_model_name",
    ),
    "published autoencoder": (
        zeros("encoder.down.0.block.0.conv1.weight", "decoder.conv_in.weight", "decoder.up.0.block.0.norm1.bias"),
        r"is an autoencoder \(VAE\), not a model",
        "set vae.model_name to it",
    ),
    "autoencoder of wan": (
        zeros("conv1.weight", "encoder.downsamples.0.residual.0.gamma", "decoder.head.2.weight"),
        r"is an autoencoder \(VAE\), not a model",
        "set vae.model_name to it",
    ),
    "clip vision": (zeros("vision_model.embeddings.class_embedding"), "is an image encoder", "has no such part"),
    "open clip": (
        zeros("transformer.resblocks.0.attn.in_proj_weight", "token_embedding.weight", "visual.proj"),
        r"is a text encoder \(CLIP\), not a model",
        "set text_encoder.model_name to it",
    ),
    "language model": (
        zeros("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"),
        r"is a text encoder \(language model\), not a model",
        "has no such part",
    ),
    "redux": (zeros("redux_up.weight", "redux_down.weight"), r"is FLUX\.1 Redux", "base_model_name"),
    "ip adapter": (zeros("image_proj.proj.weight", "ip_adapter.1.to_k_ip.weight"), "IP-Adapter", "family"),
    "embedding": (zeros("emb_params"), "is an embedding", "additional_embeddings"),
    "lcm": (
        zeros(f"{PREFIX}time_embed.cond_proj.weight", f"{PREFIX}time_embed.0.weight"),
        "is an LCM model: it was distilled",
        "train the model it was made from",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("key", [SD, FLUX])
def test_what_is_no_model_is_named_with_what_to_set(key: str, case: str, tmp_path: Path) -> None:
    state, said, remedy = OTHERS[case]
    setup, path = tiny_setup(key), tmp_path / "other.safetensors"
    save_file(state, path)
    part = setup.spec.denoiser
    for base, sources in ((str(path), {}), (str(tiny_folder(key)), {part: str(path)})):
        with pytest.raises(UserError, match=said) as caught:
            setup.load(base, PartDtypes(lazy=True), part_sources=sources)
        assert remedy in str(caught.value.hint)
        assert caught.value.field == (f"{part}.model_name" if sources else "base_model_name")


@pytest.mark.parametrize("key", sorted(factories()))
def test_parts_given_for_each_other_are_named_with_where_they_belong(key: str, tmp_path: Path) -> None:
    """Each text encoder and autoencoder of a family, as its file or its folder, for the denoiser and the others."""
    setup, folder = tiny_setup(key), tiny_folder(key)
    spec = setup.spec
    parts = [part for part in map(spec.part, spec.module_parts) if part.kind in ("vae", "text_encoder")]
    said = re.compile(r"is an? (text encoder|autoencoder) \(.*\), not (a|the) ")
    for given in parts:
        place = folder / given.place
        files = sorted(place.glob("*.safetensors"))
        if given.library == "diffusers" and given.kind == "text_encoder":
            # no other program publishes such a part alone
            continue
        for target in ("", spec.denoiser, *(part.name for part in parts)):
            if target and spec.part(target).classes[0][:4] == given.classes[0][:4]:
                # another of the same kind fits or not by its size
                continue
            field = f"{target}.model_name" if target else "base_model_name"
            for path in (files[0], place):
                base, sources = (str(folder), {target: str(path)}) if target else (str(path), {})
                with pytest.raises(UserError, match=said) as caught:
                    setup.load(base, PartDtypes(lazy=True), part_sources=sources)
                assert caught.value.field == field
                assert re.search(rf"set (\w+\.model_name or )*{given.name}\.model_name", str(caught.value.hint))


@pytest.mark.parametrize(
    ("key", "target", "said", "remedy"),
    [
        (FLUX, "vae", "class FluxTransformer2DModel, not the vae of FLUX", "set transformer.model_name to it"),
        (FLUX, "text_encoder", "not the text_encoder of FLUX", "set transformer.model_name to it"),
        (FLUX, "", "not a whole model", "set transformer.model_name to it; set base_model_name to"),
        ("QWEN", "text_encoder", "class QwenImageTransformer2DModel, not the", "set transformer.model_name to it"),
    ],
)
def test_the_folder_of_a_denoiser_given_for_something_else_is_named(
    key: str, target: str, said: str, remedy: str
) -> None:
    folder = tiny_folder(key)
    place = str(folder / "transformer")
    base, sources = (str(folder), {target: place}) if target else (place, {})
    with pytest.raises(UserError, match=said) as caught:
        tiny_setup(key).load(base, part_sources=sources)
    assert remedy in str(caught.value.hint)
    assert caught.value.field == (f"{target}.model_name" if target else "base_model_name")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"_class_name": "FluxControlNetModel"}, "is a ControlNet, not a model"),
        ({"_class_name": "T2IAdapter"}, "is a T2I-Adapter, not a model"),
        ({"_class_name": "SD3Transformer2DModel"}, "class SD3Transformer2DModel, not a model"),
        ({"model_type": "bert"}, "class bert, not a model"),
    ],
)
def test_a_folder_of_something_else_given_as_the_denoiser_is_named(
    config: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=said) as caught:
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), part_sources={"transformer": str(tmp_path)})
    assert caught.value.field == "transformer.model_name"


def test_a_run_with_an_adapter_for_its_model_ends_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.safetensors"
    save_file(OTHERS["kohya lora"][0], path)
    config = write_config(tmp_path, base_model_name=str(path), max_steps=1)
    assert train.main(["--config-path", str(config)]) == 2
    assert "is an adapter (LoRA), not a model" in capsys.readouterr().err


@pytest.mark.parametrize("lacking", [False, True])
def test_a_wrong_file_or_an_incomplete_folder_is_named_before_anything_else_is_read(
    lacking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a part before the weights of the other parts, and what the folder lacks before that file."""
    path, folder = tmp_path / "other.safetensors", Path(shutil.copytree(tiny_folder(FLUX), tmp_path / "model"))
    save_file(OTHERS["redux"][0], path)
    if lacking:
        shutil.rmtree(folder / "vae")
    unread = "load_overrides" if lacking else "load_from"
    monkeypatch.setattr(f"modules.modelSetup.ModelFamily.{unread}", lambda *_: pytest.fail("it is read"))
    with pytest.raises(UserError, match="the folder vae is missing" if lacking else r"is FLUX\.1 Redux"):
        tiny_setup(FLUX).load(str(folder), part_sources={"transformer": str(path)})


def test_scales_of_blocks_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    state = load_file(path)
    name = next(name for name in state if name.endswith("qkv.weight"))
    layer = name.removesuffix("weight")
    for extra, said in (
        ({f"{layer}weight_scale": torch.ones(4, 4)}, "has 16 numbers for .* kept in blocks"),
        ({f"{layer}weight_scale": torch.ones(4, dtype=torch.float8_e8m0fnu)}, "numbers of the type F8_E8M0"),
        ({f"{layer}weight_scale_inv": torch.ones(1, 1)}, r"unknown \(1\)(.|\n)*weight_scale_inv"),
    ):
        save_file({**state, name: state[name].to(torch.float8_e4m3fn), **extra}, path)
        for dtypes in (PartDtypes(), PartDtypes(lazy=True)):
            with pytest.raises(UserError, match=said) as caught:
                tiny_setup(FLUX).load(str(tiny_folder(FLUX)), dtypes, part_sources={"transformer": str(path)})
            assert "16 bits" in str(caught.value.hint)
            assert caught.value.field == "transformer.model_name"


def test_a_scale_without_a_weight_is_named(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    save_file({**load_file(path), "a_new.scale_weight": torch.ones(())}, path)
    with pytest.raises(UserError, match=r"unknown \(1\)(.|\n)*a_new\.scale_weight"):
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), PartDtypes(lazy=True), part_sources={"transformer": str(path)})


@pytest.mark.parametrize(
    ("leaves", "library"),
    [
        (("weight_scale", "weight_scale_2"), "nvfp4"),
        (("weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4"), "bitsandbytes"),
        (("qweight", "wscales"), "SVDQuant"),
    ],
)
def test_weights_in_4_bits_are_refused_by_their_library(
    leaves: tuple[str, ...], library: str, tmp_path: Path
) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    state = load_file(path)
    layer = next(name for name in state if name.endswith("qkv.weight")).removesuffix("weight")
    save_file({**state, **{layer + leaf: torch.ones(4, 4) for leaf in leaves}}, path)
    with pytest.raises(UserError, match=rf"weights in 4 bits \({library}\)") as caught:
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), PartDtypes(lazy=True), part_sources={"transformer": str(path)})
    assert "in 8 or 16 bits" in str(caught.value.hint)


def test_an_empty_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({}, path)
    with pytest.raises(UserError, match="is empty: it holds no transformer"):
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), PartDtypes(lazy=True), part_sources={"transformer": str(path)})


def test_a_part_below_two_prefixes_is_not_read_in_part(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors", PREFIX)
    save_file({**load_file(path), "diffusion_model.gate.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"has 1 tensor that belongs to no part(.|\n)*diffusion_model\.gate"):
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), PartDtypes(lazy=True), part_sources={"transformer": str(path)})


def test_tensors_of_no_part_are_listed(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors", PREFIX)
    state = load_file(path)
    setup, folder = tiny_setup(FLUX), str(tiny_folder(FLUX))
    save_file({**state, "model_ema.decay": torch.zeros(())}, path)
    setup.load(folder, PartDtypes(lazy=True), part_sources={"transformer": str(path)})
    save_file({**state, "second_model.gate.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"has 1 tensor that belongs to no part(.|\n)*second_model\.gate"):
        setup.load(folder, PartDtypes(lazy=True), part_sources={"transformer": str(path)})


# -- folders ---------------------------------------------------------------------------------------------------


def sharded(folder: Path) -> tuple[Path, list[Path], Path]:
    """A copy of the tiny model with its denoiser in two files, these files, and their index."""
    made = Path(shutil.copytree(tiny_folder(FLUX), folder))
    place = made / "transformer"
    state = load_file(place / WEIGHTS)
    (place / WEIGHTS).unlink()
    names, listed, files = list(state), {}, []
    for number in (1, 2):
        held = names[: len(names) // 2] if number == 1 else names[len(names) // 2 :]
        files.append(place / f"diffusion_pytorch_model-{number:05d}-of-00002.safetensors")
        save_file({name: state[name] for name in held}, files[-1], {"format": "pt"})
        listed |= dict.fromkeys(held, files[-1].name)
    index = place / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": listed}), encoding="utf-8")
    return made, files, index


@pytest.mark.parametrize("apart", [False, True], ids=["with its weight", "in another file"])
def test_weights_of_a_folder_are_multiplied_by_their_scale_wherever_it_is(apart: bool, tmp_path: Path) -> None:
    folder, files, index = sharded(tmp_path / "model")
    listed = json.loads(index.read_text("utf-8"))["weight_map"]
    name = next(name for name, shard in listed.items() if name.endswith("to_q.weight") and shard == files[0].name)
    scale = name.removesuffix("weight") + "weight_scale"
    first, other = load_file(files[0]), load_file(files[1])
    factor = first[name].abs().max() / 448
    first[name] = (first[name] / factor).to(torch.float8_e4m3fn)
    meant = first[name].float() * factor
    (other if apart else first)[scale] = factor
    listed[scale] = files[apart].name
    for path, state in zip(files, (first, other), strict=True):
        save_file(state, path, {"format": "pt"})
    index.write_text(json.dumps({"metadata": {}, "weight_map": listed}), "utf-8")
    setup = tiny_setup(FLUX)
    model = setup.load(str(folder), parts=["transformer"])
    assert torch.equal(model.denoiser.state_dict()[name], meant)
    assert model.weight_files["transformer"] == files[0]
    alone = setup.load(str(tiny_folder(FLUX)), parts=["transformer"], part_sources={"transformer": str(folder)})
    assert torch.equal(alone.denoiser.state_dict()[name], meant)
    stored = setup.load(str(folder), PartDtypes(lazy=True), ["transformer"])
    assert torch.equal(lazy_base_tensors(stored.denoiser)[name].read(), meant)
    # one scale for several numbers of a row
    save_file((other if apart else first) | {scale: torch.ones(7)}, files[apart], {"format": "pt"})
    with pytest.raises(UserError, match=r"has 7 numbers for .* kept in blocks"):
        setup.load(str(folder), PartDtypes(lazy=True), ["transformer"])


def without_one(files: list[Path], index: Path) -> None:
    state = load_file(files[1])
    state.pop(next(iter(state)))
    save_file(state, files[1], {"format": "pt"})


def with_another(files: list[Path], index: Path) -> None:
    save_file({**load_file(files[1]), "a.b.weight": torch.zeros(1)}, files[1], {"format": "pt"})


def elsewhere(files: list[Path], index: Path) -> None:
    index.write_text(index.read_text("utf-8").replace(files[0].name, f"../{files[0].name}"), "utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files, index: files[1].unlink(), r"lacks 1 of 2 files of weights:\s+\S*-00002-of-00002"),
        (without_one, r"-00002-of-00002\.safetensors lacks 1 tensor that its index lists:"),
        (with_another, r"-00002-of-00002\.safetensors holds 1 tensor that its index does not list:\s+a\.b\.weight"),
        (lambda files, index: index.unlink(), r"no diffusion_pytorch_model\.safetensors\.index\.json"),
        (elsewhere, "does not list the tensors of the 2 files"),
    ],
    ids=["missing shard", "missing tensor", "unlisted tensor", "no index", "outside the folder"],
)
def test_shards_that_do_not_fit_together_are_named(
    change: Callable[[list[Path], Path], None], said: str, tmp_path: Path
) -> None:
    folder, files, index = sharded(tmp_path / "model")
    change(files, index)
    for dtypes in (PartDtypes(), PartDtypes(lazy=True)):
        with pytest.raises(UserError, match=said):
            tiny_setup(FLUX).load(str(folder), dtypes, ["transformer"])


def test_the_plain_weights_are_used_where_there_are_halves_too(tmp_path: Path) -> None:
    folder, files, index = sharded(tmp_path / "model")
    place = folder / "transformer"
    listed = json.loads(index.read_text("utf-8"))["weight_map"]
    for path in files:
        twice = {name: 2 * tensor for name, tensor in load_file(path).items()}
        halves = path.name.replace("model-", "model.fp16-")
        save_file(twice, place / halves, {"format": "pt"})
    names = {name: shard.replace("model-", "model.fp16-") for name, shard in listed.items()}
    (place / f"{WEIGHTS}.index.fp16.json").write_text(json.dumps({"weight_map": names}), "utf-8")
    wanted = load_file(tiny_folder(FLUX) / "transformer" / WEIGHTS)
    found = tiny_setup(FLUX).load(str(folder), parts=["transformer"]).denoiser.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("part", ["transformer", "text_encoder_2"])
def test_tensors_that_a_part_in_a_folder_has_no_place_for_are_refused(part: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder(FLUX), tmp_path / "model"))
    path = next((folder / part).glob("*.safetensors"))
    state = load_file(path)
    save_file({**state, "decoder.block.0.weight": torch.zeros(1)}, path, {"format": "pt"})
    if part != "transformer":
        # T5 is published with its decoder
        tiny_setup(FLUX).load(str(folder), parts=[part])
    level = next(name for name in state if "." in name).partition(".")[0]
    save_file({**state, f"{level}.0.gate.weight": torch.zeros(1)}, path, {"format": "pt"})
    for dtypes in (PartDtypes(), PartDtypes(lazy=True)):
        with pytest.raises(UserError, match=rf"has 1 tensor that its config .*\s+{level}\.0\.gate"):
            tiny_setup(FLUX).load(str(folder), dtypes, [part])
