"""Descriptions for clients: a card for each model, and the API as OpenAPI 3.1."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from onsight.evaluation.results import Results
from onsight.installation import onsight_version
from onsight.limits import FEW_IMAGES
from onsight.report.sentences import accuracy_sentences
from onsight.serve.access import Limits
from onsight.serve.registry import ServedModel, model_file
from onsight.text import percent, plural

_RESULTS = ("accuracy", "accuracy_low", "accuracy_high", "images", "split", "folds")

Schema = dict[str, Any]


def model_card(model: ServedModel, capabilities: Mapping[str, bool]) -> dict[str, Any]:
    """Return the facts of a model as JSON values; unknown ones are None or an empty list."""
    size = model.predictor.format
    network, results, provenance = _recorded_facts(model)
    rows = [_class_row(row) for row in results.get("classes") or []]
    data = provenance.get("data")
    return {
        "name": model.name,
        "model": network,
        "classes": list(model.classes),
        "input": {
            "height": size.model_size[0],
            "width": size.model_size[1],
            "channels": size.channels,
            "fit": size.fit,
            "background": list(size.background),
            "pixel_limit": size.pixel_limit,
        },
        **{name: results.get(name) for name in _RESULTS},
        "explanation": accuracy_sentences(cast(Results, defaultdict(lambda: None, results))),
        "per_class": rows,
        "data": Path(data).name if isinstance(data, str) else None,  # clients need no local path
        "date": _file_date(model.path),
        "limitations": list(_limitations(len(model.classes), results, rows)),
        "capabilities": dict(capabilities),
    }


def openapi_document(limits: Limits) -> Schema:
    """Return the OpenAPI document, which states the server's limits."""
    accepted = (
        f"At most {limits.parts} images and {limits.body_bytes / 2**20:g} MiB per request, which "
        f"must arrive within {limits.receive_seconds:g} s. Images are JPEG, PNG, WebP, GIF, BMP or "
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
            "/metrics": {"get": _text("Metrics in Prometheus's text format.")},
            "/openapi.json": {"get": _get("This document.", {"type": "object"})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _object({"error": _STRING})},
        },
        "security": [{}, {"token": []}],
    }


# ---------------------------------------------------------------------------- model cards


def _recorded_facts(
    model: ServedModel,
) -> tuple[str | None, Mapping[str, Any], Mapping[str, Any]]:
    """Return (network, results, provenance) from the model file or an exported file's metadata."""
    runner = model.predictor.runner
    file = getattr(runner, "file", None)
    if file is not None:
        return file.model, file.results, file.provenance
    metadata: Mapping[str, Any] = getattr(runner, "metadata", {})
    return metadata.get("model"), metadata.get("results") or {}, metadata.get("provenance") or {}


def _class_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": row.get("name"),
        "recall": row.get("recall"),
        "low": row.get("recall_low"),
        "high": row.get("recall_high"),
        "n": row.get("images"),
    }


def _file_date(path: Path) -> str | None:
    try:
        return datetime.fromtimestamp(model_file(path).stat().st_mtime, UTC).date().isoformat()
    except OSError:
        return None


def _limitations(
    classes: int, results: Mapping[str, Any], rows: list[dict[str, Any]]
) -> Iterator[str]:
    """Yield the model's limitations, which users should know before they trust it."""
    yield (
        f"It assigns one of its {classes:,} classes to every image, even to an image of something "
        "else."
    )
    if not results.get("images") or results.get("accuracy") is None:
        yield "Its accuracy is unknown: no images were held out to measure it."
        return
    yield (
        f"Its accuracy was measured on {results['images']:,} images like those it was trained "
        "on; it may be lower with other cameras, places or kinds of image."
    )
    measured = [row for row in rows if row["recall"] is not None]
    if measured:
        worst = min(measured, key=lambda row: row["recall"])
        yield (
            f"Its weakest class is {worst['class']}: {percent(worst['recall'])} of "
            f"{worst['n']:,} images were recognised."
        )
    few = sum((row["n"] or 0) < FEW_IMAGES for row in rows)
    if few:
        measured_on_few = f"{plural(few, 'class', 'classes')} {'was' if few == 1 else 'were'}"
        yield f"{measured_on_few} evaluated on fewer than {FEW_IMAGES} images each."


# -------------------------------------------------------------------------------- OpenAPI


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STRING: Schema = {"type": "string"}
_OPTIONAL_STRING: Schema = {"type": ["string", "null"]}
_FRACTION: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}

_PREDICTION = _object(
    {
        "name": _OPTIONAL_STRING,
        "predicted": _OPTIONAL_STRING,
        "probability": _FRACTION,
        "probabilities": _list(_object({"class": _STRING, "probability": _FRACTION})),
        "out_of_distribution": {"type": ["boolean", "null"]},
        "problem": _OPTIONAL_STRING,
    }
)
_PREDICTIONS = _object({"model": _STRING, "predictions": _list(_PREDICTION)})
_NEIGHBOUR = _object(
    {
        "label": _OPTIONAL_STRING,
        "similarity": {"type": "number"},
        "image": {"type": "string", "pattern": "^data:image/png;base64,"},
    }
)
_NAMES: Schema = {"models": _list(_STRING), "default": _STRING, "max_bytes": _COUNT}
_CLASS = _object(
    {"class": _STRING, "recall": _FRACTION, "low": _FRACTION, "high": _FRACTION, "n": _COUNT}
)
_INPUT = _object(
    {
        "height": {"type": "integer", "minimum": 1},
        "width": {"type": "integer", "minimum": 1},
        "channels": {"enum": [1, 3]},
        "fit": {"enum": ["stretch", "crop", "pad"]},
        "background": _list({"type": "integer", "minimum": 0, "maximum": 255}),
        "pixel_limit": {"type": "integer", "minimum": 1},
    }
)
_CARD: Schema = {
    "name": _STRING,
    "model": _OPTIONAL_STRING,
    "classes": _list(_STRING),
    "input": _INPUT,
    "accuracy": _FRACTION,
    "accuracy_low": _FRACTION,
    "accuracy_high": _FRACTION,
    "images": _COUNT,
    "split": _OPTIONAL_STRING,
    "folds": _COUNT,
    "explanation": _list(_STRING),
    "per_class": _list(_CLASS),
    "data": _OPTIONAL_STRING,
    "date": _OPTIONAL_STRING,
    "limitations": _list(_STRING),
    "capabilities": _object({"explain": _BOOLEAN, "similar": _BOOLEAN}),
}
_ERROR: Schema = {"$ref": "#/components/schemas/Error"}
_REASONS = {
    400: "A parameter, a header or the form is invalid.",
    401: "The token is missing or wrong.",
    403: "The host name is unknown, or the request comes from another web page.",
    404: "There is no such model or class.",
    408: "The request did not arrive in time.",
    413: "Too many bytes or images.",
    415: "The body is neither a form nor an image.",
    422: "The image cannot be used.",
    431: "The headers are too long.",
    500: "The server, or the model on this image, failed.",
    501: "This model or server cannot do that; the reason is given.",
    503: "The server is busy, stopping or not ready: try again after Retry-After seconds.",
}
_ANY_ROUTE = (400, 401, 403, 408, 431, 500, 503)
_IMAGE_ROUTE = (404, 413, 415, 422)


def _parameter(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _count_parameter(name: str, description: str) -> Schema:
    schema = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 5}
    return _parameter(name, description, schema)


_MODEL = _parameter("model", "A name from /models; the first model by default.", _STRING)


def _responses(success: Schema, codes: tuple[int, ...]) -> Schema:
    errors = {str(code): _json(_REASONS[code], _ERROR) for code in sorted({*_ANY_ROUTE, *codes})}
    return {"200": success} | errors


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _get(
    summary: str,
    schema: Schema,
    parameters: list[Schema] | None = None,
    codes: tuple[int, ...] = (),
) -> Schema:
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": _responses(_json(summary, schema), codes),
    }


def _text(summary: str) -> Schema:
    success = {"description": summary, "content": {"text/plain": {"schema": _STRING}}}
    return {"summary": summary, "responses": _responses(success, ())}


def _ready() -> Schema:
    statuses = {"type": "object", "additionalProperties": _STRING}
    schema = _object({"ready": _BOOLEAN, "models": statuses})
    operation = _get("Whether every model is loaded and its worker alive.", schema)
    operation["responses"]["503"] = _json(_REASONS[503], {"anyOf": [schema, _ERROR]})
    return operation


def _post(summary: str, success: Schema, parameters: list[Schema], max_images: int = 1) -> Schema:
    codes = _IMAGE_ROUTE if max_images > 1 else (*_IMAGE_ROUTE, 501)
    return {
        "summary": summary,
        "parameters": [_MODEL, *parameters],
        "requestBody": _body(max_images),
        "responses": _responses(success, codes),
    }


def _body(max_images: int) -> Schema:
    image = {"schema": {"type": "string", "format": "binary"}}
    images = {"type": "array", "items": image["schema"], "minItems": 1, "maxItems": max_images}
    form = {"schema": _object({"images": images})}
    content = {"multipart/form-data": form, "application/octet-stream": image, "image/*": image}
    return {"required": True, "content": content}


def _predict(limits: Limits) -> Schema:
    success = _json("A prediction, or a problem, for each image in order.", _PREDICTIONS)
    top = _count_parameter("top", "The number of classes to list for each image.")
    operation = _post("Predict the classes of images.", success, [top], limits.parts)
    operation["responses"]["422"] = _json("No image can be used.", _PREDICTIONS)
    either = {"anyOf": [_PREDICTIONS, _ERROR]}
    operation["responses"]["500"] = _json(_REASONS[500], either)
    return operation


def _explain() -> Schema:
    success = {
        "description": "The image with a heat map of the regions that support the class.",
        "headers": {"X-Onsight-Class": {"description": "URL-encoded.", "schema": _STRING}},
        "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    }
    name = _parameter("class", "The class to explain; the predicted one by default.", _STRING)
    return _post("Show which regions of an image support a class.", success, [name])


def _similar() -> Schema:
    success = _json("The most similar first.", _object({"similar": _list(_NEIGHBOUR)}))
    count = _count_parameter("count", "The number of images to return, at most 50.")
    return _post("Find the most similar training images.", success, [count])
