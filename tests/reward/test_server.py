"""A real server process, asked by the real client and by people with bad intentions."""

from __future__ import annotations

import base64
import datetime
import http.client
import io
import ipaddress
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.reward.base import Reward, RewardError, create_reward, to_uint8
from modules.reward.remote import TOKEN_VARIABLE
from modules.reward.wire import decode_image, encode_image, encode_request
from modules.util.errors import ConfigError
from scripts import reward_server
from tests.reward.builders import batch_of, noise_images
from tests.source_tree import ROOT

TOKEN = "a-token-for-the-tests"


def start(*arguments, token=TOKEN):
    environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
    environment |= {"OMP_NUM_THREADS": "1"} | ({TOKEN_VARIABLE: token} if token else {})
    return subprocess.Popen(
        [sys.executable, "scripts/reward_server.py", "--port", "0", *arguments],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def started():
    """The address of a server, and its answer to a request sent as soon as it had printed this address."""
    process = start(
        "--reward", "brightness", "--max-megabytes", "1", "--max-images", "4", "--max-pixels", "9000"
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        url = json.loads(line)["url"]
        yield url, ask(url, "/health", method="GET")[0]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def address(started):
    return started[0]


def ask(address, path="/reward", body=b"", token=TOKEN, method="POST", **headers):
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    usual = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, usual | named)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def request(**changes):
    usual = {"version": 1, "kind": "pointwise", "prompts": ["a"], "images": [encode_image(noise_images(1)[0])],
             "metadata": [], "group_ids": [0]}  # fmt: skip
    return json.dumps(usual | changes).encode()


def test_client_and_server_agree_with_the_reward_itself(address, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    reward = create_reward("remote", {"url": address})
    reward.load()
    images = (noise_images(9, 20) * 255).round() / 255
    expected = create_reward("brightness").score(batch_of(images))
    assert torch.allclose(reward.score(batch_of(images)), expected, atol=1e-7)


def test_the_token_is_asked_for(address, monkeypatch):
    for path, method in (("/reward", "POST"), ("/health", "GET")):
        for wrong in (None, "", "a-token-for-the-test", f"{TOKEN}x", "\xff"):
            assert ask(address, path, request(), wrong, method)[0] == 401
    assert ask(address, "/health", method="GET")[0] == 200
    monkeypatch.setenv(TOKEN_VARIABLE, "not-the-right-token")
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
        create_reward("remote", {"url": address}).load()


def png(width, height, data=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def two_heads():
    """A small size for who reads the first head, 144 million pixels for who reads the last."""
    small, large = png(1, 1), png(12000, 12000, zeros(100 * 36001, 120))
    return small[:33] + large[8:]


def zeros(count, times):
    """What ``zlib.compress(bytes(count * times), 9)`` stands for, from one compressed piece that is repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(bytes(count)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (count * times % 65521) << 16 | 1
    return b"\x78\xda" + piece * times + b"\x03\x00" + struct.pack(">I", checksum)


def test_repeated_pieces_are_a_sound_stream():
    assert zlib.decompress(zeros(1000, 70)) == bytes(70_000)


def text(data):
    return base64.b64encode(data).decode()


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def bomb_text():
    info = PngInfo()
    info.add_text("x", "y" * 80_000_000, zip=True)
    return saved(Image.new("RGB", (2, 2)), "PNG", pnginfo=info)


HOSTILE: dict[str, Callable[[], str]] = {
    "not base64": lambda: "!!!!",
    "nothing": lambda: "",
    "no png": lambda: text(b"GIF89a" + bytes(40)),
    "a jpeg": lambda: text(saved(Image.new("RGB", (8, 8)), "JPEG")),
    "enormous": lambda: text(png(2**31 - 1, 2**31 - 1)),
    "too many pixels": lambda: text(png(100, 100, zlib.compress(bytes(301 * 100)))),
    "no width": lambda: text(png(0, 5)),
    "cut short": lambda: text(png(50, 50, zlib.compress(bytes(151 * 50))[:10])),
    "a head alone": lambda: text(png(50, 50)[:33]),
    "no pixels": lambda: text(png(50, 50, zlib.compress(b""))),
    "bad compression": lambda: text(png(50, 50, b"\x78\x9c" + b"\xff" * 50)),
    "a text bomb": lambda: text(bomb_text()),
    "two heads": lambda: text(two_heads()),
}
"""What makes images of a request that must be refused; some take seconds to make."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused_and_the_server_lives(address, name):
    status, answer = ask(address, body=request(images=[HOSTILE[name]()]))
    assert status == 422, answer
    assert "image" in json.loads(answer)["detail"]
    assert ask(address, body=request())[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 200_000, 400),
        (b"\xff\xfe", 400),
        (b"[]", 422),
        (request(version=2), 422),
        (request(kind="groupwise"), 422),
        (request(extra=1), 422),
        (request(prompts=["a", "b"]), 422),
        (request(prompts=["a" * 10_001]), 422),
        (request(prompts=[1]), 422),
        (request(group_ids=[2**63]), 422),
        (request(group_ids=[0.5]), 422),
        (request(images=[], prompts=[], group_ids=[]), 422),
        (request(images=[HOSTILE["a jpeg"]()] * 5, prompts=["a"] * 5, group_ids=[0] * 5), 422),
        (request(metadata=[1]), 422),
        (request(images=[encode_image(noise_images(1, s)[0]) for s in (4, 5)], prompts=["a"] * 2,
                 group_ids=[0, 0]), 422),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(address, body, status):
    found, answer = ask(address, body=body)
    assert found == status, answer
    assert json.loads(answer)["detail"]


def test_too_long_a_body_is_refused_announced_or_not(address):
    assert ask(address, body=b" " * 10, Content_Length=str(2**40))[0] == 413
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.putrequest("POST", "/reward")
        for name, value in (("Content-Type", "application/json"), ("Authorization", f"Bearer {TOKEN}"),
                            ("Transfer-Encoding", "chunked")):  # fmt: skip
            connection.putheader(name, value)
        connection.endheaders()
        try:
            for _ in range(40):
                connection.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        except OSError:
            pass
        else:
            assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert ask(address, body=request())[0] == 200


def test_other_paths_and_types_are_refused(address):
    assert ask(address, body=request(), Content_Type="text/plain")[0] == 415
    for path in ("/docs", "/openapi.json", "/redoc", "/", "/reward/.."):
        assert ask(address, path, method="GET")[0] in (404, 405)
    assert ask(address, method="OPTIONS", Origin="https://example.org")[0] == 405


@pytest.mark.parametrize(
    ("arguments", "token", "words"),
    [
        (["--reward", "brightnes"], TOKEN, "brightness"),
        (["--reward", "brightness", "--params", "[]"], TOKEN, "JSON object"),
        (["--reward", "brightness", "--params", '{"targe": 1}'], TOKEN, "targe"),
        (["--reward", "brightness", "--host", "0.0.0.0"], None, TOKEN_VARIABLE),
        (["--reward", "brightness"], "short", "16 characters"),
        (["--reward", "brightness", "--max-images", "0"], TOKEN, "--max-images"),
        (["--reward", "brightness", "--key", "key.pem"], TOKEN, "and a key its certificate"),
        (["--reward", "clip_score", "--params", '{"source": "./nowhere"}'], TOKEN, "nowhere"),
        (["--reward", "brightness", "--device", "cuda:77"], TOKEN, "--device: there is no device cuda:77 here"),
        (["--reward", "brightness", "--device", "gpu"], TOKEN, "--device: 'gpu' is not a device"),
        (["--reward", "brightness", "--device", "cuda:77,cuda:78"], TOKEN, "--device: 'cuda:77,cuda:78' lists several"),
    ],
)
def test_wrong_options_end_the_server_with_a_reason(monkeypatch, capsys, arguments, token, words):
    monkeypatch.setenv(TOKEN_VARIABLE, token or "")
    assert reward_server.main([*arguments, "--port", "0"]) == 2
    assert words in capsys.readouterr().err


def test_a_place_that_cannot_be_used_ends_the_server_before_the_reward_is_loaded(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Reward, "load", lambda *_: pytest.fail("it was loaded"))
    (tmp_path / "text.pem").write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, said in (
            (["--port", port], f"--port: cannot listen at 127.0.0.1, port {port}: Address already in use"),
            (["--port", "99999"], "--port: cannot listen at 127.0.0.1, port 99999"),
            (["--certificate", f"{tmp_path}/none.pem", "--key", f"{tmp_path}/none.key"], "none.pem and "),
            (["--certificate", f"{tmp_path}/text.pem", "--key", f"{tmp_path}/text.pem"], "text.pem and "),
        ):
            assert reward_server.main(["--reward", "brightness", *words]) == 2
            assert said in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="two servers cannot have one address there")
def test_the_later_of_two_servers_that_load_at_once_for_one_address_says_so(monkeypatch, capsys):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = str(other.getsockname()[1])
        monkeypatch.setattr(Reward, "load", lambda *_: other.listen())
        assert reward_server.main(["--reward", "brightness", "--port", port]) == 2
    said = capsys.readouterr()
    assert f"--port: cannot listen at 127.0.0.1, port {port}: Address already in use" in said.err
    assert not said.out, "a server that does not listen is not announced"


def test_a_group_reward_is_served_with_its_errors(monkeypatch):
    limits = reward_server.Limits()
    reward = create_reward("brightness")
    batch = reward_server.read_batch(request(), reward, limits)
    assert torch.equal(batch.images_BCHW[0], (noise_images(1)[0] * 255).round() / 255)
    monkeypatch.setattr(type(reward), "_score", lambda self, batch: torch.tensor([float("nan")]))
    with pytest.raises(reward_server.Refused, match="NaN") as caught:
        reward_server.answer(reward, request(), limits)
    assert caught.value.status == 422


def test_sources_of_edits_are_sent_with_their_images():
    images = (noise_images(2) * 255).round() / 255
    source = torch.randint(0, 256, (3, 8, 12), dtype=torch.uint8)
    sent = batch_of(images, sources=[(source,), (source, to_uint8(images[0]))])
    reward, limits = create_reward("source_likeness"), reward_server.Limits()
    found = reward_server.read_batch(encode_request(sent, "pointwise"), reward, limits)
    assert [len(one) for one in found.sources] == [1, 2]
    assert torch.equal(found.sources[0][0], source) and torch.equal(found.sources[1][1], to_uint8(images[0]))
    assert torch.equal(reward.score(found), reward.score(sent))
    assert b"sources" not in encode_request(batch_of(images), "pointwise")
    for sources, words in (([["x"]], "base64"), ([[]] * 2, "source images"), ([["x"] * 10], "not valid")):
        with pytest.raises(RewardError, match=words):
            reward_server.read_batch(request(sources=sources), reward, limits)
    with pytest.raises(RewardError, match="images and source images have more than"):
        reward_server.read_batch(
            encode_request(sent, "pointwise"), reward, reward_server.Limits(total_pixels=2 * 16 * 16 + 10)
        )


@pytest.mark.parametrize(
    ("rows", "words", "decoded"),
    [(2, "1 image but source images for 2", 0), (1, "images and source images have more than 600 pixels", 3)],
)
def test_sources_are_counted_before_and_while_they_are_decoded(monkeypatch, rows, words, decoded):
    seen = []
    monkeypatch.setattr(
        reward_server, "decode_image", lambda *given: (seen.append(given), decode_image(*given))[1]
    )
    source = encode_image(noise_images(1)[0])
    body = request(sources=[[source] * reward_server.MOST_SOURCES] * rows)
    with pytest.raises(RewardError, match=words):
        reward_server.read_batch(
            body, create_reward("brightness"), reward_server.Limits(total_pixels=2 * 16 * 16 + 88)
        )
    assert len(seen) == decoded


def test_all_images_together_have_a_limit():
    limits = reward_server.Limits(total_pixels=2 * 16 * 16)
    images = [encode_image(one) for one in noise_images(3)]
    body = request(images=images, prompts=["a"] * 3, group_ids=[0] * 3)
    with pytest.raises(RewardError, match="pixels"):
        reward_server.read_batch(body, create_reward("brightness"), limits)


@pytest.mark.parametrize("piece", ['{"a":0}', "{}", "[]", "0"])
def test_many_small_values_are_refused_before_they_fill_the_memory(piece):
    body = request(metadata=[]).replace(b'"metadata": []', b'"metadata": [%s]' % ",".join([piece] * 2_000_000).encode())
    tracemalloc.start()
    try:
        with pytest.raises(RewardError, match="more than 1,000,000 values or commas"):
            reward_server.read_batch(body, create_reward("brightness"), reward_server.Limits())
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_png_files_are_images_or_named_errors(data):
    whole = bytearray(base64.b64decode(encode_image(noise_images(1, 8)[0])))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(8, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        image = decode_image(text(bytes(whole[:cut])), max_pixels=10_000)
        assert image.shape[0] == 3 and 0 <= image.min() <= image.max() <= 1
    except RewardError:
        pass


# -- slow, idle and hostile clients --------------------------------------------------------------------------


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@contextmanager
def idle_clients(address, count, first_bytes):
    """Connections that have sent ``first_bytes`` and nothing more."""
    held = [connect(address) for _ in range(count)]
    try:
        for one in held:
            one.sendall(first_bytes)
        yield held
    finally:
        for one in held:
            one.close()


BODY_BEGUN = (
    f"POST /reward HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Length: 1000\r\n\r\n{"
).encode()


@pytest.mark.parametrize(
    "first_bytes", [b"", b"POST /reward HTTP/1.1\r\nHo", BODY_BEGUN], ids=["idle", "head", "body"]
)
@pytest.mark.parametrize("count", [8, 200])
def test_incomplete_requests_keep_nobody_out(address, first_bytes, count):
    with idle_clients(address, count, first_bytes):
        for _ in range(3):
            assert ask(address, body=request())[0] == 200


@pytest.mark.slow  # the same timer is tried below, with less patience
def test_a_head_that_never_ends_is_hung_up_on(address):
    with idle_clients(address, 1, b"POST /reward HTTP/1.1\r\nHo") as (client,):
        client.settimeout(60)
        with suppress(ConnectionResetError):
            assert client.recv(1000) == b""


def certificate(folder):
    """A certificate of this computer, and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    paths[0].write_bytes(made.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return paths


HURRIED = """import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
from scripts import reward_server
reward_server.HEAD_SECONDS = 1.0
reward_server.main(sys.argv[1:])
"""
"""A server with few files and little patience."""


@pytest.mark.skipif(os.name == "nt", reason="the number of open files is limited in another way")
def test_connections_that_never_begin_to_encrypt_keep_nobody_out_and_a_head_that_never_ends_is_hung_up_on(
    tmp_path,
):
    assert reward_server.HEAD_SECONDS <= 5
    proof, key = certificate(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", HURRIED, "--reward", "brightness", "--port", "0", "--certificate", str(proof),
         "--key", str(key)],
        cwd=ROOT, env={k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE} | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        server = json.loads(process.stdout.readline())["url"].removeprefix("https://")
        trusted = ssl.create_default_context(cafile=proof)
        with idle_clients(server, 200, b""):
            # half of the minute that each silent client may take without the shorter limit
            good = http.client.HTTPSConnection(server, timeout=30, context=trusted)
            good.request("GET", "/health")
            assert good.getresponse().status == 200
            good.close()
        with trusted.wrap_socket(connect(server), server_hostname="127.0.0.1") as client:
            client.sendall(b"POST /reward HTTP/1.1\r\nHo")
            client.settimeout(60)
            with suppress(ConnectionResetError, ssl.SSLEOFError):
                assert client.recv(1000) == b""
    finally:
        process.terminate()
        process.wait(20)


SLOW = """import sys, time
from scripts import reward_server
answer = reward_server.answer
def slow_answer(*asked):
    print("scoring", flush=True)
    time.sleep(2.5)
    return answer(*asked)
reward_server.answer, reward_server.END_SECONDS = slow_answer, 1.0
reward_server.main(sys.argv[1:])
"""
"""A server that needs longer for an image than those who have not sent all of their requests may wait."""


@pytest.mark.skipif(os.name == "nt", reason="on this system, a process is ended without being told")
def test_a_server_that_is_told_to_end_finishes_complete_requests_and_waits_for_no_others():
    assert reward_server.END_SECONDS <= 5
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "--reward", "brightness", "--port", "0"],
        cwd=ROOT, env={k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE} | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        server = json.loads(process.stdout.readline())["url"]
        with ThreadPoolExecutor() as pool, idle_clients(server, 1, BODY_BEGUN) as (silent,):
            complete = pool.submit(ask, server, body=request())
            assert process.stdout.readline() == "scoring\n"
            late, begun = connect(server), request()
            head = BODY_BEGUN[:-1].replace(b"Content-Length: 1000", f"Content-Length: {len(begun)}".encode())
            late.sendall(head + begun[:-1])
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            time.sleep(0.5)
            late.sendall(begun[-1:])
            silent.settimeout(30)
            with suppress(ConnectionResetError):
                assert silent.recv(1000) == b""
            assert time.monotonic() - told < 30
            assert complete.result()[0] == 200
            late.settimeout(30)
            assert late.recv(1000).startswith(b"HTTP/1.1 200")
            late.close()
            process.wait(30)
            # two times 2.5 s of work, and not the minute that a body may take
            assert time.monotonic() - told < 45
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()


def test_a_length_of_thousands_of_digits_is_too_large(address):
    assert ask(address, body=b"", Content_Length="9" * 5000)[0] in (400, 413)
    assert ask(address, body=request())[0] == 200


def test_the_address_is_printed_once_it_answers(started):
    assert started[1] == 200
