"""Every FLOPs figure that the paper prints for ResNet-50 and MobileNet: given by its convention, or explained."""

from collections import Counter

import pytest

from rigl_compress.experiments.published_flops.printed_and_counted import (
    NOTES,
    TABLES,
    Figure,
    all_figures,
    as_printed,
    comparison_rows,
)

FIGURES = all_figures()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f"{f.table[:8]}-{f.method}-{f.sparsity}-{f.column}")
def test_a_figure_follows_or_is_explained(figure: Figure) -> None:
    if figure.note:
        assert not figure.agrees, "what follows needs no note"
        assert figure.elsewhere is not None
        assert as_printed(figure.elsewhere, figure.printed) == figure.printed
    else:
        assert figure.agrees, figure.computed


def find(table: str, method: str, sparsity: float, column: str) -> Figure:
    (found,) = (
        f for f in FIGURES if (f.table[:8], f.method, f.sparsity, f.column) == (table, method, sparsity, column)
    )
    return found


@pytest.mark.parametrize(
    ("table", "method", "sparsity", "column", "computed"),
    [
        ("Figure 2", "RigL", 0.8, "train", 0.2279),
        ("Figure 2", "RigL 5×", 0.8, "train", 1.1396),
        ("Figure 2", "RigL (ERK)", 0.8, "train", 0.4172),
        ("Figure 2", "RigL 5× (ERK)", 0.8, "train", 2.0861),
        ("Figure 2", "RigL (ERK)", 0.9, "train", 0.2456),
        ("Figure 2", "RigL 5× (ERK)", 0.9, "train", 1.2282),
        ("Figure 2", "RigL 5×", 0.9, "train", 0.6570),  # the authors' README: 0.66x
        ("Figure 2", "SNFS (ERK)", 0.8, "train", 0.6102),
        ("Figure 2", "SNFS (ERK)", 0.9, "train", 0.4954),
        ("Figure 2", "Pruning", 0.8, "train", 0.5603),
        ("Figure 2", "Pruning", 0.9, "train", 0.5053),
        ("Figure 2", "DSR", 0.8, "train", 0.4049),
        ("Figure 2", "DSR", 0.9, "test", 0.2978),
        ("Appendix", "RigL", 0.95, "train", 0.0831),
        ("Appendix", "RigL", 0.965, "train", 0.0687),
        ("Appendix", "RigL (ERK)", 0.95, "train", 0.1259),
        ("Appendix", "RigL (ERK)", 0.965, "train", 0.0895),
        ("Appendix", "Lottery, RigL", 0.8, "train", 0.4558),
        ("Figure 3", "Small-Dense 5×", 0.75, "test", 0.2335),
        ("Figure 3", "Small-Dense 5×", 0.9, "test", 0.0910),
    ],
)
def test_known_shares(table: str, method: str, sparsity: float, column: str, computed: float) -> None:
    assert round(find(table, method, sparsity, column).computed, 4) == computed


def test_every_row_of_every_table_is_there() -> None:
    """Methods × columns with a figure: 15, 11, 4 and 7 rows; the paper has n/a for SNFS* and DNW*."""
    assert Counter(figure.table for figure in FIGURES) == {
        TABLES[0].title: 2 + 14 * 4,
        TABLES[1].title: 11 * 4,
        TABLES[2].title: 4,
        TABLES[3].title: 1 + 4 * 2 + 2,
    }
    assert {figure.note for figure in FIGURES} == {"", *NOTES}


def test_the_rows_show_what_is_printed_beside_what_is_computed() -> None:
    rows = comparison_rows(TABLES[3], FIGURES)
    assert rows[0] == ("Dense", "0", "", "", "1.1e9  ", "1.142e+09")
    assert ("RigL 5×", "0.9", "", "", "0.12x f", "0.1477") in rows


def test_a_figure_says_in_json_where_it_comes_from() -> None:
    content = find("Figure 2", "Static", 0.9, "test").to_json()
    assert (content["printed"], content["agrees"]) == ("0.10x", False)
    assert "first layer" in content["note"]
    assert round(content["elsewhere"], 4) == 0.1012
