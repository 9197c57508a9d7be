"""The judge as a reward server, asked by the product's own client."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from modules.reward.base import Reward, RewardBatch, RewardError, create_reward
from modules.reward.remote import TOKEN_VARIABLE
from modules.util.errors import ConfigError
from scripts.demo import judge_server as judge_server_module
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


def health(server: JudgeServer) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("first_bytes", [b"", b"POST /reward HTTP/1.1\r\nHo"], ids=["idle", "head"])
@pytest.mark.parametrize("count", [1, 100])
def test_incomplete_requests_keep_nobody_out(server: JudgeServer, first_bytes: bytes, count: int) -> None:
    held = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(count)]
    try:
        for one in held:
            one.sendall(first_bytes)
        assert health(server) == 200
    finally:
        for one in held:
            one.close()


def test_complete_requests_that_wait_have_a_limit(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def wait(body: bytes) -> list[float]:
        entered.release()
        assert leave.wait(20)
        return []

    monkeypatch.setattr(server, "scores", wait)
    asked = [post(server) for _ in range(judge_server_module.WAITING)]
    try:
        for _ in asked:
            assert entered.acquire(timeout=20)
        assert post(server).getresponse().status == 503
        leave.set()
        assert [one.getresponse().status for one in asked] == [200] * len(asked)
        assert post(server).getresponse().status == 200
    finally:
        leave.set()
        for one in asked:
            one.close()


def post(server: JudgeServer) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", "/reward", "{}", headers)
    return connection


def test_a_client_that_drips_is_hung_up_on(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_server_module, "REQUEST_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as dripping:
        ended = False
        for byte in b"POST /reward HTTP/1.1\r\n" + b"X-Long: " + b"x" * 500:
            try:
                dripping.sendall(bytes([byte]))
                dripping.settimeout(0.05)
                ended = dripping.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended
    assert health(server) == 200


def test_a_length_of_thousands_of_digits_is_too_large(server: JudgeServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.putrequest("POST", "/reward")
        for name, value in (
            ("Authorization", f"Bearer {TOKEN}"),
            ("Content-Type", "application/json"),
            ("Content-Length", "9" * 5000),
        ):
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()
