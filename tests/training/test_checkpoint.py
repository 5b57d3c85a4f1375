"""A checkpoint that cannot be gone on from."""

import pytest

from onsight.errors import OnsightError
from onsight.tensorfile import write_tensors
from onsight.training.run_folder.checkpoint import load_checkpoint


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    write_tensors(tmp_path / "last.safetensors", {}, {"version": 99})
    with pytest.raises(OnsightError, match="last.safetensors .*version"):
        load_checkpoint(tmp_path / "last.safetensors", None, None)
