"""Neighbours, analogies and similarity are gensim's; files are word2vec's."""

from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors
from gensim.test.utils import datapath
from sklearn.decomposition import PCA

from photinus.checkpoint.mapped import write_arrays
from photinus.core.errors import DataError, UsageError
from photinus.embeddings.vectors import WordVectors

QUESTIONS = datapath("questions-words.txt")


@pytest.fixture(scope="module")
def vectors():
    """Random vectors of the words of the questions and of the pairs, some words missing."""
    lines = Path(QUESTIONS).read_text().splitlines()
    question_words = [w.lower() for line in lines if line[0] != ":" for w in line.split()]
    words = [
        *sorted(set(question_words))[::2],
        "tiger",
        "cat",
        "book",
        "paper",
        "car",
        "train",
        "Tiger",
    ]
    rng = np.random.default_rng(0)
    # few directions, so that chance alone answers some questions
    return WordVectors(
        list(dict.fromkeys(words)),
        rng.standard_normal((len(set(words)), 4)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def gensim_vectors(vectors):
    keyed_vectors = KeyedVectors(vectors.vectors.shape[1])
    keyed_vectors.add_vectors(list(vectors.words), vectors.vectors)
    return keyed_vectors


def test_neighbours_are_those_of_gensim(vectors, gensim_vectors):
    neighbours = vectors.most_similar(["cat", "book"], ["car"], count=20)
    gensim_neighbours = gensim_vectors.most_similar(["cat", "book"], ["car"], topn=20)
    assert [word for word, _ in neighbours] == [word for word, _ in gensim_neighbours]
    np.testing.assert_allclose(
        [x for _, x in neighbours], [x for _, x in gensim_neighbours], rtol=1e-5
    )


def test_a_vector_can_stand_for_a_word(vectors):
    (word, cosine), *_ = vectors.most_similar([3 * vectors.vector("cat")], count=1)
    assert (word, cosine) == ("cat", pytest.approx(1))


@pytest.mark.parametrize("cutoff", [300, 30_000])
def test_analogies_are_answered_as_gensim_does_section_by_section(vectors, gensim_vectors, cutoff):
    result = vectors.analogies(QUESTIONS, cutoff=cutoff)
    share, sections = gensim_vectors.evaluate_word_analogies(QUESTIONS, restrict_vocab=cutoff)
    for section in sections[:-1]:
        our_section = next(s for s in result.sections if s.name == section["section"])
        right, wrong = len(section["correct"]), len(section["incorrect"])
        assert (our_section.right, our_section.covered) == (right, right + wrong)
    assert result.share == pytest.approx(share)
    assert result.total.questions == 19_544
    assert f"of {result.total.covered} covered of 19544" in str(result)
    assert f"cut-off: the {result.cutoff} most frequent words" in str(result)


@pytest.mark.parametrize("cutoff", [700, 300_000])
@pytest.mark.parametrize("name", ["wordsim353.tsv", "simlex999.txt"])
def test_similarity_is_gensims_spearman(name, cutoff):
    lines = [line.split("\t") for line in Path(datapath(name)).read_text().splitlines()]
    words = sorted({w for line in lines if line[0][0] != "#" for w in line[:2]})[::-1]
    words = [w for n, w in enumerate(words) if n % 9]  # some have no vector
    numbers = np.random.default_rng(2).standard_normal((len(words), 4)).astype(np.float32)
    keyed_vectors = KeyedVectors(4)
    keyed_vectors.add_vectors(words, numbers)
    _, spearman, missing = keyed_vectors.evaluate_word_pairs(datapath(name), restrict_vocab=cutoff)
    result = WordVectors(words, numbers).similarity(datapath(name), cutoff=cutoff)
    assert result.spearman == pytest.approx(float(spearman[0]), abs=1e-6)
    assert 100 * (1 - result.covered / result.pairs) == pytest.approx(missing)
    summary = (
        f"on {result.covered} covered of {result.pairs} pairs; cut-off: the {result.cutoff} most"
    )
    assert summary in str(result)
    assert result.cutoff == min(cutoff, len(words))


def test_both_data_sets_are_read_as_they_are_published(vectors, tmp_path):
    """WordSim-353 has commas or tabs, SimLex-999 the kind of a word before the number."""
    pairs = [("tiger", "Cat", 7.35), ("book", "paper", 7.46), ("car", "train", 6.31)]
    forms = {
        "combined.csv": "Word 1,Word 2,Human (mean)\n{}".format,
        "SimLex-999.txt": "word1\tword2\tPOS\tSimLex999\tconc(w1)\n{}".format,
        "gensim.tsv": "# a comment\n\n{}\n".format,
    }
    rows = {
        "combined.csv": [f"{a},{b},{x}" for a, b, x in pairs],
        "SimLex-999.txt": [f"{a}\t{b}\tN\t{x}\t{9 - x}" for a, b, x in pairs],
        "gensim.tsv": [f"{a}\t{b}\t{x}" for a, b, x in pairs],
    }
    results = []
    for name, form in forms.items():
        (tmp_path / name).write_text(form("\n".join(rows[name])))
        results.append(vectors.similarity(tmp_path / name))
    assert results[0] == results[1] == results[2]
    assert results[0].pairs == results[0].covered == 3


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.safetensors"])
def test_a_file_holds_the_same_bits(vectors, tmp_path, name):
    vectors.save(tmp_path / name)
    loaded = WordVectors.load(tmp_path / name)
    assert list(loaded.words) == list(vectors.words)
    np.testing.assert_array_equal(loaded.vectors, vectors.vectors)


@pytest.mark.parametrize("binary", [False, True])
def test_gensims_files_are_read_and_ours_by_gensim(vectors, gensim_vectors, tmp_path, binary):
    path = tmp_path / ("v.bin" if binary else "v.txt")
    gensim_vectors.save_word2vec_format(str(path), binary=binary)
    np.testing.assert_array_equal(WordVectors.load(path).vectors, vectors.vectors)
    vectors.save(path)
    loaded = KeyedVectors.load_word2vec_format(str(path), binary=binary)
    np.testing.assert_array_equal(loaded.vectors, vectors.vectors)


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.safetensors"])
def test_a_cut_file_is_refused_by_name(vectors, tmp_path, name):
    vectors.save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=name if name != "v.txt" else "cut"):
        WordVectors.load(tmp_path / name)


def test_a_line_that_is_no_question_is_refused_and_a_comment_is_not(vectors, tmp_path):
    a, b, c, d = vectors.words[:4]
    (tmp_path / "q.txt").write_text(f"// as published\n# of four words\n\n: few\n{a} {b} {c} {d}\n")
    assert vectors.analogies(tmp_path / "q.txt").total.questions == 1
    (tmp_path / "q.txt").write_text(f"{a} {b} {c} {d}\n{a} {b} {c}\n")
    with pytest.raises(UsageError, match=f"is no question; got '{a} {b} {c}'; four words a line"):
        vectors.analogies(tmp_path / "q.txt")


def test_questions_and_pairs_may_begin_with_the_mark_of_their_encoding(vectors, tmp_path):
    a, b, c, d = vectors.words[:4]
    (tmp_path / "q.txt").write_text(f": few\n{a} {b} {c} {d}\n", "utf-8-sig")
    assert [section.name for section in vectors.analogies(tmp_path / "q.txt").sections] == ["few"]
    (tmp_path / "p.csv").write_text(f"{a},{b},1\n{a},{c},2\n", "utf-8-sig")
    assert vectors.similarity(tmp_path / "p.csv").covered == 2


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.safetensors"])
def test_a_file_of_no_words_is_read(tmp_path, name):
    WordVectors([], np.zeros((0, 3), np.float32)).save(tmp_path / name)
    assert WordVectors.load(tmp_path / name).vectors.shape == (0, 3)


@pytest.mark.parametrize("numbers", [[[1.0], [2.0]], np.ones((1, 2)), np.ones(2)])
def test_there_is_a_vector_for_each_word(numbers):
    with pytest.raises(UsageError, match="a row of numbers for each word; got 2 words, and"):
        WordVectors(["cat", "dog"], numbers)


def test_questions_of_which_none_is_covered_are_refused(vectors, tmp_path):
    (tmp_path / "q.txt").write_text(": few\nqueen xyz king zyx\n")
    with pytest.raises(UsageError, match="no question has four words with vectors; got 1 question"):
        vectors.analogies(tmp_path / "q.txt")
    (tmp_path / "p.tsv").write_text("a\tb\t1\n")
    with pytest.raises(
        UsageError, match="at least two pairs must have vectors; got 0 of 1, cut-off"
    ):
        vectors.similarity(tmp_path / "p.tsv")
    (tmp_path / "p.tsv").write_text("cat\tbook\t1\ncat book 2\n")
    with pytest.raises(UsageError, match=r"holds no pair; got 'cat book 2'; two words and"):
        vectors.similarity(tmp_path / "p.tsv")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "cat\tbook\t5\ncar\ttrain\t5\n",
            "ratings of all pairs with vectors are equal: .* got 5 fo",
        ),
        ("cat\tbook\t1\nbook\tcat\t5\n", "cosines of all pairs with vectors are equal: .* for eac"),
        ("cat\tbook\t1\ncar\ttrain\tnan\n", "holds no pair; got 'car"),
    ],
)
def test_pairs_without_a_correlation_are_refused(vectors, tmp_path, lines, said):
    (tmp_path / "p.tsv").write_text(lines)
    with pytest.raises(UsageError, match=said):
        vectors.similarity(tmp_path / "p.tsv")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda v: v.most_similar(["xyzzy"]), "the word has no vector; got 'xyzzy'"),
        (lambda v: v.most_similar("cat"), "takes lists of words; got 'cat'"),
        (lambda v: v.most_similar([]), "takes lists of words"),
        (lambda v: v.most_similar(13), "takes lists of words; got 13"),
        (lambda v: v.most_similar(["cat"], count=-1), "whole number of at least 1; got -1"),
        (
            lambda v: v.analogies(QUESTIONS, cutoff=-5),
            "cutoff must be a whole number of at least 1",
        ),
        (lambda v: v.similarity(datapath("wordsim353.tsv"), cutoff=0), "of at least 1; got 0"),
        (lambda v: v.most_similar(["cat"], count=2.5), "whole number of at least 1; got 2.5"),
        (lambda v: v.most_similar([np.ones(3)]), "a vector of 4 finite numbers; got array([1., 1"),
        (lambda v: v.most_similar([np.full(4, np.nan)]), "a vector of 4 finite numbers; got array"),
        (lambda v: v.save("v.npy"), "no format of this ending; got v.npy"),
        (
            lambda v: v.analogies("none.txt"),
            "none.txt cannot be read; got No such file",
        ),
        (lambda v: WordVectors.load("none.bin"), "there are no vectors; got none.bin"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(vectors, ask, said):
    with pytest.raises(UsageError) as caught:
        ask(vectors)
    assert said in str(caught.value)


def test_a_number_is_no_vector_of_equal_numbers(vectors):
    message = 'neither a word nor a vector of 4 finite numbers; got 13; an id is a text here: "13"'
    for question in (([13],), (["cat"], [13])):
        with pytest.raises(UsageError, match=message):
            vectors.most_similar(*question)


def test_a_vector_may_be_a_list_of_numbers(vectors):
    row = vectors.vector("cat")
    assert vectors.most_similar([row.tolist()]) == vectors.most_similar([row])


def test_a_word_with_a_space_goes_to_safetensors_only(tmp_path):
    vectors = WordVectors(["new york", "rome"], np.eye(2, dtype=np.float32))
    with pytest.raises(UsageError, match=r"save as \.safetensors"):
        vectors.save(tmp_path / "v.txt")
    vectors.save(tmp_path / "v.safetensors")
    assert WordVectors.load(tmp_path / "v.safetensors").words == ["new york", "rome"]


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.safetensors"])
def test_line_breaks_of_other_scripts_are_parts_of_words(tmp_path, name):
    words = ["a\u2028b", "c\x85d", "e"]
    keyed_vectors = KeyedVectors(2)
    keyed_vectors.add_vectors(words, np.arange(6, dtype=np.float32).reshape(3, 2))
    if name == "v.safetensors":
        words[2] = "e\nf"
        WordVectors(words, keyed_vectors.vectors).save(tmp_path / name)
    else:
        keyed_vectors.save_word2vec_format(str(tmp_path / name), binary=name == "v.bin")
    loaded = WordVectors.load(tmp_path / name)
    assert loaded.words == words
    np.testing.assert_array_equal(loaded.vectors, keyed_vectors.vectors)


def test_the_words_of_older_files_are_lines(tmp_path):
    arrays = {"vectors": np.eye(2, dtype=np.float32)}
    write_arrays(tmp_path / "v.safetensors", arrays, metadata={"words": "king\nqueen"})
    assert WordVectors.load(tmp_path / "v.safetensors").words == ["king", "queen"]
    write_arrays(tmp_path / "w.safetensors", arrays, metadata={"words": "king\na\nb"})
    with pytest.raises(DataError, match=r"is damaged; got 3 words, 2 vectors"):
        WordVectors.load(tmp_path / "w.safetensors")


def test_a_plane_is_that_of_scikit_learns_principal_components(vectors):
    words = list(vectors.words[:7])
    points = vectors.plane(words)
    rows = np.stack([vectors.vector(word) for word in words])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = PCA(2).fit_transform(rows)
    np.testing.assert_allclose(abs(points), abs(expected), atol=1e-5)
    assert (points[0] >= 0).all()
    for few in (words[:2], [*words[:2], words[0]], words[0], 5):
        with pytest.raises(UsageError, match="a map takes at least three words"):
            vectors.plane(few)


@pytest.mark.parametrize("line", ["route 66 1 2", "sea 1", "sea 1 2 3"])
def test_a_text_file_with_more_or_fewer_numbers_in_a_line_is_refused(tmp_path, line):
    path = tmp_path / "vectors.txt"
    path.write_text(f"2 2\nland 3 4 \n{line}\n")
    with pytest.raises(DataError, match=f"^a line of the file is not .* 2 numbers; got {line};"):
        WordVectors.load(path)


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.safetensors"])
def test_a_file_that_cannot_be_written_is_one_sentence(vectors, tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} cannot be written; got No such file.*; name a"):
        vectors.save(tmp_path / "none" / name)
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"{name} cannot be written; got Is a directory"):
        vectors.save(tmp_path / name)


def test_a_text_file_without_a_header_is_read(vectors, gensim_vectors, tmp_path):
    path = tmp_path / "glove.txt"
    vectors.save(path)
    path.write_text(path.read_text().partition("\n")[2])
    loaded = WordVectors.load(path)
    assert list(loaded.words) == list(vectors.words)
    np.testing.assert_array_equal(loaded.vectors, vectors.vectors)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match="a line of the file is not one word and 4 numbers; got"):
        WordVectors.load(path)


@pytest.mark.parametrize("text", ["", "\n", "sea\nland\n", "sea 1 x\n", "a text of words\n"])
def test_a_text_file_that_holds_no_vectors_is_refused_by_name(tmp_path, text):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(DataError, match=r"v\.txt holds no word vectors, or is cut; got"):
        WordVectors.load(tmp_path / "v.txt")


def test_text_that_is_called_binary_is_refused(vectors, tmp_path):
    vectors.save(tmp_path / "v.txt")
    (tmp_path / "v.txt").rename(tmp_path / "v.bin")
    with pytest.raises(DataError, match=r"v\.bin holds no word vectors, or is cut; got "):
        WordVectors.load(tmp_path / "v.bin")


def test_a_binary_file_with_more_words_than_its_header_says_is_refused(vectors, tmp_path):
    vectors.save(tmp_path / "v.bin")
    data = (tmp_path / "v.bin").read_bytes()
    _, line, rest = data.partition(b"\n")
    (tmp_path / "v.bin").write_bytes(b"3 4" + line + rest)
    with pytest.raises(DataError, match="is cut; got ValueError: more bytes than 3 words and vec"):
        WordVectors.load(tmp_path / "v.bin")


@pytest.mark.parametrize("name", ["v.txt", "v.bin"])
def test_vectors_that_are_not_finite_are_refused(tmp_path, name):
    WordVectors(["a", "b"], np.array([[1, 2], [np.nan, 3]], np.float32)).save(tmp_path / name)
    with pytest.raises(
        DataError, match=f"{name} holds .*; got ValueError: a number that is not fi"
    ):
        WordVectors.load(tmp_path / name)
