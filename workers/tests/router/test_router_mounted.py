"""Who may come in, and by which certificate: what a Secret is mounted as, used and taken up again when it changes."""

from __future__ import annotations

import asyncio
import ssl
import subprocess

import aiohttp
import pytest

from tandem_router.app import Face
from tandem_router.main import Door, open_door, settings_of
from tandem_router.mounted import Certificate, Keys, MountError, follow
from workers.tests.router.standins import World, cancelled, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SOON_S = 0.02


def written(folder, **values):
    for name, value in values.items():
        (folder / name).write_text(value)
    return folder


def made_pair(folder, name):
    """A self-signed pair for 127.0.0.1."""
    folder.mkdir(exist_ok=True)
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"), "-subj", f"/CN={name}"]
    subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True, timeout=30)
    return folder


def flags(port, **more):
    words = ["--namespace=ns", "--resource=chat", "--host=127.0.0.1", f"--port={port}", "--ttft-ms=500", "--tpot-ms=40"]
    return settings_of([*words, *(f"--{name.replace('_', '-')}={value}" for name, value in more.items())], {})


async def opened(world: World, door: Door):
    face = Face(world.registry, world.upstream, world.ledger, world.proxy)
    return await open_door(face, door, flags(0, tls_port=0))


def url_of(runner, scheme="http"):
    return "{}://{}:{}".format(scheme, *runner.addresses[0][:2])


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        pytest.param("Bearer sk-one", True, id="a key"),
        pytest.param("bearer sk-two", True, id="another key, the scheme in small letters"),
        pytest.param("Bearer sk-three", False, id="no key of ours"),
        pytest.param("Bearer sk-on", False, id="the beginning of a key"),
        pytest.param("Bearer ", False, id="an empty one, though a file is empty"),
        pytest.param("sk-one", False, id="without a scheme"),
        pytest.param("Basic sk-one", False, id="another scheme"),
        pytest.param("Bearer \udcff", False, id="not even text"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_who_is_allowed(tmp_path, given, allowed):
    keys = Keys(written(tmp_path, a="sk-one\n", b="sk-two", empty=" \n"))
    assert keys.allow(given) is allowed


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        pytest.param("/v1/models", {}, 401, id="the API without a key"),
        pytest.param("/v1/models", {"Authorization": "Bearer sk-one"}, 503, id="with one, up to the workers"),
        pytest.param("/health", {}, 200, id="the kubelet needs none"),
        pytest.param("/metrics", {}, 200, id="nor does Prometheus"),
        pytest.param("/v2/else", {}, 404, id="there is nothing to guard"),
    ],
)
async def test_what_is_guarded(world: World, tmp_path, path, header, status):
    (runner,) = await opened(world, Door(keys=Keys(written(tmp_path, a="sk-one"))))
    async with world.client.get(url_of(runner) + path, headers=header) as response:
        assert response.status == status
        assert ("WWW-Authenticate" in response.headers) == (status == 401)
    await runner.cleanup()


async def test_a_completion_without_a_key_reaches_no_worker_and_no_count(world: World, tmp_path):
    decode = await world.worker("d0", "both")
    (runner,) = await opened(world, Door(keys=Keys(written(tmp_path, a="sk-one"))))
    async with world.client.post(url_of(runner) + "/v1/chat/completions", json=BODY) as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert decode.seen == []
    assert world.value("arrivals_total") == 0, "strangers are no load for the planner"
    await runner.cleanup()


async def test_keys_are_taken_up_when_they_change(tmp_path):
    keys = Keys(written(tmp_path, a="sk-old"))
    following = asyncio.create_task(follow(keys, SOON_S))
    written(tmp_path, a="sk-newer")
    await until(lambda: keys.allow("Bearer sk-newer"))
    assert not keys.allow("Bearer sk-old")
    (tmp_path / "a").unlink()
    await until(lambda: not keys.allow("Bearer sk-newer"))
    await cancelled(following)


async def test_keys_that_cannot_be_read_leave_the_old_ones(tmp_path, caplog):
    keys = Keys(written(tmp_path, a="sk-old"))
    following = asyncio.create_task(follow(keys, SOON_S))
    written(tmp_path, b="x" * 10_000)
    await until(lambda: "stays in force" in caplog.text)
    assert keys.allow("Bearer sk-old")
    assert "xxx" not in caplog.text
    await cancelled(following)


async def served_by(port):
    """The certificate that a new connection gets."""
    text = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=10)
    return text.strip()


async def test_with_a_certificate_the_api_is_https_alone(world: World, tmp_path):
    folder = made_pair(tmp_path / "tls", "first")
    https, http = await opened(world, Door(certificate=Certificate(folder)))
    trusted = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    async with world.client.get(url_of(https, "https") + "/v1/models", ssl=trusted) as response:
        assert response.status == 503, "no worker; but the handshake is done"
    for path, status in (("/v1/models", 405), ("/health", 200), ("/metrics", 200)):
        async with world.client.get(url_of(http) + path) as response:
            assert response.status == status
    async with world.client.post(url_of(http) + "/v1/chat/completions", json=BODY) as response:
        assert response.status >= 400
    with pytest.raises(aiohttp.ClientError):
        await world.client.get(url_of(https, "http") + "/v1/models")
    await https.cleanup()
    await http.cleanup()


async def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(world: World, tmp_path, caplog):
    folder = made_pair(tmp_path / "tls", "first")
    certificate = Certificate(folder)
    following = asyncio.create_task(follow(certificate, SOON_S))
    https, http = await opened(world, Door(certificate=certificate))
    port = https.addresses[0][1]
    assert await served_by(port) == (folder / "tls.crt").read_text().strip()
    good = (made_pair(folder, "second") / "tls.crt").read_text().strip()
    until_s = asyncio.get_running_loop().time() + 10
    while await served_by(port) != good:
        assert asyncio.get_running_loop().time() < until_s
    (folder / "tls.crt").write_text("no certificate")
    await until(lambda: "stays in force" in caplog.text)
    assert await served_by(port) == good
    await cancelled(following)
    await https.cleanup()
    await http.cleanup()


@pytest.mark.parametrize("kind", [Keys, Certificate])
def test_what_is_not_there_is_said_at_the_start(tmp_path, kind):
    with pytest.raises(MountError):
        kind(tmp_path / "nowhere")
