"""Cases of the loop, the optimizer, the loss and the adapter."""

from __future__ import annotations

from pathlib import Path

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tests.house.acts import outcomes as see
from tests.house.acts.bases import flux, pictures, pixart
from tests.house.acts.case import Case, shared_folder, write

ADAMW = {"optimizer.optimizer": "ADAMW", "learning_rate": 1e-3}
NOISED = {
    "timestep_shift": 3.0,
    "min_noising_strength": 0.5,
    "offset_noise_weight": 0.5,
    "perturbation_noise_weight": 0.1,
}
CUSTOM = {"layer_filter_preset": "custom"}
OF_A_CLASS = {
    "learning_rate_scheduler": "CUSTOM",
    "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.StepLR",
    "scheduler_params": "step_size=1",
}


class Halving(LRScheduler):
    """Another class with the arguments of ``StepLR``."""

    def __init__(self, optimizer: Optimizer, step_size: int) -> None:
        self._every = step_size
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [0.5 ** (self.last_epoch // self._every) * rate for rate in self.base_lrs]


def _adapter(folder: Path) -> None:
    see.run(folder, write(folder, pictures, {"max_steps": 1}))


def adapter() -> str:
    """An adapter that was trained."""
    return str(shared_folder("adapter", _adapter) / "out.safetensors")


LOOP = [
    Case("epochs", pictures, 3, see.steps),
    Case("max_steps", pictures, 3, see.steps),
    Case("batch_size", pictures, 1, see.steps),
    Case("gradient_accumulation_steps", pictures, 2, see.steps),
    Case("clip_grad_norm", pictures, 1e-4, see.weights),
    Case("clip_each_weight", pictures, True, see.weights, {"clip_grad_norm": 1e-4}),
    Case("nan_patience", pictures, 3, see.end, {"learning_rate": 100.0, "lora_alpha": 65536.0, "max_steps": 8}),
    Case("learning_rate", pictures, 0.25, see.weights),
    Case("learning_rate_scheduler", pictures, "LINEAR", see.rates),
    Case("custom_learning_rate_scheduler", pictures, "tests.house.acts.training_cases.Halving", see.rates, OF_A_CLASS),
    Case("scheduler_params", pictures, "step_size=1; gamma=0.5", see.rates, OF_A_CLASS),
    Case("learning_rate_warmup_steps", pictures, 3.0, see.rates),
    Case("learning_rate_cycles", pictures, 1.0, see.rates),
    Case("learning_rate_min_factor", pictures, 0.5, see.rates),
    Case("learning_rate_rex_d", pictures, 0.9, see.rates, {"learning_rate_scheduler": "REX"}),
    Case("learning_rate_ends_high", pictures, True, see.rates),
    Case("learning_rate_scaler", pictures, "BATCH", see.rates),
    Case("ema", pictures, "OFF", see.weights),
    Case("ema_decay", pictures, 0.05, see.weights),
    Case("ema_update_step_interval", pictures, 2, see.weights),
]  # fmt: skip
OPTIMIZER = [
    Case("optimizer.optimizer", pictures, "ADAMW", see.weights),
    Case("optimizer.beta1", pictures, 0.5, see.weights, ADAMW),
    Case("optimizer.beta2", pictures, 0.5, see.weights, ADAMW),
    Case("optimizer.eps", pictures, 1e-3, see.weights, ADAMW),
    Case("optimizer.weight_decay", pictures, 0.5, see.weights),
    Case("optimizer.momentum", pictures, 0.5, see.weights),
    Case("optimizer.fused_back_pass", pictures, True, see.gpu_memory),
    Case(
        "optimizer.stochastic_rounding",
        pictures,
        True,
        see.weights,
        {"lora_weight_dtype": "BFLOAT_16", "output_dtype": "FLOAT_32"},
    ),
    Case("optimizer.params", pictures, {"maximize": True}, see.weights),
]
LOSS = [
    Case("mse_strength", pictures, 2.0, see.weights),
    Case("mae_strength", pictures, 1.0, see.weights),
    Case("log_cosh_strength", pictures, 1.0, see.weights),
    Case("huber_strength", pictures, 1.0, see.weights),
    # the variance is nearly fixed but at the last steps
    Case("vb_loss_strength", pixart, 100.0, see.weights, {
        **CUSTOM, "layer_filter": "proj_out", "max_noising_strength": 0.02}),
    Case("huber_delta", pictures, 0.1, see.weights),
    Case("loss_weight_fn", pictures, "P2", see.weights),
    Case("loss_weight_strength", pictures, 0.5, see.weights),
    Case("loss_scaler", pictures, "BATCH", see.weights),
    Case("timestep_distribution", pictures, "SIGMOID", see.weights),
    Case("noising_weight", pictures, 1.0, see.weights),
    Case("noising_bias", pictures, 1.0, see.weights),
    Case("timestep_shift", pictures, 3.0, see.weights),
    Case("min_noising_strength", pictures, 0.5, see.weights),
    Case("max_noising_strength", pictures, 0.5, see.weights),
    Case("dynamic_timestep_shifting", flux, True, see.weights),
    Case("noising_range_before_shift", pictures, True, see.weights, NOISED),
    Case("offset_noise_weight", pictures, 0.1, see.weights),
    Case("generalized_offset_noise", pictures, True, see.weights, NOISED),
    Case("perturbation_noise_weight", pictures, 0.1, see.weights),
    Case("perturbation_on_target", pictures, True, see.weights, NOISED),
]  # fmt: skip
ADAPTER = [
    Case("peft_type", pictures, "LOHA", see.names),
    Case("lora_model_name", pictures, lambda folder: adapter(), see.weights),
    Case("lora_rank", pictures, 4, see.weights),
    Case("lora_alpha", pictures, 4.0, see.weights),
    Case("lora_rank_pattern", pictures, "attn2=4", see.weights),
    Case("lora_alpha_pattern", pictures, "attn2=4", see.weights),
    Case("lora_decompose", pictures, True, see.names),
    Case("lora_decompose_output_axis", pictures, False, see.weights, {"lora_decompose": True}),
    Case("lora_rs", pictures, True, see.weights),
    Case("lora_weight_dtype", pictures, "BFLOAT_16", see.weights),
    Case("dropout_probability", pictures, 0.5, see.weights),
    Case("layer_filter_preset", pictures, "attn-only", see.names),
    Case("layer_filter", pictures, "attn2.to_q", see.names),
    Case("layer_filter_regex", pictures, True, see.names, {"layer_filter": "t."}),
]
CASES = [*LOOP, *OPTIMIZER, *LOSS, *ADAPTER]
