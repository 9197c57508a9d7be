"""A preference step in every schedule, against a supervised LoRA step on the same two images.

Everything but the restated steps runs through the code that trains. Before anything is timed, every schedule
must give the gradient of the restated step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid
from torch.utils.flop_counter import FlopCounterMode

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.adapter.reference import EXISTING_ADAPTER, NEW_ADAPTER, Reference
from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, PairBatch
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.objective.scores import ReferenceOut
from modules.trainer.memory.SavedBytes import SavedBytes
from scripts.benchmarks import _onetrainer, _plain_step
from scripts.benchmarks._measure import Quartiles, Result, Work, interleave, ratios
from scripts.benchmarks._measure import table as plain_table
from scripts.benchmarks._models import MODELS, random_pair
from scripts.benchmarks._onetrainer import OPTION
from scripts.benchmarks._plain_step import PLAIN

BETA = 200.0
BASELINE = "supervised"
RESTATED = "four_passes"
SAFE = "safeguarded_"
"""Prefix of schedules that train with ``rlhf_dpo_safeguard``; their gradient is a different one."""
OVERHEAD = 1.05
HALF_MEMORY = 0.55
GRADIENT_TOLERANCE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default=",".join(MODELS), help=f"comma-separated, of {', '.join(MODELS)} (all by default)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds (default 9)")
    parser.add_argument("--device", default="cpu", help="cpu (one thread, processor time) or cuda")
    parser.add_argument("--rank", type=int, default=16, help="LoRA rank (default 16)")
    parser.add_argument(
        "--reference", choices=(NEW_ADAPTER, EXISTING_ADAPTER), default=NEW_ADAPTER, help="kind of reference"
    )
    parser.add_argument(
        "--against",
        choices=("diffusers", PLAIN),
        help="diffusers: add the usual script-style step, which encodes text and images in every step; "
        f"{PLAIN}: nothing but a supervised LoRA step next to the same arithmetic written plainly (a restatement, not "
        "the other program; --models, --device and --reference do not apply)",
    )
    parser.add_argument(
        OPTION,
        metavar="FOLDER",
        help="run a copy of OneTrainer in its own environment with the same data and settings, --rounds steps each "
        "time, and give three ratios. This was written from its default settings and never run against a real copy",
    )


@dataclass
class Bench:
    """One model with an adapter, one pair, one draw."""

    setup: BaseModelSetup
    model: Model
    handle: AdapterHandle
    reference: Reference
    pair: PairBatch
    draws: tuple[NoiseDraw, NoiseDraw]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for _, parameter in self.handle.named_parameters()]

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])

    def sides(self) -> tuple[ImageBatch, ImageBatch]:
        assert self.pair.rejected is not None
        return self.pair.chosen, self.pair.rejected

    def supervised(self) -> None:
        """The baseline: an ordinary training step on both images."""
        self.model.set_mode("train")
        both, draw = ImageBatch.cat(self.sides()), NoiseDraw.cat(self.draws)
        self.setup.calculate_loss(self.model, both, draw).mean().backward()

    def preference(
        self, mode: str, strategy: str = "AUTO", cached: ReferenceOut | None = None, safe: bool = False
    ) -> Work:
        """A preference step as training does it, with the safeguard if asked for."""

        def work() -> None:
            self.model.set_mode("no_dropout")
            execution.run(
                mode,
                strategy,
                ModelPairScorer(self.setup, self.model, self.pair, self.draws, errors=safe),
                None if cached is not None else self.reference,
                get_preference_loss("SIGMOID"),
                ObjectiveOptions(beta=BETA),
                parameters=self.parameters,
                cached_reference=cached,
                safeguard_mu=0.0 if safe else None,
            )

        return work

    def cached_scores(self) -> ReferenceOut | None:
        scorer = ModelPairScorer(self.setup, self.model, self.pair, self.draws)
        return execution.reference_scores(scorer, self.reference, get_preference_loss("SIGMOID"))

    def restated_error(self, side: ImageBatch, draw: NoiseDraw) -> torch.Tensor:
        """Prediction minus target of one forward pass, written out, (B, C, h, w)."""
        assert side.cond is not None
        noisy = self.model.schedule.add_noise(side.latents_BChw, draw.noise_BChw, draw.timestep_B)
        predicted = self.setup.denoise(self.model, noisy, draw.timestep_B, side.cond, side.size)
        target = self.model.schedule.target(side.latents_BChw, draw.noise_BChw, draw.timestep_B)
        return predicted.float() - target.float()

    def four_passes(self, safe: bool = False) -> None:
        """The textbook step: each image through each model separately, one backward."""
        self.model.set_mode("no_dropout")
        (chosen, rejected), (first, second) = self.sides(), self.draws

        def score(error_BChw: torch.Tensor) -> torch.Tensor:
            return -error_BChw.square().mean(dim=(1, 2, 3))

        with torch.no_grad(), self.reference():
            anchor_chosen = score(self.restated_error(chosen, first))
            anchor_rejected = score(self.restated_error(rejected, second))
        better_BChw = self.restated_error(chosen, first)
        worse_BChw = self.restated_error(rejected, second)
        policy_rejected = score(worse_BChw)
        if safe:
            shared_B = (better_BChw * worse_BChw).detach().sum(dim=(1, 2, 3))
            share_B = (better_BChw.detach().square().sum(dim=(1, 2, 3)) / shared_B).clamp(0, 1)
            share_B = torch.where(shared_B > 0, share_B, 1.0)
            # the value is unchanged, only the gradient is multiplied
            policy_rejected = share_B * policy_rejected + (1 - share_B) * policy_rejected.detach()
        margin = (score(better_BChw) - anchor_chosen) - (policy_rejected - anchor_rejected)
        (-logsigmoid(BETA * margin).mean()).backward()

    def four_passes_safe(self) -> None:
        """The same with the rejected side's gradient multiplied by the safeguard's share."""
        self.four_passes(safe=True)


def make_bench(name: str, device: torch.device, rank: int, reference: str) -> Bench:
    """Build a model from ``MODELS`` with a LoRA of non-zero weights, so that policy and reference differ."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        setup, model = MODELS[name]()
    model.place(device)
    preset = model.spec.layer_presets["attn-mlp"]
    handle = attach(
        model,
        AdapterOptions(rank=rank, alpha=float(rank), parts=(model.spec.denoiser,), patterns=tuple(preset)),
    )
    anchor = Reference(handle, reference)
    generator = torch.Generator().manual_seed(2)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator).to(device)
    pair = random_pair(model, device)
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    return Bench(setup, model, handle, anchor, pair, draws)


def script_step(bench: Bench) -> Work:
    """The step of a typical script: images and prompts are encoded in the step, both sides in one batch,
    adapters switched off and on layer by layer around the reference pass.

    Only for models with the Stable Diffusion layout; text encoder and VAE have its architectures at the width
    of the small UNet.
    """
    from diffusers import AutoencoderKL
    from transformers import CLIPTextConfig, CLIPTextModel

    device, width = bench.model.device, bench.sides()[0].cond["hidden_BLE"].shape[-1]  # type: ignore[index]
    vae: Any = AutoencoderKL(
        block_out_channels=(32, 64, 128, 128),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        layers_per_block=2,
    )
    text_encoder: Any = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=width, intermediate_size=4 * width, num_hidden_layers=6, num_attention_heads=4
        )
    )
    for part in (vae, text_encoder):
        part.to(device).requires_grad_(False)
    pixels = torch.rand(2, 3, *bench.pair.chosen.size, device=device) * 2 - 1
    tokens = torch.randint(0, 1000, (1, 77), device=device).expand(2, -1)
    draw = NoiseDraw.cat(bench.draws)

    def work() -> None:
        bench.model.set_mode("no_dropout")
        latents = vae.encode(pixels).latent_dist.sample() * vae.config.scaling_factor
        cond = Conditioning({"hidden_BLE": text_encoder(tokens).last_hidden_state})
        noisy = bench.model.schedule.add_noise(latents, draw.noise_BChw, draw.timestep_B)

        def error() -> torch.Tensor:
            predicted = bench.setup.denoise(bench.model, noisy, draw.timestep_B, cond, bench.pair.chosen.size)
            return (predicted - draw.noise_BChw).square().mean(dim=(1, 2, 3))

        policy = error()
        with torch.no_grad():
            for layer in bench.handle.layers.values():
                layer.enable_adapters(False)
            anchor = error()
            for layer in bench.handle.layers.values():
                layer.enable_adapters(True)
        difference = (policy - anchor).chunk(2)
        (-logsigmoid(-BETA * (difference[0] - difference[1])).mean()).backward()

    return work


def check_gradients(bench: Bench, cases: dict[str, Work]) -> dict[str, float]:
    """Relative distance of each case's gradient from the restated step's.

    Raises:
        RuntimeError: the gradient of a schedule differs.
    """
    wanted = {}
    for prefix, restated in (("", cases[RESTATED]), (SAFE, bench.four_passes_safe)):
        bench.clear()
        restated()
        wanted[prefix] = bench.gradient()
    errors = {}
    for name, work in cases.items():
        if name in (BASELINE, RESTATED):
            continue
        bench.clear()
        work()
        own = wanted[SAFE if name.startswith(SAFE) else ""]
        errors[name] = float((bench.gradient() - own).norm() / own.norm())
        if not errors[name] < GRADIENT_TOLERANCE:
            raise RuntimeError(
                f"{name} gives a different gradient from the restated step: off by {errors[name]:.2e}"
            )
    return errors


def counted(bench: Bench, cases: dict[str, Work]) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs and peak bytes saved for backward of each case."""
    flops, held = {}, {}
    weights: list[torch.Tensor] = list(bench.model.denoiser.parameters())
    for name, work in cases.items():
        bench.clear()
        with FlopCounterMode(display=False) as counter:
            work()
        flops[name] = counter.get_total_flops()
        bench.clear()
        with SavedBytes(ignore=weights) as saved:
            work()
        held[name] = saved.peak
    return flops, held


def limits_of(flop_ratio: dict[str, float], times: dict[str, Quartiles]) -> dict[str, float]:
    """Highest allowed cost of each case, as a multiple of the supervised step."""
    return {
        "full_concurrent": OVERHEAD * flop_ratio["full_concurrent"],
        "sequential": OVERHEAD * times[RESTATED].middle,
        "cached_reference": OVERHEAD,
        f"{SAFE}cached_reference": OVERHEAD,
    }


def measure(name: str, options: argparse.Namespace) -> list[Result]:
    device = torch.device(options.device)
    bench = make_bench(name, device, options.rank, options.reference)
    cached = bench.cached_scores()
    cases: dict[str, Work] = {
        BASELINE: bench.supervised,
        RESTATED: bench.four_passes,
        "full_concurrent": bench.preference("FULL_CONCURRENT"),
        "policy_concurrent": bench.preference("POLICY_CONCURRENT"),
        "sequential": bench.preference("SEQUENTIAL", "GRAD_STASH"),
        "sequential_three_forward": bench.preference("SEQUENTIAL", "THREE_FORWARD"),
        "cached_reference": bench.preference("FULL_CONCURRENT", cached=cached),
        "cached_sequential": bench.preference("SEQUENTIAL", "GRAD_STASH", cached),
        f"{SAFE}sequential": bench.preference("SEQUENTIAL", "GRAD_STASH", safe=True),
        f"{SAFE}cached_reference": bench.preference("FULL_CONCURRENT", cached=cached, safe=True),
    }
    errors = check_gradients(bench, cases)
    if options.against == "diffusers" and "hidden_BLE" in bench.pair.chosen.cond.tensors and name != "flux":  # type: ignore[union-attr]
        cases["diffusers_script"] = script_step(bench)
    flops, held = counted(bench, cases)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    clock: Callable[[], float] = time.process_time if device.type == "cpu" else time.perf_counter
    seconds = interleave(cases, options.rounds, clock=clock, prepare=bench.clear, settle=settle)
    times = ratios(seconds, BASELINE)
    flop_ratio = {case: flops[case] / flops[BASELINE] for case in cases}
    limits = limits_of(flop_ratio, times)
    return [
        Result(
            model=name,
            case=case,
            ratio=times[case].middle,
            limit=limits.get(case),
            memory_ratio=held[case] / held[BASELINE],
            memory_limit=HALF_MEMORY if case in ("sequential", f"{SAFE}sequential") else None,
            extra={
                "quartiles": [times[case].low, times[case].high],
                "flop_ratio": flop_ratio[case],
                "gradient_error": errors.get(case),
                "seconds": Quartiles.of(seconds[case]).middle,
                "rounds": options.rounds,
                "device": options.device,
                "reference": options.reference,
            },
        )
        for case in cases
    ]


def run(options: argparse.Namespace) -> list[Result]:
    """Measure the requested models one after the other."""
    names = [name.strip() for name in options.models.split(",") if name.strip()]
    unknown = sorted(set(names) - MODELS.keys())
    if unknown or not names:
        raise SystemExit(f"--models: unknown {', '.join(unknown)}; known: {', '.join(MODELS)}")
    if options.rounds < 1:
        raise SystemExit("--rounds: at least 1")
    torch.set_num_threads(1)
    if options.with_onetrainer:
        return _onetrainer.measure(options)
    if options.against == PLAIN:
        return _plain_step.measure(options)
    return [result for name in names for result in measure(name, options)]


def table(results: Sequence[Result]) -> str:
    """The usual table, and below it what a ratio alone does not say."""
    said = [line for result in results for line in result.extra.get("said", ())]
    return "\n".join([plain_table(results), *([""] if said else []), *said])
