"""No field of a model's scheduler config is silently ignored."""

from __future__ import annotations

import inspect
import json
import logging
import math
import shutil
from pathlib import Path

import diffusers
import pytest
import torch

from modules.model.noising.sampling import initial_noise, make_sampler, run_sampler
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.model.noising.scheduler_config import check_scheduler_config, unfollowed
from modules.util.errors import UnsupportedError
from tests.tiny import tiny_folder, tiny_setup

FLOW = ["SANA", "QWEN", "FLUX_DEV_1", "STABLE_DIFFUSION_3"]
DISCRETE = ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "PIXART_ALPHA"]
CONFIGS = Path(__file__).parents[3] / "resources" / "model_config"
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SCHEDULERS = [
    "DDIMScheduler",
    "DDPMScheduler",
    "PNDMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "FlowMatchEulerDiscreteScheduler",
]


def with_scheduler(key: str, folder: Path, **fields: object) -> Path:
    """A copy of a tiny model that asks for more."""
    made = Path(shutil.copytree(tiny_folder(key), folder))
    place = made / "scheduler" / "scheduler_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | fields))
    return made


@pytest.mark.parametrize("key", [*FLOW, *DISCRETE])
def test_what_is_not_followed_is_named_once_at_load(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_scheduler(key, tmp_path / "model", use_beta_sigmas=True, rho=7)
    with caplog.at_level(logging.WARNING):
        tiny_setup(key).load(str(folder), parts=[])
    said = [record.getMessage() for record in caplog.records if "scheduler config" in record.getMessage()]
    assert len(said) == 1
    assert "rho = 7, use_beta_sigmas = True" in said[0] and str(folder) in said[0]


@pytest.mark.parametrize("key", [*FLOW, *DISCRETE])
def test_ordinary_models_load_without_a_word(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tiny_setup(key).load(str(tiny_folder(key)), parts=[])
    assert not [record for record in caplog.records if "scheduler config" in record.getMessage()]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*/scheduler/*.json")), ids=lambda path: path.parts[-3])
def test_shipped_configs_are_followed(path: Path) -> None:
    spec = tiny_setup(path.parts[-3]).spec
    config = json.loads(path.read_text())
    assert unfollowed(config, spec.prediction == "flow") == {}
    check_scheduler_config(config, spec.prediction == "flow", spec.label, path)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_defaults_as_schedulers_write_them_are_followed(name: str) -> None:
    kind = getattr(diffusers, name)
    config = dict(kind(**({"clip_sample": False} if "clip_sample" in kind().config else {})).config)
    # with these on its clean image would be made otherwise at the very end
    config.pop("set_alpha_to_one", None)
    assert unfollowed(config, name.startswith("Flow")) == {}
    if "use_flow_sigmas" in config:
        assert unfollowed(config | {"use_flow_sigmas": True}, True) == {}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("flow", [True, False])
def test_every_switch_of_every_scheduler_is_followed_or_named(name: str, flow: bool) -> None:
    """Whatever says yes or no: saying the other thing is reported, refused, or has an effect."""
    followed = (
        {"use_flow_sigmas", "use_dynamic_shifting", "use_karras_sigmas", "use_exponential_sigmas"}
        | {"stochastic_sampling"}
        if flow
        else {"rescale_betas_zero_snr"}
    )
    idle = {"skip_prk_steps"} | ({"rescale_betas_zero_snr"} if flow else set())
    for field, parameter in inspect.signature(getattr(diffusers, name).__init__).parameters.items():
        if not isinstance(parameter.default, bool) or field in followed | idle:
            continue
        other = not parameter.default if field not in ("clip_sample", "set_alpha_to_one") else True
        try:
            check_scheduler_config({field: other}, flow, "tiny", "model")
        except UnsupportedError as refusal:
            assert field in str(refusal)
        else:
            assert unfollowed({field: other}, flow) == {field: other}


@pytest.mark.parametrize(
    ("fields", "flow"),
    [
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}, False),
        ({"use_flow_sigmas": True}, False),
        ({"prediction_type": "epsilon"}, True),
        ({"num_train_timesteps": 500}, True),
        ({"invert_sigmas": True}, True),
        ({"time_shift_type": "cosine"}, True),
        ({"use_exponential_sigmas": True, "use_karras_sigmas": True}, True),
        ({"timestep_spacing": "cosine"}, False),
        ({"shift": "3"}, True),
        ({"shift": 0}, True),
        ({"flow_shift": math.nan}, True),
        ({"max_shift": math.inf}, True),
        ({"shift_terminal": 1.0}, True),
        ({"shift_terminal": True}, True),
        ({"base_image_seq_len": [1]}, True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_another_kind_of_model_is_refused(fields: dict[str, object], flow: bool) -> None:
    with pytest.raises(UnsupportedError, match=f"has {next(iter(fields))} = "):
        check_scheduler_config(fields, flow, "tiny", "model")


def test_a_flow_model_is_no_stable_diffusion(tmp_path: Path) -> None:
    folder = with_scheduler(
        "STABLE_DIFFUSION_15", tmp_path / "m", _class_name="FlowMatchEulerDiscreteScheduler"
    )
    with pytest.raises(UnsupportedError, match="_class_name = 'FlowMatchEulerDiscreteScheduler'"):
        tiny_setup().load(str(folder), parts=[])


def sigmas(name: str, steps: int = 8, tokens: int = 1024, **config: object) -> torch.Tensor:
    return make_sampler(FlowSchedule(), name, steps, {"shift": 3.0} | config, tokens, even=True).sigmas


@pytest.mark.parametrize("name", ["EULER", "DPMPP", "UNIPC"])
@pytest.mark.parametrize("even", ["use_karras_sigmas", "use_exponential_sigmas"])
def test_every_flow_sampler_spaces_its_levels_as_the_model_says(name: str, even: str) -> None:
    plain, spaced = sigmas(name), sigmas(name, **{even: True})
    assert torch.allclose(plain[[0, -2, -1]], spaced[[0, -2, -1]], atol=1e-5)
    between = spaced[:-1].double() ** (1 / 7) if even == "use_karras_sigmas" else spaced[:-1].double().log()
    assert torch.allclose(between.diff(), between.diff().mean(), rtol=1e-3)
    timesteps = make_sampler(FlowSchedule(), name, 8, {"shift": 3.0, even: True}, even=True).timesteps
    assert torch.allclose(timesteps.double(), spaced[:-1].double() * 1000, atol=0.51)


@pytest.mark.parametrize("name", ["EULER", "DPMPP", "UNIPC"])
@pytest.mark.parametrize("extra", [{}, {"use_karras_sigmas": True}], ids=["plain", "karras"])
def test_every_flow_sampler_ends_at_the_models_last_level(name: str, extra: dict[str, object]) -> None:
    levels = sigmas(name, shift_terminal=0.02, **extra)
    assert math.isclose(float(levels[-2]), 0.02, rel_tol=1e-4) and float(levels[-1]) == 0.0
    assert math.isclose(float(levels[0]), 1.0, rel_tol=2e-3)
    assert torch.isfinite(sigmas(name, 1, shift_terminal=0.02, **extra)).all(), (
        "a single step has no last level"
    )


@pytest.mark.parametrize("name", ["EULER", "DPMPP", "UNIPC"])
@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_every_flow_sampler_shifts_as_the_model_says(name: str, kind: str) -> None:
    moved = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "time_shift_type": kind}
    shift = 0.5 + 0.65 * (1024 - 256) / 3840
    factor = math.exp(shift) if kind == "exponential" else shift
    expected = sigmas(name, shift=factor)
    assert torch.allclose(sigmas(name, **moved), expected, atol=1e-5)


def test_stochastic_sampling_adds_each_images_own_noise() -> None:
    def sample(*seeds: int, **config: object) -> torch.Tensor:
        noise, generators = initial_noise(seeds, (4, 4, 4))
        sampler = make_sampler(FlowSchedule(), "EULER", 4, config)
        return run_sampler(sampler, lambda x, t: 0.5 * x, noise, generators)

    both = sample(1, 2, stochastic_sampling=True)
    assert torch.equal(both[1:], sample(2, stochastic_sampling=True)), "the seed alone decides"
    assert not torch.allclose(both[1:], sample(2))


@pytest.mark.parametrize("name", ["DDIM", "EULER", "DPMPP", "UNIPC"])
def test_spacing_and_offset_of_a_discrete_models_own_config(name: str) -> None:
    schedule = DiscreteSchedule.from_config(BETAS)

    def steps(**config: object) -> list[float]:
        return make_sampler(schedule, name, 10, BETAS | config).timesteps.tolist()

    leading, trailing = steps(timestep_spacing="leading"), steps(timestep_spacing="trailing")
    assert trailing[0] == 999 and leading[0] < 999
    offset = steps(timestep_spacing="leading", steps_offset=1)
    assert [a - b for a, b in zip(offset, leading, strict=True)] == [1] * 10


def test_a_config_that_ends_in_noise_is_trained_and_sampled_so() -> None:
    config = BETAS | {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
    schedule = DiscreteSchedule.from_config(config)
    assert float(schedule.alphas_cumprod_T[-1]) == 0.0 and schedule.prediction == "v_prediction"
    sampler = make_sampler(schedule, "DDIM", 10, config)
    assert sampler.timesteps[0] == 999 and sampler.config.prediction_type == "v_prediction"


def test_fields_that_say_nothing_are_as_absent() -> None:
    fields = {"shift": None, "base_shift": None, "max_shift": None, "base_image_seq_len": None}
    moved = {"use_dynamic_shifting": True, **fields}
    for name in ("EULER", "DPMPP"):
        usual = make_sampler(FlowSchedule(), name, 5, {"use_dynamic_shifting": True}, 1024).sigmas
        assert torch.equal(make_sampler(FlowSchedule(), name, 5, moved, 1024).sigmas, usual)
