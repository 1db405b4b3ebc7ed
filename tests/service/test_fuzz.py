"""The HTTP API fuzzed from its own OpenAPI document, against a real server."""

from __future__ import annotations

import ssl
from urllib.parse import quote

import httpx
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from autorep.service.client import Client
from autorep.service.local import LocalDeployment
from autorep.service.openapi import document

SCHEMA = schemathesis.openapi.from_dict(document())
EXPECTED = {200, 204, 400, 401, 404, 405, 409, 411, 413, 415, 422, 424, 429, 503}


def test_requests_from_the_document_find_no_unhandled_error(deployment: LocalDeployment, client: Client) -> None:
    program = client.description.program
    counts: dict[int, int] = {}
    with httpx.Client(verify=ssl.create_default_context(cafile=str(deployment.ca)), timeout=20) as web:
        for operation in (result.ok() for result in SCHEMA.get_all_operations()):
            strategy = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE) | operation.as_strategy()

            @given(case=strategy, real=st.booleans(), server=st.sampled_from(deployment.urls))
            @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
            def ask(case: schemathesis.Case, real: bool, server: str) -> None:
                if real and "program" in (case.path_parameters or {}):
                    case.path_parameters["program"] = program
                request = case.as_transport_kwargs(base_url=server)
                body = request.get("data") or request.get("json")
                content = body if isinstance(body, bytes) else str(body or "").encode()
                headers = {k: str(v) for k, v in dict(request.get("headers") or {}).items()}
                answer = web.request(request["method"], request["url"], content=content, headers=headers)
                counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
                assert answer.status_code in EXPECTED, (request, answer.text)
                if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
                    assert answer.json()

            ask()
        assert web.get(f"{deployment.urls[0]}/readyz").status_code == 200
        assert web.get(f"{deployment.urls[1]}/readyz").status_code == 200
    assert counts.get(200, 0) > 0
    assert any(status >= 400 for status in counts)


@given(body=st.binary(max_size=600), query=st.text(max_size=40))
@example(body=b"", query="a/")
@example(body=bytes(512), query="../..")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_arbitrary_bodies_and_ids_are_refused_politely(
    deployment: LocalDeployment, client: Client, body: bytes, query: str
) -> None:
    path = f"/v1/programs/{client.description.program}/queries/"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(deployment.ca)), timeout=20) as web:
        url = httpx.URL(deployment.urls[0]).copy_with(path=path + quote(query, safe=""))
        answer = web.post(url, content=body, headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code in EXPECTED, (answer.status_code, answer.text)
