"""Looking into a run: counts per pixel, and their pictures."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from tiny import Trainer

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.run_inspection import ascii_map, inspection, layer_rows, pixel_map, side_by_side
from rigl_compress.pipeline.run_plots import connections_figure, connections_picture, own_style
from rigl_compress.pipeline.workspace import Run


def captured(spec: ModelSpec, masks: dict[str, torch.Tensor]) -> SparseModel:
    model, topology = spec.build(), Topology(masks)
    topology.apply_to(model)
    return SparseModel.capture(spec, model, topology, 0, {})


def test_connections_are_counted_at_their_pixel() -> None:
    mask = torch.zeros(3, 784, dtype=torch.bool)
    mask[:, 5] = True  # row 0, column 5: all three units
    mask[1, 28 * 27 + 2] = True
    model = captured(ModelSpec("mlp", {"hidden": [3]}), {"fc1.weight": mask})
    counts = pixel_map(model, model.topology)
    assert counts is not None
    assert counts.shape == (28, 28)
    assert counts.nonzero().tolist() == [[0, 5], [27, 2]]
    assert (counts[0, 5], counts[27, 2]) == (3, 1)


def test_selected_inputs_are_put_back_in_their_place() -> None:
    removed = tuple(pixel for pixel in range(784) if pixel not in (30, 783))
    plan = PrunePlan((LayerChange("fc1", 784, 2, removed_inputs=removed, selects=True),))
    spec = ModelSpec("mlp", {"hidden": [2]}).pruned(plan)
    model = captured(spec, {"fc1.weight": torch.tensor([[True, True], [True, False]])})
    counts = pixel_map(model, model.topology)
    assert counts is not None
    assert counts.nonzero().tolist() == [[1, 2], [27, 27]]
    assert (counts[1, 2], counts[27, 27]) == (2, 1)


def test_no_map_where_the_first_layer_does_not_read_pixels() -> None:
    spec = ModelSpec("mlp", {"hidden": [2], "inputs": 100})
    model = captured(spec, {"fc1.weight": torch.ones(2, 100, dtype=torch.bool)})
    assert pixel_map(model, model.topology) is None


def test_drawn_in_characters() -> None:
    counts = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [10, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 10]])
    assert ascii_map(counts, largest=5) == [" ·░▒▓█", "█    █"]


def test_shades_are_relative_to_the_largest_of_both_maps() -> None:
    begin, end = torch.full((2, 5), 1), torch.full((2, 5), 5)
    assert side_by_side(("start", "end"), (begin, end)) == ["start    end", "·····    █████"]


def test_empty_maps_are_blank() -> None:
    assert ascii_map(torch.zeros(4, 3), largest=0) == ["   ", "   "]


def test_the_table_of_layers() -> None:
    begin = Topology({"fc1.weight": torch.tensor([[True, False], [False, False]])})
    end = Topology({"fc1.weight": torch.tensor([[False, True], [True, False]])})
    assert layer_rows(begin, end) == [("fc1.weight", "2×2", "2", "50.00%", "2")]
    assert layer_rows(end, end)[0][-1] == "0"


def test_an_inspection_is_plain_data_of_a_run(trainer: Trainer) -> None:
    run = trainer("train.epochs=2")
    found = inspection(run)
    assert found["result"] == run.result()
    assert found["training"] == list(run.metrics())
    assert [row["epoch"] for row in found["training"]] == [1, 2]
    assert [(layer["name"], layer["active"]) for layer in found["layers"]] == [
        (layer.name, layer.active) for layer in run.topology("end").layers
    ]
    for moment in ("start", "end"):
        counted = sum(sum(row) for row in found["connections_per_pixel"][moment])
        assert counted == run.topology(moment).layers[0].active


def is_picture(path: Path) -> bool:
    content = path.read_bytes()
    return content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82") and len(content) > 10_000


@pytest.mark.parametrize("method", ["rigl", "dense"])  # dense: no error at all in the last epochs, which no log shows
def test_a_picture(trainer: Trainer, tmp_path: Path, method: str) -> None:
    run = trainer(f"sparsity.method={method}")
    connections_picture(run, tmp_path / "deep" / "picture.png")
    assert is_picture(tmp_path / "deep" / "picture.png")


def shown_texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text of a drawn figure with the room it takes; ticks beyond the ends of an axis are not drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    every = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.findobj(Text)]
    drawn = [
        text
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for text in (axis.label, *(tick.label1 for tick in axis._update_ticks()))
    ]
    texts = [text for text in figure.findobj(Text) if text.get_text() and (text in drawn or text not in every)]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


@pytest.mark.parametrize("spread", [1.01, 1.5, 9.0, 5_000.0])
def test_labels_of_the_picture_do_not_collide(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    """Whatever the curve spans."""
    run = trainer("train.epochs=1")
    course = [{"epoch": epoch, "error": 0.7 * spread ** (1 - epoch / 200)} for epoch in range(1, 201)]
    monkeypatch.setattr(Run, "metrics", lambda _: iter(course))
    texts = [each for each in shown_texts(connections_figure(run)) if each[1].width > 1]
    assert len(texts) > 12
    for (one, place), (other, elsewhere) in combinations(texts, 2):
        assert not place.overlaps(elsewhere), f"{one!r} stands on {other!r}"


def test_a_single_epoch_is_seen(trainer: Trainer) -> None:
    """A line of one point has no length, and an axis around it no width: it has a marker, and its epoch a number."""
    figure = connections_figure(trainer("train.epochs=1"))
    figure.canvas.draw()
    *_, curve, _ = figure.axes
    (line,) = curve.lines
    assert (list(line.get_xdata()), line.get_marker()) == ([1], "o")
    low, high = curve.get_xlim()
    assert high - low >= 1
    assert [tick for tick in curve.get_xticks() if low <= tick <= high] == [1]


def test_many_epochs_are_a_plain_line(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer("train.epochs=1")
    monkeypatch.setattr(Run, "metrics", lambda _: iter([{"epoch": epoch, "error": 9.0} for epoch in range(1, 200)]))
    assert connections_figure(run).axes[2].lines[0].get_marker() == ""


def test_a_foreign_topology_is_not_drawn(trainer: Trainer, tmp_path: Path) -> None:
    """Of the same shapes, but not the masks of the model beside it."""
    run, other = trainer("train.epochs=1"), trainer("train.epochs=1", "seed=7", run="other")
    run.topology_file("end").write_bytes(other.topology_file("end").read_bytes())
    for look in (inspection, lambda run: connections_picture(run, tmp_path / "picture.png")):
        with pytest.raises(InputError, match=r"topology-end.safetensors has other connections than model.safetensors"):
            look(run)
    assert not (tmp_path / "picture.png").exists()


def test_connections_and_epochs_are_counted_in_whole_numbers(trainer: Trainer) -> None:
    figure = connections_figure(trainer("train.epochs=2", "sparsity.sparsity=0.97"))
    figure.canvas.draw()
    *_, curve, colours = figure.axes
    for ticks in (colours.get_yticks(), curve.get_xticks()):
        assert len(ticks) >= 2
        assert all(tick == round(tick) for tick in ticks)


def test_no_picture_without_pixels(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer("train.epochs=1")
    monkeypatch.setattr("rigl_compress.pipeline.run_plots.pixel_map", lambda model, topology: None)
    with pytest.raises(InputError, match="there is no map to draw"):
        connections_picture(run, tmp_path / "picture.png")
    assert not (tmp_path / "picture.png").exists()


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    with own_style():
        figure = Figure()
        figure.suptitle(r"$\frac$ <script> [/red]")
        figure.savefig(tmp_path / "a.png")
