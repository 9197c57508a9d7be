"""Cases of training on pairs."""

from __future__ import annotations

from tests.house.acts import outcomes as see
from tests.house.acts.bases import grpo, masked_pairs, pairs, validated_pairs
from tests.house.acts.case import Case

PATIENT = {"epochs": 6, "rlhf_dpo_patience_metrics": ["val_loss", "val_accuracy"]}
CACHED = {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 2}

MODE = [
    Case("rlhf_enabled", pairs, False, see.end),
    Case("rlhf_mode", grpo, "GSPO", see.weights),
]
LOSS = [
    Case("rlhf_dpo_objective", pairs, "HINGE", see.weights),
    Case("rlhf_dpo_beta", pairs, 100.0, see.weights),
    Case("rlhf_dpo_label_smoothing", pairs, 0.25, see.weights),
    Case("rlhf_dpo_confidence", pairs, "SMOOTHING", see.weights),
    Case("rlhf_dpo_ipo_tau", pairs, 5.0, see.weights, {"rlhf_dpo_objective": "IPO"}),
    Case("rlhf_dpo_mapo_weight", pairs, 5.0, see.weights, {"rlhf_dpo_objective": "MAPO"}),
    Case("rlhf_dpo_adaptive_beta", pairs, True, see.weights),
    Case("rlhf_supervised_mix", pairs, 0.25, see.weights),
    Case("rlhf_norm_guard", pairs, 1000.0, see.weights, {"learning_rate": 0.05}),
    Case("rlhf_dpo_mask", masked_pairs, "FILE", see.weights),
    Case("rlhf_dpo_mask_dilate", masked_pairs, 0, see.weights),
    Case("rlhf_dpo_mask_norm", masked_pairs, "MEAN", see.weights),
    Case("rlhf_dpo_anchor_weight", pairs, 100.0, see.weights),
    Case("rlhf_dpo_safeguard", pairs, "OUTPUT", see.weights),
    Case("rlhf_dpo_safeguard_mu", pairs, 0.2, see.weights, {"rlhf_dpo_safeguard": "OUTPUT"}),
    Case("rlhf_dpo_shared_noise", pairs, False, see.weights),
    Case("rlhf_dpo_timestep_sampling", pairs, "UNIFORM", see.weights),
    Case("rlhf_dpo_timestep_strata", pairs, 4, see.weights),
]
EXECUTION = [
    Case("rlhf_dpo_execution_mode", pairs, "SEQUENTIAL", see.predicted),
    Case("rlhf_dpo_sequential_strategy", pairs, "THREE_FORWARD", see.predicted,
         {"rlhf_dpo_execution_mode": "SEQUENTIAL"}),
    Case("rlhf_dpo_reference_cache", pairs, True, see.files),
    Case("rlhf_dpo_reference_cache_draws", pairs, 3, see.predicted, CACHED),
]  # fmt: skip
VALIDATION = [
    Case("rlhf_dpo_validation", validated_pairs, False, see.validations, {"rlhf_dpo_patience_enabled": False}),
    Case("rlhf_dpo_validation_percentage", validated_pairs, 20.0, see.validations),
    Case("rlhf_dpo_validation_draws", validated_pairs, 3, see.validations),
    Case("rlhf_dpo_timestep_margin_logging", pairs, True, see.metrics),
    Case("rlhf_dpo_save_best", validated_pairs, False, see.weights, {
        "epochs": 3, "rlhf_dpo_patience_enabled": False}),
    Case("rlhf_dpo_patience_enabled", validated_pairs, False, see.steps, PATIENT),
    Case("rlhf_dpo_patience_value", validated_pairs, 2, see.steps, PATIENT),
    Case("rlhf_dpo_patience_mode", validated_pairs, "BOTH", see.steps, PATIENT),
    Case("rlhf_dpo_patience_metrics", validated_pairs, ["val_loss"], see.steps, PATIENT),
]
CASES = [*MODE, *LOSS, *EXECUTION, *VALIDATION]
