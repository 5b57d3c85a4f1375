"""Settings of training frameworks that correspond to changes in a user's training loop."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onsight_explain.fixes.calls import SetKeywords
from onsight_explain.fixes.draft import called_name
from onsight_explain.fixes.fix import Advice, Fix
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.loading import LOADING_GROUP
from onsight_explain.what_ifs.what_if import WhatIf


@dataclass(frozen=True)
class Framework:
    """Where a framework has its settings, and their names and values by what-if.

    A setting is an argument and its value as source code, in which {} stands for the what-if's.
    """

    # The call that takes the settings; "": the call that creates the loader.
    call: str = ""
    loader: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    training: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Descriptions of the changes for which the framework has no setting.
    advice: dict[str, str] = field(default_factory=dict)


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
        advice={"cache": "train_dataset = list(train_dataset)  # before the Trainer is created"},
    ),
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "fastai": Framework(
        loader=_LOADERS | {"batch_factor": ("bs", "{}")},
        advice={"bf16": "learn.to_bf16()  # before the training"},
    ),
    "webdataset": Framework(loader=_LOADERS | {"batch_factor": ("batch_size", "{}")}),
    "timm": Framework(loader=_LOADERS | {"batch_factor": ("batch_size", "{}")}),
}
_ADVICE = {"channels_last": "model.to(memory_format=torch.channels_last)  # before the training"}


def framework_fixes(what_if: WhatIf, trace: Trace) -> list[Fix]:
    """Return the change as a setting of the framework that would otherwise override it.

    Empty if no framework does.
    """
    loader = trace.loader
    framework = FRAMEWORKS.get(loader.maker) if loader else None
    if framework and loader and what_if.name in framework.loader:
        site = _find_call(framework.call, loader.site) if framework.call else loader.site
        call = framework.call or _called_at(site)
        return [_setting(site, call, framework.loader[what_if.name], what_if)]
    framework = FRAMEWORKS.get(trace.trainer)
    if framework and what_if.name in framework.training:
        site = _find_call(framework.call, trace.trainer_site)
        return [_setting(site, framework.call, framework.training[what_if.name], what_if)]
    return _advice(what_if, trace)


def _advice(what_if: WhatIf, trace: Trace) -> list[Fix]:
    """Return a description of the change, if its lines would be inside a library."""
    site: Site | None
    trains_inside = trace.trainer and trace.forward_site == trace.trainer_site
    if trace.loader and trace.loader.maker and what_if.group == LOADING_GROUP:
        site, package = trace.loader.site, trace.loader.maker
    elif trains_inside and any(fix.site == trace.forward_site for fix in what_if.fixes(trace)):
        site, package = trace.trainer_site, trace.trainer
    else:
        return []
    advice = FRAMEWORKS.get(package, Framework()).advice | _ADVICE
    return [Advice(site, advice.get(what_if.name, f"{what_if.label}: a setting of {package}"))]


def _setting(
    site: Site | None, call: str, setting: tuple[str, str], what_if: WhatIf
) -> SetKeywords:
    name, code = setting
    value = what_if.size if isinstance(what_if, LargerBatch) else what_if.value
    return SetKeywords(site, call, values={name: code.format(value)})


def _find_call(name: str, near: Site | None) -> Site | None:
    """Return the only call of this name in the file of another site."""
    calls = [call for call in _calls(near) if called_name(call) == name]
    if near is None or len(calls) != 1:
        return None
    (call,) = calls
    end = (call.end_lineno or call.lineno, call.end_col_offset or 0)
    return Site(file=near.file, line=call.lineno, end=end)


def _called_at(site: Site | None) -> str:
    """Return the name of what is called at a site."""
    names = {(call.end_lineno, call.end_col_offset): called_name(call) for call in _calls(site)}
    return names.get(site.end or (None, None), "") if site else ""


def _calls(site: Site | None) -> list[ast.Call]:
    tree = ast.parse(Path(site.file).read_bytes()) if site else ast.Module([], [])
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
