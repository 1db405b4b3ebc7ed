"""The OpenAPI document of the client API."""

from __future__ import annotations

from typing import Any

from autorep import __version__


def document() -> dict[str, Any]:
    """OpenAPI 3.1 description of one server."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "AutoReP inference server",
            "version": __version__,
            "description": "A client splits its image into two shares, posts one to each server under one query id, "
            "and adds the two answers. Neither server can see the image or the answer.",
        },
        "paths": {
            "/healthz": {"get": _get("The process runs", _object(status=_STRING, party=_INTEGER))},
            "/readyz": {"get": _ready()},
            "/readyz/{program}": {"parameters": [_PROGRAM_HASH], "get": _ready_program()},
            "/metrics": {"get": _metrics()},
            "/openapi.json": {"get": _get("This document", {"type": "object"})},
            "/v1/deployment": {"get": _get("Which server this is", _DEPLOYMENT)},
            "/v1/programs": {"get": _get("Programs served here", _object(programs=_array(_PROGRAM)))},
            "/v1/programs/{program}": {"parameters": [_PROGRAM_HASH], "get": _one_program()},
            "/v1/programs/{program}/queries/{query}": {
                "parameters": [_PROGRAM_HASH, _QUERY],
                "post": _post(),
                "delete": _delete(),
            },
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _TOKEN}},
            "schemas": {"Refusal": _REFUSAL},
        },
    }


_TOKEN = "For server i: HMAC-SHA-256 in hex of the text `autorep server i`, under the client's own token as key"
_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _get(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": _json(schema)}}}


_REFUSAL = _object(status=_INTEGER, message=_STRING, retry_with_new_masks={"type": "boolean"})
_TENSOR = _object(shape=_array(_INTEGER), frac=_INTEGER, bits=_INTEGER)
_DEPLOYMENT = _object(party=_INTEGER, servers=_array(_STRING), pair=_STRING, ready={"type": "boolean"})
_PROGRAM = _object(
    program=_STRING, model_id=_STRING, input=_TENSOR, output=_TENSOR, relus=_INTEGER, info={"type": "object"}
)
_PROGRAM_HASH = {
    "name": "program",
    "in": "path",
    "required": True,
    "description": "SHA-256 of the program's public part, in hex",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_QUERY = {
    "name": "query",
    "in": "path",
    "required": True,
    "description": "128 random bits in hex, the same at both servers, never used before",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}


def _refused(status: int, description: str) -> dict[str, dict[str, Any]]:
    response: dict[str, Any] = {
        "description": description,
        "content": _json({"$ref": "#/components/schemas/Refusal"}),
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": _INTEGER, "description": "seconds"}}
    return {str(status): response}


def _ready() -> dict[str, Any]:
    schema = _object(ready={"type": "boolean"}, programs={"type": "object"})
    operation = _get("Every program would answer a query now", schema)
    operation["responses"]["503"] = {"description": "Some program would not", "content": _json(schema)}
    return operation


def _ready_program() -> dict[str, Any]:
    schema = _object(ready={"type": "boolean"}, problems={"type": "object"}, kits=_INTEGER, stored=_INTEGER)
    operation = _get("This program would answer a query now", schema)
    operation["responses"]["503"] = {"description": "It would not", "content": _json(schema)}
    operation["responses"].update(_refused(404, "Not served here"))
    return operation


def _metrics() -> dict[str, Any]:
    content = {"text/plain": {"schema": _STRING}}
    return {"summary": "Prometheus metrics", "responses": {"200": {"description": "metrics", "content": content}}}


def _one_program() -> dict[str, Any]:
    operation = _get("One program", _PROGRAM)
    operation["responses"].update(_refused(404, "Not served here"))
    return operation


def _post() -> dict[str, Any]:
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    refusals = {
        400: "Malformed query id",
        401: "Missing or unknown token",
        404: "Program not served here",
        408: "Body did not arrive in time",
        409: "Query id used before",
        413: "Body longer than shares of 32 images",
        415: "Body is not application/octet-stream",
        422: "Body is not a whole number of shares of images",
        424: "The other half of the query did not arrive, or was withdrawn",
        429: "More images a second than this client may send",
        502: "The other server failed during the query",
        503: "Not ready, full, or out of correlated randomness",
    }
    responses: dict[str, Any] = {"200": {"description": "This server's share of the answer", "content": binary}}
    for status, text in refusals.items():
        responses.update(_refused(status, text))
    return {
        "summary": "One half of a query",
        "description": "The body is one additive share of the fixed-point image: little-endian 64-bit words; shares of "
        "up to 32 images may follow each other. Where some fail, `Autorep-Statuses` has a status for each. The call "
        "returns when the other half has arrived at the other server and both have computed.",
        "security": [{"token": []}, {}],
        "requestBody": {"required": True, "content": binary},
        "responses": responses,
    }


def _delete() -> dict[str, Any]:
    responses: dict[str, Any] = {"204": {"description": "It will not be answered any more, unless it ran already"}}
    for status, text in {400: "Malformed query id", 401: "Missing or unknown token", 404: "Not served here"}.items():
        responses.update(_refused(status, text))
    return {
        "summary": "Withdraw one half of a query",
        "description": "For a client whose other half was refused; it then asks anew, under a new id with new masks.",
        "security": [{"token": []}, {}],
        "responses": responses,
    }
