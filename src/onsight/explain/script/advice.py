"""The lines to change in a script for a what-if, by file and line."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.explain.script.rewriting import EVERY_STEPS, gated_statement
from onsight.explain.script.trace import Changes, Trace
from onsight.explain.tracing.sites import Site
from onsight.hardware.spinning import SHORT_SPIN, SPIN_VARIABLE


@dataclass(frozen=True)
class Line:
    """A place in a user's file and what to write there; site: None where it was not found."""

    site: Site | None
    text: str


class Advice:
    """Turns changes into lines of somebody's script."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._trees: dict[str, ast.Module] = {}

    def lines(self, changes: Changes) -> list[Line]:
        """Every line to change, in the order of the changes."""
        found = self._loader_lines(changes) + self._step_lines(changes)
        if changes.rare_reads:
            found.append(self._rare(changes))
        return found

    def _loader_lines(self, changes: Changes) -> list[Line]:
        loader = self.trace.loader
        if loader is None:
            return []
        words: dict[str, Any] = {}
        if changes.workers is not None:
            words["num_workers"] = changes.workers
        if changes.persistent_workers:
            words["persistent_workers"] = True
        if changes.pin_memory:
            words["pin_memory"] = True
        if changes.batch_factor and loader.batch_size:
            words["batch_size"] = changes.batch_factor * loader.batch_size
        keeps = changes.cache == "items"
        if changes.cache in ("items", "fixed"):
            words["num_workers"] = 0
        found = []
        if words or keeps:
            found.append(Line(loader.site, self._edited(loader.site, "DataLoader", words, keeps)))
        if changes.pin_memory:
            found.append(Line(self.trace.forward_site, "images.to(device, non_blocking=True)"))
        if changes.cache == "files":
            found.append(
                Line(
                    loader.site,
                    "decode each file once: @functools.lru_cache(maxsize=None) over the function "
                    "that opens and decodes it",
                )
            )
        if changes.cache == "fixed":
            found.append(
                Line(
                    loader.site,
                    "do what is not random once: keep a list of (picture, label) after the fixed "
                    "transforms, and let the data set apply the random ones to it",
                )
            )
        if changes.augment_batches:
            found.append(
                Line(
                    loader.site,
                    "leave the random transforms out of the data set and call them on the batch: "
                    "images = augment(images) in the training loop, once it is on the device",
                )
            )
        return found

    def _step_lines(self, changes: Changes) -> list[Line]:
        trace, found = self.trace, []
        kind = trace.device.partition(":")[0]
        if changes.threads:
            found.append(Line(None, f"torch.set_num_threads({changes.threads})  # at the start"))
        if changes.short_spin:
            found.append(Line(None, f"start it with {SPIN_VARIABLE}={SHORT_SPIN} set"))
        if changes.channels_last:
            found.append(
                Line(
                    trace.forward_site,
                    "images = images.to(memory_format=torch.channels_last)  # here; and once, "
                    "before: model = model.to(memory_format=torch.channels_last)",
                )
            )
        if changes.bf16:
            opening = f'with torch.autocast("{kind}", dtype=torch.bfloat16):'
            found.append(Line(trace.forward_site, f"{opening}  # around the forward and the loss"))
        if changes.fused and trace.optimizer:
            name, site = trace.optimizer.name, trace.optimizer.site
            found.append(Line(site, self._edited(site, name, {"fused": True})))
        if changes.no_grad:
            found.append(
                Line(trace.graphs_site, "with torch.no_grad():  # around the whole evaluation loop")
            )
        return found

    def _rare(self, changes: Changes) -> Line:
        file = next(site.file for reads in self.trace.reads for site in reads.sites)
        statement = gated_statement(self._tree(file), changes.rare_reads[0])
        assert statement
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        until = f" (lines {first} to {last})" if last > first else ""
        return Line(
            Site(file=file, line=first),
            f"if step % {EVERY_STEPS} == 0:  # around this statement{until}; or add up on the "
            "device and read once an epoch",
        )

    def _edited(
        self, site: Site | None, name: str, words: dict[str, Any], keeps_items: bool = False
    ) -> str:
        """A call of the script with these keywords, as source text."""
        call = self._call(site, name)
        if call is None:
            call = ast.Call(ast.Name(name), [ast.Constant(...)], [])
        edited = _with_keywords(call, words, keeps_items)
        return ast.unparse(ast.fix_missing_locations(edited))

    def _call(self, site: Site | None, name: str) -> ast.Call | None:
        if site is None:
            return None
        for node in ast.walk(self._tree(site.file)):
            if not isinstance(node, ast.Call) or _called(node) != name:
                continue
            if node.lineno <= site.line <= (node.end_lineno or node.lineno):
                return node
        return None

    def _tree(self, file: str) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = ast.parse(Path(file).read_bytes(), file)
        return self._trees[file]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _with_keywords(call: ast.Call, words: dict[str, Any], keeps_items: bool) -> ast.Call:
    """The call with these keywords, and its data set turned into a list of its items."""
    kept = [one for one in call.keywords if one.arg not in words]
    added = [ast.keyword(name, ast.Constant(value)) for name, value in words.items()]
    most = 1 if "batch_size" in words else len(call.args)  # batch_size may stand second
    args = list(call.args[:most])
    if keeps_items and args:
        args[0] = ast.parse(f"[item for item in {ast.unparse(args[0])}]", mode="eval").body
    return ast.Call(call.func, args, [*kept, *added])
