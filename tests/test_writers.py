"""Every file is written by `onsight.files`; other ways to write are found in the syntax trees."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "onsight"

# Other ways to write, by file and function, each with its reason.
ALLOWED = {
    "files.py: open": "the one way",
    "files.py: os.link": "the one way",
    "files.py: os.replace": "the one way",
    "files.py: rename": "the one way, for folders",
    "cli.py: os.open": "/dev/null, instead of an output that nobody reads",
    "cluster/ranks.py: truncate": "of text in memory",
    "data/cache.py: os.open": "a lock, which is empty",
    "data/pack.py: open": "the pixels of a pack, in a private folder of the cache",
    "data/pack.py: os.replace": "gives that folder its name",
    "data/shards/cache.py: open": "a copy in the cache, whose name tells whose lock protects it",
    "data/shards/cache.py: os.replace": "gives that copy its name",
    "data/shards/cache.py: truncate": "reserves room for that copy",
    "data/shards/write.py: pipe_file": "an object store shows an object once it is complete",
    "data/sources/named.py: rename": "what torchvision has downloaded into a private folder",
    "export/to_torch_export.py: torch.export.save": "into a private folder",
    "features/feature_pass.py: touch": "the time of a file in the cache",
    "inference/resumable_file.py: os.fdopen": "rows under a hidden name, to be continued later",
    "inference/resumable_file.py: os.open": "the same file",
    "inference/resumable_file.py: truncate": "the same file",
    "inference/sinks.py: ParquetWriter": "a NewFile",
    "sweeper/child.py: os.fdopen": "stdout",
    "training/decisions.py: open": "appends a line to a journal",
    "training/loggers/tensorboard.py: SummaryWriter": "its own format, in the run folder",
    "training/run_folder.py: os.open": "a lock, which is empty",
    "training/saving.py: put_file": "copies of checkpoints, renamed where needed",
    "untrusted.py: os.open": "read only; a name holds its flags",
}

_METHODS = {  # that write, whatever they are called on
    "write_text", "write_bytes", "touch", "rename", "symlink_to", "hardlink_to", "link", "symlink",
    "truncate", "copyfile", "copy2", "copytree", "move", "extractall", "put_file", "pipe_file",
    "tofile", "to_csv", "to_json", "to_parquet", "savez", "savez_compressed", "savetxt", "savefig",
    "imsave", "save_file", "open_memmap", "dump", "fdopen", "mkstemp", "NamedTemporaryFile",
    "SummaryWriter", "ParquetWriter", "FileHandler",
}  # fmt: skip
_OWN_SAVES = {"audit", "checkpoints", "plan"}  # objects whose method `save` is our own


def find_writes(source: str) -> set[str]:
    """Return the names of calls that may write a file, except those into memory."""
    tree = ast.parse(source)
    in_memory = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith(("BytesIO", "StringIO"))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {name for call in calls if (name := _written_by(call, in_memory))}


def _written_by(call: ast.Call, in_memory: set[str]) -> str:
    """Return the name of a call that may write a file, or an empty string."""
    function = ast.unparse(call.func)
    owner, _, name = function.rpartition(".")
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(ast.unparse(argument) in in_memory for argument in arguments):
        return ""
    known = f"{owner}.{name}" if owner in ("os", "shutil", "torch", "torch.export", "np") else name
    if name == "open" and owner == "os":
        return "" if "O_RDONLY" in ast.unparse(call) else known
    if name in ("open", "ZipFile", "TarFile", "memmap"):
        place = 0 if name == "open" and owner and owner not in ("io", "tarfile", "gzip") else 1
        modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
        modes += call.args[2:3] if name == "memmap" else call.args[place : place + 1]
        return name if any(_may_write(mode, is_mode=place == 1) for mode in modes) else ""
    if name == "replace":  # of a path, not of text, a time or fields
        is_path = owner == "os" or (len(call.args) == 1 and not call.keywords)
        return known if is_path else ""
    if name == "save":
        is_own = owner.partition("(")[0].rpartition(".")[2].lower() in _OWN_SAVES
        return known if owner and not is_own else ""
    if name == "copy":
        return known if owner == "shutil" else ""
    return known if name in _METHODS else ""


def _may_write(argument: ast.expr, is_mode: bool) -> bool:
    """Return whether an argument, which may be no mode, is a mode that is not only for reading."""
    if not isinstance(argument, ast.Constant):
        return is_mode
    return isinstance(argument.value, str) and bool(set(argument.value) & set("wax+"))


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "open(path, mode)",
        "path.open('r+b')",
        "io.open(path, 'x')",
        "gzip.open(path, 'wb')",
        "zipfile.ZipFile(path, 'w')",
        "tarfile.open(path, 'w:gz')",
        "np.memmap(path, 'u1', 'w+')",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "os.open(path, flags)",
        "path.write_text('a')",
        "path.write_bytes(data)",
        "path.replace(other)",
        "path.rename(other)",
        "os.replace(a, b)",
        "os.rename(a, b)",
        "shutil.move(a, b)",
        "shutil.copy(a, b)",
        "np.save(path, a)",
        "np.savez(path, a=a)",
        "torch.save(a, path)",
        "image.save(path)",
        "image.save(path, 'PNG')",
        "figure.savefig(path)",
        "json.dump(a, file)",
        "save_file(tensors, path)",
        "tempfile.NamedTemporaryFile(delete=False)",
    ],
)
def test_ways_to_write_are_found(line):
    assert find_writes(line)


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open(encoding='utf-8')",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "zipfile.ZipFile(file)",
        "tarfile.open(path)",
        "np.memmap(path, 'u1', 'c')",
        "text.replace('a', 'b')",
        "dataclasses.replace(value, name=1)",
        "weights.copy()",
        "data = io.BytesIO()\nimage.save(data, 'PNG')",
        "self.checkpoints.save(update, progress)",
        "json.dumps(a)",
    ],
)
def test_reading_and_work_in_memory_are_not(line):
    assert not find_writes(line)


def test_every_file_is_written_by_the_one_opener():
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in find_writes(path.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED.keys() == set(), "use write_atomically, write_json, NewFile, ..."
    assert ALLOWED.keys() - found == set(), "allowed, but no longer there"
