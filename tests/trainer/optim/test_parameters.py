"""The table of each update rule's parameters says what its class has, and its parameters act."""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

import pytest
import torch

from modules.trainer.assembly import check_settings
from modules.trainer.optim.muon import muon_groups
from modules.trainer.optim.optimizers import (
    CLASSES,
    NEEDS_MOMENTUM,
    NOT_FOR_USERS,
    NOT_RESUMED,
    ROUNDS_ITSELF,
    create_optimizer,
    load_optimizer_state,
    optimizer_arguments,
    optimizer_class,
    optimizer_state,
)
from modules.util.config.load import find_problems
from modules.util.config.optimizer.meanings import FIELDS, MEANINGS, OTHERWISE
from modules.util.config.optimizer.OptimizerParameter import OptimizerParameter
from modules.util.config.optimizer.tables import CLASS_NAMES, DEFAULTS, parameter_of, parameters_of
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError
from tests.trainer.optim.kinds import KINDS, usual_kinds

REFUSED_OR_UNUSED = {"amsgrad", "optim_bits", "args", "lr_decay", "initial_accumulator_value", "bias_correction",
                     "adam_w_mode", "max_unorm", "dampening", "nesterov", "momentum", "centered"}  # fmt: skip
"""Of bitsandbytes' classes: they refuse another value, or their kernels have no use for it."""
TUPLES = {"adamw_lr", "adamw_betas", "ns_reset_steps", "ns_coeffs", "adam_betas"}
"""Of MUON's classes: lists of numbers, and the rate that ``muon_adam_lr`` sets for each group."""
UNUSED = {"adam_fisher_wd", "adam_kourkoutas_beta", "adam_beta2_min", "adam_ema_alpha", "adam_tiny_spike",
          "adam_k_warmup_steps", "vector_reshape"}  # fmt: skip
"""Of MUON_ADV and ADAMUON_ADV: the class reads other names."""


def left_out(kind: Optimizer) -> set[str]:
    if CLASSES[kind][0].startswith("bitsandbytes"):
        return REFUSED_OR_UNUSED
    return TUPLES | UNUSED if kind.of_matrices else set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_that_of_the_class(kind: Optimizer) -> None:
    accepted = dict(inspect.signature(optimizer_class(kind)).parameters)
    if kind.of_matrices:
        accepted |= inspect.signature(muon_groups).parameters
    for name in (*NOT_FOR_USERS, *NOT_RESUMED):
        accepted.pop(name, None)
    rest = set(accepted)
    for one in parameters_of(kind):
        name = CLASS_NAMES.get((kind, one.name), one.name)
        if one.name in ("beta1", "beta2") and "betas" in accepted:
            default, name = accepted["betas"].default[int(one.name[-1]) - 1], "betas"
        else:
            default = accepted[name].default
        rest.discard(name)
        ours = one.name == "fused" or (kind in NEEDS_MOMENTUM and one.name == "momentum")
        assert ours or default == one.default, one.name
        assert not one.fault(one.default), one.name
        assert one.about.endswith(".") and one.allowed(), one.name
    assert rest <= left_out(kind)


def test_every_meaning_is_used() -> None:
    used = {name for table in DEFAULTS.values() for name in table}
    assert set(DEFAULTS) == set(Optimizer)
    assert set(MEANINGS) - used == {"adamw_lr", "use_bias_correction"} - used
    for kind, name in OTHERWISE:
        assert name in DEFAULTS[Optimizer(kind)], (kind, name)


SPEED = {"foreach", "fused", "is_paged", "compiled_optimizer", "factored_fp32", "min_8bit_size"}
NEEDS: dict[str, dict[str, Any]] = {
    "nesterov_coef": {"nesterov": True}, "n_sma_threshold": {"rectify": True}, "degenerated_to_sgd": {"rectify": True},
    "warmup_init": {"relative_step": True}, "centered_wd_mode": {"centered_wd": 0.5},
    "normuon_eps": {"normuon_variant": True}, "beta2_normuon": {"normuon_variant": True},
    "mars_gamma": {"approx_mars": True}, "cns_a_bound": {"accelerated_ns": True},
    "vector_reshape": {"nnmf_factor": True}, "muon_adam_regex": {"muon_hidden_layers": "."},
    "adam_nesterov_coef": {"adam_nesterov": True}, "weight_decouple": {"weight_decay": 0.1},
    "fixed_decay": {"weight_decay": 0.1, "weight_decouple": True}, "weight_decay_by_lr": {"weight_decay": 0.1},
    "decoupled_weight_decay": {"weight_decay": 0.1}, "cautious_wd": {"weight_decay": 0.5},
    "fisher_wd": {"weight_decay": 0.5}, "geometric_wd": {"weight_decay": 0.5}, "dampening": {"momentum": 0.9},
    "max_grad_norm": {"pre_norm": True},
    "snr_cond": {"normed_momentum": True}, "split_groups_mean": {"split_groups": True},
}  # fmt: skip
VALUES: dict[str, Any] = {
    "muon_hidden_layers": "other", "growth_rate": 1.01, "eps2": 5.0, "max_grad_norm": 0.1, "ns_eps": 50.0,
    "n_sma_threshold": 9, "nesterov": True,
}  # fmt: skip
TOO_SMALL_TO_SEE = {
    (Optimizer.SCHEDULE_FREE_SGD, "eps"),  # as its sentence says
    (Optimizer.DADAPT_LION, "beta1"),  # no sign of an update turns on so short a way
    (Optimizer.DADAPT_ADA_GRAD, "fixed_decay"),
    (Optimizer.DADAPT_ADA_GRAD, "growth_rate"),
    (Optimizer.LION_ADV, "vector_reshape"),
}


def another(one: OptimizerParameter) -> Any:
    """A value that is not the default and may be seen in a few steps."""
    default = one.default
    if one.name in VALUES and VALUES[one.name] != default:
        return VALUES[one.name]
    if one.choices:
        return next(choice for choice in reversed(one.choices) if choice != default)
    if one.kind == "switch":
        return not default
    if one.kind == "whole":
        return 3 if default != 3 else 2
    if one.limits.lt == 0:
        return -0.5
    if not default or one.name.endswith(("eps", "spike")) or one.name in ("xi", "eps1"):
        return 0.5
    assert isinstance(default, float)
    return (
        default * 0.8
        if one.limits.lt == 1
        else 2.0 * default
        if not one.fault(2.0 * default)
        else default / 2
    )


def trained(kind: Optimizer, values: dict[str, Any], again: bool = False) -> torch.Tensor:
    """Weights after a few noisy steps; the learning rate rises and falls, and one gradient is a spike."""
    source = torch.Generator().manual_seed(1)
    shapes = {"block.a": (36, 33), "block.b": (8,), "block.c": (3, 2, 3, 3), "other": (6, 5)}
    if kind.value.endswith("8BIT"):
        shapes = {"block.a": (64, 65), "other": (8,)}
    named = [(n, torch.nn.Parameter(torch.randn(s, generator=source))) for n, s in shapes.items()]
    wanted = [torch.randn(p.shape, generator=source) for _, p in named]
    if kind.adapts_its_rate:
        values = {"d0": 1e-3, **values}
    config = OptimizerConfig(
        optimizer=kind,
        params={n: v for n, v in values.items() if n not in FIELDS},
        **{n: v for n, v in values.items() if n in FIELDS},
    )
    rate = 1.0 if kind.adapts_its_rate else 1e-2
    optimizer = create_optimizer(config, [("a", rate, named[:1]), ("b", rate / 2, named[1:])])
    for number in range(8):
        if again and number == 4:
            saved = optimizer_state(optimizer, list(shapes))
            named = [(n, torch.nn.Parameter(p.detach().clone())) for n, p in named]
            optimizer = create_optimizer(config, [("a", rate, named[:1]), ("b", rate / 2, named[1:])])
            load_optimizer_state(optimizer, copy.deepcopy(saved), list(shapes))
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * (0.5, 1.0, 0.8, 0.6)[number % 4]
        for (_, parameter), goal in zip(named, wanted, strict=True):
            noise = torch.randn(parameter.shape, generator=source)
            parameter.grad = (parameter.detach() - goal + 0.3 * noise) * (5.0 if number == 5 else 1.0)
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return torch.cat([parameter.detach().flatten() for _, parameter in named])


SHARED = (Optimizer.MUON_ADV, Optimizer.ADAMUON_ADV)
"""Their parameters are nearly all those of MUON and of the other rules of their package, which are looked at faster."""


@pytest.mark.parametrize("kind", usual_kinds(*(kind for kind in Optimizer if kind not in SHARED)))
def test_each_parameter_moves_the_weights(kind: Optimizer) -> None:
    plain: dict[str, torch.Tensor] = {}
    for one in parameters_of(kind):
        if one.name in SPEED or (kind, one.name) in TOO_SMALL_TO_SEE:
            continue
        base = dict(NEEDS.get(one.name, {}))
        if one.name == "kappa_p" and kind is Optimizer.ADAMUON_ADV:
            base = {"auto_projection": False}
        if one.name == "nesterov" and kind is Optimizer.SGD:
            base = {"momentum": 0.9}
        if repr(base) not in plain:
            plain[repr(base)] = trained(kind, base)
        other = trained(kind, {**base, one.name: another(one)})
        assert not torch.equal(other, plain[repr(base)]), f"{one.name} = {another(one)} changes nothing"
        if CLASSES[kind][0] in ROUNDS_ITSELF:  # of these packages each parameter keeps a state of its own
            resumed = trained(kind, {**base, one.name: another(one)}, again=True)
            assert torch.equal(resumed, other), f"{one.name} = {another(one)} is not resumed"


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        ({"optimizer": "ADAMW", "params": {"amsgrd": True}}, "optimizer.params", "did you mean 'amsgrad'?"),
        (
            {"optimizer": "PRODIGY", "params": {"d_coef": 0.0}},
            "optimizer.params",
            "d_coef must be a number, above 0",
        ),
        (
            {"optimizer": "SGD", "params": {"nesterov": 1}},
            "optimizer.params",
            "nesterov must be true or false, not 1",
        ),
        (
            {"optimizer": "MUON", "params": {"ns_steps": 2.5}},
            "optimizer.params",
            "ns_steps must be a whole number",
        ),
        ({"optimizer": "ADOPT", "params": {"eps": None}}, "optimizer.params", "not null"),
        (
            {"optimizer": "ADAMW_ADV", "params": {"state_precision": "int8_sr"}},
            "optimizer.params",
            "must be one of auto, fp32",
        ),
        ({"optimizer": "SGD", "beta1": 0.5}, "optimizer.beta1", "SGD has no beta1"),
        ({"optimizer": "PRODIGY_PLUS_SCHEDULE_FREE", "eps": 0.0}, "optimizer.eps", "above 0"),
        (
            {
                "optimizer": "PRODIGY_PLUS_SCHEDULE_FREE",
                "params": {"use_schedulefree": False, "use_cautious": True},
            },
            "optimizer.params",
            "wrong direction",
        ),
    ],
)
def test_what_an_update_rule_cannot_use_is_found_without_its_class(
    given: dict[str, Any], place: str, said: str
) -> None:
    (found,) = find_problems(TrainConfig.from_dict({"optimizer": given})).errors
    assert found.field == place and said in str(found)


def moved_towards(**params: bool) -> float:
    """Where PRODIGY_PLUS_SCHEDULE_FREE moves a weight that begins at 0 and should be 3."""
    from modules.trainer.optim.optimizers import optimizer_class

    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = optimizer_class(Optimizer.PRODIGY_PLUS_SCHEDULE_FREE)([weight], lr=1.0, split_groups=False, **params)
    for _ in range(20):
        optimizer.zero_grad()
        (weight - 3).square().sum().backward()
        optimizer.step()
    return float(weight.detach().mean())


def test_what_is_refused_because_of_its_library_is_still_wrong_there() -> None:
    """Once this fails, the rule that refuses it can go."""
    assert moved_towards(use_cautious=True) > 0 and moved_towards(use_schedulefree=False) > 0
    assert moved_towards(use_schedulefree=False, use_cautious=True) < 0


def test_names_of_the_class_stand_for_the_field() -> None:
    for kind, name in (
        (Optimizer.TIGER, "beta"),
        (Optimizer.RMSPROP, "alpha"),
        (Optimizer.ADAFACTOR, "beta1"),
    ):
        assert parameter_of(kind, name) is not None
    assert parameter_of(Optimizer.ADAMW, "beta") is None


@pytest.mark.parametrize(
    ("kind", "module"), [("PRODIGY_PLUS_SCHEDULE_FREE", "prodigyplus"), ("LION_ADV", "adv_optm")]
)
def test_a_missing_package_names_the_install_line_before_a_model_is_loaded(
    kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=module) as caught:
        check_settings(TrainConfig.from_dict({"optimizer": {"optimizer": kind}, "learning_rate": 1.0}))
    assert caught.value.field == "optimizer.optimizer"
    assert "pip install -r requirements-optimizers.txt" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"optimizer": "SGD_8BIT", "params": {"nesterov": True}}, "optimizer.params"),
        ({"optimizer": "LARS_8BIT", "params": {"dampening": 0.5}}, "optimizer.params"),
        ({"optimizer": "ADAGRAD_8BIT", "params": {"lr_decay": 0}}, "optimizer.params"),
        ({"optimizer": "ADAGRAD_8BIT", "params": {"initial_accumulator_value": 0.0}}, "optimizer.params"),
        ({"optimizer": "RMSPROP_8BIT", "momentum": 0.9}, "optimizer.momentum"),
    ],
)
def test_arguments_of_earlier_imports_are_pointed_out_and_do_not_stop(
    given: dict[str, Any], place: str
) -> None:
    config = TrainConfig.from_dict({"optimizer": given})
    found = find_problems(config)
    assert found.errors == []
    kind = given["optimizer"]
    said = f"has no effect with {kind}; remove it"
    assert [one.field for one in found.warnings if one.message.endswith(said)] == [place]
    named = given.get("params") or {"momentum": 0.9}
    assert named.items() <= optimizer_arguments(config.optimizer).items(), "the class gets it as before"


def test_a_value_that_the_class_refuses_is_still_an_error() -> None:
    given = {"optimizer": "ADAGRAD_8BIT", "params": {"lr_decay": 0.1}}
    (found,) = find_problems(TrainConfig.from_dict({"optimizer": given})).errors
    assert found.field == "optimizer.params"


@pytest.mark.parametrize(
    ("kind", "params", "warned"),
    [
        ("PRODIGY", {}, True),
        ("PRODIGY_PLUS_SCHEDULE_FREE", {}, False),
        ("PRODIGY_PLUS_SCHEDULE_FREE", {"split_groups": False}, True),
        ("PRODIGY_PLUS_SCHEDULE_FREE", {"split_groups_mean": True}, True),
    ],
)
def test_rates_that_differ_are_pointed_out_where_parts_share_a_step_size(
    kind: str, params: dict[str, Any], warned: bool
) -> None:
    config = TrainConfig.from_dict({
        "model_type": "STABLE_DIFFUSION_15", "training_method": "LORA", "learning_rate": 1.0,
        "unet": {"train": True}, "text_encoder": {"train": True, "learning_rate": 0.5},
        "optimizer": {"optimizer": kind, "params": params},
    })  # fmt: skip
    assert any("one step size" in one.message for one in find_problems(config).warnings) is warned
