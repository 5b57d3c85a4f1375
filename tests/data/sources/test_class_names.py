import unicodedata

import numpy as np
import pytest

from onsight.data.sources.find import refuse_similar_classes
from onsight.errors import DataError


def refuse(*classes):
    refuse_similar_classes(classes, np.array([0, 0, 1], np.int32))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Cat", "cat"),
        ("sea lion", "sea  lion"),
        ("sea lion", "sea_lion"),
        ("Strasse", "straße"),
        ("café", unicodedata.normalize("NFD", "Café")),
        ("cat", "ｃａｔ"),
        ("cat", "cat\u200b"),
        (" ", "  "),
    ],
)
def test_names_that_look_the_same_are_refused(name, other):
    with pytest.raises(DataError) as raised:
        refuse(name, other)
    assert repr(name) in str(raised.value)
    assert repr(other) in str(raised.value)
    assert "n = 2" in str(raised.value)


def test_other_names_and_letters_are_not():
    refuse("cat", "cats", "c", "C", "c++", "dog-1", "dog1", " ", "_")
