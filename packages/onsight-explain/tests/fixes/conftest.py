"""A script in a file, its trace, and its text fixed by what-ifs."""

import ast

import pytest

from onsight_explain.delivery.fixed_script import fix_script, fixes_for
from onsight_explain.script.trace import ItemFacts, LoaderFacts, OptimizerFacts, Reads, Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import make_what_ifs


class Written:
    """A script whose calls are found by the text that they begin with."""

    def __init__(self, path, source):
        self.path = path
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        self.tree = ast.parse(path.read_bytes())

    def call(self, name, nth=0):
        """The site of the nth call of this name, as a frame has it."""
        calls = [one for one in ast.walk(self.tree) if isinstance(one, ast.Call)]
        found = [one for one in calls if ast.unparse(one.func) == name]
        found.sort(key=lambda one: (one.lineno, one.col_offset))
        one = found[nth]
        end = one.end_lineno, one.end_col_offset
        return Site(file=str(self.path), line=one.lineno, end=end)

    def fix(self, trace, **changes):
        """Fix the script by these what-ifs; the result must be Python."""
        found = fix_script(self.path, fixes_for(make_what_ifs(changes), trace))
        ast.parse(found.after)
        return found


@pytest.fixture
def script(tmp_path):
    """A function that writes a script."""
    return lambda source, name="train.py": Written(tmp_path / name, source)


@pytest.fixture
def traced():
    """A function that returns the trace of a script; its loader's facts can be changed."""

    def make(loader=None, forward=None, optimizer=None, graphs=None, reads=None, **facts):
        return Trace(
            ended="window",
            startup_seconds=1.0,
            seconds=1.0,
            steps=10,
            loader=loader
            and LoaderFacts(
                site=loader,
                batch_size=facts.get("batch_size", 4),
                workers=facts.get("workers", 2),
                is_pinned=False,
                is_persistent=False,
                is_shuffled=True,
                items=100,
                is_collated=True,
            ),
            item=ItemFacts(
                seconds=0.001,
                waiting_share=0.0,
                transform_share=0.1,
                is_random=False,
                item_bytes=100,
                stacks=True,
            ),
            optimizer=optimizer
            and OptimizerFacts(name=facts.get("kind", "SGD"), site=optimizer, is_fused=False),
            forward_site=forward,
            graphs_site=graphs,
            reads=[Reads(sites=[reads], per_step=4)] if reads else [],
        )

    return make
