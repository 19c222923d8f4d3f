"""What is written down about a run, so that it can be made again."""

import sys

import pytest

from rigl_compress.core.provenance import command_line


def test_a_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/rigl-compress", "compare", "--only", "L1 filter pruning"])
    assert command_line() == "rigl-compress compare --only 'L1 filter pruning'"
