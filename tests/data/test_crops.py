from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.data.crops import AREA, ASPECT, centre_box, random_box


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**62))
def test_a_random_part_lies_within_the_image(width: int, height: int, seed: int) -> None:
    box = random_box((width, height), Random(seed))
    assert 0 <= box.left < box.right <= width
    assert 0 <= box.top < box.bottom <= height
    assert box == random_box((width, height), Random(seed))


@given(st.integers(300, 2000), st.integers(300, 2000), st.integers(0, 2**62))
def test_its_area_and_aspect_are_the_usual_ones(width: int, height: int, seed: int) -> None:
    box = random_box((width, height), Random(seed))
    w, h = box.right - box.left, box.bottom - box.top
    assert ASPECT[0] * 0.97 <= w / h <= ASPECT[1] * 1.03, "up to a pixel"
    if max(width / height, height / width) < 4 / 3:
        assert AREA[0] * 0.97 <= w * h / (width * height) <= 1


def test_all_places_and_sizes_come_up() -> None:
    draw = Random(0)
    boxes = [random_box((400, 300), draw) for _ in range(2000)]
    areas = [(box.right - box.left) * (box.bottom - box.top) / 120_000 for box in boxes]
    assert (min(areas) < 0.1, max(areas) > 0.95) == (True, True)
    assert sum(areas) / len(areas) == pytest.approx(0.44, abs=0.05), "large ones seldom fit"
    assert {box.left == 0 for box in boxes} == {box.bottom == 300 for box in boxes} == {True, False}


@pytest.mark.parametrize(("size", "box"), [((10, 1000), (0, 493, 10, 506)), ((1000, 10), (493, 0, 506, 10))])
def test_of_a_long_image_the_middle_is_taken(size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert random_box(size, Random(0)) == box


def test_the_centre_is_that_of_256_and_224() -> None:
    assert centre_box((256, 256)) == (16, 16, 240, 240)
    assert centre_box((512, 1024)) == (32, 288, 480, 736)
