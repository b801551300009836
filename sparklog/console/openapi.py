"""The description of the JSON API, made from the views and the dataclasses that they return.

Sources: OpenAPI 3.1.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, get_type_hints

import msgspec

from sparklog.console.changes import CONFIRM, Change, Done, Preview
from sparklog.console.views import View

API: Final = "/api/v1"
_ERROR = {
    "type": "object",
    "required": ["code", "message", "fix"],
    "properties": {name: {"type": "string"} for name in ("code", "message", "fix")},
}


def description(views: Sequence[View], changes: Sequence[Change] = ()) -> dict[str, Any]:
    """The document at /api/v1/openapi.json."""
    types = [*(get_type_hints(view.data)["return"] for view in views), Preview, Done]
    (*schemas, preview, done), components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparklog console",
            "version": "1",
            "description": "What is in a root. Times are milliseconds since 1970 in UTC, sizes bytes.",
        },
        "servers": [{"url": "."}],
        "paths": {
            **{
                _path(view.api_path): {"get": _operation(view, schema)}
                for view, schema in zip(views, schemas, strict=True)
            },
            **{_path(change.path): {"post": _change(change, preview)} for change in changes},
            **({CONFIRM: {"post": _confirmation(done)}} if changes else {}),
        },
        "components": {"schemas": {**components, "Error": _ERROR}},
    }


def _path(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)(?::\w+)?}", path)
    ]


def _operation(view: View, schema: dict[str, Any]) -> dict[str, Any]:
    after = [
        {"name": one.name, "in": "query", "description": one.doc, "schema": {"type": "string"}}
        for one in view.parameters
    ]
    return {
        "summary": view.doc,
        "parameters": [*_in_path(view.api_path), *after],
        "responses": _responses(schema),
    }


def _change(change: Change, schema: dict[str, Any]) -> dict[str, Any]:
    group = {"name": "group", "in": "query", "required": True, "schema": {"type": "string"}}
    value = {"type": ["string", "integer", "boolean", "null"]}
    return {
        "summary": f"{change.doc} Returns a preview; nothing is changed before {CONFIRM}.",
        "parameters": [*_in_path(change.path), *([group] if change.path.startswith("/group/") else [])],
        "requestBody": _body({one.name: {**value, "description": one.doc} for one in change.fields}),
        "responses": _responses(schema),
    }


def _confirmation(schema: dict[str, Any]) -> dict[str, Any]:
    code = {"type": "string", "description": "The code of a preview. It confirms once."}
    return {
        "summary": "Do what a preview showed. 409: that is outdated, and nothing was changed.",
        "requestBody": _body({"confirm": code}),
        "responses": _responses(schema),
    }


def _body(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _responses(schema: dict[str, Any]) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "200": {"description": "OK", "content": {"application/json": {"schema": schema}}},
        "default": {"description": "code, message and what to do", **error},
    }
