"""The judge as a reward server, asked by the product's own client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest
import torch

from modules.reward.base import Reward, RewardBatch, RewardError, create_reward
from modules.reward.remote import TOKEN_VARIABLE
from modules.util.errors import ConfigError
from scripts.demo.judge import read_image
from scripts.demo.judge_server import JudgeServer, judge_server
from scripts.demo.taste import get_taste
from scripts.demo.vae import images_to_tensor
from scripts.demo.world import Wish, make_example

TOKEN = "a token of the tests, long enough".replace(" ", "-")
TASTE = get_taste("large")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with judge_server(TASTE, TOKEN) as made:
        yield made


def client(server: JudgeServer) -> Reward:
    reward = create_reward("remote", {"url": server.url, "retries": 0, "batch_size": 2})
    reward.load()
    return reward


def examples(count: int) -> tuple[torch.Tensor, list[Wish]]:
    made = [make_example(5, i) for i in range(count)]
    return (images_to_tensor([pixels for pixels, _ in made]) + 1) / 2, [scene.wish for _, scene in made]


def test_scores_are_those_of_the_judge(server: JudgeServer) -> None:
    rgb_BCHW, wishes = examples(3)
    prompts = [wish.caption() for wish in wishes]
    # the last image shows something else than its prompt says
    other = Wish("cross" if wishes[2].shape != "cross" else "circle", wishes[2].colour, wishes[2].background)
    prompts[2], wishes[2] = other.caption(), other
    scores = client(server).score(RewardBatch(rgb_BCHW, prompts))
    expected = [TASTE.score(read_image(make_example(5, i)[0]), wish) for i, wish in enumerate(wishes)]
    assert torch.allclose(scores, torch.tensor(expected))
    assert scores[:2].min() >= 0.0 > scores[2]
    assert server.judged == 3 and server.cpu_seconds > 0


def test_what_it_cannot_judge_is_refused(server: JudgeServer) -> None:
    reward = client(server)
    rgb_BCHW, wishes = examples(1)
    with pytest.raises(RewardError, match="not a sentence"):
        reward.score(RewardBatch(rgb_BCHW, ["a horse"]))
    with pytest.raises(RewardError, match="64x64"):
        reward.score(RewardBatch(rgb_BCHW[:, :, :32, :32].contiguous(), [wishes[0].caption()]))
    assert server.judged == 0


def test_without_the_token_nobody_is_let_in(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "another token altogether".replace(" ", "-"))
    with pytest.raises(ConfigError, match="401"):
        client(server)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/reward", "{", {"Content-Type": "application/json"}, 422),
        ("/reward", '{"version": 2}', {"Content-Type": "application/json"}, 422),
        ("/reward", "{}", {"Content-Type": "text/plain"}, 415),
        ("/reward", "{}", {"Content-Type": "application/json", "Content-Length": str(1 << 30)}, 413),
        ("/other", "{}", {"Content-Type": "application/json"}, 404),
        (
            "/reward",
            json.dumps({"version": 1, "kind": "pointwise", "prompts": ["a"], "images": []}),
            {"Content-Type": "application/json"},
            422,
        ),
    ],
)
def test_bad_requests(
    path: str, body: str, headers: dict[str, str], status: int, server: JudgeServer
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
        answer = connection.getresponse()
        assert answer.status == status
        assert json.loads(answer.read())["detail"]
    finally:
        connection.close()
