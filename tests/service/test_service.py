"""Two real servers, a dealer and clients, as processes over TLS."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from autorep.errors import ConfigError, HandshakeError, ProtocolError, RangeError
from autorep.modes import Program
from autorep.service.client import Client
from autorep.service.local import LocalDeployment
from autorep.service.shares import CONTENT_TYPE, new_query_id, split

BYTES = {"Content-Type": CONTENT_TYPE}


@pytest.fixture
def web(deployment: LocalDeployment) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    context = ssl.create_default_context(cafile=str(deployment.ca))
    first, second = (httpx.Client(base_url=url, verify=context, timeout=100) for url in deployment.urls)
    with first, second:
        yield first, second


def waiting(server: httpx.Client) -> float:
    """How many images wait for their other half or their turn."""
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("autorep_waiting_queries"))


def query_path(client: Client, query_id: str | None = None) -> str:
    return f"/v1/programs/{client.description.program}/queries/{query_id or new_query_id()}"


def test_private_answers_equal_the_fixed_point_program(client: Client, program: Program, images: np.ndarray) -> None:
    answers = client.predict(images)
    expected = program.run(images, "fixed")
    found = np.stack([answer.logits for answer in answers])
    assert np.abs(found - expected).max() < 1e-3
    assert [answer.label for answer in answers] == [f"digit {i}" for i in found.argmax(1)]
    assert answers[0].rounds > 0
    assert answers[0].sent_bytes > 0
    assert answers[0].offline_bytes > 0
    assert all(answer.in_range for answer in answers)


def test_image_out_of_range_is_refused_and_an_answer_out_of_range_is_marked(client: Client, images: np.ndarray) -> None:
    both = np.stack([images[0], 20 * images[0]])
    with pytest.raises(RangeError, match="outside the range"):
        client.predict(both)
    client.description.info.pop("input_range")  # a client that does not look
    limit = client.description.output_limit
    near, far = client.predict(both)
    assert (near.in_range, far.in_range) == (True, False)
    assert np.abs(near.logits).max() <= limit < np.abs(far.logits).max()


def test_several_clients_at_once_get_their_own_answers(deployment: LocalDeployment, program: Program) -> None:
    batches = np.random.default_rng(2).random((3, 8, 1, 8, 8))

    def ask(batch: np.ndarray) -> np.ndarray:
        with deployment.client(concurrency=3) as own:
            return own.logits(batch)

    with ThreadPoolExecutor(3) as pool:
        for found, batch in zip(pool.map(ask, batches), batches):
            assert np.abs(found - program.run(batch, "fixed")).max() < 1e-3


def test_half_without_partner_expires_at_either_server(web: tuple[httpx.Client, httpx.Client], client: Client) -> None:
    for server in web:
        answer = server.post(query_path(client), content=bytes(512), headers=BYTES)
        assert answer.status_code == 424
        assert "other half did not arrive within 3 s" in answer.json()["message"]


def test_query_id_is_good_for_one_query_only(web: tuple[httpx.Client, httpx.Client], client: Client) -> None:
    path = query_path(client)
    for server in web:  # connected before, the halves arrive together
        server.get("/healthz")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda server: server.post(path, content=bytes(512), headers=BYTES), web))
    assert [answer.status_code for answer in answers] == [200, 200]
    for server in web:
        again = server.post(path, content=bytes(512), headers=BYTES)
        assert again.status_code == 409
        assert "new masks" in again.json()["message"]


@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("{query}", bytes(511), CONTENT_TYPE, 422),
        ("{query}", bytes(513), CONTENT_TYPE, 422),
        ("{query}", b"", CONTENT_TYPE, 422),
        ("{query}", bytes(33 * 512), CONTENT_TYPE, 413),
        ("{query}", bytes(512), "application/json", 415),
        ("/v1/programs/" + 64 * "0" + "/queries/" + 32 * "a", bytes(512), CONTENT_TYPE, 404),
        ("{program}/queries/XYZ", bytes(512), CONTENT_TYPE, 400),
    ],
)
def test_wrong_requests_get_clear_refusals(
    web: tuple[httpx.Client, httpx.Client], client: Client, path: str, body: bytes, kind: str, status: int
) -> None:
    address = path.format(query=query_path(client), program=f"/v1/programs/{client.description.program}")
    for server in web:
        answer = server.post(address, content=body, headers={"Content-Type": kind})
        assert answer.status_code == status
        assert len(answer.json()["message"]) > 20


def test_client_that_leaves_frees_the_other_half(web: tuple[httpx.Client, httpx.Client], client: Client) -> None:
    path, patience = query_path(client), httpx.Timeout(60, read=0.5)
    with pytest.raises(httpx.ReadTimeout):
        web[0].post(path, content=bytes(512), headers=BYTES, timeout=patience)
    while waiting(web[0]):  # until the server has seen the client go; a half that came earlier would be answered
        time.sleep(0.05)
    answer = web[1].post(path, content=bytes(512), headers=BYTES)
    assert answer.status_code == 424


def test_wrong_shape_is_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(ConfigError, match="takes batches of"):
        client.predict(np.zeros((1, 3, 8, 8)))
    with pytest.raises(ConfigError, match="NaN"):
        client.predict(np.full((1, 1, 8, 8), np.nan))


def test_swapped_servers_and_foreign_authority_are_named(deployment: LocalDeployment) -> None:
    with (
        Client(deployment.urls[::-1], ca=deployment.ca) as swapped,
        pytest.raises(HandshakeError, match="swap the two URLs"),
    ):
        _ = swapped.description
    with Client(deployment.urls) as strict, pytest.raises(ProtocolError, match="certificate refused.*--ca FILE"):
        _ = strict.description


def test_facts_metrics_and_page_are_served(web: tuple[httpx.Client, httpx.Client], client: Client) -> None:
    client.predict(np.zeros((1, 1, 8, 8)))
    for index, server in enumerate(web):
        assert server.get("/healthz").json() == {"status": "ok", "party": index}
        assert server.get("/readyz").json()["ready"] is True
        assert 'autorep_queries_total{program="' in server.get("/metrics").text
        assert server.get("/openapi.json").json()["openapi"].startswith("3.")
        assert server.get("/v1/programs").json()["programs"][0]["input"]["shape"] == [1, 8, 8]
        assert server.get("/nothing").status_code == 404
        assert server.get(query_path(client)).status_code == 405


def test_logs_are_json_lines_without_shares(deployment: LocalDeployment, client: Client) -> None:
    client.predict(np.zeros((1, 1, 8, 8)))
    for role in ("party0", "party1", "dealer"):
        for line in deployment.log(role).read_text().splitlines():
            assert {"time", "level", "event"} <= json.loads(line).keys()


def test_shares_of_one_image_never_repeat(images: np.ndarray) -> None:
    first, second = split(images[0], 16), split(images[0], 16)
    assert first[0] != second[0]
    assert first[1] != second[1]
    total = np.frombuffer(first[0], "<u8") + np.frombuffer(first[1], "<u8")
    assert np.allclose(total.view(np.int64) / 2**16, images[0].reshape(-1), atol=2**-16)


def test_two_threads_may_share_a_client(client: Client, program: Program, images: np.ndarray) -> None:
    results: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: client.logits(images[4 * i : 4 * i + 4])}))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.keys() == {0, 1}
    for i, found in results.items():
        assert np.abs(found - program.run(images[4 * i : 4 * i + 4], "fixed")).max() < 1e-3


@pytest.mark.parametrize("path", ["/", "/page.js", "/healthz", "/v1/programs", "/nothing", "/v1/programs/none"])
def test_every_answer_tells_browsers_to_come_by_tls_only(web: tuple[httpx.Client, httpx.Client], path: str) -> None:
    for server in web:
        headers = server.get(path).headers
        assert headers["strict-transport-security"] == "max-age=31536000"
        assert headers["x-content-type-options"] == "nosniff"


def test_page_may_not_be_framed_and_runs_its_own_scripts_only(
    web: tuple[httpx.Client, httpx.Client], deployment: LocalDeployment
) -> None:
    for server in web:
        policy = server.get("/").headers["content-security-policy"]
        parts = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
        assert parts["frame-ancestors"] == parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
        assert parts["script-src"] == "'self'"
        assert parts["connect-src"].split() == ["'self'", *deployment.urls]
