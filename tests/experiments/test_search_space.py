"""The space of a search, as the command line writes it."""

import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.search_space import Axis, parse_axis, parse_space


@pytest.mark.parametrize(
    ("option", "axis"),
    [
        ("peak=0:1", Axis("learning_rate.peak", (), 0.0, 1.0)),  # a float, however its ends are written
        ("train.batch=8:64", Axis("train.batch", (), 8, 64)),
        ("train.batch=8:64:8", Axis("train.batch", (), 8, 64, 8)),
        ("train.batch=log:8:64", Axis("train.batch", (), 8, 64, None, True)),
        ("sparsity.end=10:99", Axis("sparsity.end", (), 10, 99)),  # int | None
        ("method=rigl,set,rigl", Axis("sparsity.method", ("rigl", "set"))),
        ("model.options.hidden=[8, 4],[16]", Axis("model.options.hidden", ("[8, 4]", "[16]"))),
        ("optimizer.options.x=0.1:1", Axis("optimizer.options.x", (), 0.1, 1.0)),
    ],
)
def test_forms(option: str, axis: Axis) -> None:
    found = parse_axis(option)
    assert found == axis
    assert found.whole == axis.whole


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("peak", "is not of the form KEY=VALUES"),
        ("peak=", "is not of the form KEY=VALUES"),
        ("=1:2", "is not of the form KEY=VALUES"),
        ("peak=0.1", "is not of the form KEY=VALUES"),
        ("peak=a:b", "is not of the form KEY=VALUES"),
        ("peak=nan:1", "is not of the form KEY=VALUES"),
        ("train.batch=0.5:4", "is not of the form KEY=VALUES"),
        ("peak=log:1:2:0.1", "is not of the form KEY=VALUES"),
        ("peak=1:2:3:4", "is not of the form KEY=VALUES"),
        ("peak=2:1", "is empty, expected LOW < HIGH"),
        ("peak=1:2:-1", "is empty, expected LOW < HIGH and STEP > 0"),
        ("peak=log:0:1", "is empty, expected 0 < LOW < HIGH"),
        ("method=rigl,rigl", "has one value, expected two or more: use --set"),
        ("data.holdout=1:9", "changes the data, so that trials cannot be compared: use --set data.holdout="),
        ("seed=0:9", "use --seeds for the number of seeds"),
        ("peek=1:2", "no key 'peek' in a recipe: did you mean 'peak'?"),
    ],
)
def test_what_is_refused(option: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_axis(option)
    assert message in str(caught.value)


def test_each_key_once() -> None:
    with pytest.raises(InputError, match=r"the space has learning_rate\.peak twice"):
        parse_space(("peak=1:2", "learning_rate.peak=1:3"))
    with pytest.raises(InputError, match="a search without a space"):
        parse_space(())
