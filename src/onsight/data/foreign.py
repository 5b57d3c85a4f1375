"""Files in place of images that people often have, told by their first bytes."""

_LEAST = 12  # bytes to tell anything by
_FRAMES = "take frames out of it, such as with ffmpeg, and keep those of one video on one side of "
_VIDEO = f"a video: {_FRAMES}the split with --group-by"
_STARTS = {
    b"%PDF-": "a PDF: export its images as PNG or JPEG",
    b"8BPS": "a Photoshop file: export it as PNG or JPEG",
    b"\x1a\x45\xdf\xa3": _VIDEO,
    b"\x00\x00\x01\xba": _VIDEO,
    b"version https://git-lfs": "a pointer of Git LFS, not the image itself: run git lfs pull",
    b"/annex/objects/": "a pointer of git-annex, not the image itself: run git annex get",
    b"PK\x03\x04": "a zip archive among the images: unpack it, or give it as DATA",
}
_MARKUP = {
    b"<svg": "an SVG, which has no pixels: export it as PNG",
    b"<html": "a web page, not an image: perhaps its download failed",
    b"<!doctype html": "a web page, not an image: perhaps its download failed",
}
_BRANDS = {
    b"heic": "HEIC: convert it to JPEG",
    b"heix": "HEIC: convert it to JPEG",
    b"mif1": "HEIF: convert it to JPEG",
    b"avif": "AVIF: convert it to PNG or JPEG",
}


def foreign_kind(data: bytes) -> str:
    """What a file is instead of an image, and what to do about it; empty if it is not known."""
    if len(data) < _LEAST:
        return ""
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], _VIDEO)
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return _VIDEO
    for start, kind in _STARTS.items():
        if data.startswith(start):
            return kind
    head = data[:512].lstrip().lower()
    if head.startswith(b"<"):
        return next((kind for tag, kind in _MARKUP.items() if tag in head), "")
    return ""
