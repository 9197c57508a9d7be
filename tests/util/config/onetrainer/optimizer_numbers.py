"""What OneTrainer's window fills in for each optimizer: names and values."""

from __future__ import annotations

from typing import Any

Numbers = dict[str, Any]

_BETAS: Numbers = {"beta1": 0.9, "beta2": 0.999}
_BLOCKS: Numbers = {"min_8bit_size": 4096, "percentile_clipping": 100, "block_wise": True}
_WIDE: Numbers = {**_BLOCKS, "optim_bits": 32}
_PLAIN: Numbers = {"foreach": False, "maximize": False, "differentiable": False}
_ADAM: Numbers = {
    **_BETAS, "eps": 1e-8, "weight_decay": 0, "amsgrad": False, **_PLAIN, "capturable": False, "fused": True,
    "stochastic_rounding": False, "fused_back_pass": False,
}  # fmt: skip
_ADAM_8BIT: Numbers = {**_BETAS, "eps": 1e-8, "weight_decay": 0, "amsgrad": False, **_WIDE, "is_paged": False}
_ADEMAMIX: Numbers = {
    **_BETAS, "beta3": 0.9999, "eps": 1e-8, "alpha": 5, "weight_decay": 1e-2, "min_8bit_size": 4096, "is_paged": False,
}  # fmt: skip
_LAMB: Numbers = {
    "bias_correction": True, **_BETAS, "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "adam_w_mode": True,
    "min_8bit_size": 4096, "percentile_clipping": 100, "block_wise": False, "max_unorm": 1.0,
}  # fmt: skip
_SGD: Numbers = {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}
_LARS: Numbers = {**_SGD, "min_8bit_size": 4096, "percentile_clipping": 100, "max_unorm": 0.02}
_RMSPROP: Numbers = {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False, **_BLOCKS}
_ADAGRAD: Numbers = {"lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10, **_BLOCKS}
_CAME: Numbers = {
    **_BETAS, "beta3": 0.9999, "eps": 1e-30, "eps2": 1e-16, "weight_decay": 1e-2, "stochastic_rounding": False,
    "fused_back_pass": False,
}  # fmt: skip
_FREE: Numbers = {"r": 0.0, "weight_lr_power": 2.0, "foreach": False, "weight_decay": 1e-2}
_ADAPTING: Numbers = {"d0": 1e-6, "growth_rate": "inf", "log_every": 0}
_DECAY: Numbers = {"decoupled_decay": True, "fixed_decay": False}
_NORMS: Numbers = {"r": 0.95, "adanorm": False, "adam_debias": False}

NUMBERS: dict[str, Numbers] = {
    "ADAFACTOR": {
        "eps": 1e-30, "eps2": 1e-3, "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None, "weight_decay": 0.0,
        "scale_parameter": False, "relative_step": False, "warmup_init": False, "stochastic_rounding": True,
    },
    "ADAGRAD": {**_ADAGRAD, "optim_bits": 32},
    "ADAGRAD_8BIT": {**_ADAGRAD, "optim_bits": 8, "fused_back_pass": False},
    "ADAM": _ADAM,
    "ADAM_8BIT": _ADAM_8BIT,
    "ADAMW": {**_ADAM, "weight_decay": 1e-2},
    "ADAMW_8BIT": {**_ADAM_8BIT, "weight_decay": 1e-2},
    "AdEMAMix": {**_ADEMAMIX, "optim_bits": 32},
    "AdEMAMix_8BIT": _ADEMAMIX,
    "ADOPT": {
        "beta1": 0.9, "beta2": 0.9999, "weight_decay": 0.0, "decoupled_decay": False, "fixed_decay": False,
        "cautious": False, "eps": 1e-6,
    },
    "ADABELIEF": {
        **_BETAS, "eps": 1e-16, "weight_decay": 0, "amsgrad": False, **_DECAY, "rectify": True,
        "degenerated_to_sgd": True,
    },
    "AIDA": {
        **_BETAS, "k": 2, "xi": 1e-20, "weight_decay": 0.0, **_DECAY, "decoupled_decay": False, "rectify": False,
        "n_sma_threshold": 5, "degenerated_to_sgd": True, "ams_bound": False, **_NORMS, "eps": 1e-8,
    },
    "CAME": {**_CAME, "use_cautious": False},
    "CAME_8BIT": {**_CAME, "min_8bit_size": 16384, "quant_block_size": 2048},
    "DADAPT_ADAM": {
        **_BETAS, "eps": 1e-8, "weight_decay": 0, "decouple": False, "use_bias_correction": False, **_ADAPTING,
        "fsdp_in_use": False,
    },
    "DADAPT_ADAN": {
        "beta1": 0.98, "beta2": 0.92, "beta3": 0.99, "eps": 1e-8, "weight_decay": 0.02, "no_prox": False, **_ADAPTING,
    },
    "DADAPT_ADA_GRAD": {"momentum": 0, "weight_decay": 0.0, "eps": 0.0, **_ADAPTING},
    "DADAPT_LION": {**_BETAS, "weight_decay": 0.0, "log_every": 0, "d0": 1e-6, "fsdp_in_use": False},
    "DADAPT_SGD": {"momentum": 0.0, "weight_decay": 0, **_ADAPTING, "fsdp_in_use": False},
    "LAMB": {**_LAMB, "optim_bits": 32},
    "LAMB_8BIT": _LAMB,
    "LARS": {**_LARS, "optim_bits": 32},
    "LARS_8BIT": _LARS,
    "LION": {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "use_triton": False},
    "LION_8BIT": {**_BETAS, "weight_decay": 0, **_BLOCKS, "is_paged": False},
    "MUON": {
        "momentum": 0.95, "weight_decay": 0.0, "MuonWithAuxAdam": True, "muon_hidden_layers": None,
        "muon_adam_regex": False, "muon_adam_lr": 3e-4, "muon_te1_adam_lr": None, "muon_te2_adam_lr": None,
        "muon_adam_config": {},
    },
    "PRODIGY": {
        **_BETAS, "beta3": None, "eps": 1e-8, "weight_decay": 0, "decouple": True, "use_bias_correction": False,
        "safeguard_warmup": False, "d0": 1e-6, "d_coef": 1.0, "growth_rate": "inf", "fsdp_in_use": False,
        "slice_p": 11,
    },
    "RMSPROP": {**_RMSPROP, "optim_bits": 32},
    "RMSPROP_8BIT": _RMSPROP,
    "SCHEDULE_FREE_ADAMW": {**_BETAS, "eps": 1e-8, **_FREE},
    "SCHEDULE_FREE_SGD": {"momentum": 0, **_FREE},
    "SGD": {**_SGD, **_PLAIN},
    "SGD_8BIT": {**_SGD, **_BLOCKS},
    "TIGER": {"beta1": 0.965, "weight_decay": 0.01, **_DECAY},
    "YOGI": {**_BETAS, "weight_decay": 0.0, **_DECAY, **_NORMS, "initial_accumulator": 1e-6, "eps": 1e-3},
}  # fmt: skip
