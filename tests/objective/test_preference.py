"""Preference losses against independent float64 numpy, and what holds for every registered one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.objective.preference import (
    LossOut,
    ObjectiveOptions,
    PairScores,
    get_preference_loss,
    preference_loss,
)
from modules.objective.preference.base import PREFERENCE_LOSSES
from modules.objective.preference.kto import class_weights, reference_point
from modules.objective.scores import differentiate
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DPOObjective import DPOObjective

finite = st.floats(-4.0, 0.0)
pairs = st.lists(st.tuples(finite, finite, finite, finite), min_size=1, max_size=5)


def scores(rows: list[tuple[float, float, float, float]], dtype: torch.dtype = torch.float64) -> PairScores:
    return PairScores(*(torch.tensor(column, dtype=dtype) for column in zip(*rows, strict=True)))


def numpy_margin(rows: list[tuple[float, float, float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.float64)
    return table[:, 0] - table[:, 2], table[:, 1] - table[:, 3]


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


@given(rows=pairs, beta=st.floats(0.0, 6000.0), smoothing=st.floats(0.0, 0.49))
def test_sigmoid(rows: list[tuple[float, ...]], beta: float, smoothing: float) -> None:
    out = get_preference_loss("SIGMOID")(scores(rows), ObjectiveOptions(beta, smoothing))
    chosen, rejected = numpy_margin(rows)
    z = beta * (chosen - rejected)
    np.testing.assert_allclose(out.raw_loss_B, softplus(-z), rtol=1e-12, atol=1e-300)
    expected = (1 - smoothing) * softplus(-z) + smoothing * softplus(z)
    np.testing.assert_allclose(out.loss_B, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(out.logits_B, z, rtol=1e-14)
    np.testing.assert_allclose(out.margin_B, chosen - rejected, rtol=1e-14)
    np.testing.assert_allclose(out.chosen_reward_B, chosen, rtol=1e-14)
    np.testing.assert_allclose(out.rejected_reward_B, rejected, rtol=1e-14)


@given(rows=pairs, tau=st.floats(0.01, 5000.0))
def test_ipo(rows: list[tuple[float, ...]], tau: float) -> None:
    out = get_preference_loss("IPO")(scores(rows), ObjectiveOptions(ipo_tau=tau))
    chosen, rejected = numpy_margin(rows)
    np.testing.assert_allclose(out.loss_B, (chosen - rejected - 1 / (2 * tau)) ** 2, rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(out.logits_B, (chosen - rejected) * 2 * tau, rtol=1e-12)


@given(rows=pairs, beta=st.floats(0.0, 6000.0))
def test_hinge(rows: list[tuple[float, ...]], beta: float) -> None:
    out = get_preference_loss("HINGE")(scores(rows), ObjectiveOptions(beta))
    chosen, rejected = numpy_margin(rows)
    np.testing.assert_allclose(out.loss_B, np.maximum(0.0, 1 - beta * (chosen - rejected)), rtol=1e-12)


@given(rows=pairs, beta=st.floats(0.0, 60.0), point=st.floats(0.0, 9.0), like=st.floats(0.0, 3.0))
def test_kto(rows: list[tuple[float, ...]], beta: float, point: float, like: float) -> None:
    """Of every third pair only the chosen image is there, of every third only the rejected one."""
    sides = np.array([[n % 3 != 2, n % 3 != 1] for n in range(len(rows))])
    options = ObjectiveOptions(
        beta, reference_point=point, class_weights=(like, 0.7), sides_B2=torch.from_numpy(sides)
    )
    out = get_preference_loss("KTO")(scores(rows), options)
    chosen, rejected = numpy_margin(rows)
    liked = sides[:, 0] * like / (1 + np.exp(beta * chosen - point))
    disliked = sides[:, 1] * 0.7 / (1 + np.exp(point - beta * rejected))
    np.testing.assert_allclose(out.loss_B, liked + disliked, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(out.raw_loss_B, out.loss_B)


@given(rows=pairs, beta=st.floats(0.0, 60.0), weight=st.floats(0.0, 3.0))
def test_mapo(rows: list[tuple[float, ...]], beta: float, weight: float) -> None:
    whole = scores(rows)
    alone = PairScores(whole.policy_chosen, whole.policy_rejected)
    chosen, rejected = np.array(rows).T[:2]
    expected = -chosen + weight * softplus(-beta * (chosen - rejected))
    for one in (alone, whole):
        out = get_preference_loss("MAPO")(one, ObjectiveOptions(beta, mapo_weight=weight))
        np.testing.assert_allclose(out.loss_B, expected, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(out.raw_loss_B, expected, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(out.margin_B, chosen - rejected, rtol=1e-14)
        np.testing.assert_allclose(out.chosen_reward_B, chosen)


def test_likes_and_dislikes_weigh_the_same_whatever_their_numbers() -> None:
    like, dislike = class_weights(10, 9, 3)
    assert (9 * like / 10, 3 * dislike / 10) == pytest.approx((0.5, 0.5))
    assert class_weights(7, 7, 7) == (0.5, 0.5)
    assert class_weights(4, 4, 0) == (1.0, 0.0)


def test_the_reference_point_is_the_mean_reward_and_never_below_zero() -> None:
    assert reference_point(20.0, 0.6, 4) == pytest.approx(3.0)
    assert reference_point(20.0, -0.6, 4) == 0.0
    assert reference_point(20.0, 0.0, 0) == 0.0


def test_a_missing_side_is_refused_where_pairs_are_compared() -> None:
    options = ObjectiveOptions(sides_B2=torch.tensor([[True, False]]))
    with pytest.raises(ValueError, match="IPO objective needs both sides"):
        get_preference_loss("IPO")(scores([(-1.0, -2.0, -1.0, -1.0)]), options)


@given(rows=pairs, beta=st.floats(0.1, 6000.0), smoothing=st.floats(0.0, 0.49))
def test_sigmoid_coefficients(rows: list[tuple[float, ...]], beta: float, smoothing: float) -> None:
    """dL/dS_w = -c and dL/dS_l = +c with c = beta/B ((1-s) sigma(-z) - s sigma(z))."""
    given_scores = scores(rows)
    reference = (given_scores.reference_chosen, given_scores.reference_rejected)
    policy = (given_scores.policy_chosen, given_scores.policy_rejected)
    options = ObjectiveOptions(beta, smoothing)
    _, gradient = differentiate(get_preference_loss("SIGMOID"), options, policy, reference, 1.0)
    chosen, rejected = numpy_margin(rows)
    z = beta * (chosen - rejected)
    right, wrong = np.exp(-softplus(z)), np.exp(-softplus(-z))
    c = beta / len(rows) * ((1 - smoothing) * right - smoothing * wrong)
    np.testing.assert_allclose(gradient.chosen_B, -c, rtol=1e-9, atol=1e-9 * beta)
    np.testing.assert_allclose(gradient.rejected_B, c, rtol=1e-9, atol=1e-9 * beta)


@given(rows=pairs)
def test_beta_zero_is_log_two_exactly(rows: list[tuple[float, ...]]) -> None:
    for dtype in (torch.float32, torch.float64):
        out = get_preference_loss("SIGMOID")(scores(rows, dtype), ObjectiveOptions(beta=0.0))
        assert torch.equal(out.raw_loss_B, torch.full((len(rows),), math.log(2.0), dtype=dtype))


def test_huge_margins_stay_finite_in_float32() -> None:
    rows = [(-1.0, -3.0, -3.0, -1.0), (-3.0, -1.0, -1.0, -3.0)]
    out = get_preference_loss("SIGMOID")(scores(rows, torch.float32), ObjectiveOptions(1e6, 0.1))
    assert out.loss_B.isfinite().all()
    assert out.raw_loss_B.tolist() == [0.0, 4e6]


def test_mean_of_logs_not_log_of_mean() -> None:
    """Two pairs far apart: the batch loss is the mean of their losses."""
    rows = [(-1.0, -2.0, -1.5, -1.5), (-2.0, -1.0, -1.5, -1.5)]
    out = get_preference_loss("SIGMOID")(scores(rows), ObjectiveOptions(10.0))
    expected = (math.log1p(math.exp(-10)) + math.log1p(math.exp(10))) / 2
    assert out.loss_B.mean().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("key", PREFERENCE_LOSSES.keys())
class TestEveryLoss:
    def test_a_pair_depends_on_itself_only(self, key: str) -> None:
        """Schedules take pairs one by one; a loss that looked across the batch would change under them."""
        generator = torch.Generator().manual_seed(3)
        table = -torch.rand(4, 5, generator=generator, dtype=torch.float64)
        loss = get_preference_loss(key)
        options = ObjectiveOptions(2.0, 0.1 if loss.label_smoothing else 0.0, 1.5)
        whole = loss(PairScores(*table), options)
        for index in range(5):
            single = loss(PairScores(*table[:, index : index + 1]), options)
            assert torch.equal(single.loss_B, whole.loss_B[index : index + 1])
            assert torch.equal(single.raw_loss_B, whole.raw_loss_B[index : index + 1])

    def test_gradient_pushes_the_sides_apart(self, key: str) -> None:
        """At the reference, raising the chosen score and lowering the rejected one must lower the loss."""
        start = torch.full((2,), -0.5, dtype=torch.float64)
        _, gradient = differentiate(
            get_preference_loss(key), ObjectiveOptions(2.0, 0.0, 1.0), (start, start), (start, start), 1.0
        )
        assert (gradient.chosen_B < 0).all()
        assert (gradient.rejected_B > 0).all()

    def test_gradient_matches_finite_differences(self, key: str) -> None:
        table = list(-torch.rand(4, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
        loss = get_preference_loss(key)
        options = ObjectiveOptions(0.9, 0.2 if loss.label_smoothing else 0.0, 1.5)
        anchors = (table[2], table[3]) if loss.needs_reference else (None, None)

        def total(chosen_B: torch.Tensor, rejected_B: torch.Tensor) -> torch.Tensor:
            return loss(PairScores(chosen_B, rejected_B, *anchors), options).loss_B

        assert torch.autograd.gradcheck(
            total, (table[0].clone().requires_grad_(), table[1].clone().requires_grad_())
        )

    def test_reference_is_detached(self, key: str) -> None:
        loss = get_preference_loss(key)
        if not loss.needs_reference:
            return
        leaves = [torch.tensor([-0.4], dtype=torch.float64, requires_grad=True) for _ in range(4)]
        loss(PairScores(*leaves), ObjectiveOptions(2.0)).loss_B.sum().backward()
        assert leaves[0].grad is not None
        assert leaves[2].grad is None
        assert leaves[3].grad is None


class TestRegistry:
    def test_unknown_key_names_the_near_one(self) -> None:
        with pytest.raises(ValueError, match=r"'SIGMOD'[\s\S]*SIGMOID"):
            get_preference_loss("SIGMOD")

    def test_second_entry_under_a_key_is_refused(self) -> None:
        get_preference_loss("SIGMOID")
        with pytest.raises(RuntimeError, match="two entries"):

            @preference_loss("SIGMOID")
            def again(scores: PairScores, options: ObjectiveOptions) -> LossOut:
                raise NotImplementedError

    def test_loss_without_its_reference(self) -> None:
        bare = PairScores(torch.zeros(1), torch.zeros(1))
        with pytest.raises(RuntimeError, match="needs reference scores"):
            get_preference_loss("SIGMOID")(bare, ObjectiveOptions())


@pytest.mark.parametrize("key", ["IPO", "HINGE"])
def test_smoothing_is_refused_where_it_means_nothing(key: str) -> None:
    row = scores([(-1.0, -2.0, -1.0, -1.0)])
    with pytest.raises(ValueError, match="label smoothing is not defined"):
        get_preference_loss(key)(row, ObjectiveOptions(label_smoothing=0.1))


class TestPairScores:
    def test_shapes(self) -> None:
        with pytest.raises(ValueError, match="policy_rejected has shape"):
            PairScores(torch.zeros(2), torch.zeros(3))
        with pytest.raises(ValueError, match="policy_chosen has shape"):
            PairScores(torch.zeros(()), torch.zeros(()))

    def test_half_types(self) -> None:
        with pytest.raises(TypeError, match="bfloat16"):
            PairScores(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16))

    def test_half_a_reference(self) -> None:
        with pytest.raises(ValueError, match="both sides or for neither"):
            PairScores(torch.zeros(2), torch.zeros(2), torch.zeros(2))


def test_the_config_offers_exactly_what_is_registered() -> None:
    assert {choice.value for choice in DPOObjective} == set(PREFERENCE_LOSSES.keys())


@pytest.mark.parametrize("objective", DPOObjective)
def test_the_description_of_dpo_says_which_objectives_have_a_reference(objective: DPOObjective) -> None:
    config = TrainConfig.from_dict({"__version": 1, "rlhf_enabled": True, "rlhf_dpo_objective": objective.value})
    assert config.rlhf_mode.spec.needs_reference(config) == get_preference_loss(objective).needs_reference
