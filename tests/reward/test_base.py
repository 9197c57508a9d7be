from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from modules.reward.base import (
    REWARDS,
    Reward,
    RewardBatch,
    RewardError,
    check_images,
    create_reward,
    to_uint8,
)
from modules.util.errors import ConfigError
from tests.reward.builders import batch_of, noise_images
from tests.source_tree import ROOT


class Fixed(Reward):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def _score(self, batch):
        return self.answer


def test_answers_become_float32_on_the_cpu_without_gradient():
    answer = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    scores = Fixed(answer).score(batch_of(noise_images(2)))
    assert scores.dtype == torch.float32 and not scores.requires_grad and scores.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.zeros(3), r"\(3,\) for 2 images"),
        (torch.zeros(2, 1), r"\(2, 1\)"),
        (torch.tensor([0.0, float("nan")]), "image 1"),
        (torch.tensor([float("inf"), 0.0]), "image 0"),
        (torch.tensor([1e300, 0.0], dtype=torch.float64), "image 0"),
        ([0.0, 1.0], "list"),
    ],
)
def test_bad_answers_are_refused(answer, words):
    with pytest.raises(RewardError, match=words) as caught:
        Fixed(answer).score(batch_of(noise_images(2)))
    assert "Fixed" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"), [(float("nan"), "NaN"), (float("inf"), "NaN"), (1.1, "outside"), (-0.1, "outside")]
)
def test_images_with_bad_values_are_refused(value, words):
    images = noise_images(3)
    images[1, 2, 3, 4] = value
    with pytest.raises(RewardError, match=rf"image 1.*{words}"):
        Fixed(torch.zeros(3)).score(batch_of(images))


def test_black_images_are_refused_unless_allowed():
    images = noise_images(3)
    images[2] = 0.4 / 255
    with pytest.raises(RewardError, match="image 2 is entirely black"):
        check_images(images)
    check_images(images, allow_black=True)
    images[2, 0, 0, 0] = 1 / 255
    check_images(images)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images_BCHW": torch.zeros(2, 1, 4, 4)}, r"\(B, 3, H, W\)"),
        ({"images_BCHW": torch.zeros(2, 3, 4, 4, dtype=torch.float16)}, "float32"),
        ({"prompts": ["a"]}, "1 prompt$"),
        ({"group_B": torch.zeros(3, dtype=torch.int64)}, "3 group ids"),
        ({"group_B": torch.zeros(2)}, "int64"),
        ({"metadata": [{}]}, "1 metadata"),
    ],
)
def test_batches_must_fit_together(change, words):
    with pytest.raises(RewardError, match=words):
        RewardBatch(**({"images_BCHW": noise_images(2), "prompts": ["a", "b"]} | change))


def test_select_keeps_everything_together():
    batch = batch_of(noise_images(4), [7, 7, 9, 9], metadata=[{"n": i} for i in range(4)], group_size=2)
    part = batch.select([3, 0])
    assert part.groups.tolist() == [9, 7] and [m["n"] for m in part.metadata] == [3, 0]
    assert part.prompts == ["prompt 9", "prompt 7"] and part.group_size == 2
    assert torch.equal(part.images_BCHW, batch.images_BCHW[[3, 0]])
    assert batch.group_ids() == [7, 9] and batch.members(9) == [2, 3]


def test_required_fields_are_asked_for():
    reward = Fixed(torch.zeros(2))
    reward.required_fields = ("prompt",)
    with pytest.raises(ConfigError, match="prompt.*image 1"):
        reward.score(batch_of(noise_images(2), prompts=["a", " "]))
    reward.required_fields = ("answer",)
    with pytest.raises(ConfigError, match="'answer'.*image 0"):
        reward.score(batch_of(noise_images(2), metadata=[{}, {"answer": 1}]))


def test_rewards_are_made_by_name_with_checked_parameters():
    made = create_reward("brightness", {"target": 1}, name="light")
    assert made.name == "light" and made.target == 1
    assert create_reward("contrast").name == "contrast"
    with pytest.raises(ConfigError, match="brightness"):
        create_reward("brightnes")
    with pytest.raises(ConfigError, match="no parameter 'targe'") as caught:
        create_reward("brightness", {"targe": 1})
    assert "target" in str(caught.value)
    for wrong in ("0.5", True, float("nan"), [1]):
        with pytest.raises(ConfigError, match=r"brightness\.target"):
            create_reward("brightness", {"target": wrong})
    with pytest.raises(ConfigError, match="colour"):
        create_reward("target_colour")


def test_every_reward_has_a_kind_and_a_description():
    assert {"brightness", "jpeg_compressibility"} <= set(REWARDS.keys())
    for key, factory in REWARDS.items():
        assert factory.__doc__, key
        assert factory.kind in ("pointwise", "pairwise", "groupwise"), key


def test_an_empty_batch_has_no_scores():
    assert Fixed(None).score(batch_of(torch.zeros(0, 3, 4, 4))).shape == (0,)


def test_bytes_are_rounded():
    assert to_uint8(torch.tensor([0.0, 0.4 / 255, 0.6 / 255, 1.0, 1.0005])).tolist() == [0, 0, 1, 255, 255]


@pytest.mark.slow
def test_no_reward_loads_model_libraries_before_it_is_used():
    """A server in an environment without them can offer what does not need them."""
    program = (
        "import sys\n"
        "from modules.reward.base import REWARDS\n"
        "assert len(REWARDS.keys()) >= 16\n"
        "print([name for name in ('transformers', 'diffusers', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_the_page_names_every_reward():
    page = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    assert not [key for key in REWARDS.keys() if f"`{key}`" not in table]  # noqa: SIM118
