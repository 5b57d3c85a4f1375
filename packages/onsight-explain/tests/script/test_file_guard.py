"""What a script does to existing files is done to copies; it observes no difference.

Each case runs twice on the same files: freely, the oracle of all that it sees, and guarded.
"""

import bz2
import errno
import gzip
import importlib
import io
import logging
import os
import pickle
import shutil
import sqlite3
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import torchvision
from PIL import Image

from onsight_explain.process.file_guard import FileGuard, remove_copies, unchanged_files
from onsight_explain.process.guarded_functions import guard_process
from onsight_explain.tracing.patches import Patches

TENSORS = {"weight": torch.arange(6.0)}


def fill(folder):
    """The user's files."""
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in ("model.pt", "log.txt", "a.png", "runs/old/model.pt", "b.safetensors", "å.pt"):
        (folder / name).write_bytes(f"the user's {name}".encode())
    (folder / "numbers.npy").write_bytes(np.arange(8, dtype=np.int64).tobytes())
    with sqlite3.connect(folder / "study.db") as database:
        database.execute("create table trials (value real)")
    database.close()
    (folder / "latest").symlink_to("log.txt")
    (folder / "held.lock").touch()
    return folder


def state(folder):
    """All that is known of what is in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        modified = facts.st_mtime_ns if content else 0
        found[str(path.relative_to(folder))] = content, facts.st_ino, facts.st_mode, modified
    return found


def error_of(call, *args):
    """The number of the error that a call ends with."""
    try:
        call(*args)
    except OSError as error:
        return error.errno
    return None


# ------------------------------------------------------- cases: they return all that a script sees


def writes(folder):
    with open(folder / "log.txt", "w") as file:
        file.write("new")
    with open(str(folder / "log.txt").encode(), "rb") as file:
        return file.read(), os.path.getsize(folder / "log.txt")


def appends(folder):
    for line in ("one", "two"):
        with open(folder / "log.txt", "a") as file:
            file.write(line)
    return (folder / "log.txt").read_text()


def changes_in_place(folder):
    with open(folder / "log.txt", "r+b") as file:
        file.write(b"THE")
    return (folder / "log.txt").read_bytes(), error_of(open, folder / "absent", "r+")


def opens_exclusively(folder):
    first = (
        error_of(open, folder / "log.txt", "x"),
        error_of(os.open, folder / "log.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    )
    os.remove(folder / "log.txt")
    with open(folder / "log.txt", "x") as file:
        file.write("new")
    return first, (folder / "log.txt").read_text()


def opens_by_descriptor(folder):
    number = os.open("log.txt", os.O_RDWR | os.O_APPEND, dir_fd=(at := os.open(folder, 0)))
    os.write(number, b"more")
    os.close(number)
    os.close(at)
    number = os.open(folder / "model.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(number, b"new")
    os.close(number)
    return (folder / "log.txt").read_text(), (folder / "model.pt").read_text()


def uses_an_opener(folder):
    with open(folder / "log.txt", "w", opener=lambda path, flags: os.open(path, flags)) as file:
        file.write("new")
    return (folder / "log.txt").read_text()


def writes_from_its_folder(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        Path("log.txt").write_text("new")
        Path("runs/../model.pt").write_text("new")
        return Path("./log.txt").read_text(), (folder / "model.pt").read_text()
    finally:
        os.chdir(before)


def writes_through_a_link(folder):
    (folder / "latest").write_text("new")
    return (folder / "latest").read_text(), (folder / "log.txt").read_text()


def replaces_a_link(folder):
    (folder / "second.txt").write_text("second")
    os.remove(folder / "latest")
    os.symlink("second.txt", folder / "latest", target_is_directory=False)
    first = (folder / "latest").read_text()
    (folder / "latest").write_text("third")
    return first, (folder / "second.txt").read_text(), (folder / "log.txt").read_text()


def saves_with_torch(folder):
    seen = []
    for name, settings in (
        ("model.pt", {}),
        ("å.pt", {}),
        ("log.txt", {"_use_new_zipfile_serialization": False}),
    ):
        torch.save(TENSORS, folder / name, **settings)
        seen.append(torch.load(folder / name)["weight"].tolist())
    seen.append(torch.load(f=str(folder / "model.pt"), mmap=True)["weight"].tolist())
    torch.save(obj=TENSORS, f=str(folder / "runs/old/model.pt"))
    seen.append(len(torch.load(folder / "runs/old/model.pt")))
    return seen


def saves_a_program(folder):
    torch.jit.trace(torch.nn.ReLU(), torch.zeros(2)).save(folder / "model.pt")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), folder / "log.txt")
    return [torch.jit.load(folder / name)(torch.ones(1)).item() for name in ("model.pt", "log.txt")]


def saves_a_package(folder):
    with torch.package.PackageExporter(folder / "model.pt") as package:
        package.save_text("a", "b", "c")
    return zipfile.is_zipfile(folder / "model.pt")


def saves_a_function(folder):
    function = torch.jit.trace(lambda x: x + 1, torch.zeros(1))
    function.save(str(folder / "model.pt"))
    function.save(filename=str(folder / "log.txt"))
    return [torch.jit.load(folder / name)(torch.ones(1)).item() for name in ("model.pt", "log.txt")]


def saves_a_profile(folder):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(1).add(1)
    profile.export_chrome_trace(str(folder / "log.txt"))
    return "aten::add" in (folder / "log.txt").read_text()


def saves_safetensors(folder):
    safetensors.torch.save_file(TENSORS, folder / "b.safetensors")
    seen = [safetensors.torch.load_file(folder / "b.safetensors")["weight"].tolist()]
    safetensors.numpy.save_file({"weight": np.zeros(3)}, filename=str(folder / "model.pt"))
    with safetensors.safe_open(folder / "model.pt", "np") as file:
        return [*seen, file.get_tensor("weight").tolist()]


def saves_with_numpy(folder):
    np.save(folder / "numbers.npy", np.ones(3))
    seen = [np.load(folder / "numbers.npy").tolist()]
    np.savez(folder / "log.txt", a=np.ones(2))  # which is log.txt.npz, a new one
    np.zeros(2, np.uint8).tofile(folder / "model.pt")
    return [*seen, np.fromfile(folder / "model.pt", np.uint8).tolist()]


def saves_text_with_numpy(folder):
    np.savetxt(folder / "log.txt", np.arange(3))
    return (folder / "log.txt").read_text(), np.loadtxt(folder / "log.txt").tolist()


def reads_through_a_link(folder):
    (folder / "log.txt").write_text("new")
    return (folder / "latest").read_text()


def puts_a_link_in_its_place(folder):
    (folder / "model_9.pt").write_text("new")
    os.symlink("model_9.pt", folder / "link.tmp")
    os.replace(folder / "link.tmp", folder / "model.pt")
    return (folder / "model.pt").read_text(), (folder / "link.tmp").exists()


def exports_a_program(folder):
    program = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),))
    torch.export.save(program, folder / "model.pt")
    return str(torch.export.load(folder / "model.pt").graph)


def makes_nested_folders_anew(folder):
    shutil.rmtree(folder / "runs")
    os.makedirs(folder / "runs")
    seen = (folder / "runs" / "old" / "model.pt").exists()
    os.makedirs(folder / "runs" / "old")
    (folder / "runs" / "old" / "model.pt").write_text("new")
    return seen, (folder / "runs" / "old" / "model.pt").read_text()


def maps_an_array(folder):
    mapped = np.memmap(folder / "numbers.npy", np.int64)  # r+
    mapped[2:4] = 77
    mapped.flush()
    return mapped.tolist(), isinstance(mapped, np.memmap)


def maps_a_new_array(folder):
    mapped = np.memmap(folder / "numbers.npy", np.int64, "w+", shape=(2,))
    mapped[:] = 5
    mapped.flush()
    return np.memmap(folder / "numbers.npy", np.int64, mode="r").tolist()


def saves_images(folder):
    for colour in (7, 9):
        Image.new("L", (3, 3), colour).save(folder / "a.png")
    return Image.open(folder / "a.png").getpixel((0, 0))


def saves_images_with_torchvision(folder):
    pixels = torch.arange(27, dtype=torch.uint8).reshape(3, 3, 3)
    torchvision.io.write_png(pixels, str(folder / "a.png"))
    torchvision.io.write_jpeg(filename=str(folder / "model.pt"), input=pixels)
    torchvision.io.image.write_file(str(folder / "log.txt"), pixels[0, 0])
    return [
        torchvision.io.read_image(str(folder / "a.png")).tolist(),
        torchvision.io.decode_image(str(folder / "model.pt")).tolist(),
        torchvision.io.read_file(str(folder / "log.txt")).tolist(),
        (folder / "log.txt").read_bytes(),
    ]


def maps_tensors(folder):
    path = str(folder / "numbers.npy")
    seen = []
    for from_file, settings in (
        (torch.from_file, {"shared": True, "size": 64, "dtype": torch.uint8}),
        (torch.from_file, {"size": 64, "dtype": torch.uint8}),
        (torch.UntypedStorage.from_file, {"shared": True, "nbytes": 64}),
    ):
        seen.append(list(from_file(path, **settings).fill_(7)))
    new = torch.from_file(str(folder / "new.bin"), shared=True, size=2, dtype=torch.uint8)
    new.fill_(5)
    return seen, (folder / "new.bin").read_bytes()


def opens_raw_files(folder):
    class Counted(io.FileIO):
        pass

    with io.FileIO(folder / "log.txt", "w") as raw, io.FileIO(raw.fileno(), closefd=False) as same:
        raw.write(b"new")
        kinds = [isinstance(same, io.FileIO), isinstance(raw, Counted), isinstance(1, io.FileIO)]
    with Counted(str(folder / "model.pt"), mode="r+") as raw:
        raw.write(b"THE")
    with open(folder / "log.txt", "rb", buffering=0) as raw:
        kinds += [isinstance(raw, io.FileIO), isinstance(raw, Counted)]
    with io.FileIO(folder / "model.pt") as raw:
        return kinds, raw.readall(), (folder / "log.txt").read_text()


def compresses(folder):
    with gzip.open(folder / "log.txt", "wb") as file:
        file.write(b"new")
    with bz2.open(folder / "model.pt", "wb") as file:
        file.write(b"newer")
    with tarfile.open(folder / "a.png", "w") as file:
        file.add(folder / "numbers.npy", "inside")
    with zipfile.ZipFile(folder / "b.safetensors", "w") as file:
        file.write(folder / "model.pt", "inside")
    with tarfile.open(folder / "a.png") as tar, zipfile.ZipFile(folder / "b.safetensors") as zipped:
        return (
            tar.extractfile("inside").read(),
            gzip.decompress((folder / "log.txt").read_bytes()),
            bz2.decompress(zipped.read("inside")),
        )


def logs(folder):
    handler = logging.FileHandler(folder / "log.txt", "w")
    handler.emit(logging.makeLogRecord({"msg": "new"}))
    handler.close()
    return (folder / "log.txt").read_text()


def uses_a_database(folder):
    for value in (1.0, 2.0):
        database = sqlite3.connect(folder / "study.db")
        with database:
            database.execute("insert into trials values (?)", (value,))
        database.close()
    database = sqlite3.connect(folder / "study.db")
    found = database.execute("select value from trials").fetchall()
    database.close()
    return found


def puts_another_in_its_place(folder):
    for put in (os.replace, os.rename, shutil.move, lambda a, b: Path(a).replace(b)):
        (folder / "new.tmp").write_text(f"new {put.__name__}")
        put(folder / "new.tmp", folder / "model.pt")
    torch.save(TENSORS, folder / "new.tmp")
    os.replace(folder / "new.tmp", folder / "log.txt")
    return (
        (folder / "model.pt").read_text(),
        len(torch.load(folder / "log.txt")),
        (folder / "new.tmp").exists(),
    )


def keeps_a_backup(folder):
    os.rename(folder / "model.pt", folder / "model.bak")
    seen = (folder / "model.pt").exists(), error_of(open, folder / "model.pt")
    (folder / "model.pt").write_text("new")
    os.replace(folder / "model.pt", folder / "log.txt")
    os.replace(folder / "model.bak", folder / "model.pt")
    os.replace(folder / "model.pt", folder / "model.pt")
    texts = [(folder / name).read_text() for name in ("model.pt", "log.txt")]
    return (
        seen,
        texts,
        (folder / "model.bak").exists(),
        error_of(os.rename, folder / "absent", folder / "x"),
    )


def moves_a_changed_file(folder):
    (folder / "log.txt").write_text("new")
    os.rename(folder / "log.txt", folder / "moved.txt")
    return (folder / "moved.txt").read_text(), (folder / "log.txt").exists()


def copies(folder):
    shutil.copy2(folder / "log.txt", folder / "model.pt")
    shutil.copyfile(folder / "a.png", folder / "log.txt")
    os.utime(folder / "a.png", (1, 2))
    os.chmod(folder / "a.png", 0o600)
    os.truncate(folder / "a.png", 3)
    (folder / "b.safetensors").touch()
    seen = os.stat(folder / "a.png")
    texts = [(folder / name).read_text() for name in ("model.pt", "log.txt", "a.png")]
    return texts, oct(seen.st_mode), seen.st_size


def changes_without_a_path(folder):
    with open(folder / "a.png") as file:
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno(), (1, 2))
    within = os.open(folder, os.O_RDONLY)
    os.chmod("log.txt", 0o600, dir_fd=within)
    os.close(within)
    return [oct(os.stat(folder / name).st_mode) for name in ("a.png", "log.txt")]


def deletes(folder):
    os.remove(folder / "log.txt")
    seen = (
        os.path.exists(folder / "log.txt"),
        error_of(os.unlink, folder / "log.txt"),
        error_of(open, folder / "log.txt"),
        error_of(open, folder / "log.txt", "r+"),
        error_of(os.remove, folder / "runs"),
    )
    with open(folder / "log.txt", "a") as file:
        file.write("new")
    return seen, (folder / "log.txt").read_text()


def makes_folders_anew(folder):
    shutil.rmtree(folder / "runs")
    gone = (folder / "runs").exists()
    os.makedirs(folder / "runs" / "new")
    (folder / "runs" / "new" / "model.pt").write_text("new")
    os.rmdir(folder / "empty")
    os.mkdir(folder / "empty")
    return (
        gone,
        (folder / "runs" / "new" / "model.pt").read_text(),
        error_of(os.rmdir, folder / "runs"),
    )


def moves_a_folder(folder):
    os.rename(folder / "runs", folder / "runs-before")
    os.mkdir(folder / "runs")
    os.mkdir(folder / "new")
    (folder / "new" / "x").touch()
    os.rename(folder / "new", folder / "newer")
    shutil.rmtree(folder / "newer")
    return (folder / "new").exists(), (folder / "newer").exists(), (folder / "runs").exists()


def makes_new_files(folder):
    """Its own files are changed and deleted as usual."""
    for _ in range(2):
        (folder / "mine.txt").write_text("mine")
        torch.save(TENSORS, folder / "mine.pt")
    os.replace(folder / "mine.txt", folder / "own.txt")
    os.remove(folder / "mine.pt")
    return sorted(path.name for path in folder.glob("*n.txt")), (folder / "mine.pt").exists()


def holds_a_lock(folder):
    """An empty one is shared with other programs."""
    number = os.open(folder / "held.lock", os.O_RDWR | os.O_TRUNC)
    is_same = os.fstat(number).st_ino == os.lstat(folder / "held.lock").st_ino
    os.close(number)
    return is_same


CASES = [
    writes,
    appends,
    changes_in_place,
    opens_exclusively,
    opens_by_descriptor,
    uses_an_opener,
    writes_from_its_folder,
    writes_through_a_link,
    replaces_a_link,
    saves_with_torch,
    saves_a_program,
    saves_a_function,
    saves_a_profile,
    saves_a_package,
    saves_safetensors,
    saves_with_numpy,
    saves_text_with_numpy,
    reads_through_a_link,
    puts_a_link_in_its_place,
    exports_a_program,
    makes_nested_folders_anew,
    maps_an_array,
    maps_a_new_array,
    saves_images,
    saves_images_with_torchvision,
    maps_tensors,
    opens_raw_files,
    compresses,
    logs,
    uses_a_database,
    puts_another_in_its_place,
    keeps_a_backup,
    moves_a_changed_file,
    copies,
    changes_without_a_path,
    deletes,
    makes_folders_anew,
    moves_a_folder,
    makes_new_files,
    holds_a_lock,
]


@pytest.fixture
def guarded(tmp_path):
    """Guards this process; ends that when it is called."""
    (tmp_path / "ours").mkdir()
    patches = Patches()
    guard_process(FileGuard(tmp_path / "ours"), patches)
    yield patches.undo
    patches.undo()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.filterwarnings("ignore:.*deprecated since torchvision")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_files_stay_unchanged_and_the_script_observes_no_difference(tmp_path, request, case):
    free, kept = tmp_path / "free", tmp_path / "kept"
    for folder in (free, kept):
        folder.mkdir()
        fill(folder)
    before, freely = state(kept), state(free)
    expected = case(free)
    end_guard = request.getfixturevalue("guarded")
    found = case(kept)
    end_guard()
    assert found == expected
    after = state(kept)
    assert {name: after.get(name) for name in before} == before
    noted = {path.relative_to(kept) for path in unchanged_files(tmp_path / "ours", time.time())}
    after_freely = state(free)
    changed = [Path(name) for name, facts in freely.items() if after_freely.get(name) != facts]
    assert all({path, *path.parents} & noted for path in changed), (changed, noted)
    assert {str(path) for path in noted} <= before.keys()


def test_a_file_that_another_program_removes_is_still_reported(tmp_path, request):
    path = tmp_path / "log.txt"
    path.write_text("the user's")
    end_guard = request.getfixturevalue("guarded")
    path.write_text("new")
    end_guard()
    path.unlink()
    assert unchanged_files(tmp_path / "ours", time.time()) == [path]


def test_new_files_are_where_the_script_puts_them(tmp_path, guarded):
    new = tmp_path / "runs" / "new.pt"
    new.parent.mkdir()
    torch.save(TENSORS, new)
    guarded()
    assert torch.load(new)["weight"].tolist() == TENSORS["weight"].tolist()
    assert unchanged_files(tmp_path / "ours", time.time()) == []


CV2 = """
import posix  # as in C++: not through anything of Python's

def imwrite(filename, image):
    posix.write(posix.open(filename, posix.O_WRONLY | posix.O_TRUNC), image)

def imread(filename):
    return posix.read(posix.open(filename, posix.O_RDONLY), 99)
"""


def test_a_library_that_is_imported_later(tmp_path, monkeypatch, request):
    (tmp_path / "cv2.py").write_text(CV2)
    before = state(fill(tmp_path / "project"))
    end_guard = request.getfixturevalue("guarded")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    cv2 = importlib.import_module("cv2")
    for image in (b"one", b"other"):
        cv2.imwrite(str(tmp_path / "project" / "a.png"), image)
        assert cv2.imread(str(tmp_path / "project" / "a.png")) == image
    end_guard()
    del sys.modules["cv2"]
    assert state(tmp_path / "project") == before


def test_what_another_process_of_the_script_has_made_is_not_reported(tmp_path, guarded):
    begun = time.time() - 1
    (tmp_path / "of-another").write_text("")
    guarded()
    (tmp_path / "of-another").write_text("not empty")
    guard = FileGuard(tmp_path / "ours")
    with guard.open(tmp_path / "of-another", "w") as file:
        file.write("mine")
    assert (tmp_path / "of-another").read_text() == "not empty"
    assert unchanged_files(tmp_path / "ours", begun) == []
    remove_copies(tmp_path / "ours", os.getpid())
    assert list((tmp_path / "ours" / "copies").iterdir()) == []


def test_replaced_builtins_are_like_builtins(guarded):
    """No methods where a class keeps them, pickled by their names, and known for what they can."""

    class Keeps:
        open = open
        stat = os.stat

    assert Keeps().stat("/").st_ino == os.stat("/").st_ino
    for one in (open, os.replace, os.remove, torch.load, torch.save, safetensors.safe_open):
        assert pickle.loads(pickle.dumps(one)) is one
    assert os.stat in os.supports_dir_fd
    assert error_of(os.open, "/absent", os.O_WRONLY) == errno.ENOENT
