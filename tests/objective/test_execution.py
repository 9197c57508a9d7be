"""Every schedule gives autograd's gradient of the whole loss and costs what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.utils.flop_counter import FlopCounterMode

from modules.objective import execution
from modules.objective.preference import (
    LossOut,
    ObjectiveOptions,
    PairScores,
    PreferenceLoss,
    get_preference_loss,
)
from modules.objective.scores import ReferenceOut
from tests.objective.toy import ToyNet, ToyReference, ToyScorer, toy_pairs

OPTIONS = {
    "SIGMOID": ObjectiveOptions(beta=3.0, label_smoothing=0.1),
    "IPO": ObjectiveOptions(ipo_tau=0.7),
    "HINGE": ObjectiveOptions(beta=0.8),
    "KTO": ObjectiveOptions(beta=1.5, reference_point=0.3, class_weights=(0.8, 0.2)),
    "MAPO": ObjectiveOptions(beta=2.5, mapo_weight=0.6),
    "FREE": ObjectiveOptions(beta=2.0),
}
SCHEDULES = [
    ("FULL_CONCURRENT", "AUTO"),
    ("POLICY_CONCURRENT", "AUTO"),
    ("SEQUENTIAL", "THREE_FORWARD"),
    ("SEQUENTIAL", "GRAD_STASH"),
]


def _free(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """A reference-free loss whose gradient differs between the sides, so that no schedule may assume
    symmetry.
    """
    z = options.beta * (scores.policy_chosen - 0.5 * scores.policy_rejected)
    loss = -logsigmoid(z) + 0.1 * scores.policy_chosen**2
    margin = scores.policy_chosen - scores.policy_rejected
    return LossOut(loss, loss, z, margin, scores.policy_chosen, scores.policy_rejected)


def objective_named(name: str) -> PreferenceLoss:
    return PreferenceLoss("FREE", _free, False, False) if name == "FREE" else get_preference_loss(name)


def whole_loss(
    scorer: ToyScorer,
    reference: ToyReference,
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    mix: float,
) -> torch.Tensor:
    """The loss written down as one expression for autograd, independent of the schedules."""
    with torch.no_grad(), reference():
        anchors = (scorer("chosen").score_B, scorer("rejected").score_B)
    chosen = scorer("chosen", True)
    rejected = scorer("rejected")
    if not objective.needs_reference:
        anchors = (None, None)
    out = objective.function(PairScores(chosen.score_B, rejected.score_B, *anchors), options)
    return out.loss_B.mean() + mix * chosen.supervised_B.mean()


def relative_error(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    difference = sum(float((a - b).square().sum()) for a, b in zip(got, wanted, strict=True)) ** 0.5
    return difference / sum(float(b.square().sum()) for b in wanted) ** 0.5


def gradients(net: ToyNet) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.trained()]


CASES = [
    pytest.param(
        schedule,
        existing,
        objective,
        count,
        mix,
        id="-".join(map(str, (*schedule, existing, objective, count, mix))),
        # every pair of values is in the usual run, and every schedule with every reference and loss
        marks=[] if (count == 3) == (mix > 0.0) ^ existing else [pytest.mark.slow],
    )
    for schedule, existing, objective, count, mix in itertools.product(
        SCHEDULES, (False, True), OPTIONS, (1, 3), (0.0, 0.25)
    )
]


@pytest.mark.parametrize(("schedule", "existing", "objective", "count", "mix"), CASES)
def test_gradient_is_that_of_the_whole_loss(
    schedule: tuple[str, str], existing: bool, objective: str, count: int, mix: float
) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing)
    scorer = toy_pairs(net, count)
    scorer.reference = reference
    loss_fn, options = objective_named(objective), OPTIONS[objective]
    generator = torch.Generator().manual_seed(5)
    earlier = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in net.trained()]
    scale = 0.37

    loss = whole_loss(scorer, reference, loss_fn, options, mix)
    wanted = torch.autograd.grad(loss * scale, net.trained())
    snapshot = [tensor.clone() for tensor in reference.snapshot]
    live = [parameter.data_ptr() for parameter in net.trained()]

    for parameter, gradient in zip(net.trained(), earlier, strict=True):
        parameter.grad = gradient.clone()
    out = execution.run(
        *schedule,
        scorer,
        reference,
        loss_fn,
        options,
        parameters=net.trained(),
        supervised_mix=mix,
        loss_scale=scale,
    )

    fresh = [gradient - before for gradient, before in zip(gradients(net), earlier, strict=True)]
    assert relative_error(fresh, list(wanted)) < 1e-12
    assert all(gradient.abs().sum() > 0 for gradient in fresh)
    assert all(parameter.grad is None for parameter in net.base())
    assert torch.isclose(out.loss, loss.detach(), rtol=1e-13)
    assert out.loss.isfinite()
    assert not out.loss.requires_grad
    assert out.pairs == count
    assert (out.supervised_loss is None) == (mix == 0.0)
    assert [p.data_ptr() for p in net.trained()] == live
    assert all(torch.equal(a, b) for a, b in zip(snapshot, reference.snapshot, strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_gradient_with_checkpointing(schedule: tuple[str, str]) -> None:
    """A reference context open during a recomputing backward would give the wrong weights' gradient."""
    wanted = None
    for checkpointing in (False, True):
        net = ToyNet(checkpointing=checkpointing)
        reference = ToyReference(net, existing=True)
        scorer = toy_pairs(net, 2)
        execution.run(
            *schedule,
            scorer,
            reference,
            objective_named("SIGMOID"),
            OPTIONS["SIGMOID"],
            parameters=net.trained(),
        )
        if wanted is None:
            wanted = gradients(net)
    assert relative_error(gradients(net), wanted) < 1e-13


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_float32_schedules_agree(schedule: tuple[str, str]) -> None:
    net = ToyNet().float()
    reference = ToyReference(net, existing=True)
    scorer = toy_pairs(net, 2)
    scorer.chosen = tuple(side.float() for side in scorer.chosen)
    scorer.rejected = tuple(side.float() for side in scorer.rejected)
    loss = whole_loss(scorer, reference, objective_named("SIGMOID"), OPTIONS["SIGMOID"], 0.25)
    wanted = torch.autograd.grad(loss, net.trained())
    out = execution.run(
        *schedule,
        scorer,
        reference,
        objective_named("SIGMOID"),
        OPTIONS["SIGMOID"],
        parameters=net.trained(),
        supervised_mix=0.25,
    )
    assert relative_error(gradients(net), list(wanted)) < 1e-5
    assert out.loss.dtype == torch.float32


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_cached_reference_saves_the_reference_passes(schedule: tuple[str, str]) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    scorer = toy_pairs(net, 2)
    objective, options = objective_named("SIGMOID"), OPTIONS["SIGMOID"]
    execution.run(*schedule, scorer, reference, objective, options, parameters=net.trained())
    live = gradients(net)
    cached = execution.reference_scores(scorer, reference, objective)
    for parameter in net.trained():
        parameter.grad = None
    scorer.calls.clear()
    out = execution.run(
        *schedule, scorer, None, objective, options, parameters=net.trained(), cached_reference=cached
    )
    assert relative_error(gradients(net), live) < 1e-13
    assert out.loss.isfinite()
    assert len([side for side, with_grad in scorer.calls if not with_grad]) == (
        1 if schedule[1] == "THREE_FORWARD" else 0
    )


def test_what_each_schedule_runs() -> None:
    objective, options = objective_named("SIGMOID"), OPTIONS["SIGMOID"]
    expected = {
        "FULL_CONCURRENT": [("both", False), ("both", True)],
        "POLICY_CONCURRENT": [("chosen", False), ("rejected", False), ("chosen", True), ("rejected", True)],
        "THREE_FORWARD": [
            *[("chosen", False), ("rejected", False)],
            *[("rejected", False), ("chosen", True), ("rejected", True)],
        ],
        "GRAD_STASH": [("chosen", False), ("rejected", False), ("rejected", True), ("chosen", True)],
    }
    for mode, strategy in SCHEDULES:
        net = ToyNet()
        reference = ToyReference(net, existing=False)
        scorer = toy_pairs(net, 1)
        execution.run(mode, strategy, scorer, reference, objective, options, parameters=net.trained())
        assert scorer.calls == expected[mode if mode != "SEQUENTIAL" else strategy]
        assert reference.entered == 1


def test_no_reference_pass_for_a_loss_without_reference() -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=False)
    scorer = toy_pairs(net, 2)
    execution.run(
        "FULL_CONCURRENT",
        "AUTO",
        scorer,
        reference,
        objective_named("FREE"),
        OPTIONS["FREE"],
        parameters=net.trained(),
    )
    assert scorer.calls == [("both", True)]
    assert reference.entered == 0


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_policy_at_the_reference_gives_log_two_and_no_accuracy(schedule: tuple[str, str]) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    reference.snapshot = [parameter.detach().clone() for parameter in net.trained()]
    # the number of images in a pass decides how a product of matrices is rounded
    net.register_forward_hook(lambda _, __, made: made * (1.0 + 1e-9 * len(made)))
    scorer = toy_pairs(net, 3)
    out = execution.run(
        *schedule,
        scorer,
        reference,
        objective_named("SIGMOID"),
        ObjectiveOptions(beta=5000.0),
        parameters=net.trained(),
    )
    assert torch.allclose(out.raw_loss, torch.tensor(2.0).double().log(), atol=1e-10)
    assert out.accuracy == 0.0
    assert torch.equal(out.margin_B, torch.zeros(3, dtype=torch.float64))
    assert all(gradient.isfinite().all() for gradient in gradients(net))


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
@pytest.mark.parametrize("objective", ["SIGMOID", "HINGE"])
def test_beta_zero_gives_a_gradient_of_zero(schedule: tuple[str, str], objective: str) -> None:
    net = ToyNet()
    scorer = toy_pairs(net, 2)
    out = execution.run(
        *schedule,
        scorer,
        ToyReference(net, existing=False),
        objective_named(objective),
        ObjectiveOptions(beta=0.0),
        parameters=net.trained(),
    )
    expected = torch.tensor(2.0).double().log() if objective == "SIGMOID" else torch.tensor(1.0).double()
    assert torch.equal(out.raw_loss, expected)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients(net))


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 5])
def test_an_exception_puts_everything_back(schedule: tuple[str, str], fail_at: int) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    scorer = toy_pairs(net, 1)
    scorer.fail_at = fail_at
    earlier = [torch.ones_like(parameter) for parameter in net.trained()]
    for parameter, gradient in zip(net.trained(), earlier, strict=True):
        parameter.grad = gradient
    before = [parameter.detach().clone() for parameter in net.trained()]
    pointers = [parameter.data_ptr() for parameter in net.trained()]
    arguments = (*schedule, scorer, reference, objective_named("SIGMOID"), OPTIONS["SIGMOID"])
    calls = {"FULL_CONCURRENT": 2, "POLICY_CONCURRENT": 4}.get(
        schedule[0], 5 if schedule[1] == "THREE_FORWARD" else 4
    )
    if fail_at > calls:
        execution.run(*arguments, parameters=net.trained())
        return
    with pytest.raises(MemoryError):
        execution.run(*arguments, parameters=net.trained())
    assert not reference.open
    assert [parameter.data_ptr() for parameter in net.trained()] == pointers
    assert all(torch.equal(p, b) for p, b in zip(net.trained(), before, strict=True))
    assert all(p.grad is gradient for p, gradient in zip(net.trained(), earlier, strict=True))
    if schedule[1] != "THREE_FORWARD":
        assert all(torch.equal(p.grad, torch.ones_like(p)) for p in net.trained())


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_a_gradient_scaler_only_scales(schedule: tuple[str, str]) -> None:
    objective, options = objective_named("SIGMOID"), OPTIONS["SIGMOID"]
    results = []
    for factor in (1.0, 1024.0):
        net = ToyNet()
        scorer = toy_pairs(net, 2)

        def backward(total: torch.Tensor, factor: float = factor) -> None:
            (total * factor).backward()

        reference = ToyReference(net, existing=False)
        execution.run(
            *schedule, scorer, reference, objective, options, parameters=net.trained(), backward=backward
        )
        results.append([gradient / factor for gradient in gradients(net)])
    assert relative_error(results[1], results[0]) < 1e-13


def test_stashed_gradients_have_the_size_of_the_final_ones() -> None:
    """The first backward pass already has a coefficient of the right order, so half precision neither over-
    nor underflows where the plain schedule would not.
    """
    net = ToyNet()
    scorer = toy_pairs(net, 1)
    seen: list[float] = []

    def backward(total: torch.Tensor) -> None:
        seen.append(float(total.detach()))
        total.backward()

    reference = ToyReference(net, existing=False)
    execution.run(
        *SCHEDULES[3],
        scorer,
        reference,
        objective_named("SIGMOID"),
        ObjectiveOptions(beta=5000.0),
        parameters=net.trained(),
        backward=backward,
    )
    rejected_score = float(scorer("rejected").score_B.detach())
    assert seen[0] == pytest.approx(2500.0 * rejected_score)


def saved_bytes_peak(work: Callable[[], None]) -> int:
    """Highest sum of bytes autograd holds for backward passes; each storage counts once."""
    from modules.trainer.memory.SavedBytes import SavedBytes

    with SavedBytes() as counter:
        work()
    return counter.peak


@pytest.mark.parametrize("safeguard_mu", [None, 0.1])
@pytest.mark.parametrize("strategy", ["THREE_FORWARD", "GRAD_STASH"])
def test_sequential_holds_half_the_activations(strategy: str, safeguard_mu: float | None) -> None:
    peaks = {}
    for mode in ("FULL_CONCURRENT", "POLICY_CONCURRENT", "SEQUENTIAL"):
        net = ToyNet(blocks=6)
        scorer = toy_pairs(net, 1, tokens=256)
        scorer.errors = safeguard_mu is not None
        reference = ToyReference(net, existing=False)

        def work(
            mode: str = mode, net: ToyNet = net, scorer: ToyScorer = scorer, ref: ToyReference = reference
        ) -> None:
            execution.run(
                mode,
                strategy,
                scorer,
                ref,
                objective_named("SIGMOID"),
                OPTIONS["SIGMOID"],
                parameters=net.trained(),
                safeguard_mu=safeguard_mu,
            )

        peaks[mode] = saved_bytes_peak(work)
    assert peaks["SEQUENTIAL"] <= 0.55 * peaks["POLICY_CONCURRENT"]
    assert peaks["SEQUENTIAL"] <= 0.60 * peaks["FULL_CONCURRENT"]
    assert peaks["SEQUENTIAL"] > 0.2 * peaks["POLICY_CONCURRENT"]


def test_stash_holds_one_pair_of_many() -> None:
    peaks = []
    for count in (1, 4):
        net = ToyNet(blocks=4)
        scorer = toy_pairs(net, count, tokens=256)
        reference = ToyReference(net, existing=False)

        def work(net: ToyNet = net, scorer: ToyScorer = scorer, ref: ToyReference = reference) -> None:
            execution.run(
                *SCHEDULES[3],
                scorer,
                ref,
                objective_named("SIGMOID"),
                OPTIONS["SIGMOID"],
                parameters=net.trained(),
            )

        peaks.append(saved_bytes_peak(work))
    assert peaks[1] <= 1.05 * peaks[0]


@pytest.mark.parametrize("mix", [0.0, 0.25])
def test_stash_does_the_work_of_the_batched_schedule(mix: float) -> None:
    counts = {}
    for schedule in SCHEDULES:
        net = ToyNet()
        scorer = toy_pairs(net, 2)
        reference = ToyReference(net, existing=True)
        with FlopCounterMode(display=False) as counter:
            execution.run(
                *schedule,
                scorer,
                reference,
                objective_named("SIGMOID"),
                OPTIONS["SIGMOID"],
                parameters=net.trained(),
                supervised_mix=mix,
            )
        counts[schedule] = counter.get_total_flops()
    assert counts[SCHEDULES[0]] == counts[SCHEDULES[1]] == counts[SCHEDULES[3]]
    assert counts[SCHEDULES[2]] > counts[SCHEDULES[0]]


def test_evaluate_matches_and_leaves_no_gradient() -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    scorer = toy_pairs(net, 3)
    objective, options = objective_named("SIGMOID"), OPTIONS["SIGMOID"]
    with torch.enable_grad():
        together = execution.evaluate(scorer, reference, objective, options)
        apart = execution.evaluate(scorer, reference, objective, options, together=False)
    assert all(parameter.grad is None for parameter in net.trained())
    assert all(not with_grad for _, with_grad in net.calls)
    assert torch.allclose(together.margin_B, apart.margin_B, rtol=1e-12)
    trained = execution.run(
        "FULL_CONCURRENT", "AUTO", scorer, reference, objective, options, parameters=net.trained()
    )
    assert torch.equal(trained.raw_loss_B, together.raw_loss_B)
    assert torch.equal(trained.chosen_reward_B, together.chosen_reward_B)


class TestRefusals:
    def call(self, mode: str = "FULL_CONCURRENT", **changes: object) -> None:
        net = ToyNet()
        arguments = {"parameters": net.trained()} | changes
        reference = arguments.pop("reference", ToyReference(net, existing=False))
        execution.run(
            mode,
            "AUTO",
            arguments.pop("scorer", toy_pairs(net, 2)),
            reference,
            objective_named("SIGMOID"),
            OPTIONS["SIGMOID"],
            **arguments,
        )

    def test_unknown_mode(self) -> None:
        with pytest.raises(ValueError, match="unknown execution mode 'PARALLEL'"):
            self.call("PARALLEL")

    def test_no_reference(self) -> None:
        with pytest.raises(RuntimeError, match="needs a reference"):
            self.call(reference=None)

    def test_cached_scores_of_another_batch(self) -> None:
        with pytest.raises(RuntimeError, match="cached reference scores"):
            self.call(cached_reference=ReferenceOut((torch.zeros(3), torch.zeros(3)), None))

    def test_autocast_around_the_step(self) -> None:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(RuntimeError, match="inside the scorer"),
        ):
            self.call()

    def test_scorer_without_supervised_loss(self) -> None:
        class Forgetful(ToyScorer):
            def __call__(self, side, with_supervised=False):
                return super().__call__(side)

        pairs = toy_pairs(ToyNet(), 2)
        with pytest.raises(RuntimeError, match="supervised"):
            self.call(scorer=Forgetful(pairs.net, pairs.chosen, pairs.rejected), supervised_mix=0.5)
