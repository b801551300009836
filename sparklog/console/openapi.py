"""The description of the JSON API, made from the views and the dataclasses that they return.

Sources: OpenAPI 3.1.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, get_type_hints

import msgspec

from sparklog.console.views import View

API: Final = "/api/v1"
_ERROR = {
    "type": "object",
    "required": ["code", "message", "fix"],
    "properties": {name: {"type": "string"} for name in ("code", "message", "fix")},
}


def description(views: Sequence[View]) -> dict[str, Any]:
    """The document at /api/v1/openapi.json."""
    types = [get_type_hints(view.data)["return"] for view in views]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparklog console",
            "version": "1",
            "description": "What is in a root. Times are milliseconds since 1970 in UTC, sizes bytes.",
        },
        "servers": [{"url": "."}],
        "paths": {
            re.sub(r":\w+}", "}", view.api_path): {"get": _operation(view, schema)}
            for view, schema in zip(views, schemas, strict=True)
        },
        "components": {"schemas": {**components, "Error": _ERROR}},
    }


def _operation(view: View, schema: dict[str, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)(?::\w+)?}", view.api_path)
    ]
    after = [
        {"name": one.name, "in": "query", "description": one.doc, "schema": {"type": "string"}}
        for one in view.parameters
    ]
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "summary": view.doc,
        "parameters": [*in_path, *after],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": schema}}},
            "default": {"description": "code, message and what to do", **error},
        },
    }
