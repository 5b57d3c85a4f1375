"""What if JPEG files were decoded at half, a quarter or an eighth of their size?"""

from typing import Any

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.rewritten import OpenSmaller
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.memory import OpenImage, change_image_open, fits
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.loading import loading_cause, loading_matters
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.3  # of an item's time, outside the transforms


class SmallerDecode(WhatIf):
    """value: the least side to leave. The result differs slightly from that of the whole image.

    Only for data sets that cannot be kept in memory, because decoding only once gains more.
    """

    value: int
    name = "smaller_decode"
    group = "decode"
    order = 26
    label = "JPEGs decoded smaller (pixels differ slightly)"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        item, loader = seen.trace.item, seen.trace.loader
        if not item or not loader or not item.resized_side or not loading_matters(seen.trace):
            return []
        is_large = item.jpeg_side >= 2 * item.resized_side and 1 - item.transform_share >= _LEAST
        kept = fits(loader.items or 0, item.seconds, item.item_bytes)
        return [cls(item.resized_side)] if is_large and not kept else []

    def install(self, hooks: Hooks) -> None:
        change_image_open(lambda original: _drafted(original, self.value), hooks.patches)

    def lines(self, trace: Trace) -> list[Mend]:
        return [OpenSmaller(None, self.value)]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


def _drafted(original: OpenImage, side: int) -> OpenImage:
    def open_smaller(*args: Any, **kwargs: Any) -> Any:
        image = original(*args, **kwargs)
        if image.format == "JPEG":
            image.draft(None, (side, side))
        return image

    return open_smaller
