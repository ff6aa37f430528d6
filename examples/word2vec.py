"""Word vectors on Spark: trains on text, asks for neighbours, saves what gensim reads.

    python examples/word2vec.py [FILE-OR-FOLDER [QUESTIONS]]

A line is a sentence. Left out, Python's own manual is read. QUESTIONS is a file such as word2vec's
questions-words.txt.
"""

import re
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from photinus import Word2Vec, spark_session


def manual(folder):
    lines = (line for text in topics.values() for line in re.split(r"[.:;]\s", text))
    words = (re.findall("[a-z_]{2,}", line.lower()) for line in lines)
    path = Path(folder) / "manual.txt"
    path.write_text("\n".join(" ".join(line) for line in words if len(line) > 3))
    return path


def main(spark=None, path=None, questions=None, workers=2, epochs=10):
    spark = spark or spark_session(workers)
    with tempfile.TemporaryDirectory() as folder:
        sentences = spark.read.text(str(path or manual(folder)))
        word2vec = Word2Vec(
            inputCol="value", vectorSize=64, minCount=5, epochs=epochs, numWorkers=workers
        )
        model = word2vec.fit(sentences)
        model.transform(sentences).show(3)
    word = "list" if "list" in model.vectors.index else model.vectors.words[0]
    print(f"{len(model.vectors)} words; nearest to {word}:")
    for near, cosine in model.most_similar([word], count=5):
        print(f"  {cosine:.3f} {near}")
    if questions:
        print(model.analogies(questions))
    model.vectors.save("words.bin")
    return model


if __name__ == "__main__":
    main(path=next(iter(sys.argv[1:]), None), questions=next(iter(sys.argv[2:]), None))
