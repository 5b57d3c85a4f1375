"""Settings of training frameworks, for what a user's own loop would say in its lines."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onsight_explain.mend.calls import Keywords
from onsight_explain.mend.draft import called
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Advice
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.loading import LOADING
from onsight_explain.what_ifs.what_if import WhatIf


@dataclass(frozen=True)
class Framework:
    """call: what the user gives settings to; loader, training: settings, by what-if.

    A setting is an argument and its value as source code; {} stands for the what-if's own. Those
    of loaders go to the call that makes the loader, if `call` is empty. said: changes in words, for
    which there is no such setting.
    """

    call: str = ""
    loader: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    training: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)


_LOADERS = {
    "workers": ("num_workers", "{}"),
    "persistent_workers": ("persistent_workers", "True"),
    "pin_memory": ("pin_memory", "True"),
}
_LIGHTNING = Framework("Trainer", training={"bf16": ("precision", '"bf16-mixed"')})
FRAMEWORKS = {
    "transformers": Framework(
        "TrainingArguments",
        loader={
            "workers": ("dataloader_num_workers", "{}"),
            "persistent_workers": ("dataloader_persistent_workers", "True"),
            "pin_memory": ("dataloader_pin_memory", "True"),
            "batch_factor": ("per_device_train_batch_size", "{}"),
        },
        training={"bf16": ("bf16", "True"), "fused": ("optim", '"adamw_torch_fused"')},
        said={"cache": "train_dataset = list(train_dataset)  # before the Trainer is made"},
    ),
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "fastai": Framework(
        loader=_LOADERS | {"batch_factor": ("bs", "{}")},
        said={"bf16": "learn.to_bf16()  # before the training"},
    ),
    "webdataset": Framework(loader=_LOADERS | {"batch_factor": ("batch_size", "{}")}),
    "timm": Framework(loader=_LOADERS | {"batch_factor": ("batch_size", "{}")}),
}

_SAID = {"channels_last": "model.to(memory_format=torch.channels_last)  # before the training"}


def framework_mends(what_if: WhatIf, trace: Trace) -> list[Mend]:
    """The change as a setting of the framework that would otherwise overrule it, if it has one."""
    loader = trace.loader
    found = FRAMEWORKS.get(loader.maker) if loader else None
    if found and loader and what_if.name in found.loader:
        name, value = found.loader[what_if.name]
        site = _call(found.call, loader.site) if found.call else loader.site
        return [_keywords(site, found.call or _name(site), name, value, what_if)]
    found = FRAMEWORKS.get(trace.trainer)
    if found and what_if.name in found.training:
        name, value = found.training[what_if.name]
        site = _call(found.call, trace.trainer_site)
        return [_keywords(site, found.call, name, value, what_if)]
    return _said(what_if, trace)


def _said(what_if: WhatIf, trace: Trace) -> list[Mend]:
    """The change in words, if its lines would be inside a library."""
    site: Site | None
    if trace.loader and trace.loader.maker and what_if.group in LOADING:
        site, package = trace.loader.site, trace.loader.maker
    elif trace.trainer and trace.forward_site == trace.trainer_site and _is_inside(what_if, trace):
        site, package = trace.trainer_site, trace.trainer
    else:
        return []
    known = FRAMEWORKS.get(package, Framework()).said | _SAID
    return [Advice(site, known.get(what_if.name, f"{what_if.label}: a setting of {package}"))]


def _is_inside(what_if: WhatIf, trace: Trace) -> bool:
    """Whether one of its lines would be at the call of the network."""
    return any(one.site == trace.forward_site for one in what_if.lines(trace))


def _keywords(site: Site | None, call: str, name: str, value: str, what_if: WhatIf) -> Keywords:
    given = what_if.size if isinstance(what_if, LargerBatch) else what_if.value
    return Keywords(site, call, values={name: value.format(given)})


def _call(name: str, near: Site | None) -> Site | None:
    """The only call of this name in the file of another site."""
    found = [one for one in _calls(near) if called(one) == name]
    if near is None or len(found) != 1:
        return None
    (call,) = found
    end = (call.end_lineno or call.lineno, call.end_col_offset or 0)
    return Site(file=near.file, line=call.lineno, end=end)


def _name(site: Site | None) -> str:
    """What is called at a site."""
    ends = {(one.end_lineno, one.end_col_offset): called(one) for one in _calls(site)}
    return ends.get(site.end or (None, None), "") if site else ""


def _calls(site: Site | None) -> list[ast.Call]:
    tree = ast.parse(Path(site.file).read_bytes()) if site else ast.Module([], [])
    return [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
