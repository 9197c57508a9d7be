"""An import trains what the OneTrainer config would have trained, says what it cannot, or writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.config.foreign.Notes import Note
from modules.util.config.load import check_config, find_problems, load_config, load_layered
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import ModelFormat, Optimizer
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UserError
from scripts import import_config as script
from tests.util.config.onetrainer.reading import import_onetrainer

LISTS = {"concepts": [], "samples": []}
THEIR_FAMILIES = (
    "STABLE_DIFFUSION_20_DEPTH", "WUERSTCHEN_2", "STABLE_CASCADE_1", "FLUX_FILL_DEV_1", "HUNYUAN_VIDEO",
)  # fmt: skip
THEIR_OPTIMIZERS = ("LION_ADV_8BIT", "PRODIGY_NEW", "SOMETHING")


def load(folder: Path, **data: Any) -> tuple[TrainConfig, list[Note]]:
    path = folder / "onetrainer.json"
    path.write_text(json.dumps({"__version": 11, **LISTS, **data}), encoding="utf-8")
    return import_onetrainer(path)


def run(folder: Path, *options: str, **data: Any) -> int:
    """The command line on such a config; the target is ``out.json``."""
    (folder / "in.json").write_text(json.dumps({"__version": 11, **LISTS, **data}), encoding="utf-8")
    return script.main([str(folder / "in.json"), str(folder / "out.json"), *options])


def lines(notes: list[Note], field: str) -> list[str]:
    return [note for note in notes if note.startswith(field)]


@pytest.mark.parametrize(
    ("field", "data"),
    [
        *(("model_type", {"model_type": name}) for name in (*THEIR_FAMILIES, "", 5, None)),
        *(("training_method", {"training_method": name}) for name in ("FINE_TUNE_VAE", None)),
        ("training_method", {"training_method": "EMBEDDING", "model_type": "QWEN"}),
        *(("optimizer.optimizer", {"optimizer": {"optimizer": name}}) for name in (*THEIR_OPTIMIZERS, "", None)),
        ("peft_type", {"training_method": "LORA", "peft_type": "VERA"}),
        ("optimizer", {"optimizer": 5}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_offered_is_refused_and_nothing_is_written(
    field: str, data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, **data) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{field}: ")
    assert second.strip().startswith("->")
    assert third == "nothing was written"
    assert not (tmp_path / "out.json").exists()


def test_all_that_is_not_offered_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(
            tmp_path,
            model_type="HUNYUAN_VIDEO",
            training_method="FINE_TUNE_VAE",
            optimizer={"optimizer": "PRODIGY_NEW"},
        )
    text = str(caught.value)
    assert "asks for 3 things" in text
    assert '"HUNYUAN_VIDEO"' in text
    assert '"FINE_TUNE_VAE"' in text
    assert '"PRODIGY_NEW"' in text
    assert "nearest: PRODIGY;" in text


def test_values_of_the_wrong_kind_are_named_with_what_is_not_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"learning_rate": "abc", "epochs": [3], "unet": {"train": "yes", "stop_training_after": "7"}}
    assert run(tmp_path, optimizer={"optimizer": "SOMETHING"}, **wrong) == 2
    said = capsys.readouterr().err
    assert "4 values that cannot be imported" in said
    for line in (
        'optimizer.optimizer: the optimizer "SOMETHING" is not supported',
        'learning_rate: must be a number, not "abc"',
        "epochs: must be a number, not [3]",
        'unet.train: must be true or false, not "yes"',
    ):
        assert line in said
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("family", [one.value for one in ModelType])
def test_offered_families_are_imported(family: str, tmp_path: Path) -> None:
    config, _ = load(tmp_path, model_type=family, training_method="LORA")
    assert config.model_type.value == family


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("INT_W8A8", "INT_8"),
        ("INT_W8A8_COMPRESSED", "INT_8"),
        ("FLOAT_W8A8", "FLOAT_8"),
        ("FLOAT_W8A8_COMPRESSED", "FLOAT_8"),
        ("GGUF", "NFLOAT_4"),
        ("GGUF_A8_FLOAT", "NFLOAT_4"),
        ("GGUF_A8_INT", "NFLOAT_4"),
        ("TFLOAT_32", "FLOAT_32"),
        ("INT_8", "INT_8"),
        ("NFLOAT_4", "NFLOAT_4"),
    ],
)
def test_number_formats_of_weights(theirs: str, ours: str, tmp_path: Path) -> None:
    config, notes = load(
        tmp_path,
        model_type="FLUX_DEV_1",
        training_method="LORA",
        transformer={"weight_dtype": theirs},
        text_encoder_2={"weight_dtype": theirs, "train": False},
    )
    assert (config.transformer.weight_dtype, config.text_encoder_2.weight_dtype) == (ours, ours)
    said = lines(notes, "transformer, text_encoder_2.weight_dtype")
    assert bool(said) is (theirs not in ("TFLOAT_32", "INT_8", "NFLOAT_4"))
    assert all(ours in line for line in said)


@pytest.mark.parametrize("name", ["ADAMW_8BIT", "ADAM_8BIT", "LION_8BIT"])
def test_optimizers_of_8_bits_are_carried(name: str, tmp_path: Path) -> None:
    given = {
        "optimizer": name,
        "beta1": 0.9,
        "min_8bit_size": 8192,
        "percentile_clipping": 100,
        "block_wise": True,
    }
    config, notes = load(tmp_path, optimizer=given)
    assert config.optimizer.optimizer is Optimizer[name]
    assert config.optimizer.params == {"min_8bit_size": 8192}
    assert lines(notes, "optimizer") == []


@pytest.mark.parametrize("limit", ["inf", "Infinity", float("inf")])
def test_an_infinite_norm_is_no_clipping(tmp_path: Path, limit: object) -> None:
    config, notes = load(tmp_path, clip_grad_norm=limit)
    assert (config.clip_grad_norm, lines(notes, "clip")) == (0.0, [])
    optimizer = {"optimizer": "ADAMW", "fused_back_pass": True}
    config, _ = load(tmp_path, optimizer=optimizer, clip_grad_norm=limit, train_dtype="BFLOAT_16")
    assert (config.optimizer.fused_back_pass, config.clip_each_weight) == (True, False)


def test_the_step_in_the_backward_pass_is_carried_where_it_goes(tmp_path: Path) -> None:
    optimizer = {"optimizer": "ADAMW", "fused_back_pass": True}
    config, notes = load(tmp_path, optimizer=optimizer, clip_grad_norm=0.0, train_dtype="BFLOAT_16")
    assert config.optimizer.fused_back_pass is True
    assert lines(notes, "optimizer") == []
    assert config.clip_each_weight is False
    # its clipping limits each weight alone, because it never has all gradients together
    config, notes = load(tmp_path, optimizer=optimizer, train_dtype="BFLOAT_16")
    assert (config.optimizer.fused_back_pass, config.clip_grad_norm, config.clip_each_weight) == (
        True,
        1.0,
        True,
    )
    assert lines(notes, "optimizer") + lines(notes, "clip") == []
    check_config(config)
    config, notes = load(tmp_path, optimizer=optimizer, gradient_accumulation_steps=2)
    assert config.optimizer.fused_back_pass is False
    (note,) = lines(notes, "optimizer.fused_back_pass")
    assert not note.changes_weights
    check_config(config)


def test_compiling_and_attention_become_accelerators(tmp_path: Path) -> None:
    config, notes = load(
        tmp_path,
        model_type="FLUX_DEV_1",
        training_method="LORA",
        compile=True,
        attention_mechanism="XFORMERS",
    )
    assert [(one.name, one.params) for one in config.acceleration.shared] == [
        ("attention_backend", {"backend": "xformers"}),
        ("torch_compile", {}),
    ]
    assert lines(notes, "compile") + lines(notes, "attention") == []
    config, notes = load(tmp_path, attention_mechanism="XFORMERS")
    assert config.acceleration.shared == []
    assert len(lines(notes, "attention_mechanism")) == 1
    for usual in ("SDP", "DEFAULT"):
        config, notes = load(tmp_path, attention_mechanism=usual)
        assert config.acceleration.shared == []
        assert lines(notes, "attention_mechanism") == []


@pytest.mark.parametrize("name", ["ORIGINAL_SINGLE_FILE", "ORIGINAL_TRANSFORMER", "LEGACY_SAFETENSORS"])
def test_formats_of_one_file_stay_one_file(name: str, tmp_path: Path) -> None:
    config, notes = load(tmp_path, output_model_format=name)
    assert config.output_model_format is ModelFormat.SAFETENSORS
    assert lines(notes, "output_model_format") == []


@pytest.mark.parametrize(
    ("kind", "size", "rank"),
    [
        ("LORA", {"lora_rank": 8, "oft_block_size": 64, "lokr_dim": 99}, 8),
        ("LOHA", {"lora_rank": 8, "oft_block_size": 64, "lokr_dim": 99}, 8),
        ("OFT_2", {"lora_rank": 8, "oft_block_size": 64}, 64),
        ("OFT_2", {"lora_rank": 8}, 32),
        ("LOKR", {"lora_rank": 8, "lokr_dim": 99}, 99),
        ("LOKR", {"lora_rank": 8}, 16),
    ],
)
def test_the_size_of_an_adapter(kind: str, size: dict[str, int], rank: int, tmp_path: Path) -> None:
    config, notes = load(tmp_path, training_method="LORA", peft_type=kind, **size)
    assert config.lora_rank == rank
    assert lines(notes, "oft_") + lines(notes, "lokr_") + lines(notes, "lora_rank") == []


def test_what_only_some_adapters_have_is_noted_for_them_alone(tmp_path: Path) -> None:
    data = {"training_method": "LORA", "lokr_decompose_factor": 8, "oft_scaled": True}
    assert lines(load(tmp_path, **data)[1], "lokr_") + lines(load(tmp_path, **data)[1], "oft_") == []
    assert len(lines(load(tmp_path, peft_type="LOKR", **data)[1], "lokr_decompose_factor")) == 1
    assert len(lines(load(tmp_path, peft_type="OFT_2", **data)[1], "oft_scaled")) == 1


@pytest.mark.parametrize(
    ("given", "preset", "text", "regex"),
    [
        ({}, "full", "", False),
        ({"layer_filter_preset": "attn-mlp"}, "custom", "attn,ff", False),
        ({"layer_filter_preset": "attn-only"}, "attn-only", "", False),
        ({"layer_filter_preset": "attn-only", "layer_filter": "attn"}, "attn-only", "", False),
        ({"layer_filter_preset": "attn-mlp", "layer_filter": "attn, ff.net"}, "custom", "attn,ff.net", False),
        (
            {"layer_filter_preset": "custom", "layer_filter": "a.*b", "layer_filter_regex": True},
            "custom",
            "a.*b",
            True,
        ),
        ({"layer_filter_preset": "blocks"}, "blocks", "", False),
    ],
)
def test_layers_of_flux(given: dict[str, Any], preset: str, text: str, regex: bool, tmp_path: Path) -> None:
    config, notes = load(tmp_path, model_type="FLUX_DEV_1", training_method="LORA", **given)
    assert (config.layer_filter_preset, config.layer_filter, config.layer_filter_regex) == (
        preset,
        text,
        regex,
    )
    assert lines(notes, "layer_filter") == []


def flux_layers() -> list[str]:
    """Names of the layers of FLUX.1 dev: 19 blocks of two streams, 38 of one."""
    attention = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]
    double = [*(f"attn.{name}" for name in attention), "norm1.linear", "norm1_context.linear"]
    double += [f"{part}.{name}" for part in ("ff", "ff_context") for name in ("net.0.proj", "net.2")]
    single = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp", "proj_out", "norm.linear"]
    names = [f"transformer_blocks.{i}.{name}" for i in range(19) for name in double]
    names += [f"single_transformer_blocks.{i}.{name}" for i in range(38) for name in single]
    return [*names, "x_embedder", "context_embedder", "norm_out.linear", "proj_out"]


def test_an_imported_preset_trains_the_layers_it_trained_there(tmp_path: Path) -> None:
    from modules.adapter.layers import filter_patterns, select_layers

    def chosen(config: TrainConfig) -> list[str]:
        presets = config.model_type.spec.layer_presets
        patterns = filter_patterns(config.layer_filter_preset, config.layer_filter, presets)
        return select_layers(flux_layers(), patterns, config.layer_filter_regex)

    data = {"model_type": "FLUX_DEV_1", "training_method": "LORA", "layer_filter_preset": "attn-mlp"}
    imported, ours = load(tmp_path, **data)[0], TrainConfig(model_type=ModelType("FLUX_DEV_1"))
    assert (len(chosen(imported)), len(chosen(ours))) == (342, 418)


def test_refiners_of_z_image_are_left_alone_as_they_are_there(tmp_path: Path) -> None:
    from modules.adapter.layers import select_layers

    layers = ("attention.to_q", "feed_forward.w1")
    names = [f"{block}.0.{layer}" for block in ("layers", "noise_refiner") for layer in layers]
    data = {"model_type": "Z_IMAGE", "training_method": "LORA"}
    for preset, count in (("attn-mlp", 2), ("attn-only", 1), ("blocks", 2)):
        config, _ = load(tmp_path, **data, layer_filter_preset=preset)
        chosen = select_layers(names, config.layer_patterns(), config.layer_filter_regex)
        assert [name.startswith("layers") for name in chosen] == [True] * count


def test_an_unknown_layer_preset_is_noted_and_trains_all(tmp_path: Path) -> None:
    config, notes = load(tmp_path, training_method="LORA", layer_filter_preset="detail")
    assert config.layer_filter_preset == "full"
    (note,) = lines(notes, "layer_filter_preset")
    assert note.changes_weights


@pytest.mark.parametrize("method", ["LORA", "FINE_TUNE"])
def test_stochastic_rounding_is_carried_where_it_would_act(method: str, tmp_path: Path) -> None:
    data = {
        "training_method": method,
        "unet": {"weight_dtype": "BFLOAT_16"},
        "text_encoder": {"train": False},
    }
    config, notes = load(tmp_path, **data)
    assert config.optimizer.stochastic_rounding is (method == "FINE_TUNE")
    assert not [note for note in notes if "stochastic" in note]
    short = {**data, "lora_weight_dtype": "BFLOAT_16"}
    config, _ = load(tmp_path, **short, optimizer={"stochastic_rounding": True})
    assert config.optimizer.stochastic_rounding is True
    config, _ = load(tmp_path, **short, optimizer={"stochastic_rounding": False})
    assert config.optimizer.stochastic_rounding is False
    config, notes = load(tmp_path, **short, optimizer={"optimizer": "PRODIGY"})
    assert config.optimizer.stochastic_rounding is False
    assert len([note for note in notes if "stochastic" in note]) == 1


def test_the_offset_by_noise_level_is_carried_where_it_acts(tmp_path: Path) -> None:
    config, notes = load(tmp_path, generalized_offset_noise=True, offset_noise_weight=0.1)
    assert config.generalized_offset_noise is True
    assert len([note for note in notes if "generalized_offset_noise" in note]) == 1
    for idle in ({}, {"offset_noise_weight": 0.1, "model_type": "FLUX_DEV_1", "training_method": "LORA"}):
        config, notes = load(tmp_path, generalized_offset_noise=True, **idle)
        assert config.generalized_offset_noise is False
        assert not [note for note in notes if "generalized_offset_noise" in note]


LOST = {
    "tensorboard_port": 7007,
    "future_loss": True,
    "sample_image_format": "PNG",
    "debug_mode": True,
    "made_up": 1,
    "include_train_config": "ALL",
    "huggingface_cache_dir": "hub",
}


def test_what_changes_the_weights_comes_first(tmp_path: Path) -> None:
    _, notes = load(tmp_path, text_encoder={"train": False}, **LOST)
    flags = [note.changes_weights for note in notes]
    assert flags == sorted(flags, reverse=True)
    assert {note.partition(" ")[0]: note.changes_weights for note in notes} == {
        "future_loss": True,
        "made_up": True,
        "huggingface_cache_dir": False,
    }


def test_a_strict_import_writes_nothing_when_the_weights_would_be_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = {
        name: value for name, value in LOST.items() if name not in ("future_loss", "made_up")
    }
    without["text_encoder"] = {"train": False}
    assert run(tmp_path, "--strict", **without) == 0
    (tmp_path / "out.json").unlink()
    assert run(tmp_path, "--strict", **without, future_loss=True) == 2
    captured = capsys.readouterr()
    assert "future_loss = true" in captured.err
    assert "huggingface" not in captured.err
    assert not (tmp_path / "out.json").exists()
    assert run(tmp_path, **without, future_loss=True) == 3
    out = capsys.readouterr().out.splitlines()
    noted = [
        "changes training:",
        "  future_loss = true: unknown setting",
        "no effect here:",
        "  huggingface_cache_dir = hub: set the environment variable HF_HUB_CACHE to this folder before the start",
    ]
    assert out == [*noted, f"wrote {tmp_path / 'out.json'}"]
    assert (tmp_path / "out.json.notes.txt").read_text().splitlines() == noted


def test_a_strict_import_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps([{"__version": 2, "path": "a", "odd": 1}]))
    arguments = [str(tmp_path / "in.json"), str(tmp_path / "out.json")]
    assert script.main([*arguments, "--strict"]) == 2
    assert not (tmp_path / "out.json").exists()
    assert script.main(arguments) == 3


def test_the_written_file_holds_only_what_differs_so_that_a_preset_below_it_acts(tmp_path: Path) -> None:
    data = {
        "training_method": "LORA",
        "learning_rate": 1e-4,
        "text_encoder": {"train": False},
        "lora_alpha": 16.0,
    }
    assert run(tmp_path, **data) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert "seed" not in written
    assert "lora_alpha" not in written
    assert len(written) < 30
    preset = {"__version": TrainConfig.VERSION, "seed": 77, "learning_rate": 5e-5}
    (tmp_path / "preset.json").write_text(json.dumps(preset))
    layered = load_layered(tmp_path / "preset.json", tmp_path / "out.json")
    assert (layered.seed, layered.lora_alpha) == (77, 16.0)
    assert load_config(tmp_path / "out.json") == load(tmp_path, **data)[0]


def test_contradictions_are_said_at_the_import(tmp_path: Path) -> None:
    config, notes = load(tmp_path, force_v_prediction=True, force_epsilon_prediction=True)
    errors = find_problems(config).errors
    assert errors
    for error in errors:
        assert [note for note in notes if error.message in note]


@pytest.mark.parametrize("dtype", ["INT_W8A8", "FLOAT_8", "NFLOAT_4", "GGUF"])
def test_weights_of_few_bits_that_would_be_trained_are_refused(dtype: str, tmp_path: Path) -> None:
    part = {"weight_dtype": dtype}
    for options in ([], ["--lenient"]):
        assert run(tmp_path, *options, training_method="FINE_TUNE", unet=part) == 2
    assert run(tmp_path, training_method="FINE_TUNE", text_encoder={**part, "train": False}) in (0, 3)


def test_weights_that_are_not_offloaded_get_eight_bits_and_never_more(tmp_path: Path) -> None:
    for dtype in ("INT_8", "NFLOAT_4", "INT_W8A8", "GGUF_A8_INT"):
        part = {"weight_dtype": dtype, "offload_fraction": 0.5}
        config, notes = load(tmp_path, training_method="LORA", unet=part, text_encoder={"train": False})
        assert config.unet.weight_dtype == "FLOAT_8"
        assert lines(notes, "unet.weight_dtype")
        check_config(config)
    config, notes = load(tmp_path, training_method="LORA", vae={"weight_dtype": "FLOAT_8"})
    assert config.vae.weight_dtype == "BFLOAT_16"


def test_a_preset_of_onetrainer_is_refused_and_sent_to_the_import(tmp_path: Path) -> None:
    path = tmp_path / "preset.json"
    path.write_text(
        json.dumps({"base_model_name": "x", "batch_size": 2, "learning_rate": 3e-4, "lora_alpha": 1.0})
    )
    for config in (None, path):
        with pytest.raises(UserError, match="scripts/import_config.py") as caught:
            load_layered(path, config)
        assert caught.value.field == "__version"
    assert load_config(path).batch_size == 2
    built_in = path.rename(tmp_path / "#preset.json")
    with pytest.raises(UserError, match="scripts/import_config.py"):
        load_config(built_in)
    path.write_text(json.dumps({"__version": TrainConfig.VERSION, "batch_size": 2}))
    assert load_layered(path, None).batch_size == 2


def test_configs_of_other_programs_are_sent_to_the_import(tmp_path: Path) -> None:
    ours = tmp_path / "ours.json"
    ours.write_text(json.dumps({"__version": TrainConfig.VERSION}))
    files = {
        "train.toml": 'pretrained_model_name_or_path = "x"',
        "train.yaml": "job: extension",
        "train.json": json.dumps({"job": "extension", "config": {"process": []}}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        for preset, config in ((None, tmp_path / name), (tmp_path / name, ours)):
            with pytest.raises(UserError, match=r"scripts/import_config\.py") as caught:
                load_layered(preset, config)
            assert "there is no such setting" not in str(caught.value)
    with pytest.raises(UserError, match="does not exist"):
        load_config(tmp_path / "missing.toml")


def test_noise_and_rates_get_the_switches_that_mean_the_same_here(tmp_path: Path) -> None:
    usual, notes = load(tmp_path, text_encoder={"train": False})
    assert (
        usual.learning_rate_ends_high,
        usual.perturbation_on_target,
        usual.noising_range_before_shift,
    ) == (
        False,
        False,
        False,
    )
    assert usual.learning_rate_rex_d == 0.5
    assert notes == []
    config, notes = load(
        tmp_path, text_encoder={"train": False}, model_type="FLUX_DEV_1", training_method="LORA",
        learning_rate_scheduler="REX", perturbation_noise_weight=0.1, dynamic_timestep_shifting=True,
        max_noising_strength=0.5, timestep_distribution="INVERTED_PARABOLA", noising_weight=7.7,
        loss_weight_fn="SIGMA", learning_rate_scaler="BOTH", text_encoder_2={"train": False},
    )  # fmt: skip
    assert notes == []
    assert config.text_encoder_2.sequence_length == 77
    assert (config.learning_rate_rex_d, config.perturbation_on_target) == (0.9, True)
    assert (config.dynamic_timestep_shifting, config.noising_range_before_shift) == (True, True)
    assert (config.timestep_distribution.value, config.noising_weight) == ("INVERTED_PARABOLA", 7.7)
    assert (config.loss_weight_fn.value, config.learning_rate_scaler.value) == ("SIGMA", "BOTH")
    check_config(config)
    config, _ = load(tmp_path, learning_rate_scheduler="COSINE_WITH_RESTARTS", min_noising_strength=0.2)
    assert (config.learning_rate_ends_high, config.noising_range_before_shift) == (True, False)
    _, notes = load(tmp_path, timestep_distribution="SIGMOID", noising_weight=3.0, timestep_shift=2.0)
    assert lines(notes, "timestep_distribution")


@pytest.mark.parametrize(
    ("name", "given", "params"),
    [
        ("DADAPT_ADAM", {"d0": 1e-5, "growth_rate": 2.0}, {"d0": 1e-5, "growth_rate": 2.0}),
        ("MUON", {"ns_steps": 4, "muon_adam_lr": 1e-3}, {"ns_steps": 4, "muon_adam_lr": 1e-3}),
        ("CAME", {"clip_threshold": 2.0}, {"clip_threshold": 2.0}),
        ("LARS_8BIT", {"min_8bit_size": 8192, "momentum": 0.5}, {"min_8bit_size": 8192}),
        ("LAMB_8BIT", {"min_8bit_size": 8192, "block_wise": True}, {"min_8bit_size": 8192}),
        ("YOGI", {"initial_accumulator": 1e-3}, {"initial_accumulator": 1e-3}),
        (
            "PRODIGY_PLUS_SCHEDULE_FREE",
            {"prodigy_steps": 40, "factored": False, "schedulefree_c": 8.0},
            {"prodigy_steps": 40, "schedulefree_c": 8.0, "split_groups_mean": True, "factored": False},
        ),
        ("ADAMW_ADV", {"use_atan2": True}, {"use_atan2": True, "use_bias_correction": False}),
        ("ADOPT_ADV", {"cautious_wd": True}, {"cautious_wd": True}),
        ("LION_ADV", {"auto_kappa_p": True}, {"auto_kappa_p": True}),
        ("SIGNSGD_ADV", {"cautious_wd": True}, {"cautious_wd": True}),
        ("PRODIGY_ADV", {"d_coef": 2.0}, {"d_coef": 2.0, "d_limiter": True}),
        ("MUON_ADV", {"nesterov": True, "ns_steps": 4}, {"nesterov": True, "ns_steps": 4}),
        (
            "ADAMUON_ADV",
            {"normuon_variant": True, "muon_adam_lr": 1e-3},
            {"nesterov": False, "normuon_variant": True, "muon_adam_lr": 1e-3},
        ),
    ],
)
def test_numbers_of_further_optimizers_are_carried(
    name: str, given: dict[str, Any], params: dict[str, Any], tmp_path: Path
) -> None:
    config, notes = load(tmp_path, learning_rate=1e-3, optimizer={"optimizer": name, **given})
    assert (config.optimizer.optimizer.value, config.optimizer.params) == (name, params)
    assert lines(notes, "optimizer") == []


@pytest.mark.parametrize(
    ("base", "family"),
    [
        ("black-forest-labs/FLUX.2-dev", "FLUX_2_DEV"),
        ("black-forest-labs/FLUX.2-klein-base-4B", "FLUX_2"),
        ("my/own-flux", "FLUX_2"),
    ],
)
def test_the_base_model_tells_families_of_one_name_apart(base: str, family: str, tmp_path: Path) -> None:
    made, _ = load(tmp_path, model_type="FLUX_2", base_model_name=base)
    assert made.model_type.value == family


@pytest.mark.parametrize(
    ("given", "skipped"),
    [
        ({"sample_after": 10, "sample_after_unit": "STEP", "sample_skip_first": 25}, (2, 0)),
        ({"save_every": 10, "save_every_unit": "EPOCH", "save_skip_first": 30}, (0, 2)),
        ({"save_every": 1, "save_every_unit": "EPOCH", "save_skip_first": 1}, (0, 0)),
        ({"save_every": 10, "save_every_unit": "STEP", "save_skip_first": 30}, (0, 3)),
        ({"sample_after": 10, "sample_after_unit": "STEP", "sample_skip_first": 30}, (2, 0)),
        ({"sample_after_unit": "ALWAYS", "sample_skip_first": 5}, (0, 0)),
        ({"save_every": 10, "save_every_unit": "STEP", "save_skip_first": 9}, (0, 0)),
    ],
)
def test_what_is_skipped_there_in_steps_is_counted_here(
    given: dict[str, Any], skipped: tuple[int, int], tmp_path: Path
) -> None:
    config, notes = load(tmp_path, **given)
    assert (config.sample_skip_first, config.save_skip_first) == skipped
    assert not [note for note in notes if "skip_first" in note]


def test_samples_painted_into_an_image(tmp_path: Path) -> None:
    painted = {"base_image_path": "a.png", "mask_image_path": "b.png"}
    family = {"model_type": "STABLE_DIFFUSION_15_INPAINTING"}
    config, notes = load(tmp_path, samples=[{**painted, "sample_inpainting": True}], **family)
    assert config.samples is not None
    assert (config.samples[0].base_image_path, config.samples[0].mask_image_path) == ("a.png", "b.png")
    assert not [note for note in notes if "samples" in note]
    # not read there
    config, notes = load(tmp_path, samples=[painted], **family)
    assert config.samples is not None and config.samples[0].base_image_path == ""
    assert len([note for note in notes if "without sample_inpainting" in note]) == 2
    config, notes = load(tmp_path, samples=[{**painted, "sample_inpainting": True}])
    assert config.samples is not None and config.samples[0].mask_image_path == ""
    assert len([note for note in notes if "makes whole images" in note]) == 3
    assert not any(note.changes_weights for note in notes if "samples" in note)


@pytest.mark.parametrize("kind", ["LOHA", "LOKR", "OFT_2"])
def test_a_switch_of_dora_that_other_kinds_of_adapters_ignore_is_off(kind: str, tmp_path: Path) -> None:
    config, notes = load(tmp_path, training_method="LORA", peft_type=kind, lora_decompose=True)
    assert config.lora_decompose is False and not find_problems(config).errors
    assert not [note for note in notes if "lora_decompose" in note]


def test_the_axis_of_dora_is_theirs_where_it_acts(tmp_path: Path) -> None:
    given = {"training_method": "LORA", "peft_type": "LORA", "lora_decompose": True}
    for changes, wanted in (
        ({}, False),
        ({"lora_decompose_output_axis": False}, False),
        ({"lora_decompose_output_axis": True, "lora_decompose_norm_epsilon": True}, True),
        ({"lora_decompose": False}, True),
        ({"lora_decompose": False, "lora_decompose_output_axis": False}, True),
        ({"training_method": "FINE_TUNE"}, True),
    ):
        config, notes = load(tmp_path, **{**given, **changes})
        assert config.lora_decompose_output_axis == wanted, changes
        assert not [note for note in notes if "lora_decompose" in note]


def test_a_dora_of_inputs_gets_a_layout_that_holds_it(tmp_path: Path) -> None:
    given = {"training_method": "LORA", "lora_decompose": True, "output_model_format": "DIFFUSERS_LORA"}
    config, notes = load(tmp_path, **given)
    assert config.output_model_format.value == "AUTO" and not find_problems(config).errors
    (note,) = [note for note in notes if "output_model_format" in note]
    assert "diffusers reads no DoRA of inputs" in note and not note.changes_weights
    config, notes = load(tmp_path, **given, lora_decompose_output_axis=True)
    assert config.output_model_format.value == "DIFFUSERS_LORA"
    assert not [note for note in notes if "output_model_format" in note]


@pytest.mark.parametrize(
    ("name", "warmup"),
    [("SCHEDULE_FREE_ADAMW", 50), ("SCHEDULE_FREE_SGD", 50), ("PRODIGY_PLUS_SCHEDULE_FREE", 0), ("ADAMW", 12)],
)
def test_optimizers_without_a_schedule_have_none(name: str, warmup: float, tmp_path: Path) -> None:
    config, notes = load(
        tmp_path, training_method="LORA", optimizer={"optimizer": name}, learning_rate_scheduler="REX",
        learning_rate_warmup_steps=50, gradient_accumulation_steps=4, learning_rate=1.0,
    )  # fmt: skip
    expected = "REX" if name == "ADAMW" else "CONSTANT"
    assert (config.learning_rate_scheduler, config.learning_rate_warmup_steps) == (expected, warmup)
    assert config.learning_rate_rex_d == (0.9 if name == "ADAMW" else 0.5)
    assert not lines(notes, "learning_rate_scheduler")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("SCHEDULE_FREE_ADAMW", {}, {"weight_decay": 0.01}),
        ("SCHEDULE_FREE_ADAMW", {"weight_decay": 0.0}, {"weight_decay": 0.0}),
        ("LION_8BIT", {}, {"betas": (0.9, 0.999)}),
        ("AdEMAMix", {}, {"weight_decay": 0.01, "weight_decouple": True}),
        ("YOGI", {"weight_decay": 0.1}, {"weight_decouple": False}),
        ("YOGI", {"weight_decay": 0.1, "decoupled_decay": True}, {"weight_decay": 0.1}),
        ("AIDA", {"weight_decay": 0.1, "decoupled_decay": True}, {"weight_decouple": True}),
        ("ADABELIEF", {"rectify": True}, {"degenerated_to_sgd": False}),
        ("DADAPT_ADAM", {"weight_decay": 0.1, "decouple": True}, {"weight_decouple": True}),
    ],
)
def test_what_a_file_leaves_empty_is_as_there(
    name: str, given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    from modules.trainer.optim.optimizers import optimizer_arguments

    config, notes = load(tmp_path, training_method="LORA", optimizer={"optimizer": name, **given}, learning_rate=1.0)
    made = optimizer_arguments(config.optimizer)
    assert {key: made.get(key) for key in expected} == expected
    assert ("weight_decouple" in made) is ("weight_decouple" in expected)
    assert not lines(notes, "optimizer")
