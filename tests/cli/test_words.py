"""`photinus words` and `photinus train word2vec`."""

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.embeddings.vectors import WordVectors


def test_a_folder_that_cannot_be_made_is_told_of_before_training(call, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "photinus.estimators.word2vec.Word2Vec.fit", lambda *_: pytest.fail("it trains")
    )
    (tmp_path / "file").touch()
    code, _, err = call("train", "word2vec", "texts", "--folder", str(tmp_path / "file" / "x"))
    assert code != 0
    assert "Not a directory" in err


def test_a_training_that_is_refused_leaves_no_folder_of_its_own(call, tmp_path, monkeypatch):
    def refuse(*_):
        raise UsageError("no text")

    monkeypatch.setattr("photinus.estimators.word2vec.Word2Vec.fit", refuse)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "words.bin").touch()
    for name in ("new", "old"):
        code, _, err = call("train", "word2vec", "texts", "--folder", str(tmp_path / name))
        assert (code, err) == (2, "photinus: no text\n")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.fixture
def vectors(tmp_path):
    """King − man + woman is queen."""
    corners = {"man": (1, 0, 0.1), "woman": (0, 1, 0.1), "king": (1, 0, 2), "queen": (0, 1, 2)}
    word_vectors = WordVectors(
        [*corners, "stone"], np.array([*corners.values(), (-1, -1, 0)], np.float32)
    )
    word_vectors.save(tmp_path / "words.bin")
    return word_vectors


def test_words_are_added_and_taken_away(call, vectors, tmp_path):
    code, out, err = call("words", str(tmp_path), "king", "-", "man", "+", "woman", "--count", "1")
    assert (code, err) == (0, "")
    assert out.split()[1] == "queen"


def test_words_are_drawn_as_a_map(call, vectors, tmp_path):
    picture = tmp_path / "map.svg"
    words = ("words", str(tmp_path), "king", "queen", "man", "woman", "--map")
    code, out, _ = call(*words, str(picture))
    assert (code, out.split()) == (0, ["map", str(picture)])
    svg = picture.read_text()
    assert all(f">{word}</text>" in svg for word in ("king", "queen", "man", "woman"))
    code, _, err = call(*words, str(tmp_path / "none" / "map.svg"))
    assert (code, "map.svg cannot be written; got No such file" in err) == (2, True)


def test_questions_and_pairs_say_what_is_covered(call, vectors, tmp_path):
    (tmp_path / "q.txt").write_text(": royal\nman king woman queen\nman king boy prince\n")
    (tmp_path / "p.tsv").write_text("man\tking\t5\nman\twoman\t8\nman\tstone\t1\nking\tboy\t2\n")
    options = ["--analogies", str(tmp_path / "q.txt"), "--pairs", str(tmp_path / "p.tsv")]
    code, out, _ = call("words", str(tmp_path / "words.bin"), *options)
    assert code == 0
    assert "royal: 100.0 % right, 1 of 1 covered of 2" in out
    assert "cut-off: the 5 most frequent words" in out
    assert "on 3 covered of 4 pairs; cut-off: the 5 most frequent words" in out
    code, out, _ = call("words", str(tmp_path / "words.bin"), *options, "--cutoff", "4")
    assert "on 2 covered of 4 pairs; cut-off: the 4 most frequent words" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("words", "words.bin"), "nothing is asked"),
        (("words", "words.bin", "prince"), "the word has no vector; got 'prince'"),
        (("words", "words.bin", "king", "man", "queen", "--map", "m.png"), "got m.png; name a fi"),
        (("words", "words.bin", "king", "-"), "there is no word after -; got king -; ask as"),
        (
            ("words", "words.bin", "king", "+", "-", "man"),
            "there is no word after +; got king + - ",
        ),
        (
            ("words", "words.bin", "king", "--cutoff", "9"),
            "--cutoff is for --analogies and --pairs",
        ),
        (("words", "none.bin", "king"), "there are no vectors; got none.bin"),
        (("train", "word2vec"), "photinus train word2vec FOLDER"),
        (("train", "mnist-dbn", "texts"), "only word2vec takes a folder"),
        (("train", "word2vec", "texts", "--threads", "2"), "word vectors have no --threads"),
        (("train", "word2vec", "texts", "--set", "vectorSize"), "a setting must be KEY=VALUE"),
        (("train", "word2vec", "texts", "--set", "vectorsize=9"), "did you mean 'vectorSize'?"),
    ],
)
def test_what_is_wrong_is_one_sentence(call, vectors, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("more", "file"),
    [([], "words.bin"), (["--set", "subwords=[3,6]"], "words.safetensors")],
    ids=["words", "n-grams"],
)
def test_text_files_are_trained_on_and_asked(call, spark, tmp_path, more, file):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(["a b c d", "v w x y"][n % 2].split(), 7)) for n in range(400)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    flags = ["--workers", "1", "--set", "vectorSize=20", "--set", "epochs=8", "--set", "sample=0.0"]
    folder = str(tmp_path / "made")
    code, out, err = call(
        "train", "word2vec", str(tmp_path / "text.txt"), "--folder", folder, *flags, *more
    )
    assert (code, err) == (0, "")
    assert "8 words, 20 numbers each" in out
    assert f"{folder}/{file}" in out
    code, out, _ = call("words", folder, "a", "--count", "3")
    assert code == 0
    assert {line.split()[1] for line in out.splitlines()} == {"b", "c", "d"}
