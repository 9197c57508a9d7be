"""The client against a server that misbehaves in every way we can think of."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.reward import remote
from modules.reward.base import RewardError, RewardUnavailable, create_reward
from modules.reward.remote import TOKEN_VARIABLE, check_url, is_loopback
from modules.reward.wire import decode_answer, decode_image, encode_image
from modules.util.errors import ConfigError
from tests.reward.builders import batch_of, noise_images
from tests.usual import usual

HEALTH = {"status": "ok", "version": 1, "name": "x", "kind": "pointwise", "required_fields": []}


class Handler(BaseHTTPRequestHandler):
    def setup(self):
        super().setup()
        self.server.connections.append(self.client_address)

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        self.reply(200, self.server.health)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.loads(body)
        self.server.seen.append((self.path, dict(self.headers), content))
        self.server.answer(self, content)

    def reply(self, status, content, **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content_Length": len(data)} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)


def wait_until(condition, seconds=60.0):
    """Wait for what happens in another thread, with room for a busy machine."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def count_up(handler, content):
    """Every image's reward is the number at the end of its prompt."""
    handler.reply(200, {"rewards": [float(text.split()[-1]) for text in content["prompts"]], "extra": {}})


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.seen, made.connections, made.health, made.answer = [], [], dict(HEALTH), count_up
    made.url = f"http://127.0.0.1:{made.server_address[1]}"
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def client(server, **params):
    reward = create_reward("remote", {"url": server.url, **params})
    reward.pauses = []
    reward.pause = reward.pauses.append
    reward.load()
    server.seen.clear()
    return reward


def test_scores_come_back_in_order_from_several_requests(server):
    reward = client(server, batch_size=3)
    images = noise_images(7)
    scores = reward.score(batch_of(images, metadata=[{"n": i} for i in range(7)]))
    assert scores.tolist() == list(range(7))
    assert [len(content["prompts"]) for _, _, content in server.seen] == [3, 3, 1]
    path, _, content = server.seen[1]
    assert path == "/reward" and content["version"] == 1 and content["kind"] == "pointwise"
    assert content["metadata"] == [{"n": 3}, {"n": 4}, {"n": 5}] and content["group_ids"] == [3, 4, 5]
    sent = decode_image(content["images"][0])
    assert torch.equal(sent, (images[3] * 255).round() / 255)


def test_groups_stay_whole(server):
    server.health |= {"kind": "groupwise", "max_images": 5}
    reward = client(server, kind="groupwise", batch_size=4)
    groups = [3, 1, 3, 1, 2, 2, 2, 2, 2]
    assert reward.score(batch_of(noise_images(9, 4), groups)).tolist() == groups
    assert [content["group_ids"] for _, _, content in server.seen] == [[3, 3, 1, 1], [2] * 5]
    with pytest.raises(ConfigError, match="group has 6"):
        reward.score(batch_of(noise_images(6, 4), [1] * 6))


def test_the_servers_limits_are_kept(server):
    server.health |= {"max_images": 2, "max_body_bytes": 3000}
    reward = client(server, batch_size=10)
    assert reward.score(batch_of(noise_images(5, 4))).tolist() == list(range(5))
    assert [len(content["images"]) for _, _, content in server.seen] == [2, 2, 1]
    with pytest.raises(ConfigError, match="3000"):
        reward.score(batch_of(noise_images(2, 64)))


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_errors_of_the_server_are_tried_again(server, failures):
    def sometimes(handler, content):
        if len(server.seen) <= failures:
            handler.reply(503, {"detail": "busy"})
        else:
            count_up(handler, content)

    server.answer = sometimes
    reward = client(server)
    assert reward.score(batch_of(noise_images(2))).tolist() == [0, 1]
    assert reward.pauses == [0.5, 1.0, 2.0][:failures]


def test_too_many_errors_end_it(server):
    server.answer = lambda handler, content: handler.reply(500, {"detail": "broken\x1b[31m"})
    reward = client(server)
    with pytest.raises(RewardUnavailable, match=r"500.*broken.*4 tries") as caught:
        reward.score(batch_of(noise_images(1)))
    assert "\x1b" not in str(caught.value)
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, RewardError), (422, RewardError), (401, ConfigError), (403, ConfigError), (404, ConfigError),
     (413, ConfigError), (302, ConfigError)],
)  # fmt: skip
def test_our_own_faults_are_not_tried_again(server, status, error):
    server.answer = lambda handler, content: handler.reply(
        status, {"detail": "no"}, Location=f"{server.url}/x"
    )
    reward = client(server)
    with pytest.raises(error) as caught:
        reward.score(batch_of(noise_images(1)))
    assert not isinstance(caught.value, RewardUnavailable)
    assert len(server.seen) == 1 and not reward.pauses


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"rewards": [1.0]}, "1 rewards for 2"),
        ({"rewards": [1.0, 2.0, 3.0]}, "3 rewards for 2"),
        ({"rewards": [1.0, None]}, "None for image 1"),
        ({"rewards": [True, 1.0]}, "True for image 0"),
        ({"rewards": ["1", 1.0]}, "'1' for image 0"),
        (b'{"rewards": [NaN, 1]}', "nan for image 0"),
        (b'{"rewards": [1e999, 1]}', "inf for image 0"),
        (b'{"rewards": [1e39, 1]}', "image 0"),
        ({"reward": [1, 2]}, "no list"),
        ([1, 2], "no list"),
        (b"<html>", "not valid JSON"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "nested too deeply|no list"),
    ],
)
def test_wrong_answers_are_refused(server, content, words):
    server.answer = lambda handler, _: handler.reply(200, content)
    reward = client(server)
    with pytest.raises(RewardError, match=words):
        reward.score(batch_of(noise_images(2)))
    assert len(server.seen) == 1


def test_an_endless_answer_is_not_read(server, monkeypatch):
    monkeypatch.setattr(remote, "MAX_ANSWER_BYTES", 1000)
    server.answer = lambda handler, _: handler.reply(200, b" " * 5000)
    with pytest.raises(RewardError, match="larger than 1000"):
        client(server).score(batch_of(noise_images(1)))


@pytest.mark.parametrize("size", [b"-1", b"-5"])
def test_a_piece_of_negative_size_is_a_lost_answer(server, size):
    """Of a piece of -1 bytes, the library would read everything that a server sends, without a limit."""

    def answer(handler, content):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + b"x" * 5000)

    server.answer = answer
    reward = client(server, retries=1)
    with pytest.raises(RewardUnavailable, match=r"IncompleteRead\(0 bytes"):
        reward.score(batch_of(noise_images(1, 8)))
    assert len(server.seen) == 2


@pytest.mark.parametrize("drip", usual([False, True], True))
def test_a_slow_server_is_given_up(server, drip):
    given_up = threading.Event()

    def slow(handler, _):
        while not given_up.wait(0.02):
            if drip:
                try:
                    handler.wfile.write(b"H")
                except OSError:
                    return

    server.answer = slow
    reward = client(server, retries=1)
    server.connections.clear()
    reward.timeout = 0.2
    # the server would continue for ever
    with pytest.raises(RewardUnavailable, match=r"not done after 0.2 s.*2 tries"):
        reward.score(batch_of(noise_images(1)))
    given_up.set()
    wait_until(lambda: len(server.connections) == 2)


def test_a_clock_of_the_socket_that_is_first_says_the_same(server, monkeypatch):
    def late(*_):
        raise TimeoutError("timed out")

    reward = client(server, retries=0, timeout=7)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", late)
    with pytest.raises(RewardUnavailable, match="not done after 7 s"):
        reward.score(batch_of(noise_images(1)))
    monkeypatch.setattr(http.client.HTTPConnection, "connect", late)
    with pytest.raises(RewardUnavailable, match="not done after 7 s"):
        reward.score(batch_of(noise_images(1)))


def test_an_answer_cut_short_is_asked_for_again(server):
    def cut(handler, content):
        if len(server.seen) > 1:
            return count_up(handler, content)
        return handler.reply(200, b'{"rewards": [1', Content_Length=500)

    server.answer = cut
    assert client(server).score(batch_of(noise_images(1))).tolist() == [0]
    assert len(server.seen) == 2


def test_no_server_is_noticed_at_the_start():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reward = create_reward("remote", {"url": f"http://127.0.0.1:{port}", "retries": 2})
    pauses = []
    reward.pause = pauses.append
    with pytest.raises(RewardUnavailable, match="3 tries"):
        reward.load()
    assert pauses == [0.5, 1.0]


@pytest.mark.parametrize(
    ("health", "words"),
    [
        ({**HEALTH, "status": "loading"}, "status ok"),
        ({**HEALTH, "version": 2}, "version 2"),
        ({**HEALTH, "kind": "groupwise"}, "'groupwise'"),
        ({**HEALTH, "kind": "x" * 100_000}, "offers a 'x{39} reward"),
        ({**HEALTH, "required_fields": "prompt"}, "required_fields"),
        (b"hello", "reward server"),
        ([], "status ok"),
    ],
)
def test_another_kind_of_server_is_noticed_at_the_start(server, health, words):
    server.health = health
    with pytest.raises(ConfigError, match=words):
        create_reward("remote", {"url": server.url}).load()


def test_fields_the_server_needs_are_asked_for(server):
    server.health["required_fields"] = ["answer"]
    with pytest.raises(ConfigError, match="'answer'"):
        client(server).score(batch_of(noise_images(1)))


def test_the_token_comes_from_the_environment_and_stays_out_of_the_log(server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(TOKEN_VARIABLE, "a-secret-of-some-length")
    reward = client(server)
    reward.score(batch_of(noise_images(1)))
    assert server.seen[0][1]["Authorization"] == "Bearer a-secret-of-some-length"
    # a server that sends it back does not get it into our log either
    server.answer = lambda handler, content: handler.reply(500, handler.headers["Authorization"].encode())
    with pytest.raises(RewardUnavailable) as caught:
        reward.score(batch_of(noise_images(1)))
    assert "<token>" in str(caught.value)
    assert "a-secret" not in caplog.text + str(caught.value)
    monkeypatch.setenv(TOKEN_VARIABLE, "two words\r\nX-Evil: 1")
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE) as caught:
        reward.score(batch_of(noise_images(1)))
    assert "Evil" not in str(caught.value)
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    server.seen.clear(), setattr(server, "answer", count_up)
    reward.score(batch_of(noise_images(1)))
    assert "Authorization" not in server.seen[0][1]


@pytest.mark.parametrize(
    "url",
    ["ftp://localhost", "localhost:8077", "http://", "http://user:pass@localhost", "http://example.org:80",
     "http://localhost?x=1", "http://[::1", "http://localhost:99999", "file:///etc/passwd",
     "http://127.0.0.1.example.org", "", "https://gpu..example.org", f"https://{'a' * 70}.org"],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(ConfigError):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["http://localhost:1", "http://127.8.9.1:1/base/", "http://[::1]:1", "https://example.org"]
)
def test_addresses_that_are_taken(url):
    check_url(url)
    check_url("http://example.org", allow_insecure=True)
    assert is_loopback("LOCALHOST.") and not is_loopback("10.0.0.1")


@pytest.mark.parametrize("params", [{"timeout": 0}, {"retries": -1}, {"batch_size": 0}, {"kind": "other"}])
def test_impossible_parameters_are_refused(params):
    with pytest.raises(ConfigError):
        create_reward("remote", {"url": "http://localhost:1", **params})


def test_metadata_that_is_not_json_is_named(server):
    with pytest.raises(RewardError, match="metadata"):
        client(server).score(batch_of(noise_images(1), metadata=[{"x": torch.zeros(1)}]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_images_survive_the_journey(height, width, seed):
    image = torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)) / 255
    assert torch.equal(decode_image(encode_image(image)), image)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_named_error(data):
    try:
        assert torch.isfinite(decode_answer(data, 1, "there")).all()
    except RewardError as error:
        assert "there" in str(error)


OTHER_VARIABLES = [
    "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "", "TASTEMAKER_REWARD_", "tastemaker_reward_token",
    "XTASTEMAKER_REWARD_TOKEN", "TASTEMAKER_REWARD_A\n",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHER_VARIABLES)
def test_a_config_cannot_ask_for_other_variables(name):
    with pytest.raises(ConfigError, match="TASTEMAKER_REWARD_"):
        create_reward("remote", {"url": "https://example.org", "token_env": name})


def test_contacts_name_the_address_and_the_variable_but_not_the_token(monkeypatch):
    monkeypatch.setenv("TASTEMAKER_REWARD_MINE", "a-secret-of-mine")
    reward = create_reward("remote", {"url": "https://example.org/r", "token_env": "TASTEMAKER_REWARD_MINE"})
    (line,) = reward.contacts()
    assert line.startswith("warning: ")
    assert "prompts and images, and for edits the source images, are sent to https://example.org/r" in line
    assert "TASTEMAKER_REWARD_MINE" in line and "a-secret" not in line
    (line,) = create_reward("remote", {"url": "http://127.0.0.1:1"}).contacts()
    assert "http://127.0.0.1:1" in line and not line.startswith("warning") and "token" not in line
