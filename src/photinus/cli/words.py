"""The commands of word vectors: `train word2vec FOLDER` calls `train_words`; `words` queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from photinus.cli.result_folder import result_folder
from photinus.core.addresses import local_folder
from photinus.core.errors import UsageError

if TYPE_CHECKING:
    from photinus.embeddings.vectors import WordVectors


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("model", type=click.Path())
@click.argument("asked", nargs=-1, metavar="[WORD [- WORD] [+ WORD]]...")
@click.option("--count", default=10, help="How many words to print [10].")
@click.option("--analogies", type=click.Path(), help="A file of questions, as questions-words.txt.")
@click.option(
    "--cutoff",
    type=int,
    help="Use only this many of the most frequent words [30000 for questions, 300000 for pairs].",
)
@click.option(
    "--map",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw the words as points of a plane, and print no neighbours.",
)
@click.option("--pairs", type=click.Path(), help="A file of pairs, as WordSim-353 or SimLex-999.")
def words(  # noqa: PLR0913
    model: str,
    asked: tuple[str, ...],
    count: int,
    analogies: str | None,
    cutoff: int | None,
    pairs: str | None,
    picture: Path | None,
) -> None:
    """Ask word vectors: `photinus words words.bin king - man + woman`.

    MODEL is a file of vectors: .bin, .txt or .safetensors, or a folder with such a file.
    """
    from photinus.embeddings.vectors import WordVectors

    vectors = WordVectors.load(_vectors_file(Path(model)))
    if not (asked or analogies or pairs or picture):
        raise UsageError("nothing is asked", do=f"photinus words {model} king - man + woman")
    if cutoff is not None and not (analogies or pairs):
        do = "name --analogies or --pairs, or leave it out"
        raise UsageError("--cutoff is for --analogies and --pairs", got=cutoff, do=do)
    if picture is not None:
        _draw(vectors, asked, picture)
    elif asked:
        for word, cosine in vectors.most_similar(*_added_and_removed(asked), count=count):
            click.echo(f"{cosine:.3f} {word}")
    cutoff_argument = {} if cutoff is None else {"cutoff": cutoff}
    if analogies:
        click.echo(str(vectors.analogies(analogies, **cutoff_argument)))
    if pairs:
        click.echo(str(vectors.similarity(pairs, **cutoff_argument)))


def _draw(vectors: WordVectors, terms: tuple[str, ...], picture: Path) -> None:
    from photinus.report.word_map import word_map

    if picture.suffix != ".svg":
        raise UsageError("a map is a picture in SVG", got=picture.name, do="name a file .svg")
    svg = word_map(terms, vectors.plane(terms))
    try:
        picture.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{picture} cannot be written", got=error.strerror) from error
    click.echo(f"   map  {picture}")


def _vectors_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("words.bin", "words.txt", "words.safetensors"):
        if (path / name).is_file():
            return path / name
    raise UsageError(f"{path} holds no vectors", do="name a file: words.bin")


def _added_and_removed(terms: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Returns the words that are added, and those that are taken away.

    Raises:
        UsageError: after a sign there is no word.
    """
    sides: tuple[list[Any], list[Any]] = ([], [])
    sign = ""
    for text in [*" ".join(terms).split(), ""]:
        if sign and text in ("+", "-", ""):
            do = "ask as king - man + woman"
            raise UsageError(f"there is no word after {sign}", got=" ".join(terms), do=do)
        if text in ("+", "-"):
            sign = text
        elif text:
            sides[int(sign == "-")].append(text)
            sign = ""
    return sides


def train_words(path: str, folder: str, params: Mapping[str, Any]) -> None:
    """Trains word vectors on text files, and saves `words.bin`; `.safetensors` with n-grams.

    Args:
        path: of text files, or of a folder of them: a line is a sentence; or of a Wikipedia dump.
        folder: where they are kept; "" for a new folder under `runs`.
        params: of `Word2Vec`.

    Raises:
        UsageError: a Param is wrong.
    """
    from photinus.estimators.word2vec import Word2Vec
    from photinus.run.train import new_folder

    trainer = Word2Vec(**params)
    # one that cannot be made is reported before training
    kept_in = local_folder(folder or new_folder("word2vec"), "word vectors are kept")
    with result_folder(kept_in) as output_folder:
        model = trainer.fit(path)
    names = ("words.bin", "words.safetensors")
    name, other = names if model.vectors.subwords is None else reversed(names)
    model.vectors.save(output_folder / name)
    # of an earlier training: `words` takes what is there
    (output_folder / other).unlink(missing_ok=True)
    click.echo(f"{len(model.vectors)} words, {model.vectors.vectors.shape[1]} numbers each")
    click.echo(f"  vectors  {output_folder}/{name}")
    click.echo(f"   ask it  photinus words {output_folder} {model.vectors.words[0]}")
