"""README.md beside an exported file: how to prepare images for it, and a program that does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from onsight.data.fit import Fit, background_colour
from onsight.evaluation.results import Results
from onsight.files import has_mark, refuse_foreign
from onsight.installation import onsight_version
from onsight.models.preprocessing import Preprocessing
from onsight.report.console import headline
from onsight.report.html_page import page_template, write_page
from onsight.text import percent

_NAME = "README.md"
_RESIZE: dict[Fit, str] = {  # in Pillow
    "stretch": "image.resize({size}, Image.Resampling.BILINEAR)",
    "crop": "ImageOps.fit(image, {size}, Image.Resampling.BILINEAR)",
    "pad": "ImageOps.pad(image, {size}, Image.Resampling.BILINEAR, color={colour})",
}


def readme_path(target: Path) -> Path:
    """Return where the README of an exported file is: README.md, unless there is another.

    Then it is model.onnx.README.md. Raises OutputError if that is not Onsight's either.
    """
    mark, path = _mark(target.name).encode(), target.with_name(_NAME)
    if path.exists() and not has_mark(path, mark):
        path = target.with_name(f"{target.name}.{_NAME}")
        refuse_foreign(path, mark, "a README")
    return path


def write_readme(path: Path, name: str, to: str, facts: Mapping[str, Any]) -> None:
    """Write the README of an exported file or, for `to` web, of a folder with a page.

    name: of the exported file; facts: its metadata. Raises DiskError.
    """
    image, results = Preprocessing.of(facts["image"]), cast(Results, facts["results"])
    sides, colour = (image.width, image.height), background_colour(image.format)
    template = page_template("onsight.export", "readme.md.jinja", autoescape=False)
    text = template.render(
        mark=_mark(name),
        name=name,
        to=to,
        version=onsight_version(),
        model=facts["model"],
        members=facts.get("members", {}),
        classes=facts["classes"],
        headline=headline(results) if "images" in results else "",
        calibration=_calibration(facts["temperature"], results),
        image=image,
        resize=_RESIZE[image.fit].format(size=sides, colour=colour),
        out_of_distribution=facts.get("out_of_distribution"),
    )
    write_page(path, text)


def _calibration(temperature: float, results: Results) -> str:
    """State whether the final model was calibrated, and how good its probabilities were."""
    error, reason = results.get("expected_calibration_error"), results.get("temperature_reason")
    how = (
        "They were not calibrated"
        if temperature == 1
        else f"They were calibrated with a temperature of {temperature:g}"
    )
    sentence = f"{how} ({reason})." if reason else f"{how}."
    if error is None:
        return sentence
    return f"{sentence} Expected calibration error: {percent(error)} (n = {results['images']:,})."


def _mark(name: str) -> str:
    """Return the first line, by which the README of an exported file is recognised."""
    return f"<!-- how to use {name}, written by onsight export -->"
