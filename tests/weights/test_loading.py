"""Finding and checking models: one clear error for each way to be wrong."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes, torch_dtype
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.modelSetup.ModelFamily import LoadOptions
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError
from modules.weights.loading import check_folder, find_source, load_tokenizer
from modules.weights.shards import weights_variant
from tests.tiny import tiny_folder, tiny_model, tiny_setup

SPEC = StableDiffusionSetup.spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_folder(), tmp_path / "model"))


def load(path: Path) -> Model:
    return tiny_setup().load(str(path))


def edit(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(data), encoding="utf-8")


def test_a_missing_path_names_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "sd15").mkdir()
    with pytest.raises(UserError, match="does not exist") as caught:
        find_source(str(tmp_path / "sd51"), SPEC)
    assert caught.value.field == "base_model_name"
    assert "sd15" in str(caught.value.hint)


def test_no_name_at_all() -> None:
    with pytest.raises(UserError, match="no base model"):
        find_source("  ", SPEC)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(UserError, match=r"no model_index\.json") as caught:
        load(tmp_path)
    assert "readme.txt" in str(caught.value.hint)


@pytest.mark.parametrize("suffix", [".bin", ".pkl"])
def test_pickles_are_refused_unopened(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"not even a pickle")
    with pytest.raises(UserError, match="pickle"):
        load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="not a model file"):
        load(path)


def test_all_faults_of_a_folder_together(folder: Path) -> None:
    shutil.rmtree(folder / "vae")
    (folder / "text_encoder" / "model.safetensors").unlink()
    (folder / "text_encoder" / "pytorch_model.bin").write_bytes(b"")
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    edit(folder / "model_index.json", unet=["diffusers", "SD3Transformer2DModel"], tokenizer=[None, None])
    assert index["unet"][1] == "UNet2DConditionModel"
    with pytest.raises(UserError) as caught:
        load(folder)
    text = str(caught.value)
    assert "folder vae is missing" in text
    assert "text_encoder holds only pytorch_model.bin, a pickle" in text
    assert "unet is a SD3Transformer2DModel, not a UNet2DConditionModel" in text
    assert "names no tokenizer" in text
    assert "StableDiffusionPipeline" in text


def test_missing_pieces_of_a_part(folder: Path) -> None:
    (folder / "unet" / "config.json").unlink()
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(UserError) as caught:
        check_folder(folder, SPEC, [part.name for part in SPEC.parts])
    assert "unet/config.json is missing" in str(caught.value)
    assert "vae holds no .safetensors weights" in str(caught.value)


def test_truncated_weights(folder: Path) -> None:
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"unet/diffusion_pytorch_model\.safetensors is damaged"):
        load(folder)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), torch.OutOfMemoryError, "CUDA"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            UserError,
            "too little memory to load unet",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), UserError, "too little memory to load unet"),
        (OSError(errno.EIO, "Input/output error"), UserError, "the file may be incomplete"),
        (RuntimeError("invalid header"), UserError, "the file may be incomplete"),
    ],
)
def test_a_full_memory_is_not_called_a_damaged_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[Exception], said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr("diffusers.UNet2DConditionModel.from_pretrained", fail)
    with pytest.raises(kind, match=said) as caught:
        load(folder)
    assert ("incomplete" in said) == ("incomplete" in str(caught.value))


def test_weights_of_another_model(folder: Path) -> None:
    edit(folder / "unet" / "config.json", layers_per_block=2)
    with pytest.raises(UserError, match=r"unet of .* (lacks|cannot be loaded)"):
        load(folder)


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (1024, "is Stable Diffusion 2.x"),
        (2048, "is Stable Diffusion XL"),
        (1280, "is the refiner of Stable Diffusion XL, which is not supported"),
    ],
)
def test_folders_of_later_generations_are_named(width: int, said: str, folder: Path) -> None:
    edit(folder / "unet" / "config.json", cross_attention_dim=width)
    for dtypes in (PartDtypes(), PartDtypes(lazy=True, configs_only=True)):
        with pytest.raises(UserError, match=said) as caught:
            tiny_setup().load(str(folder), dtypes)
    assert width != 2048 or "model_type to STABLE_DIFFUSION_XL_10_BASE" in str(caught.value.hint)


def test_weights_that_lack_a_tensor(folder: Path) -> None:
    weights = folder / "text_encoder" / "model.safetensors"
    state = load_file(weights)
    state.pop("final_layer_norm.weight")
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 weight that"):
        load(folder)


def test_a_hub_name_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = {}

    def offline(name: str, allow_patterns: list[str], token: str | None) -> str:
        asked.update(name=name, patterns=allow_patterns)
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="neither a local folder nor in the local hub cache") as caught:
        find_source("owner/model-1.5", SPEC, ["unet"])
    assert "\n" not in caught.value.message
    assert asked["name"] == "owner/model-1.5"
    assert "unet/*.json" in asked["patterns"] and not any("bin" in p for p in asked["patterns"])


def test_a_hub_name_that_was_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tiny_folder()))
    monkeypatch.chdir(tmp_path)
    assert tiny_setup().load("owner/model").denoiser is not None


def test_a_path_that_looks_like_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        find_source("models/sd15", SPEC)
    with pytest.raises(UserError, match="does not exist"):
        find_source("elsewhere/sd15.safetensors", SPEC)


def test_half_precision_variant_files(folder: Path) -> None:
    for part, stem in (("unet", "diffusion_pytorch_model"), ("text_encoder", "model")):
        (folder / part / f"{stem}.safetensors").rename(folder / part / f"{stem}.fp16.safetensors")
        assert weights_variant(folder / part) == "fp16"
    assert weights_variant(folder / "vae") is None
    assert torch.equal(
        load(folder).denoiser.conv_in.weight,
        load(tiny_folder()).denoiser.conv_in.weight,  # type: ignore[union-attr]
    )


STEMS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}


def add_halves(folder: Path, marked: bool) -> None:
    """Give each part its weights once more in 16 bits; marked, they can be told from the full ones."""
    for part, stem in STEMS.items():
        tensors = {
            name: tensor.half() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(folder / part / f"{stem}.safetensors").items()
        }
        if marked:
            name = min(name for name, tensor in tensors.items() if tensor.is_floating_point())
            tensors[name] = torch.full_like(tensors[name], 7.0)
        save_file(tensors, folder / part / f"{stem}.fp16.safetensors", {"format": "pt"})


def run_of(folder: Path, **types: str) -> Model:
    config = TrainConfig(base_model_name=str(folder))
    config.text_encoder.train = False
    for part, kind in types.items():
        getattr(config, part).weight_dtype = type(getattr(config, part).weight_dtype)(kind)
    return training.load_model(tiny_setup(), config)


def marked_parts(model: Model) -> set[str]:
    return {
        part
        for part in STEMS
        if any(bool((value == 7.0).all()) for value in model.module(part).state_dict().values())
    }


def test_of_two_files_frozen_parts_in_16_bits_are_read_from_the_small_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_halves(folder, marked=True)
    small = {"unet": "FLOAT_16", "vae": "FLOAT_16", "text_encoder": "FLOAT_16"}
    with caplog.at_level(logging.INFO):
        # the denoiser carries the adapter, so it is trained
        assert marked_parts(run_of(folder, **small)) == {"vae", "text_encoder"}
    said = [record.getMessage() for record in caplog.records if "fp16" in record.getMessage()]
    assert len(said) == 3 and sum("fp16.safetensors is read" in line for line in said) == 2
    # what is to be kept more exactly is read from the full one
    assert marked_parts(run_of(folder, **small | {"vae": "FLOAT_32", "text_encoder": "BFLOAT_16"})) == set()
    assert marked_parts(load(folder)) == set()


def test_the_small_file_changes_no_weight_and_its_loss_breaks_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"vae": "FLOAT_16", "text_encoder": "FLOAT_16"}
    before = run_of(folder, **small).fingerprints()
    add_halves(folder, marked=False)
    assert run_of(folder, **small).fingerprints() == before
    # a download of it that was cut short: one of two pieces
    for part, stem in STEMS.items():
        place = folder / part
        (place / f"{stem}.fp16.safetensors").rename(place / f"{stem}.fp16-00001-of-00002.safetensors")
    caplog.clear()
    assert run_of(folder, **small).fingerprints() == before
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    # of the denoiser, which is trained, the full weights would be read anyway
    assert len(said) == 2
    for part, line in zip(("text_encoder", "vae"), sorted(said), strict=True):
        missing = f"{STEMS[part]}.fp16-00002-of-00002.safetensors"
        assert (
            f"{folder / part} lacks {missing} of its fp16 weights. {STEMS[part]}.safetensors is read" in line
        )
        assert line.endswith("Download the missing file again, or delete the fp16 files")


def test_of_variants_alone_the_log_says_which_is_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_halves(folder, marked=True)
    full = folder / "vae" / "diffusion_pytorch_model.safetensors"
    full.rename(full.with_name("diffusion_pytorch_model.non_ema.safetensors"))
    assert marked_parts(load(folder)) == {"vae"}
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "several variants: fp16, non_ema. diffusion_pytorch_model.fp16.safetensors is read" in said[0]
    assert str(folder / "vae") in said[0]


def test_number_types_of_parts() -> None:
    dtypes = PartDtypes(weights={"unet": torch.bfloat16}, default=torch.float32)
    model = tiny_setup().load(str(tiny_folder()), dtypes)
    assert next(model.denoiser.parameters()).dtype == torch.bfloat16
    assert next(model.vae.parameters()).dtype == torch.float32
    assert torch_dtype("BFLOAT_16") == torch.bfloat16
    with pytest.raises(ConfigError, match="INT_3"):
        torch_dtype("INT_3", "unet.weight_dtype")


def test_config_overrules_the_scheduler() -> None:
    setup = tiny_setup()
    model = setup.load(str(tiny_folder()), options=LoadOptions("v_prediction", zero_terminal_snr=True))
    assert model.schedule.prediction == "v_prediction"
    assert float(model.schedule.alphas_cumprod_T[-1]) == 0.0  # type: ignore[attr-defined]


def test_fingerprints_follow_the_content(folder: Path) -> None:
    first, second = tiny_model(), load(folder)
    for part in ("unet", "vae", "text_encoder", "tokenizer"):
        assert first.fingerprint(part) == second.fingerprint(part)
    assert len({first.fingerprint(p) for p in ("unet", "vae", "text_encoder", "tokenizer")}) == 4
    changed = load(folder)
    with torch.no_grad():
        changed.vae.decoder.conv_out.bias[0] += 1e-3  # type: ignore[union-attr, index]
    assert changed.fingerprint("vae") != first.fingerprint("vae")
    assert changed.fingerprint("unet") == first.fingerprint("unet")
    edit(folder / "vae" / "config.json", scaling_factor=0.25)
    assert load(folder).fingerprint("vae") != first.fingerprint("vae")


def test_source_hash_is_of_the_denoiser_on_disk(folder: Path) -> None:
    import hashlib

    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    assert load(folder).source_hash() == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_what_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All a part needs, and weights in half precision only where there are no others."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    repository = {
        "model_index.json",
        "README.md",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "unet/diffusion_pytorch_model.non_ema.safetensors",
        "unet/diffusion_pytorch_model.bin",
        "text_encoder/config.json",
        "text_encoder/model.safetensors.index.json",
        "text_encoder/model-00001-of-00002.safetensors",
        "text_encoder/model-00002-of-00002.safetensors",
        "text_encoder/model.fp16-00001-of-00002.safetensors",
        "text_encoder/model.fp16-00002-of-00002.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "vae/diffusion_pytorch_model.fp16.bin",
        "tokenizer/spiece.model",
        "tokenizer/merges.txt",
        "tokenizer/tokenizer.json",
        "tokenizer/chat_template.jinja",
        "scheduler/scheduler_config.json",
        "safety_checker/config.json",
    }

    def download(name: str, allow_patterns: list[str], token: str | None) -> str:
        for path in filter_repo_objects(sorted(repository), allow_patterns=allow_patterns):
            (tmp_path / "cache" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cache" / path).touch()
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    place = find_source("owner/model", SPEC)
    fetched = {p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()}
    useless = {"README.md", "safety_checker/config.json"}
    useless |= {p for p in repository if p.endswith(".bin") or "non_ema" in p}
    useless |= {p for p in repository if "fp16" in p and not p.startswith("vae/")}
    assert fetched == repository - useless


def sentencepiece_model(words: list[str]) -> bytes:
    """A vocabulary as T5 has it, in the bytes of its protocol buffer: pieces with a score and a kind, the numbers of
    the marks, no normalisation.
    """

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    kinds = [("<pad>", 3), ("</s>", 3), ("<unk>", 2), *((word, 1) for word in words)]
    pieces = [
        field(1, name.encode()) + b"\x15" + struct.pack("<f", -float(place)) + bytes([0x18, kind])
        for place, (name, kind) in enumerate(kinds)
    ]
    minus_one = b"\xff" * 9 + b"\x01"
    marks = b"\x18\x01\xc0\x02\x02\xc8\x02" + minus_one + b"\xd0\x02\x01\xd8\x02\x00"
    return b"".join(field(1, piece) for piece in pieces) + field(2, marks) + field(3, field(1, b"identity"))


def test_a_vocabulary_of_sentencepiece(tmp_path: Path) -> None:
    """T5 comes with ``spiece.model`` alone in PixArt and others."""
    from transformers.models.t5 import T5Tokenizer

    model = sentencepiece_model(["\u2581", "\u2581red", "\u2581circle", "a"])
    (tmp_path / "spiece.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    tokenizer = load_tokenizer(T5Tokenizer, tmp_path)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("red circle").input_ids)
    assert pieces == ["\u2581red", "\u2581circle", "</s>"]


def test_what_bitsandbytes_lacks_for_a_case_of_its_own_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("bitsandbytes.backends.cpu.ops")
    log.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "no kernels")
    log.warning("anything else")
    assert [record.getMessage() for record in caplog.records] == ["anything else"]
