"""Guards against hostile and broken input, how to remove each, and the tests that must notice.

A bug is planted by replacing a text that must occur exactly once in its file.
"""

from typing import NamedTuple


class Bug(NamedTuple):
    """A change to a file of a package that must make one of the tests fail."""

    file: str
    guard: str
    replacement: str
    tests: str


def _without(file: str, tests: str, *conditions: str) -> list[Bug]:
    """Return bugs that make conditions of `if` or `elif` false."""
    bugs = []
    for condition in conditions:
        word, _, _ = condition.partition(" ")
        bugs.append(Bug(file, condition, f"{word} False:", tests))
    return bugs


_DECODE = "tests/data/test_decode.py tests/data/test_odd_images.py tests/data/test_bombs.py"
_ARCHIVES = "tests/data/sources/test_archive_source.py"
_MANIFESTS = "tests/data/sources/test_manifest_source.py"
_BOXES = "tests/data/sources/test_boxes_source.py"
_KILLS = "tests/reliability/test_kills.py"
_TRACE = "tests/reliability/test_save_trace.py"
_FULL = "tests/reliability/test_full_disk.py"
_SIGNALS = "tests/reliability/test_signals.py"
_DAMAGE = "tests/reliability/test_damage.py"
_AROUND = "tests/reliability/test_surroundings.py"
_VERIFY = "tests/reliability/test_verify_resume.py"
_LEVEL = "tests/reliability/test_level.py"
_EVERY_STEP = "tests/reliability/test_every_step.py"
_KEPT = "packages/onsight-explain/tests/script/test_file_guard.py"
_NOT_FINITE = "tests/reliability/test_not_finite.py"
_RUN = "tests/training/test_run.py"
_OUTPUTS = "tests/test_outputs.py"

RELIABILITY = [
    Bug("onsight/files.py", "    os.fsync(file.fileno())", "    pass", _TRACE),
    Bug("onsight/files.py", "path)\n    sync_folder(path.parent)", "path)", _TRACE),
    Bug(
        "onsight/files.py",
        "    os.replace(private_path, path)",
        "    path.unlink(missing_ok=True)\n    os.replace(private_path, path)",
        _TRACE,
    ),
    Bug(
        "onsight/files.py",
        "path, path.with_name(private_name())",
        "path, Path(tempfile.gettempdir(), private_name())",
        _TRACE,
    ),
    Bug(
        "onsight/files.py",
        'path.with_name(private_name())\n        self.file = open(self._private_path, "xb")',
        'path\n        self.file = open(self._private_path, "wb")',
        f"{_KILLS} {_TRACE}",
    ),
    Bug(
        "onsight/files.py",
        "            self._private_path.unlink(missing_ok=True)",
        "            pass",
        _FULL,
    ),
    Bug("onsight/files.py", "if error.errno in _NO_SPACE:", "if False:", _FULL),
    Bug("onsight/files.py", "        os.close(descriptor)", "        pass", _LEVEL),
    Bug(
        "onsight/files.py",
        "spare.unlink(missing_ok=True)  # a rename does nothing if both names are one file already",
        "pass",
        "tests/test_files.py",
    ),
    Bug(
        "onsight/training/trainer.py",
        "self._stop_if_asked()\n        self.checkpoints.remove_previous()",
        "self.checkpoints.remove_previous()",
        "tests/training/test_late_stop.py",
    ),
    Bug(
        "onsight/files.py",
        "os.link(path, spare)",
        "os.rename(path, spare)",
        f"{_KILLS} tests/test_files.py",
    ),
    Bug(
        "onsight/files.py",
        "return _PRIVATE_NAME.fullmatch(name) is not None",
        'return name.startswith(".")',
        "tests/test_files.py",
    ),
    Bug(
        "onsight/training/run_folder.py",
        "remove_unfinished(path)  # the lock is held: nobody else writes here",
        "pass",
        _KILLS,
    ),
    Bug(
        "onsight/training/run_folder.py",
        "return not all(is_unfinished(name) for name in names)",
        "return bool(names)",
        _KILLS,
    ),
    Bug(
        "onsight/training/run_folder.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        _AROUND,
    ),
    *_without(
        "onsight/files.py",
        _OUTPUTS,
        "if input_stat and os.path.samestat(input_stat, output_stat):",
        "if input_stat and stat.S_ISDIR(input_stat.st_mode) and _is_inside(path, name):",
        "if os.path.islink(path):",
    ),
    *_without(
        "onsight/inference/resumable_file.py",
        "tests/inference/test_predict.py",
        "if not is_started and not row_format.head.startswith(start):",
        "if not isinstance(job, dict) or _BATCH_SIZE_KEY not in job:",
    ),
    Bug(
        "onsight/tensorfile.py",
        "if digest_around(data, _digest_position(data, digest)) != digest:",
        "if False:",
        _DAMAGE,
    ),
    Bug(
        "onsight/training/saving.py",
        "self.folder.previous_checkpoint if self.last_is_valid else None",
        "None",
        _DAMAGE,
    ),
    Bug("onsight/training/saving.py", "raise error from None", "return {}", _DAMAGE),
    Bug("onsight/training/trainer.py", "if self.world.stopping:", "if False:", _SIGNALS),
    Bug(
        "onsight/training/trainer.py",
        "self.progress = checkpoint.run.progress\n",
        "self.progress = Progress()\n",
        _KILLS,
    ),
    Bug(
        "onsight/training/saving.py",
        "time.monotonic() - self.saved_at >= self.every_seconds",
        "False",
        _KILLS,
    ),
    Bug(
        "onsight/training/saving.py",
        "if checkpoint.run.data_key != self.data_key:",
        "if not checkpoint.run.data_key:",
        _AROUND,
    ),
    Bug(
        "onsight/training/finite_check.py",
        "if not self._has_finite_weights():",
        "if False:",
        f"{_RUN} -k spoiled",
    ),
    Bug(
        "onsight/training/trainer.py",
        "self.finite.refuse_spoiled_weights(self.progress)\n        self.checkpoints.save_best",
        "self.checkpoints.save_best",
        f"{_RUN} -k spoiled",
    ),
    Bug("onsight/step/step.py", "if self.guards_gradients:", "if False:", _NOT_FINITE),
    Bug(
        "onsight/step/deferred_losses.py",
        "if not math.isfinite(value):",
        "if False:",
        _NOT_FINITE,
    ),
    Bug(
        "onsight/data/tiff_process.py",
        "return _decode(TiffProcess(), data, background, pixel_limit)",
        "raise",
        "tests/reliability/test_decoders.py",
    ),
    Bug("onsight/data/loader.py", "range(begin, self.steps)", "range(self.steps)", _EVERY_STEP),
    Bug("onsight/ranks/signals.py", "request.signal_number = number", "pass", _SIGNALS),
    Bug(
        "onsight/ranks/signals.py",
        "numbers.append(hang_up)",
        "pass",
        "tests/training/test_late_stop.py",
    ),
    Bug(
        "onsight/errors.py", "self.exit_code = 128 + signal_number", "self.exit_code = 1", _SIGNALS
    ),
    Bug(
        "onsight/training/checkpoint.py",
        '_restore_optimizer(step.optimizer, self.tensors, self.facts["optimizer"])',
        "pass",
        _KILLS,
    ),
    Bug(
        "onsight/training/checkpoint.py",
        'average.model.load_state_dict(take_under("average.", self.tensors))',
        "pass",
        f"{_RUN} -k stopped_at_any_step",
    ),
    Bug(
        "onsight/training/verify_resume.py",
        "return torch.equal(*bits)",
        "return True",
        _VERIFY,
    ),
    Bug(
        "onsight/training/verify_resume.py",
        "for number, (a, b) in pairs if a != b]",
        "for number, (a, b) in pairs if False]",
        _VERIFY,
    ),
    Bug(
        "onsight/report/console.py",
        "file=cast(IO[str], LastingStream(sys.stderr))",
        "file=sys.stderr",
        _AROUND,
    ),
]

BUGS = [
    *RELIABILITY,
    *_without(
        "onsight/data/refusals.py",
        _DECODE,
        "if scans > JPEG_SCANS:",
        "if height * width > limit:",
        "if pixels > EXPANSE_PIXELS and pixels > PIXELS_A_BYTE * file_bytes:",
        "if compression in (1, 2) and abs(width * height) > SLOW_BMP_PIXELS:",
    ),
    Bug(
        "onsight/data/refusals.py", "refuse_pixels(*_webp_size(data), pixel_limit)", "pass", _DECODE
    ),
    *_without(
        "onsight/data/decode.py",
        f"{_DECODE} tests/data/test_foreign.py",
        "if not data:",
        'if colourspace not in ("YCbCr", "Gray") or _orientation(data) != 1:',
    ),
    *_without(
        "onsight/data/pixels.py",
        _DECODE,
        'if image.mode == "F":',
        "if image.has_transparency_data:",
    ),
    *_without(
        "onsight/data/tiff_process.py",
        "tests/data/test_tiff_process.py",
        "if not self._link.poll(self._seconds):",
        "if process.is_running:",
    ),
    Bug("onsight/data/pixels.py", "if not is_deep:", "if True:", _DECODE),
    Bug(
        "onsight/data/pixels.py",
        "white > 65535 or (values.size",
        "False and (values.size",
        _DECODE,
    ),
    Bug(
        "onsight/data/pixels.py",
        "refuse_empty_expanse(image.height, image.width, len(data))",
        "pass",
        _DECODE,
    ),
    Bug(
        "onsight/data/pixels.py",
        "return image if turn is None else image.transpose(turn)",
        "return image",
        _DECODE,
    ),
    *_without("onsight/data/pixels.py", _DECODE, "if clear is not None:"),
    Bug(
        "onsight/data/pixels.py",
        "upper.astype(np.uint32) << 8 | lower",
        "upper.astype(np.uint32) << 8 | upper",
        _DECODE,
    ),
    *_without(
        "onsight/data/sources/read_file.py",
        f"{_ARCHIVES} tests/data/sources/test_folder_source.py",
        "if size == 0:",
        "if size > IMAGE_FILE_BYTES:",
    ),
    *_without("onsight/data/refusals.py", "tests/data/test_foreign.py", 'if data[4:8] == b"ftyp":'),
    *_without(
        "onsight/data/sources/archive_members.py",
        _ARCHIVES,
        "if _ABSOLUTE.match(name):",
        'if ".." in _SEPARATORS.split(name):',
        "if len(self.paths) > ARCHIVE_MEMBERS:",
        "if size > _RATIO_FREE_BYTES and size > COMPRESSION_RATIO * info.compress_size:",
        "if len(content) != info.file_size or zlib.crc32(content) != info.CRC:",
        "if stat.S_ISLNK(mode):",
        "if info.compress_type == zipfile.ZIP_BZIP2:",
        "if len(data) < size:",
        "if not block:",
        "if info.issym() or info.islnk():",
    ),
    Bug("onsight/data/sources/archive_members.py", "if path in self._seen", "if False", _ARCHIVES),
    Bug(
        "onsight/data/sources/archive_members.py",
        "any(is_hidden(part) for",
        "any(False for",
        _ARCHIVES,
    ),
    Bug(
        "onsight/data/sources/archive_members.py",
        "if not position < archive.offset <= sys.maxsize:",
        "if False:",
        _ARCHIVES,
    ),
    *_without("onsight/data/sources/archive.py", _ARCHIVES, "if target.tell() > limit:"),
    *_without(
        "onsight/data/sources/idx.py",
        "tests/data/sources/test_idx_source.py",
        "if len(images) != len(labels):",
        "if not 0 < math.prod(images.shape[1:]) <= IDX_IMAGE_PIXELS:",
        "if len(data) != expected:",
        "if first.split == second.split:",
    ),
    *_without(
        "onsight/data/sources/restricted_unpickler.py",
        "tests/data/sources/test_cifar_source.py",
        "if name not in _OPCODES:",
        "if slot > 2 * stored + _MEMO_SLACK:",
        'elif name.endswith("GET") and argument in tuples:',
        "if counts[what] > limit:",
        "if stand_in is None:",
    ),
    *_without(
        "onsight/data/sources/manifest.py",
        _MANIFESTS,
        "if len(values) > 1:",
        "if not stat.S_ISREG(facts.st_mode):",
        "if len(cells) != width:",
        "if twice:",
        "if word.lower() not in SPLIT_WORDS:",
        "if len(present) > 1:",
    ),
    *_without(
        "onsight/data/sources/tables.py",
        _MANIFESTS,
        "if not isinstance(item, dict):",
    ),
    *_without(
        "onsight/data/sources/find.py",
        "tests/data/sources/test_class_names.py",
        "if other != number:",
    ),
    *_without(
        "onsight/data/sources/folder.py",
        "tests/data/sources/test_class_folders.py",
        "if len(folders) > 1 and splits and _hold_classes(splits, paths, level):",
    ),
    *_without(
        "onsight/data/sources/folder.py",
        "tests/data/sources/test_folder_source.py",
        "if inode in self._visited:",
    ),
    Bug(
        "onsight/data/cache.py",
        "stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino",
        "stat.st_mtime_ns, 0, 0",
        "tests/data/sources/test_folder_source.py",
    ),
    *_without(
        "onsight/data/split_units.py",
        "tests/data/test_split_units.py",
        "if group and sides.setdefault(group, split) != split:",
    ),
    Bug(
        "onsight/data/split.py",
        "splits < highest[group]",
        "splits < 0",
        "tests/data/test_split.py tests/data/test_split_units.py",
    ),
    *_without(
        "onsight/data/pack.py",
        "tests/data/test_pack.py",
        'if facts["key"] != key:',
        'if not is_intact(pixels.reshape(-1), columns["pixel_checksums"], job.threads):',
    ),
    Bug(
        "onsight/data/pack.py",
        "return np.array_equal(block_checksums(content, threads), checksums)",
        "return True",
        "tests/data/test_block_checksums.py",
    ),
    *_without(
        "onsight/data/sources/boxes.py",
        _BOXES,
        "if box.size and box.size != (height, width):",
        "if top >= bottom or left >= right:",
        'if items.setdefault(item["id"], item) != item:',
    ),
    *_without(
        "onsight/untrusted.py",
        f"tests/test_untrusted.py {_BOXES}",
        'if b"<!DOCTYPE" in ascii_text or b"<!ENTITY" in ascii_text:',
        "if size > TEXT_FILE_BYTES:",
        "if len(line) == LINE_CHARACTERS:",
        "if characters > LINE_CHARACTERS:",
        "check_value(value, errors)",
    ),
    *_without("onsight/models/build.py", "tests/models/test_model_file.py", "if made > limit:"),
    *_without(
        "onsight/models/file.py",
        "tests/models/test_model_file.py",
        "if keys.dtype != torch.int64 or keys.ndim != 1:",
        "if not isinstance(value, int) or not 0 <= value <= HIDDEN_UNITS:",
    ),
    *_without(
        "onsight/training/progress.py",
        "tests/training/test_checkpoint.py",
        "if not isinstance(value, (int, float) if kind is float else kind):",
    ),
    Bug("onsight_explain/python_process.py", '"-P", ', "", "tests/test_child_command.py"),
    Bug(
        "onsight/models/user.py",
        "sys.path.append(folder)",
        "sys.path.insert(0, folder)",
        "tests/models/test_user_nets.py",
    ),
    *_without(
        "onsight_explain/process/file_guard.py", _KEPT, "if keeps_content and not is_deleted:"
    ),
    Bug("onsight_explain/process/file_guard.py", "self._is_users(target)", "False", _KEPT),
    Bug(
        "onsight_explain/process/guarded_functions.py",
        '| {"onsight_guard": _GuardOnUnpickling(self.guard)}',
        "",
        "packages/onsight-explain/tests/script/test_unchanged_files.py",
    ),
]
