"""Two real processes: they choose alike, or are told that they do not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "two_processes.py"


def answers_of(store: Path, *words: str) -> list[dict[str, str]]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    commands = [[sys.executable, str(SCRIPT), str(rank), str(store), *words] for rank in (0, 1)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone) for command in commands]
    answers = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return answers_of(tmp_path_factory.mktemp("store") / "store")


def test_different_seeds_are_an_error_in_every_process(found: list[dict[str, str]]) -> None:
    assert {each["seeds"] for each in found} == {
        "the processes have seeds [0, 1]: pass the same seed to every Sparsifier"
    }


def test_different_topologies_are_an_error(found: list[dict[str, str]]) -> None:
    assert all("start from different topologies" in each["topologies"] for each in found)
    assert all(not each["alike"] for each in found)


def test_different_networks_are_trained_apart(found: list[dict[str, str]]) -> None:
    assert all(not each["apart"] for each in found)


def test_replicas_of_a_loop_that_never_calls_step(found: list[dict[str, str]]) -> None:
    assert found[0]["automatic"] == found[1]["automatic"] == found[0]["rigl"]


@pytest.mark.parametrize("method", ["rigl", "set", "dnw"])
def test_replicas_end_with_the_same_connections(found: list[dict[str, str]], method: str) -> None:
    assert found[0][method] == found[1][method]
    assert len(found[0][method]) > 100


@pytest.mark.parametrize("setting", ["plain", "accumulated", "buckets", "static graph", "gates"])
def test_settings_of_distributed_data_parallel(found: list[dict[str, str]], setting: str) -> None:
    assert found[0][setting] == found[1][setting]
    if setting not in ("accumulated", "gates"):
        assert found[0][setting] == found[0]["plain"]


@pytest.mark.parametrize("method", ["rigl", "snfs", "snip", "dnw"])
def test_gradients_that_overflow_in_one_process_are_left_out_in_both(found: list[dict[str, str]], method: str) -> None:
    assert found[0][f"overflow {method}"] == found[1][f"overflow {method}"]
    assert found[0][f"overflow {method}"].endswith("True, True, True, 1.0]")  # finite, kept, updated, halved


@pytest.mark.slow
def test_compiled_replicas(tmp_path: Path) -> None:
    found = answers_of(tmp_path / "store", "compiled")
    assert found[0]["compiled"] == found[1]["compiled"] == found[0]["plain"]


def test_connections_that_differ_stop_every_process(found: list[dict[str, str]]) -> None:
    assert found[0]["not averaged"] == found[1]["not averaged"]
    assert re.match(
        r"rank 1 chose other connections of '[02].weight' than rank 0 at step \d+: average", found[0]["not averaged"]
    )


def test_parameters_spread_over_processes_are_refused(found: list[dict[str, str]]) -> None:
    expected = "0.weight is a DTensor, spread over processes (FSDP2 or tensor parallelism)"
    assert all(each["sharded"].startswith(expected) for each in found)


def test_synchronised_batch_norm_is_that_of_the_whole_batch(found: list[dict[str, str]]) -> None:
    assert [each["batch norm"] for each in found] == ["[]", "[]"]
