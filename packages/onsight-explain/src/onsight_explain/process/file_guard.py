"""Redirect a script's changes of existing files to copies, or only record them."""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onsight_explain.text import plural

Named = str | bytes | os.PathLike[Any]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOG, _COPIES = "unchanged", "copies"  # names in the guard's folder
_NAMED = 3  # names at most this many files in the message, and counts the others

# The originals, which the guard replaces in os, builtins and shutil.
_OPEN: Any = open
_OS_OPEN, _LSTAT, _STAT = os.open, os.lstat, os.stat
_REMOVE, _RENAME, _SYMLINK = os.remove, os.rename, os.symlink
_MKDIR, _RMDIR, _RMTREE = os.mkdir, os.rmdir, shutil.rmtree


class FileGuard:
    """Keeps files that existed before the script unchanged.

    The first time the script opens such a file for writing or replaces it, the file's name is
    redirected to a copy in a folder of ours, in this process and those forked from it. Deleting a
    file or folder is only recorded. New files stay where the script puts them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)  # contains copies and the log, no files of the user
        self.copies: dict[str, str] = {}  # the copy that replaces each name
        # What the script has created: files, and folders with everything in them.
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        # The last parts of all names in `copies` and `deleted`, so that others are decided fast.
        self.last_parts: set[str] = set()
        self._logged: set[str] = set()
        self._count = 0

    def open(
        self, file: Any, mode: str = "r", *args: Any, opener: Any = None, **settings: Any
    ) -> Any:
        """Like the builtin `open`."""
        if opener is None:  # an opener calls os.open
            file, mode = self.opening(file, mode)
        return _OPEN(file, mode, *args, opener=opener, **settings)

    def opening(self, file: Any, mode: str) -> tuple[Any, str]:
        """Return what to open in place of a file, and in which mode."""
        if isinstance(file, int):
            return file, mode
        if "x" in mode:
            if self._is_deleted(file):
                mode = mode.replace("x", "w")
            elif _exists(os.path.realpath(file)):
                return file, mode
        is_read = "r" in mode
        if is_read:
            file = self.reading(file)
        if not is_read or "+" in mode:
            file = self.writing(file, keeps_content="w" not in mode)
        return file, mode

    def os_open(
        self, path: Named, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        """Like os.open."""
        if dir_fd is not None and not flags & _WRITES:
            return _OS_OPEN(path, flags, mode, dir_fd=dir_fd)
        full = joined(path, dir_fd)
        creates = bool(flags & os.O_CREAT)
        if creates and flags & os.O_EXCL:
            if self._is_deleted(full):
                flags &= ~os.O_EXCL
            elif _exists(full):
                return _OS_OPEN(full, flags, mode)
        if not creates:
            full = self.reading(full)
        if flags & _WRITES:
            full = self.writing(full, keeps_content=not flags & os.O_TRUNC, creates=creates)
        return _OS_OPEN(full, flags, mode)

    def reading(self, path: Named) -> Named:
        """Return where to read a file: its copy if there is one. Raises FileNotFoundError."""
        if not self.last_parts or not isinstance(path, str | bytes | os.PathLike):
            return path
        last = os.path.basename(os.fsdecode(path))
        if last in self.last_parts or os.path.islink(path):
            for name in (_full(path), os.path.realpath(os.fsdecode(path))):
                if name in self.copies:
                    return self.copies[name]
                if name in self.deleted:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path

    def writing(self, path: Named, keeps_content: bool, creates: bool = True) -> Named:
        """Return where to write a file: to a copy if it existed before the script.

        keeps_content: whether writing begins with the file's content; creates: whether the caller
        creates a file that does not exist.
        """
        is_deleted = self._is_deleted(path)
        place = path if is_deleted else self.reading(path)
        name = os.path.realpath(os.fsdecode(place))
        if not self._is_users_file(name):
            if creates and not _exists(name):
                self.created.add(name)
            return place
        self._log(name)
        copy = self._new_copy(name)
        if keeps_content and not is_deleted:
            shutil.copy2(name, copy)
        else:
            _OPEN(copy, "wb").close()
            os.chmod(copy, stat.S_IMODE(_LSTAT(name).st_mode))
        self._redirect(path, name, copy)
        return copy

    def rename(
        self,
        src: Named,
        dst: Named,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        """Like os.rename and os.replace."""
        src, dst = joined(src, src_dir_fd), joined(dst, dst_dir_fd)
        source, target = _full(src), _full(dst)
        content = self.copies.get(source, source)
        if source in self.deleted or not _exists(content):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        if source == target:
            return
        is_users, replaces_users = self._is_users(content), self._is_users(target)
        if os.path.islink(content) and replaces_users and not is_users:
            self._replace_by_link(content, dst)
            return
        if _is_folder(content) and (is_users or target in self.deleted):  # a folder is not copied
            self._delete(source)
            self.deleted.discard(target)
        elif _is_folder(content) or not (is_users or replaces_users or content != source):
            _RENAME(src, dst)
            self.created.discard(source)
            self.created.add(target)
        else:
            place = self._new_copy(target) if replaces_users else target
            if is_users:
                shutil.copy2(content, place)
            else:
                _move(content, place)
            if replaces_users:
                self._log(target)
                self._redirect(dst, target, place)
            else:
                self.created.add(target)
            if is_users or content != source:
                self._delete(source)

    def _replace_by_link(self, link: str, dst: Named) -> None:
        """Redirect a name to a link's target: a relative link would break among the copies."""
        target = _full(dst)
        self._log(target)
        place = os.path.join(os.path.dirname(link), os.readlink(link))
        self._redirect(dst, target, os.fsdecode(self.reading(place)))
        _REMOVE(link)
        self.created.discard(link)

    def remove(self, path: Named, *, dir_fd: int | None = None) -> None:
        """Like os.remove and os.unlink."""
        path = joined(path, dir_fd)
        name = _full(path)
        if name in self.deleted:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._is_users(name) and not _is_folder(name):
            self._delete(name)
        else:
            _REMOVE(path)
            self.created.discard(name)

    def rmdir(self, path: Named, *, dir_fd: int | None = None) -> None:
        """Like os.rmdir."""
        path = joined(path, dir_fd)
        name = _full(path)
        if self._is_users(name) and not os.listdir(name):
            self._delete(name)
        else:
            _RMDIR(path)
            self.created.discard(name)

    def rmtree(self, path: Named, *args: Any, **settings: Any) -> None:
        """Like shutil.rmtree."""
        name = _full(path) if settings.get("dir_fd") is None else ""
        if name and self._is_users(name) and _is_folder(name):
            self._delete(name)
        else:
            _RMTREE(path, *args, **settings)

    def mkdir(self, path: Named, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Like os.mkdir."""
        path = joined(path, dir_fd)
        name = _full(path)
        if name in self.deleted and _is_folder(name):
            self.deleted.discard(name)
        else:
            _MKDIR(path, mode)
            self.created.add(name)

    def symlink(
        self,
        src: Named,
        dst: Named,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        """Like os.symlink."""
        dst = joined(dst, dir_fd)
        name = _full(dst)
        if name in self.deleted:
            target = os.path.join(os.path.dirname(name), os.fsdecode(src))
            self._redirect(dst, name, target)
        else:
            _SYMLINK(src, dst, target_is_directory)
            self.created.add(name)

    def stat(
        self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        """Like os.stat."""
        if dir_fd is None:
            path = self.reading(path)
        return _STAT(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def protects(self, path: Named) -> bool:
        """Return whether the script must not change this file, and record that it tried to."""
        name = os.path.realpath(os.fsdecode(self.reading(path)))
        is_protected = self._is_users_file(name)
        if is_protected:
            self._log(name)
        return is_protected

    def _is_users(self, name: str) -> bool:
        """Return whether something with this full name exists that the script has not created."""
        if not _exists(name) or name.startswith(self.folder + os.sep):
            return False
        while name not in self.created:
            name, within = os.path.dirname(name), name
            if name == within:
                return True
        return False

    def _is_users_file(self, name: str) -> bool:
        """Return whether a file has content to protect, unlike an empty .lock, which is shared."""
        if not self._is_users(name):
            return False
        status = _LSTAT(name)
        return stat.S_ISREG(status.st_mode) and (status.st_size > 0 or not name.endswith(".lock"))

    def _is_deleted(self, path: Named) -> bool:
        return bool(self.deleted) and _full(path) in self.deleted

    def _delete(self, name: str) -> None:
        self._log(name)
        contents = (
            os.path.join(folder, entry)
            for folder, folders, files in os.walk(name)
            for entry in (*folders, *files)
        )
        for deleted in (name, *contents):
            self.copies.pop(deleted, None)
            self.deleted.add(deleted)
            self.last_parts.add(os.path.basename(deleted))

    def _redirect(self, path: Named, name: str, place: str) -> None:
        self.deleted -= {name, _full(path)}
        self.copies[name] = place
        self.last_parts |= {os.path.basename(name), os.path.basename(os.fsdecode(path))}

    def _new_copy(self, name: str) -> str:
        """Return a path for a copy, with the same suffix."""
        self._count += 1
        folder = os.path.join(self.folder, _COPIES)
        if not _exists(folder):
            os.makedirs(folder, exist_ok=True)
        suffix = os.path.splitext(name)[1]
        return os.path.join(folder, f"{os.getpid()}-{self._count}{suffix}")

    def _log(self, name: str) -> None:
        if name not in self._logged:
            self._logged.add(name)
            # Unbuffered, because several processes append to it.
            with _OPEN(os.path.join(self.folder, _LOG), "ab", 0) as file:
                file.write(os.fsencode(name) + b"\0")


def unchanged_files(folder: Path, began: float) -> list[Path]:
    """Return the files and folders that guards with this folder have protected, sorted.

    Files that were created after `began` (in seconds of the epoch) are skipped: another process of
    the script made them. One that no longer exists was removed by a program without a guard.
    """
    log = folder / _LOG
    names = log.read_bytes().split(b"\0") if log.exists() else []
    paths = sorted({Path(os.fsdecode(name)) for name in names if name})
    return [path for path in paths if not _exists(path) or path.lstat().st_ctime < began]


def describe_unchanged(script: str, files: Sequence[Path]) -> str:
    """Return a sentence about the files that were protected."""
    names = ", ".join(path.name for path in files[:_NAMED])
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return (
        f"Unchanged: {plural(len(files), 'file')} that {script} overwrites, moves or deletes "
        f"({names}{more}). It worked on copies in a temporary folder."
    )


def remove_copies(folder: Path, process: int) -> None:
    """Remove the copies that a process made, once it has ended."""
    for copy in (folder / _COPIES).glob(f"{process}-*"):
        copy.unlink(missing_ok=True)


def joined(path: Named, dir_fd: int | None) -> Named:
    """Return a path relative to the descriptor of a folder as one that needs no descriptor."""
    return path if dir_fd is None else os.path.join(open_path(dir_fd), os.fsdecode(path))


def open_path(descriptor: int) -> str:
    """Return the path of what is open, which need not exist. Raises OSError."""
    if sys.platform == "darwin":
        import fcntl

        path = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(path.rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _full(path: Named) -> str:
    """Return the full name of a file, or of a link itself; links in its folders are resolved."""
    folder, last = os.path.split(os.fsdecode(path).rstrip(os.sep))
    if last in ("", os.curdir, os.pardir):
        return os.path.realpath(os.fsdecode(path))
    return os.path.join(os.path.realpath(folder), last)


def _exists(path: Named) -> bool:
    try:
        _LSTAT(path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(name: str) -> bool:
    try:
        return stat.S_ISDIR(_LSTAT(name).st_mode)
    except OSError:
        return False


def _move(source: str, place: str) -> None:
    """Move a file, even to another disk."""
    try:
        _RENAME(source, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, place)
        _REMOVE(source)
