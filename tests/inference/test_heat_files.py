"""Heat maps of predictions as files, each traceable to its input."""

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.cli import main
from onsight.errors import OutputError
from onsight.inference.heat_files import HeatFolder, check_heat_folder
from onsight.inference.images import file_input

pytest.importorskip("captum")


def test_each_usable_input_gets_a_file_with_its_number(trained, shared_bars, tmp_path, capsys):
    odd = tmp_path / "in" / f"a b#\u00e9{'x' * 200}.png"
    odd.parent.mkdir()
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(odd)
    broken = tmp_path / "in" / "broken.png"
    broken.write_bytes(b"nothing")
    first = shared_bars / "across" / "000.png"
    out = tmp_path / "heat"
    paths = [str(first), str(broken), str(odd), str(first)]
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(trained.path), *paths, "--heatmap", str(out)])
    assert stop.value.code == 0
    assert "3 heat maps written to" in capsys.readouterr().err
    names = sorted(path.name for path in out.iterdir())
    assert names == ["000001-000.png", f"000003-a_b_\u00e9{'x' * 55}.png", "000004-000.png"]
    assert (out / names[0]).read_bytes() == (out / names[2]).read_bytes()


def test_the_image_is_beside_it_in_its_own_shape(trained, tmp_path):
    wide = tmp_path / "wide.png"
    pixels = np.random.default_rng(0).integers(0, 255, (300, 400), np.uint8)
    Image.fromarray(pixels).save(wide)
    predictor = onsight.load(trained.path)
    folder = HeatFolder(tmp_path / "heat", predictor)
    folder.write(list(predictor.predictions([wide])), [file_input(str(wide))], first=1)
    assert folder.count == 1
    with Image.open(tmp_path / "heat" / "000001-wide.png") as image:
        page = np.asarray(image.convert("RGB"))
    assert np.array_equal(page[16:316, 16:416, 0], pixels)
    beside = page[16:316, 432:832]
    assert page.shape[1] == 16 + 400 + 16 + 400 + 16
    assert not np.array_equal(beside[:, :, 0], pixels)
    assert (page[340:380] < 100).any()  # the words below


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    check_heat_folder(tmp_path / "new")
    (tmp_path / "old").mkdir()
    check_heat_folder(tmp_path / "old")
    (tmp_path / "old" / "image.png").write_bytes(b"mine")
    for taken in (tmp_path / "old", tmp_path / "old" / "image.png"):
        with pytest.raises(OutputError, match="choose another"):
            check_heat_folder(taken)
