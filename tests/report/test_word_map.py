import re
from xml.etree import ElementTree

import numpy as np

from photinus.report.word_map import word_map


def texts(drawn):
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">([^<]*)<', drawn)
    return {word: (float(x), float(y)) for x, y, word in found}


def test_points_keep_their_distances_and_all_lies_in_the_picture():
    places = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0], [0.0, 1.0]])
    drawn = word_map(["a", "b", "c", "a long name"], places)
    ElementTree.fromstring(drawn)
    points = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn), float)
    sides = np.ptp(points, axis=0)
    np.testing.assert_allclose(sides[0] / sides[1], 4.0, rtol=0.01)
    assert points.min() > 0
    assert points.max() < 480


def test_labels_of_near_points_do_not_cover_each_other():
    places = np.array([[0.0, 0.0], [0.0, 0.001], [0.001, 0.0], [1.0, 1.0]])
    at = texts(word_map(["sea", "shore", "coast", "sky"], places))
    lines = sorted(at[word][1] for word in ("sea", "shore", "coast"))
    assert min(np.diff(lines)) >= 12


def test_words_are_escaped():
    drawn = word_map(["<b>", "&", "x"], np.eye(3, 2))
    assert "&lt;b&gt;" in drawn
    ElementTree.fromstring(drawn)
