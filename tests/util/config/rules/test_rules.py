from __future__ import annotations

import pytest

from modules.util.config.load import check_config, find_problems, read_config
from modules.util.config.rules import rules
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UnsupportedError, UserError, UserErrors

DPO = {"rlhf_enabled": True}
MAPO = {**DPO, "rlhf_dpo_objective": "MAPO", "rlhf_dpo_beta": 20.0}


@pytest.mark.parametrize(
    ("data", "field", "kind"),
    [
        ({**DPO, "training_method": "FINE_TUNE"}, "training_method", UnsupportedError),
        (
            {**DPO, "rlhf_dpo_adaptive_beta": True, "rlhf_dpo_objective": "IPO"},
            "rlhf_dpo_adaptive_beta",
            ConfigError,
        ),
        (
            {**DPO, "rlhf_dpo_label_smoothing": 0.1, "rlhf_dpo_objective": "HINGE"},
            "rlhf_dpo_label_smoothing",
            ConfigError,
        ),
        (
            {**DPO, "rlhf_dpo_confidence": "MARGIN", "rlhf_dpo_objective": "IPO"},
            "rlhf_dpo_confidence",
            ConfigError,
        ),
        (
            {**DPO, "rlhf_dpo_mask": "DIFFERENCE", "rlhf_dpo_objective": "KTO"},
            "rlhf_dpo_mask",
            UnsupportedError,
        ),
        ({**MAPO, "rlhf_dpo_reference_cache": True}, "rlhf_dpo_reference_cache", UnsupportedError),
        ({**MAPO, "rlhf_norm_guard": 1.0}, "rlhf_norm_guard", UnsupportedError),
        ({**MAPO, "rlhf_dpo_anchor_weight": 1.0}, "rlhf_dpo_anchor_weight", UnsupportedError),
        ({**MAPO, "rlhf_dpo_label_smoothing": 0.1}, "rlhf_dpo_label_smoothing", ConfigError),
        ({**MAPO, "rlhf_dpo_beta": 1e-300}, "rlhf_dpo_beta", ConfigError),
        ({**DPO, "rlhf_dpo_beta": 1e-300}, "rlhf_dpo_beta", ConfigError),
        ({**DPO, "rlhf_dpo_beta": 1e39}, "rlhf_dpo_beta", ConfigError),
        ({**DPO, "rlhf_supervised_mix": 1e30}, "rlhf_supervised_mix", ConfigError),
        ({**DPO, "rlhf_dpo_patience_enabled": True}, "rlhf_dpo_patience_enabled", ConfigError),
        (
            {
                **DPO,
                "rlhf_dpo_patience_enabled": True,
                "rlhf_dpo_validation": True,
                "validate_after_unit": "NEVER",
            },
            "rlhf_dpo_patience_enabled",
            ConfigError,
        ),
        ({"rlhf_dpo_patience_metrics": ["val_loss", "val_loss"]}, "rlhf_dpo_patience_metrics", ConfigError),
        (
            {"training_method": "FINE_TUNE", "output_model_format": "KOHYA_LORA"},
            "output_model_format",
            ConfigError,
        ),
        ({"__version": 1, "output_model_format": "SAFETENSORS"}, "output_model_format", ConfigError),
        ({"peft_type": "LOKR", "lora_decompose": True}, "lora_decompose", UnsupportedError),
        ({"peft_type": "OFT_2", "lora_rs": True}, "lora_rs", UnsupportedError),
        ({"peft_type": "OFT_2", "lora_rank": 1}, "lora_rank", ConfigError),
        (
            {
                "lora_decompose": True,
                "lora_decompose_output_axis": False,
                "output_model_format": "DIFFUSERS_LORA",
            },
            "output_model_format",
            UnsupportedError,
        ),
        ({"layer_filter_preset": "custom"}, "layer_filter", ConfigError),
        (
            {"layer_filter_preset": "custom", "layer_filter": "a,(", "layer_filter_regex": True},
            "layer_filter",
            ConfigError,
        ),
        ({"unet": {"train": False}}, "unet.train", ConfigError),
        ({"force_v_prediction": True, "force_epsilon_prediction": True}, "force_v_prediction", ConfigError),
        (
            {"rescale_noise_scheduler_to_zero_terminal_snr": True, "force_epsilon_prediction": True},
            "rescale_noise_scheduler_to_zero_terminal_snr",
            ConfigError,
        ),
        ({"min_noising_strength": 0.5, "max_noising_strength": 0.5}, "min_noising_strength", ConfigError),
        ({"timestep_distribution": "LOGIT_NORMAL", "noising_weight": -1}, "noising_weight", ConfigError),
        ({"mse_strength": 0}, "mse_strength", ConfigError),
        ({**DPO, "mse_strength": 0, "rlhf_supervised_mix": 0.2}, "mse_strength", ConfigError),
        ({"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 0}, "loss_weight_strength", ConfigError),
        ({"sample_after_unit": "EPOCH"}, "sample_after", ConfigError),
        ({"backup_after": 0}, "backup_after", ConfigError),
        ({"save_every_unit": "STEP"}, "save_every", ConfigError),
        ({"validate_after": 0}, "validate_after", ConfigError),
    ],
)
def test_contradictions_are_one_error_each(data: dict, field: str, kind: type) -> None:
    with pytest.raises(kind) as caught:
        read_config(data)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "data",
    [
        {},
        DPO,
        MAPO,
        {"rlhf_mode": "GRPO"},
        {**DPO, "rlhf_mode": "GRPO"},
        {**DPO, "rlhf_mode": "NFT"},
        {**DPO, "mse_strength": 0},
        {**DPO, "rlhf_dpo_adaptive_beta": True, "rlhf_dpo_label_smoothing": 0.1},
        {**DPO, "rlhf_dpo_validation": True, "rlhf_dpo_patience_enabled": True},
        {"rlhf_dpo_objective": "IPO", "rlhf_dpo_label_smoothing": 0.1},
        {"training_method": "FINE_TUNE", "peft_type": "LOHA", "lora_decompose": True},
        {"lora_decompose_output_axis": False, "output_model_format": "DIFFUSERS_LORA"},
        {"lora_decompose": True, "output_model_format": "DIFFUSERS_LORA"},
        {"layer_filter_preset": "custom", "layer_filter": "attn1, attn2"},
        {"unet": {"train": False}, "text_encoder": {"train": True}},
        {"peft_type": "OFT_2", "lora_rank": 1, "lora_model_name": "rotation.safetensors"},
        {"peft_type": "OFT_2", "lora_rank": 2},
        {"training_method": "FINE_TUNE", "peft_type": "OFT_2", "lora_rank": 1},
        {"backup_after": 0, "backup_after_unit": "NEVER"},
        {"sample_after_unit": "ALWAYS"},
        {"timestep_distribution": "SIGMOID", "noising_weight": -5},
    ],
)
def test_what_is_meant_passes_without_a_word(data: dict) -> None:
    assert find_problems(read_config(data)).warnings == []


def test_a_rate_of_embeddings_that_muon_does_not_read_is_told() -> None:
    words = {"training_method": "LORA", "additional_embeddings": [{"placeholder": "<zorblax>"}]}
    muon = {**words, "optimizer": {"optimizer": "MUON"}}
    for data, fields in (
        ({**muon, "embedding_learning_rate": 1e-3}, ["embedding_learning_rate"]),
        (muon, []),
        ({**words, "embedding_learning_rate": 1e-3}, []),
    ):
        told = [warning.field for warning in find_problems(read_config(data)).warnings]
        assert [field for field in told if field == "embedding_learning_rate"] == fields


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({**DPO, "rlhf_dpo_beta": 0}, "rlhf_dpo_beta"),
        ({"layer_filter": "("}, "layer_filter"),
        ({"layer_filter_preset": "full", "layer_filter": "attn1"}, "layer_filter"),
        ({**DPO, "dropout_probability": 0.1}, "dropout_probability"),
        ({**DPO, "text_encoder": {"dropout_probability": 0.1}}, "text_encoder.dropout_probability"),
        (
            {**DPO, "rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 4},
            "rlhf_dpo_reference_cache_draws",
        ),
        ({"ema": "CPU", "ema_decay": 1.0}, "ema_decay"),
        ({"ema": "CPU", "ema_update_step_interval": 8, "max_steps": 7}, "ema_update_step_interval"),
        ({**DPO, "rlhf_dpo_objective": "KTO", "gradient_accumulation_steps": 7}, "rlhf_dpo_objective"),
        ({**MAPO, "rlhf_dpo_beta": 5000.0}, "rlhf_dpo_beta"),
        ({**MAPO, "rlhf_dpo_beta": 0.0}, "rlhf_dpo_beta"),
        ({**MAPO, "rlhf_dpo_mapo_weight": 0.0}, "rlhf_dpo_mapo_weight"),
    ],
)
def test_warnings_do_not_stop(data: dict, field: str) -> None:
    config = read_config(data)
    assert [warning.field for warning in find_problems(config).warnings] == [field]
    assert [text.partition(":")[0] for text in check_config(config)] == [field]


def test_missing_sides_of_inline_concepts_are_mentioned() -> None:
    chosen = {"type": "DPO_CHOSEN", "path": "a"}
    assert len(check_config(read_config({**DPO, "concepts": [chosen]}))) == 1
    rejected = {"type": "DPO_REJECTED", "path": "b"}
    assert check_config(read_config({**DPO, "concepts": [chosen, rejected]})) == []
    off = {**rejected, "enabled": False}
    assert len(check_config(read_config({**DPO, "concepts": [chosen, off]}))) == 1


def test_rules_read_fields_that_exist() -> None:
    read = {name for fields, _ in rules._RULES for name in fields}
    assert read and read <= set(TrainConfig.model_fields)


def test_activations_in_main_memory_need_checkpointing_and_no_compiled_whole() -> None:
    part = {"gradient_checkpointing": True, "activation_offloading": True}
    whole = {"shared": [{"name": "torch_compile", "params": {"scope": "full"}}]}
    blocks = {"shared": [{"name": "torch_compile", "params": {}}]}

    def faults(**data: object) -> list[str | None]:
        try:
            read_config({**DPO, **data})
        except UserErrors as found:
            return [one.field for one in found.errors]
        except UserError as error:
            return [error.field]
        return []

    assert faults(unet=part, acceleration=blocks) == []
    assert faults(unet=part, acceleration=whole) == ["acceleration.shared"]
    assert faults(unet={**part, "gradient_checkpointing": False}) == ["unet.activation_offloading"]
    encoder = {"train": False, "activation_offloading": True}
    assert faults(text_encoder=encoder, acceleration=whole) == []
