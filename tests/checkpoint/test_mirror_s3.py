"""A run folder's copy in an object store: a real S3 server, reached through fsspec."""

import threading
import time

import numpy as np
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from photinus.checkpoint.background import Saver
from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.mirror import Mirror
from photinus.checkpoint.store import Store
from photinus.core.errors import FencedError

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def one_at_a_time(app):
    """Returns the server's application without requests at once.

    S3 refuses a second writer of a name atomically. moto looks for the name, and writes it later.
    """
    lock = threading.Lock()

    def locked(environ, start_response):
        with lock:
            return app(environ, start_response)

    return locked


@pytest.fixture(scope="module")
def server():
    """An S3 server in a thread, with settings that s3fs finds."""
    with pytest.MonkeyPatch.context() as patch:
        thread = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        thread.start()
        thread._server.app = one_at_a_time(thread._server.app)
        host, port = thread.get_host_and_port()
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        s3fs.S3FileSystem().mkdir("runs")
        yield
        s3fs.S3FileSystem.clear_instance_cache()
        thread.stop()


@pytest.fixture
def coordinator(server, tmp_path):
    """Makes a machine with a run folder, its store and its mirror, which has claimed a term."""

    def make(name, fetch=False):
        mirror = Mirror(f"s3://runs/{tmp_path.name}", tmp_path / name)
        if fetch:
            mirror.fetch()
        folder = RunFolder(tmp_path / name, resume=fetch)
        mirror.claim(folder.claim_term())
        return folder, Store(folder.checkpoints), mirror

    return make


def save(store, number, value=1.0):
    store.save(f"{number:05d}", {"phase": number}, {"model": {"w": np.full(300, value)}})


def test_another_machine_continues_from_the_newest_checkpoint(coordinator):
    folder, store, mirror = coordinator("first")
    folder.events.write_text("a line\n")
    for number in range(6):
        save(store, number, number)
        if number == 1:
            store.pin("00001")
        mirror.push()
    second_folder, second_store, second_mirror = coordinator("second", fetch=True)
    assert second_mirror.term == 2
    assert second_folder.events.read_text() == "a line\n"
    assert second_store.names() == ("00001", "00003", "00004", "00005"), (
        "the best, and the last three"
    )
    assert second_store.latest().files["model"]["w"].tolist() == [5.0] * 300
    with pytest.raises(FencedError, match="term is over"):
        mirror.push()


def test_of_many_that_claim_a_term_at_once_one_gets_it(server, tmp_path):
    """The store itself decides: a second one that would write the same name is refused."""
    outcomes, gate = [], threading.Barrier(6)

    def claim(number):
        folder = RunFolder(tmp_path / f"{number}")
        mirror, term = Mirror(f"s3://runs/{tmp_path.name}", folder.path), folder.claim_term()
        gate.wait(20)
        try:
            mirror.claim(term)
        except FencedError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1, outcomes
    assert (
        sum("another coordinator has taken this run" in str(outcome) for outcome in outcomes) == 5
    )


def test_the_last_finite_one_stays(coordinator):
    _, store, mirror = coordinator("first")
    save(store, 1)
    for number in range(2, 7):
        save(store, number, float("nan"))
        mirror.push()
    _, second_store, _ = coordinator("second", fetch=True)
    assert second_store.names() == ("00001", "00004", "00005", "00006")
    assert second_store.latest().name == "00001"


def test_a_flipped_bit_is_refused_by_name_and_the_one_before_is_used(coordinator):
    _, store, mirror = coordinator("first")
    for number in (1, 2):
        save(store, number)
    mirror.push()
    path = f"{mirror._path}/checkpoints/00002/model.safetensors"
    data = bytearray(mirror._fs.cat_file(path))
    data[-9] ^= 4
    mirror._fs.pipe_file(path, bytes(data))
    _, second_store, _ = coordinator("second", fetch=True)
    assert second_store.latest().name == "00001"
    (refusal,) = second_store.refusals
    assert "checkpoint 00002 is refused: model.safetensors: sha256 mismatch" in str(refusal)


def test_one_that_was_half_sent_is_refused_and_the_one_before_is_used(coordinator):
    """An object store renames no folder: a copy that was broken off lacks files."""
    _, store, mirror = coordinator("first")
    for number in (1, 2):
        save(store, number)
    mirror.push()
    mirror._fs.rm(f"{mirror._path}/checkpoints/00002/model.safetensors")
    _, second_store, _ = coordinator("second", fetch=True)
    assert second_store.latest().name == "00001"
    assert "model.safetensors is missing" in str(second_store.refusals[0])


def test_training_waits_for_no_upload(coordinator, monkeypatch):
    """What the training does at a checkpoint is a copy in memory; the sending is beside it."""
    _, store, mirror = coordinator("first")
    is_sent, put_file = threading.Event(), mirror._fs.put_file

    def slowly(*args, **fields):
        threading.Event().wait(0.2)
        return put_file(*args, **fields)

    monkeypatch.setattr(mirror._fs, "put_file", slowly)

    def report(_):
        mirror.push()
        is_sent.set()

    saver = Saver(store, report)
    vector = np.ones(1 << 20, np.float32)
    began = time.monotonic()
    saver.save("00001", {"phase": 1}, {"model": {"w": vector}})
    took = time.monotonic() - began
    assert not is_sent.is_set()
    assert is_sent.wait(20)
    assert time.monotonic() - began > 0.4 > took
    saver.close()
