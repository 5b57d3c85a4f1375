"""Annotation files as JSON or XML, read within limits."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from onsight.errors import DataError
from onsight.limits import ANNOTATION_BYTES


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises DataError."""
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:  # bytes that are no text are ValueErrors too
        raise DataError(f"{path} is not valid JSON: {error}") from error


def read_xml(path: Path) -> ElementTree.Element:
    """The root of an XML file. Raises DataError; a document type, which may grow, is refused."""
    data = _read(path)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise DataError(f"{path} declares a document type, which annotations do without")
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding
        raise DataError(f"{path} is not valid XML: {error}") from error


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > ANNOTATION_BYTES:
            raise DataError(
                f"{path} has {size / 1e9:.1f} GB; annotations are read up to "
                f"{ANNOTATION_BYTES / 1e9:g} GB"
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
