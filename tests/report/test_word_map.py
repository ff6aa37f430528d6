import re
from xml.etree import ElementTree

import numpy as np

from photinus.report.word_map import word_map


def text_positions(svg):
    matches = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">([^<]*)<', svg)
    return {word: (float(x), float(y)) for x, y, word in matches}


def test_points_keep_their_distances_and_all_lies_in_the_picture():
    places = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0], [0.0, 1.0]])
    svg = word_map(["a", "b", "c", "a long name"], places)
    ElementTree.fromstring(svg)
    points = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg), float)
    sides = np.ptp(points, axis=0)
    np.testing.assert_allclose(sides[0] / sides[1], 4.0, rtol=0.01)
    assert points.min() > 0
    assert points.max() < 480


def test_labels_of_near_points_do_not_cover_each_other():
    places = np.array([[0.0, 0.0], [0.0, 0.001], [0.001, 0.0], [1.0, 1.0]])
    positions = text_positions(word_map(["sea", "shore", "coast", "sky"], places))
    lines = sorted(positions[word][1] for word in ("sea", "shore", "coast"))
    assert min(np.diff(lines)) >= 12


def test_words_are_escaped():
    svg = word_map(["<b>", "&", "x"], np.eye(3, 2))
    assert "&lt;b&gt;" in svg
    ElementTree.fromstring(svg)
