"""One Spark for all tests that are marked `spark`, and one tiny job for all engines."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from photinus.core.clock import Epochs, Steps
from photinus.core.threads import choose_kernels
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.spark.session import spark_session
from photinus.models.logistic import LogisticConfig
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    diloco,
    full_gradient,
    iterative_reduce,
    streaming,
)
from photinus.training.plan import Phase, TrainingPlan

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # a busy machine is no reason to fail
choose_kernels()  # tests compute with the machine's threads

QUICK = "-XX:TieredStopAtLevel=1"
CLUSTERS = (
    "tests/clusters/",
    "tests/data/test_cifar_hdfs.py",
    "tests/estimators/test_words_on_hdfs.py",
    "tests/fault/test_yarn.py",
    "tests/transport/test_folder.py",
)


FILES_ARE_FOUND_BY = "spark", "processes", "fault", "browser", "slow", "numerics"
PYSPARK_IS_FORGIVEN = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",  # it leaves sockets to the garbage collector
    "ignore::FutureWarning",  # it uses what pandas and pyarrow are about to change
    "ignore::DeprecationWarning",
)


NOTEBOOK = """
import numpy as np
import photinus
import torch
from torch import nn

WIDTH = 8

def words(texts):
    return [[len(text), text.count("a")] for text in texts]

class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))

    def forward(self, x):
        return self.layers(x.float())

def smooth(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.01)

def halved(rows):
    return {"x": np.stack([row["x"] for row in rows]) / 2}

def thrice():
    return photinus.averaging(every=photinus.Steps(3))

def asks_spark(**settings):
    return Net() if session.version else None

def asks_a_helper(**settings):
    return helper.net()
"""
"""Cells of a notebook that define what is sent by value."""


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write tests/golden anew")


def pytest_collection_modifyitems(items):
    sources = {path: path.read_text() for path in {item.path for item in items}}
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(PYSPARK_IS_FORGIVEN)
        for name in FILES_ARE_FOUND_BY:
            if item.get_closest_marker(name) and f"mark.{name}" not in sources[item.path]:
                wrong = f"the Makefile finds this test only if its file has mark.{name}"
                raise pytest.UsageError(f"{wrong}; got {item.nodeid}; mark it in that file")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup():
    _forget_the_test()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call():
    _forget_the_test()


def _forget_the_test():
    """Takes a test's name from the environment, where pytest has it.

    The process that forks local workers is kept for runs with the same environment. With the name
    each test has another one, and a process that imports torch anew: 4 seconds of a processor.
    """
    os.environ["PYTEST_CURRENT_TEST"] = "one of them"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Closes what pyspark left open, before a test begins in which that is an error."""
    if item.get_closest_marker("spark") and (nextitem is None or nextitem.path != item.path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` one process runs a file's tests, and one all that start clusters."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            # clusters take fixed ports and much memory: there is one at a time
            return "clusters" if file.startswith(CLUSTERS) else file

    return Files(config, log)


class Hadoop:
    """Starts and ends it by the script that PHOTINUS_HADOOP names.

    Args:
        script: `start FOLDER N`, `kill FOLDER NAME`, `again FOLDER NAME`, `stop FOLDER`.
        folder: for data, logs and settings.
        nodes: how many NodeManagers.
    """

    DRIVER, MASTER = "deploy.yarn.ApplicationMaster", "deploy.yarn.ExecutorLauncher"
    EXECUTOR = "YarnCoarseGrainedExecutorBackend"
    NODE = "registered with capability"
    """What a ResourceManager notes of a NodeManager."""

    def __init__(self, script, folder, nodes):
        self.script, self.folder, self.nodes = script, Path(folder), nodes

    def call(self, verb, *words):
        log = self.folder.parent / "hadoop.log"
        command = ["sh", self.script, verb, str(self.folder), *words]
        with log.open("a") as said:  # its servers keep the pipe: an output that is read would hang
            subprocess.run(command, stdout=said, stderr=said, check=True, timeout=120)

    def start(self):
        self.call("start", str(self.nodes))
        # the first container of a node unpacks 1.5 GB before its driver can say hello, for which
        # YARN itself allows ten minutes
        self._set("yarn.am.liveness-monitor.expiry-interval-ms", 180_000)
        # without it a ResourceManager that is started again ends every application that it finds
        self._set("yarn.resourcemanager.recovery.enabled", "true")
        self._set("yarn.resourcemanager.fs.state-store.uri", f"file://{self.folder}/data/state")
        self.kill("resourcemanager")
        self.again("resourcemanager")

    def have_nodes_wait(self, seconds):
        """Has NodeManagers wait so long from a container's SIGTERM to its SIGKILL."""
        self._set("yarn.nodemanager.sleep-delay-before-sigkill.ms", seconds * 1000)
        self._start_again()

    def hand_out(self, resource, amount):
        """Has each node hand out so much of a resource, such as yarn.io/gpu."""
        self._set("yarn.resource-types", resource)
        self._set(f"yarn.nodemanager.resource-type.{resource}", amount)
        queues = self.folder / "conf" / "capacity-scheduler.xml"
        queues.write_text(
            queues.read_text().replace("DefaultResourceCalculator", "DominantResourceCalculator")
        )
        self._start_again("resourcemanager")

    def _start_again(self, *before):
        """Starts the nodes again, and others before them, with the settings as they are now."""
        servers = [*before, *(f"nodemanager{number}" for number in range(self.nodes))]
        registered = self.registered(self.NODE)
        for server in reversed(servers):
            self.kill(server)
        for server in servers:
            self.again(server)
        self.until(
            lambda: self.registered(self.NODE) >= registered + self.nodes, 120, "the nodes, again"
        )

    def end(self, application):
        """Has YARN end an application, as `yarn application -kill` does."""
        of = f"http://127.0.0.1:8088/ws/v1/cluster/apps/{application}/state?user.name=test"
        json = {"Content-Type": "application/json"}
        asked = Request(of, b'{"state": "KILLED"}', json, method="PUT")
        with urlopen(asked, timeout=60) as answer:
            answer.read()

    def _set(self, name, value):
        site = self.folder / "conf" / "yarn-site.xml"
        text = re.sub(rf"  <property><name>{re.escape(name)}<.*\n", "", site.read_text())
        own = f"  <property><name>{name}</name><value>{value}</value></property>\n"
        site.write_text(text.replace("</configuration>", f"{own}</configuration>"))

    def stop(self):
        try:
            self.call("stop")
        except subprocess.CalledProcessError:  # one of its processes ended just before its kill
            self.call("stop")

    def kill(self, name):
        self.call("kill", name)

    def again(self, name):
        self.call("again", name)

    def registered(self, what="ATTEMPT_REGISTERED"):
        """Returns how often a ResourceManager was told of a master, or of a node, that it knows."""
        return (self.folder / "logs" / "resourcemanager.log").read_text().count(what)

    @property
    def environment(self):
        """For commands that use it; nothing of this machine's Python is among it."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYSPARK", "SPARK"))}
        return kept | {"HADOOP_CONF_DIR": str(self.folder / "conf")}

    def programs(self, kind):
        """Returns the Java processes of a kind: process -> its container's folder."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                place = (process / "cwd").readlink()
            except OSError:
                continue
            is_kind = words[0].endswith(b"java") and kind.encode() in b" ".join(words)
            if is_kind and place.is_relative_to(self.folder):
                found[int(process.name)] = place
        return found

    def node_of(self, place):
        """Returns the NodeManager of a container's folder."""
        return place.relative_to(self.folder / "data").parts[0]

    @staticmethod
    def until(look, seconds, what):
        """Looks again and again until something is there; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
            time.sleep(0.1)  # containers and their files come untold: YARN sends no event

    def said(self, container):
        """Returns what a container wrote to its standard output."""
        found = self.folder.glob(f"logs/containers*/*/{container}/stdout")
        return "".join(path.read_text() for path in found)


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory):
    """Runs are signed with a key of these tests, not with that of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("PHOTINUS_TRUST_CODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def sigint():
    """A shell has what it starts in the background ignore Ctrl-C; its tests are about that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark():
    """A local Spark of 4 task slots in which a failed task is tried 4 times."""
    settings = {
        "spark.master": "local[4,4]",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "4",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = spark_session(4, name="photinus tests", extra=settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def hadoop_script():
    """What starts HDFS and YARN: `start FOLDER N`, `hdfs FOLDER`, `stop FOLDER` and others."""
    script = os.environ.get("PHOTINUS_HADOOP", "")
    if not script:
        pytest.skip("PHOTINUS_HADOOP names no script that starts HDFS and YARN")
    pytest.importorskip("hdfs_native", reason="photinus[hdfs] is not installed")
    return script


@pytest.fixture(scope="module")
def hdfs(hadoop_script, tmp_path_factory):
    """A real HDFS alone, for the tests of one file: its address and the folder of its settings."""
    home = tmp_path_factory.mktemp("hadoop") / "hdfs"
    command = ["sh", hadoop_script, "hdfs", str(home)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        yield done.stdout.split()[-1], home / "conf"
    finally:
        subprocess.run(["sh", hadoop_script, "stop", str(home)], check=True, timeout=120)


@pytest.fixture(scope="module")
def hadoop(hadoop_script, tmp_path_factory):
    """A HDFS and a YARN of two nodes, for the tests of one file."""
    cluster = Hadoop(hadoop_script, tmp_path_factory.mktemp("hadoop") / "cluster", nodes=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def python():
    """The nodes' Python: this one's, without what is installed in its environment."""
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    done = subprocess.run([bare, "-c", "import torch"], capture_output=True, env={})
    if done.returncode == 0:
        pytest.skip("this Python has torch outside of an environment: nothing would be shown")
    return bare


class Tiny:
    """Softmax regression over a few rows: every deterministic recipe in a phase of its own."""

    recipes = (
        averaging(every=Steps(4), codec="fp32"),
        iterative_reduce(every=Epochs(1)),
        diloco(every=Steps(7), codec="int8"),
        streaming(every=Steps(8), fragments=2),
        all_reduce(codec="fp32"),
        full_gradient(),
    )

    def __init__(self):
        chance = np.random.default_rng(0)
        self.labels = chance.integers(0, 3, 90)
        noise = chance.normal(size=(90, 6))
        self.features = (noise + 2 * np.tile(np.eye(3)[self.labels], 2)).astype("f4")
        self.data = ArrayData(self.features, self.labels, checks=RowChecks(classes=3))

    def plan(self, workers=2, recipes=recipes, epochs=3.0, **fields):
        phases = [
            Phase(
                config=LogisticConfig(
                    features=6,
                    classes=3,
                    name=f"{n}-{recipe.recipe}",
                    epochs=epochs,
                    batch_size=8 * workers,
                    dtype="float64",
                ),
                strategy=recipe,
            )
            for n, recipe in enumerate(recipes)
        ]
        return TrainingPlan(phases=tuple(phases), workers=workers, **fields)

    def assignment(self, plan=None, **fields):
        usual = {"plan": plan or self.plan(), "data": self.data, "run": os.urandom(16)}
        return RunSpec(**usual | fields)


@pytest.fixture(scope="session")
def tiny():
    """The same tiny job for all engines."""
    return Tiny()


@pytest.fixture
def nothing_left(spark):
    """Looks, after a test, for Spark jobs and threads of ours that are left; also when called."""

    def look():
        # Spark tells of a job's end by a queue of its own
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(10_000)
        assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
        names = [thread.name for thread in threading.enumerate()]
        ours = ("accept", "read", "photinus")
        assert [name for name in names if name.startswith(ours)] == []

    yield look
    look()


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory):
    """A folder as a pre-trained text model is published: config, weights, tokenizer."""
    pytest.importorskip("peft", reason="photinus[text] is not installed")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "plot", "and"]
    words += ["lovely", "grand", "funny", "dull", "weak", "tired"]
    folder = tmp_path_factory.mktemp("base")
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def opencl():
    """An OpenCL device of this machine."""
    from photinus.devices.opencl.platforms import devices, is_installed

    if not is_installed():
        pytest.skip("photinus[opencl] is not installed")
    found = devices()
    if not found:
        pytest.skip("no OpenCL driver is installed, as pocl-opencl-icd")
    return found[0]


@pytest.fixture(scope="session")
def notebook():
    """What is typed into a notebook."""
    return NOTEBOOK


@pytest.fixture(scope="module")
def cells(notebook):
    """What the cells of a notebook define, where a notebook's kernel has it: in `__main__`."""
    main = vars(sys.modules["__main__"])
    before = dict(main)
    exec(compile(notebook, "<cell 1>", "exec"), main)
    yield main
    main.clear()
    main.update(before)


@pytest.fixture(scope="session")
def texts():
    """Rows (text, label) of two classes that the notebook's module tells apart."""
    labels = np.random.default_rng(0).integers(0, 2, 200).tolist()
    return [("aa" if label else "bcd", label) for label in labels]


@pytest.fixture
def executed(tmp_path):
    """Runs a notebook in a kernel of Jupyter, and returns its cells with what they said."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")

    def run(make):
        made = make(nbformat.v4)
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(made, timeout=280, resources=place).execute()
        return str(made.cells)

    return run
