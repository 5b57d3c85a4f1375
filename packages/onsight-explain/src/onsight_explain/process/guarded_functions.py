"""Routes the functions that open or change files through a FileGuard, in this process.

They belong to Python and some libraries, and are called from Python. Other libraries that open
files in C, and programs that the script starts, are not guarded.
"""

import builtins
import functools
import inspect
import io
import multiprocessing.spawn
import os
import shutil
from abc import ABCMeta
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Literal, NamedTuple

from onsight_explain.process.file_guard import FileGuard, joined, open_path
from onsight_explain.tracing.patches import Patches, when_imported

Use = Literal["read", "write", "change"]  # change: the existing content matters
Call = Callable[..., Any]

_CHANGES = ("truncate", "utime", "chmod", "chown", "lchown", "setxattr", "removexattr")
_OPEN_ALIASES = (("tarfile", "bltn_open"), ("bz2", "_builtin_open"), ("lzma", "_builtin_open"))
_SUPPORTS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
_SAFETENSORS = ("safetensors", "safetensors.torch", "safetensors.numpy")
_IMAGES = ("torchvision.io.image", "torchvision.io")


class _NativeFunction(NamedTuple):
    """A function that opens a file in C, C++ or Rust."""

    modules: tuple[str, ...]  # modules with a reference to the function
    name: str
    path_index: int  # position of the path among its arguments
    path_name: str
    use: Use


_NATIVE_FUNCTIONS = (
    _NativeFunction(("torch.serialization", "torch"), "save", 1, "f", "write"),
    _NativeFunction(("torch.serialization", "torch"), "load", 0, "f", "read"),
    _NativeFunction(("torch._C",), "PyTorchFileWriter", 0, "name", "write"),  # used by torch.export
    _NativeFunction(("torch._C",), "PyTorchFileReader", 0, "name", "read"),
    _NativeFunction(("torch.jit._script",), "RecursiveScriptModule.save", 1, "f", "write"),
    _NativeFunction(("torch.jit._script",), "ScriptModule.save", 1, "f", "write"),
    _NativeFunction(("torch._C",), "ScriptFunction.save", 1, "filename", "write"),
    _NativeFunction(("torch.jit._serialization", "torch.jit"), "load", 0, "f", "read"),
    _NativeFunction(
        ("torch.autograd.profiler",), "profile.export_chrome_trace", 1, "path", "write"
    ),
    _NativeFunction(_IMAGES, "write_file", 0, "filename", "write"),
    _NativeFunction(_IMAGES, "write_jpeg", 1, "filename", "write"),
    _NativeFunction(_IMAGES, "write_png", 1, "filename", "write"),
    _NativeFunction(_IMAGES, "read_file", 0, "path", "read"),  # used by the other functions
    _NativeFunction(_SAFETENSORS, "serialize_file", 1, "filename", "write"),
    _NativeFunction(_SAFETENSORS, "safe_open", 0, "filename", "read"),
    _NativeFunction(("cv2",), "imwrite", 0, "filename", "write"),
    _NativeFunction(("cv2",), "imread", 0, "filename", "read"),
    _NativeFunction(("sqlite3.dbapi2", "sqlite3"), "connect", 0, "database", "change"),
)


def guard_process(guard: FileGuard, patches: Patches | None = None) -> None:
    """Guard files in this process and in the processes that multiprocessing starts from it."""
    _Guarding(guard, patches or Patches()).install()


class _Guarding:
    def __init__(self, guard: FileGuard, patches: Patches) -> None:
        self.guard, self.patches = guard, patches
        self._replaced: list[tuple[Any, Any]] = []

    def install(self) -> None:
        """Replace the functions, those of libraries as soon as they are imported."""
        guard = self.guard
        self._put_builtins(
            os,
            open=guard.os_open,
            rename=guard.rename,
            replace=guard.rename,
            remove=guard.remove,
            unlink=guard.remove,
            rmdir=guard.rmdir,
            mkdir=guard.mkdir,
            symlink=guard.symlink,
            stat=guard.stat,
        )
        for name in _CHANGES:
            if hasattr(os, name):  # not on every system
                self._put_builtins(os, **{name: self._changing(getattr(os, name))})
        if hasattr(os, "fchmod"):  # not on Windows
            self._put_builtins(
                os,
                fchmod=lambda fd, mode: os.chmod(fd, mode),
                fchown=lambda fd, uid, gid: os.chown(fd, uid, gid),
            )
        self._put_builtins(builtins, open=guard.open)
        self.patches.put(io, "open", builtins.open)
        self.patches.put(io, "FileIO", _guarded_file_io(guard))
        for module, name in _OPEN_ALIASES:
            self._when_imported(module, functools.partial(self._put_open, name=name))
        self.patches.put(shutil, "rmtree", guard.rmtree)
        for native in _NATIVE_FUNCTIONS:
            for module in native.modules:
                self._when_imported(module, functools.partial(self._put_native, native))
        self._when_imported("torch", self._put_from_file)
        self._when_imported("numpy", self._put_memmap)
        self._when_imported("numpy.lib._datasource", self._put_openers)
        self._guard_spawned()

    def _when_imported(self, module: str, action: Callable[[ModuleType], None]) -> None:
        when_imported(module, action, self.patches)

    def _put_builtins(self, owner: ModuleType, **calls: Call) -> None:
        for name, call in calls.items():
            original = getattr(owner, name)
            replaced = _Builtin(original, call, owner.__name__)
            self.patches.put(owner, name, replaced)
            for functions in _SUPPORTS:
                if original in functions:
                    functions.add(replaced)

    def _put_open(self, module: ModuleType, name: str) -> None:
        if hasattr(module, name):
            self.patches.put(module, name, builtins.open)

    def _put_native(self, native: _NativeFunction, module: ModuleType) -> None:
        *owners, name = native.name.split(".")
        owner = functools.reduce(getattr, owners, module)
        original = getattr(owner, name, None)
        if original is None or any(original is new for _, new in self._replaced):
            return
        known = [new for old, new in self._replaced if old is original]
        new = known[0] if known else self._guarded(original, native, module.__name__)
        self._replaced.append((original, new))
        self.patches.put(owner, name, new)

    def _guarded(self, original: Any, native: _NativeFunction, module: str) -> Call:
        """Return the function with the path of the copy in place of the file's, if there is one."""
        _, _, index, name, use = native

        def call(*args: Any, **settings: Any) -> Any:
            if name in settings:
                settings[name] = self._path(settings[name], use)
            elif len(args) > index:
                args = (*args[:index], self._path(args[index], use), *args[index + 1 :])
            return original(*args, **settings)

        if inspect.isfunction(original) or "." in native.name:  # it may have to become a method
            return functools.wraps(original)(call)
        return _Builtin(original, call, module)

    def _path(self, path: Any, use: Use) -> Any:
        if not isinstance(path, str | bytes | os.PathLike):
            return path
        if use == "read":
            return self.guard.reading(path)
        return self.guard.writing(path, keeps_content=use == "change")

    def _changing(self, original: Call) -> Call:
        def change(path: Any, *args: Any, dir_fd: int | None = None, **settings: Any) -> Any:
            if isinstance(path, int):
                with suppress(OSError):  # a pipe or socket has no path
                    named = open_path(path)
                    path = named if os.path.samestat(os.fstat(path), os.lstat(named)) else path
            if not isinstance(path, int):
                path = self.guard.reading(joined(path, dir_fd))
                if os.path.lexists(path):
                    path = self.guard.writing(path, keeps_content=True)
            return original(path, *args, **settings)

        return change

    def _put_from_file(self, torch: ModuleType) -> None:
        """Change tensors of a user's file in memory only, as with memmap."""

        def guarded(original: Call) -> Call:
            def from_file(filename: Any, shared: bool = False, *args: Any, **settings: Any) -> Any:
                filename = self.guard.reading(filename)
                if shared and self.guard.protects(filename):
                    shared = False
                elif shared:
                    filename = self.guard.writing(filename, keeps_content=True)
                return original(filename, shared, *args, **settings)

            return _Builtin(original, from_file, "torch")

        self.patches.put(torch, "from_file", guarded(torch.from_file))
        storage = torch.UntypedStorage
        self.patches.put(storage, "from_file", guarded(storage.from_file))

    def _put_memmap(self, numpy: ModuleType) -> None:
        """Change arrays of a user's file in memory only: a copy of the file might be very large."""
        original = numpy.memmap.__new__

        def create(
            kind: type,
            filename: Any,
            dtype: Any = numpy.uint8,
            mode: str = "r+",
            *args: Any,
            **settings: Any,
        ) -> Any:
            is_path = isinstance(filename, str | bytes | os.PathLike)
            if is_path and mode in ("r+", "readwrite") and self.guard.protects(filename):
                mode = "c"
            return original(kind, filename, dtype, mode, *args, **settings)

        self.patches.put(numpy.memmap, "__new__", staticmethod(create))

    def _put_openers(self, module: ModuleType) -> None:
        """Replace the `open` that numpy stored when it was imported, for arrays as text."""
        openers: Any = getattr(module, "_file_openers", None)
        if isinstance(table := getattr(openers, "_file_openers", None), dict):
            self.patches.put(openers, "_file_openers", table | {None: builtins.open})

    def _guard_spawned(self) -> None:
        """Send the guard to spawned processes with the data that prepares them."""
        original = multiprocessing.spawn.get_preparation_data

        def get_preparation_data(name: str) -> dict[str, Any]:
            return original(name) | {"onsight_guard": _GuardOnUnpickling(self.guard)}

        self.patches.put(multiprocessing.spawn, "get_preparation_data", get_preparation_data)


def _guarded_file_io(guard: FileGuard) -> type[io.FileIO]:
    """Return a class like io.FileIO, of which all instances of io.FileIO are instances."""
    original = io.FileIO

    class FileIO(io.FileIO, metaclass=ABCMeta):
        def __init__(
            self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
        ) -> None:
            if opener is None:
                file, mode = guard.opening(file, mode)
            super().__init__(file, mode, closefd, opener)

        @classmethod
        def __subclasshook__(cls, subclass: type) -> bool:
            return issubclass(subclass, original) if cls is FileIO else NotImplemented

    return FileIO


class _Builtin:
    """Replaces a builtin: like one, it does not become a method as an attribute of a class."""

    def __init__(self, original: Call, call: Call, module: str) -> None:
        functools.update_wrapper(self, original, updated=())
        self.__module__, self._name = module, original.__name__
        self._call = call

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._call(*args, **settings)

    def __reduce__(self) -> str:
        return self._name


class _GuardOnUnpickling:
    """Guards the process in which it is unpickled: a spawned one, before any code of the script."""

    def __init__(self, guard: FileGuard) -> None:
        self.guard = guard

    def __reduce__(self) -> tuple[Callable[[FileGuard], None], tuple[FileGuard]]:
        return guard_process, (self.guard,)
