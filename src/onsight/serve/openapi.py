"""The description of the API as OpenAPI 3.1, for people and programs."""

from typing import Any

from onsight.serve.settings import Limits
from onsight.version import onsight_version

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_SHARE: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_TEXT: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_REASONS = {
    400: "A parameter, a header or the form is wrong.",
    401: "The token is missing or wrong.",
    403: "Another host is named, or a foreign web page asks.",
    404: "There is no such model or class.",
    408: "The request did not arrive in time.",
    413: "Too many bytes or images.",
    415: "This is no form and no image.",
    422: "The image cannot be used.",
    431: "The headers are too long.",
    500: "The server, or the model on this image, failed.",
    501: "This model or server cannot do that; the reason is given.",
    503: "The server is busy, stopping or not ready: try again after Retry-After seconds.",
}
_ALWAYS = (400, 401, 403, 408, 431, 500, 503)
_IMAGE = (404, 413, 415, 422)


def document(limits: Limits) -> Schema:
    """The whole description, with the server's limits in words."""
    accepted = (
        f"At most {limits.parts} images and {limits.body_bytes:,} bytes in a request, which must "
        f"arrive within {limits.receive_seconds:g} s. Images are JPEG, PNG, WebP, GIF, BMP or "
        "TIFF, recognised by their content."
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Onsight", "version": onsight_version(), "description": accepted},
        "paths": {
            "/predict": {"post": _predict(limits)},
            "/explain": {"post": _explain()},
            "/similar": {"post": _similar()},
            "/model": {"get": _get("The facts of a model.", _object(_CARD), [_MODEL], (404,))},
            "/models": {"get": _get("The names of all models.", _object(_NAMES))},
            "/health": {"get": _get("The process is up.", _object({"status": {"const": "up"}}))},
            "/ready": {"get": _ready()},
            "/metrics": {"get": _text("Counts in the text format of Prometheus.")},
            "/openapi.json": {"get": _get("This document.", {"type": "object"})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": _STRING})},
        },
        "security": [{}, {"token": []}],
    }


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_LIKELY = _object({"class": _STRING, "probability": _SHARE})
_PREDICTION = _object(
    {
        "name": _TEXT,
        "predicted": _TEXT,
        "probability": _SHARE,
        "probabilities": _list(_LIKELY),
        "out_of_distribution": {"type": ["boolean", "null"]},
        "problem": _TEXT,
    }
)
_PREDICTIONS = _object({"model": _STRING, "predictions": _list(_PREDICTION)})
_NEIGHBOUR = _object(
    {
        "label": _TEXT,
        "similarity": {"type": "number"},
        "image": {"type": "string", "pattern": "^data:image/png;base64,"},
    }
)
_NAMES: Schema = {"models": _list(_STRING), "default": _STRING, "max_bytes": _COUNT}
_CLASS = _object({"class": _STRING, "recall": _SHARE, "low": _SHARE, "high": _SHARE, "n": _COUNT})
_INPUT = _object(
    {
        "height": {"type": "integer", "minimum": 1},
        "width": {"type": "integer", "minimum": 1},
        "channels": {"enum": [1, 3]},
        "fit": {"enum": ["stretch", "crop", "pad"]},
        "pixel_limit": {"type": "integer", "minimum": 1},
    }
)
_CARD: Schema = {
    "name": _STRING,
    "model": _TEXT,
    "classes": _list(_STRING),
    "input": _INPUT,
    "accuracy": _SHARE,
    "accuracy_low": _SHARE,
    "accuracy_high": _SHARE,
    "images": _COUNT,
    "per_class": _list(_CLASS),
    "data": _TEXT,
    "date": _TEXT,
    "limits": _list(_STRING),
    "can": _object({"explain": _FLAG, "similar": _FLAG}),
}


def _parameter(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _number(name: str, about: str, default: int) -> Schema:
    schema = {"type": "integer", "minimum": 1, "maximum": 1000, "default": default}
    return _parameter(name, about, schema)


_MODEL = _parameter("model", "A name from /models; without it, the first.", _STRING)


def _responses(success: Schema, codes: tuple[int, ...]) -> Schema:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {
        str(code): {"description": _REASONS[code], "content": error}
        for code in sorted({*_ALWAYS, *codes})
    }
    return {"200": success} | refusals


def _json(about: str, schema: Schema) -> Schema:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _get(
    about: str,
    schema: Schema,
    parameters: list[Schema] | None = None,
    codes: tuple[int, ...] = (),
) -> Schema:
    return {
        "summary": about,
        "parameters": parameters or [],
        "responses": _responses(_json(about, schema), codes),
    }


def _text(about: str) -> Schema:
    success = {"description": about, "content": {"text/plain": {"schema": _STRING}}}
    return {"summary": about, "responses": _responses(success, ())}


def _ready() -> Schema:
    schema = _object(
        {"ready": _FLAG, "models": {"type": "object", "additionalProperties": _STRING}}
    )
    found = _get("Whether every model is loaded and its worker alive.", schema)
    either = {"anyOf": [schema, {"$ref": "#/components/schemas/Error"}]}
    found["responses"]["503"] = _json(_REASONS[503], either)
    return found


def _body(most: int) -> Schema:
    image = {"schema": {"type": "string", "format": "binary"}}
    several = {"type": "array", "items": image["schema"], "minItems": 1, "maxItems": most}
    form = {"schema": _object({"images": several})}
    content = {"multipart/form-data": form, "application/octet-stream": image, "image/*": image}
    return {"required": True, "content": content}


def _post(about: str, success: Schema, parameters: list[Schema], most: int = 1) -> Schema:
    codes = _IMAGE if most > 1 else (*_IMAGE, 501)
    return {
        "summary": about,
        "parameters": [_MODEL, *parameters],
        "requestBody": _body(most),
        "responses": _responses(success, codes),
    }


def _predict(limits: Limits) -> Schema:
    answers = _json("A prediction, or a problem, for each image in order.", _PREDICTIONS)
    top = _number("top", "How many classes to name for each image.", 5)
    found = _post("Predict the classes of images.", answers, [top], limits.parts)
    found["responses"]["422"] = _json("No image can be used.", _PREDICTIONS)
    either = {"anyOf": [_PREDICTIONS, {"$ref": "#/components/schemas/Error"}]}
    found["responses"]["500"] = _json(_REASONS[500], either)
    return found


def _explain() -> Schema:
    image = {
        "description": "The image, with the heat of what speaks for the class over it.",
        "headers": {"X-Onsight-Class": {"description": "URL-encoded.", "schema": _STRING}},
        "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    }
    name = _parameter("class", "Whose heat is drawn; without it, the predicted class.", _STRING)
    return _post("Show what in an image speaks for a class.", image, [name])


def _similar() -> Schema:
    answer = _json("The most similar first.", _object({"similar": _list(_NEIGHBOUR)}))
    count = _number("count", "How many to find, at most 50.", 5)
    return _post("Find the training images that look most alike.", answer, [count])
