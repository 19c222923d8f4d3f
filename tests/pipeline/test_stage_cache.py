"""Stages with a memory."""

from pathlib import Path

import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.stage_cache import Stage, run_stages, up_to_date


class Kitchen:
    """Two stages: flour → dough → bread. Notes what was done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.water = folder, list[str](), 1
        self.flour, self.dough, self.bread = (folder / name for name in ("flour", "dough", "bread"))
        self.flour.write_text("white", encoding="utf-8")
        self.fail = ""

    def step(self, name: str, source: Path, target: Path) -> None:
        self.done.append(name)
        if self.fail == name:
            raise RuntimeError(name)
        target.write_text(f"{name} of {source.read_text(encoding='utf-8')}", encoding="utf-8")

    @property
    def stages(self) -> list[Stage]:
        return [
            Stage(
                "knead",
                lambda: {"water": self.water},
                (self.flour,),
                (self.dough,),
                lambda: self.step("knead", self.flour, self.dough),
            ),
            Stage("bake", dict, (self.dough,), (self.bread,), lambda: self.step("bake", self.dough, self.bread)),
        ]

    def run(self, forced: str = "") -> list[str]:
        self.done.clear()
        told: list[str] = []
        run_stages(self.stages, self.folder / "memory.json", forced, told.append)
        assert len(told) == 2
        return list(self.done)


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


def test_what_is_up_to_date_is_left_alone(kitchen: Kitchen) -> None:
    assert kitchen.run() == ["knead", "bake"]
    assert kitchen.run() == []


def test_changed_facts_inputs_and_outputs(kitchen: Kitchen) -> None:
    kitchen.run()
    kitchen.water = 2
    assert kitchen.run() == ["knead"]  # and the dough came out as it was
    kitchen.flour.write_text("dark", encoding="utf-8")
    assert kitchen.run() == ["knead", "bake"]
    kitchen.bread.write_text("bitten", encoding="utf-8")
    assert kitchen.run() == ["bake"]
    kitchen.dough.unlink()
    assert kitchen.run() == ["knead"]


def test_force(kitchen: Kitchen) -> None:
    kitchen.run()
    assert kitchen.run("bake") == ["bake"]
    assert kitchen.run("knead") == ["knead", "bake"]
    with pytest.raises(InputError, match="did you mean 'bake'"):
        kitchen.run("bakes")


def test_what_failed_is_done_again(kitchen: Kitchen) -> None:
    kitchen.fail = "bake"
    with pytest.raises(RuntimeError):
        kitchen.run()
    kitchen.fail = ""
    assert kitchen.run() == ["bake"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "stages": {}}', '{"format": 1}'])
def test_a_lost_memory_means_to_do_it_anew(kitchen: Kitchen, content: str) -> None:
    kitchen.run()
    (kitchen.folder / "memory.json").write_text(content, encoding="utf-8")
    assert not up_to_date(kitchen.stages[0], kitchen.folder / "memory.json")
    assert kitchen.run() == ["knead", "bake"]
